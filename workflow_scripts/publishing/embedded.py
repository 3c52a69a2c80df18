"""The embedded S3 store: a SeaweedFS server under supervision, for the demo and for runs without a bucket.

    results/.store/data               what it stores; survives kill -9 of the server
    results/.store/credentials.json   random, made once; 0600
    results/.store/s3.json            the same in SeaweedFS' own form; 0600
    results/.store/state.json ...     the supervisor's files

Every port is on 127.0.0.1, and chosen anew at each start.
"""

import random
import secrets
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from workflow_scripts import files
from workflow_scripts.publishing import clients, s3_errors
from workflow_scripts.publishing.clients import Access
from workflow_scripts.run import Run
from workflow_scripts.serving import environment, supervisor
from workflow_scripts.serving.supervisor import Service

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

# Below Linux' ephemeral range (32768 up): no outgoing connection can take a port between choice and use.
PORTS = range(20_000, 32_768)
# After a kill the server checks its volumes first: 10 s were seen.
START_SECONDS = 120.0
# A graceful stop waits 15 s for its own parts to turn away from each other; a kill loses nothing, and the next start
# takes no longer.
GRACE_SECONDS = 1.0
# A bucket beside the user's, for one object that shows that the volumes can be read.
READY_BUCKET, READY_SECONDS = "draftmill-ready", 60.0


def ensure_started(run: Run) -> Access:
    """Return when the store of the run's results folder answers and has the configured bucket."""
    folder = run.store
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = supervisor.ensure(folder, lambda: _service(folder.absolute()))
    credentials = files.read_json(folder / "credentials.json", "access_key", "secret_key")
    access = Access(state.facts["endpoint_url"], credentials["access_key"], credentials["secret_key"])
    client = clients.embedded(access)
    with s3_errors.plain(f"the embedded store at {access.endpoint_url}", if_no_answer(run)):
        _await_volumes(client)
        if run.config.publish.bucket is not None:
            _ensure_bucket(client, run.config.publish.bucket)
    return access


def if_no_answer(run: Run) -> str:
    """What to do about a store that stopped answering: a job that has begun does not start it again, the next does."""
    return f"the embedded store died or hangs ({run.store / 'service.log'} may say why); run the same line again"


def _await_volumes(client: "S3Client") -> None:
    """Return when objects can be read. The gateway answers first; the volumes join up to some seconds later.

    Until then a read of what is stored fails with InternalError, so a small object of our own is read until it comes.
    """
    _ensure_bucket(client, READY_BUCKET)
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            client.put_object(Bucket=READY_BUCKET, Key="ready", Body=b"ready")
        except ClientError as error:
            if s3_errors.code(error) != "PreconditionFailed" and time.monotonic() > deadline:
                raise
        try:
            client.get_object(Bucket=READY_BUCKET, Key="ready")["Body"].read()
            return
        except ClientError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def _ensure_bucket(client: "S3Client", bucket: str) -> None:
    try:
        client.head_bucket(Bucket=bucket)
        return
    except ClientError as error:
        if s3_errors.code(error) not in ("404", "NoSuchBucket"):
            raise
    try:
        client.create_bucket(Bucket=bucket)
    except ClientError as error:  # another job was faster
        if s3_errors.code(error) not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise


def _service(folder: Path) -> Service:
    """The server's command; secrets go through 0600 files, never through argv."""
    built = environment.ensure("seaweedfs")
    (folder / "data").mkdir(exist_ok=True)
    scratch = folder / "tmp"
    credentials = folder / "credentials.json"
    if not credentials.exists():
        made = {"access_key": secrets.token_hex(10), "secret_key": secrets.token_urlsafe(30)}
        files.write_json(credentials, made, mode=0o600)
    keys = files.read_json(credentials)
    identity = {
        "name": "draftmill",
        "credentials": [{"accessKey": keys["access_key"], "secretKey": keys["secret_key"]}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    files.write_json(folder / "s3.json", {"identities": [identity]}, mode=0o600)
    ports = free_ports(8)
    url = f"http://127.0.0.1:{ports[0]}"
    return Service(
        name="the embedded store",
        argv=[str(built.folder / "bin" / "weed"), *arguments(ports)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(scratch)},
        cwd=str(folder),
        ready_url=f"{url}/",
        ready_status=403,  # anonymous: the gateway is up and its identities are loaded
        start_timeout=START_SECONDS,
        grace=GRACE_SECONDS,
        hold_locks=[str(environment.lock_path(built))],
        scratch=str(scratch),  # many a backup stumbles over the sockets that a killed server leaves
        facts={"endpoint_url": url},
    )


def arguments(ports: list[int]) -> list[str]:
    """weed's arguments; eight ports, the first is S3's. Paths are relative to the store's folder.

    Relative also for the sockets' sake: the path of a Unix socket has 107 bytes at most.
    """
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc = ports
    return [
        "-logtostderr=true",
        "server",
        "-dir=data",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-disableHttp",  # the master's and the filer's HTTP would need no credentials
        f"-master.port={master}",
        f"-master.port.grpc={master_grpc}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=1024",
        f"-volume.port={volume}",
        f"-volume.port.grpc={volume_grpc}",
        "-volume.max=2000",  # a bucket takes seven; nothing is allocated ahead
        "-volume.preStopSeconds=0",
        "-filer",
        f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}",
        "-filer.disableHttp",
        "-filer.localSocket=tmp/filer.sock",
        "-s3",
        f"-s3.port={s3}",
        f"-s3.port.grpc={s3_grpc}",
        "-s3.ip.bind=127.0.0.1",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
        "-s3.localSocket=tmp/s3.sock",
        "-s3.config=s3.json",
    ]


def free_ports(count: int) -> list[int]:
    """Distinct ports of 127.0.0.1 that nothing listens on now, in a random order."""
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(PORTS, len(PORTS)):
            listener = held.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports between {PORTS.start} and {PORTS.stop}")
