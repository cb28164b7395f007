"""Outputs and inputs of a batch's jobs: staged while a step runs, read by a reducer."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from milepost import outcome
from milepost.batch.handles import RunHandle
from milepost.client import Client
from milepost.codec import Unreadable, limited
from milepost.context import Context
from milepost.declare import Unfit
from milepost.errors import Invalid
from milepost.faces import Stream, streams
from milepost.outcome import Outcome, Output
from milepost.policy import Later
from milepost.records import Claim
from milepost.store import chains, outputs
from milepost.store.driver import Steps

if TYPE_CHECKING:
    from milepost.batch.declaration import Batch, Step

CHUNK = 500
CHUNK_BYTES = 1024**2
ALONG_BYTES = 16 * 1024
"""Less than a chunk, and this small: stored by the transaction that ends their producer."""
PAGE = 500
FIRST_PAGE = 16
"""How many results are read at once: the most, and before it is known how large they are."""

Staged = tuple[int, Output]


class To(msgspec.Struct, frozen=True):
    """An item for a named later step."""

    step: str
    item: Any


def to(step: str, item: Any) -> To:
    """Send an item to a later step by its name, past those in between."""
    return To(step, item)


class _Chunk:
    """Outputs that are not staged yet, and how many there were in all."""

    def __init__(self) -> None:
        self.rows: list[Staged] = []
        self.count = 0
        self._bytes = 0

    def add(self, output: Output) -> bool:
        """Take one; True when it is time to store them."""
        self.rows.append((self.count, output))
        self.count += 1
        self._bytes += len(output.payload)
        return len(self.rows) >= CHUNK or self._bytes >= CHUNK_BYTES

    @property
    def is_small(self) -> bool:
        """Whether all there is may go along with the outcome."""
        return len(self.rows) == self.count and self._bytes <= ALONG_BYTES

    def outputs(self) -> tuple[Output, ...]:
        """Give them out as an outcome takes them along."""
        return tuple(output for _, output in self.rows)

    def take(self) -> list[Staged]:
        """Give them out, once."""
        rows, self.rows, self._bytes = self.rows, [], 0
        return rows


class StepOutlet:
    """Takes the outputs of a step's handler, one after the other, in bounded memory."""

    def __init__(self, batch: "Batch", number: int) -> None:
        self._batch = batch
        self._number = number

    @property
    def _client(self) -> Client:
        return self._batch.client

    def put(self, context: Context, value: Any) -> Outcome:
        """Stage the outputs, or send them along; return the attempt's outcome."""
        if not isinstance(value, Iterator):
            if small := self._alone(context.claim, value):
                return small
            value = iter((value,))
        chunk = _Chunk()
        for item in value:
            if self._add(context.claim, chunk, item):
                context.check()
                self._client.run(self._stage, context.claim, chunk.take())
        if along := self._along(chunk):
            return along
        if chunk.rows:
            self._client.run(self._stage, context.claim, chunk.take())
        return self._staged(chunk)

    async def put_async(self, context: Context, value: Any) -> Outcome:
        """Stage the outputs, or send them along; return the attempt's outcome."""
        if not _is_stream(value) and (small := self._alone(context.claim, value)):
            return small
        items = value if isinstance(value, AsyncIterable) else _each(value)
        chunk = _Chunk()
        async for item in items:
            if self._add(context.claim, chunk, item):
                await self._client.run_async(self._stage, context.claim, chunk.take())
        if along := self._along(chunk):
            return along
        if chunk.rows:
            await self._client.run_async(self._stage, context.claim, chunk.take())
        return self._staged(chunk)

    def _alone(self, claim: Claim, value: Any) -> Outcome | None:
        """Send along one item or none, as most steps yield; None if it is too large."""
        if value is None:
            return outcome.succeeded()
        if self._is_last:
            return outcome.succeeded(self._result(value))
        output = self._output(claim, value)
        small = len(output.payload) <= ALONG_BYTES
        return outcome.succeeded(outputs=(output,)) if small else None

    def _along(self, chunk: _Chunk) -> Outcome | None:
        """Send a few items along; None when they are to be staged, or some are staged already."""
        if self._is_last:
            if chunk.count == 1:
                return outcome.succeeded(chunk.rows[0][1].payload)
            if chunk.is_small:
                return outcome.succeeded(kept=tuple(o.payload for o in chunk.outputs()))
            return None
        return outcome.succeeded(outputs=chunk.outputs()) if chunk.is_small else None

    def _staged(self, chunk: _Chunk) -> Outcome:
        return outcome.succeeded(staged=None if self._is_last else chunk.count)

    @property
    def _is_last(self) -> bool:
        return self._number == len(self._batch.steps) - 1

    @property
    def _stage(self) -> Callable[[Claim, list[Staged]], Steps[None]]:
        return outputs.keep if self._is_last else outputs.stage

    def _add(self, claim: Claim, chunk: _Chunk, item: Any) -> bool:
        if item is None:
            return False
        if isinstance(item, Later):
            raise Invalid("Later is raised or returned before anything is yielded, not yielded")
        if self._is_last:
            # A single one is the job's result, however large.
            return chunk.add(Output(self._number, self._result(item))) and chunk.count > 1
        return chunk.add(self._output(claim, item))

    def _output(self, claim: Claim, item: Any) -> Output:
        target, value = self._target(item)
        return self._batch.output(target, value, tenant=claim.tenant)

    def _target(self, item: Any) -> tuple["Step", Any]:
        own = self._batch.steps[self._number]
        if not isinstance(item, To):
            return self._batch.steps[self._number + 1], item
        target = self._batch.named(item.step)
        if target is None or target.number <= own.number:
            later = ", ".join(step.name for step in self._batch.steps[own.number + 1 :]) or "none"
            raise Invalid(f"to({item.step!r}): {own.name} may send to a later step: {later}")
        return target, item.item

    def _result(self, item: Any) -> bytes:
        if isinstance(item, To):
            raise Invalid("there is no step after the last one; return the item itself")
        name = self._batch.steps[self._number].name
        most = self._client.settings.payload_most
        return limited(self._client.codec.encode(item), most=most, what=f"the output of {name}")


