"""Where a prompt stands: in some chunk by the seed's chance, there beside those that begin alike, the longest first."""

from pathlib import Path
from typing import Any

import numpy as np
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from workflow_scripts.prompts.mix import spread
from workflow_scripts.sources.prompt_ids import Turns, prompt_side

BEGINNING = 512  # characters; to compute again what is shorter costs less than answering out of order


def traits(shard: Path, rows: pl.Series, turns: Turns) -> pl.DataFrame:
    """Of prompts of a prompts.parquet by `row`: `prefix`, the same for those that begin alike, and `answer`.

    Alike begin prompts with the same system prompt and tools, if these have 512 characters; else those whose first 512
    characters (system prompt, tools, messages) are the same. `answer` is the length of the recorded answer in
    characters, with its reasoning and its calls; 0 where none was recorded. Under `turns: all` all answers count.
    """
    size = pq.read_metadata(shard).num_rows
    wanted: NDArray[np.bool_] = np.zeros(size, bool)
    wanted[rows.to_numpy()] = True
    prefixes: NDArray[np.uint64] = np.zeros(size, np.uint64)
    answers: NDArray[np.int64] = np.zeros(size, np.int64)
    start = 0
    with pq.ParquetFile(shard) as file:
        for group in range(file.num_row_groups):  # one at a time: their writer bounds their bytes
            table = file.read_row_group(group, columns=["messages", "tools"])
            found = np.flatnonzero(wanted[start : start + len(table)])
            texts = table.take(pa.array(found))
            beginnings = []
            for row, messages, tools in zip(found + start, *(column.to_pylist() for column in texts), strict=True):
                beginning, answers[row] = _traits(orjson.loads(messages), tools, turns)
                beginnings.append(beginning)
            prefixes[found + start] = pl.Series(beginnings, dtype=pl.String).hash().to_numpy()
            start += len(table)
    return pl.DataFrame({"row": rows, "prefix": prefixes[rows.to_numpy()], "answer": answers[rows.to_numpy()]})


def _traits(messages: list[dict[str, Any]], tools: str | None, turns: Turns) -> tuple[str, int]:
    asked = prompt_side(messages)  # type: ignore[arg-type]
    answer = 0
    for turn in messages[len(asked) :]:
        if turn["role"] != "assistant":
            if turns == "first":
                break
            continue
        answer += len(turn["content"]) + len(turn.get("reasoning_content", ""))
        answer += sum(len(call["function"]["arguments"]) for call in turn.get("tool_calls", ()))
    frame = tools or ""
    if asked and asked[0]["role"] == "system":
        frame = f"{asked[0]['content']}\n{frame}"
        asked = asked[1:]
    if len(frame) >= BEGINNING:
        return frame, answer
    return "\n".join([frame, *(message["content"] for message in asked)])[:BEGINNING], answer


def arrange(taken: pl.DataFrame, chunks: int) -> pl.DataFrame:
    """`taken`, in whatever order it comes, with `chunk` and `position` (Int32), sorted by them.

    The chunks' sizes are even. Inside a chunk those of one `prefix` stand together; the groups are in the order of
    their longest `answer`, the longest first, and so is each group.
    """
    sizes = spread(len(taken), chunks)
    number = pl.Series("chunk", np.repeat(np.arange(chunks, dtype=np.int32), sizes), dtype=pl.Int32)
    group = ["chunk", "prefix"]
    return (
        taken.with_columns(number)
        .with_row_index("place")
        .with_columns(longest=pl.col("answer").max().over(group), head=pl.col("place").min().over(group))
        .sort(
            ["chunk", "longest", "head", "answer", "place"],
            descending=[False, True, False, True, False],
        )
        .with_columns(position=pl.int_range(pl.len(), dtype=pl.Int32).over("chunk"))
        .drop("place", "longest", "head")
    )
