"""Requests whose body is read within limits, and only as JSON."""

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from milepost.web.limits import DEEPEST, too_deep
from milepost.web.problems import Problem

__all__ = ["Route"]

ROOM = 64 * 1024
"""What a body may hold beside a payload of the largest size."""


class JsonRequest(Request):
    """A request whose body has a limit and is JSON."""

    async def body(self) -> bytes:
        """Read the body, or refuse one that is too large before all of it has come."""
        if not hasattr(self, "_body"):
            most = self.app.state.engine.settings.max_payload + ROOM
            told = self.headers.get("content-length", "")
            if told.isdecimal() and int(told) > most:
                raise _too_large(most)
            pieces, size = [], 0
            async for piece in self.stream():
                size += len(piece)
                if size > most:
                    raise _too_large(most)
                pieces.append(piece)
            self._body = b"".join(pieces)
            if self._body:
                self._check_type()
        return self._body

    async def json(self) -> Any:
        """Read the body as JSON, no deeper than allowed."""
        data = await self.body()
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Problem(400, f"the body is not JSON: {error}", name="malformed-json") from error
        except RecursionError as error:
            raise _too_deep() from error
        if too_deep(data, value):
            raise _too_deep()
        return value

    def _check_type(self) -> None:
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not (
            kind.startswith("application/") and kind.endswith("+json")
        ):
            raise Problem(
                415,
                "send JSON, with Content-Type: application/json",
                headers={"Accept": "application/json"},
            )


def _too_large(most: int) -> Problem:
    # The rest of the body is not read: the connection is of no more use.
    headers = {"Connection": "close"}
    return Problem(
        413, f"the body may have {most:,} bytes; put more into a bucket", headers=headers
    )


def _too_deep() -> Problem:
    return Problem(400, f"the body's JSON is nested more than {DEEPEST} deep", name="too-deep")


class Route(APIRoute):
    """A route that reads its requests so."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()

        async def limited(request: Request) -> Response:
            return await handler(JsonRequest(request.scope, request.receive))

        return limited
