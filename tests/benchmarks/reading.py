"""Reading a source, against `datasets` streaming and a Python map on the same files.

`python tests/benchmarks/reading.py` makes the files in a temporary folder (4 GB) and prints two tables. Ours is the
whole shard: prompts.parquet, rejects, stats. Theirs makes the same ids and JSON strings of each row, and keeps nothing
but where it says so.
Each figure is the median of three runs, each in a process of its own, without its imports.
"""

import hashlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
ROWS = 300_000
SIZES = (30_000, ROWS, 1_000_000)  # of which the memory is told
RUNS = 3
CHECKED_ROWS = 1000


class Measured(NamedTuple):
    """One run: seconds by the clock, of all processors, and the peak of memory (MB), of all its processes together."""

    seconds: float
    cpu: float
    memory: float


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Questions of 10 to 60 words and answers of 30 to 150, of about 900 bytes together."""
    chance = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(5000)]
    for number in range(count):
        question = " ".join(chance.choices(words, k=chance.randint(10, 60)))
        answer = " ".join(chance.choices(words, k=chance.randint(30, 150)))
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        yield {"id": number, "messages": turns}


def write_files(folder: Path, count: int) -> None:
    """COUNT.jsonl, and COUNT.parquet with the same rows in groups of 10,000."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    turn = pa.struct([("role", pa.string()), ("content", pa.string())])
    schema = pa.schema([("id", pa.int64()), ("messages", pa.list_(turn))])
    held: list[dict[str, Any]] = []
    with (folder / f"{count}.jsonl").open("w") as lines, pq.ParquetWriter(folder / f"{count}.parquet", schema) as table:
        for row in rows(count):
            lines.write(json.dumps(row) + "\n")
            held.append(row)
            if len(held) == 10_000 or row["id"] == count - 1:
                table.write_table(pa.Table.from_pylist(held, schema))
                held.clear()


def streamed(file: Path) -> Any:
    """The file as `datasets` streams it."""
    from datasets import load_dataset

    builder = "parquet" if file.suffix == ".parquet" else "json"
    return load_dataset(builder, data_files=str(file), split="train", streaming=True)


def their_map(row: dict[str, Any]) -> dict[str, Any]:
    """What a script would do to a row to have what a shard has."""
    messages = []
    for turn in row["messages"]:
        if turn["role"] not in ("system", "user", "assistant", "tool"):
            raise ValueError(f"unknown role {turn['role']}")
        messages.append({"role": turn["role"], "content": turn["content"]})
    roles = [message["role"] for message in messages]
    asked = messages[: roles.index("assistant")] if "assistant" in roles else messages
    text = "\n".join(f"{message['role']}: {plain(message['content'])}" for message in asked)
    return {
        "first_id": prompt_id(asked),
        "all_id": prompt_id(messages),
        "source_id": str(row["id"]),
        "messages": json.dumps(messages, ensure_ascii=False, separators=(",", ":")),
        "dedupe_key": hashlib.sha256(text.encode()).hexdigest(),
    }


def prompt_id(messages: list[dict[str, str]]) -> str:
    system = None
    asked: list[dict[str, str] | None] = []
    for message in messages:
        if message["role"] == "system":
            system = message["content"]
        elif message["role"] != "assistant":
            asked.append(message)
        elif asked and asked[-1] is not None:
            asked.append(None)
    if asked and asked[-1] is None:
        asked.pop()
    value = {"system": system, "tools": None, "messages": asked}
    line = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(line.encode()).hexdigest()


def plain(text: str) -> str:
    folded = unicodedata.normalize("NFC", text).casefold()
    return " ".join(unicodedata.normalize("NFC", folded).split())


def shard_of(file: Path, processes: int) -> Path:
    """Make the shard of the file; its folder."""
    from workflow_scripts.config import Reading
    from workflow_scripts.sources.normalize import SourceFile, build_shard

    shard = file.with_name(f"shard-{file.name}")
    build_shard("benchmark", Reading(path=str(file)), [SourceFile.of(file)], shard, processes=processes)
    return shard


def processes() -> int:
    """As many as the rule takes here."""
    from workflow_scripts.sources import workers

    return min(workers.THREADS, len(os.sched_getaffinity(0)))


def ours(file: Path) -> None:
    shard_of(file, processes())


def ours_alone(file: Path) -> None:
    shard_of(file, 0)


