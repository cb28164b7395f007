"""Threads for plain handlers."""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from milepost import outcome
from milepost.client import caller
from milepost.faces import perform
from milepost.hooks import HookEvent, one_call
from milepost.outcome import Outcome
from milepost.worker.execute import Executor
from milepost.worker.heartbeat import WorkerRow
from milepost.worker.lanes import Lanes
from milepost.worker.settler import Settler
from milepost.worker.slots import RunningJob


class ThreadLanes(Lanes):
    """Threads for plain handlers, fed in batches; their outcomes come back in batches too."""

    has_line = True

    def __init__(
        self, executor: Executor, settler: Settler, row: WorkerRow, *, threads: int
    ) -> None:
        super().__init__(executor, settler, row)
        self._most = threads
        self._wanted = threading.Semaphore(0)
        self._count = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._done: deque[tuple[RunningJob, Outcome]] = deque()
        self._ended = 0
        self._flushing = False
        self._patient = False
        self._variables = copy_context()
        self.zombies = 0
        """How many threads are stuck in handlers past their timeout."""

    @property
    def worn_out(self) -> bool:
        """Whether as many threads are stuck as may work at once."""
        return self.zombies >= self._most

    def depth(self, slots: int) -> int:
        """Say how many jobs it takes at once: a batch while they are short, else one a thread."""
        return slots if self.is_short else self._most

    def start(self, jobs: list[RunningJob]) -> None:
        """Take jobs; as many threads as are needed wake up."""
        if not jobs:
            return
        with self._count:
            self._waiting.extend(jobs)
            quick = self._seconds < self.policy.quick
            busy = self._threads - self._idle
            enough = self.policy.quick_threads - busy if quick else len(jobs)
        self._call(min(len(jobs), enough))
        if quick and not self._patient:
            self._look_again_later()

    def _call(self, wished: int) -> None:
        """Wake so many threads, or begin them."""
        if wished <= 0:
            return
        # A thread that is woken counts as busy here, not when it wakes: two calls in a row must
        # not count on the same one.
        with self._count:
            woken = min(wished, self._idle)
            self._idle -= woken
            new = self._room_for(wished - woken)
        if woken:
            self._wanted.release(woken)
        self._begin(new)

    def _look_again_later(self) -> None:
        self._patient = True
        self._loop.call_later(self.policy.patience, self._look_again, self._ended)

    def _look_again(self, ended: int) -> None:
        """Call every thread if no job has ended since: a few threads are not enough then."""
        self._patient = False
        if not self._waiting or self._closing:
            return
        if self._ended == ended:
            self._call(len(self._waiting))
        self._look_again_later()

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
                    self._hand_back(running, self._refused(running) or self._called(running))
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

    def _called(self, running: RunningJob) -> Outcome:
        running.began = time.monotonic()
        running.active = True
        if self._needs_timer(running):
            self._tell(self._set_timer, running)
        # A copy of its own for each: no job sees another's context variables.
        variables = self._variables.copy()
        if self._hooks.at["attempt"]:
            result = variables.run(self._watched, running)
        else:
            result = variables.run(self._run, running)
        with self._count:
            running.active = False
            self.zombies -= running.stuck
        # A rough running mean; threads may overwrite each other's, which does no harm.
        seconds = running.seconds = time.monotonic() - running.began
        self._seconds += (seconds - self._seconds) * self._weight
        return result

    def _watched(self, running: RunningJob) -> Outcome:
        hooks = self._hooks
        if not hooks.plain["attempt"]:
            return perform(self._watch(running, one_call(self._traced, running)))
        event = HookEvent.of("attempt", running.claim, link=running.context.link)
        opened, began = hooks.begin(event), time.monotonic()
        result = self._traced(running)
        hooks.end(opened, event, time.monotonic() - began, *running.ending(result))
        return result

    def _traced(self, running: RunningJob) -> Outcome:
        """Record with a failure the trace context that a hook has begun for the attempt."""
        context = running.context
        context.trace = caller().trace
        return outcome.traced(self._run(running), context.trace)

    def _run(self, running: RunningJob) -> Outcome:
        return self._executor.run(running.definition, running.context)

    def _hand_back(self, running: RunningJob, result: Outcome) -> None:
        self._done.append((running, result))
        self._ended += 1  # roughly: it only has to change
        if not self._flushing:
            self._flushing = True
            self._tell(self._flush)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        # A thread that was fenced off may outlive the loop, and then nobody waits for it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _flush(self) -> None:
        """Report the jobs that have ended; and again soon while there are some: none is woken."""
        self._flushing = False
        found = bool(self._done)
        while self._done:
            self._end(*self._done.popleft())
        if found and not self._flushing:
            self._flushing = True
            self._loop.call_later(self.policy.gather, self._flush)

    def time_out(self, running: RunningJob) -> None:
        """Fence a job off; its thread cannot be killed and becomes a zombie."""
        if running.ended:
            return
        super().time_out(running)
        with self._count:
            if not running.active:
                return
            running.stuck = True
            self.zombies += 1
            self._threads -= 1
            new = self._room_for(min(1, len(self._waiting)))
        self._begin(new)

    def close(self) -> None:
        """Let the threads that rest end; one that is stuck dies with the process."""
        with self._count:
            self._closing = True
        self._wanted.release(self._most + self.zombies)
