"""`snakemake --cores all tune`: the job. Leaves RUN/tuning.json and RUN/tuning.txt."""

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from workflow_scripts import files
from workflow_scripts.config import Config
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.machine import look
from workflow_scripts.run import Run
from workflow_scripts.serving import builds, given, model, model_facts
from workflow_scripts.serving.capacity import leases_per_server, server_count
from workflow_scripts.serving.leases import acquire
from workflow_scripts.tuning import candidates, sample, winner
from workflow_scripts.tuning.report import table
from workflow_scripts.tuning.tune import Tuning


def tune(run: Run) -> None:
    """Measure every candidate. PlainError if none could be measured; the table is there all the same."""
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
        tuning = Tuning(run, tried, prompts, taken)
        asyncio.run(_stoppable(tuning))
    told = tuning.told()
    lines = table(told)
    files.write_bytes(winner.path(run).with_suffix(".txt"), "".join(f"{line}\n" for line in lines).encode())
    files.write_json(winner.path(run), told)
    for line in lines:
        say(line)
    if told["winner"] is None:
        raise PlainError("\n".join(["no candidate could be used:", *lines, f"All of it: {winner.path(run)}"]))
    if not config.servers.tuned:
        say("servers.tuned: true uses the best one's flags, in the midst of a run too")


async def _stoppable(tuning: Tuning) -> None:
    """Ctrl-C and SIGTERM end the job at once: nothing is kept of half a race, and servers end with the run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        asyncio.get_running_loop().add_signal_handler(number, os._exit, 130)
    await tuning.race()


def main() -> None:
    """The job."""
    parser = argparse.ArgumentParser(description="Measure the servers' flags on the run's own prompts.")
    parser.add_argument("manifest", type=Path, help="results/RUN/manifest.parquet")
    run = Run.holding(parser.parse_args().manifest)
    with timed(run.folder, "tuning"):
        tune(run)


if __name__ == "__main__":
    run_job(main)
