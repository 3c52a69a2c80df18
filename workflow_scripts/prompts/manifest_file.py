"""manifest.parquet, read."""

import polars as pl

from workflow_scripts.errors import PlainError
from workflow_scripts.run import Run


def read(run: Run, columns: list[str]) -> pl.DataFrame:
    """Columns of a run's manifest, a row a prompt. PlainError if the file is missing or damaged."""
    try:
        return pl.read_parquet(run.manifest, columns=columns, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise PlainError(f"{run.manifest} is missing or damaged; delete it and run the same line again") from error
