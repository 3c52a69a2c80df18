import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    ProfileNotFound,
    SSLError,
)

from workflow_scripts.errors import PlainError
from workflow_scripts.publishing import s3_errors


def answer(code: str, message: str = "") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "PutObject")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (answer("NoSuchBucket"), "publish.bucket"),
        (answer("AccessDenied"), "s3:PutObject"),
        (answer("403"), "s3:PutObject"),
        (answer("InvalidAccessKeyId"), "AWS_ACCESS_KEY_ID"),
        (answer("SignatureDoesNotMatch"), "AWS_SECRET_ACCESS_KEY"),
        (answer("RequestTimeTooSkewed"), "clock"),
        (answer("ExpiredToken"), "expired"),
        (answer("PermanentRedirect"), "publish.region"),
        (answer("Strange", "two\n lines"), "Strange to PutObject: two lines"),
        (answer("502"), "publish.endpoint_url"),
        (NoCredentialsError(), "AWS_PROFILE"),
        (ProfileNotFound(profile="p"), "AWS_PROFILE"),
        (HTTPClientError(error="Invalid header value b'AWS4 Credential=k\\n, Signature=s'"), "hold a line break"),
        (EndpointConnectionError(endpoint_url="http://h"), "publish.endpoint_url"),
    ],
)
def test_every_error_is_one_line_with_where_and_what_to_do(error: BotoCoreError | ClientError, words: str) -> None:
    with pytest.raises(PlainError) as caught, s3_errors.plain("s3://bucket/key"):
        raise error
    line = str(caught.value)
    assert line.startswith("s3://bucket/key: ") and words in line and "\n" not in line and "Signature=" not in line


def test_our_own_mistakes_are_not_hidden() -> None:
    with pytest.raises(KeyError), s3_errors.plain("s3://bucket/key"):
        raise KeyError("x")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (answer("SlowDown"), True),
        (answer("InternalError"), True),
        (ClientError({"Error": {"Code": ""}, "ResponseMetadata": {"HTTPStatusCode": 503}}, "PutObject"), True),  # type: ignore[typeddict-item]
        (EndpointConnectionError(endpoint_url="http://h"), True),
        (answer("AccessDenied"), False),
        (answer("BadDigest"), False),
        (NoCredentialsError(), False),
        (SSLError(endpoint_url="https://h", error=OSError("untrusted")), False),
    ],
)
def test_only_what_may_pass_is_waited_for(error: BotoCoreError | ClientError, passes: bool) -> None:
    assert s3_errors.passes(error) is passes
