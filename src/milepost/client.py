"""The way to a store: opened when first used, in either colour; submits share statements."""

import asyncio
import os
import time
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import islice
from threading import Lock
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, finalize

import msgspec
import uuid_utils

from milepost.address import StoreUrl
from milepost.codec import Codec
from milepost.config import Settings
from milepost.errors import AccessRefused, Invalid
from milepost.faces import Flow, Wait, faces, perform, perform_async
from milepost.hooks import HookEvent, Hooks
from milepost.kept_loop import KeptLoop
from milepost.records import NewJob
from milepost.store import creation, hints, queues, rules
from milepost.store.allow import check_allowed
from milepost.store.borrow import BorrowedConnection, Home, identity
from milepost.store.connect import open_async_driver, open_driver
from milepost.store.driver import AsyncDriver, Driver, Steps
from milepost.store.group import AsyncGroupCommit, GroupCommit, GroupSize
from milepost.store.lend import DAY_SECONDS, AsyncLender, Lender, LentConnection
from milepost.store.migrate import check, migrate, migrations, pending, set_up, tables
from milepost.store.seal import SealingDriver, through_codec

T = TypeVar("T")
D = TypeVar("D", Driver, AsyncDriver)
P = ParamSpec("P")

BOUNDS_SECONDS = 5.0
"""How long the bounds of queues are kept before they are read again."""
SUBMITS = GroupSize(1_000, weight=len)
"""So many jobs are stored by one statement."""
Submits = GroupCommit[Sequence[NewJob], list[str]]
AsyncSubmits = AsyncGroupCommit[Sequence[NewJob], list[str]]
ACTOR = "client"
_all: "WeakSet[Client]" = WeakSet()
_inherited: list[object] = []
"""Connections a forked process has from its parent; to close them would close the parent's."""


class Caller(msgspec.Struct, frozen=True):
    """The journal's actor, and the tenant of jobs and runs that are created.

    `trace` is the W3C trace context that they belong to.
    """

    actor: str = ACTOR
    tenant: str = ""
    trace: str | None = None


_PROGRAM = Caller()
_caller: ContextVar[Caller] = ContextVar("milepost_caller", default=_PROGRAM)


class Importing:
    """Whether this process only imports an app, to run its isolated jobs."""

    now = False

    @classmethod
    def refuse(cls, what: str) -> None:
        """Raise `Invalid` if it is: the program does that once, and not in each process."""
        if cls.now:
            raise Invalid(
                f"{what} at the top of a module that the process of an isolated job imports: put "
                'that under `if __name__ == "__main__":`'
            )


def caller() -> Caller:
    """Return the caller of this task or thread: the program itself, unless `acting` says else."""
    return _caller.get()


@contextmanager
def acting(actor: str, *, tenant: str = "", trace: str | None = None) -> Iterator[Caller]:
    """Act, in this task or thread, in the name of another."""
    known = _caller.set(Caller(actor, tenant, trace))
    try:
        yield _caller.get()
    finally:
        _caller.reset(known)


@contextmanager
def traced(trace: str) -> Iterator[None]:
    """Have what is created in this task or thread belong to a trace."""
    known = _caller.set(msgspec.structs.replace(_caller.get(), trace=trace))
    try:
        yield
    finally:
        _caller.reset(known)


def new_id() -> str:
    """Make a time-ordered id."""
    return str(uuid_utils.uuid7())


