"""Records as a person reads them: completions and failures, or training rows with what is supervised in colour."""

import argparse
import io
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from workflow_scripts import files
from workflow_scripts.jobs import run_job
from workflow_scripts.records import Completion, Failure, Message, Turn
from workflow_scripts.reporting import training_rows
from workflow_scripts.reporting.counted import Counted, owed
from workflow_scripts.reporting.opening import open_run
from workflow_scripts.reporting.plain_text import cut, visible
from workflow_scripts.run import Run


@dataclass(frozen=True)
class Wanted:
    """Which records: of a source, of a class of turns or failures, of prompts whose id begins so. None: of all."""

    source: str | None = None
    kind: str | None = None
    prompt: str | None = None

    def fits(self, record: Any) -> bool:
        kinds = [turn["class"] for turn in record.get("turns", ())] + ([record["class"]] if "class" in record else [])
        return (
            self.source in (None, record["source"])
            and (self.kind is None or self.kind in kinds)
            and (self.prompt is None or record["prompt_id"].startswith(self.prompt))
        )


@dataclass(frozen=True)
class Style:
    """How it looks: with colours or without, texts cut to so many characters."""

    colour: bool
    most: int

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def text(self, text: str) -> str:
        return visible(cut(text, self.most))


BOLD, DIM, GREEN, CYAN, YELLOW = "1", "2", "32", "36", "33"


def records(run: Run, wanted: Wanted) -> Iterator[tuple[str, Completion | Failure]]:
    """(chunk, record), chunk by chunk: of finished ones from their files, of others what their journals hold by now."""
    for chunk in [*run.chunks(), *run.redrives()]:
        found = _finished(run, chunk, wanted) if run.sidecar(chunk).exists() else _journaled(run.journal(chunk))
        yield from ((chunk, record) for record in found if wanted.fits(record))


def _finished(run: Run, chunk: str, wanted: Wanted) -> Iterator[Any]:
    sidecar = files.read_json(run.sidecar(chunk), "classes", "failure_classes")
    if wanted.kind is None or wanted.kind in sidecar["classes"]:
        yield from files.read_jsonl_zst(run.completions(chunk))
    if wanted.kind is None or wanted.kind in {**sidecar["failure_classes"], **sidecar["classes"]}:
        yield from files.read_jsonl_zst(run.failures(chunk))


def _journaled(path: Path) -> Iterator[Any]:
    """Whole lines only: the job that writes the last may be at work."""
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if line.startswith((b'{"completion"', b'{"failure"')) and line.endswith(b"}\n"):
                    yield next(iter(orjson.loads(line).values()))


def told(chunk: str, record: Any, style: Style) -> str:
    """A completion or a failure, as text."""
    about = [f"source {record['source']}", f"chunk {chunk}", f"sample {record['sample']}"]
    about += [f"ended: {record['ended']}"] if "ended" in record else []
    lines = [style.paint(f"━━ prompt {record['prompt_id']}", BOLD), style.paint("   " + ", ".join(about), DIM)]
    if "reason" in record:
        lines.append(style.paint(f"   failed: {record['class']}: {style.text(record['reason'])}", YELLOW))
    if record.get("ended_reason"):
        lines.append(style.paint(f"   {style.text(record['ended_reason'])}", YELLOW))
    if record.get("tools"):
        names = ", ".join(str(tool.get("function", tool).get("name")) for tool in record["tools"])
        lines.append(style.paint(f"   tools: {style.text(names)}", DIM))
    turns, messages = record.get("turns", []), record.get("messages", [])
    first = sum(message["role"] == "assistant" for message in messages) - len(turns)  # older answers are its history
    number = -first
    for message in messages:
        turn = None
        if message["role"] == "assistant":
            turn = turns[number] if number >= 0 else None
            number += 1
        lines += _message(message, turn, style)
    return "\n".join(lines) + "\n"


