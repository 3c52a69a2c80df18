import io
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders

from workflow_scripts.config import Publish
from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import clients
from workflow_scripts.publishing.clients import Access

AMBIENT = {
    "AWS_PROFILE": "nobody",
    "AWS_DEFAULT_PROFILE": "nobody",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "ambient",
    "AWS_SECRET_ACCESS_KEY": "ambient",
    "AWS_SESSION_TOKEN": "ambient",
    "AWS_USE_FIPS_ENDPOINT": "true",
    "AWS_USE_DUALSTACK_ENDPOINT": "true",
    "AWS_CA_BUNDLE": "/nowhere",
    "AWS_DEFAULTS_MODE": "nonsense",
    "AWS_RETRY_MODE": "nonsense",
    "AWS_MAX_ATTEMPTS": "nonsense",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "nonsense",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "http_proxy": "http://127.0.0.1:1",
}


def test_the_embedded_client_ignores_ambient_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config").write_text("[default]\nregion = eu-west-1\ns3 =\n  addressing_style = virtual\nbroken line")
    for name, value in {**AMBIENT, "AWS_CONFIG_FILE": str(tmp_path / "config")}.items():
        monkeypatch.setenv(name, value)
    client = clients.embedded(Access("http://127.0.0.1:9000", "key", "secret"))
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    assert url.startswith("http://127.0.0.1:9000/bucket/k?")
    assert "ambient" not in url
    assert "AWSAccessKeyId=key" in url or "Credential=key" in url
    assert client.meta.region_name == clients.EMBEDDED_REGION
    config: Any = client.meta.config
    assert config.proxies == {}


def test_a_configured_store_elsewhere_is_addressed_by_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AMBIENT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")

    def url(publish: Publish) -> str:
        return clients.configured(publish).generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})

    elsewhere = Publish.model_validate({"store": "s3", "bucket": "bucket", "endpoint_url": "https://minio.example.org"})
    assert url(elsewhere).startswith("https://minio.example.org/bucket/k?")
    aws = Publish.model_validate({"store": "s3", "bucket": "bucket", "region": "eu-west-1"})
    assert url(aws).startswith("https://bucket.s3.")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://ceph.example.org")
    assert url(aws).startswith("https://ceph.example.org/bucket/k?")


def sent(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The headers of each operation, by its name, as they are sent."""
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    client = clients.configured(publish)
    found: dict[str, Any] = {}

    def catch(request: Any, **_: Any) -> Any:
        found[current] = {key: as_text(value) for key, value in request.headers.items()} | {"url": request.url}
        body = b"<X><UploadId>u</UploadId></X>"
        return AWSResponse(request.url, 200, HTTPHeaders(), Raw(body))

    client.meta.events.register("before-send.s3", catch)
    current = "put"
    client.put_object(Bucket="bucket", Key="k", Body=b"x")
    current = "begin"
    client.create_multipart_upload(Bucket="bucket", Key="k")
    current = "part"
    client.upload_part(Bucket="bucket", Key="k", UploadId="u", PartNumber=1, Body=b"x")
    current = "get"
    client.head_object(Bucket="bucket", Key="k")
    return found


def as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class Raw(io.BytesIO):
    def stream(self, **_: Any) -> Any:
        yield self.read()


def test_storage_class_key_and_headers_go_where_they_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "store": "s3",
        "bucket": "bucket",
        "endpoint_url": "http://s3.example.org",
        "region": "eu-west-1",
        "path_style": False,
        "storage_class": "STANDARD_IA",
        "kms_key": "alias/drafts",
        "headers": {"X-Amz-Acl": "bucket-owner-full-control", "x-tenant": "t"},
    }
    found = sent(Publish.model_validate(settings), monkeypatch)
    for operation in ("put", "begin"):
        headers = {name.lower(): value for name, value in found[operation].items()}
        assert headers["x-amz-storage-class"] == "STANDARD_IA"
        assert headers["x-amz-server-side-encryption"] == "aws:kms"
        assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/drafts"
        assert headers["x-amz-acl"] == "bucket-owner-full-control"
    for operation in ("part", "get"):
        assert not {"x-amz-storage-class", "x-amz-acl"} & {name.lower() for name in found[operation]}
    for headers in found.values():
        assert headers["x-tenant"] == "t" and "x-tenant" in headers["Authorization"]
        assert (
            headers["url"].startswith("http://bucket.s3.example.org/k") and "/eu-west-1/s3/" in headers["Authorization"]
        )


@pytest.mark.parametrize(
    ("environment", "profile", "words"),
    [
        ({"AWS_ENDPOINT_URL_S3": "nonsense"}, "", "Invalid endpoint: nonsense.*AWS_ENDPOINT_URL_S3"),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere/token", "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/x"},
            "",
            "/nowhere/token",
        ),
        ({}, "credential_process = /nowhere/program", "/nowhere/program"),
        ({}, "credential_process = echo no-json", "can't be used.*AWS_PROFILE"),
    ],
    ids=["endpoint", "token", "program", "answer"],
)
def test_ambient_settings_that_cannot_be_used_are_one_plain_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], profile: str, words: str
) -> None:
    for name in AMBIENT:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(f"[default]\n{profile}\n")
    for name, value in {**environment, "AWS_CONFIG_FILE": str(tmp_path / "config")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(PlainError, match=words) as caught:
        clients.configured(Publish.model_validate({"store": "s3", "bucket": "bucket"}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"storage_class": "DEEP_ARCHIVE"}, "can't be read back"),
        ({"headers": {"Authorization": "x"}}, "comes from the environment only"),
        ({"headers": {"If-None-Match": "x"}}, "set by publishing itself"),
        ({"headers": {"x-amz-server-side-encryption-customer-key": "x"}}, "environment only"),
        ({"headers": {"x-api-token": "x"}}, "environment only"),
        ({"headers": {"bad name": "x"}}, "is no header"),
        ({"headers": {"x-a": "1\r\nx-b: 2"}}, "is no header"),
        ({"prefix": "a/b/", "protect": ["a"]}, "meets the protected prefix"),
        *(
            ({"prefix": prefix}, "is no prefix")
            for prefix in ("/", "/a", "a//b", "..", "a/..", "./a", "a/./b", "a\\b", "a\nb", "\u202ea", " a", "a /b")
        ),
        ({"prefix": "\u00e9" * 401}, "has 802 bytes"),
        *(
            ({"prefix": "a/b/", "protect": [protected]}, "would protect nothing")
            for protected in ("s3://bucket/a/", "a/*", "./a", "x/../a", " a", "a\\", "a\n")
        ),
        ({"prefix": "a/b/", "protect": ["/"]}, "would protect the whole bucket"),
    ],
)
def test_settings_that_would_harm_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Publish.model_validate({"store": "s3", "bucket": "bucket", **settings})
