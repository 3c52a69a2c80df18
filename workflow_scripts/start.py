"""What a start of Snakemake does with its plan: what it tells, the run's lock and records, and what it ends with."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from workflow_scripts import files, processes, recovery, results_lock
from workflow_scripts.errors import PlainError, plain_os_errors
from workflow_scripts.planning import Plan
from workflow_scripts.prompts import locking
from workflow_scripts.reporting.table import estimate_table, stand_ins, table
from workflow_scripts.run import Run
from workflow_scripts.tuning import winner
from workflow_scripts.tuning.candidates import name_of

ANSWERING = {"chunk", "redriven"}

HOW_TO_GO_ON = (
    "Not finished. What is done is safe: the same line again goes on from here, "
    "once what an error above asks for is done."
)


@plain_os_errors()
def announce(plan: Plan, note: str | None, targets: list[str], *, dry_run: bool) -> None:
    """Print RUN first of all, what an older run of the name differs in, and refuse targets under results/NAME/.

    Here, since a start that finds nothing to do never gets to `begin`, processes that outlived an earlier run end.
    """
    print(f"run {plan.run.name} in {plan.run.folder}", file=sys.stderr)
    if plan.tuned is not None:
        flags = name_of(plan.tuned.args) or "none"
        where = f"{winner.path(plan.run)}; servers.tuned: false goes without"
        print(f"tuned: the flags of {plan.tuned.name} ({where}): {flags}", file=sys.stderr)
    if not dry_run:
        if any(target.startswith(("--delete-all", "--delete-temp")) for target in targets):
            results_lock.take(plan.run.results, plan.run.name)  # not under a run that lives
        _look_again(plan)
        if found := recovery.end_orphans(plan.run.results):
            print(f"ended {len(found)} processes that an earlier run had left", file=sys.stderr)
        for path in plan.damaged_ends():
            path.unlink()
            print(f"{path} is damaged; it is made again", file=sys.stderr)
    link = plan.run.results / plan.config.name
    for target in targets:
        if target.startswith(f"{link}/"):
            direct = plan.run.folder / target.removeprefix(f"{link}/")
            raise PlainError(f"{target} goes through a link, which Snakemake can't; say {direct}")
    if plan.run.folder.exists() and not os.access(plan.run.folder, os.W_OK):
        print(
            f"{plan.run.folder} can't be written to: nothing can be made there, what is there can be read",
            file=sys.stderr,
        )
    if plan.run.manifest_json.exists():
        files.read_json(plan.run.manifest_json, "taken", "sources")
    for line in [*_older_sibling(plan), *([note] if note else [])]:
        print(line, file=sys.stderr)


def _look_again(plan: Plan) -> None:
    """As long as nothing was drawn from the sources, those that could not be read may come back.

    Before Snakemake plans, for their jobs must run again.
    """
    run = plan.run
    if run.manifest.exists() or not run.lock.exists():
        return
    lock = files.read_json(run.lock, "sources")
    if not any("unavailable" in entry for entry in lock["sources"].values()):
        return
    from workflow_scripts.sources.locking import lock_again  # Arrow takes long to import, and is rarely needed

    results_lock.take(run.results, run.name)
    if found := lock_again(plan.config, lock["sources"], run.results):
        for name in found:
            run.source(name).unlink(missing_ok=True)
            print(f"source {name}: it can be read now", file=sys.stderr)
        files.write_json(run.lock, lock | {"sources": lock["sources"] | found})


def _older_sibling(plan: Plan) -> list[str]:
    """Where a run of this name has completions under another identity: which keys differ, and what that costs.

    It is for information only: an older run that can't be read is passed over.
    """
    if plan.run.lock.exists():
        return []
    others = [Run(path.parent) for path in plan.run.results.glob(f"{plan.config.name}-*/lock.json")]
    for other in sorted(others, key=lambda run: run.lock.stat().st_mtime, reverse=True):
        try:
            sidecars = [files.read_json(path) for path in other.folder.glob("completions/[0-9]*[0-9].json")]
            rows = sum(sidecar["completions"]["rows"] for sidecar in sidecars)
            keys = ", ".join(differing_keys(files.read_json(other.lock)["identity"], plan.identity)) or "the format"
        except (PlainError, KeyError, TypeError, ValueError):
            continue
        if rows:
            return [
                f"{other.name} has {rows} completions and differs in: {keys}. They would be made again here; "
                f"to keep them, set these keys back"
            ]
    return []


def differing_keys(old: Any, new: Any, at: str = "") -> list[str]:
    """The dotted keys in which two identities differ, or whose order does."""
    if at == "sources" or at.endswith((".substitutes", ".fill")):
        old, new = dict(old or ()), dict(new or ())
        if old == new and list(old) != list(new):
            return [f"the order of {at}"]
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            line for key in keys for line in differing_keys(old.get(key), new.get(key), f"{at}.{key}" if at else key)
        ]
    return [] if old == new else [at]


@plain_os_errors()
def begin(plan: Plan, rules: set[str], *, keep_incomplete: bool) -> None:
    """Before the first job: the run's lock, tidying up, its records, the store's check. No rule has them as input.

    run.yaml is the config as run; lock.json, written once, binds what was resolved at first use. `rules` are those of
    the jobs that are to run: the doctor looks at what they need. For the target `doctor` alone nothing is begun.
    """
    if keep_incomplete:
        raise PlainError("--keep-incomplete makes a file that a crash cut short pass for a finished one; leave it out")
    if "summary" in rules and not plan.generates:
        raise PlainError("training.answers is recorded: no prompt is asked, and the account and report are of answers")
    run = plan.run
    if rules & ANSWERING:
        if "tune" in rules:
            raise PlainError("tuning has the servers to itself: say `tune` alone, then the rest")
        winner.require(run)
    # Without `use`: the jobs go by what the catalogue said at this start.
    values = plan.config.model_dump(exclude_unset=True, exclude={"sources": {"__all__": {"use"}}})
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if "doctor" in rules:
        files.write_bytes(run.folder / "doctor.yaml", text.encode())
    if rules == {"doctor"}:
        return
    results_lock.take(run.results, run.name)
    files.write_bytes(run.folder / "run.yaml", text.encode())
    recovery.sweep(run)
    _redate(run)
    recovery.on_clock_set_back(lambda: _redate(run))
    if plan.config.publish.store != "none":
        # boto3 takes a second that a plan doesn't need
        from workflow_scripts.publishing.preflight import preflight
        from workflow_scripts.publishing.restore import restore_redrives

        try:
            preflight(run)
        except PlainError as error:
            raise PlainError("\n".join([str(error), *_sources_too(run)])) from error
        if not plan.redrive and (fetched := restore_redrives(run)):
            raise PlainError(
                f"the bucket holds what was asked again ({', '.join(fetched)}), which this start had not planned. "
                f"It is here now: say the same line again"
            )
    _see_the_doctor(run, rules)
    if not run.lock.exists():
        from workflow_scripts.sources.locking import lock_sources

        sources = lock_sources(plan.config, plan.sources, run.results)
        lock = {"run": run.name, "format": 1, "identity": plan.identity, "sources": sources}
        if found := locking.lock_inputs(run, plan.inputs):
            lock["prompts"] = found
        files.write_json(run.lock, lock)
        if plan.config.publish.store != "none":
            from workflow_scripts.publishing.preflight import publish_lock

            publish_lock(run)
    files.read_json(run.lock, "sources", "identity")
    _link(run.results / plan.config.name, run.name)
    _pass_on_sigterm()


def _see_the_doctor(run: Run, rules: set[str]) -> None:
    """Tell what this machine has in the way of the jobs that are to run. PlainError if that ends them.

    If it does, what else is in the way is looked for too, so that all is told at once.
    """
    from workflow_scripts.doctor.examine import Needs, examine  # a plan doesn't need it
    from workflow_scripts.doctor.findings import lines
    from workflow_scripts.publishing.restore import published_paths

    needs = Needs.of(rules)
    published = set() if "redriven" in rules else published_paths(run)
    sidecars = [run.sidecar(chunk) for chunk in run.chunks()]
    if published and all(path.exists() or run.relative(path) in published for path in sidecars):
        needs = replace(needs, servers=False)  # what is in the bucket is fetched, and nobody is asked
    found = examine(run, needs, brief=True)
    if any(finding.severity == "error" for finding in found):
        whole = lines(examine(run, needs, brief=False))
        raise PlainError("\n".join(["this run can't be made as things are:", *whole]))
    for finding in found:
        if finding.severity == "warning":
            print(f"{finding.check}: {finding.text}", file=sys.stderr)


def _sources_too(run: Run) -> list[str]:
    """What is wrong with the sources, where the store is at fault already."""
    from workflow_scripts.doctor import datasets

    return [finding.text for finding in datasets.sources(run) if finding.severity == "error"]


def _pass_on_sigterm() -> None:
    """Tell the jobs of a SIGTERM to this process: Snakemake would wait for their ends, however far off they are.

    They are told by SIGUSR1: where they got the SIGTERM too, it would count as the second, which ends them at once.
    """
    snakemakes = signal.getsignal(signal.SIGTERM)

    def pass_on(number: int, frame: FrameType | None) -> None:
        # Not the supervisor of the embedded store, which has a session of its own.
        processes.signal_all(processes.children(running="workflow_scripts."), signal.SIGUSR1)
        if callable(snakemakes):
            snakemakes(number, frame)

    signal.signal(signal.SIGTERM, pass_on)


def _redate(run: Run) -> None:
    if count := recovery.redate(run, recovery.file_system_now(run)):
        print(f"clock: {count} files of the run were dated in the future; they are dated now", file=sys.stderr)


def _link(link: Path, target: str) -> None:
    """Point results/NAME to the run, for reading; anything else of that name is left alone."""
    if link.is_symlink() or not link.exists():
        tmp = link.with_name(f".{link.name}.tmp")
        tmp.unlink(missing_ok=True)
        tmp.symlink_to(target)
        tmp.replace(link)


def end(plan: Plan, asked: list[str]) -> None:
    """After the last job: the run's table, if the whole run was made.

    PlainError if files that were asked for are missing: where Snakemake makes a file again that others take as
    ancient(), it plans none of those, finished or not, and calls that a success.
    """
    if any(not Path(path).exists() for path in asked):
        raise PlainError("Snakemake planned a part only. " + HOW_TO_GO_ON)
    if str(plan.run.estimate) in asked:
        print(estimate_table(files.read_json(plan.run.estimate)), file=sys.stderr)
    if plan.generates and plan.run.summary.exists():
        for line in stand_ins(files.read_json(plan.run.manifest_json)):
            print(line, file=sys.stderr)
        print(table(files.read_json(plan.run.summary)), file=sys.stderr)
