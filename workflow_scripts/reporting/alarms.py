"""What was noticed while a run was made."""

from pathlib import Path

import orjson


def alarms(path: Path) -> list[str]:
    """The alarms of alarms.jsonl, over all starts of the run, each once; a line that was cut short is left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return list(dict.fromkeys(str(orjson.loads(line)["alarm"]) for line in lines if line.endswith(b"\n")))
