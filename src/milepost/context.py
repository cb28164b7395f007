"""Context: the running attempt, as its handler holds it."""

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from numbers import Real
from typing import Any, Literal, ParamSpec, TypeVar, overload

from milepost.client import Client
from milepost.codec import check_text
from milepost.durable import Durable, StepCall, is_open
from milepost.errors import Invalid
from milepost.faces import Flow, faces, in_loop, perform, perform_async, refuse_in_loop
from milepost.lines import LineBuffer, new_line
from milepost.outcome import LogLine, Outcome
from milepost.policy import Cancelled, storable
from milepost.records import Claim
from milepost.store import durable
from milepost.store.borrow import Home, borrow
from milepost.store.durable import AttemptProgress
from milepost.telemetry import job_log, whole_text

P = ParamSpec("P")
R = TypeVar("R")

PROGRESS_SECONDS = 1.0
"""How often an attempt's progress is written at most; the worker writes the reports in between."""
TEXT_LIMIT = 1_000
MOST = 1e300
"""Beyond it an amount is a mistake, and a sum of such would be more than a database can store."""

running: ContextVar["Context | None"] = ContextVar("milepost_context", default=None)


class _Parts:
    """Parts that most handlers never use, made when first used."""

    __slots__ = ("durable", "lines", "log", "progress", "usage", "written_at")

    def __init__(self) -> None:
        self.usage: dict[str, float] = {}
        # One place that is filled and emptied in one stroke: the worker's thread is another.
        self.progress: deque[AttemptProgress] = deque(maxlen=1)
        self.written_at = -math.inf
        self.durable: Durable | None = None
        self.log: Any = None
        self.lines = LineBuffer()


