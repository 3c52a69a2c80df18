"""The set-up that servers need, made before the first of them starts, where one will: environment and model.

A server's start makes sure of both again, by the same functions, so that a cache folder that was emptied, or one on
another node, holds nobody up.
"""

import argparse
from pathlib import Path

from workflow_scripts import files
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.publishing.restore import published_paths
from workflow_scripts.run import Run
from workflow_scripts.serving import builds, model


def not_needed(run: Run) -> str | None:
    """Why this run starts no server; None if it does."""
    if run.config.servers.urls:
        return "servers.urls names servers that run already"
    published = published_paths(run)
    for chunk in run.chunks():
        if not run.sidecar(chunk).exists() and run.relative(run.sidecar(chunk)) not in published:
            return None
    return "no chunk is left to generate"


def main() -> None:
    """The job."""
    parser = argparse.ArgumentParser(description="Build the servers' environment, or fetch the target model.")
    parser.add_argument("stamp", type=Path, help="results/RUN/setup/environment.json or model.json")
    stamp = parser.parse_args().stamp
    run = Run.holding(stamp)
    if reason := not_needed(run):
        say(f"{stamp.stem}: not needed, {reason}")
        files.write_json(stamp, {"skipped": reason})
        return
    with timed(run.folder, "setup"):
        built = builds.ensure(run.config.servers, check=stamp.stem == "environment")
        if stamp.stem == "environment":
            files.write_json(stamp, {"environment": built.folder.name})
        else:
            folder = model.ensure(run.config.model.path, run.config.model.revision, built.python)
            files.write_json(stamp, {"model": folder.name})


if __name__ == "__main__":
    run_job(main)
