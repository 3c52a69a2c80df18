"""`snakemake --cores all tune`: the job. Leaves RUN/tuning.json and RUN/tuning.txt.

Until it is through, what was measured is in RUN/tuning.partial.json and .txt, which nothing reads.
"""

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from workflow_scripts.config import Config
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.machine import look
from workflow_scripts.run import Run
from workflow_scripts.serving import builds, given, model, model_facts
from workflow_scripts.serving.capacity import leases_per_server, server_count
from workflow_scripts.serving.leases import acquire
from workflow_scripts.tuning import candidates, sample, winner
from workflow_scripts.tuning.report import save, table
from workflow_scripts.tuning.tune import Tuning


def tune(run: Run) -> None:
    """Measure every candidate. PlainError if none could be used; the table is told all the same."""
    config = run.config
    built = builds.ensure(config.servers)  # here, in the main thread, and not as every candidate's failure
    weights = model.ensure(config.model.path, config.model.revision, built.python)
    machine = look() if config.servers.engine == "sglang" else None

    def flags_of(tried: Config) -> Mapping[str, Any]:
        return given.flags_of(tried, 0, weights, 0, machine).flags

    tried = candidates.listing(config, "hybrid" in model_facts.read(weights).traits, flags_of)
    prompts = sample.draw(run, config.tune.prompts)
    count, leases = server_count(config), leases_per_server(config)
    say(f"tune: {len(tried)} candidates, {len(prompts):,} prompts, {count} server(s) side by side")
    with ExitStack() as held:
        taken = [held.enter_context(acquire(run.servers, count, leases)) for _ in range(count)]
        tuning = Tuning(run, tried, prompts, taken, lambda so_far: save(winner.partial_path(run), so_far.told()))
        try:
            asyncio.run(_stoppable(tuning))
        except BaseException:
            _tell_what_there_is(tuning)
            raise
    told = tuning.told()
    lines = table(told)
    if told["winner"] is None:  # an earlier tuning.json stays
        save(winner.partial_path(run), told)
        raise PlainError("\n".join(["no candidate could be used:", *lines, f"All of it: {winner.partial_path(run)}"]))
    save(winner.path(run), told)
    for suffix in (".json", ".txt"):
        winner.partial_path(run).with_suffix(suffix).unlink(missing_ok=True)
    for line in lines:
        say(line)
    if not config.servers.tuned:
        say("servers.tuned: true uses the best one's flags, in the midst of a run too")


async def _stoppable(tuning: Tuning) -> None:
    """Ctrl-C and SIGTERM end the job at once, and tell what was measured; servers end with the run."""

    def stop() -> None:
        try:
            _tell_what_there_is(tuning)
        finally:  # the terminal may be gone
            os._exit(130)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    await tuning.race()


def _tell_what_there_is(tuning: Tuning) -> None:
    if tuning.measured_any():
        say("tune: cut short; this was measured until then, and servers.tuned does not use it:")
        for line in table(tuning.told()):
            say(line)


def main() -> None:
    """The job."""
    parser = argparse.ArgumentParser(description="Measure the servers' flags on the run's own prompts.")
    parser.add_argument("manifest", type=Path, help="results/RUN/manifest.parquet")
    run = Run.holding(parser.parse_args().manifest)
    with timed(run.folder, "tuning"):
        tune(run)


if __name__ == "__main__":
    run_job(main)
