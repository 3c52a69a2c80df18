"""The flags that tuning found best, laid over `servers.args` where `servers.tuned` says so.

Only flags of speed are taken from the file, so that a run that is tuned in its midst stays the same run.
"""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from workflow_scripts import files
from workflow_scripts.config.generation import Args
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run
from workflow_scripts.serving.flags import SPEED_FLAGS
from workflow_scripts.tuning.candidates import AS_IS, Candidate

HOW = "say `snakemake --cores all tune` with the same config first, or set servers.tuned: false"


def path(run: Run) -> Path:
    return run.folder / "tuning.json"


def partial_path(run: Run) -> Path:
    """What a tuning that was cut short had measured: for people, and never used."""
    return run.folder / "tuning.partial.json"


def found(run: Run) -> Candidate | None:
    """The best candidate of the run's tuning.json; None where there is none yet. PlainError if none could be used."""
    if not path(run).exists():
        return None
    whole = files.read_json(path(run), "winner", "run", remedy=HOW)
    if whole["run"] != run.folder.name:
        raise PlainError(f"servers.tuned is true, and {path(run)} is of another run, {whole['run']}: {HOW}")
    told = whole["winner"]
    if not isinstance(told, dict) or not isinstance(told.get("args"), dict):
        raise PlainError(f"servers.tuned is true, and {path(run)} names no candidate that could be used: {HOW}")
    args = {name: value for name, value in told["args"].items() if name in SPEED_FLAGS}
    try:
        return Candidate(str(told.get("name", AS_IS)), TypeAdapter(Args).validate_python(args))
    except ValidationError as error:
        flag = ".".join(str(part) for part in error.errors()[0]["loc"][:1])
        raise PlainError(f"{path(run)}: winner.args.{flag} is no value of a flag: {HOW}") from error


def require(run: Run) -> None:
    """PlainError where servers.tuned asks for a tuning that was not made."""
    if run.config.servers.tuned and found(run) is None:
        raise PlainError(f"servers.tuned is true, and {path(run)} is not there: {HOW}")
