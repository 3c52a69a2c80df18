"""What made a completion, as far as it decides the answer (content) and as far as it does not (speed)."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run
from workflow_scripts.serving.endpoints import Endpoint


def content(run: Run, endpoint: Endpoint) -> dict[str, Any]:
    """The part that may not differ between two completions of a run."""
    return {
        "model": endpoint.model,
        "sampling": run.config.sampling.model_dump(exclude_defaults=True),
        **endpoint.granted.content,
    }


def speed(endpoint: Endpoint) -> dict[str, Any]:
    """The part that may differ, and is listed."""
    return {"server": endpoint.name, "version": endpoint.granted.version, **endpoint.granted.speed}


def bind(run: Run, found: dict[str, Any]) -> None:
    """Hold the run to one content part: the first server's is kept, another is refused with what differs.

    If the file that keeps it was lost, the answers that are there say what made them.
    """
    path = run.fingerprint
    if not path.exists():
        if answered := next(_answered(run), None):
            require_same(answered[0], found, answered[1])
        tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        files.write_json(tmp, found)
        try:
            os.link(tmp, path)
        except FileExistsError:
            pass  # another job was first: compare with its part
        finally:
            tmp.unlink()
    require_same(files.read_json(path), found, path)


def _answered(run: Run) -> Iterator[tuple[dict[str, Any], Path]]:
    """What made answers that the run holds, and the file that says so: of finished chunks, then of begun ones."""
    for path in sorted(run.folder.glob("completions/[0-9]*[0-9].json")):
        if made := files.read_json(path)["fingerprint"]["content"]:  # an empty chunk asked no server
            yield made, path
    for path in sorted(run.folder.glob("journal/*.jsonl")):
        with path.open("rb") as file, suppress(orjson.JSONDecodeError):  # cut short, or empty
            yield orjson.loads(file.readline())["session"]["content"], path


def require_same(bound: dict[str, Any], found: dict[str, Any], where: Path) -> None:
    """PlainError, with both values of every key that differs."""
    if lines := differing(bound, found):
        raise PlainError(
            f"the servers would answer differently from the completions that {where.parent} holds:\n"
            f"{lines}\nSet them back, or give the run a new `name`"
        )


def differing(before: dict[str, Any], now: dict[str, Any]) -> str:
    """A line for each key whose value differs, with both values; empty if none does."""
    keys = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    return "\n".join(f"  {key}: {before.get(key)!r} before, {now.get(key)!r} now" for key in keys)
