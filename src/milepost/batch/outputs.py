"""What goes in and out of a batch's jobs: staged while a step runs, read by a reducer."""

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from milepost import outcome
from milepost.batch.handles import RunHandle
from milepost.client import Client
from milepost.codec import from_builtin, limited
from milepost.context import Context
from milepost.errors import Invalid
from milepost.outcome import Outcome
from milepost.policy import Later
from milepost.store import chains, runs

if TYPE_CHECKING:
    from milepost.batch.declaration import Declaration, Step

__all__ = ["Inputs", "Outlet", "RunGiven", "To", "to"]

CHUNK = 500
CHUNK_BYTES = 1024**2
ALONG_BYTES = 16 * 1024
"""Less than a chunk, and this small: stored by the transaction that ends their producer."""
PAGE = 500
MANY = "$yield"
"""What marks a result of the last step as several inputs of the reducer."""

Staged = tuple[int, int, bytes]


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

    def add(self, step: int, payload: bytes) -> bool:
        """Take one; True when it is time to store them."""
        self.rows.append((self.count, step, payload))
        self.count += 1
        self._bytes += len(payload)
        return len(self.rows) >= CHUNK or self._bytes >= CHUNK_BYTES

    @property
    def is_small(self) -> bool:
        """Whether all there is may go along with the outcome."""
        return len(self.rows) == self.count and self._bytes <= ALONG_BYTES

    def outputs(self) -> tuple[tuple[int, bytes], ...]:
        """Give them out as an outcome takes them along."""
        return tuple((step, payload) for _, step, payload in self.rows)

    def take(self) -> list[Staged]:
        """Give them out, once."""
        rows, self.rows, self._bytes = self.rows, [], 0
        return rows


class Outlet:
    """Takes what a step's handler gives, one item after the other, in bounded memory."""

    def __init__(self, batch: "Declaration", number: int) -> None:
        self._batch = batch
        self._number = number

    @property
    def _client(self) -> Client:
        return self._batch.client

    def put(self, context: Context, value: Any) -> Outcome:
        """Stage the outputs, or send them along; answer with what the attempt came to."""
        if not isinstance(value, Iterator):
            if small := self._alone(value):
                return small
            value = iter((value,))
        if self._is_last:
            return outcome.succeeded(self._result(list(value)))
        chunk = _Chunk()
        for item in value:
            if self._add(chunk, item):
                context.check()
                self._client.run(runs.stage, context.claim, chunk.take())
        if chunk.is_small:
            return outcome.succeeded(outputs=chunk.outputs())
        if chunk.rows:
            self._client.run(runs.stage, context.claim, chunk.take())
        return outcome.succeeded(staged=chunk.count)

    async def put_async(self, context: Context, value: Any) -> Outcome:
        """Stage the outputs, or send them along; answer with what the attempt came to."""
        if not _is_stream(value) and (small := self._alone(value)):
            return small
        items = value if isinstance(value, AsyncIterable) else _each(value)
        if self._is_last:
            return outcome.succeeded(self._result([item async for item in items]))
        chunk = _Chunk()
        async for item in items:
            if self._add(chunk, item):
                await self._client.run_async(runs.stage, context.claim, chunk.take())
        if chunk.is_small:
            return outcome.succeeded(outputs=chunk.outputs())
        if chunk.rows:
            await self._client.run_async(runs.stage, context.claim, chunk.take())
        return outcome.succeeded(staged=chunk.count)

    def _alone(self, value: Any) -> Outcome | None:
        """Send along what most steps give, one item or none; None when that is too large."""
        if value is None:
            return outcome.succeeded()
        if self._is_last:
            return outcome.succeeded(self._result([value]))
        target, item = self._target(value)
        payload = self._batch.payload(target, item)
        if len(payload) > ALONG_BYTES:
            return None
        return outcome.succeeded(outputs=((target.number, payload),))

    @property
    def _is_last(self) -> bool:
        return self._number == len(self._batch.steps) - 1

    def _add(self, chunk: _Chunk, item: Any) -> bool:
        if item is None:
            return False
        if isinstance(item, Later):
            raise Invalid("Later is raised or returned before anything is yielded, not yielded")
        target, value = self._target(item)
        return chunk.add(target.number, self._batch.payload(target, value))

    def _target(self, item: Any) -> tuple["Step", Any]:
        own = self._batch.steps[self._number]
        if not isinstance(item, To):
            return self._batch.steps[self._number + 1], item
        target = self._batch.named(item.step)
        if target is None or target.number <= own.number:
            later = ", ".join(step.name for step in self._batch.steps[own.number + 1 :]) or "none"
            raise Invalid(f"to({item.step!r}): {own.name} may send to a later step: {later}")
        return target, item.item

    def _result(self, items: list[Any]) -> bytes | None:
        given = [item for item in items if item is not None]
        if any(isinstance(item, To) for item in given):
            raise Invalid("there is no step after the last one; return the item itself")
        if not given:
            return None
        codec = self._client.codec
        data = codec.encode(given[0] if len(given) == 1 else {MANY: given})
        name = self._batch.steps[self._number].name
        return limited(data, most=self._client.settings.max_payload, what=f"what {name} gives")


def _is_stream(value: Any) -> bool:
    """Tell items from one item; what most steps give is told by two cheap looks."""
    looks_so = hasattr(value, "__next__") or hasattr(value, "__aiter__")
    return looks_so and isinstance(value, Iterator | AsyncIterable)


async def _each(value: Any) -> AsyncIterator[Any]:
    if isinstance(value, Iterator):
        for item in value:
            yield item
    elif value is not None:
        yield value


class Inputs:
    """What a reducer reads: the last step's results through the whole chain, page by page."""

    def __init__(
        self, client: Client, batch: "Declaration", element: Any, *, is_async: bool
    ) -> None:
        self._client = client
        self._batch = batch
        self._element = element
        self._is_async = is_async

    def __call__(self, context: Context) -> list[Any]:
        """Make the iterator for one attempt."""
        run_id = context.claim.run_id or ""
        return [self._read_async(run_id) if self._is_async else self._read(run_id)]

    def _read(self, run_id: str) -> Iterator[Any]:
        for one in self._client.run(chains.chain, run_id):
            after: str | None = None
            while page := self._client.run(chains.results, one, self._last, after=after, most=PAGE):
                for after, data in page:  # noqa: B007 - where the next page begins
                    yield from self._items(data)

    async def _read_async(self, run_id: str) -> AsyncIterator[Any]:
        for one in await self._client.run_async(chains.chain, run_id):
            after: str | None = None
            while page := await self._client.run_async(
                chains.results, one, self._last, after=after, most=PAGE
            ):
                for after, data in page:  # noqa: B007 - where the next page begins
                    for item in self._items(data):
                        yield item

    @property
    def _last(self) -> int:
        return len(self._batch.steps) - 1

    def _items(self, data: bytes | None) -> Iterator[Any]:
        if data is None:
            return
        value = self._client.codec.decode(data)
        many = isinstance(value, dict) and value.keys() == {MANY}
        for item in value[MANY] if many else [value]:
            yield msgspec.convert(item, self._element, dec_hook=from_builtin)


class RunGiven:
    """Gives a hook the run that has ended."""

    def __init__(self, client: Client, batch: "Declaration") -> None:
        self._client = client
        self._batch = batch

    def __call__(self, context: Context) -> list[Any]:
        """Read which run it is about; hooks are created by the engine, in plain JSON."""
        run_id = msgspec.json.decode(context.claim.payload or b"{}")["run"]
        return [RunHandle(self._client, run_id, type_of=self._batch.report_type)]
