"""A context for unit tests: a handler is called as the function it is, and no store is opened.

Steps, the cursor and signals are those of a worker's context, rules and encoding included; only
the rows of a store are kept here, for the test to look at.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import Token
from typing import Any, Self, cast

import msgspec
import uuid_utils

from milepost import context as handlers
from milepost.client import Client
from milepost.codec import Codec, JsonCodec
from milepost.config import Settings
from milepost.errors import Invalid
from milepost.hooks import Hooks
from milepost.records import Claim
from milepost.store import durable, jobs
from milepost.store.durable import SavedCursor


class Context(handlers.Context):
    """A handler's context without a store: call the handler with it, then look at its effects.

    `mp.testing.context(attempt=2)` makes one; `mp.testing.Context` is its class, for annotations.
    `steps` and `cursor` come from attempts before this one, `signals` from callers.
    Afterwards `ctx.steps`, `ctx.cursor`, `ctx.usage` and `ctx.reports` (each call of `progress`)
    tell the handler's effects. Inside `with ctx:` it is what `mp.current()` returns. A transaction
    is a store's: a handler that opens one is refused, and is tested on `milepost_app`.
    """

    __slots__ = ("_kept", "_token", "reports")

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002 - what a context calls it
        attempt: int = 1,
        steps: Mapping[str, Any] | None = None,
        cursor: Any = None,
        signals: Sequence[Any] = (),
        codec: Codec | None = None,
    ) -> None:
        if attempt < 1:
            raise Invalid(f"attempt={attempt}: attempts are counted from 1")
        self._kept = _MemoryStore(codec or JsonCodec(), steps or {}, cursor, signals)
        self._token: Token[handlers.Context | None] | None = None
        self.reports: list[tuple[float, str | None]] = []
        """The arguments of each call of `progress`, in order."""
        super().__init__(_claim(id or str(uuid_utils.uuid7()), attempt), self._kept.as_client())

    @property
    def steps(self) -> dict[str, Any]:
        """The results of the steps that are done, by this attempt or one before it."""
        return {name: self._kept.decoded(data) for name, data in self._kept.steps.items()}

    def cancel(self, reason: str = "cancelled") -> None:
        """Ask the handler to stop, as `job.cancel(reason)` does."""
        self.ask_to_stop(reason)

    def next_attempt(self) -> "Context":
        """Give the context of the attempt after this one, had this one failed or been lost."""
        kept = self._kept
        return Context(
            id=self.id,
            attempt=self.attempt + 1,
            steps=self.steps,
            cursor=kept.decoded(kept.saved.data),
            signals=[kept.decoded(data) for data in kept.signals],
            codec=kept.codec,
        )

    def __enter__(self) -> Self:
        self._token = handlers.running.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            handlers.running.reset(self._token)

    def _note(self, share: float, text: str | None) -> None:
        super()._note(share, text)
        self.reports.append((share, text))


context = Context


class _MemoryStore:
    """Stands in for a context's client, and keeps its writes in memory."""

    def __init__(
        self, codec: Codec, steps: Mapping[str, Any], cursor: Any, signals: Sequence[Any]
    ) -> None:
        self.codec = codec
        self.settings = Settings()
        self.hooks = Hooks()
        self.steps = {name: self._encoded(value) for name, value in steps.items()}
        self.saved = SavedCursor(0, self._encoded(cursor))
        self.signals = [self._encoded(data) for data in signals]
        self._operations: dict[Callable[..., Any], Callable[..., Any]] = {
            durable.look: lambda _, name: (name in self.steps, self.steps.get(name)),
            durable.record: lambda _, name, data: self.steps.setdefault(name, data),
            durable.cursor: lambda _: self.saved,
            durable.save: self._save,
            durable.write_progress: lambda _: None,
            jobs.signals: lambda _: self.signals,
        }

    def as_client(self) -> Client:
        """Pass for a client: a context uses only the methods that are here."""
        return cast("Client", self)

    def run(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Answer an operation from memory."""
        return self._operations[operation](*args, **kwargs)

    async def run_async(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Answer an operation from memory."""
        return self.run(operation, *args, **kwargs)

    flow = Client.flow

    async def call_async(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a plain function in a thread."""
        return await asyncio.to_thread(function, *args, **kwargs)

    def lend(self, _: float) -> Any:
        """Refuse: a transaction takes a store."""
        raise Invalid(
            "a context for unit tests has no store, and so no transaction: test this handler on "
            "the fixture milepost_app or in milepost.testing.fresh_store(app)"
        )

    lend_async = lend

    def decoded(self, data: bytes | None) -> Any:
        """Decode a value."""
        return None if data is None else self.codec.decode(data)

    def _encoded(self, value: Any) -> bytes | None:
        return None if value is None else self.codec.encode(value)

    def _save(self, _: Claim, data: bytes | None, *, after: SavedCursor) -> SavedCursor:
        self.saved = SavedCursor(after.number + 1, data)
        return self.saved


def _claim(job_id: str, attempt: int) -> Claim:
    """Make the claim of an attempt whose forerunners raised errors; the rest is empty."""
    empty = {int: 0, str: ""}
    values: dict[str, Any] = {f.name: empty.get(f.type) for f in msgspec.structs.fields(Claim)}
    values |= {"id": job_id, "kind": "unit", "kind_version": 1, "queue": "default"}
    return Claim(**values | {"fence": attempt, "errors": attempt - 1})
