"""Hooks: functions of the program that see an operation begin and end, and time it.

A hook is a generator function with one `yield`. Code before it runs in the thread and the context
of the operation, just before; code after it just after, with the outcome. It cannot change the
outcome: an error of its own is logged once and goes no further.
"""

import asyncio
import inspect
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from milepost.errors import Invalid
from milepost.faces import Flow, Wait
from milepost.outcome import Problem
from milepost.policy import message_of
from milepost.records import Claim
from milepost.telemetry import TRACEBACK, Log
from milepost.tracebacks import located

T = TypeVar("T")

POINTS = ("submit", "attempt", "step", "settle", "sweep", "request", "message", "gate")
HOOK_SECONDS = 10.0
"""How long one half of an asynchronous hook may take; then it counts as failed."""

SECOND_YIELD = "a hook has one yield, and this one has a second"

log = Log("milepost.hooks")


class HookEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An operation, as a hook sees it: the `yield` gives the same one with its outcome."""

    point: str
    """Where the hook stands: "submit", "attempt", "step", "settle", "sweep", and so on."""
    job_id: str | None = None
    """The job; of a submit it is known at the end, the first one if there are several."""
    run_id: str | None = None
    kind: str | None = None
    """The job's kind; of a run, the name of its batch or pipeline."""
    queue: str | None = None
    tenant: str = ""
    attempt: int = 0
    """Which attempt, counted from 1."""
    name: str | None = None
    """The name of a step, the channel of a message, the method and host of a request, the move of a
    run at a gate."""
    count: int = 1
    """How many jobs are submitted or settled; of a sweep, at its end, how much there was to do."""
    trace: str | None = None
    """The W3C trace context that the job or message was stored with."""
    link: str | None = None
    """That of the failed attempt before this one, where a hook gave it one."""
    outcome: str | None = None
    """None at the beginning. Of an attempt it is the move ("succeed", "retry", …), of a step "done"
    or "recalled", of a request the status of its answer; of others "done", and "raised" if they
    raise."""
    seconds: float | None = None
    """How long it took."""
    error: BaseException | None = None
    """What the handler, or the operation, raised."""

    @classmethod
    def of(
        cls, point: str, claim: Claim, *, name: str | None = None, link: str | None = None
    ) -> "HookEvent":
        """Describe an operation of a claimed job."""
        return cls(
            point=point,
            job_id=claim.id,
            run_id=claim.run_id,
            kind=claim.kind,
            queue=claim.queue,
            tenant=claim.tenant,
            attempt=claim.attempt,
            name=name,
            trace=claim.trace,
            link=link,
        )


Made = Generator[None, HookEvent, None] | AsyncGenerator[None, HookEvent]
HookFunction = Callable[[HookEvent], Made]


class Hook:
    """One declared hook, which reports its own failure once."""

    def __init__(self, function: HookFunction) -> None:
        self._function = function
        self.is_async = inspect.isasyncgenfunction(function)
        self._reported = False

    def begin(self, event: HookEvent) -> Made | None:
        """Run a plain hook up to its yield; None if it came to no yield."""
        try:
            made = self._function(event)
            next(made)  # type: ignore[arg-type]
        except StopIteration:
            return None
        except BaseException as error:  # noqa: BLE001 - Later, sys.exit(): nothing ends its job
            self._failed(event, error)
            return None
        return made

    def end(self, made: Any, event: HookEvent) -> None:
        """Run the rest of a plain hook."""
        try:
            made.send(event)
            made.close()
        except StopIteration:
            return
        except BaseException as error:  # noqa: BLE001 - as above
            self._failed(event, error)
            return
        self._report(event, Invalid(SECOND_YIELD))

    async def begin_async(self, event: HookEvent) -> Made | None:
        """Run an asynchronous hook up to its yield; None if it came to no yield."""
        made: Any = self._function(event)
        return made if await self._awaited(anext(made), event) else None

    async def end_async(self, made: Any, event: HookEvent) -> None:
        """Run the rest of an asynchronous hook."""
        if await self._awaited(made.asend(event), event) and await self._awaited(
            made.aclose(), event
        ):
            self._report(event, Invalid(SECOND_YIELD))

    async def _awaited(self, half: Awaitable[None], event: HookEvent) -> bool:
        """Await one half; False if it is over, or has failed."""
        try:
            async with asyncio.timeout(HOOK_SECONDS):
                await half
        except StopAsyncIteration:
            return False
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task and task.cancelling():
                raise
            self._failed(event, error)
            return False
        return True

    def _failed(self, event: HookEvent, error: BaseException) -> None:
        """Report an error; Ctrl-C goes on, which the main thread alone gets."""
        if isinstance(error, KeyboardInterrupt) and _is_main():
            raise error
        self._report(event, error)

    def _report(self, event: HookEvent, error: BaseException) -> None:
        if self._reported:
            return
        self._reported = True
        problem = located(Problem(type=type(error).__name__, message=message_of(error)), error)
        log.warning(
            "a hook failed; this is logged once",
            hook=_name(self._function),
            point=event.point,
            error=f"{problem.type}: {problem.message}",
            **{TRACEBACK: problem.traceback},
        )


