"""The known datasets: catalogue.yaml, and what `use: NAME` in a config stands for."""

from typing import Any


def expand(values: dict[str, Any], where: str) -> dict[str, Any]:
    """The config's values with every catalogue name replaced by what it stands for.

    `sources.NAME.use`: the entry's values, under those that the config gives. `substitutes` and `prompts.fill`, lists
    of names, become mappings of names to values. PlainError for a name that the catalogue does not have.
    """
    return values
