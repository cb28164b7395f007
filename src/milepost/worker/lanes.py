"""Where handlers run: tasks for asynchronous ones, threads for the others.

A lane is a task, or a thread, that takes one waiting claim after the other: handing a job over
costs no task and no thread switch while there is more to do.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context

from milepost import outcome
from milepost.context import Context
from milepost.declare import Definition
from milepost.outcome import Outcome, Problem
from milepost.worker.execute import Executor, TimedOut

__all__ = ["AsyncLanes", "Running", "ThreadLanes"]

TIMER_SECONDS = 10.0
"""A timer for every job would cost as much as running a small one; long timeouts are swept."""
SHORT_SECONDS = 0.005
"""Plain jobs that take less are claimed in batches; longer ones only as threads are free."""


class Running:
    """One job in a lane."""

    __slots__ = ("active", "began", "context", "definition", "ended", "task", "timer")

    def __init__(self, definition: Definition, context: Context) -> None:
        self.definition = definition
        self.context = context
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.began: float | None = None
        self.active = False
        self.ended = False

    @property
    def timeout(self) -> float | None:
        """How long one attempt may take, by the job's own row, or what is left of its time."""
        claim = self.context.claim
        limits = [us / 1e6 for us in (claim.timeout_us, claim.remaining_us) if us is not None]
        return max(0.0, min(limits)) if limits else None

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
        return None

    def _watch(self, running: Running, time_out: Callable[[Running], None]) -> None:
        """Have an attempt ended by a timer if its time is short; a sweep does the others."""
        timeout = running.timeout
        if timeout is not None and timeout <= TIMER_SECONDS and not running.ended:
            running.timer = self._loop.call_later(timeout, time_out, running)

    def _time_is_over(self, running: Running) -> Outcome:
        claim = running.context.claim
        left = claim.remaining_us
        if left is not None and (claim.timeout_us is None or left <= claim.timeout_us):
            message = "the job's deadline passed while it ran"
            return outcome.expired(Problem(type="Deadline", message=message, code="timeout"))
        error = TimedOut(f"the attempt took longer than its timeout of {running.timeout:g} s")
        return self._executor.judged(running.definition, running.context, error)


class AsyncLanes(_Lanes):
    """Tasks for asynchronous handlers."""

    def __init__(
        self, executor: Executor, report: Report, *, may_start: Callable[[], bool]
    ) -> None:
        super().__init__(executor, report, may_start=may_start)
        self._lanes: set[asyncio.Task[None]] = set()
        self._idle: deque[asyncio.Future[None]] = deque()

    def start(self, jobs: list[Running]) -> None:
        """Take jobs; as many lanes as there are jobs wake up."""
        self._waiting.extend(jobs)
        for _ in jobs:
            if not self._wake():
                lane = self._loop.create_task(self._lane(), context=copy_context())
                self._lanes.add(lane)
                lane.add_done_callback(self._lanes.discard)

    def _wake(self) -> bool:
        while self._idle:
            rest = self._idle.popleft()
            if not rest.done():
                rest.set_result(None)
                return True
        return False

    async def _lane(self) -> None:
        variables = len(copy_context())
        while True:
            while self._waiting:
                await self._run(self._waiting.popleft())
                # A handler that left context variables behind must not pass them on.
                if len(copy_context()) != variables:
                    return
            rest = self._loop.create_future()
            self._idle.append(rest)
            await rest

    async def _run(self, running: Running) -> None:
        if running.ended:
            return
        result = self._unfit(running)
        if result is None:
            result = await self._called(running)
        self._end(running, result)

    async def _called(self, running: Running) -> Outcome:
        running.task = asyncio.current_task()
        running.began = self._loop.time()
        running.active = True
        self._watch(running, self.time_out)
        try:
            return await self._executor.run_async(running.definition, running.context)
        except asyncio.CancelledError:
            if running.context.reason is None or running.task is None:
                raise  # the worker itself is being cancelled
            running.task.uncancel()
            return outcome.cancelled(running.context.reason)
        finally:
            running.active = False

    def time_out(self, running: Running) -> None:
        """End an attempt whose time is over, and stop its handler."""
        if not running.ended:
            result = self._time_is_over(running)
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
            self._end(running, outcome.released(detail))
            self.stop_job(running, detail)

    async def close(self) -> None:
        """End every lane."""
        for lane in list(self._lanes):
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)


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
        self._flushing = False
        self._closing = False
        self.zombies = 0

    def room(self, held: int, slots: int) -> int:
        """Say how many more may be claimed: a batch while jobs are short, else free threads."""
        return (slots if self._seconds < SHORT_SECONDS else self._most) - held

    def start(self, jobs: list[Running]) -> None:
        """Take jobs; as many threads as are needed wake up."""
        if not jobs:
            return
        self._waiting.extend(jobs)
        wake = min(len(jobs), self._most)
        with self._count:
            new = max(0, min(wake - self._idle, self._most - self._threads))
            self._threads += new
        for _ in range(new):
            threading.Thread(target=self._lane, name="milepost-lane", daemon=True).start()
        self._wanted.release(wake)

    def _lane(self) -> None:
        while self._awaited():
            while True:
                try:
                    running = self._waiting.popleft()
                except IndexError:
                    break
                if not running.ended:
                    self._hand_back(running, self._outcome(running))

    def _awaited(self) -> bool:
        """Rest until there is work; False when there will be none any more."""
        with self._count:
            self._idle += 1
        self._wanted.acquire()
        with self._count:
            self._idle -= 1
        return not self._closing

    def _outcome(self, running: Running) -> Outcome:
        unfit = self._unfit(running)
        if unfit is not None:
            return unfit
        running.began = time.monotonic()
        timeout = running.timeout
        if timeout is not None and timeout <= TIMER_SECONDS:
            self._loop.call_soon_threadsafe(self._watch, running, self.time_out)
        result = self._executor.run(running.definition, running.context)
        # A rough running mean; threads may overwrite each other's, which does no harm.
        self._seconds += (time.monotonic() - running.began - self._seconds) / 16
        return result

    def _hand_back(self, running: Running, result: Outcome) -> None:
        self._done.append((running, result))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        while self._done:
            self._end(*self._done.popleft())

    def time_out(self, running: Running) -> None:
        """Fence a job off; its thread cannot be killed and becomes a zombie."""
        if running.ended:
            return
        self._end(running, self._time_is_over(running))
        running.context.ask_to_stop("timeout")
        self.zombies += 1
        with self._count:
            self._threads -= 1  # another thread may take its place

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
        self._closing = True
        self._wanted.release(self._most + self.zombies)
