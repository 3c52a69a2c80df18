"""Multipart uploads under way, on file: the next start aborts what a killed job left of them, and no live one.

results/RUN/uploads/ID.json    {bucket, key, upload}, from the upload's first reply to its end
"""

import hashlib
from collections.abc import Container
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from workflow_scripts import files
from workflow_scripts.publishing import s3_errors

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# No file of ours takes a week to upload.
ABANDONED = timedelta(days=7)
NOT_ALLOWED = ("AccessDenied", "403", "NotImplemented", "MethodNotAllowed")


def keep_on_file(client: "S3Client", folder: Path) -> None:
    """Have every multipart upload of `client` on file in `folder` until it is joined or aborted."""

    def path(upload: str) -> Path:
        return folder / f"{hashlib.sha256(upload.encode()).hexdigest()[:24]}.json"

    def remember(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        context["draftmill"] = params

    def begun(parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        if "UploadId" in parsed:
            asked, upload = context["draftmill"], parsed["UploadId"]
            files.write_json(path(upload), {"bucket": asked["Bucket"], "key": asked["Key"], "upload": upload})

    def ended(parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        if "Error" not in parsed:
            path(context["draftmill"]["UploadId"]).unlink(missing_ok=True)

    operations = {"CreateMultipartUpload": begun, "CompleteMultipartUpload": ended, "AbortMultipartUpload": ended}
    for operation, note in operations.items():
        client.meta.events.register(f"before-parameter-build.s3.{operation}", remember)
        client.meta.events.register(f"after-call.s3.{operation}", note)


def abort(client: "S3Client", bucket: str, key: str, upload: str) -> None:
    """Abort an upload; one that is gone already is aborted enough."""
    try:
        client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
    except ClientError as error:
        if s3_errors.code(error) not in ("NoSuchUpload", "404"):
            raise


def abort_left(client: "S3Client", bucket: str, prefix: str, folder: Path, settled: Container[str]) -> int:
    """Abort what is on file in `folder`, whose run's jobs are dead, and what is dead below `prefix`; return how many.

    `settled` are the keys of objects that exist.
    """
    count = 0
    for path in sorted(folder.glob("*.json")):
        left = files.read_json(path, "bucket", "key", "upload")
        if left["bucket"] == bucket and left["key"].startswith(prefix):  # else the config names another place now
            abort(client, bucket, left["key"], left["upload"])
            count += 1
            path.unlink(missing_ok=True)
    return count + abort_dead(client, bucket, prefix, settled)


def abort_dead(client: "S3Client", bucket: str, prefix: str, settled: Container[str]) -> int:
    """Abort uploads below `prefix` that can't end well: to keys that are settled, and those of a week ago.

    An upload whose first reply was lost is on no file. Once its key is settled it could only be refused, whoever began
    it. Without the right to list uploads, they stay. Returns how many.
    """
    count = 0
    try:
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
            now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            for upload in page.get("Uploads", []):
                if upload["Key"] in settled or now - upload["Initiated"] > ABANDONED:
                    abort(client, bucket, upload["Key"], upload["UploadId"])
                    count += 1
    except ClientError as error:
        if s3_errors.code(error) not in NOT_ALLOWED:
            raise
    return count
