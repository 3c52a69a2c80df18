"""The run that somebody at a terminal means."""

from pathlib import Path

from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run


def open_run(path: Path | None) -> Run:
    """The run in `path`: its folder, a link to it, or a file in it; None: the one that was started last."""
    if path is None:
        begun = sorted(Path("results").glob("*/run.yaml"), key=lambda file: file.stat().st_mtime)
        if not begun:
            raise PlainError("no run in results/ yet; name a run's folder, or start one with `snakemake`")
        return Run(begun[-1].parent.resolve())
    if not path.exists():
        raise PlainError(f"{path} does not exist; name a run's folder, such as results/demo")
    if not (path / "run.yaml").is_file():
        inside = {found.parent.resolve() for found in path.glob("*/run.yaml")}
        if len(inside) == 1:
            return Run(inside.pop())
        if inside:
            names = ", ".join(sorted(folder.name for folder in inside))
            raise PlainError(f"{path} holds several runs; name one of them: {names}")
    return Run.holding(path.resolve() / "run.yaml")
