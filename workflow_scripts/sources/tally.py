"""What stats.json says of a source: its rows, counted."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from workflow_scripts.sources import rejects
from workflow_scripts.sources.readers import Row
from workflow_scripts.sources.shapes import LANGUAGES, Conversation

if TYPE_CHECKING:
    from workflow_scripts.config import Shape

MAX_NAMES = 200  # of columns, roles and languages that are listed
_LANGUAGES = frozenset(LANGUAGES)
QUANTILES = (0, 10, 25, 50, 75, 90, 99, 100)


class Tally:
    """Counts of one pass. `rows` are those read; a sample's source has more."""

    def __init__(self) -> None:
        self.shape: Shape | None = None
        self.rows = 0
        self.rows_in_source: int | None = None  # where only a sample is read
        self.prompts = 0
        self.rejects: Counter[str] = Counter()
        self.roles: Counter[str] = Counter()  # as the rows name them, unknown ones included
        self.languages: Counter[str] = Counter()  # of prompts, as the rows name them
        self.malformed_calls = 0
        self.columns: set[str] = set()
        self._characters: Counter[int] = Counter()

    def add(self, other: "Tally") -> None:
        """Count what the rows after these gave."""
        self.rows += other.rows
        self.prompts += other.prompts
        self.malformed_calls += other.malformed_calls
        self.rejects.update(other.rejects)
        self._characters.update(other._characters)
        self.see(other.columns)
        for mine, others in ((self.roles, other.roles), (self.languages, other.languages)):
            for name, count in others.items():
                if name in mine or len(mine) < MAX_NAMES:
                    mine[name] += count

    def see(self, columns: Iterable[str]) -> None:
        """Note the columns of a file or a row."""
        if len(self.columns) < MAX_NAMES:
            self.columns.update(columns)

    def prompt(self, row: Row, characters: int, conversation: Conversation) -> None:
        """Count one prompt; `characters` are those before the first answer."""
        self.prompts += 1
        roles = self.roles
        for role in conversation.roles:
            roles[role] += 1
        self.malformed_calls += conversation.malformed_calls
        self._characters[characters] += 1
        if _LANGUAGES.isdisjoint(row):
            return
        language = next(row[name] for name in LANGUAGES if name in row)
        if isinstance(language, str) and (language in self.languages or len(self.languages) < MAX_NAMES):
            self.languages[language] += 1

    def reject(self, why: rejects.Rejected) -> None:
        """Count one row that is no prompt."""
        self.rejects[why.kind] += 1
        if why.kind == "unknown_role" and len(self.roles) < MAX_NAMES:
            self.roles[why.detail[: rejects.DETAIL_CHARACTERS]] += 1

    @property
    def unexpected(self) -> int:
        """Rejects that may tell of a wrong shape."""
        return sum(count for kind, count in self.rejects.items() if kind not in rejects.EXPECTED)

    @property
    def judged(self) -> int:
        """The rows that `unexpected` is a share of."""
        return self.prompts + self.unexpected

    def quantiles(self) -> dict[str, int]:
        """Characters of the prompts before their first answer, at percentiles (nearest rank)."""
        found: dict[str, int] = {}
        lengths = iter(sorted(self._characters.items()))
        seen = length = 0
        for percent in QUANTILES if self.prompts else ():
            while seen < max(1, -(-self.prompts * percent // 100)):
                length, count = next(lengths)
                seen += count
            found[f"p{percent}"] = length
        return found

    def to_json(self) -> dict[str, Any]:
        """The counts; those of things that the source does not have are left out."""
        return {
            "shape": self.shape,
            "rows": self.rows,
            **({} if self.rows_in_source is None else {"rows_in_source": self.rows_in_source}),
            "prompts": self.prompts,
            "rejects": dict(sorted(self.rejects.items())),
            "roles": dict(sorted(self.roles.items())),
            **({"languages": dict(sorted(self.languages.items()))} if self.languages else {}),
            **({"malformed_calls": self.malformed_calls} if self.malformed_calls else {}),
            "columns": sorted(self.columns),
            "characters": self.quantiles(),
        }
