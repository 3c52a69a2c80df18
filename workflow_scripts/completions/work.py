"""The answers that one chunk owes, made by the servers that its job leases."""

import asyncio
import os
import signal
from collections import Counter

from workflow_scripts import processes
from workflow_scripts.completions import fingerprint
from workflow_scripts.completions.client import Client, Task
from workflow_scripts.completions.faults import ServerRefusesUs
from workflow_scripts.completions.finish import ChunkJournal, Key
from workflow_scripts.completions.health import FLUSH_SECONDS, Health, expected_answers
from workflow_scripts.config import Limits
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.records import Completion, Failure, Prompt
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.capacity import leases_per_server, server_count
from workflow_scripts.serving.endpoints import Endpoint, connect, give_up
from workflow_scripts.serving.leases import Lease, acquire
from workflow_scripts.serving.recycle import recycle_if_due
from workflow_scripts.serving.standing import NoServerLeft, ServerOut, has_died, last_death, usable


class Work:
    """The answers that a chunk still owes, made by one server, or by others where that one goes out of use."""

    def __init__(self, run: Run, chunk: str, journal: ChunkJournal, prompts: dict[str, Prompt]) -> None:
        self._run = run
        self._chunk = chunk
        self._journal = journal
        self._prompts = prompts
        self._health = Health(run, expected_answers(run))
        self._open: dict[Key, Failure] = {}
        self._why: str | None = None  # why it stopped before its end

    def do(self) -> None:
        """Make every answer; PlainError if any is still open afterwards."""
        run = self._run
        count, leases = server_count(run.config), leases_per_server(run.config)
        try:
            while self._why is None and (tasks := self._tasks()):
                with acquire(run.servers, count, leases, usable=lambda: usable(run.servers, count)) as lease:
                    self._answer(lease, tasks)
        except NoServerLeft:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # this job has something to say yet
            processes.end_run()
            raise
        finally:
            self._journal.journal.sync()
        if missing := self._journal.missing():
            reasons = Counter(f"{failure['class']}: {failure['reason']}" for failure in self._open.values())
            why = self._why or "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(3))
            owed = len(self._journal.expected)
            raise PlainError(
                f"chunk {self._chunk}: {owed - len(missing)} of {owed} answers are safe in its journal, "
                f"{len(missing)} are open ({why}). The same line again goes on from here"
            )

    def _tasks(self) -> list[Task]:
        """What is neither answered nor failed."""
        return [
            Task(self._prompts[key[0]], key[1], crashes=self._journal.crashes[key])
            for key in self._journal.missing()
            if key not in self._open
        ]

    def _answer(self, lease: Lease, tasks: list[Task]) -> None:
        """Answer tasks on the leased server, as far as it goes."""
        limits = self._run.config.limits
        try:
            recycle_if_due(self._run, lease)
            endpoint = self._connect(lease)
            asyncio.run(self._run_client(lease, endpoint, limits, tasks))
        except ServerOut as out:
            say(f"chunk {self._chunk}: {out}. It goes on with another server")
        except ServerRefusesUs as error:
            raise PlainError(
                f"{endpoint.name} takes no requests of ours ({error}); check servers.urls and DRAFTMILL_SERVER_KEY"
            ) from error

    async def _run_client(self, lease: Lease, endpoint: Endpoint, limits: Limits, tasks: list[Task]) -> None:
        client = Client(
            endpoint=endpoint,
            sampling=self._run.config.sampling,
            limits=limits,
            seats=lease,
            reconnect=lambda old: self._reconnect(lease, old),
            give_up=lambda old, reason: asyncio.to_thread(give_up, old, reason),
            last_words=lambda: last_death(lease.folder),
            crashed=self._crashed,
            done=self._done,
            failed=self._failed,
            drain=self._run.config.servers.drain,
        )
        self._stop_on_signals(client)
        checking = asyncio.create_task(self._check_health(client))
        try:
            await client.answer(tasks)
        finally:
            checking.cancel()
            self._obey(client, self._health.flush(last=True))

    def _connect(self, lease: Lease) -> Endpoint:
        """Connect, hold the run to one content fingerprint, and end what a supervisor leaves if it dies."""
        run = self._run
        endpoint = connect(run, lease.server)
        if endpoint.supervisor is not None:
            processes.watch(endpoint.supervisor, lambda: supervisor.reap(run.server(lease.server)))
        content = fingerprint.content(run, endpoint)
        fingerprint.bind(run, content)
        self._journal.open_session(content, fingerprint.speed(endpoint))
        self._health.connected(endpoint, lease.server)
        return endpoint

    async def _reconnect(self, lease: Lease, old: Endpoint) -> Endpoint:
        say(f"chunk {self._chunk}: {old.name} died; starting it again")
        return await asyncio.to_thread(self._connect, lease)

    def _crashed(self, endpoint: Endpoint, lost: list[Task]) -> None:
        if endpoint.folder is None or not has_died(endpoint.folder, endpoint.start):
            return
        for task in lost:
            task.crashes += 1
        keys = [(task.prompt["prompt_id"], task.sample) for task in lost]
        self._journal.add_crash(endpoint.name, endpoint.start, keys)

    def _done(self, completion: Completion) -> None:
        self._journal.add_completion(completion)
        self._health.answered(completion)

    def _failed(self, failure: Failure) -> None:
        self._health.failed(failure)
        if failure["final"]:
            self._journal.add_failure(failure)
        else:
            self._open[failure["prompt_id"], failure["sample"]] = failure

    async def _check_health(self, client: Client) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            self._obey(client, self._health.flush())

    def _obey(self, client: Client, why: str | None) -> None:
        """Stop where the run must, and Snakemake too: each of its other chunks would end so."""
        if why is not None and self._why is None:
            self._why = why
            client.stop.set()
            processes.end_run()

    def _stop_on_signals(self, client: Client) -> None:
        """First Ctrl-C or SIGTERM: send nothing more and drain. Second: end at once; the journal is append-only.

        A SIGTERM to Snakemake alone comes as SIGUSR1, and is counted apart: often both get the SIGTERM.
        """
        told = Counter[bool]()

        def stop(passed_on: bool) -> None:
            told[passed_on] += 1
            if told[passed_on] > 1:
                os._exit(130)
            if not client.stop.is_set():
                seconds = f"{client.drain:.0f} s"
                say(f"chunk {self._chunk}: stopping; answers in flight have {seconds}. Once more to stop at once")
                client.stop.set()
            self._why = self._why or "stopped"

        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            loop.add_signal_handler(number, stop, number == signal.SIGUSR1)
