"""A shard: the folder that holds all usable prompts of one source.

prompts.parquet      one row a prompt, see SCHEMA
rejects.jsonl.zst    every row that is none: {file, row, reason, excerpt}
stats.json           counts, written last
"""

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.sources import NORMALIZER_VERSION, conversion

SCHEMA = pa.schema([pa.field("row", pa.int64(), nullable=False), *conversion.SCHEMA])  # `row`: here, from 0
GROUP_ROWS = 10_000
GROUP_BYTES = 32 << 20  # of text; a row group of very long prompts is cut here


class PromptsWriter:
    """Writes prompts.parquet; equal rows give equal bytes. Close it to finish the file.

    A row group is packed in a thread while the next one is gathered.
    """

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self._held: list[pa.RecordBatch] = []
        self._held_rows = self._held_bytes = 0
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=False)
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Write prompts (conversion.SCHEMA)."""
        while self._held_rows + len(batch) >= GROUP_ROWS:
            room = GROUP_ROWS - self._held_rows
            self._hold(batch[:room])
            self._flush()
            batch = batch[room:]
        self._hold(batch)
        if self._held_bytes >= GROUP_BYTES:
            self._flush()

    def _hold(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_rows += len(batch)
        self._held_bytes += batch.nbytes

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._held, conversion.SCHEMA)
        numbers = pa.array(range(self.rows, self.rows + self._held_rows), pa.int64())
        self._wait()
        self._writing = self._thread.submit(self._writer.write_table, table.add_column(0, SCHEMA.field(0), numbers))
        self.rows += self._held_rows
        self._held = []
        self._held_rows = self._held_bytes = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def close(self) -> None:
        """Write what is held, and the file's end."""
        with self._thread:
            if self._held_rows:
                self._flush()
            self._wait()
            self._writer.close()


def finished(folder: Path) -> dict[str, Any] | None:
    """The stats of a whole shard of this version, its prompts checked by content; None if there is none."""
    prompts = folder / "prompts.parquet"
    try:
        stats: dict[str, Any] = files.read_json(folder / "stats.json")
        size = prompts.stat().st_size
    except (PlainError, OSError):
        return None
    if stats.get("normalizer") != NORMALIZER_VERSION or stats.get("prompts_bytes") != size:
        return None
    if not (folder / "rejects.jsonl.zst").is_file() or files.sha256_file(prompts) != stats.get("prompts_sha256"):
        return None
    return stats
