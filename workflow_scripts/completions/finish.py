"""A journal becomes a chunk's files, once every prompt in it is accounted for by id."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.completions import packing
from workflow_scripts.completions.by_source import BySource
from workflow_scripts.completions.fingerprint import differing, require_same
from workflow_scripts.errors import PlainError
from workflow_scripts.files import Journal
from workflow_scripts.records import Completion, Failure, FileEntry, Fingerprint, Prompt, Sidecar
from workflow_scripts.run import Run

Key = tuple[str, int]  # (prompt_id, sample)


def expected_keys(prompts: Iterable[Prompt], samples: int) -> list[Key]:
    """Every answer a chunk owes, in manifest order."""
    return [(prompt["prompt_id"], sample) for prompt in prompts for sample in range(samples)]


def keys_sha256(keys: Iterable[Key]) -> str:
    """One hash for a chunk's (prompt_id, sample) pairs in manifest order: equal hashes, equal ids."""
    digest = hashlib.sha256()
    for prompt_id, sample in keys:
        digest.update(f"{prompt_id} {sample}\n".encode())
    return digest.hexdigest()


class ChunkJournal:
    """A chunk's journal, read: where each answer and each final failure lies in it.

    Lines are {"session": {prompts_sha256, content, speed}} at each start of a job, then {"completion": {...}},
    {"failure": {...}}, and {"crash": {server, start, in_flight}} where a server died, with the keys of what it was
    asked then. Raises PlainError if the journal is of other prompts or of servers that answer differently, or names an
    id twice.
    """

    def __init__(self, journal: Journal, prompts_sha256: str, expected: list[Key]) -> None:
        self.journal = journal
        self.prompts_sha256 = prompts_sha256
        self.expected = expected
        self.content: dict[str, Any] | None = None
        self.speed: list[dict[str, Any]] = []
        self.completions: dict[Key, tuple[int, int]] = {}
        self.failures: dict[Key, tuple[int, int]] = {}
        self.crashes = Counter[Key]()
        self.tokens = Counter[str]()  # prompt, output
        self.classes = Counter[str]()
        self.marks = Counter[str]()
        self.ended: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by source
        self.refused: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by source, the template's words
        self.failure_classes = Counter[str]()
        self.sources = BySource()
        owed = set(expected)
        for offset, length, line in journal.lines():
            kind, value = next(iter(line.items()))
            if kind == "session":
                self._take_session(value)
                continue
            if kind == "crash":
                self.crashes.update((prompt_id, sample) for prompt_id, sample in value["in_flight"])
                continue
            key = (value["prompt_id"], value["sample"])
            if key not in owed or key in self.completions or key in self.failures:
                what = "twice" if key in owed else "which is not in its chunk"
                raise PlainError(
                    f"{journal.path} holds prompt {key[0]} (sample {key[1]}) {what}; "
                    f"move the journal away to generate the chunk again"
                )
            if kind == "completion":
                self._count_completion(value, (offset, length))
            else:
                self._count_failure(value, (offset, length))

    def _take_session(self, session: dict[str, Any]) -> None:
        if session["prompts_sha256"] != self.prompts_sha256:
            raise PlainError(
                f"{self.journal.path} was written for other prompts (their sha256 is not that of this chunk's file); "
                f"restore the prompts, or move the journal away to generate the chunk again"
            )
        if self.content is not None and (lines := differing(self.content, session["content"])):
            raise PlainError(
                f"{self.journal.path} holds answers of servers that answer differently:\n{lines}\n"
                f"Move the journal away to generate the chunk again"
            )
        self.content = session["content"]
        if session["speed"] not in self.speed:
            self.speed.append(session["speed"])

    def open_session(self, content: dict[str, Any], speed: dict[str, Any]) -> None:
        """Say under which servers the next lines are made. PlainError if they would answer differently."""
        if self.content is not None:
            require_same(self.content, content, self.journal.path)
        self.journal.append({"session": {"prompts_sha256": self.prompts_sha256, "content": content, "speed": speed}})
        self.content = content
        if speed not in self.speed:
            self.speed.append(speed)

    def add_crash(self, server: str, start: int, in_flight: list[Key]) -> None:
        """Record what a server was asked when it died."""
        self.journal.append({"crash": {"server": server, "start": start, "in_flight": in_flight}})
        self.crashes.update(in_flight)

    def add_completion(self, completion: Completion) -> None:
        self._count_completion(completion, self.journal.append({"completion": completion}))

    def add_failure(self, failure: Failure) -> None:
        self._count_failure(failure, self.journal.append({"failure": failure}))

    def _count_completion(self, completion: Completion, where: tuple[int, int]) -> None:
        self.completions[completion["prompt_id"], completion["sample"]] = where
        for turn in completion["turns"]:
            self.tokens["prompt"] += turn["usage"]["prompt_tokens"]
            self.tokens["output"] += turn["usage"]["completion_tokens"]
            self.classes[turn["class"]] += 1
            self.marks.update(turn["marks"])
        self.sources.add(completion)
        self.ended[completion["source"]][completion["ended"]] += 1
        if completion["ended"] == "refused":
            self.refused[completion["source"]][completion["ended_reason"]] += 1

    def _count_failure(self, failure: Failure, where: tuple[int, int]) -> None:
        self.failures[failure["prompt_id"], failure["sample"]] = where
        self.failure_classes[failure["class"]] += 1

    def missing(self) -> list[Key]:
        """What is neither completed nor failed for good, in manifest order."""
        return [key for key in self.expected if key not in self.completions and key not in self.failures]

    def rows(self, kind: str) -> Iterator[bytes]:
        """The completions or the failures, in manifest order, one at a time, as JSON, their turns unpacked."""
        where = self.completions if kind == "completion" else self.failures
        before, after = len(f'{{"{kind}":'), len(b"}\n")
        for key in self.expected:
            if key in where:
                row = self.journal.read(*where[key])[before:-after]
                if packing.MARK in row:
                    value = orjson.loads(row)
                    row = orjson.dumps({**value, "turns": packing.unpack(value["turns"])})
                yield row


