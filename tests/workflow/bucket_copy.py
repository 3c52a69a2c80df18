"""A copy of what a run has published, and a reader of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets

from workflow_scripts.run import Run

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


def download(client: "S3Client", run: Run, folder: Path) -> Path:
    """Copy the run's objects below `folder`."""
    publish = run.config.publish
    assert publish.bucket is not None
    top = f"{publish.prefix}{run.name}/"
    for item in client.list_objects_v2(Bucket=publish.bucket, Prefix=top)["Contents"]:
        path = folder / item["Key"].removeprefix(top)
        path.parent.mkdir(parents=True, exist_ok=True)
        client.download_file(publish.bucket, item["Key"], str(path))
    return folder


def load(path: str, folder: Path, data_files: str | None = None) -> Any:
    """The dataset `path`, read by `datasets` with a cache beside `folder`."""
    return datasets.load_dataset(path, data_files=data_files, cache_dir=str(folder.parent / "cache"))["train"]
