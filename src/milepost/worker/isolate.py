"""Isolated jobs: each slot has a warm process of its own, which can be killed.

A thread of the worker's hands an attempt to such a process and waits for its outcome; hooks run
around that, in the thread. A warden between the two (`warden.py`) kills the process and everything
that descends from it: at the attempt's timeout, at a limit, or when it is asked to.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context as ContextVariables
from contextvars import copy_context

import msgspec

from milepost import outcome
from milepost.client import caller
from milepost.context import Context
from milepost.declare import Definition
from milepost.faces import perform
from milepost.hooks import HookEvent, Hooks, Opened
from milepost.lifecycle import Cause
from milepost.outcome import Outcome, Problem
from milepost.records import Claim
from milepost.telemetry import Log
from milepost.tracebacks import located_by_dump
from milepost.worker.execute import (
    REASON_LIMIT,
    CpuExceeded,
    Executor,
    MemoryExceeded,
    ProcessDied,
)
from milepost.worker.heartbeat import WorkerRow
from milepost.worker.pipe import (
    Begin,
    Done,
    HookBegin,
    HookBegun,
    HookEnd,
    Pipe,
    Severed,
)
from milepost.worker.processes import (
    CANCEL_SECONDS,
    CLOSE_SECONDS,
    OVERDUE_SECONDS,
    IsolatedProcess,
    Verdict,
    ended,
)
from milepost.worker.settler import Settler
from milepost.worker.slots import RunningJob
from milepost.worker.threads import ThreadLanes

log = Log("milepost.worker")

RELAYED = ("step", "submit")
"""The points of hooks that an attempt can pass while it runs."""


def _as_error(problem: Problem) -> Exception:
    """Make an error for hooks, of the class's name and with what was recorded."""
    error: Exception = type(problem.type, (Exception,), {})(problem.message)
    if problem.traceback is not None:
        error.add_note(problem.traceback)
    return error


def _blamed(claim: Claim, problem: Problem) -> Outcome:
    """Fail a suspect whose process died: one more loss would have ended it."""
    poisoned = claim.losses + 1 >= claim.poison_limit
    cause = Cause.POISONED if poisoned else Cause.ATTEMPTS_EXHAUSTED
    told = f"{problem.message} while it ran alone, after {claim.losses} lost workers"
    return outcome.failed(msgspec.structs.replace(problem, message=told), cause=cause)


def _size(count: int) -> str:
    return f"{count / 1024**2:,.0f} MiB"


