"""Crashes at every commit: the work is begun again and again, and killed a little later each time.

A forked process is killed, as by `kill -9`: nothing is flushed, no `finally` runs. A commit that
changes nothing, or the worker's own row alone, is no place to crash: it leaves the work as it was.
"""

import asyncio
import inspect
import os
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NoReturn

import msgspec

from milepost.app import App
from milepost.errors import Invalid
from milepost.faces import refuse_in_loop
from milepost.lifecycle import JobState
from milepost.store import catalog, failpoint, jobs, timers
from milepost.store.driver import Steps
from milepost.testing.fresh import StoreClock, fresh_store, fresh_store_async, made_on

Function = Callable[[], object]
Either = Callable[[], Awaitable[object] | object]

ROUNDS = 5_000
"""How often the clock is moved on, at most, before work counts as endless."""
MARGIN_SECONDS = 1.0
OWN = re.compile(
    r"(worker|election|queue|clock|retention|migration|tally)_.*"
    r"|schedule_(see|declare)|failure_(fold|hour_forget)|.*_sweep|hint_(clean|forget)"
)
"""Statements about workers or about work that is long over: no places to crash."""
HANDLERS = "job_hold"
"""Begins a transaction that a handler writes in; its other statements cannot be seen here."""
WRITES = re.compile(r'\b(INSERT INTO|DELETE FROM|(?<!FOR )(?<!KEY )UPDATE [\w"])')
TARGET_WRITES = (":insert", ":upsert", ":remove", ":restore")


def crash_everywhere(app: App, start: Function, check: Function) -> int:
    """Crash the work at every commit, one at a time, and check the result each time.

    `start` prepares and submits, on a fresh store. A worker then does the work in a process of its
    own, and is killed just before or just after one commit. The store's clock is moved on until the
    lease is over, a second worker does the rest, and `check` tells by its assertions whether all is
    well. That is repeated for each commit, after a first time without a crash. Answers with how
    many crashes there were.
    """
    refuse_in_loop("crash_everywhere")
    _refuse_coroutines(start, check)
    on = made_on(app)
    for place in _places():
        with fresh_store(app, on):
            start()
            app.close()  # a connection must not be carried into another process
            where = _killed(app, place)
            with _told(where or place):
                finish(app)
                check()
        if place.number and where is None:
            return place.crashes_before
    raise AssertionError


async def crash_everywhere_async(app: App, start: Either, check: Either) -> int:
    """Crash the work at every commit; `start` and `check` may be asynchronous, and run here."""
    on = made_on(app)
    for place in _places():
        async with fresh_store_async(app, on):
            await _awaited(start)
            await app.close_async()
            where = await asyncio.to_thread(_killed, app, place)
            with _told(where or place):
                await asyncio.to_thread(finish, app)
                await _awaited(check)
        if place.number and where is None:
            return place.crashes_before
    raise AssertionError


async def _awaited(function: Either) -> None:
    result = function()
    if inspect.isawaitable(result):
        await result


def _refuse_coroutines(*functions: Function) -> None:
    for function in functions:
        if inspect.iscoroutinefunction(function):
            raise Invalid(
                f"{function.__name__} is asynchronous: await crash_everywhere_async() instead"
            )


class CrashPoint(msgspec.Struct, frozen=True):
    """Where the crash comes: on one side of a commit; nowhere when its number is zero."""

    number: int = 0
    side: str = "before"

    def __str__(self) -> str:
        return f"a crash {self.side} commit {self.number}" if self.number else "no crash at all"

    @property
    def crashes_before(self) -> int:
        """How many places come before this one."""
        return 2 * (self.number - 1) + (self.side == "after")


def _places() -> Iterator[CrashPoint]:
    yield CrashPoint()
    yield from (CrashPoint(number, side) for number in count(1) for side in ("before", "after"))


@contextmanager
def _told(where: object) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"milepost: found after {where}")
        raise


