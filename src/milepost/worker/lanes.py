"""Where handlers run: tasks for asynchronous ones, threads for the others.

A lane is a task, or a thread, that takes one waiting claim after the other: handing a job over
costs no task and no thread switch while there is more to do.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import ContextVar, copy_context
from typing import Any
from weakref import WeakSet

from milepost import outcome
from milepost.context import Context
from milepost.declare import Definition
from milepost.outcome import Outcome, Problem
from milepost.worker.execute import Executor, Interrupted, TimedOut, leave

TIMER_SECONDS = 10.0
"""A timer for every job would cost as much as running a small one; long timeouts are swept."""
TIMER_US = round(TIMER_SECONDS * 1_000_000)
SHORT_SECONDS = 0.005
"""Plain jobs that take less are claimed in batches; longer ones only as threads are free."""
QUICK_SECONDS = 0.0005
FEW = 2
"""So many threads do what is quick: more of them would only wait for the interpreter's lock."""
GATHER_SECONDS = 0.002
"""So long outcomes gather while jobs end in a row: to wake the loop for each would cost more."""
CLOSE_SECONDS = 0.5
PATIENCE_SECONDS = 0.005
"""So long nothing may end before quick jobs are taken for slow ones, and all threads are called."""


class Running:
    """One job in a lane."""

    __slots__ = (
        "active",
        "began",
        "claimed",
        "context",
        "definition",
        "ended",
        "stuck",
        "task",
        "timer",
    )

    def __init__(self, definition: Definition, context: Context) -> None:
        self.definition = definition
        self.context = context
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.claimed = time.monotonic()
        self.began: float | None = None
        self.active = False
        self.ended = False
        self.stuck = False

    @property
    def timeout(self) -> float | None:
        """How long one attempt may take, by the job's own row, or what is left of its time."""
        claim = self.context.claim
        own = None if claim.timeout_us is None else claim.timeout_us / 1e6
        if claim.remaining_us is None:
            return own
        left = self.left
        return left if own is None or left is None else min(own, left)

    @property
    def left(self) -> float | None:
        """How long after its beginning the whole job's time is over; None when it has no end."""
        remaining = self.context.claim.remaining_us
        if remaining is None:
            return None
        waited = (self.began or time.monotonic()) - self.claimed
        return max(0.0, remaining / 1e6 - waited)

    @property
    def asked(self) -> bool:
        """Whether its handler was asked to stop."""
        return self.context.reason is not None

    def overdue(self, now: float) -> bool:
        """Tell whether its time is over."""
        timeout = self.timeout
        return (
            not self.ended
            and self.began is not None
            and timeout is not None
            and now >= self.began + timeout
        )


Report = Callable[[Running, Outcome], None]


class _Lanes:
    """What both kinds of lanes share: how a job ends."""

    def __init__(
        self, executor: Executor, report: Report, *, may_start: Callable[[], bool]
    ) -> None:
        self._executor = executor
        self._report = report
        self._may_start = may_start
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Running] = deque()

    def _end(self, running: Running, result: Outcome) -> None:
        if running.ended:
            return
        running.ended = True
        if running.timer is not None:
            running.timer.cancel()
        self._report(running, result)

    def _unfit(self, running: Running) -> Outcome | None:
        """Say why a job that waited in its lane should not begin any more."""
        if running.context.reason is not None:
            return outcome.cancelled(running.context.reason)
        if not self._may_start():
            return outcome.released("the lease ran out before it began")
        if running.context.claim.remaining_us is None:
            return None
        return self._late(running) if running.left == 0 else None

    def _watch(self, running: Running, time_out: Callable[[Running], None]) -> None:
        """Have an attempt ended by a timer if its time is short; a sweep does the others."""
        claim = running.context.claim
        longest = claim.timeout_us
        if claim.remaining_us is None and longest is not None and longest > TIMER_US:
            return  # as most are: not worth a closer look
        timeout = running.timeout
        if timeout is not None and timeout <= TIMER_SECONDS and not running.ended:
            running.timer = self._loop.call_later(timeout, time_out, running)

    def _late(self, running: Running) -> Outcome:
        when = "before it began" if running.began is None else "while it ran"
        message = f"the job's deadline passed {when}"
        return outcome.expired(Problem(type="Deadline", message=message, code="timeout"))

    def _time_is_over(self, running: Running) -> Outcome:
        if running.left is not None and running.left == running.timeout:
            return self._late(running)
        error = TimedOut(f"the attempt took longer than its timeout of {running.timeout:g} s")
        return self._executor.judged(running.definition, running.context, error)


