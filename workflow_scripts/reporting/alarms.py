"""What was noticed while a run was made."""

from pathlib import Path

import orjson


def alarms(path: Path) -> list[str]:
    """The alarms of alarms.jsonl, over all starts of the run, each once; what was cut short is left out."""
    found: dict[str, None] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found[str(orjson.loads(line)["alarm"])] = None
        except (orjson.JSONDecodeError, KeyError, TypeError):
            continue  # a power loss cut it, and the next alarm went on in the same line
    return list(found)