class Context:
    """The attempt that is running: its id, its durable state, and whether it should stop."""

    __slots__ = (
        "_client",
        "_made",
        "claim",
        "error",
        "link",
        "outcome_if_interrupted",
        "reason",
        "trace",
    )

    def __init__(self, claim: Claim, client: Client | None = None) -> None:
        self.claim = claim
        self.reason: str | None = None
        self.outcome_if_interrupted: Outcome | None = None
        """Its outcome if it is ended from outside now; None: another attempt follows."""
        self.error: BaseException | None = None
        """The error that ended it, where a hook is to see it."""
        self.link: str | None = None
        """The trace context of the failed attempt before, where a hook is to see it."""
        self.trace: str | None = None
        """The trace context that a hook has begun for the attempt."""
        self._client = client
        self._made: _Parts | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.claim.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return self.claim.attempt

    @property
    def fence(self) -> int:
        """The number that grows with every claim of this job."""
        return self.claim.fence

    @property
    def idempotency_key(self) -> str:
        """A key that is the same in every attempt, for effects elsewhere (F8).

        A rerun goes on under the key of the first job of its chain; a fresh one has its own.
        """
        return self.claim.origin_id or self.claim.id

    @property
    def log(self) -> Any:
        """A logger of structlog that names the job and the attempt in every line."""
        if self._parts.log is None:
            claim = self.claim
            self._parts.log = job_log(
                self.keep_line,
                job_id=claim.id,
                kind=claim.kind,
                attempt=claim.attempt,
                fence=claim.fence,
            )
        return self._parts.log

    # Stopping

    @property
    def cancelled(self) -> bool:
        """Whether the job was asked to stop."""
        return self.reason is not None

    def check(self) -> None:
        """Raise `Cancelled` if the job was asked to stop."""
        if self.cancelled:
            raise Cancelled(self.reason)

    def ask_to_stop(self, reason: str) -> None:
        """Tell the handler to stop; the worker calls this."""
        self.reason = reason

    # Usage and progress

    def count(self, name: str, amount: float = 1) -> None:
        """Add to the usage of this attempt; recorded with its outcome, also a failure."""
        check_text(name, what="the name of a count")
        if not _is_number(amount) or not -MOST <= amount <= MOST:
            raise Invalid(f"count({name!r}, …): an amount is a number, and not endless")
        usage = self._parts.usage
        usage[name] = usage.get(name, 0) + float(amount)

    @property
    def usage(self) -> dict[str, float] | None:
        """The counts by name; None if nothing was counted."""
        return None if self._made is None else self._made.usage or None

    def progress(self, share: float, text: str | None = None) -> None:
        """Report progress, from 0 to 1, with a text; shown as `job.progress`.

        Call it as often as you like: it is written at most once a second, and never makes a
        handler wait that runs in an event loop.
        """
        self._note(share, text)
        if not in_loop() and self._may_write():
            self.write_progress()

    async def progress_async(self, share: float, text: str | None = None) -> None:
        """Report progress, from 0 to 1, with a text; shown as `job.progress`."""
        self._note(share, text)
        if self._may_write():
            await self.write_progress_async()

    def _note(self, share: float, text: str | None) -> None:
        if not _is_number(share) or not 0 <= share <= 1:
            raise Invalid(f"progress({share!r}): a share from 0 to 1 is expected, such as 4 / 10")
        told = None if text is None else storable(str(text))[:TEXT_LIMIT]
        self._parts.progress.append(AttemptProgress(self.claim, float(share), told))

    def _may_write(self) -> bool:
        # A SQLite store has one writer: inside a transaction the handler would wait for itself.
        return time.monotonic() - self._parts.written_at >= PROGRESS_SECONDS and not is_open()

    @property
    def has_progress(self) -> bool:
        """Whether progress was reported that is not written yet."""
        return self._made is not None and bool(self._made.progress)

    def take_progress(self) -> AttemptProgress | None:
        """Return progress that is not written yet, once; the worker calls this."""
        if self._made is None:
            return None
        try:
            progress = self._made.progress.pop()
        except IndexError:
            return None
        self._made.written_at = time.monotonic()
        return progress

    def _write_progress(self) -> Flow[None]:
        """Write the progress, or keep it for the next time."""
        progress = self.take_progress()
        if progress is not None:
            try:
                yield from self._store.flow(durable.write_progress, [progress])
            except Exception:  # noqa: BLE001 - a progress that is not written must not end a handler
                if not self._parts.progress:  # a later one is newer
                    self._parts.progress.append(progress)

    write_progress, write_progress_async = faces(_write_progress)

    # Lines that it logs

    def keep_line(self, at: float, level: str, logger: str, text: str) -> None:
        """Keep a line with the job."""
        self._parts.lines.add(new_line(at, level, self.claim.attempt, logger, text))

    def take_lines(self) -> tuple[LogLine, ...]:
        """Return lines that are not written yet, once, without secrets; the worker calls this."""
        return self._made.lines.take() if self._made is not None and self._made.lines else ()

    def put_back(self, lines: Sequence[LogLine]) -> None:
        """Take lines again that could not be written."""
        self._parts.lines.put_back(lines)

    def relay(
        self,
        progress: tuple[float, str | None] | None,
        lines: Sequence[LogLine],
        usage: dict[str, float] | None,
    ) -> None:
        """Take what an attempt in a process of its own has told; the worker calls this."""
        if progress is not None:
            self._parts.progress.append(AttemptProgress(self.claim, *progress))
        for line in lines:
            self._parts.lines.add(line)
        if usage is not None:
            self._parts.usage = usage

    # Durable state

    @overload
    def step(
        self,
        name: str,
        function: Callable[..., R],
        /,
        *args: Any,
        transaction: Literal[True],
        **kwargs: Any,
    ) -> R: ...
    @overload
    def step(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    def step(  # type: ignore[misc]
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        transaction: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call a function once: its result is recorded, and given back to later attempts.

        With `transaction=True` it gets a connection to the store as its first argument; what it
        writes there and the step's record commit together, if the lease is still held.
        """
        return self._durable.step(StepCall(name, function, args, kwargs), transaction=transaction)

    @overload
    async def step_async(
        self,
        name: str,
        function: Callable[..., Awaitable[R]],
        /,
        *args: Any,
        transaction: Literal[True],
        **kwargs: Any,
    ) -> R: ...
    @overload
    async def step_async(
        self,
        name: str,
        function: Callable[..., R],
        /,
        *args: Any,
        transaction: Literal[True],
        **kwargs: Any,
    ) -> R: ...
    @overload
    async def step_async(
        self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    @overload
    async def step_async(
        self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...
    async def step_async(  # type: ignore[misc]
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *args: Any,
        transaction: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Await a function once: its result is recorded, and given back to later attempts.

        A plain function is called in a thread, and gets a connection for plain code.
        """
        step = StepCall(name, function, args, kwargs)
        return await self._durable.step_async(step, transaction=transaction)

    def transaction(self) -> AbstractContextManager[Any]:
        """Lend a connection to the store; the block commits only if the lease is still held."""
        return self._durable.transaction()

    def transaction_async(self) -> AbstractAsyncContextManager[Any]:
        """Lend a connection to the store; the block commits only if the lease is still held."""
        return self._durable.transaction_async()

    @property
    def cursor(self) -> Any:
        """The value saved last, by this attempt or one before it, read once; None at first."""
        if not self._durable.has_cursor:
            refuse_in_loop("cursor")
        return perform(self._durable.cursor())

    async def cursor_async(self) -> Any:
        """Read the value saved last, by this attempt or one before it; None at first."""
        return await perform_async(self._durable.cursor())

    def _save(self, cursor: Any) -> Flow[None]:
        """Save how far it came; inside `transaction()` it commits with the block's writes."""
        return self._durable.save(cursor)

    save, save_async = faces(_save, blocks=True)

    def _signals(self) -> Flow[list[Any]]:
        """Read the data of each `job.signal(data)`, in order; None for a signal without data.

        They are used up when the attempt ends well or asks to be called later; one that fails
        or is lost leaves them to the next.
        """
        return self._durable.signals()

    signals, signals_async = faces(_signals, blocks=True)

    def guard(self, connection: Any) -> None:
        """Refuse, in another database, a transaction of an attempt that was overtaken.

        Call it first in a transaction of your own: it raises `LeaseLost` if a newer attempt was
        there, and from the commit on no older one gets through.
        """
        borrowed = borrow(connection)
        if borrowed.is_async:
            raise Invalid("this connection is asynchronous: await ctx.guard_async() instead")
        borrowed.run(Home(), durable.guard, self.claim)

    async def guard_async(self, connection: Any) -> None:
        """Refuse, in another database, a transaction of an attempt that was overtaken."""
        borrowed = borrow(connection)
        if not borrowed.is_async:
            raise Invalid("this connection is synchronous: call ctx.guard() instead")
        await borrowed.run_async(Home(), durable.guard, self.claim)

    # Made when first used

    @property
    def _parts(self) -> _Parts:
        if self._made is None:
            self._made = _Parts()
        return self._made

    @property
    def _store(self) -> Client:
        if self._client is None:
            raise Invalid("this context was made without a store: it keeps nothing")
        return self._client

    @property
    def _durable(self) -> Durable:
        if self._parts.durable is None:
            self._parts.durable = Durable(self.claim, self._store)
        return self._parts.durable


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def carry_job() -> None:
    """Have every record of `logging` name the job that logs it, and have the job keep its line.

    A record's fields are those of the program's formats; outside a job they are None. It is done
    when a record is made, before any handler of the program's sees it, and once a process.
    """
    usual = logging.getLogRecordFactory()
    if getattr(usual, "carries_job", False):
        return

    def made(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record, context = usual(*args, **kwargs), running.get()
        claim = None if context is None else context.claim
        record.milepost_job_id = None if claim is None else claim.id
        record.milepost_attempt = None if claim is None else claim.attempt
        record.milepost_kind = None if claim is None else claim.kind
        if context is not None:
            context.keep_line(record.created, record.levelname, record.name, whole_text(record))
        return record

    made.carries_job = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(made)


def current() -> Context:
    """Return the context of the job that is running here, however deep in the call."""
    context = running.get()
    if context is None:
        raise Invalid("no job is running here: current() works inside a handler only")
    return context
