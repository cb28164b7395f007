"""The call that every handler is given: it knows its caller, its app and its headers.

The annotation of a handler's `call` says the scope that it needs, and the headers that it takes:

| annotation | scope | headers |
|---|---|---|
| `ReadCall` | read | |
| `ViewCall` | read | If-None-Match, Prefer: one job or run, perhaps once it has ended |
| `OperateCall`, `AdminCall` | operate, admin | Idempotency-Key |
| `SubmitCall`, `RestartCall` | submit, operate | Idempotency-Key, Prefer: it makes a job or a run |
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, ParamSpec, Protocol, TypeVar

import msgspec
from fastapi import Depends, Header, Request
from starlette.responses import Response

from milepost.batch.declaration import Batch
from milepost.batch.handles import Runs
from milepost.bulk import Bulk
from milepost.client import Client
from milepost.codec import marks
from milepost.config import Settings
from milepost.faces import Flow, perform_async
from milepost.handles import Jobs
from milepost.hooks import one_call
from milepost.ingest.pipeline import Pipeline
from milepost.observe.metrics import WorkerMetrics
from milepost.queues import Queues
from milepost.records import NewJob
from milepost.request.batch import Batches as RequestBatches
from milepost.request.kind import Requests
from milepost.rules import Limits
from milepost.schedules import Schedules
from milepost.store import idempotency
from milepost.store.driver import Steps
from milepost.web.access import Principal
from milepost.web.problems import HttpProblem

P = ParamSpec("P")
T = TypeVar("T")

KEY_LONGEST = 255
WAIT_LONGEST = 60
"""How many seconds an answer is held back at most."""

Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A name of the caller's choice for this request. For a day, the same request "
        "with the same key gets the same answer and does nothing again.",
        min_length=1,
        max_length=KEY_LONGEST,
        pattern=r"^[\x20-\x7e]+$",
    ),
]
Prefer = Annotated[
    str | None,
    Header(
        description="`wait=n` holds the answer back until the end, for up to n seconds "
        f"(at most {WAIT_LONGEST}); `respond-async` asks for the answer at once.",
        examples=["wait=10"],
    ),
]


class Engine(Protocol):
    """An app: declarations, and the way to its store. The layers below must not know `App`."""

    client: Client
    settings: Settings
    jobs: Jobs
    bulk: Bulk
    runs: Runs
    queues: Queues
    limits: Limits
    schedules: Schedules
    requests: Requests
    request_batches: RequestBatches
    metrics: WorkerMetrics | None
    """Where workers of this process count their work, if they do."""

    @property
    def batches(self) -> Sequence[Batch]:
        """The declared batches."""
        ...

    @property
    def pipelines(self) -> Mapping[str, Pipeline[Any]]:
        """The declared pipelines by their names."""
        ...

    def new_job(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> NewJob:
        """Make a job that is to be stored, or raise `Invalid` saying why not."""
        ...


class Preference(msgspec.Struct, frozen=True):
    """How long a caller would wait for an end before it gets an answer (RFC 7240)."""

    wait: int | None = None
    respond_async: bool = False

    @classmethod
    def parse(cls, header: str) -> "Preference":
        """Read the header; unknown preferences are ignored, as the RFC has it."""
        wait, respond_async = None, False
        for word in header.split(","):
            name, _, value = word.partition(";")[0].strip().partition("=")
            value = value.strip().strip('"')
            if name.strip().lower() == "respond-async":
                respond_async = True
            elif name.strip().lower() == "wait" and value.isascii() and value.isdecimal():
                wait = min(int(value[:9]), WAIT_LONGEST)
        return cls(wait, respond_async)

    @property
    def applied(self) -> dict[str, str]:
        """Say which preferences are applied."""
        words = ["respond-async"] * self.respond_async
        words += [] if self.wait is None else [f"wait={self.wait}"]
        return {"Preference-Applied": ", ".join(words)} if words else {}


class StoredAnswer(msgspec.Struct, frozen=True):
    """An answer as it is stored for its key: `location` is below where the API is mounted."""

    status: int
    body: bytes
    location: str | None = None
    headers: dict[str, str] = {}

    def response(self, request: Request) -> Response:
        """Write it."""
        headers = dict(self.headers)
        if self.location is not None:
            headers["Location"] = request.scope.get("root_path", "").rstrip("/") + self.location
        return Response(self.body, self.status, headers, media_type="application/json")


def json_response(document: object) -> Response:
    """Answer with a document."""
    return Response(msgspec.json.encode(document), media_type="application/json")


class Call:
    """A request whose caller has the scope that its route needs."""

    def __init__(
        self,
        request: Request,
        scope: str,
        *,
        key: str | None = None,
        prefer: str | None = None,
        if_none_match: str | None = None,
    ) -> None:
        self.principal: Principal = request.scope["milepost.principal"]
        if not self.principal.may(scope):
            raise HttpProblem(403, f"this needs a token with the scope {scope!r}")
        self.request = request
        self.app: Engine = request.app.state.engine
        self.key = key
        self.if_none_match = if_none_match
        preferred = Preference.parse(prefer or "")
        # Waiting shows nothing that a look would not.
        wait = preferred.wait if self.principal.may("read") else None
        self.preference = Preference(wait, preferred.respond_async)

    async def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a store operation."""
        return await self.app.client.run_async(operation, *args, **kwargs)

    async def submitting(
        self, kind: str, subject: str, store: Callable[[], Awaitable[StoredAnswer]]
    ) -> StoredAnswer:
        """Store a job, or a run, as hooks see it; the `subject` is the field for its id."""

        def ended(answer: StoredAnswer) -> dict[str, Any]:
            return {subject: (answer.location or "").rpartition("/")[2]}

        await perform_async(self.app.client.tell_rules())
        body: Flow[StoredAnswer] = one_call(store)
        return await perform_async(self.app.client.submitting(kind, body, ended))

    async def once(self, operation: Callable[[], Steps[Any]]) -> Response:
        """Do an operation, once for each key, and answer with the document that it returns."""

        def answered() -> Steps[StoredAnswer]:
            return StoredAnswer(200, msgspec.json.encode((yield from operation())))

        return (await self.answer(answered)).response(self.request)

    async def answer(self, operation: Callable[[], Steps[StoredAnswer]]) -> StoredAnswer:
        """Do an operation, or give back the answer of the first time (H-95).

        The answer is stored by the operation's own transaction.
        """
        if self.key is None:
            return await self.run(operation)

        def encoded() -> Steps[bytes]:
            return msgspec.msgpack.encode((yield from operation()))

        try:
            stored = await self.run(
                idempotency.once,
                encoded,
                scope=self.principal.id,
                key=self.key,
                fingerprints=await self._fingerprints(),
            )
        except idempotency.Reused as error:
            raise HttpProblem(422, str(error), name="idempotency-key-reused") from error
        return msgspec.msgpack.decode(stored, type=StoredAnswer)

    async def _fingerprints(self) -> tuple[str, ...]:
        """Tell one request from another; how its JSON is spelled makes no difference."""
        request = self.request
        data = await request.body()
        plain = msgspec.json.encode(await request.json(), order="deterministic") if data else b""
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        line = f"{request.method} {path}?{request.url.query}\n".encode()
        return marks(self.app.client.codec, line + plain, column="idempotency.fingerprint")


async def _reading(request: Request) -> Call:
    return Call(request, "read")


async def _viewing(
    request: Request,
    if_none_match: Annotated[str | None, Header()] = None,
    prefer: Prefer = None,
) -> Call:
    return Call(request, "read", prefer=prefer, if_none_match=if_none_match)


def _keyed(scope: str) -> Callable[..., Awaitable[Call]]:
    async def keyed(request: Request, key: Key = None) -> Call:
        return Call(request, scope, key=key)

    return keyed


def _creating(scope: str) -> Callable[..., Awaitable[Call]]:
    async def creating(request: Request, key: Key = None, prefer: Prefer = None) -> Call:
        return Call(request, scope, key=key, prefer=prefer)

    return creating


ReadCall = Annotated[Call, Depends(_reading)]
ViewCall = Annotated[Call, Depends(_viewing)]
OperateCall = Annotated[Call, Depends(_keyed("operate"))]
AdminCall = Annotated[Call, Depends(_keyed("admin"))]
SubmitCall = Annotated[Call, Depends(_creating("submit"))]
RestartCall = Annotated[Call, Depends(_creating("operate"))]
