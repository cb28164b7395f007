"""An event loop for calls that come from outside of one, kept together with its connections.

A connection belongs to the loop that opened it. A loop for each call would open them anew, and a
server would start a process for each and plan every statement again: half of a short `drain`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from threading import Lock, Thread
from typing import Any, TypeVar

from milepost.faces import in_loop

T = TypeVar("T")


def new_loop() -> asyncio.AbstractEventLoop:
    """Make an event loop: uvloop's where it is installed, which takes a fifth off a short drain."""
    try:
        import uvloop  # noqa: PLC0415 - an extra
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class KeptLoop:
    """Runs coroutines one at a time; `close` is awaited in the loop before it ends."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self._close = close
        self._lock = Lock()
        self._runner: asyncio.Runner | None = None
        self._unwanted = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it here; while another thread does, in a loop that ends with it."""
        if not self._lock.acquire(blocking=False):
            return asyncio.run(self._and_close(work))
        try:
            # With a factory it does not become the thread's current loop, which is the program's.
            self._runner = self._runner or asyncio.Runner(loop_factory=new_loop)
            return self._runner.run(_with_its_tasks(work), context=copy_context())
        except BaseException:
            self._unwanted = True  # nobody knows in which state it left the connections
            raise
        finally:
            if self._unwanted:
                self._end()
            self._lock.release()

    def close(self) -> None:
        """Close the connections and the loop, now or when the call that runs there has ended."""
        self._unwanted = True
        if self._lock.acquire(blocking=False):
            try:
                self._end()
            finally:
                self._lock.release()

    def _end(self) -> None:
        self._unwanted = False
        runner, self._runner = self._runner, None
        if runner is None:
            return
        if in_loop():  # two loops cannot run in one thread
            ending = Thread(target=self._end_of, args=(runner,))
            ending.start()
            ending.join()
        else:
            self._end_of(runner)

    def _end_of(self, runner: asyncio.Runner) -> None:
        with runner:
            runner.run(_awaited(self._close))

    async def _and_close(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        finally:
            await self._close()


async def _awaited(close: Callable[[], Awaitable[None]]) -> None:
    await close()


async def _with_its_tasks(work: Coroutine[Any, Any, T]) -> T:
    """Await work; tasks that it left behind end with it, as they would with a loop of their own."""
    try:
        return await work
    finally:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        for outcome in await asyncio.gather(*left, return_exceptions=True):
            if isinstance(outcome, Exception):
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a task that was left behind failed", "exception": outcome}
                )
