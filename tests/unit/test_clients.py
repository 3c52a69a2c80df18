from pathlib import Path
from typing import Any

import pytest

from workflow_scripts.config import Publish
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
