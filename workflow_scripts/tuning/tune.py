"""All candidates, side by side on as many servers as the run has, one after the other on each.

A server is started anew for every measurement, by the run's own supervisor and in the run's own folder of that server:
so no GPU ever has two. Leases on all of them are held meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
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
from workflow_scripts.tuning.candidates import Candidate, laid_over
from workflow_scripts.tuning.decide import Race
from workflow_scripts.tuning.measure import Load, Outcome, ask
from workflow_scripts.tuning.report import Row, to_json

Answers = dict[str, list[Token]]


class Tuning:
    """The race of the candidates on the servers of these leases; `sample` as tuning/sample.py orders it."""

    def __init__(
        self, run: Run, candidates: Sequence[Candidate], sample: list[Prompt], leases: Sequence[Lease]
    ) -> None:
        self._run = run
        self._sample = sample
        self._leases = leases
        self._rows = {candidate.name: Row(candidate) for candidate in candidates}
        self._race = Race(list(self._rows), run.config.tune.rounds, len(leases))
        self._said: dict[str, list[Answers]] = {}  # greedy answers: before the load and after it
        self._content: dict[str, dict[str, Any]] = {}
        self._version = ""

    async def race(self) -> None:
        """Measure, round by round, until it is known who is best or the rounds are over."""
        while entrants := self._race.next_round():
            say(f"tune: round {self._race.round}: {', '.join(dict.fromkeys(entrants))}")
            waiting = deque(entrants)
            waiting.rotate(1 - self._race.round)  # whoever comes again gets another GPU, where there are several
            await asyncio.gather(*(self._serve(lease, waiting) for lease in self._leases))

    def told(self) -> dict[str, Any]:
        """tuning.json."""
        prompts = len(manifest_file.read(self._run, ["prompt_id"]))
        facts = {
            "run": self._run.name,
            "version": self._version,
            "servers": len(self._leases),
            "sample": len(self._sample),
            "answers": prompts * self._run.config.sampling.n,
        }
        return to_json(self._run.config, list(self._rows.values()), self._race, facts)

    async def _serve(self, lease: Lease, waiting: deque[str]) -> None:
        """Measure on one server what is waiting."""
        while waiting:
            row = self._rows[waiting.popleft()]
            if row.candidate.name in self._race.out:
                continue  # a measurement beside this one has shown that it can't be used
            try:
                await self._measure(lease, row)
            except (PlainError, ServerRefusesUs) as error:
                self._fail(row, str(error))
            finally:
                await asyncio.to_thread(supervisor.stop, lease.folder)

    async def _measure(self, lease: Lease, row: Row) -> None:
        name, number = row.candidate.name, self._race.round
        run = Run(self._run.folder, laid_over(self._run.config, row.candidate))
        say(f"tune: {name} on server {lease.server}")
        endpoint = await asyncio.to_thread(start_once, run, lease.server)
        self._version = endpoint.granted.version
        probes = self._sample[: answers.PROMPTS]
        self._hear(row, endpoint, await ask(run.config, endpoint, lease, probes))
        start = (number - 1) * len(self._sample) // self._run.config.tune.rounds
        load = Load(
            run.config,
            endpoint,
            lease,
            [*self._sample[start:], *self._sample[:start]],
            self._run.config.tune.seconds * 2 ** (number - 1),
            lambda so_far: self._race.hopeless(name, so_far),
        )
        outcome = await load.run()
        row.outcomes.append((endpoint.name, number, outcome))
        if outcome.measured is None:
            raise PlainError(_why_not_measured(len(self._sample), outcome))
        self._race.add(name, outcome.measured)
        say(f"tune: {name}: {_in_short(outcome)}")
        self._hear(row, endpoint, await ask(run.config, endpoint, lease, probes))

    def _fail(self, row: Row, reason: str) -> None:
        row.failed = reason
        self._race.drop(row.candidate.name)
        say(f"tune: {row.candidate.name} failed: {reason}")

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
            compared.compared = answers.compare(self._said[first][0], said_by_it)
            otherwise = fingerprint.differing(self._content[first], self._content[other])
            if compared.compared.differs:
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
    failed = f" ({sum(outcome.failed.values())} failed)" if outcome.failed else ""
    return (
        f"the sample of {sample:,} prompts was answered before the work was steady{failed}: "
        f"raise tune.prompts if the run has more, or lower max-running-requests"
    )
