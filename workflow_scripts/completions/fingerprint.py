"""What made a completion, as far as it decides the answer (content) and as far as it does not (speed)."""

import os
from pathlib import Path
from typing import Any

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
    """Hold the run to one content part: the first server's is kept, another is refused with what differs."""
    path = run.fingerprint
    if not path.exists():
        tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        files.write_json(tmp, found)
        try:
            os.link(tmp, path)
        except FileExistsError:
            pass  # another job was first: compare with its part
        finally:
            tmp.unlink()
    require_same(files.read_json(path), found, path)


def require_same(bound: dict[str, Any], found: dict[str, Any], where: Path) -> None:
    """PlainError, with both values of every key that differs."""
    differing = sorted(key for key in {*bound, *found} if bound.get(key) != found.get(key))
    if differing:
        lines = [f"  {key}: {bound.get(key)!r} before, {found.get(key)!r} now" for key in differing]
        raise PlainError(
            f"the servers would answer differently from the completions that {where.parent} holds:\n"
            + "\n".join(lines)
            + "\nSet them back, or give the run a new `name`"
        )
