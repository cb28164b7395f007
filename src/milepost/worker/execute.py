"""Runs the handler of one claim and judges its outcome. Knows nothing of the store."""

import asyncio
import inspect
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

import msgspec

from milepost import outcome, policy
from milepost.codec import Codec, limited
from milepost.context import Context, running
from milepost.declare import Definition, Outlet, Unfit
from milepost.errors import Invalid
from milepost.hooks import Hooks
from milepost.outcome import Outcome
from milepost.policy import Cancelled, Later
from milepost.telemetry import Log
from milepost.tracebacks import located

REASON_LIMIT = 1_000

log = Log("milepost.worker")


class TimedOut(TimeoutError):  # noqa: N818 - the history shows this name
    """An attempt ran longer than its timeout."""


class MemoryExceeded(MemoryError):  # noqa: N818 - likewise
    """An isolated attempt, with the processes it started, held more than its memory."""

    code = "memory"


class CpuExceeded(TimedOut):
    """An isolated attempt, with the processes it started, took more processor time than it may."""


class ProcessDied(Exception):  # noqa: N818 - likewise
    """The process of an isolated attempt ended before its handler returned."""

    def __init__(self, message: str, *, code: str = "crash") -> None:
        super().__init__(message)
        self.code = code


class Interrupted(Exception):  # noqa: N818 - the history shows this name
    """A task that a handler waited for was cancelled, by nobody who may cancel the job."""


class Executor:
    """Turns a claim into an outcome by calling its handler."""

    def __init__(self, codec: Codec, hooks: Hooks, *, max_result: int) -> None:
        self._codec = codec
        self.hooks = hooks
        self._max_result = max_result
        self._process = os.getpid()

    def run(self, definition: Definition, context: Context) -> Outcome:
        """Call a plain handler."""
        token = running.set(context)
        try:
            value = self._called(definition, context)
            if definition.outlet is not None and not isinstance(value, Later):
                result = _with_usage(context, definition.outlet.put(context, value))
            else:
                result = self._succeeded(context, value)
        except BaseException as error:  # noqa: BLE001 - sys.exit() fails its job, not its worker
            result = self.judge(definition, context, error)
        finally:
            running.reset(token)
        if os.getpid() != self._process:
            leave(result)
        context.outcome_if_interrupted = result  # hooks still run, and change nothing
        if result.move != "succeed" and context.has_progress:
            context.write_progress()
        return result

    async def run_async(self, definition: Definition, context: Context) -> Outcome:
        """Await an asynchronous handler."""
        token = running.set(context)
        try:
            value = self._called(definition, context)
            if definition.outlet is None:
                result = self._succeeded(context, await value)
            else:
                result = await self._put_out(definition.outlet, context, value)
        except asyncio.CancelledError:
            raise  # the lane knows whether its job was asked to stop
        except GeneratorExit as error:
            return self.judge(definition, context, error)  # nothing may be awaited now
        except BaseException as error:  # noqa: BLE001 - sys.exit() fails its job, not its worker
            result = self.judge(definition, context, error)
        finally:
            running.reset(token)
        if os.getpid() != self._process:
            leave(result)
        context.outcome_if_interrupted = result  # as above
        if result.move != "succeed" and context.has_progress:
            await context.write_progress_async()
        return result

    async def _put_out(self, outlet: Outlet, context: Context, value: Any) -> Outcome:
        given = await value if inspect.isawaitable(value) else value  # an asynchronous generator
        if isinstance(given, Later):
            return self._succeeded(context, given)
        return _with_usage(context, await outlet.put_async(context, given))

    def _called(self, definition: Definition, context: Context) -> Any:
        named: dict[str, Any] = {}
        if definition.feed is not None:
            positional = definition.feed(context)
        else:
            positional, named = definition.arguments.stored(context.claim.payload, self._codec)
        if definition.arguments.wants_context:
            positional.insert(0, context)
        return definition.function(*positional, **named)

    def _succeeded(self, context: Context, value: Any) -> Outcome:
        if isinstance(value, Later):
            return _with_usage(context, policy.after_later(context.claim, value))
        data = None if value is None else self._codec.encode(value)
        if data is not None and len(data) > self._max_result:
            limited(data, most=self._max_result, what=f"the result of job {context.id}")
        return outcome.succeeded(data, usage=context.usage)

    def judge(self, definition: Definition, context: Context, error: BaseException) -> Outcome:
        """Decide which outcome an error comes to."""
        return _with_usage(context, self._outcome_of(error, definition, context))

    def _outcome_of(
        self, error: BaseException, definition: Definition, context: Context
    ) -> Outcome:
        claim = context.claim
        if isinstance(error, Later):
            return policy.after_later(claim, error)
        if isinstance(error, Cancelled):
            return outcome.cancelled(context.reason)
        if isinstance(error, Unfit):
            reason = policy.storable(str(error)[:REASON_LIMIT])
            log.warning("a job waits: its arguments do not fit", job_id=claim.id, reason=reason)
            return outcome.unfit(reason, signature=definition.arguments.signature(self._codec))
        if context.error is None and self.hooks.at["attempt"]:
            context.error = error
        problem = policy.problem_of(error, definition.policy, attempt=claim.attempt)
        problem = located(problem, error)
        if isinstance(error, Invalid):  # arguments or a result that no attempt will change
            return outcome.failed(msgspec.structs.replace(problem, kind="permanent"))
        return policy.after_error(claim, problem, definition.policy.retry)


def leave(result: Outcome | None = None) -> NoReturn:
    """End a process that a handler forked, where it leaves the handler: it is no second worker."""
    problem = None if result is None else result.problem
    if problem is not None:
        sys.stderr.write(problem.traceback or f"{problem.type}: {problem.message}\n")
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0 if problem is None else 1)


def _with_usage(context: Context, result: Outcome) -> Outcome:
    """Add the attempt's usage: it is spent, whichever outcome it has."""
    usage = context.usage
    return msgspec.structs.replace(result, usage=usage) if usage else result
