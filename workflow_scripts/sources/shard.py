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
from workflow_scripts.sources import NORMALIZER_VERSION
from workflow_scripts.sources.conversion import ShardRow

SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),  # number in the shard, from 0
        pa.field("first_id", pa.string(), nullable=False),
        pa.field("all_id", pa.string(), nullable=False),
        pa.field("source_id", pa.string(), nullable=False),  # the row's own id, or FILE:ROW
        pa.field("source_row", pa.int64(), nullable=False),  # number among all rows of the source, from 0
        pa.field("messages", pa.string(), nullable=False),  # JSON: list of records.Message
        pa.field("tools", pa.string()),  # JSON: list of tools, or null
        pa.field("meta", pa.string(), nullable=False),  # JSON: object
        pa.field("dedupe_key", pa.string(), nullable=False),
    ]
)
GROUP_ROWS = 10_000
GROUP_BYTES = 32 << 20  # of text; a row group of very long prompts is cut here


class PromptsWriter:
    """Writes prompts.parquet; equal rows give equal bytes. Close it to finish the file.

    A row group is packed in a thread while the next one is gathered.
    """

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self._bytes = 0
        self._held: list[ShardRow] = []
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=False)
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def add(self, row: ShardRow) -> None:
        """Write one prompt."""
        self._held.append(row)
        self._bytes += len(row.messages) + (len(row.tools) if row.tools else 0)
        if len(self._held) == GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        numbers = range(self.rows, self.rows + len(self._held))
        columns = [
            pa.array(column, field.type)
            for column, field in zip((numbers, *zip(*self._held, strict=True)), SCHEMA, strict=True)
        ]
        self._wait()
        self._writing = self._thread.submit(self._writer.write_table, pa.Table.from_arrays(columns, schema=SCHEMA))
        self.rows += len(self._held)
        self._held.clear()
        self._bytes = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def close(self) -> None:
        """Write what is held, and the file's end."""
        with self._thread:
            if self._held:
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
