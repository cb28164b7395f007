"""Idempotency-Key: a POST that is sent again gets the first one's answer (H-95)."""

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Header, Request
from starlette.responses import Response

from milepost.codec import marks
from milepost.store import idempotency
from milepost.store.driver import Steps
from milepost.web.auth import who_calls
from milepost.web.engine import Held
from milepost.web.problems import Problem

LONGEST = 255
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A name of the caller's choice for this request. For a day, the same request "
        "with the same key gets the same answer and does nothing again.",
        min_length=1,
        max_length=LONGEST,
        pattern=r"^[\x20-\x7e]+$",
    ),
]


class Answer(msgspec.Struct, frozen=True):
    """What is answered: `location` is below where the API is mounted."""

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


class Once:
    """Does what a request asks for: once, if it has a key."""

    def __init__(self, request: Request, app: Any, key: str | None) -> None:
        self._request = request
        self._client = app.client
        self.key = key

    async def __call__(self, operation: Callable[[], Steps[Answer]]) -> Response:
        """Run an operation and answer with what it returns, or as the first time."""
        return (await self.answer(operation)).response(self._request)

    async def answer(self, operation: Callable[[], Steps[Answer]]) -> Answer:
        """Run an operation, or give back what it returned the first time."""
        if self.key is None:
            answer: Answer = await self._client.run_async(operation)
            return answer
        stored = await self._stored(operation)
        return msgspec.msgpack.decode(stored, type=Answer)

    async def _stored(self, operation: Callable[[], Steps[Answer]]) -> bytes:
        def encoded() -> Steps[bytes]:
            return msgspec.msgpack.encode((yield from operation()))

        who = who_calls(self._request)
        try:
            stored: bytes = await self._client.run_async(
                idempotency.once,
                encoded,
                scope=who.token_id or who.actor,
                key=self.key or "",
                fingerprints=await self._fingerprints(),
            )
        except idempotency.Reused as error:
            raise Problem(422, str(error), name="idempotency-key-reused") from error
        return stored

    async def _fingerprints(self) -> tuple[str, ...]:
        """Tell one request from another; how its JSON is spelled makes no difference."""
        request = self._request
        data = await request.body()
        plain = msgspec.json.encode(await request.json(), order="deterministic") if data else b""
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        asked = f"{request.method} {path}?{request.url.query}\n".encode()
        return marks(self._client.codec, asked + plain, column="idempotency.fingerprint")


async def kept(request: Request, app: Held, key: Key = None) -> Once:
    """Hand over what does a request's work."""
    return Once(request, app, key)


Kept = Annotated[Once, Depends(kept)]
"""What a handler annotates a parameter with that does its work, once for each key."""