class AsyncLanes(_Lanes):
    """Tasks for asynchronous handlers."""

    def __init__(
        self, executor: Executor, report: Report, *, may_start: Callable[[], bool]
    ) -> None:
        super().__init__(executor, report, may_start=may_start)
        _all.add(self)
        self._lanes: set[asyncio.Task[None]] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._closing = False
        self.is_parents = False

    def leave_to_parent(self) -> None:
        """End this process when it comes back to the loop: a handler has forked it, and waits."""
        self.is_parents = True
        ready = getattr(self._loop, "_ready", None)
        if isinstance(ready, deque):  # before whatever else the parent's loop had to do
            ready.appendleft(asyncio.Handle(leave, (), self._loop))
            return
        with suppress(RuntimeError):
            self._loop.call_soon(leave)

    def start(self, jobs: list[Running]) -> None:
        """Take jobs; one lane wakes up, and wakes others when it begins."""
        self._waiting.extend(jobs)
        self._wake()

    def _wake(self) -> None:
        """Have one more lane look for work, soon."""
        while self._idle:
            rest = self._idle.popleft()
            if not rest.done():
                rest.set_result(None)
                return
        lane = self._loop.create_task(_Stepped(self, self._lane()), context=copy_context())
        self._lanes.add(lane)
        lane.add_done_callback(self._lane_ended)

    def _lane_ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        if self._waiting and not self._closing:
            self._wake()

    async def _lane(self) -> None:
        task = asyncio.current_task()
        variables = dict(copy_context())
        while True:
            # A handler that waits must not keep the others waiting; one that does not wait lets
            # this lane run everything, and those two find nothing to do.
            for _ in range(min(2, len(self._waiting) - 1)):
                self._wake()
            while self._waiting:
                running = self._waiting.popleft()
                if not running.ended:
                    result = self._unfit(running) or await self._called(running, task)
                    self._end(running, result)
                if self._closing:
                    return
                # A handler that left context variables behind, or a request to stop that it did
                # not heed, must not pass them on.
                if _changed(variables) or (task is not None and task.cancelling()):
                    return
            rest = self._loop.create_future()
            self._idle.append(rest)
            await rest

    async def _called(self, running: Running, task: asyncio.Task[None] | None) -> Outcome:
        running.task = task
        running.began = self._loop.time()
        running.active = True
        self._watch(running, self.time_out)
        try:
            return await self._executor.run_async(running.definition, running.context)
        except asyncio.CancelledError:
            if running.context.reason is not None:
                return outcome.cancelled(running.context.reason)
            if running.task is None or running.task.cancelling():
                raise  # the worker itself is being cancelled
            error = Interrupted("a task that the handler waited for was cancelled")
            return self._executor.judged(running.definition, running.context, error)
        finally:
            running.active = False

    def time_out(self, running: Running) -> None:
        """End an attempt whose time is over, and stop its handler."""
        if not running.ended:
            result = running.context.if_cut_off or self._time_is_over(running)
            self._end(running, result)
            self.stop_job(running, "timeout")

    def stop_job(self, running: Running, reason: str) -> None:
        """Ask a handler to stop: it sees `cancelled`, and a CancelledError where it waits."""
        running.context.ask_to_stop(reason)
        if running.active and running.task is not None:
            running.task.cancel()

    def give_back(self, running: Running, detail: str) -> None:
        """Release a job that has not ended, and stop it."""
        if not running.ended:
            self._end(running, running.context.if_cut_off or outcome.released(detail))
            self.stop_job(running, detail)

    async def close(self) -> None:
        """End every lane."""
        self._closing = True
        for lane in list(self._lanes):
            lane.cancel()
        if self._lanes:
            # A handler that heeds no request to stop is left behind: its job was given back.
            await asyncio.wait(self._lanes, timeout=CLOSE_SECONDS)


class _Stepped(Coroutine[Any, Any, None]):
    """A lane that goes no further than its next await in a process that a handler forked.

    Back in the loop a child would run whatever else the parent has ready there, and take events
    from the parent: they share what the loop waits on.
    """

    __slots__ = ("_body", "_lanes")

    def __init__(self, lanes: AsyncLanes, body: Coroutine[Any, Any, None]) -> None:
        self._lanes = lanes
        self._body = body

    def send(self, value: Any) -> Any:
        try:
            return self._body.send(value)
        finally:
            if self._lanes.is_parents:
                leave()

    def throw(self, *error: Any) -> Any:
        try:
            return self._body.throw(*error)
        finally:
            if self._lanes.is_parents:
                leave()

    def close(self) -> None:
        self._body.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._body.__await__()


_all: "WeakSet[AsyncLanes]" = WeakSet()


def _forked() -> None:
    for lanes in list(_all):
        lanes.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _changed(variables: dict[ContextVar[Any], Any]) -> bool:
    now = copy_context()
    if len(now) != len(variables):
        return True
    for variable, value in variables.items():  # noqa: SIM110 - once for every job
        if now.get(variable) is not value:
            return True
    return False


