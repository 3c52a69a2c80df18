"""What flags an installed SGLang knows, asked of its own argument parser before a model is loaded."""

import difflib
import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.serving import causes, cuda_home
from workflow_scripts.serving.environment import LAUNCHER, Environment

LIST_SECONDS = 600  # importing SGLang takes a minute from a cold disk
VERSION_SECONDS = 60
FORMAT = 1

# Flags and values of other SGLang versions, and what 0.5.23 calls them. A name counts only where the installed parser
# lacks the old and has the new.
RENAMED = {
    "mamba-scheduler-strategy": "mamba-radix-cache-strategy",
    "cuda-graph-max-bs": "cuda-graph-max-bs-decode",
    "cuda-graph-bs": "cuda-graph-bs-decode",
    "nsa-prefill-backend": "dsa-prefill-backend",
    "nsa-decode-backend": "dsa-decode-backend",
    "fp4-gemm-runner-backend": "fp4-gemm-backend",
    "fp8-gemm-runner-backend": "fp8-gemm-backend",
    "tp": "tp-size",
    "dp": "dp-size",
    "pp": "pp-size",
}
RENAMED_VALUES = {
    ("fp4-gemm-backend", "cutlass"): "flashinfer_cutlass",
    ("fp4-gemm-backend", "cudnn"): "flashinfer_cudnn",
    ("fp4-gemm-backend", "trtllm"): "flashinfer_trtllm",
}


@dataclass(frozen=True)
class Known:
    """An SGLang's version, and its flags without `--`: the values that each may have, None where any may be."""

    version: str
    flags: Mapping[str, list[str] | None]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Known":
        return cls(value["version"], {name.removeprefix("--"): choices for name, choices in value["flags"].items()})


def listing(env: Environment, engine: str) -> Known:
    """What the environment's SGLang knows; asked once, and kept in the cache. PlainError if it can't be asked."""
    if (known := remembered(env, engine)) is not None:
        return known
    said = _ask(env, engine, [str(env.python), "-P", str(LAUNCHER), "--list-flags"], LIST_SECONDS)
    try:
        value = json.loads(said.strip().splitlines()[-1])
        known = Known.from_json(value)
    except (IndexError, ValueError, KeyError, TypeError) as error:
        raise PlainError(
            f"{env.python}: its SGLang doesn't tell its flags ({error!r}); it must be near 0.5.23"
        ) from error
    path = _cache(env, engine)
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(path, value)
    return known


def remembered(env: Environment, engine: str) -> Known | None:
    """The same, if it was asked before."""
    path = _cache(env, engine)
    return Known.from_json(files.read_json(path, "version", "flags")) if path.exists() else None


def _cache(env: Environment, engine: str) -> Path:
    identity = [FORMAT, str(env.python), engine, env.requirements_hash or _version(env)]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return files.cache_home() / "flags" / f"{key[:16]}.json"


def _version(env: Environment) -> str:
    code = "import importlib.metadata as m; print(m.version('sglang'))"
    return _ask(env, "", [str(env.python), "-P", "-c", code], VERSION_SECONDS).strip()


def _ask(env: Environment, engine: str, argv: list[str], seconds: float) -> str:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env={**cuda_home.clean_environ(), "DRAFTMILL_ENGINE": engine, "OMP_WAIT_POLICY": "passive"},
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise PlainError(f"{env.python} can't be run: {error}") from error
    if done.returncode != 0:
        raise PlainError(causes.told(f"{env.python}: its SGLang can't be imported", done.stdout + done.stderr, None))
    return done.stdout


def mistakes(given: Mapping[str, Any], known: Known, users: Iterable[str]) -> list[str]:
    """A line for each flag, and each value, that this SGLang doesn't know; `users` are those of servers.args."""
    of_user = set(users)
    found = []
    for name, value in given.items():
        where = (
            f"servers.args.{name}" if name in of_user else f"--{name}, which Draftmill sets unless servers.args does"
        )
        if name not in known.flags:
            found.append(f"{where}: SGLang {known.version} has no such flag{_meant(name, known)}")
            continue
        choices = known.flags[name]
        values = value if isinstance(value, list | tuple) else [value]
        for one in values:
            if choices is None or one is None or isinstance(one, bool) or str(one) in choices:
                continue
            renamed = RENAMED_VALUES.get((name, str(one)))
            meant = f"; it is called {renamed} there" if renamed in choices else ""
            found.append(f"{where}: SGLang {known.version} knows no {one!r}{meant}; allowed: {', '.join(choices)}")
    return found


def _meant(name: str, known: Known) -> str:
    renamed = RENAMED.get(name)
    if renamed in known.flags:
        return f"; it is called {renamed} there"
    near = difflib.get_close_matches(name, known.flags, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""
