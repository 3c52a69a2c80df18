"""The preflight against the real embedded S3 server: what it claims, takes and refuses."""

import http.server
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.real_store import make_run, write_start
from workflow_scripts import files
from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import embedded, preflight
from workflow_scripts.publishing.digests import digest
from workflow_scripts.publishing.store import Store, open_store
from workflow_scripts.run import Run

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


def test_preflight_claims_lists_and_takes_the_published_lock(run: Run) -> None:
    preflight.preflight(run)
    store = open_store(run)
    assert files.read_json(run.published_listing)["paths"] == {
        "owner.json": {"key": f"demo/{run.name}/owner.json", "bytes": len(preflight.owner(run.name))}
    }
    store.create(b'{"revision":"published"}', "lock.json")
    preflight.preflight(run)
    assert files.read_json(run.lock) == {"revision": "published"}
    assert list(files.read_json(run.published_listing)["paths"]) == ["lock.json", "owner.json"]


def test_preflight_refuses_a_lock_that_work_was_built_on(run: Run) -> None:
    preflight.preflight(run)
    open_store(run).create(b'{"revision":"published"}', "lock.json")
    write_start(run, "local")
    with pytest.raises(PlainError, match=r"lock\.json differs"):
        preflight.preflight(run)
    assert files.read_json(run.lock) == {"revision": "local"}


def test_preflight_refuses_another_owner(store: Store, foreign: "S3Client", run: Run) -> None:
    content = b'{"run":"theirs","format":1}\n'
    metadata = {"run": "theirs", "sha256": digest(content).sha256}
    key = store.key("owner.json")
    foreign.put_object(Bucket="draftmill", Key=key, Body=content, Metadata=metadata, ChecksumAlgorithm="CRC64NVME")
    with pytest.raises(PlainError, match="object of run theirs"):
        preflight.preflight(run)
    assert foreign.get_object(Bucket="draftmill", Key=key)["Body"].read() == content


def test_preflight_refuses_a_prefix_that_something_else_filled(store: Store, foreign: "S3Client", run: Run) -> None:
    foreign.put_object(Bucket="draftmill", Key=store.key("stray.txt"), Body=b"x")
    with pytest.raises(PlainError, match=r"stray\.txt.*no owner\.json"):
        preflight.preflight(run)
    assert store.listing() == {"stray.txt": 1}


def test_a_prefix_in_another_runs_folder_is_refused(results: Path, store: Store, run: Run) -> None:
    preflight.preflight(run)
    inner = make_run(results, "inner", prefix=f"demo/{run.name}/deep/er")
    with pytest.raises(PlainError, match=rf"demo/{run.name}/ is the folder of run {run.name}; nothing was written"):
        preflight.preflight(inner)
    assert store.listing().keys() == {"owner.json"}


@pytest.mark.parametrize(
    "prefix",
    ["donn\u00e9es/\u6587", "e\u0301/", "a b+c%20&#?=;", "'\"<>:~", "Demo"],
    ids=["unicode", "combining", "of_urls", "of_xml", "case"],
)
def test_a_prefix_is_taken_as_it_is(run: Run, foreign: "S3Client", prefix: str) -> None:
    odd = make_run(run.results, run.name, prefix=prefix)
    preflight.preflight(odd)
    open_store(odd).create(b"{}", "lock.json")
    preflight.preflight(odd)
    assert odd.lock.read_bytes() == b"{}"
    top = f"{prefix.removesuffix('/')}/{run.name}/"
    found = foreign.list_objects_v2(Bucket="draftmill", Prefix=top)["Contents"]
    assert [item["Key"] for item in found] == [f"{top}lock.json", f"{top}owner.json"]


def test_names_that_others_gave_to_objects_do_not_stop_a_run(run: Run, foreign: "S3Client") -> None:
    preflight.preflight(run)
    foreign.put_object(Bucket="draftmill", Key=f"demo/{run.name}/completions/", Body=b"")  # as consoles make folders
    preflight.preflight(run)
    assert "completions/" in files.read_json(run.published_listing)["paths"]


class CarelessStore(http.server.BaseHTTPRequestHandler):
    """An S3 that says 200 to everything; as HonestStore, 412 to every second write, but without checksums."""

    refuses = False
    writes = 0

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        refuse = False
        if self.command == "PUT":
            type(self).writes += 1
            refuse = self.refuses and self.writes > 1
        self.send_response(412 if refuse else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_HEAD = answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.parametrize(("refuses", "words"), [(False, "ignores If-None-Match"), (True, "keeps no CRC64NVME")])
def test_preflight_refuses_a_careless_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool, words: str
) -> None:
    handler = type("Handler", (CarelessStore,), {"refuses": refuses, "writes": 0})
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(PlainError, match=words):
            preflight.preflight(make_run(tmp_path, "careless", "s3", endpoint_url=endpoint))
        server.shutdown()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("right", ""),
        ("bucket", "NoSuchBucket.*publish.bucket"),
        ("none", "no S3 credentials found.*AWS_PROFILE"),
        ("key", "InvalidAccessKeyId.*AWS_ACCESS_KEY_ID"),
        ("secret", "SignatureDoesNotMatch.*AWS_SECRET_ACCESS_KEY"),
        ("profile", "AWS_PROFILE"),
        ("down", "127.0.0.1.*no answer.*publish.endpoint_url"),
        ("path", "NoSuchKey to ListObjectsV2.*publish.endpoint_url is the server's alone"),
    ],
)
def test_a_wrong_setting_is_one_plain_line(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, words: str
) -> None:
    access = embedded.ensure_started(make_run(results, "settings"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}" if case == "down" else access.endpoint_url
        endpoint += "/draftmill" if case == "path" else ""
        bucket = "absent" if case == "bucket" else "draftmill"
        run = make_run(tmp_path, f"settings-{case}", "s3", endpoint_url=endpoint, bucket=bucket)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong" if case == "key" else access.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" if case == "secret" else access.secret_key)
        if case != "profile":
            monkeypatch.delenv("AWS_PROFILE")
        if case == "none":
            monkeypatch.delenv("AWS_ACCESS_KEY_ID")
            monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        if case == "right":
            preflight.preflight(run)
            assert open_store(run).listing().keys() == {"owner.json"}
            return
        with pytest.raises(PlainError, match=words) as caught:
            preflight.preflight(run)
        assert "\n" not in str(caught.value)
