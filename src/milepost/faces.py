"""Two faces of one operation: written once, it is called (`submit`) or awaited (`submit_async`).

An operation's body is a generator. It runs in the thread and the context of its caller, and yields
every call that may wait, in both colours; the face that runs it makes the one or awaits the other,
and sends back the result or throws the error in.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args

import msgspec

from milepost.errors import Invalid

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class Wait(msgspec.Struct):
    """A call that may wait: the function that blocks, or the one that is awaited."""

    plain: Callable[..., Any]
    awaited: Callable[..., Awaitable[Any]]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}


Flow = Generator[Wait, Any, T]
"""An operation's body: yields calls that may wait, returns the operation's result."""

Stream = Generator[Wait | T, Any, None]
"""The body of an operation that is iterated over: yields its items between such calls."""


def perform(flow: Flow[T]) -> T:
    """Run a body to its end, and block where it waits."""
    try:
        wait = next(flow)
        while True:
            try:
                answer = wait.plain(*wait.args, **wait.kwargs)
            except BaseException as error:  # noqa: BLE001 - the body decides
                wait = flow.throw(_raised(error))
            else:
                wait = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


async def perform_async(flow: Flow[T]) -> T:
    """Run a body to its end, and await where it waits."""
    try:
        wait = next(flow)
        while True:
            try:
                answer = await wait.awaited(*wait.args, **wait.kwargs)
            except BaseException as error:  # noqa: BLE001 - the body decides
                wait = flow.throw(_raised(error))
            else:
                wait = flow.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def _raised(error: BaseException) -> BaseException:
    """Leave out the frame of the face: a reader expects the body's own above the call."""
    trace = error.__traceback__
    return error.with_traceback(None if trace is None else trace.tb_next)


def faces(
    body: Callable[Concatenate[S, P], Flow[T]], *, blocks: bool = False
) -> tuple[Callable[Concatenate[S, P], T], Callable[Concatenate[S, P], Coroutine[Any, Any, T]]]:
    """Make both faces of an operation.

    In the class that has it: `cancel, cancel_async = faces(_cancel)`. If it `blocks` for long, the
    first one refuses to be called in a running event loop.
    """

    def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if blocks:
            refuse_in_loop(called.__name__)
        return perform(body(self, *args, **kwargs))

    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await perform_async(body(self, *args, **kwargs))

    _name(body, called, awaited, returns=_result(body))
    return called, awaited


def streams(
    body: Callable[Concatenate[S, P], Stream[T]], *, blocks: bool = False
) -> tuple[Callable[Concatenate[S, P], Iterator[T]], Callable[Concatenate[S, P], AsyncIterator[T]]]:
    """Make both faces of an operation that is iterated over."""

    def called(self: S, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        if blocks:
            refuse_in_loop(called.__name__)
        stream = body(self, *args, **kwargs)
        for found in stream:
            item: Any = found
            if isinstance(found, Wait):
                item = perform(_next_item(stream, found))
            if item is _END:
                return
            yield item

    async def awaited(self: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        stream = body(self, *args, **kwargs)
        for found in stream:
            item: Any = found
            if isinstance(found, Wait):
                item = await perform_async(_next_item(stream, found))
            if item is _END:
                return
            yield item

    _name(body, called, awaited, returns=Iterator)
    return called, awaited


_END: Any = object()


def _next_item(stream: Stream[T], found: Wait | T) -> Flow[Any]:
    """Go on with a stream that waits, up to its next item; `_END` if there is none."""
    try:
        while isinstance(found, Wait):
            try:
                answer = yield found
            except BaseException as error:  # noqa: BLE001 - the body decides
                found = stream.throw(error)
            else:
                found = stream.send(answer)
    except StopIteration:
        return _END
    return found


def _result(body: Callable[..., Any]) -> Any:
    """Read the type of an operation's result from the annotation of its body."""
    result = get_args(body.__annotations__.get("return"))[-1:]
    return getattr(result[0], "__forward_arg__", result[0]) if result else Any


def _name(body: Callable[..., Any], *made: Any, returns: Any) -> None:
    """Give faces the public name, the docstring and the signature of their operation."""
    signature = inspect.signature(body).replace(return_annotation=returns)
    name = body.__name__.removeprefix("_")
    for face, suffix in zip(made, ("", "_async"), strict=True):
        update_wrapper(face, body)
        face.__name__ = f"{name}{suffix}"
        face.__qualname__ = f"{body.__qualname__.rpartition('.')[0]}.{name}{suffix}"
        face.__signature__ = signature


def pause(seconds: float) -> Flow[None]:
    """Wait for so long, in either colour."""
    yield Wait(time.sleep, asyncio.sleep, (seconds,))


def stack_level() -> int:
    """Count the frames up to the program's own: a warning names the line that called the engine."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"].startswith("milepost."):
        level, frame = level + 1, frame.f_back
    return level


def in_loop() -> bool:
    """Tell whether an event loop runs here: a call that blocks would stop it."""
    # The public one raises where there is none, and every submit asks.
    return asyncio._get_running_loop() is not None  # noqa: SLF001 - exported by asyncio


def refuse_in_loop(name: str) -> None:
    """Refuse to block a running event loop, and name the call that does not."""
    if in_loop():
        raise Invalid(f"{name}() would block the event loop; await {name}_async() instead")
