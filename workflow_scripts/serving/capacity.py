"""How many servers a run has, and how many chunk jobs share them: arithmetic on the config, at parse time."""

import math

from workflow_scripts.config import Config
from workflow_scripts.machine import gpu_count
from workflow_scripts.serving.launch import DEFAULTS

# Snakemake runs cores + 5 jobs without threads at once; three of them are left for uploads and small jobs.
WORKERS_BEYOND_CORES = 5
WORKERS_KEPT_FREE = 3
# What a server is taken to grant where nothing says it; what it does grant is known when it runs.
SEATS_UNTIL_KNOWN = 64


def lease_count(config: Config, cores: int | None) -> tuple[int, str | None]:
    """How many chunk jobs may hold a lease at once, and a line for the user where `cores` cuts it."""
    wanted = server_count(config) * leases_per_server(config)
    if cores is None:
        return wanted, None
    most = max(1, cores + WORKERS_BEYOND_CORES - WORKERS_KEPT_FREE)
    if wanted <= most:
        return wanted, None
    needed = wanted - WORKERS_BEYOND_CORES + WORKERS_KEPT_FREE
    return most, (
        f"{most} of {wanted} leases: Snakemake has no more workers at --cores {cores}; "
        f"--cores {needed} gives them all (it may exceed the machine's)"
    )


def server_count(config: Config) -> int:
    """Servers of this run; `auto` counts as one without a GPU, and on the CPU."""
    if config.servers.urls:
        return len(config.servers.urls)
    if config.servers.count != "auto":
        return config.servers.count
    if config.servers.engine == "sglang-cpu":
        return 1
    return max(1, gpu_count() // config.servers.gpus_per_server)


def leases_per_server(config: Config) -> int:
    """As asked, or the front and enough jobs behind it, with four times the seats' prompts, to fill its tail.

    tests/benchmarks tells what that is worth: 4 leases at chunks of 100 and 64 seats, 2 at chunks of 500.
    """
    if config.servers.leases is not None:
        return config.servers.leases
    asked = DEFAULTS[config.servers.engine] | config.servers.args
    seats = asked.get("max-running-requests")
    if not isinstance(seats, int):
        seats = SEATS_UNTIL_KNOWN
    return 1 + math.ceil(4 * seats / mean_chunk_size(config))


def mean_chunk_size(config: Config) -> float:
    """Prompts in a chunk, as far as the config tells."""
    if config.chunks.count is None:
        return config.chunks.size
    takes = [source.take for source in config.sources.values() if source.take != "all"]
    wanted = config.prompts.total or (sum(takes) if len(takes) == len(config.sources) else None)
    return 500 if wanted is None else max(1.0, wanted / config.chunks.count)