def finish(run: Run, chunk: str, journal: ChunkJournal) -> Sidecar:
    """Write a chunk's completions, failures and, last, its sidecar.

    Raises PlainError unless every prompt is a completion or a final failure, once.
    """
    missing = journal.missing()
    if missing:
        raise PlainError(f"chunk {chunk}: {len(missing)} of {len(journal.expected)} answers are missing")
    journal.journal.sync()
    completed = files.write_jsonl_zst(run.completions(chunk), journal.rows("completion"))
    failed = files.write_jsonl_zst(run.failures(chunk), journal.rows("failure"))
    fingerprint: Fingerprint = {"content": journal.content or {}, "speed": journal.speed}
    sidecar: Sidecar = {
        "chunk": chunk,
        "prompts_sha256": journal.prompts_sha256,
        "keys_sha256": keys_sha256(journal.expected),
        "completions": _entry(run.completions(chunk), completed),
        "failures": _entry(run.failures(chunk), failed),
        "prompt_tokens": journal.tokens["prompt"],
        "output_tokens": journal.tokens["output"],
        "classes": dict(sorted(journal.classes.items())),
        "marks": dict(sorted(journal.marks.items())),
        "ended": _by_source(journal.ended),
        "refused": _by_source(journal.refused),
        "failure_classes": dict(sorted(journal.failure_classes.items())),
        "sources": journal.sources.counts(),
        "fingerprint": fingerprint,
    }
    files.write_json(run.sidecar(chunk), sidecar)
    return sidecar


def _by_source(counted: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    return {source: dict(sorted(counts.items())) for source, counts in sorted(counted.items())}


def _entry(path: Path, rows: int) -> FileEntry:
    return {"bytes": path.stat().st_size, "sha256": files.sha256_file(path), "rows": rows}
