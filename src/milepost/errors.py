"""Every error Milepost raises, in one tree.

MilepostError
├── Invalid            a declaration, a setting or an input is wrong
├── NotFound           no such job, run, worker or queue
├── Unavailable        the store cannot be reached or used now
│   ├── AccessRefused    the server refuses the login, or has no such database
│   └── SchemaMismatch   its schema is older, newer or altered; or it was moved away
├── QueueFull          as many jobs wait in the queue as may
├── IllegalMove        the lifecycle does not allow this move
├── LeaseLost          the job now belongs to another attempt
├── JobFailed          the awaited job ended FAILED or CANCELLED
├── NotFinished        the job has no result yet
└── WaitTimeout        the awaited job or run did not end in time

A message says what happened, to which id, and what to do. None repeats a payload or a password.
"""


class MilepostError(Exception):
    """The root of every error that Milepost raises."""


class Invalid(MilepostError):  # noqa: N818 - the public name says what the input is
    """A declaration, a setting or an input is wrong."""


class NotFound(MilepostError):  # noqa: N818 - public name
    """No such job, run, worker or queue."""


class Unavailable(MilepostError):  # noqa: N818 - public name
    """The store cannot be reached or used now."""


class AccessRefused(Unavailable):
    """The database server refuses the login, has no such database, or the role lacks a right.

    `right` is what the database said of a missing right.
    """

    def __init__(self, message: str, *, right: str | None = None) -> None:
        super().__init__(message)
        self.right = right


class SchemaMismatch(Unavailable):
    """The store's schema is older, newer or altered; or it was moved to another database."""


class QueueFull(MilepostError):  # noqa: N818 - public name
    """As many jobs wait in the queue as may; nothing was stored. `retry_after` is in seconds."""

    retry_after = 5.0

    def __init__(self, message: str, *, queue: str = "") -> None:
        super().__init__(message)
        self.queue = queue


class IllegalMove(MilepostError):  # noqa: N818 - public name
    """The lifecycle does not allow this move."""


class LeaseLost(MilepostError):  # noqa: N818 - public name
    """The job now belongs to another attempt; nothing was written."""


class JobFailed(MilepostError):  # noqa: N818 - public name
    """The awaited job ended FAILED or CANCELLED."""


class NotFinished(MilepostError):  # noqa: N818 - public name
    """The job has no result yet."""


class WaitTimeout(MilepostError):  # noqa: N818 - public name
    """The awaited job or run did not end in time."""
