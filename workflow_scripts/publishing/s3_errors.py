"""What botocore raises, in one plain line: what failed, where, and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConfigParseError,
    ConnectionError,
    CredentialRetrievalError,
    HTTPClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSLError,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError

from workflow_scripts.errors import PlainError

_REGION = "the bucket is in another region; set publish.region (or AWS_DEFAULT_REGION) to the bucket's"
_DENIED = (
    "the credentials lack a right; publishing needs s3:ListBucket on the bucket, and s3:PutObject, s3:GetObject and "
    "s3:AbortMultipartUpload below the prefix"
)
CHECK_NETWORK = "check publish.endpoint_url, publish.region and the network"
_EXPIRED = "the credentials have expired; get new ones and run the same line again"

# By S3's error code (docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html). A HEAD has no body, so botocore
# gives the bare status for it.
ADVICE = {
    "NoSuchBucket": "there is no such bucket; create it, or set publish.bucket to one that exists",
    "404": "there is no such bucket or object",
    "NoSuchKey": "there is no such object; somebody deleted it",
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "403": _DENIED,
    "InvalidAccessKeyId": "the store does not know this access key; check AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY or AWS_PROFILE",
    "RequestTimeTooSkewed": "this machine's clock is off; set it (timedatectl set-ntp true)",
    "ExpiredToken": _EXPIRED,
    "InvalidToken": _EXPIRED,
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "301": _REGION,
    "SlowDown": "the store is overloaded and stayed so over many tries; run the same line again later",
    "BadDigest": "other bytes arrived than were sent, in several tries; check the disk and the network",
}

# Credentials that are configured and can't be had.
UNREADABLE = (CredentialRetrievalError, TokenRetrievalError, SSOError, ProfileNotFound, ConfigParseError)


# Codes and statuses of a store that is overloaded, restarts, or is ill for a while.
PASSING = ("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling", "ThrottlingException")
PASSING_STATUS = (429, 500, 502, 503, 504)


def passes(error: BotoCoreError | ClientError) -> bool:
    """Whether the same request may succeed a while later."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return code(error) in PASSING or status in PASSING_STATUS
    return isinstance(error, HTTPClientError | ConnectionError) and not isinstance(error, SSLError)


def code(error: ClientError) -> str:
    """S3's error code, or the HTTP status of a reply without a body."""
    return str(error.response.get("Error", {}).get("Code", "unknown"))


def explain(error: BotoCoreError | ClientError, where: str, if_no_answer: str = CHECK_NETWORK) -> str:
    """One plain line for `error`, met at `where` (an s3:// address with its endpoint).

    `if_no_answer` says what to do about a store that can't be reached.
    """
    if isinstance(error, ClientError):
        message = " ".join(str(error.response.get("Error", {}).get("Message", "")).split())
        name = code(error)
        advice = ADVICE.get(name, message or "see the store's own log")
        if name not in ADVICE and (not name or name.isdigit()):  # the bare status, or none
            name = name or str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
            advice = "that is no answer of S3's; either publish.endpoint_url is wrong, or the store is ill"
        if name == "NoSuchKey" and error.operation_name.startswith("List"):
            advice = (
                "there is no such bucket; publish.endpoint_url is the server's alone, the bucket has a key of its own"
            )
        return f"{where}: the store answered {name} to {error.operation_name}: {advice}"
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return f"{where}: no S3 credentials found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, UNREADABLE):
        return f"{where}: the S3 credentials can't be read: {_one_line(error)}; check AWS_PROFILE and ~/.aws"
    if isinstance(error, SSLError):
        return f"{where}: no safe connection: {_one_line(error)}; check publish.endpoint_url and AWS_CA_BUNDLE"
    if isinstance(error, HTTPClientError) and "Invalid header value" in str(error):  # which it shows
        return (
            f"{where}: the S3 credentials hold a line break or the like; check AWS_ACCESS_KEY_ID and AWS_SESSION_TOKEN"
        )
    if isinstance(error, HTTPClientError | ConnectionError):
        return f"{where}: no answer: {_one_line(error)}; {if_no_answer}"
    if isinstance(error, ResponseParserError):
        return f"{where}: what answers there does not speak S3: {_one_line(error)}; check publish.endpoint_url"
    return f"{where}: {_one_line(error)}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


@contextmanager
def plain(where: str, if_no_answer: str = CHECK_NETWORK) -> Iterator[None]:
    """Turn what botocore raises inside into a PlainError."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise PlainError(explain(error, where, if_no_answer)) from error
    except RecursionError as error:  # botocore asks for the bucket's region, is sent elsewhere, and asks again
        raise PlainError(
            f"{where}: what answers there sends every request to another address, as from http to https; "
            f"check publish.endpoint_url"
        ) from error
