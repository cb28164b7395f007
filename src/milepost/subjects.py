"""Jobs and runs alike: found by their id, read again, and awaited."""

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import msgspec
import uuid_utils

from milepost.client import Client
from milepost.codec import shorten
from milepost.errors import Invalid, NotFound, WaitTimeout
from milepost.faces import Flow, faces, pause, stack_level
from milepost.history import Entry
from milepost.machine import Machine
from milepost.records import Job, Run
from milepost.store import journal, workers
from milepost.store.blockers import explain_any
from milepost.store.driver import Steps
from milepost.store.explain import Explanation
from milepost.store.job_facts import can_take

Record = TypeVar("Record", Job, Run)
H = TypeVar("H")

WAIT_FIRST = 0.005
WAIT_LONGEST = 0.25
WARN_AFTER = 2.0
DIGITS = 32
PAGE_MOST = 1_000_000
LIKE_NAMED = 4
"""How many ids are named when a beginning of one fits several."""


class Subject(ABC, Generic[Record]):
    """A job or a run as it stood when it was last read."""

    what: ClassVar[str]
    machine: ClassVar[Machine]

    def __init__(self, client: Client, subject_id: str, record: Record | None) -> None:
        self._client = client
        self._record: Record | None = record
        self.id = subject_id

    def __repr__(self) -> str:
        return f"<{self.what} {self.id} {self._record.state if self._record else 'not read yet'}>"

    @property
    def record(self) -> Record:
        """The row as it was read, read now if it never was."""
        if self._record is None:
            self.refresh()
        return cast("Record", self._record)

    @property
    def kind(self) -> str:
        """The name it was declared by."""
        return self.record.kind

    @property
    def done(self) -> bool:
        """Whether it is final."""
        return self.record.state in self.machine.terminal

    @property
    def created_at(self) -> datetime:
        """When it was created."""
        return self.record.created_at

    @property
    def started_at(self) -> datetime | None:
        """When it, or the first of its jobs, was first claimed."""
        return self.record.started_at

    @property
    def finished_at(self) -> datetime | None:
        """When it became final."""
        return self.record.finished_at

    @property
    def history(self) -> list[Entry]:
        """Every move, in order, read now."""
        return self._client.run(journal.history, self.id, machine=self.what)

    async def history_async(self) -> list[Entry]:
        """Read every move, in order."""
        return await self._client.run_async(journal.history, self.id, machine=self.what)

    def _refresh(self) -> Flow[Self]:
        """Read it again."""
        yield from self._client.flow(self.read)
        return self

    refresh, refresh_async = faces(_refresh)

    def _wait(self, timeout: float | None = None) -> Flow[Self]:
        """Return once it is final, or raise `WaitTimeout`."""
        for look in patience(timeout):
            if (yield from self._client.flow(self._ended)):
                return self
            yield from self._rest(look)
        raise self._too_late(timeout)

    wait, wait_async = faces(_wait, blocks=True)

    def _explain(self) -> Flow[Explanation]:
        """Say why it is, or is not, running now; `.text` is for people, `.next` what follows."""
        return self._client.flow(explain_any, self.what, self.id)

    explain, explain_async = faces(_explain)

    def _rest(self, look: "Pause") -> Flow[None]:
        """Wait before the next look, and warn once if there is no worker for it."""
        if look.warn and not (yield from self._client.flow(self._served)):
            warnings.warn(
                f"{self.what} {self.id} waits and no live worker could take it; start one with "
                "`milepost worker APP` or call app.drain()",
                RuntimeWarning,
                stacklevel=stack_level(),
            )
        yield from pause(look.seconds)

    def _too_late(self, timeout: float | None) -> WaitTimeout:
        state = self._record.state if self._record else "not visible yet"
        return WaitTimeout(f"{self.what} {self.id} is {state} after {timeout:g} s")

    def _decoded(self, data: bytes | None, type_: Any) -> Any:
        """Decode stored bytes as the declared type, or as plain JSON if that does not fit now."""
        if data is None:
            return None
        try:
            return self._client.codec.decode(data, type_)
        except Invalid:
            return self._client.codec.decode(data)

    @abstractmethod
    def read(self) -> Steps[None]:
        """Read the row, and keep it."""

    @abstractmethod
    def _ended(self) -> Steps[bool]:
        """Look whether it is final, and keep the row."""

    @abstractmethod
    def _served(self) -> Steps[bool]:
        """Tell whether a live worker could take its queued work."""


