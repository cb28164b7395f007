"""Requests whose body is read within limits, and only as JSON."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
from fastapi import Request
from fastapi.dependencies.models import Dependant
from starlette.responses import Response

from milepost.codec import nested_deeper
from milepost.web.paths import NamedRoute
from milepost.web.problems import HttpProblem

DEEPEST = 100
"""How deep a request's JSON may be nested."""

BODY_SECONDS = 60
"""How long a request's body may take to come."""

NAME_LONGEST, NAMES_MOST = 100, 10
"""How much of an unknown parameter's name is repeated, and of how many."""

ROOM = 64 * 1024
"""Bytes that a body may hold in addition to a payload of the largest size."""

CLOSE = {"Connection": "close"}
"""The rest of the body is not read: the connection is of no more use."""


class JsonRequest(Request):
    """A request whose body has a limit and is JSON."""

    async def body(self) -> bytes:
        """Read the body, or refuse one that is too large before all of it has come."""
        return await self._read(self.app.state.engine.settings.max_payload + ROOM)

    async def small(self, most: int) -> Any:
        """Read a body of at most so many bytes as JSON; None if there is none."""
        return await self.json() if await self._read(most) else None

    async def _read(self, most: int) -> bytes:
        if hasattr(self, "_body"):
            return self._body
        declared = self.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                self._body = await self._arrived(most)
        except TimeoutError:
            detail = f"the body did not come within {BODY_SECONDS} seconds; send it in one go"
            raise HttpProblem(408, detail, headers=CLOSE) from None
        if self._body:
            self._check_type()
        return self._body

    async def _arrived(self, most: int) -> bytes:
        pieces, size = [], 0
        async for piece in self.stream():
            size += len(piece)
            if size > most:
                raise _too_large(most)
            pieces.append(piece)
        return b"".join(pieces)

    async def json(self) -> Any:
        """Read the body as JSON; one that is deeper than allowed is not decoded at all."""
        data = await self.body()
        if nested_deeper(data, DEEPEST):
            detail = f"the body's JSON is nested more than {DEEPEST} deep"
            raise HttpProblem(400, detail, name="too-deep")
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            detail = f"the body is not JSON: {error}"
            raise HttpProblem(400, detail, name="malformed-json") from error

    def _check_type(self) -> None:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not (
            kind.startswith("application/") and kind.endswith("+json")
        ):
            detail = "send JSON, with Content-Type: application/json"
            raise HttpProblem(415, detail, headers={"Accept": "application/json"})


def _too_large(most: int) -> HttpProblem:
    detail = f"the body may have {most:,} bytes; put more into a bucket"
    return HttpProblem(413, detail, headers=CLOSE)


class Route(NamedRoute):
    """A route that reads its requests so, and refuses a query parameter that it does not know.

    A filter that was misspelled and ignored would answer with everything.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()
        known = set(_queries(self.dependant))

        async def limited(request: Request) -> Response:
            self._check_query(request, known)
            return await handler(JsonRequest(request.scope, request.receive))

        return limited

    def _check_query(self, request: Request, known: set[str]) -> None:
        unknown = [name[:NAME_LONGEST] for name in request.query_params if name not in known]
        if not unknown:
            return
        there = f"there are {', '.join(sorted(known))}" if known else "this path takes none"
        errors = [{"where": f"query.{name}", "what": there} for name in unknown[:NAMES_MOST]]
        detail = f"unknown query parameter {unknown[0]!r}; {there}"
        raise HttpProblem(422, detail, name="unknown-parameter", errors=errors)


def _queries(dependant: Dependant) -> Iterator[str]:
    """Name the query parameters of a handler and of its dependencies."""
    yield from (field.alias for field in dependant.query_params)
    for each in dependant.dependencies:
        yield from _queries(each)


class PushedRoute(Route):
    """A route that others call by an address of ours, to which they may add parameters."""

    def _check_query(self, request: Request, known: set[str]) -> None:
        pass
