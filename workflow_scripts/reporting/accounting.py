"""prompts = completions + failures, by id: checked for a chunk, and for a run merged."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow_scripts import files
from workflow_scripts.completions import redrive
from workflow_scripts.completions.fingerprint import require_same
from workflow_scripts.completions.finish import Key, keys_sha256
from workflow_scripts.errors import PlainError
from workflow_scripts.prompts import manifest_file
from workflow_scripts.records import Sidecar
from workflow_scripts.run import Run, is_redrive


class Audit:
    """Checks a run's chunks against its manifest. Cheap: ids by hash, files by sha256, nothing is parsed."""

    def __init__(self, run: Run) -> None:
        self.run = run
        manifest = manifest_file.read(run, ["prompt_id", "chunk", "position"]).sort("chunk", "position")
        self._ids = {int(chunk): rows["prompt_id"].to_list() for (chunk,), rows in manifest.group_by(["chunk"])}
        if len(manifest) != manifest["prompt_id"].n_unique():
            raise PlainError(f"{run.manifest} names a prompt twice")

    def prompts(self) -> int:
        """Prompts in the manifest."""
        return sum(len(ids) for ids in self._ids.values())

    def chunk(self, chunk: str) -> Sidecar:
        """The sidecar of a chunk whose files and ids are right. PlainError says what is not, and the way out."""
        run = self.run
        sidecar: Sidecar = files.read_json(
            run.sidecar(chunk), "completions", "failures", "prompts_sha256", "keys_sha256"
        )
        expected = self._owed(chunk)
        rows = sidecar["completions"]["rows"] + sidecar["failures"]["rows"]
        if sidecar["keys_sha256"] != keys_sha256(expected) or rows != len(expected):
            raise PlainError(
                f"{run.sidecar(chunk)}: its {rows} answers are not those that chunk {chunk} owes by the manifest "
                f"({len(expected)}); delete the chunk's files to make it again"
            )
        check_file(run.completions(chunk), sidecar["completions"])
        check_file(run.failures(chunk), sidecar["failures"])
        prompts = run.prompts(chunk)
        if prompts.exists() and files.sha256_file(prompts) != sidecar["prompts_sha256"]:
            raise PlainError(
                f"{prompts} is not the file that {run.completions(chunk)} answers; delete the prompts file to have it "
                f"made again from the manifest"
            )
        return sidecar

    def _owed(self, chunk: str) -> list[Key]:
        if is_redrive(chunk):
            return redrive.owed(self.run, chunk)
        samples = range(self.run.config.sampling.n)
        return [(prompt_id, sample) for prompt_id in self._ids.get(int(chunk), []) for sample in samples]

    def all(self) -> list[Sidecar]:
        """The sidecar of every chunk and redrive, all of one content fingerprint."""
        sidecars = [self.chunk(chunk) for chunk in [*self.run.chunks(), *self.run.redrives()]]
        made = [sidecar for sidecar in sidecars if sidecar["fingerprint"]["content"]]
        for sidecar in made[1:]:
            require_same(
                made[0]["fingerprint"]["content"],
                sidecar["fingerprint"]["content"],
                self.run.sidecar(sidecar["chunk"]),
            )
        return sidecars


def check_file(path: Path, entry: Mapping[str, Any]) -> None:
    """PlainError unless the file has the bytes and sha256 that its sidecar or index says."""
    if not path.exists():
        raise PlainError(f"{path} is missing; run the same line again")
    if path.stat().st_size != entry["bytes"] or files.sha256_file(path) != entry["sha256"]:
        raise PlainError(f"{path} is not the file that was finished; delete it and run the same line again")