class Finder(ABC, Generic[H]):
    """Looks jobs or runs up."""

    what: ClassVar[str]

    def __init__(self, client: Client, type_of: Callable[[str, int], Any]) -> None:
        self._client = client
        self._type_of = type_of

    def _get(self, subject_id: str) -> Flow[H]:
        """Return a handle, or raise `NotFound`."""
        return self._client.flow(self._read, checked_id(subject_id, what=self.what))

    get, get_async = faces(_get)

    def _find(self, beginning: str) -> Flow[H]:
        """Return the only one whose id begins so, or raise `NotFound` or `Invalid`."""
        return self._client.flow(self._only, beginning)

    find, find_async = faces(_find)

    def _only(self, beginning: str) -> Steps[H]:
        low, high = between(beginning, what=self.what)
        found = yield from self._within(low, high, most=LIKE_NAMED)
        return (yield from self._read(only(beginning, found, what=self.what)))

    @abstractmethod
    def _read(self, subject_id: str) -> Steps[H]:
        """Read one, or raise `NotFound`."""

    @abstractmethod
    def _within(self, low: str, high: str, *, most: int) -> Steps[Sequence[str]]:
        """Name the first ids between these two."""


def check_page(limit: int, *, most: int = PAGE_MOST) -> int:
    """Refuse a number of rows that no list may have; databases would answer each its own way."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= most:
        raise Invalid(f"limit={shorten(limit)} must be a whole number between 1 and {most:,}")
    return limit


def page(
    states: type[StrEnum], *, state: str | None, kind: str | None, cursor: str | None, limit: int
) -> dict[str, Any]:
    """Check the filter of a page of jobs or runs, or raise `Invalid`."""
    # A plain text: drivers need not know what a member of an enum is.
    word = None if state is None else str(state).upper()
    if word is not None and word not in states.__members__:
        raise Invalid(f"state={state!r}: expected one of {', '.join(states.__members__)}")
    check_page(limit)
    try:
        before = None if cursor is None else checked_id(cursor)
    except NotFound as error:
        raise Invalid(f"cursor={cursor!r} is not the id of a job or a run") from error
    return {"state": word, "kind": kind, "before": before, "most": limit}


def checked_id(text: str, *, what: str = "job") -> str:
    """Return an id in the store's spelling, or raise `NotFound`: no job has any other."""
    try:
        return str(uuid_utils.UUID(str(text)))
    except ValueError as error:
        raise NotFound(f"there is no {what} {text!r}") from error


def between(beginning: str, *, what: str = "job") -> tuple[str, str]:
    """Return the lowest and the highest id that begin so."""
    digits = str(beginning).replace("-", "").lower()
    if not digits or len(digits) > DIGITS or set(digits) - set("0123456789abcdef"):
        raise NotFound(f"there is no {what} {beginning!r}")
    return checked_id(digits.ljust(DIGITS, "0")), checked_id(digits.ljust(DIGITS, "f"))


def only(beginning: str, found: Sequence[str], *, what: str = "job", names: str = "ids") -> str:
    """Return the one id that begins so, or raise `NotFound` or `Invalid`."""
    if not found:
        raise NotFound(f"there is no {what} {beginning!r}")
    if len(found) > 1:
        more = ", …" if len(found) == LIKE_NAMED else ""
        raise Invalid(
            f"{beginning!r} begins several {names}: {', '.join(found)}{more}; give more of it"
        )
    return found[0]


class Pause(msgspec.Struct, frozen=True):
    """How long to wait before the next look, and whether to warn if there is no worker."""

    seconds: float
    warn: bool


def patience(timeout: float | None) -> Iterator[Pause]:
    """Yield ever longer pauses until the time is over."""
    if timeout is not None and (not isinstance(timeout, int | float) or math.isnan(timeout)):
        raise Invalid(f"timeout={timeout!r} must be a number of seconds, or None")
    begun = time.monotonic()
    warned = False
    seconds = WAIT_FIRST
    while True:
        waited = time.monotonic() - begun
        left = None if timeout is None else timeout - waited
        warn = not warned and waited > WARN_AFTER
        warned |= warn
        yield Pause(seconds if left is None else max(0.0, min(seconds, left)), warn)
        if left is not None and left <= 0:
            return
        seconds = min(seconds * 1.5, WAIT_LONGEST)


def has_worker(job: Job | None) -> Steps[bool]:
    """Tell whether a live worker could take the job."""
    if job is None:  # not committed yet: no worker could know
        return True
    live = yield from workers.listing()
    return any(can_take(worker, job) for worker in live)