def theirs(file: Path) -> None:
    exhaust(streamed(file).map(their_map))


def theirs_written(file: Path) -> None:
    streamed(file).map(their_map).to_parquet(str(file.with_name(f"shard-{file.name}")))


def theirs_trivial(file: Path) -> None:
    exhaust(streamed(file).map(lambda row: row))


def exhaust(items: Iterable[object]) -> None:
    for _ in items:
        pass


WAYS: dict[str, Callable[[Path], None]] = {
    "`datasets` and a map": theirs,
    "`datasets`, a map and to_parquet": theirs_written,
    "`datasets` and a trivial map": theirs_trivial,
    "a shard, one process": ours_alone,
    "a shard": ours,
}


def measure(way: str, file: Path) -> Measured:
    """One run in a new process."""
    home = file.parent / "home"
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    argv = [sys.executable, __file__, way, str(file)]
    run = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
    memory = 0
    while run.poll() is None:
        memory = max(memory, memory_of(run.pid))
        time.sleep(0.05)
    assert run.returncode == 0 and run.stdout is not None
    seconds, cpu = json.loads(run.stdout.read().splitlines()[-1])
    subprocess.run(["rm", "-rf", file.with_name(f"shard-{file.name}"), home], check=True)
    return Measured(seconds, cpu, memory / 1024)


def memory_of(pid: int) -> int:
    """kB that a process and its children hold; what several share is divided among them."""
    processes = Path(f"/proc/{pid}")
    try:
        held = re.findall(r"^Pss:\s+(\d+) kB", (processes / "smaps_rollup").read_text(), re.MULTILINE)
        children = (processes / f"task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return 0
    return sum(map(int, held)) + sum(memory_of(int(child)) for child in children)


def measured_here(way: str, file: Path) -> tuple[float, float]:
    """Seconds of one run in this process and those that it starts: by the clock, and of all processors."""
    if WAYS[way] in (ours, ours_alone):
        import workflow_scripts.sources.normalize  # noqa: F401
    else:
        import datasets  # noqa: F401

    def cpu() -> float:
        return sum(os.times()[:4])

    started, used = time.monotonic(), cpu()
    WAYS[way](file)
    return time.monotonic() - started, cpu() - used


def check(file: Path) -> None:
    """Both make the same of the first rows."""
    import pyarrow.parquet as pq

    columns = ["first_id", "all_id", "source_id", "messages", "dedupe_key"]
    shard = shard_of(file, 0)
    made = next(pq.ParquetFile(shard / "prompts.parquet").iter_batches(CHECKED_ROWS, columns=columns)).to_pylist()
    expected = [{name: row[name] for name in columns} for row in streamed(file).map(their_map).take(CHECKED_ROWS)]
    assert made == expected and len(made) == CHECKED_ROWS


def median(way: str, file: Path) -> Measured:
    runs = [measure(way, file) for _ in range(RUNS)]
    return Measured(*(statistics.median(values) for values in zip(*runs, strict=True)))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in SIZES:
            write_files(folder, count)
        for ending in ("jsonl", "parquet"):
            check(folder / f"{SIZES[0]}.{ending}")
        print(
            f"| {ROWS:,} rows | | rows/s | times | CPU seconds per 100,000 rows | memory |\n|---|---|---|---|---|---|"
        )
        for ending in ("jsonl", "parquet"):
            slowest = None
            for way in WAYS:
                found = median(way, folder / f"{ROWS}.{ending}")
                slowest = slowest or found.seconds
                print(
                    f"| {ending} | {way} | {ROWS / found.seconds:,.0f} | {slowest / found.seconds:.1f} "
                    f"| {found.cpu / ROWS * 1e5:.1f} | {found.memory:,.0f} MB |",
                    flush=True,
                )
        print("\n| a shard of | jsonl | parquet |\n|---|---|---|")
        for count in SIZES:
            peaks = [measure("a shard", folder / f"{count}.{ending}").memory for ending in ("jsonl", "parquet")]
            print(f"| {count:,} rows | " + " | ".join(f"{peak:,.0f} MB" for peak in peaks) + " |", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if len(sys.argv) > 1:
        print(json.dumps(measured_here(sys.argv[1], Path(sys.argv[2]))), flush=True)
        os._exit(0)  # datasets' threads may hang at exit
    main()