class RelayedHooks:
    """Runs the hooks that operations of an attempt in another process pass."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._open: dict[int, tuple[ContextVariables, HookEvent, Opened]] = {}

    def begin(self, message: HookBegin) -> HookBegun:
        """Begin them, inside those of the operation around this one."""
        outer = self._open.get(message.inside)
        variables = copy_context() if outer is None else outer[0].copy()
        event = HookEvent(**message.event)
        opened = variables.run(perform, self._hooks.begin_all(event))
        self._open[message.number] = variables, event, opened
        return HookBegun(message.number, variables.run(caller))

    def end(self, message: HookEnd) -> None:
        """End them."""
        if (found := self._open.pop(message.number, None)) is None:
            return
        variables, event, opened = found
        told = dict(message.told)
        if message.error is not None:
            told["error"] = _as_error(Problem(*message.error))
        variables.run(perform, self._hooks.end_all(opened, event, message.seconds, told))

    def end_rest(self) -> None:
        """End those of operations that died with their process."""
        for number in reversed(list(self._open)):
            error = ("ProcessDied", "its process ended")
            self.end(HookEnd(number, 0.0, {"outcome": "raised"}, error))


class IsolatedLanes(ThreadLanes):
    """Threads that each hand one attempt to a process, and wait for it."""

    def __init__(
        self,
        executor: Executor,
        settler: Settler,
        row: WorkerRow,
        *,
        processes: int,
        begin: Begin | None,
    ) -> None:
        super().__init__(executor, settler, row, threads=processes)
        self._begin_with = begin
        if begin is not None:
            Pipe.bound(begin.max_payload)
        self.takes_suspects = True
        """Whether jobs that were not declared so can be isolated too."""
        self._warm: list[IsolatedProcess] = []
        self._all: set[IsolatedProcess] = set()
        self.filled = asyncio.Event()
        """Set when it takes jobs; whoever sees that it has none any more clears it."""

    @property
    def is_open(self) -> bool:
        """Whether jobs can be isolated here."""
        return self._begin_with is not None

    def start(self, jobs: list[RunningJob]) -> None:
        """Take jobs."""
        if jobs:
            self.filled.set()
        super().start(jobs)

    def _called(self, running: RunningJob) -> Outcome:
        """Have a process ready, and then begin: what its import takes is not the attempt's."""
        try:
            with self._process(running.definition) as process:
                running.process = process
                try:
                    return self._begun(running) or super()._called(running)
                finally:
                    running.process = None
        except ProcessDied as error:
            return self._not_started(running, error)
        except Exception as error:  # noqa: BLE001 - what an attempt tells may be anything
            return self._executor.judge(running.definition, running.context, error)

    def _begun(self, running: RunningJob) -> Outcome | None:
        """Note that it begins, or give the outcome if it must not; now only its process ends it."""
        with self._count:
            if (result := self._refused(running)) is None:
                running.began = time.monotonic()
        return result

    def _not_started(self, running: RunningJob, error: ProcessDied) -> Outcome:
        if running.suspect and self.takes_suspects:
            # It did not ask for a process: from now on suspects run alone in the worker's.
            self.takes_suspects = False
            log.warning("suspects run in this process", job_id=running.claim.id, why=str(error))
            return outcome.released(str(error)[:REASON_LIMIT])
        error.__traceback__ = None  # frames of the worker say nothing of why
        return self._executor.judge(running.definition, running.context, error)

    def _run(self, running: RunningJob) -> Outcome:
        process, context = running.process, running.context
        if process is None:
            raise ProcessDied("its process is gone")
        try:
            hooked = tuple(point for point in RELAYED if self._hooks.at[point])
            process.begin(running, self._left(running), hooked)
            if context.reason is not None:  # asked while it was handed over
                process.ask_to_stop(running.number, context.reason)
            done = self._followed(process, context)
        except Severed as error:
            process.is_ready = False
            return self._killed(running, process, error)
        process.is_ready = not done.left
        return self._told(running, done.outcome)

    def _left(self, running: RunningJob) -> float | None:
        """Say how long it has, after the hooks before it."""
        if running.timeout is None or running.began is None:
            return running.timeout
        return max(0.001, running.timeout - (time.monotonic() - running.began))

    def _followed(self, process: IsolatedProcess, context: Context) -> Done:
        hooks = RelayedHooks(self._hooks)
        try:
            for message in process.messages():
                if isinstance(message, HookBegin):
                    process.answer(hooks.begin(message))
                    continue
                if isinstance(message, HookEnd):
                    hooks.end(message)
                    continue
                report = message.report if isinstance(message, Done) else message
                context.relay(report.progress, report.lines, report.usage)
                if isinstance(message, Done):
                    return message
        finally:
            hooks.end_rest()
        raise Severed("it ended without an outcome")

    def _told(self, running: RunningJob, result: Outcome) -> Outcome:
        context = running.context
        context.outcome_if_interrupted = result  # as in the executor: hooks change nothing
        if result.problem is not None and self._hooks.at["attempt"]:
            context.error = _as_error(result.problem)
        if result.move != "succeed" and context.has_progress:
            context.write_progress()
        return result

    # Processes

    @contextmanager
    def _process(self, definition: Definition) -> Iterator[IsolatedProcess]:
        """Lend a warm process; one that has ended, or left others behind, is replaced."""
        process = self._taken(definition)
        try:
            process.wait_ready()
            yield process
        except BaseException:
            process.is_ready = False
            raise
        finally:
            with self._count:
                keep = process.is_ready and not self._closing
                if keep:
                    self._warm.append(process)
            if not keep:
                self._drop(process)

    def _taken(self, definition: Definition) -> IsolatedProcess:
        while True:
            try:
                process = self._warm.pop()
            except IndexError:
                return self._new()
            if not (process.has_ended or process.has_grown(definition.memory)):
                return process
            self._drop(process)

    def _new(self) -> IsolatedProcess:
        if self._begin_with is None:
            raise ProcessDied("this worker isolates no jobs")
        try:
            process = IsolatedProcess(self._begin_with)
        except OSError as error:
            told = f"its process could not be started: {error}"
            raise ProcessDied(told, code="overload") from error
        with self._count:
            self._all.add(process)
        return process

    def _drop(self, process: IsolatedProcess) -> None:
        with self._count:
            self._all.discard(process)
        process.close()

    # How an attempt ends that did not end by itself

    def _killed(self, running: RunningJob, process: IsolatedProcess, error: Severed) -> Outcome:
        verdict = process.verdict()
        context = running.context
        if verdict.number != running.number:
            return outcome.released("its process was ended for the attempt before it")
        late = verdict.why == "unknown" and running.overdue(time.monotonic())
        if verdict.why == "timeout" or late:
            return self._located(self._timed_out(running), process)
        if verdict.why == "cancel" or (verdict.why == "unknown" and context.cancelled):
            return outcome.cancelled(context.reason)
        cause = self._cause(running.definition, verdict, error)
        result = self._located(self._executor.judge(running.definition, context, cause), process)
        if running.suspect and isinstance(cause, ProcessDied) and result.problem is not None:
            return _blamed(running.claim, result.problem)
        return result

    def _cause(self, definition: Definition, verdict: Verdict, error: Severed) -> Exception:
        if verdict.why == "memory":
            return MemoryExceeded(
                f"its process, with what it started, held {_size(verdict.held)}, and its memory is "
                f"{_size(definition.memory or 0)}; before the attempt it held "
                f"{_size(verdict.before)}"
            )
        if verdict.why == "cpu":
            return CpuExceeded(
                f"the attempt took {verdict.spent:.1f} s of processor time, and its cpu_seconds "
                f"are {definition.cpu_seconds:g}"
            )
        told = ended(verdict)
        return ProcessDied(f"{told} ({error})" if verdict.why == "closed" else told)

    def _located(self, result: Outcome, process: IsolatedProcess) -> Outcome:
        """Add where the handler was."""
        where = process.where
        if where is None or result.problem is None:
            return result
        problem = located_by_dump(result.problem, where)
        return msgspec.structs.replace(result, problem=problem)

    # From outside

    def time_out(self, running: RunningJob) -> None:
        """Have a process killed that its warden should have killed by now."""
        process = running.process
        if process is None or running.ended or running.began is None:
            return
        late = time.monotonic() - running.began - (running.timeout or 0.0)
        if late > OVERDUE_SECONDS:
            process.kill()
        else:
            process.end(running.number, "timeout")

    def _needs_timer(self, running: RunningJob) -> bool:  # noqa: ARG002 - the warden's is enough
        return False

    def stop_job(self, running: RunningJob, reason: str) -> None:
        """Ask a handler to stop; one that does not listen is killed.

        A job whose process still starts ends at once: its thread sees why when it would begin.
        """
        super().stop_job(running, reason)
        self.refuse(running)
        process = running.process
        if running.began is not None and process is not None and running.number:
            process.ask_to_stop(running.number, reason)  # before that, its thread asks
            late = CANCEL_SECONDS + OVERDUE_SECONDS
            asyncio.get_running_loop().call_later(late, self._kill_late, running, process)

    def _kill_late(self, running: RunningJob, process: IsolatedProcess) -> None:
        """Kill a process that its warden should have killed by now."""
        if not running.ended and process.number == running.number:
            process.kill()

    def refuse(self, running: RunningJob) -> None:
        """End a job that has not begun, also while its process starts, if it should not begin."""
        with self._count:
            result = None if running.began is not None else self._refused(running)
            if result is not None and not running.context.cancelled:
                # Its thread begins nothing that was asked to stop.
                running.context.ask_to_stop("it should not begin any more")
        if result is not None:
            self._end(running, result)

    async def close_all(self) -> None:
        """End the threads and the processes; one that waits for its process sees it end."""
        self.close()
        with self._count:
            left, idle, self._warm = list(self._all), self._warm, []
        for process in left:
            process.end(process.number, "stop")
        until = time.monotonic() + CLOSE_SECONDS
        if idle:
            await asyncio.to_thread(self._drop_all, idle)
        while self._all and time.monotonic() < until:  # noqa: ASYNC110 - threads drop them
            await asyncio.sleep(0.005)
        for process in list(self._all):
            process.kill()

    def _drop_all(self, idle: list[IsolatedProcess]) -> None:
        for process in idle:
            self._drop(process)