class Client:
    """The way to a store: opened when first used, in either colour, and set up if it is empty."""

    def __init__(
        self,
        url: StoreUrl,
        *,
        codec: Codec,
        settings: Settings,
        migrate_older: bool = False,
        create: bool = True,
        look: bool = False,
    ) -> None:
        """Take an address.

        Without `create` a store must be there already, with the schema it has; to `look`, which is
        for synchronous callers, its file stays untouched too.
        """
        self.codec = codec
        self._through = through_codec(codec)
        self.settings = settings
        self._migrate_older = migrate_older
        self._create = create and not look
        self._look = look
        self.declared_bounds: dict[str, int | None] = {}
        self.declared_transports: dict[str, str] = {}
        self.declared_rules: rules.Declared = {}
        self.hooks = Hooks()
        self.channel: str | None = None
        """The channel of jobs and runs that name none."""
        self._begin()
        self.move_to(url)
        _all.add(self)

    def _begin(self) -> None:
        self._lock = Lock()
        self._bounds: Mapping[str, int] = {}
        self._bounds_due = 0.0
        self._submits, self._async_submits = self._group(), self._async_group()
        self._by_key: WeakValueDictionary[str, Submits] = WeakValueDictionary()
        self._async_by_key: WeakValueDictionary[str, AsyncSubmits] = WeakValueDictionary()

    def move_to(self, url: StoreUrl) -> None:
        """Use another store from now on; connections to the one before are to be closed."""
        self.url = url
        self._rules_told: rules.Declared = {}
        self._driver: Driver | None = None
        self._known_home: Home | None = None
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncDriver] = WeakKeyDictionary()
        self._lender = Lender(url, self.settings.limits)
        self._lenders: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncLender] = (
            WeakKeyDictionary()
        )
        self._kept_loop = KeptLoop(partial(_close_in_loop, self._async, self._lenders))
        finalize(self, self._kept_loop.close)

    def leave_to_parent(self) -> None:
        """Open everything anew: two processes that talk over one connection garble each other."""
        _inherited.append((self._driver, self._async, self._lender, self._lenders, self._kept_loop))
        self._begin()
        self.move_to(self.url)

    @property
    def loops(self) -> list[asyncio.AbstractEventLoop]:
        """The event loops in which something is open."""
        return list({*self._async, *self._lenders})

    @property
    def driver(self) -> Driver:
        """The synchronous way, opened and checked once."""
        if self._driver is None:
            with self._lock:
                if self._driver is None:
                    opened = self._opened()
                    self._declare_transports(opened)
                    self._driver = self._passing(opened)
        return self._driver

    def _declare_transports(self, driver: Driver) -> None:
        """Say which queues are on a broker, before the first job of this program is created.

        A role that may not is no worker's: the workers say it when they start.
        """
        if self._create and self.declared_transports:
            with suppress(AccessRefused):
                driver.run(hints.declare, self.declared_transports)

    def tell_rules(self) -> Flow[None]:
        """Say which limits there are, before the first job under one of them is created."""
        declared = dict(self.declared_rules)
        if self._create and declared != self._rules_told:
            with suppress(AccessRefused):
                yield from self.flow(rules.declare, declared)
            self._rules_told = declared

    def _passing(self, driver: D) -> D:
        return driver if self._through is None else cast("D", SealingDriver(driver, self._through))

    def through(self, operation: Callable[P, Steps[T]]) -> Callable[P, Steps[T]]:
        """Have an operation on a borrowed connection pass the codec."""
        return operation if self._through is None else self._through(operation)

    def _opened(self) -> Driver:
        if not self._create:
            # Read first: a file that is no store must not be touched.
            driver = self._checked(open_driver(self.url, look=True, limits=self.settings.limits))
            if self._look or not driver.can.file:
                return driver
            driver.close()
        limits = self.settings.limits
        return self._checked(open_driver(self.url, create=self._create, limits=limits))

    def _checked(self, driver: Driver) -> Driver:
        """Set up an empty store, if it may be; raise if the store is not of this version."""
        try:
            missing = pending(driver) if self._create else []
            fresh = len(missing) == len(migrations(driver.dialect))
            # Next to the tables of others nothing is created unasked.
            if missing and (self._migrate_older or (fresh and not tables(driver))):
                migrate(driver)
            check(driver, self.url)
        except BaseException:
            driver.close()
            raise
        return driver

    def _home(self) -> Flow[Home]:
        """Tell which database it is: a borrowed connection must be in the same."""
        if not self.url.can.file:
            # Not in the caller's transaction: others that declare would wait for it (L-14).
            yield from self.tell_rules()
        if self._known_home is None:
            check_allowed(self.url)
            # A file is not asked: a caller that is writing would wait for itself.
            is_file = self.url.can.file
            name = (
                os.path.realpath(self.url.target) if is_file else (yield from self.flow(identity))
            )
            self._known_home = Home(name, self.url.schema)
        return self._known_home

    home, home_async = faces(_home)

    def set_up_within(self, borrowed: BorrowedConnection) -> None:
        """Set up a SQLite file that is no store yet, for a caller that submits on a connection.

        The file is the caller's until it commits, so it is set up in its transaction, and with it
        undone; without a transaction in one of ours. Nothing of the caller's is committed.
        """
        if not borrowed.in_transaction:
            _ = self.driver
            return
        home = Home(schema=self.url.schema)
        borrowed.run(home, set_up, borrowed, self.url, asked=self._migrate_older)

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a store operation."""
        return self.driver.run(operation, *args, **kwargs)

    async def run_async(
        self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a store operation without blocking."""
        driver = await self.async_driver()
        return await driver.run(operation, *args, **kwargs)

    def flow(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        """Run a store operation, called or awaited as the operation that it is a part of."""
        result: T = yield Wait(self.run, self.run_async, (operation, *args), kwargs)
        return result

    async def async_driver(self) -> AsyncDriver:
        """Return the asynchronous way for the running loop, opened and checked once."""
        loop = asyncio.get_running_loop()
        if loop not in self._async:
            if self._driver is None:
                await asyncio.to_thread(lambda: self.driver)
            if loop not in self._async:  # another task may have come first
                self._async[loop] = self._passing(
                    open_async_driver(self.url, limits=self.settings.limits)
                )
        return self._async[loop]

    def run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from outside of any event loop; its connections are kept for the next."""
        return self._kept_loop.run(work)

    def lend(self, seconds: float = DAY_SECONDS) -> AbstractContextManager[LentConnection]:
        """Lend a connection in a transaction: committed at the end of the block, or undone."""
        check_allowed(self.url)
        return self._lender.lend(seconds, self._through)

    @asynccontextmanager
    async def lend_async(self, seconds: float = DAY_SECONDS) -> AsyncIterator[LentConnection]:
        """Lend a connection in a transaction: committed at the end of the block, or undone."""
        async with self._async_lender().lend(seconds, self._through) as lent:
            yield lent

    async def call_async(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function that may wait, for the store or anything else, in a thread."""
        return await self._async_lender().call(function, *args, **kwargs)

    def _async_lender(self) -> AsyncLender:
        loop = asyncio.get_running_loop()
        check_allowed(self.url)
        return self._lenders.get(loop) or self._lenders.setdefault(
            loop, AsyncLender(self.url, self.settings.limits)
        )

    def submitting(
        self, kind: str, body: Flow[T], ended: Callable[[T], dict[str, Any]], **fields: Any
    ) -> Flow[T]:
        """Create jobs or a run as hooks see it; `ended` tells the fields known at the end.

        The body begins after the hooks, so that new jobs belong to the trace that a hook begins.
        """
        if not self.hooks.at["submit"]:
            return body
        by = caller()
        event = HookEvent(point="submit", kind=kind, tenant=by.tenant, trace=by.trace, **fields)
        return self.hooks.watch(event, body, lambda made: {"outcome": "done", **ended(made)})

    def create(self, new: Sequence[NewJob]) -> list[str]:
        """Store jobs, or raise `QueueFull`; callers at the same time share a statement."""
        Importing.refuse("a job is submitted")
        if self.declared_rules != self._rules_told:
            perform(self.tell_rules())
        if self.may_be_full:
            perform(self._refuse_full(new))
        if (key := self._key_of(new)) is None:
            return self._submits.run(new)
        return self._by_key.setdefault(key, self._group()).run(new)

    async def create_async(self, new: Sequence[NewJob]) -> list[str]:
        """Store jobs, or raise `QueueFull`; callers at the same time share a statement."""
        Importing.refuse("a job is submitted")
        if self.declared_rules != self._rules_told:
            await perform_async(self.tell_rules())
        if self.may_be_full:
            await perform_async(self._refuse_full(new))
        if (key := self._key_of(new)) is None:
            return await self._async_submits.run(new)
        return await self._async_by_key.setdefault(key, self._async_group()).run(new)

    def _key_of(self, new: Sequence[NewJob]) -> str | None:
        """Tell the key for which a submit may wait until another's transaction has ended.

        Only submits with the same one wait with it. A file has one writer, and no such locks.
        """
        key = new[0].unique_key
        return None if key is None or self.url.can.file else key

    @property
    def may_be_full(self) -> bool:
        """Whether a queue may have a bound."""
        known = bool(self._bounds or self.declared_bounds)
        return known or time.monotonic() >= self._bounds_due

    def _refuse_full(self, new: Sequence[NewJob]) -> Flow[None]:
        # Before they share a statement: jobs that do not fit stop no others.
        if self._bounds_are_due():
            self._bounds = yield from self.flow(queues.bounds)
        bounds = self._known_bounds()
        if bounds and any(job.template.queue in bounds for job in new):
            yield from self.flow(creation.refuse_full, new, bounds)

    def create_in_bounds(self, new: Sequence[NewJob]) -> Steps[list[str]]:
        """Store jobs in a transaction that is open, or raise `QueueFull`."""
        if self.url.can.file and self.declared_rules != self._rules_told:
            # Its only writer may be this transaction. Undone with it, they are told by the next.
            yield from rules.declare(self.declared_rules)
        yield from self.refuse_full(new)
        return (yield from creation.create(new))

    def refuse_full(self, new: Sequence[NewJob]) -> Steps[None]:
        """Raise `QueueFull` if jobs do not fit into their queues, in a transaction that is open."""
        yield from self._read_bounds()
        yield from creation.refuse_full(new, self._known_bounds())

    def refuse_more(self, counts: Mapping[str, int]) -> Steps[None]:
        """Raise `QueueFull` if so many more jobs do not fit into their queues."""
        yield from self._read_bounds()
        yield from creation.refuse_more(counts, self._known_bounds())

    def room(self, queue: str) -> Steps[int | None]:
        """Tell how many more jobs may wait in a queue; None: any number."""
        yield from self._read_bounds()
        most = self._known_bounds().get(queue)
        return None if most is None else (yield from creation.room(queue, most))

    def _read_bounds(self) -> Steps[None]:
        if self._bounds_are_due():
            self._bounds = yield from queues.bounds()

    def _bounds_are_due(self) -> bool:
        """Tell whether to read how many jobs may wait in each queue; one of many callers does."""
        now = time.monotonic()
        if now < self._bounds_due:
            return False
        self._bounds_due = now + BOUNDS_SECONDS
        return True

    def _known_bounds(self) -> dict[str, int]:
        # The store's word is the newest; it was read up to `BOUNDS_SECONDS` ago.
        known = {**self.declared_bounds, **self._bounds}
        return {name: most for name, most in known.items() if most is not None}

    def _group(self) -> Submits:
        return GroupCommit(self._create_together, size=SUBMITS)

    def _async_group(self) -> AsyncSubmits:
        write, ready = self._create_together_async, self._open_async
        return AsyncGroupCommit(write, size=SUBMITS, ready=ready)

    def _create_together(self, submits: list[Sequence[NewJob]]) -> list[list[str]]:
        ids = iter(self.run(creation.create, [job for new in submits for job in new]))
        return [list(islice(ids, len(new))) for new in submits]

    async def _open_async(self) -> None:
        await self.async_driver()

    async def _create_together_async(self, submits: list[Sequence[NewJob]]) -> list[list[str]]:
        jobs = [job for new in submits for job in new]
        ids = iter(await self.run_async(creation.create, jobs))
        return [list(islice(ids, len(new))) for new in submits]

    def close(self) -> None:
        """Close the synchronous way; `close_async` closes that of an event loop."""
        self._kept_loop.close()
        self._lender.close()
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    async def close_async(self) -> None:
        """Close everything that the running loop opened."""
        await _close_in_loop(self._async, self._lenders)


async def _close_in_loop(
    drivers: MutableMapping[asyncio.AbstractEventLoop, AsyncDriver],
    lenders: MutableMapping[asyncio.AbstractEventLoop, AsyncLender],
) -> None:
    """Close everything that the running loop opened."""
    loop = asyncio.get_running_loop()
    lender = lenders.pop(loop, None)
    if lender is not None:
        await lender.close()
    driver = drivers.pop(loop, None)
    if driver is not None:
        await driver.close()


def _forked() -> None:
    for client in list(_all):
        client.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
