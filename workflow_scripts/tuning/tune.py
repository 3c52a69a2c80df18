"""All candidates, side by side on as many servers as the run has, one after the other on each.

A server is started anew for every measurement, by the run's own supervisor and in the run's own folder of that server:
so no GPU ever has two. Leases on all of them are held meanwhile.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from workflow_scripts.completions import fingerprint
from workflow_scripts.completions.faults import ServerRefusesUs
from workflow_scripts.errors import PlainError
from workflow_scripts.jobs import say
from workflow_scripts.prompts import manifest_file
from workflow_scripts.records import Prompt
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.endpoints import Endpoint, start_once
from workflow_scripts.serving.leases import Lease
from workflow_scripts.tuning import answers
from workflow_scripts.tuning.answers import Token
from workflow_scripts.tuning.candidates import AS_IS, Candidate, laid_over, together
from workflow_scripts.tuning.decide import Pace, Race, paces
from workflow_scripts.tuning.measure import Load, Outcome, ask
from workflow_scripts.tuning.report import Row, to_json

Answers = dict[str, list[Token]]
FAILING = 3.0  # standard errors of a count of failures


class Tuning:
    """The race of the candidates on the servers of these leases; `sample` as tuning/sample.py orders it.

    `kept` is called after every measurement.
    """

    def __init__(
        self,
        run: Run,
        candidates: Sequence[Candidate],
        sample: list[Prompt],
        leases: Sequence[Lease],
        kept: Callable[["Tuning"], None] = lambda _: None,
    ) -> None:
        self._run = run
        self._sample = sample
        self._leases = leases
        self._kept = kept
        self._rows = {candidate.name: Row(candidate) for candidate in candidates}
        self._race = Race(list(self._rows), run.config.tune.rounds, len(leases))
        self._paces = {lease.server: Pace() for lease in leases}
        self._unusable: dict[str, str] = {}  # servers, and why
        self._said: dict[str, list[Answers]] = {}  # greedy answers: before the load and after it
        self._content: dict[str, dict[str, Any]] = {}
        self._version = ""
        self._prompts = len(manifest_file.read(run, ["prompt_id"]))

    async def race(self) -> None:
        """Round by round, until it is known who is best or the rounds are over; then all that is better, together."""
        while entrants := self._race.next_round():
            if self._race.round == 1 and len(self._leases) > 1:
                servers = len(self._leases)
                await self._compare_servers()
                entrants = entrants[servers:]
            await self._measure_all(entrants)
        better = [self._rows[name].candidate for name in self._race.better()]
        both = together(better, [row.candidate for row in self._rows.values()])
        if both is not None and both.name not in self._rows:
            self._rows[both.name] = Row(both)
            await self._measure_all(self._race.joined(both.name))

    def measured_any(self) -> bool:
        return any(row.outcomes for row in self._rows.values())

    def told(self) -> dict[str, Any]:
        """tuning.json."""
        facts = {
            "run": self._run.name,
            "version": self._version,
            "servers": len(self._leases),
            "speed_of_servers": {
                f"server {lease.server}": round(self._paces[lease.server].share, 4) for lease in self._leases
            },
            "unusable_servers": self._unusable,
            "sample": len(self._sample),
            "answers": self._prompts * self._run.config.sampling.n,
        }
        return to_json(self._run.config, list(self._rows.values()), self._race, facts)

    async def _compare_servers(self) -> None:
        """The servers as they are, on all at once: which is of another speed, and which can't be used at all.

        Else a candidate would be taken for slow, or for one that can't start, for the GPU that it was tried on.
        """
        row = self._rows[AS_IS]
        say(f"tune: {AS_IS} on all {len(self._leases)} servers")
        reasons = await asyncio.gather(*(self._try(lease, row) for lease in self._leases))
        if None not in reasons:
            self._fail(row, str(reasons[0]))
            return
        for lease, reason in zip(self._leases, reasons, strict=True):
            if reason is not None:
                self._unusable[f"server {lease.server}"] = reason
                say(f"tune: server {lease.server} is not used, it can't do what others can: {reason}")
        self._leases = [lease for lease, reason in zip(self._leases, reasons, strict=True) if reason is None]
        self._race.slots = len(self._leases)
        by_server = {name: outcome.measured for name, _, outcome in row.outcomes if outcome.measured is not None}
        found = {lease.server: by_server[f"server {lease.server}"] for lease in self._leases}
        self._paces = paces(found)
        self._race.found[AS_IS] = [self._paces[server].evened(one) for server, one in found.items()]
        for server, pace in self._paces.items():
            if pace.share != 1.0:
                say(f"tune: server {server} has {pace.share:.0%} of the others' speed: what it measures is evened out")
        self._kept(self)

    async def _measure_all(self, entrants: Sequence[str]) -> None:
        if entrants:
            say(f"tune: round {self._race.round}: {', '.join(dict.fromkeys(entrants))}")
        waiting = deque(entrants)
        waiting.rotate(1 - self._race.round)  # whoever comes again gets another GPU, where there are several
        await asyncio.gather(*(self._serve(lease, waiting) for lease in self._leases))

    async def _serve(self, lease: Lease, waiting: deque[str]) -> None:
        """Measure on one server what is waiting."""
        while waiting:
            row = self._rows[waiting.popleft()]
            if row.candidate.name in self._race.out:
                continue  # a measurement beside this one has shown that it can't be used
            if (reason := await self._try(lease, row)) is not None:
                self._fail(row, reason)
            self._kept(self)

    async def _try(self, lease: Lease, row: Row) -> str | None:
        """Measure a candidate; why that can't be done, if so."""
        try:
            await self._measure(lease, row)
        except (PlainError, ServerRefusesUs) as error:
            return str(error)
        finally:
            await asyncio.to_thread(supervisor.stop, lease.folder)
        return None

    async def _measure(self, lease: Lease, row: Row) -> None:
        name, number, pace = row.candidate.name, self._race.round, self._paces[lease.server]
        rounds = self._run.config.tune.rounds
        run = Run(self._run.folder, laid_over(self._run.config, row.candidate))
        say(f"tune: {name} on server {lease.server}")
        endpoint = await asyncio.to_thread(start_once, run, lease.server)
        self._version = endpoint.granted.version
        probes = self._sample[: answers.PROMPTS]
        self._hear(row, endpoint, await ask(run.config, endpoint, lease, probes))
        start = (number - 1) * len(self._sample) // rounds
        load = Load(
            run.config,
            endpoint,
            lease,
            [*self._sample[start:], *self._sample[:start]],
            self._run.config.tune.seconds * 2 ** (min(number, rounds) - 1),
            lambda so_far: self._race.hopeless(name, pace.evened(so_far)),
        )
        outcome = await load.run()
        row.outcomes.append((endpoint.name, number, outcome))
        if outcome.measured is None:
            raise PlainError(_why_not_measured(len(self._sample), outcome))
        if too_many := self._failures(row, outcome):
            raise PlainError(too_many)
        self._race.add(name, pace.evened(outcome.measured))
        say(f"tune: {name}: {_in_short(outcome)}")
        self._hear(row, endpoint, await ask(run.config, endpoint, lease, probes))

    def _fail(self, row: Row, reason: str) -> None:
        row.failed = reason
        self._race.drop(row.candidate.name)
        say(f"tune: {row.candidate.name} failed: {reason}")

    def _failures(self, row: Row, outcome: Outcome) -> str | None:
        """That a candidate fails more of the prompts than the servers as they are, if it does."""
        if row.candidate.name == AS_IS or not self._rows[AS_IS].outcomes:
            return None
        first = [one.failed_of for _, _, one in self._rows[AS_IS].outcomes]
        before, of = sum(one for one, _ in first), max(1, sum(whole for _, whole in first))
        failed, whole = outcome.failed_of
        expected = whole * before / of
        if failed - expected <= FAILING * math.sqrt(max(1.0, expected * (1 + whole / of))):
            return None
        return f"{failed} of {whole} prompts failed ({_classes(outcome)}), and {before} of {of} with {AS_IS}"

    def _hear(self, row: Row, endpoint: Endpoint, said: Answers) -> None:
        """Take greedy answers, and compare whom they let compare."""
        name = row.candidate.name
        self._said.setdefault(name, []).append(said)
        self._content.setdefault(name, fingerprint.content(self._run, endpoint))
        first = self._first()
        if first is None:
            return
        for other, said_by_it in self._said.items():
            compared = self._rows[other]
            again = said_by_it[1:] if other == first else said_by_it
            compared.compared = answers.compare(self._said[first][0], again)
            if other == first:
                continue  # what it differs by from itself is no reason
            otherwise = fingerprint.differing(self._content[first], self._content[other])
            if compared.compared.differs_more_than(self._rows[first].compared or compared.compared):
                count, whole = compared.compared.likeness["different"], compared.compared.likeness.total()
                otherwise = "\n".join([*otherwise.splitlines(), f"{count} of {whole} greedy answers are not {first}'s"])
            if otherwise and compared.otherwise is None:
                self._race.drop(other)
                say(f"tune: {other} changes the answers, so it can't win: {otherwise}")
            compared.otherwise = otherwise or compared.otherwise

    def _first(self) -> str | None:
        """Whose answers the others are compared with: the first candidate that works; None until it is known."""
        for name, row in self._rows.items():
            if self._said.get(name):
                return name
            if row.failed is None:
                return None
        return None


def _in_short(outcome: Outcome) -> str:
    assert outcome.measured is not None
    early = ", given up: it is slower by far" if outcome.cut_short else ""
    return (
        f"{outcome.measured.rate:,.0f} tokens/s in {outcome.measured.seconds:,.0f} s after a ramp of "
        f"{outcome.ramp_seconds:,.0f} s, {outcome.seats_used:,.0f} of {outcome.seats_granted:,} seats used{early}"
    )


def _why_not_measured(sample: int, outcome: Outcome) -> str:
    failed, ended = outcome.failed_of
    if 2 * failed > ended:
        return f"{failed:,} of {ended:,} prompts failed ({_classes(outcome)})"
    return (
        f"the sample of {sample:,} prompts was used up before the work was steady ({failed:,} failed): "
        f"raise tune.prompts if the run has more, or lower max-running-requests"
    )


def _classes(outcome: Outcome) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.failed.items()))
