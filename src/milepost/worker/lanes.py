"""Where handlers run: tasks for asynchronous ones, here, and `threads.py` for the others.

A lane is a task, or a thread, that takes one waiting claim after the other: handing a job over
costs no task and no thread switch while there is more to do.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Coroutine, Generator
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import msgspec

from milepost import outcome
from milepost.client import caller
from milepost.faces import Flow, perform_async
from milepost.hooks import HookEvent, one_call
from milepost.outcome import Outcome, Problem
from milepost.worker.execute import Executor, Interrupted, TimedOut, leave
from milepost.worker.heartbeat import WorkerRow
from milepost.worker.settler import Settler
from milepost.worker.slots import RunningJob


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """The thresholds of the lanes, in seconds unless they say otherwise."""

    timer: float = 10.0
    """Longer timeouts are swept: a timer for every job costs as much as running a small one."""
    short: float = 0.005
    """Jobs below it are claimed in batches: a claim takes about as long as such a job."""
    quick: float = 0.0005
    """Plain jobs below it hold the interpreter's lock nearly all of their time."""
    quick_threads: int = 2
    """So many threads run quick jobs: more of them would only wait for the interpreter's lock."""
    patience: float = 0.005
    """If nothing ends for so long, quick jobs have become slow: every thread is called."""
    gather: float = 0.002
    """So long outcomes gather while jobs end in a row: to wake the loop for each costs more."""
    mean_of: int = 16
    """The mean duration follows about the last sixteen jobs: one slow job makes none slow."""
    close: float = 0.5
    """So long handlers have to heed a cancellation at the end; their jobs were given back."""


class Lanes:
    """The common part of both kinds of lanes: how a job ends."""

    policy = LanePolicy()
    has_line = False
    """Whether jobs may wait in it for the end of others."""

    def __init__(self, executor: Executor, settler: Settler, row: WorkerRow) -> None:
        self._executor = executor
        self._hooks = executor.hooks
        self._settler = settler
        self._row = row
        self._timer_us = round(self.policy.timer * 1_000_000)
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[RunningJob] = deque()
        self._closing = False
        self._seconds = self.policy.short
        self._weight = 1 / self.policy.mean_of

    @property
    def is_short(self) -> bool:
        """Whether its jobs take so little time that some may wait for others to end."""
        return self._seconds < self.policy.short

    def depth(self, slots: int) -> int:
        """Say how many jobs it takes at once."""
        return slots

    def start(self, jobs: list[RunningJob]) -> None:
        """Take jobs."""
        raise NotImplementedError

    def _end(self, running: RunningJob, result: Outcome) -> None:
        if running.ended:
            return
        running.ended = True
        running.outcome = result
        if running.timer is not None:
            running.timer.cancel()
        if lines := running.context.take_lines():
            result = msgspec.structs.replace(result, lines=lines)
        self._settler.report(running, result)

    def _watch(self, running: RunningJob, body: Flow[Outcome]) -> Flow[Outcome]:
        """Have hooks of both colours see an attempt."""
        event = HookEvent.of("attempt", running.claim, link=running.context.link)
        return self._hooks.watch(event, body, running.told)

    def _refused(self, running: RunningJob) -> Outcome | None:
        """Say why a job that waited in its lane should not begin any more."""
        if running.context.reason is not None:
            return outcome.cancelled(running.context.reason)
        if not self._row.may_start():
            return outcome.released("the lease ran out before it began")
        if running.claim.remaining_us is None:
            return None
        return _expired("before it began") if running.left == 0 else None

    def refuse(self, running: RunningJob) -> None:
        """End a job that has not begun, if it should not begin any more."""
        result = self._refused(running)
        if result is not None and self._taken_back(running):
            self._end(running, result)

    def _taken_back(self, running: RunningJob) -> bool:
        """Take a job that has not begun out of the line; False if it begins just now."""
        if running.placed:
            try:
                self._waiting.remove(running)
            except ValueError:
                return False
        return True

    def withdraw(self, running: RunningJob, detail: str) -> bool:
        """Release a job that has not begun; False if it begins just now. Its lane is not short."""
        if not self._taken_back(running):
            return False
        self._seconds = max(self._seconds, self.policy.short)
        self._end(running, outcome.released(detail))
        return True

    def _needs_timer(self, running: RunningJob) -> bool:
        """Tell whether a timer is to end the attempt; the sweep ends those with more time."""
        claim = running.claim
        longest = claim.timeout_us
        if claim.remaining_us is None and longest is not None and longest > self._timer_us:
            return False  # as most are: not worth a closer look
        timeout = running.timeout
        return timeout is not None and timeout <= self.policy.timer

    def _set_timer(self, running: RunningJob) -> None:
        timeout = running.timeout
        if timeout is not None and not running.ended:
            running.timer = self._loop.call_later(timeout, self.time_out, running)

    def time_out(self, running: RunningJob) -> None:
        """End an attempt whose time is over, and ask its handler to stop."""
        if not running.ended:
            if running.began is not None:  # a thread's handler goes on, its attempt does not
                running.seconds = time.monotonic() - running.began
            result = running.context.outcome_if_interrupted or self._timed_out(running)
            self._end(running, outcome.traced(result, running.context.trace))
            self.stop_job(running, "timeout")

    def _timed_out(self, running: RunningJob) -> Outcome:
        if running.left is not None and running.left == running.timeout:
            return _expired("while it ran")
        error = TimedOut(f"the attempt took longer than its timeout of {running.timeout:g} s")
        return self._executor.judge(running.definition, running.context, error)

    def give_back(self, running: RunningJob, detail: str) -> None:
        """Release a job that has not ended, and ask its handler to stop."""
        if not running.ended:
            result = running.context.outcome_if_interrupted or outcome.released(detail)
            self._end(running, result)
            self.stop_job(running, detail)

    def stop_job(self, running: RunningJob, reason: str) -> None:
        """Ask a handler to stop: it sees `cancelled` when it looks."""
        running.context.ask_to_stop(reason)


