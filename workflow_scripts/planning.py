"""The plan at parse time: a run, known before anything is read but the config and the bytes of local files."""

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from workflow_scripts import config as configs
from workflow_scripts import files, identity, processes
from workflow_scripts.config import Config
from workflow_scripts.config.generation import HUB_ID
from workflow_scripts.config.outputs import protected_by
from workflow_scripts.errors import PlainError, plain_os_errors
from workflow_scripts.prompts import inputs
from workflow_scripts.publishing.batches import batch_chunks, batch_names
from workflow_scripts.run import Run
from workflow_scripts.tuning import winner
from workflow_scripts.tuning.candidates import Candidate, laid_over


@dataclass(frozen=True)
class Plan:
    """A run, known before anything is read but the config and the bytes of local files."""

    config: Config
    run: Run
    identity: dict[str, Any]
    sources: dict[str, dict[str, Any]]  # as in lock.json: {NAME: {"shard": "sources/NAME-HASH", "files": [...]}}
    inputs: dict[str, list[inputs.Input]]  # what prompts are drawn against; S3 prefixes by their names alone
    redrive: str | None = None  # the one that is asked for
    tuned: Candidate | None = None  # whose flags are laid over servers.args

    @property
    def batches(self) -> dict[str, list[str]]:
        """The publishing jobs, `{batch: its chunks}`; a redrive has one of its own. None without a store."""
        chunks = self.run.chunks()
        names = [*batch_names(len(chunks)), *self.redrives] if self.config.publish.store != "none" else []
        return {name: batch_chunks(name, chunks) for name in names}

    @property
    def generates(self) -> bool:
        """Whether answers are asked for; recorded ones are exported without chunks and without an account."""
        return self.config.training.answers == "generated"

    @property
    def chunks(self) -> list[str]:
        """The chunks that are to be there."""
        return self.run.chunks() if self.generates else []

    @property
    def recorded_of(self) -> list[str]:
        """The manifest, whose recorded answers are exported; nothing where answers are generated."""
        return [] if self.generates else [str(self.run.manifest)]

    @property
    def account(self) -> list[str]:
        """The account and the page that shows it, where there is one."""
        return [str(path) for path in (self.run.summary, self.run.report)] if self.generates else []

    @property
    def redrives(self) -> list[str]:
        """The redrives that the run's account counts: those that are finished, and the one that is asked for."""
        if not self.generates:
            return []
        return [*self.run.redrives(), *([self.redrive] if self.redrive else [])]

    def lost_chunk_files(self) -> list[str]:
        """Data files of chunks that are gone while their sidecars are there: named as a target, they are made again."""
        folder = self.run.folder / "completions"
        there = {path.name for path in folder.iterdir()} if folder.exists() else set()
        return [
            str(path)
            for chunk in self.chunks
            if f"{chunk}.json" in there
            for path in (self.run.completions(chunk), self.run.failures(chunk))
            if path.name not in there
        ]

    def with_redrive(self, asked: bool) -> "Plan":
        """The plan with one more redrive, if that is `asked` for. PlainError if there is nothing to ask again."""
        if not asked:
            return self
        if not self.generates:
            raise PlainError("training.answers is recorded: no prompt is asked, and none can be asked again")
        if left := [chunk for chunk in self.run.chunks() if not self.run.sidecar(chunk).exists()]:
            raise PlainError(
                f"{len(left)} of {len(self.run.chunks())} chunks are not finished: say the line without `redrive` "
                f"first; open failures are asked again by that too"
            )
        from workflow_scripts.completions.redrive import standing_failures  # rarely needed, and slow to import

        if not standing_failures(self.run, self.run.redrives()):
            raise PlainError("no prompt has failed: there is nothing to ask again")
        return replace(self, redrive=f"r{len(self.run.redrives()) + 1}")

    def with_tuned(self, tunes: bool) -> "Plan":
        """The plan with the flags that tuning found, where servers.tuned wants them; without, if it `tunes` anew."""
        servers = self.config.servers
        if tunes and not self.generates:
            raise PlainError("training.answers is recorded: no server is asked anything, and none can be tuned")
        if tunes and servers.urls:
            raise PlainError(
                "servers.urls names servers that run already, whose flags were set where they were started: there is "
                "nothing to tune here. Leave `urls` out to have servers launched, and tuned, on this machine"
            )
        found = winner.found(self.run) if servers.tuned and not tunes else None
        if found is None:
            return self
        config = laid_over(self.config, found)
        return replace(self, config=config, run=Run(self.run.folder, config), tuned=found)

    def lost_shards(self) -> list[str]:
        """Training shards that their index names and that are gone: named as a target, they are exported again."""
        return [str(path) for path, _ in self._shards() if not path.exists()]

    def damaged_ends(self) -> list[Path]:
        """What a run ends with, and Snakemake takes for finished though it is cut: the account, training shards."""
        found = []
        if self.run.summary.exists():
            try:
                files.read_json(self.run.summary, "prompts")
            except PlainError:
                found.append(self.run.summary)
        return [*found, *(path for path, size in self._shards() if path.exists() and path.stat().st_size != size)]

    def _shards(self) -> list[tuple[Path, int]]:
        """The training shards that their index names, with their sizes in bytes."""
        index = self.run.folder / "training" / self.training_hash / "training.json"
        if not index.exists():
            return []
        try:
            entries = files.read_json(index, "files")["files"]
        except PlainError:
            return []  # the jobs that read it say what is wrong
        return [(index.parent / entry["path"], entry["bytes"]) for entry in entries]

    @property
    def training_hash(self) -> str:
        return identity.training_hash(self.config, self.redrives)

    @property
    def publish_hash(self) -> str:
        return identity.publish_hash(self.config)


