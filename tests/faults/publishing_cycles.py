"""Kill publishing jobs at random points: `python -m tests.faults.publishing_cycles [--cycles 50] [--seed 0]`.

Each cycle publishes a batch of a run of its own to a real S3 server, through a slow proxy, in a process that is killed
with -9 at a random moment, up to three times; then the same again to its end. Whatever happened, every object must be
right by its bytes, no multipart upload may be left, and nothing else in the bucket may have been touched.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.integration.real_store import credentials, make_run, raw_client, running_seaweed, write_chunk, write_start
from tests.standin.running import ROOT
from tests.standin.s3_proxy import running_proxy
from workflow_scripts import files, identity
from workflow_scripts.publishing import preflight, verify
from workflow_scripts.publishing.clients import Access
from workflow_scripts.publishing.store import open_store
from workflow_scripts.run import Run
from workflow_scripts.serving import environment

LARGE = 33 << 20  # in three parts
LONGEST = 3.0  # seconds, of which the first is Python's own start


def cycle(access: Access, folder: Path, chance: random.Random) -> int:
    """One cycle; how often the job was killed in the middle. AssertionError if anything is wrong in the end."""
    with running_proxy(access.endpoint_url) as proxy:
        proxy.fault = lambda request: "slow" if request.method == "PUT" else None
        run = make_run(folder / "results", f"killed-{folder.name}", "s3", endpoint_url=proxy.url, chunks=3)
        write_start(run)
        for chunk in run.chunks():
            write_chunk(run, chunk)
        enlarge(run, "00001", chance)
        killed = 0
        for _ in range(chance.randint(1, 3)):
            preflight.preflight(run)
            killed += publish(run, kill_after=chance.uniform(0.8, LONGEST))
        proxy.fault = lambda request: None
        preflight.preflight(run)
        assert publish(run) == 0
        check(run, access)
        return killed


def enlarge(run: Run, chunk: str, chance: random.Random) -> None:
    """Give the chunk completions that go in parts."""
    path = run.completions(chunk)
    files.write_bytes(path, chance.randbytes(LARGE))
    sidecar = files.read_json(run.sidecar(chunk))
    sidecar["completions"] |= {"bytes": LARGE, "sha256": files.sha256_file(path)}
    files.write_json(run.sidecar(chunk), sidecar)


def publish(run: Run, kill_after: float | None = None) -> int:
    """Run the job that publishes the batch; 1 if it was killed before its end."""
    receipt = run.folder / "published" / identity.publish_hash(run.config) / "0000.json"
    argv = [sys.executable, "-m", "workflow_scripts.publishing.publish", "batch", str(receipt)]
    process = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        assert process.wait(kill_after or 120) == 0
        return 0
    except subprocess.TimeoutExpired:
        assert kill_after is not None, "the job did not end"
        return 1
    finally:
        process.kill()
        process.wait()


def check(run: Run, access: Access) -> None:
    client = raw_client(access)
    store = open_store(run)
    there = store.listing().keys()
    assert there == {"owner.json"} | {run.relative(path) for chunk in run.chunks() for path in run.chunk_files(chunk)}
    for path in there - {"owner.json"}:
        key = store.key(path)
        assert client.get_object(Bucket=store.bucket, Key=key)["Body"].read() == (run.folder / path).read_bytes(), path
    assert verify.verify(run, store, deep=True)[1].changed == []
    assert (
        client.list_multipart_uploads(Bucket=store.bucket, Prefix=f"{store.prefix}{store.run}").get("Uploads", []) == []
    )
    assert list(run.uploads.glob("*")) == []
    assert client.get_object(Bucket=store.bucket, Key="elsewhere/kept")["Body"].read() == b"kept"


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill publishing jobs at random points, again and again.")
    parser.add_argument("--cycles", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # and leave nothing behind
    started, kills = time.monotonic(), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        running_seaweed(Path(folder), environment.ensure("seaweedfs")) as access,
        pytest.MonkeyPatch.context() as patch,
    ):
        credentials(patch, access)
        for number in range(args.cycles):
            kills += cycle(access, Path(folder) / f"cycle-{number}", random.Random(f"{args.seed} {number}"))
            print(f"cycle {number}: {kills} kills so far", file=sys.stderr, flush=True)
    seconds = time.monotonic() - started
    print(f"{args.cycles} cycles of seed {args.seed}, {kills} kills, in {seconds:,.0f} s: every object right.")


if __name__ == "__main__":
    main()