def _expired(when: str) -> Outcome:
    message = f"the job's deadline passed {when}"
    return outcome.expired(Problem(type="Deadline", message=message, code="timeout"))


class AsyncLanes(Lanes):
    """Tasks for asynchronous handlers."""

    def __init__(self, executor: Executor, settler: Settler, row: WorkerRow) -> None:
        super().__init__(executor, settler, row)
        _all.add(self)
        self._lanes: set[asyncio.Task[None]] = set()
        self._idle: deque[asyncio.Future[None]] = deque()
        self.is_parents = False

    def leave_to_parent(self) -> None:
        """End this process when it comes back to the loop: a handler has forked it, and waits."""
        self.is_parents = True
        ready = getattr(self._loop, "_ready", None)
        if isinstance(ready, deque):  # before anything else the parent's loop had to do
            ready.appendleft(asyncio.Handle(leave, (), self._loop))
            return
        with suppress(RuntimeError):
            self._loop.call_soon(leave)

    def start(self, jobs: list[RunningJob]) -> None:
        """Take jobs; one lane wakes up, and wakes others when it begins."""
        if jobs:
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
        called = self._watched if self._hooks.at["attempt"] else self._called
        while True:
            # A handler that waits must not keep the others waiting; one that does not wait lets
            # this lane run everything, and those two find nothing to do.
            for _ in range(min(2, len(self._waiting) - 1)):
                self._wake()
            while self._waiting:
                running = self._waiting.popleft()
                if not running.ended:
                    result = self._refused(running) or await called(running, task)
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

    async def _watched(self, running: RunningJob, task: asyncio.Task[None] | None) -> Outcome:
        hooks = self._hooks
        if not hooks.plain["attempt"]:
            return await perform_async(self._watch(running, one_call(self._traced, running, task)))
        event = HookEvent.of("attempt", running.claim, link=running.context.link)
        opened, began = hooks.begin(event), time.monotonic()
        call = self._traced if hooks.links else self._called
        try:
            result = await call(running, task)
        except BaseException as error:
            hooks.end(opened, event, time.monotonic() - began, "raised", error)
            raise
        hooks.end(opened, event, time.monotonic() - began, *running.ending(result))
        return result

    async def _traced(self, running: RunningJob, task: asyncio.Task[None] | None) -> Outcome:
        """Record with a failure the trace context that a hook has begun for the attempt."""
        running.context.trace = caller().trace
        return outcome.traced(await self._called(running, task), running.context.trace)

    async def _called(self, running: RunningJob, task: asyncio.Task[None] | None) -> Outcome:
        running.task = task
        running.began = time.monotonic()
        running.active = True
        if self._needs_timer(running):
            self._set_timer(running)
        try:
            return await self._executor.run_async(running.definition, running.context)
        except asyncio.CancelledError:
            if running.context.reason is not None:
                return outcome.cancelled(running.context.reason)
            if running.task is None or running.task.cancelling():
                raise  # the worker itself is being cancelled
            error = Interrupted("a task that the handler waited for was cancelled")
            return self._executor.judge(running.definition, running.context, error)
        finally:
            running.active = False
            seconds = running.seconds = time.monotonic() - running.began
            self._seconds += (seconds - self._seconds) * self._weight

    def stop_job(self, running: RunningJob, reason: str) -> None:
        """Ask a handler to stop: it sees `cancelled`, and a CancelledError where it waits."""
        super().stop_job(running, reason)
        if running.active and running.task is not None:
            running.task.cancel()

    async def close(self) -> None:
        """End every lane."""
        self._closing = True
        for lane in list(self._lanes):
            lane.cancel()
        if self._lanes:
            await asyncio.wait(self._lanes, timeout=self.policy.close)


class _Stepped(Coroutine[Any, Any, None]):
    """A lane that goes no further than its next await in a process that a handler forked.

    Back in the loop a child would run the callbacks that the parent has ready there, and take
    events from the parent: they share the files that the loop waits on.
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
