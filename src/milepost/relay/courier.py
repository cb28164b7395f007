"""What takes an event to where its channel leads, and how it says that it did not get there."""

import asyncio
from typing import Protocol

from milepost.errors import MilepostError
from milepost.relay.message import Event


class Undelivered(MilepostError):  # noqa: N818 - says what became of the message
    """A delivery that failed, and counts; it is tried again, not before `after` seconds."""

    def __init__(self, text: str, *, after: float | None = None) -> None:
        super().__init__(text)
        self.after = after


class Gone(MilepostError):  # noqa: N818 - says what became of the receiver
    """The receiver wants no more: the channel stops until somebody starts it again."""


def cancelled() -> bool:
    """Tell whether this task was asked to end.

    A library may swallow that, and answer with an error of its own; who loops asks.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Courier(Protocol):
    """One way out.

    `deliver` returns when the other side has the event for good. It raises `Undelivered` when the
    message was not taken, `Unavailable` when nobody could be reached at all (which counts against
    no message), `Gone` when the other side wants no more.
    """

    kind: str
    target: str

    async def deliver(self, event: Event) -> None:
        """Take an event there."""
        ...

    async def close(self) -> None:
        """Give back what was opened."""
        ...
