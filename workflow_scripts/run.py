"""A run's folder: the path of every file in it, and the config that it runs with."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from workflow_scripts import config
from workflow_scripts.errors import PlainError


def is_redrive(chunk: str) -> bool:
    """Whether a chunk's name is that of a redrive, see completions/redrive.py."""
    return re.fullmatch(r"r[1-9]\d*", chunk) is not None


@dataclass(frozen=True)
class Run:
    """results/RUN. Paths of chunks take the chunk's five digits, or a redrive's name."""

    folder: Path
    planned: config.Config | None = None  # at parse time, when there is no run.yaml yet

    @classmethod
    def holding(cls, path: Path) -> "Run":
        """The run whose folder holds `path`: the nearest one above it with a run.yaml."""
        for folder in path.absolute().parents:
            if (folder / "run.yaml").is_file():
                return cls(folder)
        raise PlainError(f"{path} is in no run's folder: no run.yaml above it. Start runs with `snakemake`")

    @cached_property
    def config(self) -> config.Config:
        """The config as run."""
        if self.planned is not None:
            return self.planned
        path = self.folder / "run.yaml"
        return config.parse(config.load_yaml(path), str(path))

    @property
    def name(self) -> str:
        """RUN: the config's name and the hash of what decides the content."""
        return self.folder.name

    @property
    def results(self) -> Path:
        return self.folder.parent

    @property
    def lock(self) -> Path:
        return self.folder / "lock.json"

    @property
    def manifest(self) -> Path:
        return self.folder / "manifest.parquet"

    @property
    def manifest_json(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def estimate(self) -> Path:
        return self.folder / "estimate.json"

    @property
    def dropped(self) -> Path:
        """Every prompt that was drawn and not taken, with the reason."""
        return self.folder / "dropped.parquet"

    @property
    def mix(self) -> list[Path]:
        """What became of the mix: the manifest is the last, who has it has all."""
        return [self.manifest_json, self.dropped, self.manifest]

    @property
    def summary(self) -> Path:
        return self.folder / "summary.json"

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def published_listing(self) -> Path:
        """What the bucket held of this run at the start: `{"paths": {path: {key, bytes}}, "joins_once": ...}`."""
        return self.folder / "published" / "listing.json"

    @property
    def uploads(self) -> Path:
        """Multipart uploads that this run has under way, on file."""
        return self.folder / "uploads"

    def chunks(self) -> list[str]:
        """The chunks' names, five digits each."""
        return [f"{number:05d}" for number in range(self.config.chunk_count())]

    def redrives(self) -> list[str]:
        """The finished redrives: r1, r2, ..."""
        found = [path.stem for path in (self.folder / "completions").glob("r*.json") if is_redrive(path.stem)]
        return sorted(found, key=lambda name: int(name[1:]))

    def redrives_before(self, name: str) -> list[str]:
        """The redrives that came before `name`."""
        return [f"r{number}" for number in range(1, int(name[1:]))]

    def source(self, name: str) -> Path:
        return self.folder / "sources" / f"{name}.json"

    def prompts(self, chunk: str) -> Path:
        return self.folder / "prompts" / f"{chunk}.jsonl.zst"

    def completions(self, chunk: str) -> Path:
        return self.folder / "completions" / f"{chunk}.jsonl.zst"

    def failures(self, chunk: str) -> Path:
        return self.folder / "completions" / f"{chunk}.failures.jsonl.zst"

    def sidecar(self, chunk: str) -> Path:
        return self.folder / "completions" / f"{chunk}.json"

    def journal(self, chunk: str) -> Path:
        return self.folder / "journal" / f"{chunk}.jsonl"

    def chunk_files(self, chunk: str) -> list[Path]:
        """A chunk's declared files, the sidecar last, as they are written."""
        return [self.completions(chunk), self.failures(chunk), self.sidecar(chunk)]

    def begun(self) -> bool:
        """Whether any chunk was begun here: then what the run rests on can't be replaced any more."""
        return any(any(self.folder.glob(pattern)) for pattern in ("journal/*.jsonl", "completions/*"))

    def relative(self, path: Path) -> str:
        """`path` inside the run, as receipts and keys name it."""
        return path.absolute().relative_to(self.folder.absolute()).as_posix()

    @property
    def fingerprint(self) -> Path:
        """The content part that every completion of the run shares."""
        return self.folder / "fingerprint.json"

    @property
    def servers(self) -> Path:
        return self.folder / "servers"

    def server(self, number: int) -> Path:
        """The folder of server `number`: state, key, locks, logs."""
        return self.servers / str(number)

    @property
    def store(self) -> Path:
        """The embedded store's folder, shared by the runs of one results folder."""
        return self.results / ".store"
