"""A store that the user names: rights, clocks and servers that are wrong, each in one plain line before any chunk."""

import datetime
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import botocore.crt.auth
import pytest

from tests.integration.real_store import (
    credentials,
    make_run,
    raw_client,
    running_seaweed,
    write_chunk,
    write_start,
    write_training,
)
from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import preflight, publish
from workflow_scripts.publishing.clients import Access
from workflow_scripts.publishing.store import open_store
from workflow_scripts.serving.environment import Environment

BUCKET = "draftmill"


def identity(name: str, *actions: str) -> dict[str, Any]:
    return {"name": name, "credentials": [{"accessKey": name, "secretKey": f"{name}-secret"}], "actions": [*actions]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, seaweedfs: Environment) -> Iterator[Access]:
    scoped = [f"{right}:{BUCKET}/ours/*" for right in ("Read", "Write", "List")]
    reader = identity("reader", f"Read:{BUCKET}", f"List:{BUCKET}")
    folder = tmp_path_factory.mktemp("weed")
    with running_seaweed(folder, seaweedfs, identity("scoped", *scoped), reader) as access:
        yield access


@pytest.fixture
def as_(server: Access, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Take on an identity of the server."""

    def take(name: str) -> None:
        credentials(monkeypatch, replace(server, access_key=name, secret_key=f"{name}-secret"))

    return take


def test_rights_below_the_prefix_alone_are_enough(server: Access, as_: Any, tmp_path: Path) -> None:
    as_("scoped")
    run = make_run(tmp_path, "scoped", "s3", endpoint_url=server.endpoint_url, prefix="ours/")
    preflight.preflight(run)
    write_start(run)
    for chunk in run.chunks():
        write_chunk(run, chunk)
    index = write_training(run)
    store = open_store(run)
    publish.publish_start(run, store)
    publish.publish_batch(run, store, "0000")
    publish.publish_training(run, store, index)
    preflight.preflight(run)
    assert len(store.listing()) == 5 + 6 + 2

    other = make_run(tmp_path, "elsewhere", "s3", endpoint_url=server.endpoint_url, prefix="theirs/")
    with pytest.raises(PlainError, match="the credentials lack a right") as caught:
        preflight.preflight(other)
    assert "\n" not in str(caught.value)
    there = raw_client(server).list_objects_v2(Bucket=BUCKET, Prefix="theirs/")
    assert "Contents" not in there


def test_no_right_to_write_is_found_before_the_first_chunk(server: Access, as_: Any, tmp_path: Path) -> None:
    as_("reader")
    run = make_run(tmp_path, "reader", "s3", endpoint_url=server.endpoint_url)
    with pytest.raises(PlainError, match=r"AccessDenied to PutObject: the credentials lack a right.*s3:PutObject"):
        preflight.preflight(run)


def test_a_clock_that_is_off_is_named(
    server: Access, as_: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_("admin")
    late = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=3)
    monkeypatch.setattr(botocore.crt.auth, "get_current_datetime", lambda remove_tzinfo=True: late)
    run = make_run(tmp_path, "late", "s3", endpoint_url=server.endpoint_url)
    with pytest.raises(PlainError, match=r"RequestTimeTooSkewed .*this machine's clock is off"):
        preflight.preflight(run)


def test_storage_class_and_headers_arrive(server: Access, as_: Any, tmp_path: Path) -> None:
    as_("admin")
    run = make_run(
        tmp_path,
        "headers",
        "s3",
        endpoint_url=server.endpoint_url,
        region="eu-west-1",
        path_style=True,
        storage_class="STANDARD_IA",
        headers={"x-amz-tagging": "kind=draft"},
    )
    preflight.preflight(run)
    client = raw_client(server)
    key = f"demo/{run.name}/owner.json"
    assert client.head_object(Bucket=BUCKET, Key=key)["StorageClass"] == "STANDARD_IA"
    assert client.get_object_tagging(Bucket=BUCKET, Key=key)["TagSet"] == [{"Key": "kind", "Value": "draft"}]


@contextmanager
def answering(status: int, kind: str, text: bytes) -> Iterator[str]:
    """A server that says the same to everything."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_PUT = do_HEAD = do_POST = answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


WRONG_REGION = (
    b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>the region 'us-east-1' is wrong; expecting 'eu-west-1'"
    b"</Message><Region>eu-west-1</Region></Error>"
)


@pytest.mark.parametrize(
    ("status", "kind", "text", "words"),
    [
        (400, "application/xml", WRONG_REGION, "publish.region"),
        (200, "text/html", b"<html><body><p>Welcome</body></html>", "no answer of S3's.*publish.endpoint_url"),
        (404, "text/html", b"<html>not here</html>", "404 .*no answer of S3's"),
        (301, "text/html", b"<html>moved</html>", "sends every request to another address.*publish.endpoint_url"),
    ],
    ids=["region", "html", "html404", "moved"],
)
def test_a_wrong_region_or_server_is_one_plain_line(
    server: Access, as_: Any, tmp_path: Path, status: int, kind: str, text: bytes, words: str
) -> None:
    as_("admin")
    with answering(status, kind, text) as url:
        run = make_run(tmp_path, "wrong", "s3", endpoint_url=url, region="us-east-1")
        with pytest.raises(PlainError, match=words) as caught:
            preflight.preflight(run)
    assert "\n" not in str(caught.value)
