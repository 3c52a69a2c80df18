"""A small project in a folder of its own, run by the real `snakemake` against the stand-in.

The product launches and supervises the stand-in as it would SGLang, with no hook in it: the project's DRAFTMILL_HOME
holds a fake `sglang-cpu` environment, whose `python` starts the stand-in whatever script it is told to run.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models

from tests.standin.audit import audit_run, processes_of
from tests.standin.server import END
from tests.standin.waiting import until
from workflow_scripts import files
from workflow_scripts.run import Run
from workflow_scripts.serving import environment

ROOT = Path(__file__).parents[2]
VOCABULARY = 259  # of the stand-in: bytes, and an end token
SECONDS = 300.0  # that a run of a small project may take on a busy machine

# `python -P sglang_server.py FLAGS`: the first two are dropped.
PYTHON = """#!/bin/sh
shift 2
PYTHONPATH={root} exec {python} -m tests.standin.server "$@"
"""


@dataclass(frozen=True)
class Result:
    """A finished `snakemake`: its status, and all that it and its jobs printed."""

    code: int
    output: str

    @property
    def jobs(self) -> list[str]:
        """The messages of the jobs that ran or were planned, in order: "Chunk 00000", "Source chats", ..."""
        return re.findall(r"^(?:\[[^]]*\]\n)?Job \d+: (.*)$", self.output, flags=re.MULTILINE)

    def lines(self, start: str) -> list[str]:
        """The output's lines that start so."""
        return [line for line in self.output.splitlines() if line.startswith(start)]


class Running:
    """A `snakemake` that runs in a session of its own, as if it had its own terminal."""

    def __init__(self, argv: list[str], cwd: Path, env: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup ignores
            )
        self.pid = self.process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def signal_all(self, number: signal.Signals) -> None:
        """As a terminal does: to Snakemake and its jobs. Servers and supervisors have sessions of their own."""
        os.killpg(self.pid, number)

    def wait(self, seconds: float = SECONDS) -> Result:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal_all(signal.SIGKILL)
            self.process.wait()
            raise AssertionError(f"snakemake did not end in {seconds:g} s:\n{self.output}") from None
        return Result(self.process.returncode, self.output)


def _names_of_bytes() -> Iterator[tuple[int, str]]:
    """GPT-2's: a byte that can be seen in Latin-1 is named by that character, the others by those from U+0100."""
    others = count(256)
    for byte in range(256):
        seen = 33 <= byte <= 126 or (161 <= byte <= 255 and byte != 173)
        yield byte, chr(byte if seen else next(others))


