"""Where handlers run: tasks for asynchronous ones, threads for the others.

A lane is a task, or a thread, that takes one waiting claim after the other: handing a job over
costs no task and no thread switch while there is more to do.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context

from milepost import outcome
from milepost.context import Context
from milepost.declare import Definition
from milepost.outcome import Outcome, Problem
from milepost.worker.execute import Executor, TimedOut

__all__ = ["AsyncLanes", "Running", "ThreadLanes"]


class Running:
    """One job in a lane."""

    __slots__ = ("context", "definition", "ended", "overdue", "task", "timer")

    def __init__(self, definition: Definition, context: Context) -> None:
        self.definition = definition
        self.context = context
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.overdue: float | None = None
        self.ended = False

    def watch(self, loop: asyncio.AbstractEventLoop, time_out: "Callable[[Running], None]") -> None:
        """Have the attempt ended when its time is over: by a timer if soon, else by a sweep."""
        timeout = self.timeout
        if timeout is None:
            return
        if timeout <= TIMER_SECONDS:
            self.timer = loop.call_later(timeout, time_out, self)
        else:
            self.overdue = loop.time() + timeout

    @property
    def timeout(self) -> float | None:
        """How long one attempt may take, by the job's own row, or what is left of its time."""
        claim = self.context.claim
        limits = [us / 1e6 for us in (claim.timeout_us, claim.remaining_us) if us is not None]
        return max(0.0, min(limits)) if limits else None


Report = Callable[[Running, Outcome], None]

TIMER_SECONDS = 10.0
"""A timer for every job would cost as much as running a small one; long timeouts are swept."""


def _timed_out(running: Running, executor: Executor) -> Outcome:
    claim = running.context.claim
    left = claim.remaining_us
    if left is not None and (claim.timeout_us is None or left <= claim.timeout_us):
        message = "the job's deadline passed while it ran"
        return outcome.expired(Problem(type="Deadline", message=message, code="timeout"))
    error = TimedOut(f"the attempt took longer than its timeout of {running.timeout:g} s")
    return executor.judged(running.definition, running.context, error)


class AsyncLanes:
    """Tasks for asynchronous handlers."""

    def __init__(
        self, executor: Executor, report: Report, *, may_start: Callable[[], bool]
    ) -> None:
        self._executor = executor
        self._report = report
        self._may_start = may_start
        self._waiting: deque[Running] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._loop = asyncio.get_running_loop()

    def start(self, jobs: list[Running]) -> None:
        """Take jobs; as many lanes as are needed wake up."""
        self._waiting.extend(jobs)
        for _ in jobs:
            if not self._wake():
                lane = self._loop.create_task(self._lane(), context=copy_context())
                self._lanes.add(lane)
                lane.add_done_callback(self._lanes.discard)

    def _wake(self) -> bool:
        while self._idle:
            future = self._idle.popleft()
            if not future.done():
                future.set_result(None)
                return True
        return False

    async def _lane(self) -> None:
        task = asyncio.current_task()
        clean = copy_context()
        while True:
            while self._waiting:
                running = self._waiting.popleft()
                running.task = task
                await self._run(running)
                # A handler that left context variables behind must not pass them on.
                if len(copy_context()) != len(clean):
                    return
            rest = self._loop.create_future()
            self._idle.append(rest)
            await rest

    async def _run(self, running: Running) -> None:
        if running.ended:
            return
        if not self._may_start():
            self._end(running, outcome.released("the lease ran out before it began"))
            return
        running.watch(self._loop, self.time_out)
        try:
            result = await self._executor.run_async(running.definition, running.context)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not running.ended and running.context.reason is None:
                raise
            if task is not None:
                task.uncancel()
            result = outcome.cancelled(running.context.reason)
        self._end(running, result)

    def time_out(self, running: Running) -> None:
        """End an attempt whose time is over."""
        if running.ended:
            return
        result = _timed_out(running, self._executor)
        running.context.ask_to_stop("timeout")
        self._end(running, result)
        if running.task is not None:
            running.task.cancel()

    def _end(self, running: Running, result: Outcome) -> None:
        if running.ended:
            return
        running.ended = True
        if running.timer is not None:
            running.timer.cancel()
        self._report(running, result)

    def stop_job(self, running: Running, reason: str) -> None:
        """Ask a handler to stop: it sees `cancelled`, and a CancelledError where it waits."""
        running.context.ask_to_stop(reason)
        if running.task is not None and not running.ended:
            running.task.cancel()

    def give_back(self, running: Running, detail: str) -> None:
        """Release a job that is still running, and stop it."""
        self._end(running, outcome.released(detail))
        self.stop_job(running, detail)
        if running.task is not None:
            running.task.cancel()

    async def close(self) -> None:
        """End every lane."""
        for lane in list(self._lanes):
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)


class ThreadLanes:
    """Threads for plain handlers, fed in batches; their outcomes come back in batches too."""

    def __init__(
        self,
        executor: Executor,
        report: Report,
        *,
        threads: int,
        may_start: Callable[[], bool],
    ) -> None:
        self._executor = executor
        self._report = report
        self._most = threads
        self._may_start = may_start
        self._waiting: deque[Running] = deque()
        self._wanted = threading.Semaphore(0)
        self._threads = 0
        self._idle = 0
        self._count = threading.Lock()
        self._done: deque[tuple[Running, Outcome]] = deque()
        self._flushing = False
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self.zombies = 0

    def start(self, jobs: list[Running]) -> None:
        """Take jobs; as many threads as are needed wake up."""
        if not jobs:
            return
        for running in jobs:
            running.watch(self._loop, self.time_out)
        self._waiting.extend(jobs)
        with self._count:
            wake = min(len(jobs), self._most)
            new = max(0, min(wake - self._idle, self._most - self._threads))
            self._threads += new
        for _ in range(new):
            threading.Thread(target=self._lane, name="milepost-lane", daemon=True).start()
        self._wanted.release(wake)

    def _lane(self) -> None:
        while True:
            with self._count:
                self._idle += 1
            self._wanted.acquire()
            with self._count:
                self._idle -= 1
            if self._closing:
                return
            while True:
                try:
                    running = self._waiting.popleft()
                except IndexError:
                    break
                if not running.ended:
                    self._hand_back(running, self._outcome(running))

    def _outcome(self, running: Running) -> Outcome:
        if not self._may_start():
            return outcome.released("the lease ran out before it began")
        return self._executor.run(running.definition, running.context)

    def _hand_back(self, running: Running, result: Outcome) -> None:
        self._done.append((running, result))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._done:
            self._end(*self._done.popleft())

    def _end(self, running: Running, result: Outcome) -> None:
        if running.ended:
            return
        running.ended = True
        if running.timer is not None:
            running.timer.cancel()
        self._report(running, result)

    def time_out(self, running: Running) -> None:
        """Fence a job off; its thread cannot be killed and becomes a zombie."""
        if running.ended:
            return
        result = _timed_out(running, self._executor)
        running.context.ask_to_stop("timeout")
        self._end(running, result)
        self.zombies += 1
        with self._count:
            self._threads -= 1  # another thread may take its place

    def stop_job(self, running: Running, reason: str) -> None:
        """Ask a handler to stop: it sees `cancelled` when it looks."""
        running.context.ask_to_stop(reason)

    def give_back(self, running: Running, detail: str) -> None:
        """Release a job; its thread runs on, fenced off."""
        running.context.ask_to_stop(detail)
        self._end(running, outcome.released(detail))

    def close(self) -> None:
        """Let the threads that rest end; one that is stuck dies with the process."""
        self._closing = True
        self._wanted.release(self._most + self.zombies)
