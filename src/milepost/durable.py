"""The durable state of an attempt: steps, transactions under its fence, a cursor, signals.

A step begins only while the lease is held and is recorded only while it is held. Between its effect
and its record a crash can still fall: then it is done again, unless both are one transaction.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import msgspec

from milepost.client import Client
from milepost.codec import Unreadable, check_text, hints, limited
from milepost.errors import Invalid, Unavailable
from milepost.faces import Flow, Wait, pause, perform, perform_async, refuse_in_loop
from milepost.hooks import HookEvent
from milepost.records import Claim
from milepost.store import durable, jobs
from milepost.store.driver import Steps
from milepost.store.durable import SavedCursor
from milepost.store.lend import DAY_SECONDS, LentConnection

T = TypeVar("T")
P = ParamSpec("P")

PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 1.0)
"""How long an unreachable store is waited for when a finished effect must be recorded."""

NAME_LIMIT = 200

_lent: ContextVar[LentConnection | None] = ContextVar("milepost_lent", default=None)


def is_open() -> bool:
    """Tell whether a transaction under a job's fence is open here."""
    return _lent.get() is not None


class StepCall(msgspec.Struct, frozen=True):
    """A function to be called once, and the name that its result is recorded under."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Durable:
    """The steps, the transactions, the cursor and the signals of one attempt."""

    def __init__(self, claim: Claim, client: Client) -> None:
        self._claim = claim
        self._client = client
        self._names: dict[str, object] = {}
        self._saved: SavedCursor | None = None

    # Steps

    def step(self, step: StepCall, *, transaction: bool) -> Any:
        """Do a step once, or give back its recorded result."""
        refuse_in_loop("step")
        if inspect.iscoroutinefunction(step.function):
            raise Invalid(
                f"step {step.name!r} is an async function: await ctx.step_async() instead"
            )
        return perform(self._step(step, transaction=transaction))

    async def step_async(self, step: StepCall, *, transaction: bool) -> Any:
        """Do a step once, or give back its recorded result; a plain function has a thread."""
        if not inspect.iscoroutinefunction(step.function):
            return await self._client.call_async(self.step, step, transaction=transaction)
        return await perform_async(self._step(step, transaction=transaction))

    def _step(self, step: StepCall, *, transaction: bool) -> Flow[Any]:
        body = self._step_once(step, transaction=transaction)
        hooks = self._client.hooks
        if hooks.at["step"]:
            event = HookEvent.of("step", self._claim, name=step.name)
            body = hooks.watch(event, body, lambda told: {"outcome": told[0]})
        _, value = yield from body
        return value

    def _step_once(self, step: StepCall, *, transaction: bool) -> Flow[tuple[str, Any]]:
        """Do a step, or recall its result; answer which of the two it was, too."""
        with self._named(step.name):
            done, data = yield from self._client.flow(durable.look, self._claim, step.name)
            if done:
                return "recalled", self._decoded(step, data)
            if transaction:
                within = Wait(self._step_within, self._step_within_async, (step,))
                return "done", (yield within)
            value = yield Wait(step.function, step.function, step.args, step.kwargs)
            data, value = self._fitting(step, value)
            yield from self._insist(durable.record, self._claim, step.name, data)
            return "done", value

    def _step_within(self, step: StepCall) -> Any:
        with self._lend() as lent:
            return perform(self._step_on(lent, step))

    async def _step_within_async(self, step: StepCall) -> Any:
        async with self._lend_async() as lent:
            return await perform_async(self._step_on(lent, step))

    def _step_on(self, lent: LentConnection, step: StepCall) -> Flow[Any]:
        """Do a step, and record it in the same transaction."""
        args = (lent.connection, *step.args)
        value = yield Wait(step.function, step.function, args, step.kwargs)
        data, value = self._fitting(step, value)
        yield Wait(lent.run, lent.run_async, (durable.record, self._claim, step.name, data))
        return value

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """Let a name be used once in an attempt; a step that failed may be tried again."""
        if len(check_text(name, what="the name of a step", most=4 * NAME_LIMIT)) > NAME_LIMIT:
            raise Invalid(f"the name of a step has at most {NAME_LIMIT} characters: {name[:40]!r}…")
        if is_open():
            raise Invalid(
                f"step {name!r} was begun inside a transaction, which may yet be undone: do it "
                "before or after, or make one step with transaction=True of both"
            )
        mine = object()
        if self._names.setdefault(name, mine) is not mine:
            raise Invalid(
                f"step {name!r} came twice in this attempt: each step needs a name of its own, "
                "the same in every attempt (in a loop: f'page-{number}')"
            )
        try:
            yield
        except BaseException:
            del self._names[name]
            raise

    def _fitting(self, step: StepCall, value: Any) -> tuple[bytes | None, Any]:
        """Encode a result, and read it back: the first attempt sees what later ones see."""
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise Invalid(
                f"step {step.name!r} returned an awaitable: give the async function itself"
            )
        data = self._encoded(value, what=f"the result of step {step.name!r}")
        return data, self._decoded(step, data)

    def _encoded(self, value: Any, *, what: str) -> bytes | None:
        if value is None:
            return None
        try:
            data = self._client.codec.encode(value)
        except Invalid as error:
            raise Invalid(f"{what}: {error}") from error
        return limited(data, most=self._client.settings.max_payload, what=what)

    def _decoded(self, step: StepCall, data: bytes | None) -> Any:
        if data is None:
            return None
        decode = self._client.codec.decode
        try:
            return decode(data, hints(step.function).get("return", Any))
        except Unreadable:
            # The effect is done: a type that cannot be decoded must not fail its job now.
            return decode(data)
        except Invalid as error:
            raise Invalid(
                f"the result of step {step.name!r} does not fit what its function says it returns: "
                f"{error}"
            ) from error

    # Transactions

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Lend a connection; its writes commit only if the lease is still held."""
        refuse_in_loop("transaction")
        with self._lend() as lent:
            yield lent.connection
            lent.run(durable.hold, self._claim)

    @asynccontextmanager
    async def transaction_async(self) -> AsyncIterator[Any]:
        """Lend a connection; its writes commit only if the lease is still held."""
        async with self._lend_async() as lent:
            yield lent.connection
            await lent.run_async(durable.hold, self._claim)

    @contextmanager
    def _lend(self) -> Iterator[LentConnection]:
        with self._alone(), self._client.lend(self._seconds) as lent, _opened(lent):
            yield lent

    @asynccontextmanager
    async def _lend_async(self) -> AsyncIterator[LentConnection]:
        with self._alone():
            async with self._client.lend_async(self._seconds) as lent:
                with _opened(lent):
                    yield lent

    @property
    def _seconds(self) -> float:
        """How long a transaction may take: as long as its attempt."""
        bounds = (self._claim.timeout_us, self._claim.remaining_us)
        return min((bound / 1e6 for bound in bounds if bound is not None), default=DAY_SECONDS)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if is_open():
            raise Invalid("a transaction of this job is open here already: use its connection")
        try:
            yield
        except BaseException:
            self._saved = None  # a save inside may be undone: the cursor is read again
            raise

    # The cursor

    def cursor(self) -> Flow[Any]:
        """Read the cursor that was saved last, by this attempt or one before it."""
        if self._saved is None:
            self._saved = yield from self._run(durable.cursor, self._claim)
        return None if self._saved.data is None else self._client.codec.decode(self._saved.data)

    @property
    def has_cursor(self) -> bool:
        """Whether the cursor is known here: then it is not read again."""
        return self._saved is not None

    def save(self, cursor: Any) -> Flow[None]:
        """Move the cursor on; in an open transaction it moves with its commit."""
        data = self._encoded(cursor, what=f"the cursor of job {self._claim.id}")
        # If anything fails from here on, the cursor is read again.
        after, self._saved = self._saved, None
        if after is None:
            after = yield from self._run(durable.cursor, self._claim)
        self._saved = yield from self._run(durable.save, self._claim, data, after=after)

    # Signals

    def signals(self) -> Flow[list[Any]]:
        """Read the signals that no attempt before this one has used, in the order they came."""
        signals = yield from self._run(jobs.signals, self._claim)
        decode = self._client.codec.decode
        return [None if data is None else decode(data) for data in signals]

    # The way to the store

    def _run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        """Run an operation in the open transaction, if there is one."""
        lent = _lent.get()
        if lent is None:
            return (yield from self._insist(operation, *args, **kwargs))
        result: T = yield Wait(lent.run, lent.run_async, (operation, *args), kwargs)
        return result

    def _insist(
        self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs
    ) -> Flow[T]:
        """Run an operation that may run twice; wait for a store that is away for a moment (F3)."""
        for seconds in PAUSES:
            try:
                return (yield from self._client.flow(operation, *args, **kwargs))
            except Unavailable:
                yield from pause(seconds)
        return (yield from self._client.flow(operation, *args, **kwargs))


@contextmanager
def _opened(lent: LentConnection) -> Iterator[None]:
    token = _lent.set(lent)
    try:
        yield
    finally:
        _lent.reset(token)
