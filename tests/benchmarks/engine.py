"""How full the engine keeps its servers, what a request costs it, and how soon it starts.

`python -m tests.benchmarks.engine PART...` with real `snakemake` against the stand-in fleet (tests/standin/fleet.py):

    seats     the figures that are wanted: 20,000 prompts in chunks of 100, three seeds, and one server 1.5 times slower
    ideas     the same of one seed with 1, 2, 4, 8 leases, other chunk sizes, uncapped lengths
    client    CPU of a request, and memory of a job by its chunk's size
    flight    1,000 requests in flight at one server
    start     seconds from the command to the first request, for 200 and 5,000 chunks

Steps are scaled so that the fleet is the limit, not the machine: three minutes of a full fleet, more with `--step`.
`idle` tells how much of the machine was left.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.simulation import lower_bound
from tests.standin.fleet import VOCABULARY, Lengths
from tests.standin.project import Project
from tests.standin.running import running_fleet
from tests.standin.waiting import until
from workflow_scripts import files
from workflow_scripts.completions.finish import ChunkJournal, expected_keys, finish

ROOT = Path(__file__).parents[2]
PROMPTS, SERVERS, SEATS = 20_000, 8, 64
MEAN = 250.0  # tokens of an answer, before the cap
SEEDS = range(3)
SECONDS = 1800.0


def text(number: int, size: int) -> str:
    """A prompt of about `size` bytes."""
    chance = random.Random(number)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(max(1, size // 6))]
    return f"Question {number}: {' '.join(words)}?"


def make_project(folder: Path, prompts: int, chunk_size: int, prompt_bytes: int = 300) -> Project:
    """A project whose prompts are made, in chunks of this size; its servers are to be named."""
    project = Project.make(folder)
    project.make_model(VOCABULARY)
    project.write_rows("bench", [{"prompt": text(n, prompt_bytes), "response": "x"} for n in range(prompts)])
    project.config = {
        "name": "bench",
        "sources": {"bench": {"path": "data/bench.jsonl", "shape": "prompt_response", "take": prompts}},
        "chunks": {"size": chunk_size},
        "model": {"path": "model"},
        "servers": {"urls": ["http://127.0.0.1:9"]},
    }
    result = project.run("--cores", "64", "prompts")
    assert result.code == 0, result.output
    return project


def asked(project: Project) -> Iterator[str]:
    """The prompts as servers see them."""
    for chunk in sorted((project.made.folder / "prompts").glob("*.jsonl.zst")):
        for row in files.read_jsonl_zst(chunk):
            yield row["messages"][-1]["content"]


def machine_seconds() -> tuple[float, float]:
    """CPU seconds of the whole machine so far: idle, and all (proc(5))."""
    values = [int(value) / os.sysconf("SC_CLK_TCK") for value in Path("/proc/stat").read_text().split()[1:9]]
    return values[3] + values[4], sum(values)


def quiet() -> float:
    """Wait, half a minute at most, for ten seconds in which the machine idles nine tenths; the share that was idle."""
    share = 0.0
    for _ in range(3):
        idle, whole = machine_seconds()
        time.sleep(10)
        idle_now, whole_now = machine_seconds()
        share = (idle_now - idle) / (whole_now - whole)
        if share > 0.9:
            break
    return share


@dataclass(frozen=True)
class Measured:
    """One run. Shares are of 1, times in seconds."""

    seats: float  # in use from the first request until the last chunk is leased
    command: float  # from the command until Snakemake's end
    serving: float  # from the first request until the last answer
    bound: float
    to_first: float  # from the command until the first request
    slow_share: float  # tokens of server 0 against the mean of the others
    cpu_fleet: float
    cpu_run: float  # of Snakemake and its jobs
    idle: float  # of the machine, meanwhile
    quiet: float  # of the machine, before

    def row(self, name: str) -> str:
        return (
            f"| {name} | {self.seats:.1%} | {self.command / self.bound:.3f} | {self.serving / self.bound:.3f} | "
            f"{self.bound:.0f} | {self.to_first:.1f} | {self.slow_share:.2f} | {self.cpu_run:.0f} | "
            f"{self.cpu_fleet:.0f} | {self.idle:.0%} | {self.quiet:.0%} |"
        )


HEADER = (
    "| | seats in use | times the bound: command | serving | bound, s | to the first request, s | server 0's share | "
    "CPU s: run | fleet | idle | idle before |\n|" + "---|" * 11
)


def measure(
    project: Project, step: float, *, leases: int | None, seed: int = 0, uncapped: bool = False, slow: float = 1.0
) -> Measured:
    """A run of the project's prompts, all of them, by a fresh fleet."""
    project.forget_answers()
    lengths = Lengths(MEAN, capped=not uncapped, seed=seed)
    steps = [step * slow] + [step] * (SERVERS - 1)
    bound = lower_bound((lengths.tokens(prompt) for prompt in asked(project)), steps, SEATS)
    options: dict[str, object] = {"servers": SERVERS, "seats": SEATS, "step": step, "mean": MEAN, "seed": seed}
    if uncapped:
        options["uncapped"] = True
    before = quiet()
    with running_fleet(**options, slow=f"0:{slow}") as servers:
        project.config["servers"] = {"urls": servers.urls, "leases": leases}
        chunks = -(-PROMPTS // project.config["chunks"]["size"])
        idle, whole = machine_seconds()
        cpu = os.times()
        began = time.monotonic()
        run = project.start("--cores", "64", "completions")
        journals = project.made.folder / "journal"

        def all_leased() -> bool:
            """A job's first line in its journal is written when it has a server."""
            time.sleep(0.1)
            assert run.process.poll() is None, run.output
            return journals.exists() and sum(path.stat().st_size > 0 for path in journals.iterdir()) == chunks

        until(all_leased, SECONDS)
        leased = time.monotonic()
        result = run.wait(SECONDS)
        ended = time.monotonic()
        assert result.code == 0, result.output
        idle_now, whole_now = machine_seconds()
        spent = os.times()
        report = servers.report(leased)
    ones = report["servers"]
    assert sum(one["requests"] for one in ones) == PROMPTS
    first = min(one["first"] for one in ones)
    others = statistics.mean(one["tokens"] for one in ones[1:])
    return Measured(
        seats=sum(one["busy"] for one in ones) / (SEATS * SERVERS * (leased - first)),
        command=ended - began,
        serving=max(one["last"] for one in ones) - first,
        bound=bound,
        to_first=first - began,
        slow_share=ones[0]["tokens"] / others,
        cpu_fleet=report["cpu"],
        cpu_run=spent.children_user + spent.children_system - cpu.children_user - cpu.children_system,
        idle=(idle_now - idle) / (whole_now - whole),
        quiet=before,
    )


def seats(folder: Path, step: float) -> None:
    """The figures that are wanted."""
    print(HEADER, flush=True)
    project = make_project(folder / "100", PROMPTS, 100)
    for seed in SEEDS:
        print(measure(project, step, leases=None, seed=seed).row(f"seed {seed}"), flush=True)
        print(measure(project, step, leases=None, seed=seed, slow=1.5).row(f"server 0 slower, seed {seed}"), flush=True)


def ideas(folder: Path, step: float) -> None:
    """What each idea is worth, of one seed."""
    print(HEADER, flush=True)
    project = make_project(folder / "100", PROMPTS, 100)
    for leases in (1, 2, 4, 8):
        print(measure(project, step, leases=leases).row(f"{leases} leases"), flush=True)
    print(measure(project, step, leases=None, uncapped=True).row("uncapped"), flush=True)
    for size in (50, 500):
        project = make_project(folder / str(size), PROMPTS, size)
        print(measure(project, step, leases=None).row(f"chunks of {size}"), flush=True)


def client(folder: Path, _: float) -> None:
    """One job by itself: prompts of 4 KB, answers of 12 KB."""
    print("| prompts in the chunk | CPU of the job, s | ms a request, start included | memory, MB |\n|" + "---|" * 4)
    spent = {}
    for size in (10, 100, 1000, 5000):
        project = make_project(folder / f"client{size}", size, size, prompt_bytes=4096)
        with running_fleet(servers=1, seats=SEATS, step=0.0001, mean=3000, sigma=0) as servers:
            project.config["servers"] = {"urls": servers.urls}
            run_yaml = project.made.folder / "run.yaml"
            values = json.dumps(project.config)
            runs = []
            for _ in range(3):
                project.forget_answers()
                run_yaml.write_text(values)  # JSON is YAML
                runs.append(job(project))
            spent[size] = statistics.median(cpu for cpu, _ in runs)
            memory = max(peak for _, peak in runs)
        packing = pack(project)
        print(f"| {size} | {spent[size]:.2f} | {1000 * spent[size] / size:.2f} | {memory:.0f} |", flush=True)
    more = 1000 * (spent[5000] - spent[1000]) / 4000
    print(
        f"a request more costs {more:.2f} ms of CPU, {1000 * packing / 5000:.2f} of it after the last answer, "
        f"for the chunk's files",
        flush=True,
    )


def pack(project: Project) -> float:
    """CPU seconds that a whole journal takes to become the files of chunk 00000."""
    run, chunk = project.made, "00000"
    prompts = list(files.read_jsonl_zst(run.prompts(chunk)))
    with files.Journal(run.journal(chunk)) as lines:
        journal = ChunkJournal(lines, files.sha256_file(run.prompts(chunk)), expected_keys(prompts, 1))
        began = time.process_time()
        finish(run, chunk, journal)
        return time.process_time() - began


# A process's peak of memory starts at its parent's (getrusage(2)): so the parent is one that has next to nothing.
WATCHER = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


def job(project: Project) -> tuple[float, float]:
    """CPU seconds and the peak of memory (MB) of the job of chunk 00000."""
    sidecar = project.made.sidecar("00000")
    argv = [sys.executable, "-m", "workflow_scripts.completions", str(sidecar)]
    env = project.environ(PYTHONPATH=str(ROOT))
    said = subprocess.run(
        [sys.executable, "-S", "-c", WATCHER, *argv], env=env, check=True, capture_output=True, text=True
    ).stdout
    assert sidecar.exists()
    cpu, memory = map(float, said.split())
    return cpu, memory


def flight(folder: Path, _: float) -> None:
    """More seats than most file limits allow sockets, filled by one job."""
    project = make_project(folder / "flight", 2400, 2400)
    with running_fleet(servers=1, seats=1200, step=0.03, mean=MEAN) as servers:
        project.config["servers"] = {"urls": servers.urls}
        result = project.run("--cores", "64", "completions")
        assert result.code == 0, result.output
        (server,) = servers.report()["servers"]
    assert server["most_in_flight"] >= 1000, server
    print(f"{server['most_in_flight']} requests in flight at one server of 1200 seats", flush=True)


def start(folder: Path, step: float) -> None:
    """Prompts made, servers there."""
    # Chunks are small where there are many, for their prompts to be made quickly; leases are those of chunks of 500.
    for chunks, leases in ((200, None), (5000, 2)):
        project = make_project(folder / f"start{chunks}", PROMPTS, PROMPTS // chunks)
        found = []
        for _ in range(3):
            project.forget_answers()
            quiet()
            with running_fleet(servers=SERVERS, seats=SEATS, step=step, mean=MEAN) as servers:
                project.config["servers"] = {"urls": servers.urls, "leases": leases}
                began = time.monotonic()
                run = project.start("--cores", "64", "completions")
                while (first := servers.first()) is None:
                    assert run.process.poll() is None, run.output
                    time.sleep(0.5)
                run.signal_all(signal.SIGKILL)
                run.process.wait()
                project.end_processes()
            found.append(first - began)
        times = ", ".join(f"{seconds:.1f}" for seconds in found)
        print(f"{chunks} chunks: {statistics.median(found):.1f} s to the first request ({times})", flush=True)


PARTS = {"seats": seats, "ideas": ideas, "client": client, "flight": flight, "start": start}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the engine.")
    parser.add_argument("parts", nargs="*", choices=PARTS, metavar="PART")
    parser.add_argument("--step", type=float, default=0.02, help="seconds of a server's step with all seats taken")
    args = parser.parse_args()
    for name in args.parts or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"\n{name}: load {os.getloadavg()[0]:.1f}\n", flush=True)
            PARTS[name](Path(folder), args.step)


if __name__ == "__main__":
    main()
