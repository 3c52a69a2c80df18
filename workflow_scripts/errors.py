"""The one error that a user is meant to read."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class PlainError(Exception):
    """A mistake or a broken world, said in one plain message: what, where, and what to do.

    A job or a parse that meets one prints the message without a traceback and exits with 1.
    """


# What the machine, not the code, is at fault for, and what the user can do.
_REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room in your quota",
    errno.EROFS: "make it writable, or choose another folder (`results`, DRAFTMILL_HOME)",
    errno.EACCES: "make it yours to use, or choose another folder (`results`, DRAFTMILL_HOME)",
    errno.EPERM: "make it yours to use, or choose another folder (`results`, DRAFTMILL_HOME)",
    errno.EIO: "the disk or its connection fails: look at the system's log",
    errno.ESTALE: "the shared folder was mounted anew or its server restarted",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "too many files are open on this machine",
    errno.ENOMEM: "free some memory",
}


@contextmanager
def plain_os_errors() -> Iterator[None]:
    """Turn an OSError that the machine is at fault for into a PlainError; any other passes."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if remedy is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        raise PlainError(
            f"{where}{error.strerror}; {remedy}. Nothing finished is lost: the same line then goes on"
        ) from error
