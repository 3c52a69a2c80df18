"""Every source of the mix: there, ours to read, with its splits; metadata only, nothing is downloaded."""

from workflow_scripts.config import Reading
from workflow_scripts.doctor.findings import Finding, errors, notes, warnings
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run


def sources(run: Run) -> list[Finding]:
    """Each dataset of the hub that the run has not bound yet, and what may stand in for it."""
    config = run.config
    if not to_ask(run):
        return []
    found: list[Finding] = []
    total = 0
    for name, source in config.sources.items():
        if source.dataset is None:
            continue
        size, problem, lost = _ask(source)
        total += size
        if problem is None:
            continue
        if lost and source.substitutes:
            found += warnings("sources", f"sources.{name}: {problem}. {', '.join(source.substitutes)} stand in for it")
        else:
            found += errors("sources", f"sources.{name}: {problem}")
    stand_ins = {name: reading for source in config.sources.values() for name, reading in source.substitutes.items()}
    for name, reading in {**stand_ins, **config.prompts.fill}.items():
        if name not in config.sources and reading.dataset is not None:
            _, problem, _ = _ask(reading)
            if problem is not None:
                found += warnings("sources", f"{name}, which may stand in: {problem}")
    if total:
        found += notes("sources", f"{total / 1e9:,.2f} GB of datasets are downloaded, where they are not here yet")
    return found


def to_ask(run: Run) -> bool:
    """Whether the run has datasets of the hub that it has not bound yet."""
    return not run.lock.exists() and any(source.dataset for source in run.config.sources.values())


def _ask(reading: Reading) -> tuple[int, str | None, bool]:
    """Bytes to download, what is wrong, and whether that stays so (gated, missing, a script)."""
    from workflow_scripts.sources import hub  # the hub's libraries take a second

    assert reading.dataset is not None
    try:
        held = hub.resolve(reading.dataset, reading.config, reading.split, reading.revision, reading.files)
    except hub.Unavailable as why:
        return 0, str(why), True
    except PlainError as error:
        return 0, str(error), False
    return sum(file.bytes for file in held.files), None, False