# The work, to its end


def finish(app: App) -> None:
    """Work until there is nothing left that time could bring, moving the store's clock on."""
    clock = StoreClock(app)
    for turn in range(ROUNDS):
        pause = app.client.run(_next, lease=app.settings.lease)
        if pause is not None:
            clock.advance(pause)
        elif turn:
            return
        app.drain()
    raise AssertionError(f"there was still work to do after the clock was moved {ROUNDS} times")


def _next(*, lease: float) -> Steps[float | None]:
    """Tell how far the clock must be moved for something to happen; None when nothing waits."""
    due = yield from timers.next_due()
    counted = yield from jobs.counts()
    # No worker is alive now, so RUNNING jobs belong to a dead one.
    lost = any(states.get(JobState.RUNNING) for states in counted.values())
    times = [*([due] if due is not None else []), *([lease + MARGIN_SECONDS] if lost else [])]
    return max(0.0, min(times)) if times else None


# The process that is killed


def _killed(app: App, place: CrashPoint) -> str | None:
    """Do the work in a process that dies at the place; None if the work ended before."""
    if not hasattr(os, "fork"):
        raise Invalid("crash_everywhere needs a system with fork(), such as Linux or macOS")
    with tempfile.NamedTemporaryFile(prefix="milepost-") as file:
        with warnings.catch_warnings():
            # Python warns of threads; the child uses nothing of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _work_and_die(app, place, Path(file.name))
        code = _exit_code(pid)
        text = Path(file.name).read_text(encoding="utf-8")
    if code == failpoint.EXIT_CODE:
        return text
    if code:
        raise RuntimeError(f"the worker ended with {code} before its crash\n{text}")
    return None


def _exit_code(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise


def _work_and_die(app: App, place: CrashPoint, file: Path) -> NoReturn:
    try:
        with failpoint.watched(_Watch(app.client.url.dialect, place, file)):
            finish(app)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 - nothing of the parent's must run here
        file.write_text(traceback.format_exc(), encoding="utf-8")
        os._exit(1)
    os._exit(0)


_changed: ContextVar[tuple[str, ...]] = ContextVar("milepost_changed", default=())
"""The statements that changed something in the transaction of this thread or task."""
_number: ContextVar[int] = ContextVar("milepost_number", default=0)


class _Watch:
    """Counts the commits that matter, and dies at the place."""

    def __init__(self, dialect: str, place: CrashPoint, file: Path) -> None:
        self._dialect = dialect
        self._place = place
        self._file = file
        self._seen = 0
        self._lock = Lock()

    def __call__(self, point: str, rows: Sequence[Any]) -> None:
        """See a fail point pass."""
        side, _, name = point.partition(":")
        if name == "commit":
            self._commit(side)
        elif side == "after" and (name == HANDLERS or _matters(name, self._dialect, bool(rows))):
            _changed.set((*_changed.get(), name))

    def _commit(self, side: str) -> None:
        if side == "before":
            _number.set(self._next() if _changed.get() else 0)
        if self._place.number and CrashPoint(_number.get(), side) == self._place:
            names = ", ".join(dict.fromkeys(_changed.get()))
            self._file.write_text(f"{self._place} ({names})", encoding="utf-8")
            failpoint.leave()
        if side == "after":
            _changed.set(())

    def _next(self) -> int:
        with self._lock:
            self._seen += 1
            return self._seen


@cache
def _matters(name: str, dialect: str, answered: bool) -> bool:  # noqa: FBT001 - a key of the cache
    """Tell whether a statement changed something of the work."""
    if ":" in name:  # on a table of the user's: it carries its own text
        return name.endswith(TARGET_WRITES)
    text = catalog.query(name, dialect).text
    silent = "RETURNING" not in text and not catalog.query(name, dialect).packed
    return not OWN.fullmatch(name) and bool(WRITES.search(text)) and (answered or silent)