@plain_os_errors()
def open_plan(values: dict[str, Any], configfiles: Sequence[Path], basedir: str) -> Plan:
    """The plan of this start of Snakemake; jobs find this project's modules and Python through the environment.

    `--configfile` stands in for config/config.yaml; lone `--config` values are laid over it.
    """
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.environ["PYTHONPATH"] = basedir
    processes.claim_run_process()
    sys.excepthook = _no_traceback_of_an_interrupt
    logging.raiseExceptions = False  # no traceback for each line of Snakemake's that a full disk has no room to log
    where = ", ".join(str(path) for path in configfiles)
    if not configfiles:
        default = Path(basedir) / "config" / "config.yaml"
        where = "config/config.yaml"
        values = _overlay(configs.load_yaml(default), values)
    for path in configfiles:
        with contextlib.suppress(yaml.YAMLError):  # Snakemake has read it as JSON
            configs.refuse_doubled_keys(path.read_text(encoding="utf-8"), str(path))
    return plan(values, where)


def _no_traceback_of_an_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C before the first job, wherever in Snakemake it falls; during jobs Snakemake catches it itself."""
    if issubclass(kind, KeyboardInterrupt):
        print("stopped before the first job", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def _overlay(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _overlay(merged[key], value) if both else value
    return merged


def plan(values: dict[str, Any], where: str) -> Plan:
    """The plan of a config. PlainError holds one line per mistake."""
    config = configs.parse(values, where)
    hashes = identity.ContentHashes()
    found, problems = {}, []
    for name, source in config.sources.items():
        try:
            found[name] = identity.source_files(name, source, hashes)
        except PlainError as error:
            problems.append(f"{where}: {error}")
    against: dict[str, list[inputs.Input]] = {}
    try:
        against = inputs.plan_inputs(config, hashes)
    except PlainError as error:
        problems += [f"{where}: {line}" for line in str(error).splitlines()]
    named = {"path": config.model.path} if not config.servers.urls else {}  # servers elsewhere name it as they like
    if config.model.tokenizer not in (None, "none"):
        named["tokenizer"] = config.model.tokenizer
    for key, value in named.items():
        if not (value.startswith("embedded:") or HUB_ID.fullmatch(value) or Path(value).is_dir()):
            problems.append(f"{where}: model.{key}: {value}: no such folder, and no hub id (organization/name)")
    if problems:
        raise PlainError("\n".join(problems))
    what = identity.run_identity(config, found, hashes, against)
    hashes.save()
    run = Run(Path(config.results) / identity.run_name(what), config)
    publish = config.publish
    if publish.store != "none" and (wall := protected_by(f"{publish.prefix}{run.name}", publish.protect)):
        raise PlainError(
            f"{where}: publish: {publish.prefix}{run.name}/ meets the protected prefix {wall!r}; choose another prefix"
        )
    try:
        inputs.check_own_run(config.prompts.exclude, run.folder)
    except PlainError as error:
        raise PlainError(f"{where}: {error}") from error
    sources = {
        name: {"shard": f"sources/{identity.shard_name(name, config.sources[name], listed)}", "files": listed}
        for name, listed in found.items()
    }
    return Plan(config, run, what, sources, against)
