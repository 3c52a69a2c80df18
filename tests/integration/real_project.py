"""A project whose servers are the real SGLang on the CPU, and what the real embedded store holds of a run."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config

from tests.standin.project import Project
from workflow_scripts import files, processes
from workflow_scripts.processes import ProcessId
from workflow_scripts.publishing import embedded
from workflow_scripts.publishing.clients import Access
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

SECONDS = 600.0  # that a run with the real SGLang may take on a busy machine


def real(folder: Path, model_path: str, name: str) -> Project:
    """A project in `folder` whose servers are the real SGLang."""
    project = Project(folder)
    project.home = files.cache_home()
    questions = ["What is the capital of France?", "What is 2 plus 3?", "Name a colour.", "Say hello.", "What is ice?"]
    project.write_rows("questions", [{"prompt": text, "response": "?"} for text in questions])
    tool = {"name": "weather", "description": "Tells it.", "parameters": {"type": "object", "properties": {}}}
    chats = [
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}], "tools": [tool]}
        for text in ("What is the weather in Rome?", "What is a cat?", "Why is the sky blue?", "Count to five.")
    ]
    project.write_rows("chats", chats)
    project.config |= {
        "name": name,
        "chunks": {"count": 2},
        "model": {"path": model_path},
        "sampling": {"temperature": 0.0, "max_tokens": 24},
    }
    project.config["servers"] |= {"start_timeout": 400, "args": {"max-running-requests": 8, "context-length": 1024}}
    return project


def completions(run: Run) -> list[dict[str, Any]]:
    return [row for chunk in run.chunks() for row in files.read_jsonl_zst(run.completions(chunk))]


def raw_client(access: Access) -> "S3Client":
    """Somebody else's client: it overwrites."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=access.endpoint_url,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


@contextmanager
def embedded_store(run: Run) -> Iterator["S3Client"]:
    """The run's embedded store, started for a look into it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(processes.RUN_PROCESS_VARIABLE, str(ProcessId.here()))
        try:
            yield raw_client(embedded.ensure_started(run))
        finally:
            supervisor.stop(run.store)


def check_bucket(run: Run, client: "S3Client", bucket: str, prefix: str) -> set[str]:
    """The index names every object but itself, each is the run's file byte for byte, and no upload is left open.

    Returns the objects' paths.
    """
    keys = [item["Key"] for item in client.list_objects_v2(Bucket=bucket)["Contents"]]
    top = f"{prefix}{run.name}/"
    assert all(key.startswith(top) for key in keys)
    paths = {key.removeprefix(top) for key in keys}
    index = json.loads(client.get_object(Bucket=bucket, Key=f"{top}index.json")["Body"].read())
    assert {item["path"] for item in index["objects"]} == paths - {"index.json"}
    for path in paths - {"owner.json", "index.json"}:
        assert client.get_object(Bucket=bucket, Key=top + path)["Body"].read() == (run.folder / path).read_bytes(), path
    assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    return paths
