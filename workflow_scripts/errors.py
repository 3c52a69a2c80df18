"""The one error that a user is meant to read."""


class PlainError(Exception):
    """A mistake or a broken world, said in one plain message: what, where, and what to do.

    A job or a parse that meets one prints the message without a traceback and exits with 1.
    """
