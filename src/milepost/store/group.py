"""Group commit: callers at the same moment share a transaction.

Threads: the longest waiter becomes the leader and commits for everyone queued. Tasks: a task of its
own leads, so that a caller that is cancelled takes nobody along. A group that cannot be committed
is committed in halves, so that each caller hears of its own mistake only. An interrupt is the
leader's: the others hear that they may try again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from milepost.errors import Unavailable
from milepost.store.driver import is_away

Item = TypeVar("Item")
Answer = TypeVar("Answer")
W = TypeVar("W", "Waiter", "_Task")
MISSING = object()


class Refusal(msgspec.Struct, frozen=True):
    """In the place of an answer: an error that its caller alone hears of."""

    error: BaseException


class GroupSize(msgspec.Struct, frozen=True):
    """How much one transaction takes; an item that is larger goes alone."""

    most: int
    weight: Callable[[Any], int] = lambda _: 1
    kind: Callable[[Any], object] = lambda _: None
    """Items of different kinds do not share a transaction."""

    def take(self, waiting: deque[W], group: list[W]) -> None:
        """Add to a group those that waited longest, as far as they fit."""
        weight, kind_of = self.weight, self.kind
        room = self.most - sum(weight(waiter.item) for waiter in group)
        kind = kind_of((group or waiting)[0].item) if group or waiting else None
        while waiting and not waiting[0].is_exclusive:
            item = waiting[0].item
            room -= weight(item)
            if group and (room < 0 or kind_of(item) != kind):
                return
            group.append(waiting.popleft())


def _halves(group: list[W], error: Exception) -> list[list[W]]:
    """Split a group that could not be committed; not where that would change nothing."""
    half = len(group) // 2
    return [group[:half], group[half:]] if half and not is_away(error) else []


def _tell(group: Sequence["Waiter | _Task"], answers: Sequence[Any]) -> None:
    try:
        for waiter, answer in zip(group, answers, strict=True):
            waiter.tell(answer)
    except BaseException:
        # A caller that is told nothing would wait for ever.
        for waiter, answer in zip(group, answers, strict=True):
            waiter.tell(answer)
        raise


def _interrupt(group: Sequence["Waiter | _Task"]) -> None:
    error = Unavailable("the thread that was to commit this was interrupted; try again")
    _tell(group, [Refusal(error)] * len(group))


class Waiter:
    """A thread that waits until its item was committed, or it is to lead."""

    def __init__(self, item: Any = None, *, exclusive: bool = False) -> None:
        """Make one; an exclusive one shares with nobody."""
        self.item = item
        self.is_exclusive = exclusive
        self.answer: Any = MISSING
        self.leads = False
        self.called = False
        self._waits = Lock()
        self._waits.acquire()

    def wait(self) -> None:
        """Wait until it was told its answer, or leads."""
        self._waits.acquire()

    def wake(self) -> None:
        """Let it go on."""
        self.called = True
        self._waits.release()

    def tell(self, answer: Any) -> None:
        """Give it its answer, unless it has one; a leader does not wait for it."""
        if self.answer is MISSING:
            self.answer = answer
        if not (self.leads or self.called):
            self.wake()


class GroupCommit(Generic[Item, Answer]):
    """Threads that write at the same time share a transaction, first come, first served.

    A server, where there is one, leads instead: while there is work it never lets go, and no thread
    has to be woken, and to get the interpreter's lock, before the next transaction begins.
    """

    def __init__(
        self, write: Callable[[list[Item]], Sequence[Answer | Refusal]], *, size: GroupSize
    ) -> None:
        """Take the function that commits a group, and answers for each item."""
        self._write = write
        self._size = size
        self._mutex = Lock()
        self._taken = False
        self._waiting: deque[Waiter] = deque()
        self._server: Waiter | None = None

    def run(self, item: Item) -> Answer:
        """Have an item committed, perhaps together with others; answer, or raise its error."""
        if self.take():
            try:
                [answer] = self._write([item])
            finally:
                self.pass_on()
        else:
            waiter = Waiter(item)
            if self._wait(waiter):
                self._lead([waiter])
            answer = waiter.answer
        if isinstance(answer, Refusal):
            raise answer.error
        return answer

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Write alone, after everyone that came before; end the service."""
        self._wait(Waiter(exclusive=True))
        try:
            with self._mutex:
                server, self._server = self._server, None
            if server is not None:
                server.wake()
            yield
        finally:
            self.pass_on()

    def serve(self, name: str) -> Thread:
        """Start a thread that leads until another is `exclusive`."""
        server = self._server = Waiter()

        def lead() -> None:
            server.wait()
            while self._server is server:
                with suppress(BaseException):  # the callers were told
                    self._lead([])
                server.wait()

        thread = Thread(target=lead, name=name, daemon=True)
        thread.start()
        return thread

    def take(self) -> bool:
        """Become the leader if there is none."""
        with self._mutex:
            if self._taken:
                return False
            self._taken = True
            return True

    def pass_on(self) -> None:
        """Hand the lead to the longest waiter, or to the server."""
        with self._mutex:
            if not self._waiting:
                self._taken = False
                return
            leader = None if self._waiting[0].is_exclusive else self._server
            leader = leader or self._waiting.popleft()
        leader.leads = True
        leader.wake()

    def _lead(self, group: list[Waiter]) -> None:
        try:
            with self._mutex:
                self._size.take(self._waiting, group)
            self._commit(group)
        except BaseException:
            _interrupt(group)
            raise
        finally:
            self.pass_on()

    def _commit(self, group: list[Waiter]) -> None:
        try:
            answers = self._write([waiter.item for waiter in group])
        except Exception as error:  # noqa: BLE001 - told to the callers
            if halves := _halves(group, error):
                for half in halves:
                    self._commit(half)
                return
            answers = [Refusal(error)] * len(group)
        _tell(group, answers)

    def _wait(self, waiter: Waiter) -> bool:
        """Wait; answer whether it leads, and must pass on, or was told its answer."""
        with self._mutex:
            if not self._taken:
                self._taken = waiter.leads = True
                return True
            self._waiting.append(waiter)
        try:
            waiter.wait()
        except BaseException:
            self._leave(waiter)
            raise
        return waiter.leads

    def _leave(self, waiter: Waiter) -> None:
        with self._mutex:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                return
        # It was called meanwhile, to lead or with an answer: a leader must not vanish. And one that
        # was interrupted while it woke is called no second time.
        if not waiter.called:
            waiter.wait()
        if waiter.leads:
            self.pass_on()


