"""The real embedded S3 server: runs to publish to it, and looks into what it holds."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import polars
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.standin.waiting import until
from workflow_scripts import files, processes
from workflow_scripts.completions.finish import keys_sha256
from workflow_scripts.processes import ProcessId
from workflow_scripts.publishing import embedded
from workflow_scripts.publishing.clients import Access
from workflow_scripts.run import Run
from workflow_scripts.serving import supervisor
from workflow_scripts.serving.environment import Environment

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


def make_run(results: Path, name: str, store: str = "embedded", chunks: int = 2, **publish: Any) -> Run:
    settings = {"store": store, "bucket": "draftmill", "prefix": "demo", **publish}
    run = Run(results / name)
    config = {
        "name": "demo",
        "sources": {"a": {"path": "a.jsonl", "shape": "messages"}},
        "chunks": {"count": chunks},
        "model": {"path": "model"},
        "publish": settings,
    }
    files.write_json(run.folder / "run.yaml", config)  # JSON is YAML
    return run


def write_start(run: Run, revision: str = "1", word: str = "first") -> None:
    files.write_json(run.lock, {"revision": revision})
    write_manifest(run)
    files.write_json(run.manifest_json, {"got": word})
    files.write_bytes(run.dropped, b"dropped")


def prompt_ids(chunk: str) -> list[str]:
    return [f"{chunk} {position}" for position in range(4)]


def write_manifest(run: Run) -> None:
    """Four prompts a chunk."""
    rows = [("a", ids, int(chunk), place) for chunk in run.chunks() for place, ids in enumerate(prompt_ids(chunk))]
    run.folder.mkdir(parents=True, exist_ok=True)
    polars.DataFrame(rows, ["source", "prompt_id", "chunk", "position"], orient="row").write_parquet(run.manifest)


def write_chunk(run: Run, chunk: str, word: str = "first") -> None:
    """Three completions and a failure, for the chunk's prompts in the manifest."""
    if not run.manifest.exists():
        write_manifest(run)
    entries: dict[str, Any] = {}
    for kind, path, rows in (("completions", run.completions(chunk), 3), ("failures", run.failures(chunk), 1)):
        files.write_jsonl_zst(path, [{"chunk": chunk, "word": word, "row": row} for row in range(rows)])
        entries[kind] = {"bytes": path.stat().st_size, "sha256": files.sha256_file(path), "rows": rows}
    fingerprint = {"content": {"model": "m"}, "speed": []}
    keys = keys_sha256((prompt_id, 0) for prompt_id in prompt_ids(chunk))
    counts = {"classes": {"complete": 3}, "prompt_tokens": 12, "output_tokens": 30}
    sidecar = {"chunk": chunk, "prompts_sha256": "0" * 64, "keys_sha256": keys, **entries, **counts}
    sidecar["fingerprint"] = fingerprint
    files.write_json(run.sidecar(chunk), sidecar)


def write_training(run: Run) -> Path:
    """One shard of seven rows, and its index."""
    index = run.folder / "training" / "abc" / "training.json"
    polars.DataFrame({"input_ids": [[1, 2]] * 7}).write_parquet(index.parent / "train-00000.parquet", mkdir=True)
    shard = index.parent / "train-00000.parquet"
    entry = {"path": shard.name, "bytes": shard.stat().st_size, "sha256": files.sha256_file(shard), "rows": 7}
    files.write_json(index, {"files": [entry], "rows": 7, "supervised_tokens": 7})
    return index


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
    for path in paths - {"owner.json", "README.md", "index.json"}:
        assert client.get_object(Bucket=bucket, Key=top + path)["Body"].read() == (run.folder / path).read_bytes(), path
    assert client.list_multipart_uploads(Bucket=bucket).get("Uploads", []) == []
    return paths


@contextmanager
def running_seaweed(folder: Path, built: Environment, *identities: dict[str, Any]) -> Iterator[Access]:
    """A SeaweedFS of the test's own, as a user's store that a run does not start; `identities` beside the admin's."""
    keys = {"accessKey": "admin", "secretKey": "admin-secret"}
    admin = {"name": "admin", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List", "Tagging"]}
    files.write_json(folder / "s3.json", {"identities": [admin, *identities]})
    (folder / "data").mkdir()
    (folder / "tmp").mkdir()
    ports = embedded.free_ports(8)
    argv = [str(built.folder / "bin" / "weed"), *embedded.arguments(ports)]
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=folder, stdout=log, stderr=log, env={"HOME": str(folder)})
    try:
        access = Access(f"http://127.0.0.1:{ports[0]}", keys["accessKey"], keys["secretKey"])
        client = raw_client(access)
        until(lambda: _answers(client), 120)
        yield access
    finally:
        process.kill()
        process.wait()


def _answers(client: "S3Client") -> bool:
    """Whether objects can be written and read."""
    try:
        client.create_bucket(Bucket="draftmill")
    except (ClientError, BotoCoreError) as error:
        if "BucketAlready" not in str(error):
            return False
    try:
        client.put_object(Bucket="draftmill", Key="elsewhere/kept", Body=b"kept")
        return client.get_object(Bucket="draftmill", Key="elsewhere/kept")["Body"].read() == b"kept"
    except (ClientError, BotoCoreError):
        return False


def credentials(patch: pytest.MonkeyPatch, access: Access) -> None:
    """Have boto3's own chain find these credentials, and nothing of the user's."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        patch.delenv(name, raising=False)
    patch.setenv("AWS_CONFIG_FILE", "/dev/null")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    patch.setenv("AWS_ACCESS_KEY_ID", access.access_key)
    patch.setenv("AWS_SECRET_ACCESS_KEY", access.secret_key)
