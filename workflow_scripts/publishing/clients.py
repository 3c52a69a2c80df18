"""S3 clients: the user's store by boto3's own chain, and the embedded one cut off from every ambient setting."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, ConstantProvider
from botocore.exceptions import BotoCoreError

from workflow_scripts.config import Publish
from workflow_scripts.errors import PlainError

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

ATTEMPTS = 10
"""Tries of one request. botocore's default of 3 gives up after three 503s; ten outlast about a minute."""

EMBEDDED_REGION = "us-east-1"

# Headers that describe an object: a store takes them where one begins, and may refuse them elsewhere.
OF_OBJECTS = ("x-amz-acl", "x-amz-grant-", "x-amz-tagging", "x-amz-object-lock-", "x-amz-website-")
CREATING = ("PutObject", "CreateMultipartUpload")


@dataclass(frozen=True)
class Access:
    """How to reach the embedded store."""

    endpoint_url: str
    access_key: str
    secret_key: str


def configured(publish: Publish, attempts: int = ATTEMPTS) -> "S3Client":
    """A client of the configured store. Credentials, and what the config leaves open, come by boto3's chain.

    BotoCoreError, ClientError or PlainError if these can't be had.
    """
    with _ambient():
        session = boto3.session.Session()
        if credentials := session.get_credentials():
            credentials.get_frozen_credentials()  # now, not with the first request: a file or a program may be behind
        return _configured(session, publish, attempts)


@contextmanager
def _ambient() -> Iterator[None]:
    """What botocore lets through of settings in the environment or in files that are wrong."""
    try:
        yield
    except BotoCoreError:  # some are ValueErrors too
        raise
    except (OSError, ValueError) as error:
        raise PlainError(
            f"the AWS settings of this machine can't be used ({' '.join(str(error).split())}); check the AWS_ "
            f"variables, such as AWS_ENDPOINT_URL_S3 and AWS_PROFILE, and ~/.aws"
        ) from error


def _configured(session: boto3.session.Session, publish: Publish, attempts: int) -> "S3Client":
    def build(addressing: Literal["auto", "path", "virtual"]) -> "S3Client":
        client = session.client(
            "s3",
            region_name=publish.region,
            endpoint_url=publish.endpoint_url,
            config=_settings(attempts, addressing),
        )
        _as_configured(client, publish)
        return _create_only(client)

    if publish.path_style is not None:
        return build("path" if publish.path_style else "virtual")
    client = build("auto")
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    # Only AWS is sure to serve BUCKET.host; the endpoint may also come from the environment or a profile.
    return client if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) else build("path")


def embedded(access: Access, attempts: int = ATTEMPTS) -> "S3Client":
    """A client of the embedded store; no AWS_ variable, profile, config file or proxy has a say."""
    inner = botocore.session.Session()
    store = inner.get_component("config_store")
    for name, (_, _, default, _) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items():
        value = os.devnull if name in ("config_file", "credentials_file") else default
        store.set_config_provider(name, ConstantProvider(value))
    return _create_only(
        boto3.session.Session(botocore_session=inner).client(
            "s3",
            region_name=EMBEDDED_REGION,
            endpoint_url=access.endpoint_url,
            aws_access_key_id=access.access_key,
            aws_secret_access_key=access.secret_key,
            config=_settings(attempts, "path", proxies={}),
        )
    )


def _as_configured(client: "S3Client", publish: Publish) -> None:
    """Give every object its storage class and KMS key, and every request the configured headers."""
    described = {
        "StorageClass": publish.storage_class,
        "ServerSideEncryption": "aws:kms" if publish.kms_key else None,
        "SSEKMSKeyId": publish.kms_key,
    }
    given = {name: value for name, value in described.items() if value is not None}

    def describe(params: dict[str, Any], **_: Any) -> None:
        params.update(given)

    def add_headers(params: dict[str, Any], model: Any, **_: Any) -> None:
        for name, value in publish.headers.items():
            if model.name in CREATING or not name.startswith(OF_OBJECTS):
                params["headers"][name] = value

    for operation in CREATING:
        client.meta.events.register(f"before-parameter-build.s3.{operation}", describe)
    client.meta.events.register("before-call.s3", add_headers)


def _settings(
    attempts: int, addressing: Literal["auto", "path", "virtual"], proxies: dict[str, str] | None = None
) -> Config:
    return Config(
        s3={"addressing_style": addressing},
        proxies=proxies,
        retries={"mode": "standard", "total_max_attempts": attempts},
        connect_timeout=10,
        read_timeout=60,
        tcp_keepalive=True,
        max_pool_connections=64,
    )


def _create_only(client: "S3Client") -> "S3Client":
    """Make every write of `client` fail with 412 where an object is; this package has no other client."""

    def add(params: dict[str, Any], **_: Any) -> None:
        params["IfNoneMatch"] = "*"

    # s3transfer's uploads take no IfNoneMatch, but their requests pass through these events like any other.
    for operation in ("PutObject", "CompleteMultipartUpload"):
        client.meta.events.register(f"before-parameter-build.s3.{operation}", add)
    return client