class Project:
    """A folder with sources, a model, a config and a cache of its own; `clone` is the tree whose Snakefile runs."""

    def __init__(self, folder: Path, clone: Path = ROOT) -> None:
        self.folder = folder
        self.clone = clone
        self.home = folder / "home"
        self.config: dict[str, Any] = {
            "name": "small",
            "sources": {
                "questions": {"path": "data/questions.jsonl", "shape": "prompt_response"},
                "chats": {"path": "data/chats.jsonl", "shape": "messages"},
            },
            "chunks": {"count": 3},
            "model": {"path": "model"},
            "sampling": {"max_tokens": 200},
            "servers": {
                "engine": "sglang-cpu",
                "leases": 2,
                "start_timeout": 60,
                "drain": 10,
                "args": {"max-running-requests": 4},
            },
            "limits": {"stall": 15, "retry_wait": 0.02, "restart_wait": 0.1},  # a sixtieth of the defaults
            "training": {"min_supervised_tokens": 1},
        }
        self.env: dict[str, str] = {}
        self.logs = folder
        self._runs = 0

    @classmethod
    def make(cls, folder: Path) -> "Project":
        """A new one with two sources of twelve prompts."""
        project = cls(folder)
        project.write_rows("questions", [{"prompt": f"Question {n}?", "response": f"Old {n}."} for n in range(12)])
        old = {"role": "assistant", "content": "Old."}
        chats = [{"messages": [{"role": "user", "content": f"Chat {n}?"}, old]} for n in range(12)]
        project.write_rows("chats", chats)
        project.make_model(VOCABULARY)
        files.write_bytes(folder / "model" / "model.safetensors", b"no weights")
        python = project.home / "envs" / environment.named("sglang-cpu").folder.name / "bin" / "python"
        files.write_bytes(python, PYTHON.format(root=ROOT, python=sys.executable).encode(), mode=0o755)
        files.write_json(python.parents[1] / environment.MARKER, {"name": "sglang-cpu", "bytes": 0})
        return project

    def copy(self, folder: Path) -> "Project":
        """The same project elsewhere, with all that was made in it."""
        shutil.copytree(self.folder, folder, symlinks=True)
        other = Project(folder, self.clone)
        other.config = json.loads(json.dumps(self.config))
        other.env = dict(self.env)
        return other

    def forget_answers(self) -> None:
        """Back to where the first chunk is about to begin: sources, manifest, prompts and set-up are there."""
        shutil.rmtree(self.results / ".store", ignore_errors=True)
        for name in ("completions", "journal", "training", "published", "servers", "logs"):
            shutil.rmtree(self.made.folder / name, ignore_errors=True)
        for path in (self.made.summary, self.made.fingerprint, self.folder / "requests.jsonl"):
            path.unlink(missing_ok=True)

    def make_model(self, vocabulary: int) -> None:
        """A model's folder; servers that run already must give ids below this."""
        files.write_json(self.folder / "model" / "config.json", {"dtype": "bfloat16", "vocab_size": vocabulary})
        vocab = {"<end>": END} | {name: byte + 3 for byte, name in _names_of_bytes()}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.save(str(self.folder / "model" / "tokenizer.json"))

    def write_rows(self, source: str, rows: list[Any]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        files.write_bytes(self.folder / "data" / f"{source}.jsonl", text.encode())

    # --- running ---

    def command(self, *args: str, profile: str | None = None, configfile: str | None = "my.yaml") -> list[str]:
        """The one line with further arguments; `profile` stands in for profiles/default."""
        argv = [sys.executable, "-m", "snakemake", "-s", str(self.clone / "Snakefile"), "--cores", "2"]
        if profile is not None:
            argv += ["--workflow-profile", profile]
        # The config file last: the option takes all words after it for config files.
        return [*argv, *args, *(["--configfile", configfile] if configfile is not None else [])]

    def environ(self, **more: str) -> dict[str, str]:
        """Nothing of the user's own settings."""
        own = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder / "user"),
            "LC_ALL": "C.UTF-8",
            "DRAFTMILL_HOME": str(self.home),
            "STANDIN_LOG": str(self.folder / "requests.jsonl"),
            "PIP_NO_INDEX": "1",  # nothing may be downloaded
        }
        return own | self.env | more

    def start(self, *args: str, profile: str | None = None, configfile: str | None = "my.yaml", **env: str) -> Running:
        """Start the one line."""
        files.write_json(self.folder / "my.yaml", self.config)  # JSON is YAML
        self._runs += 1
        self.logs.mkdir(exist_ok=True)
        log = self.logs / f"snakemake.{self._runs}.log"
        argv = self.command(*args, profile=profile, configfile=configfile)
        return Running(argv, self.folder, self.environ(**env), log)

    def run(self, *args: str, profile: str | None = None, configfile: str | None = "my.yaml", **env: str) -> Result:
        """Run the one line to its end."""
        return self.start(*args, profile=profile, configfile=configfile, **env).wait()

    def finish(self, *args: str, **env: str) -> Result:
        """Run the one line, and check that it ends well and everything is there."""
        result = self.run(*args, **env)
        assert result.code == 0, result.output
        self.audit()
        return result

    # --- looking ---

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def made(self) -> Run:
        """The last started run."""
        return Run(self.results / (self.results / self.config["name"]).readlink())

    def requests(self, what: str = "asked") -> list[str]:
        """The prompts that stand-ins were asked or answered, over all starts."""
        return [line["text"] for line in self._noted() if line["what"] == what]

    def most_in_flight(self) -> int:
        """The most requests that were asked and not answered at one time, where no server died."""
        steps = accumulate(1 if line["what"] == "asked" else -1 for line in self._noted())
        return max(steps, default=0)

    def _noted(self) -> list[dict[str, Any]]:
        log = self.folder / "requests.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def wait_for_answers(self, count: int) -> None:
        until(lambda: len(self.requests("answered")) >= count)

    def journaled(self) -> int:
        """How many answers are safe in journals."""
        lines = [line for path in self.made.folder.glob("journal/*") for line in path.read_bytes().splitlines()]
        return sum(line.startswith(b'{"completion"') and line.endswith(b"}") for line in lines)

    def server_starts(self) -> int:
        """How often a server was started, over all runs."""
        logs = self.made.folder.glob("servers/*/service.log")
        return sum(log.read_text(errors="replace").count("=== draftmill: start ") for log in logs)

    def tree(self, under: Path | None = None) -> dict[str, tuple[int, int]]:
        """Every file of the results (size, mtime in ns), locks, logs and times of jobs aside."""
        top = under or self.results
        return {
            str(path.relative_to(top)): (path.stat().st_size, path.stat().st_mtime_ns)
            for path in sorted(top.rglob("*"))
            if path.is_file() and "logs" not in path.parts and not path.name.endswith(("lock", "timings.jsonl"))
        }

    # --- checking ---

    def audit(self) -> None:
        """The one audit: the run's answers, its files, and that no process is left."""
        self.no_process_left()  # first: a supervisor writes its last word when the run is over
        audit_run(self.made, by_standin=self.home.is_relative_to(self.folder))

    def no_process_left(self, seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while left := processes_of(self.folder):
            assert time.monotonic() < deadline, f"still alive: {left}"
            time.sleep(0.1)

    def end_processes(self) -> None:
        """For the end of a test that failed: kill what lives in this folder."""
        for pid in processes_of(self.folder):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
