"""How fast files are published, beside plain boto3: `python tests/benchmarks/publishing.py`.

Both send the same files to the same real S3 server, in turns: boto3's upload_file as it comes, 8 files at a time, no
digest, no condition; and Store.create with its digests, create-only, and verified by the server. Memory is the peak of
this process while it publishes, in a process of its own.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.integration.real_store import raw_client, running_seaweed
from workflow_scripts.publishing import clients
from workflow_scripts.publishing.clients import Access
from workflow_scripts.publishing.publish import THREADS
from workflow_scripts.publishing.store import PART_BYTES, WHOLE_BYTES, Store
from workflow_scripts.serving import environment

MIB = 1 << 20


def boto3_upload(access: Access, files: list[Path], top: str) -> None:
    client = raw_client(access)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda path: client.upload_file(str(path), "draftmill", f"{top}/{path.name}"), files))


def publish(access: Access, files: list[Path], top: str, part_bytes: int) -> None:
    store = Store(clients.embedded(access), "draftmill", "", top, part_bytes=part_bytes)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda path: store.create(path, path.name), files))


def measure(way: str, access: Access, files: list[Path], top: str) -> None:
    """In a process of its own: seconds, CPU seconds and peak memory in bytes, as JSON."""
    started = time.monotonic()
    if way == "boto3":
        boto3_upload(access, files, top)
    else:
        publish(access, files, top, PART_BYTES if way == "in parts" else WHOLE_BYTES)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([time.monotonic() - started, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", type=int, default=500, help="files of 1 MiB")
    parser.add_argument("--large", type=int, default=1024, help="MiB of the large file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", nargs=4, metavar=("WAY", "URL", "FOLDER", "TOP"), help="used by itself")
    args = parser.parse_args()
    if args.way:
        way, url, folder, top = args.way
        measure(way, Access(url, "admin", "admin-secret"), sorted(Path(folder).iterdir()), top)
        return
    ways = ("boto3", "in one piece", "in parts")
    with tempfile.TemporaryDirectory() as name:
        (weed := Path(name) / "weed").mkdir()
        sets = {"small": [MIB] * args.small, "large": [MIB * args.large]}
        for kind, sizes in sets.items():
            for number, size in enumerate(sizes):
                path = Path(name) / kind / f"{number:04d}"
                path.parent.mkdir(exist_ok=True)
                block = random.Random(number).randbytes(MIB)
                with path.open("wb") as file:
                    for at in range(size // MIB):
                        file.write(at.to_bytes(8, "big") + block[8:])
        with running_seaweed(weed, environment.ensure("seaweedfs")) as access:
            print("| files | way | MiB/s | of boto3's | CPU seconds | peak memory |\n|---|---|---|---|---|---|")
            for kind, sizes in sets.items():
                found: dict[str, list[list[float]]] = {way: [] for way in ways}
                for turn in range(args.rounds):
                    for way in ways if turn % 2 else reversed(ways):
                        argv = [sys.executable, __file__, "--way", way, access.endpoint_url, f"{name}/{kind}"]
                        argv.append(f"{kind}-{way.replace(' ', '-')}-{turn}")
                        out = subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout
                        found[way].append(json.loads(out))
                best = {way: min(times) for way, times in found.items()}
                for way, (seconds, cpu, peak) in best.items():
                    share = best["boto3"][0] / seconds
                    print(
                        f"| {len(sizes)} of {sizes[0] // MIB} MiB | {way} | {sum(sizes) / MIB / seconds:,.0f} | "
                        f"{share:.0%} | {cpu:.1f} | {peak / 1e6:,.0f} MB |"
                    )
    print(f"\nload of the machine: {os.getloadavg()}")


if __name__ == "__main__":
    main()
