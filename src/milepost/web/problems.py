"""Every error as an RFC 9457 problem: what happened, and what to do, without a secret in it."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from milepost.errors import (
    AccessRefused,
    IllegalMove,
    Invalid,
    JobFailed,
    LeaseLost,
    MilepostError,
    NotFinished,
    NotFound,
    QueueFull,
    Unavailable,
    WaitTimeout,
)
from milepost.telemetry import Log

MEDIA = "application/problem+json"
BUSY_SECONDS = 1
"""When to try again if the store could not be reached."""

STATUS: tuple[tuple[type[MilepostError], int], ...] = (
    (Invalid, 422),
    (NotFound, 404),
    (Unavailable, 503),
    (QueueFull, 429),
    (IllegalMove, 409),
    (LeaseLost, 409),
    (JobFailed, 409),
    (NotFinished, 409),
    (WaitTimeout, 504),
)

TITLES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""RFC 9110's names; older Pythons have those of older RFCs."""

EXPLAINED = {
    404: "there is nothing at this path; /openapi.json lists what there is",
    405: "this path does not take this method; the Allow header names those it takes",
}

Responses = dict[int | str, dict[str, Any]]
"""The answers of a route, as OpenAPI describes them."""

log = Log("milepost.web")


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str = Field(examples=["urn:milepost:problem:not-found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str
    errors: list[dict[str, str]] | None = Field(
        default=None, description="Where the request does not fit, and why."
    )


class HttpProblem(HTTPException):
    """An error that only HTTP knows: a status, what to do, and perhaps a name of its own."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        name: str | None = None,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.name = name
        self.errors = errors


def problem_response(problem: HttpProblem) -> Response:
    """Write a problem."""
    title = _title(problem.status_code)
    document: dict[str, Any] = {
        "type": f"urn:milepost:problem:{problem.name or title.lower().replace(' ', '-')}",
        "title": title,
        "status": problem.status_code,
        "detail": problem.detail,
    }
    if problem.errors:
        document["errors"] = list(problem.errors)
    return Response(
        msgspec.json.encode(document), problem.status_code, problem.headers, media_type=MEDIA
    )


def _title(status: int) -> str:
    return TITLES.get(status) or HTTPStatus(status).phrase


def problems(*statuses: int) -> Responses:
    """Document these problems of a route, in addition to those that every route has."""
    every = {400, 401, 403, 421, 422, 429, 503, *statuses}
    if 413 in every:  # noqa: PLR2004 - a route that takes a body waits for it only so long
        every.add(408)
    content = {MEDIA: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
    return {status: {"description": _title(status), "content": content} for status in sorted(every)}


def answers(model: Any, *statuses: int, description: str | None = None) -> Responses:
    """Document a route that answers 200 with this document, or with these problems."""
    found: dict[str, Any] = {"model": model}
    if description is not None:
        found["description"] = description
    return {200: found, **problems(*statuses)}


def install(api: FastAPI) -> None:
    """Have every error of an app answered as a problem, and described so."""
    for kind in (MilepostError, HTTPException, RequestValidationError, Exception):
        api.add_exception_handler(kind, _answered)
    routes = api.openapi

    def described() -> dict[str, Any]:
        # FastAPI adds the schemas of answers in JSON; a problem's media type is another one.
        found = routes()
        found["components"]["schemas"]["ProblemDocument"] = ProblemDocument.model_json_schema()
        return found

    api.openapi = described  # type: ignore[method-assign]


async def _answered(_request: Request, error: Exception) -> Response:
    return problem_response(problem_of(error))


def problem_of(error: Exception) -> HttpProblem:
    """Say an error in HTTP's words."""
    match error:
        case HttpProblem():
            return error
        case MilepostError():
            return _from_engine(error)
        case RequestValidationError():
            return _misfit(error)
        case HTTPException():
            detail = EXPLAINED.get(error.status_code, str(error.detail))
            return HttpProblem(error.status_code, detail, headers=error.headers)
    log.warning("unexpected error", error=type(error).__name__)
    return HttpProblem(500, "an unexpected error; the server's log names it")


def _from_engine(error: MilepostError) -> HttpProblem:
    status = next((code for kind, code in STATUS if isinstance(error, kind)), 500)
    if isinstance(error, AccessRefused) and error.right is not None:
        log.warning("the server's role lacks a right", error=str(error))
        detail = f"the role that this server has in the database may not do this: {error.right}"
        return HttpProblem(500, detail, name="server-lacks-a-right")
    if isinstance(error, Unavailable):
        log.warning("store unavailable", error=str(error))
        detail = "the store cannot be used now; try again"
        return HttpProblem(status, detail, headers={"Retry-After": str(BUSY_SECONDS)})
    if isinstance(error, QueueFull):
        later = {"Retry-After": str(ceil(error.retry_after))}
        return HttpProblem(status, str(error), headers=later)
    return HttpProblem(status, str(error))


def _misfit(error: RequestValidationError) -> HttpProblem:
    # The input is not repeated: an error may end up where the content must not.
    found = [
        {"where": ".".join(map(str, each["loc"])), "what": str(each["msg"])}
        for each in error.errors()
    ]
    detail = "; ".join(f"{each['where']}: {each['what']}" for each in found[:5])
    return HttpProblem(422, detail or "the request does not fit", errors=found[:50])