class ThreadLanes(_Lanes):
    """Threads for plain handlers, fed in batches; their outcomes come back in batches too."""

    def __init__(
        self,
        executor: Executor,
        report: Report,
        *,
        threads: int,
        may_start: Callable[[], bool],
    ) -> None:
        super().__init__(executor, report, may_start=may_start)
        self._most = threads
        self._wanted = threading.Semaphore(0)
        self._count = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._seconds = SHORT_SECONDS
        self._done: deque[tuple[Running, Outcome]] = deque()
        self._ended = 0
        self._flushing = False
        self._patient = False
        self._closing = False
        self._variables = copy_context()
        self.zombies = 0

    def room(self, held: int, slots: int) -> int:
        """Say how many more may be claimed: a batch while jobs are short, else free threads."""
        return (slots if self._seconds < SHORT_SECONDS else self._most) - held

    def start(self, jobs: list[Running]) -> None:
        """Take jobs; as many threads as are needed wake up."""
        if not jobs:
            return
        with self._count:
            self._waiting.extend(jobs)
            quick = self._seconds < QUICK_SECONDS
            enough = FEW - (self._threads - self._idle) if quick else len(jobs)
        self._call(min(len(jobs), enough))
        if quick and not self._patient:
            self._be_patient()

    def _call(self, wished: int) -> None:
        """Wake so many threads, or begin them."""
        if wished <= 0:
            return
        # Whoever is woken is counted as busy here, not when it wakes: two calls in a row must not
        # count on the same thread.
        with self._count:
            woken = min(wished, self._idle)
            self._idle -= woken
            new = self._room_for(wished - woken)
        if woken:
            self._wanted.release(woken)
        self._begin(new)

    def _be_patient(self) -> None:
        self._patient = True
        self._loop.call_later(PATIENCE_SECONDS, self._look_again, self._ended)

    def _look_again(self, ended: int) -> None:
        """Call everybody if nothing has ended since: a few threads are not enough then."""
        self._patient = False
        if not self._waiting or self._closing:
            return
        if self._ended == ended:
            self._call(len(self._waiting))
        self._be_patient()

    def _room_for(self, wished: int) -> int:
        new = max(0, min(wished, self._most - self._threads))
        self._threads += new
        return new

    def _begin(self, threads: int) -> None:
        for _ in range(threads):
            threading.Thread(target=self._lane, name="milepost-lane", daemon=True).start()

    def _lane(self) -> None:
        while self._awaited():
            while True:
                try:
                    running = self._waiting.popleft()
                except IndexError:
                    break
                if not running.ended:
                    self._hand_back(running, self._outcome(running))
                if running.stuck:
                    return  # another thread has taken this one's place

    def _awaited(self) -> bool:
        """Rest until there is work; False when there will be none any more."""
        with self._count:
            if self._closing:
                return False
            if self._waiting:
                return True
            self._idle += 1
        self._wanted.acquire()
        return not self._closing

    def _outcome(self, running: Running) -> Outcome:
        unfit = self._unfit(running)
        if unfit is not None:
            return unfit
        running.began = time.monotonic()
        running.active = True
        timeout = running.timeout
        if timeout is not None and timeout <= TIMER_SECONDS:
            self._tell(self._watch, running, self.time_out)
        # A copy of its own for each: no job sees another's context variables.
        variables: Variables = self._variables.copy()
        result = variables.run(self._executor.run, running.definition, running.context)
        with self._count:
            running.active = False
            self.zombies -= running.stuck
        # A rough running mean; threads may overwrite each other's, which does no harm.
        self._seconds += (time.monotonic() - running.began - self._seconds) / 16
        return result

    def _hand_back(self, running: Running, result: Outcome) -> None:
        self._done.append((running, result))
        self._ended += 1  # roughly: it only has to change
        if not self._flushing:
            self._flushing = True
            self._tell(self._flush)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        # A thread that was fenced off may outlive the loop; nobody waits for it any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _flush(self) -> None:
        """Report what has ended; and look again soon while there is something: nobody is woken."""
        self._flushing = False
        found = bool(self._done)
        while self._done:
            self._end(*self._done.popleft())
        if found and not self._flushing:
            self._flushing = True
            self._loop.call_later(GATHER_SECONDS, self._flush)

    def time_out(self, running: Running) -> None:
        """Fence a job off; its thread cannot be killed and becomes a zombie."""
        if running.ended:
            return
        self._end(running, self._time_is_over(running))
        running.context.ask_to_stop("timeout")
        with self._count:
            if not running.active:
                return
            running.stuck = True
            self.zombies += 1
            self._threads -= 1
            new = self._room_for(min(1, len(self._waiting)))
        self._begin(new)

    def stop_job(self, running: Running, reason: str) -> None:
        """Ask a handler to stop: it sees `cancelled` when it looks."""
        running.context.ask_to_stop(reason)

    def give_back(self, running: Running, detail: str) -> None:
        """Release a job that has not ended; its thread runs on, fenced off."""
        if not running.ended:
            running.context.ask_to_stop(detail)
            self._end(running, outcome.released(detail))

    def close(self) -> None:
        """Let the threads that rest end; one that is stuck dies with the process."""
        with self._count:
            self._closing = True
        self._wanted.release(self._most + self.zombies)