def _is_stream(value: Any) -> bool:
    """Tell an iterator of items from one item; two cheap looks decide most cases."""
    looks_so = hasattr(value, "__next__") or hasattr(value, "__aiter__")
    return looks_so and isinstance(value, Iterator | AsyncIterable)


async def _each(value: Any) -> AsyncIterator[Any]:
    if isinstance(value, Iterator):
        for item in value:
            yield item
    elif value is not None:
        yield value


class _Pages:
    """How many rows to ask for at once: few at first, more while they are small."""

    def __init__(self) -> None:
        self.most = FIRST_PAGE

    def saw(self, sizes: Iterable[int]) -> None:
        """Learn from a page how large its rows were."""
        size = sum(sizes)
        grown = self.most * 2 if size < CHUNK_BYTES else self.most * CHUNK_BYTES // size
        self.most = min(PAGE, max(1, grown))


class Inputs:
    """The inputs of a reducer: the last step's results through the whole chain, page by page."""

    def __init__(self, client: Client, batch: "Batch", element: Any, *, is_async: bool) -> None:
        self._client = client
        self._batch = batch
        self._element = element
        self._is_async = is_async

    def __call__(self, context: Context) -> list[Any]:
        """Make the iterator for one attempt."""
        read = self.read_async if self._is_async else self.read
        return [read(context.claim.run_id or "")]

    def _read(self, run_id: str) -> Stream[Any]:
        """Read the results of a run and of those that it resumes."""
        run, pages = self._client.flow, _Pages()
        for one in (yield from run(chains.chain, run_id)):
            results = partial(chains.results, one, self._last)
            after: str | None = None
            while page := (yield from run(results, after=after, most=pages.most)):
                pages.saw(len(data or b"") for _, data, _ in page)
                for after, data, several in page:
                    if several:
                        yield from self._several(after)
                    elif data is not None:
                        yield self._item(data)

    read, read_async = streams(_read)

    def _several(self, job_id: str) -> Stream[Any]:
        pages, after = _Pages(), -1
        while page := (
            yield from self._client.flow(outputs.kept, job_id, after=after, most=pages.most)
        ):
            pages.saw(len(data) for _, data in page)
            after = page[-1][0]
            yield from (self._item(data) for _, data in page)

    @property
    def _last(self) -> int:
        return len(self._batch.steps) - 1

    def _item(self, data: bytes) -> Any:
        decode = self._client.codec.decode
        try:
            return decode(data, self._element)
        except Unreadable:
            return decode(data)
        except Invalid as error:
            raise Unfit(f"a result of the last step does not fit the reducer: {error}") from error


class RunArgument:
    """Gives a hook the run that has ended."""

    def __init__(self, client: Client, batch: "Batch") -> None:
        self._client = client
        self._batch = batch

    def __call__(self, context: Context) -> list[Any]:
        """Read which run it is about; hooks are created by the engine, in plain JSON."""
        run_id = msgspec.json.decode(context.claim.payload or b"{}")["run"]
        return [RunHandle(self._client, run_id, type_of=self._batch.report_type)]