Opened = list[tuple[Hook, Made]]
Ended = Callable[[T], dict[str, Any]]


def check_point(point: str) -> None:
    """Raise `Invalid` for a point that does not exist."""
    if point not in POINTS:
        raise Invalid(f"no hook stands at {point!r}; points are {', '.join(POINTS)}")


def _check_signature(function: HookFunction) -> None:
    """Raise `Invalid` if a hook cannot be called with its event: it would never see anything."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        raise Invalid(f"hook {_name(function)}() takes one argument, its event") from None


def _name(function: HookFunction) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


class Hooks:
    """The hooks of an app, by point; a point without hooks is False, and costs its test."""

    def __init__(self) -> None:
        self.at: dict[str, tuple[Hook, ...]] = dict.fromkeys(POINTS, ())
        self.plain = dict.fromkeys(POINTS, True)
        """Whether all hooks of a point are plain functions."""
        self.links = False
        """Whether attempts are told the trace context of the failed one before."""

    def add(self, point: str, function: HookFunction) -> None:
        """Declare a hook, or raise `Invalid`."""
        if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
            raise Invalid(
                f"{_name(function)} is no hook: a hook is a generator function with one yield"
            )
        _check_signature(function)
        self.at[point] = (*self.at[point], Hook(function))
        self.plain[point] = not any(hook.is_async for hook in self.at[point])

    def begin(self, event: HookEvent) -> Opened:
        """Begin the plain hooks of a point; the caller ends them: the quick way."""
        opened: Opened = []
        for hook in self.at[event.point]:
            made = hook.begin(event)
            if made is not None:
                opened.append((hook, made))
        return opened

    def end(
        self,
        opened: Opened,
        event: HookEvent,
        seconds: float,
        outcome: str,
        error: BaseException | None,
    ) -> None:
        """End plain hooks that were begun; they are told the outcome."""
        event = replace(event, seconds=seconds, outcome=outcome, error=error)
        for hook, made in reversed(opened):
            hook.end(made, event)

    def watch(
        self,
        event: HookEvent,
        body: Flow[T],
        ended: Ended[T] = lambda _: {"outcome": "done"},
    ) -> Flow[T]:
        """Run an operation between the halves of the hooks at its point.

        `ended` gives the fields of the event that the operation's result says.
        """
        opened = yield from self.begin_all(event)
        began = time.perf_counter()
        try:
            result = yield from body
        except GeneratorExit:
            raise  # the program ends: nothing may be awaited now
        except BaseException as error:
            told = {"outcome": "raised", "error": error}
            yield from self.end_all(opened, event, time.perf_counter() - began, told)
            raise
        yield from self.end_all(opened, event, time.perf_counter() - began, ended(result))
        return result

    def begin_all(self, event: HookEvent) -> Flow[Opened]:
        """Begin the hooks of a point, of both colours."""
        opened: Opened = []
        for hook in self.at[event.point]:
            if hook.is_async:
                made = yield Wait(_elsewhere, _here, (hook.begin_async, event))
            else:
                made = hook.begin(event)
            if made is not None:
                opened.append((hook, made))
        return opened

    def end_all(
        self, opened: Opened, event: HookEvent, seconds: float, told: dict[str, Any]
    ) -> Flow[None]:
        """End hooks of both colours that were begun."""
        event = replace(event, seconds=seconds, **told)
        for hook, made in reversed(opened):
            if hook.is_async:
                yield Wait(_elsewhere, _here, (hook.end_async, made, event))
            else:
                hook.end(made, event)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def one_call(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Flow[Any]:
    """Make a body of one call, which its face makes or awaits."""
    return (yield Wait(call, call, args, kwargs))


async def _here(half: Callable[..., Awaitable[T]], *args: Any) -> T:
    return await half(*args)


def _elsewhere(half: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run one half of an asynchronous hook for plain code, in an event loop of its own thread."""
    return asyncio.run_coroutine_threadsafe(half(*args), _loop()).result()


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_lock = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop for plain code, of this process: a forked one has none of the threads."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="milepost-hooks", daemon=True).start()
    return loop