def _message(message: Message, turn: Turn | None, style: Style) -> list[str]:
    title = style.paint(f"▌ {message['role']}", CYAN)
    if "name" in message:
        title += f" {style.text(message['name'])}"
    if turn is not None:
        marks = f", {', '.join(turn['marks'])}" if turn["marks"] else ""
        title += "  " + style.paint(
            f"{turn['class']}{marks}; {turn['usage']['completion_tokens']:,} tokens after "
            f"{turn['usage']['prompt_tokens']:,}, {turn['seconds']:.1f} s, {turn['server']}",
            DIM,
        )
    lines = [title]
    if message.get("reasoning_content"):
        thoughts = style.text(message["reasoning_content"])
        lines += [style.paint(f"  ┆ {line}", DIM) for line in thoughts.splitlines()]
    if message["content"]:
        lines.append(style.text(message["content"]))
    for call in message.get("tool_calls", ()):
        lines.append(
            style.paint(f"  → {style.text(call['function']['name'])} ", YELLOW)
            + style.text(call["function"]["arguments"])
        )
    return lines


def training_told(row: dict[str, Any], decode: training_rows.Decode, style: Style) -> str:
    """A training row, as text; what is supervised is green, or in double brackets where there is no colour."""
    supervised = sum(row["loss_mask"])
    of = f"{supervised:,} of {len(row['input_ids']):,} tokens are supervised"
    about = f"source {row['source']}, turn {row['turn']}, {row['class']}: {of}"
    lines = [style.paint(f"━━ prompt {row['prompt_id']}", BOLD), style.paint(f"   {about}", DIM)]
    parts = []
    for learnt, ids in training_rows.segments(row["input_ids"], row["loss_mask"]):
        text = style.text(decode(ids))
        if style.colour:
            parts.append("\n".join(style.paint(line, GREEN if learnt else DIM) for line in text.split("\n")))
        else:
            parts.append(f"[[{text}]]" if learnt else text)
    return "\n".join([*lines, "".join(parts)]) + "\n"


def _none(run: Run) -> str:
    """Why nothing was found: what there is."""
    tally = Counted(run).look()
    sources, classes = {*(owed(run) or {}), *tally.sources.counts()}, {*tally.classes, *tally.failed}
    there = f" It has sources {', '.join(sorted(sources))}; classes {', '.join(sorted(classes))}." if classes else ""
    if run.config.training.answers == "recorded":
        there = " Its answers are the datasets' own: see --training."
    return f"{run.name} has no such record{'' if run.summary.exists() else ' yet'}.{there}"


def number(text: str) -> int:
    """An option's number, 1 or more."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m workflow_scripts.reporting.show", description="Print records of a run as a person reads them."
    )
    parser.add_argument("run", type=Path, nargs="?", help="results/RUN; without it, the run started last")
    parser.add_argument("--source", help="records of this source")
    parser.add_argument("--class", dest="kind", help="with a turn of this class, or failures of it")
    parser.add_argument("--prompt", help="of prompts whose id begins so")
    parser.add_argument("--training", action="store_true", help="training rows, with what is supervised in colour")
    parser.add_argument("-n", type=number, default=5, help="how many (5)")
    parser.add_argument("--most", type=number, default=4000, help="characters of a text that are printed (4000)")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    args = parser.parse_args()
    run = open_run(args.run)
    auto = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    style = Style(args.color == "always" or (args.color == "auto" and auto), args.most)
    wanted = Wanted(args.source, args.kind, args.prompt)
    found = 0
    if args.training:
        decode = training_rows.decoder(run)
        for row in islice(filter(wanted.fits, training_rows.read(run)), args.n):
            print(training_told(row, decode, style))
            found += 1
    else:
        for chunk, record in islice(records(run, wanted), args.n):
            print(told(chunk, record, style))
            found += 1
    if not found:
        print(_none(run))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` is no mistake
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal without Unicode sees what it can't show as escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    run_job(main)
