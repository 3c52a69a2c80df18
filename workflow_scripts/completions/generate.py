"""A chunk of prompts becomes a chunk of completions, answered by a leased server, resumed from its journal."""

import argparse
import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

from workflow_scripts import files, processes
from workflow_scripts.completions import fingerprint
from workflow_scripts.completions.client import Client, Task
from workflow_scripts.completions.faults import ServerRefusesUs
from workflow_scripts.completions.finish import ChunkJournal, expected_keys, finish
from workflow_scripts.errors import PlainError
from workflow_scripts.files import Journal, Locked
from workflow_scripts.jobs import run_job, say, timed
from workflow_scripts.publishing.restore import restore_chunk
from workflow_scripts.records import Completion, Failure, Prompt
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.capacity import leases_per_server, server_count
from workflow_scripts.serving.endpoints import Endpoint, connect
from workflow_scripts.serving.leases import acquire

RESTARTS = 3
SAY_EVERY_SECONDS = 60.0


def generate(run: Run, chunk: str) -> None:
    """Make a chunk's three files: fetched if the bucket has them, else from its journal and the servers.

    Raises PlainError, and publishes nothing, while any prompt is neither answered nor failed for good.
    """
    if restore_chunk(run, chunk):
        say(f"chunk {chunk}: fetched from the bucket and verified")
        return
    path = prompts_file(run, chunk)
    prompts: list[Prompt] = list(files.read_jsonl_zst(path))
    keys = expected_keys(prompts, run.config.sampling.n)
    try:
        with Journal(run.journal(chunk)) as file:
            journal = ChunkJournal(file, files.sha256_file(path), keys)
            if missing := journal.missing():
                by_id = {prompt["prompt_id"]: prompt for prompt in prompts}
                answer(run, chunk, journal, [Task(by_id[prompt_id], sample) for prompt_id, sample in missing])
            sidecar = finish(run, chunk, journal)
    except Locked as error:
        raise PlainError(f"chunk {chunk}: another process writes its journal ({error}); it must end first") from error
    failed = f", {sidecar['failures']['rows']} failed" if sidecar["failures"]["rows"] else ""
    say(f"chunk {chunk}: {sidecar['completions']['rows']:,} completions, {sidecar['output_tokens']:,} tokens{failed}")


def prompts_file(run: Run, chunk: str) -> Path:
    """A chunk's prompts file, made again from the manifest if it is gone."""
    path = run.prompts(chunk)
    if not path.exists():
        from workflow_scripts.prompts.split import write_chunks  # polars takes a while to import, and is rarely needed

        say(f"chunk {chunk}: its prompts file is gone; made again from the manifest")
        write_chunks(run, [chunk])
    return path


def answer(run: Run, chunk: str, journal: ChunkJournal, tasks: list[Task]) -> None:
    """Lease a server and answer `tasks` into the journal; PlainError if any is still open afterwards."""
    open_failures: list[Failure] = []
    stopped = False
    with acquire(run.servers, server_count(run.config), leases_per_server(run.config)) as lease:
        endpoint = _connect(run, lease.server, journal)

        async def work() -> bool:
            client = Client(
                endpoint=endpoint,
                sampling=run.config.sampling,
                allowance=lambda: lease.allowance(client.endpoint.granted.seats),
                want=lambda count: lease.want(min(count, client.endpoint.granted.seats)),
                reconnect=reconnect,
                done=done,
                failed=failed,
                drain=run.config.servers.drain,
            )
            _stop_on_signals(client, chunk)
            await client.answer(tasks)
            return client.stop.is_set()

        deaths = 0
        said = time.monotonic()

        async def reconnect(old: Endpoint) -> Endpoint:
            nonlocal deaths
            deaths += 1
            if deaths > RESTARTS:
                raise PlainError(f"chunk {chunk}: {old.name} died {deaths} times without an answer in between")
            say(f"chunk {chunk}: {old.name} died; starting it again")
            return await asyncio.to_thread(_connect, run, lease.server, journal)

        def done(completion: Completion) -> None:
            nonlocal deaths, said
            deaths = 0
            journal.add_completion(completion)
            if time.monotonic() - said >= SAY_EVERY_SECONDS:
                said = time.monotonic()
                owed = len(journal.expected)
                say(f"chunk {chunk}: {owed - len(journal.missing()):,} of {owed:,} answers")

        def failed(failure: Failure) -> None:
            if failure["final"]:
                journal.add_failure(failure)
            else:
                open_failures.append(failure)

        try:
            stopped = asyncio.run(work())
        except ServerRefusesUs as error:
            raise PlainError(
                f"{endpoint.name} takes no requests of ours ({error}); check servers.urls and DRAFTMILL_SERVER_KEY"
            ) from error
        finally:
            journal.journal.sync()
    if missing := journal.missing():
        reasons = Counter(f"{failure['class']}: {failure['reason']}" for failure in open_failures)
        why = "stopped" if stopped else "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(3))
        raise PlainError(
            f"chunk {chunk}: {len(journal.expected) - len(missing)} of {len(journal.expected)} answers are safe in its "
            f"journal, {len(missing)} are open ({why}). The same line again goes on from here"
        )


def _connect(run: Run, server: int, journal: ChunkJournal) -> Endpoint:
    """Connect, hold the run to one content fingerprint, and end what is left of the server if its supervisor dies."""
    endpoint = connect(run, server)
    if endpoint.supervisor is not None:
        processes.watch(endpoint.supervisor, lambda: supervisor.reap(run.server(server)))
    content = fingerprint.content(run, endpoint)
    fingerprint.bind(run, content)
    journal.open_session(content, fingerprint.speed(endpoint))
    return endpoint


def _stop_on_signals(client: Client, chunk: str) -> None:
    """First Ctrl-C or SIGTERM: send nothing more and drain. Second: end at once; the journal is append-only.

    A SIGTERM to Snakemake alone comes as SIGUSR1, and is counted apart: often both get the SIGTERM.
    """
    told = Counter[bool]()

    def stop(passed_on: bool) -> None:
        told[passed_on] += 1
        if told[passed_on] > 1:
            os._exit(130)
        if not client.stop.is_set():
            say(f"chunk {chunk}: stopping; answers in flight have {client.drain:.0f} s. Once more to stop at once")
            client.stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        loop.add_signal_handler(number, stop, number == signal.SIGUSR1)


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer one chunk of prompts with the target model.")
    parser.add_argument("sidecar", type=Path, help="results/RUN/completions/CHUNK.json, the last file to be written")
    sidecar = parser.parse_args().sidecar
    run = Run.holding(sidecar)
    with timed(run.folder, "completions"):
        generate(run, sidecar.stem)


if __name__ == "__main__":
    run_job(main)
