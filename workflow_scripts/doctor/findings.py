"""What a check finds: one line each, with what to do; ordered, as text and as JSON."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from workflow_scripts.errors import PlainError

Severity = Literal["error", "warning", "note"]
WORST_FIRST: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """An `error` ends the run sooner or later, a `warning` may, a `note` is good to know. `text` says what to do."""

    check: str
    severity: Severity
    text: str


def errors(check: str, *texts: str) -> list[Finding]:
    return [Finding(check, "error", text) for text in texts]


def warnings(check: str, *texts: str) -> list[Finding]:
    return [Finding(check, "warning", text) for text in texts]


def notes(check: str, *texts: str) -> list[Finding]:
    return [Finding(check, "note", text) for text in texts]


def caught(check: str, act: Callable[[], object]) -> list[Finding]:
    """The lines of the PlainError that `act` raises, as errors; nothing if it raises none."""
    try:
        act()
    except PlainError as error:
        said = str(error).splitlines()
        more = any(line.startswith(" ") for line in said)  # one mistake with something quoted below it
        return errors(check, *([" ".join(str(error).split())] if more else said))
    return []


def ordered(found: Iterable[Finding]) -> list[Finding]:
    """Worst first, each once; within one severity in the order of the checks."""
    return sorted(dict.fromkeys(found), key=lambda finding: WORST_FIRST.index(finding.severity))


def lines(found: Iterable[Finding]) -> list[str]:
    """A line each: `error: gpus: ...`."""
    return [f"{finding.severity}: {finding.check}: {finding.text}" for finding in ordered(found)]


def to_json(run: str, found: Iterable[Finding]) -> dict[str, Any]:
    """`{"run", "ok", "findings": [{"check", "severity", "text"}]}`, worst first."""
    listed = ordered(found)
    ok = not any(finding.severity == "error" for finding in listed)
    return {"run": run, "ok": ok, "findings": [asdict(finding) for finding in listed]}
