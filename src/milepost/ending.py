"""How a worker's process ends: at a signal, and in time, whatever handlers do (H-38)."""

import asyncio
import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, Self

from milepost.telemetry import Log

log = Log("milepost.worker")

LAST_SECONDS = 4.5
"""How long after the grace time a process may take to give back and say goodbye."""
LATE = "worker ended: a handler, or a thread that it left, did not stop in time"


_heard: set[int] = set()
"""The signals that come to a worker of this process."""


class Ending:
    """Ends the process when its time is over, from a thread: the event loop may be blocked.

    Threads and tasks that handlers left behind and that heed no cancellation would otherwise keep
    it for ever. A process that has ended holds no lease: its jobs are lost, and run again.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._until: float | None = None
        self._code = 1
        self._off = False
        self._known: set[threading.Thread] = set()

    def __enter__(self) -> Self:
        """Begin to watch; remember which threads are none of the handlers'."""
        self._known = set(threading.enumerate())
        self._ear, self._mouth = os.pipe()
        threading.Thread(target=self._watch, name="milepost-ending", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Call it off, unless a thread that a handler has left keeps the process from ending."""
        self.hurry()
        left = set(threading.enumerate()) - self._known
        if not any(thread.is_alive() and not thread.daemon for thread in left):
            self._off = self._until is None
            self._leave_to_the_end()
        self._tell()

    def _leave_to_the_end(self) -> None:
        """Rest while the program goes on, and watch again when its interpreter ends.

        That waits for pools, processes and hooks of `atexit` that handlers have left.
        """
        if (until := self._until) is None:
            return
        self._until = None

        def at_the_end() -> None:
            now = time.monotonic()
            self._until = until if now < until else now + LAST_SECONDS
            self._tell()

        # Pools are waited for before `atexit`, in an order of their own: ours comes first.
        register = getattr(threading, "_register_atexit", atexit.register)
        with suppress(RuntimeError):  # it is ending already
            register(at_the_end)

    def begin(self) -> None:
        """Let the grace time begin; a second time it is over. Safe in a signal's handler."""
        again = self._until is not None
        self._until = time.monotonic() + LAST_SECONDS + (0.0 if again else self._grace)
        self._tell()

    def hurry(self) -> None:
        """Wait a last time for threads that remain: the worker itself is done."""
        self._code = 0
        if self._until is not None:
            self._until = min(self._until, time.monotonic() + LAST_SECONDS)

    def _tell(self) -> None:
        # No lock is taken here: the thread that a signal interrupts may hold it.
        os.write(self._mouth, b"!")

    def _watch(self) -> None:
        while not self._off:
            left = None if self._until is None else self._until - time.monotonic()
            if left is not None and left <= 0:
                self._end()
            if select.select([self._ear], [], [], left)[0]:
                os.read(self._ear, 64)
        os.close(self._ear)
        os.close(self._mouth)

    def _end(self) -> None:
        log.warning(LATE, grace=self._grace)
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(self._code)


@contextmanager
def on_signals(
    numbers: Iterable[int], react: Callable[[], None], *, first: Callable[[], None] | None = None
) -> Iterator[None]:
    """Have the running loop react to signals; `first` is called at once, however busy that is.

    A loop's own way with signals would leave its descriptor to forked children, whose signals then
    come to us.
    """
    loop = asyncio.get_running_loop()

    def hear(_number: int, _frame: FrameType | None) -> None:
        if first is not None:
            first()
        with suppress(RuntimeError):  # the loop is closed: nothing is left to be told
            loop.call_soon_threadsafe(react)

    former: dict[int, Any] = {}
    for number in numbers:
        with suppress(ValueError):  # only the main thread may listen
            former[number] = signal.signal(number, hear)
            _heard.add(number)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
            _heard.discard(number)


def _mask(how: int) -> None:
    signal.pthread_sigmask(how, _heard)


def _forked() -> None:
    """Have signals end a forked process as they end any other: they are not for the worker."""
    if not _heard:
        return
    signal.set_wakeup_fd(-1)  # some loops have one, whose reader is the parent
    for number in _heard:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)
    _mask(signal.SIG_UNBLOCK)
    _heard.clear()


if hasattr(os, "register_at_fork"):
    # A signal that reached a child before it has its own way with them would be lost.
    hold, let_in = partial(_mask, signal.SIG_BLOCK), partial(_mask, signal.SIG_UNBLOCK)
    os.register_at_fork(before=hold, after_in_parent=let_in, after_in_child=_forked)
