"""The seam between operations and databases. Internal: it may change with any release.

An operation is a generator that yields calls of named queries and is sent back the rows. It knows
neither the driver nor its colour; a driver runs it inside one transaction. A call that is `alone`
may commit by itself when nothing came before it, which saves two round trips.
"""

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec

from milepost.address import Capabilities
from milepost.errors import Unavailable
from milepost.store import failpoint
from milepost.store.catalog import Statement

T = TypeVar("T")
P = ParamSpec("P")
Rows = list[Any]


class Call(msgspec.Struct, frozen=True):
    """Run the named query, or a statement of its own, with these parameters."""

    name: str | Statement
    parameters: Mapping[str, Any] = {}
    alone: bool = False
    whole: bool = False
    """Whether it is alone where the statements that follow it have nothing to do."""
    seconds: float = 0
    """How much longer than others it may take: it moves many rows, or waits for another program."""
    as_stored: bool = False
    """Whether bytes are wanted as the codec left them."""
    steps: "Callable[[], Steps[Callable[[], Rows]]] | None" = None
    """The steps that it takes, at once, where there is one writer: they may be begun again.

    Their answer is decoded when the writer is free for others.
    """


class StatementTimeout(Unavailable):
    """The server ended a statement that waited too long for a lock, or took too long.

    The store is there: a smaller statement, or the same one a little later, may succeed.
    """


class StatementFailed(Unavailable):
    """The store ended a statement with an error that waiting alone does not change.

    The store is there: other values may pass.
    """


def is_away(error: Exception) -> bool:
    """Tell whether the store is away: then it does not help to try a batch in parts."""
    there = (StatementTimeout, StatementFailed)
    return isinstance(error, Unavailable) and not isinstance(error, there)


Steps = Generator[Call, Rows, T]
"""An operation: yields calls, is sent rows, returns its result."""


def drive(steps: Steps[T], execute: Callable[[Call], Rows], call: Call | None = None) -> T:
    """Run an operation over something that executes its calls, from one that it has yielded."""
    try:
        call = next(steps) if call is None else call
        while True:
            if failpoint.active or failpoint.watchers:
                call = _announced(call)
            rows = execute(call)
            if failpoint.active or failpoint.watchers:
                failpoint.reach(f"after:{call.name}", rows)
            call = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


async def drive_async(steps: Steps[T], execute: Callable[[Call], Awaitable[Rows]]) -> T:
    """Run an operation over something that executes its calls, without blocking."""
    try:
        call = next(steps)
        while True:
            if failpoint.active or failpoint.watchers:
                call = _announced(call)
            rows = await execute(call)
            if failpoint.active or failpoint.watchers:
                failpoint.reach(f"after:{call.name}", rows)
            call = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


def _announced(call: Call) -> Call:
    """Reach the point before a statement; watched, it has a commit that a crash can precede."""
    failpoint.reach(f"before:{call.name}")
    return msgspec.structs.replace(call, alone=False, whole=False) if failpoint.watchers else call


class Reader(Protocol):
    """Reads of one snapshot."""

    def rows(self, call: Call) -> Rows:
        """Read a small answer whole."""
        ...

    def stream(self, call: Call, *, size: int) -> Iterator[Any]:
        """Read a large answer row by row, fetched `size` at a time."""
        ...


class Driver(Protocol):
    """A synchronous way to one database; any thread may use it."""

    dialect: str
    can: Capabilities

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction; again, from its start, if it lost a deadlock."""
        ...

    def snapshot(self) -> AbstractContextManager[Reader]:
        """Read several answers that belong together."""
        ...

    def script(self, text: str) -> None:
        """Run many statements as they stand, in a transaction of their own or the caller's."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class AsyncDriver(Protocol):
    """The asynchronous way to one database."""

    dialect: str
    can: Capabilities

    async def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction; again, from its start, if it lost a deadlock."""
        ...

    def use(self) -> dict[str, int]:
        """Tell how many of its connections are busy, and how many are idle."""
        ...

    async def close(self) -> None:
        """Give everything back."""
        ...
