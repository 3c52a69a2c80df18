"""Training rows, read back, and their tokens as text."""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run
from workflow_scripts.serving import launch, supervisor

Decode = Callable[[Sequence[int]], str]
COLUMNS = ["input_ids", "loss_mask", "prompt_id", "turn", "source", "class"]


def read(run: Run) -> Iterator[dict[str, Any]]:
    """The rows of the shards that were exported last. PlainError if there are none."""
    import pyarrow.parquet as pq  # the rest of `show` does without

    made = sorted(run.folder.glob("training/*/training.json"), key=lambda path: path.stat().st_mtime)
    if not made:
        raise PlainError(f"{run.folder} has no training shards yet")
    paths = [made[-1].parent / entry["path"] for entry in files.read_json(made[-1], "files")["files"]]
    shards = [path for path in paths if path.suffix == ".parquet"]
    if paths and not shards:
        raise PlainError(f"{made[-1].parent} has no Parquet; add parquet to training.formats to look at rows here")
    for path in shards:
        with pq.ParquetFile(path) as shard:
            for batch in shard.iter_batches(64, columns=COLUMNS):
                yield from batch.to_pylist()


def segments(ids: Sequence[int], mask: Sequence[int]) -> Iterator[tuple[bool, list[int]]]:
    """Runs of tokens that are supervised or are not."""
    for learnt, pairs in groupby(zip(ids, mask, strict=True), key=lambda pair: bool(pair[1])):
        yield learnt, [token for token, _ in pairs]


def decoder(run: Run) -> Decode:
    """The model's tokenizer, backwards; where it is not here, the ids as they are."""
    if path := _tokenizer_json(run):
        from tokenizers import Tokenizer

        whole = Tokenizer.from_file(str(path))
        return lambda ids: str(whole.decode(list(ids), skip_special_tokens=False))
    from workflow_scripts.prompts import exclude  # these take a second, and are rarely needed
    from workflow_scripts.prompts import tokenizer as tokenizers

    try:
        found = tokenizers.at_hand(run.config, exclude.recorded_inputs(run).get("tokenizer"))
    except PlainError:
        found = None
    if found is None:
        print("the model's tokenizer is not here: its ids are shown", file=sys.stderr)
        return lambda ids: " ".join(map(str, ids))
    return lambda ids: str(found.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _tokenizer_json(run: Run) -> Path | None:
    """Where a server that was launched here had it, or in the model's own folder."""
    for folder in sorted(run.servers.glob("[0-9]*")):
        state = supervisor.read_state(folder)
        named = state.facts.get("tokenizer") if state else None
        if named and Path(named).is_file():
            return Path(named)
    named = run.config.model.tokenizer or run.config.model.path
    return launch.tokenizer_json(Path(named)) if Path(named).is_dir() else None