class _Task:
    """A task that waits until its item was committed."""

    __slots__ = ("answer", "item")
    is_exclusive = False

    def __init__(self, item: Any, answer: asyncio.Future[Any]) -> None:
        self.item = item
        self.answer = answer

    def tell(self, answer: Any) -> None:
        if self.answer.done():
            return
        if isinstance(answer, Refusal):
            self.answer.set_exception(answer.error)
        else:
            self.answer.set_result(answer)


class _Line:
    """The tasks of one event loop that wait, and the one that leads."""

    def __init__(self) -> None:
        self.waiting: deque[_Task] = deque()
        self.leader: asyncio.Task[None] | None = None


async def _at_once() -> None:
    """Need nothing before a group is sent."""


class AsyncGroupCommit(Generic[Item, Answer]):
    """Tasks of an event loop that write at the same time share a transaction."""

    def __init__(
        self,
        write: Callable[[list[Item]], Awaitable[Sequence[Answer | Refusal]]],
        *,
        size: GroupSize,
        ready: Callable[[], Awaitable[object]] = _at_once,
    ) -> None:
        """Take the function that commits a group; `ready` is awaited before."""
        self._write = write
        self._size = size
        self._ready = ready
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    async def run(self, item: Item) -> Answer:
        """Have an item committed, perhaps together with others; answer, or raise its error."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _Line()
        task = _Task(item, loop.create_future())
        line.waiting.append(task)
        if line.leader is None or line.leader.done():
            line.leader = loop.create_task(self._lead(line))
        answer: Answer = await task.answer
        return answer

    async def _lead(self, line: _Line) -> None:
        group: list[_Task] = []
        try:
            # Those that come in the same turn of the loop come along.
            await asyncio.sleep(0)
            while line.waiting:
                group = []
                self._size.take(line.waiting, group)
                await self._commit(group)
        except BaseException:
            _interrupt([*group, *line.waiting])
            line.waiting.clear()
            raise
        finally:
            line.leader = None

    async def _commit(self, group: list[_Task]) -> None:
        try:
            await self._ready()
            # An item whose task was cancelled before it was sent must not be stored.
            group = [task for task in group if not task.answer.done()]
            answers = await self._write([task.item for task in group]) if group else []
        except Exception as error:  # noqa: BLE001 - told to the callers
            if halves := _halves(group, error):
                for half in halves:
                    await self._commit(half)
                return
            answers = [Refusal(error)] * len(group)
        _tell(group, answers)
