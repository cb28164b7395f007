"""/v1/errors: errors that are the same one, with how often and since when."""

from datetime import datetime
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from milepost.records import ErrorGroup
from milepost.store import failures
from milepost.web.call import ReadCall, json_response
from milepost.web.documents import FailureDocument, ListDocument, document
from milepost.web.paging import Limit
from milepost.web.problems import answers
from milepost.web.route import Route

router = APIRouter(route_class=Route, tags=["errors"])


class ErrorGroupDocument(BaseModel):
    """Attempts that failed with the same error: of one type and code, in one function."""

    fingerprint: str
    type: str
    message: str = Field(description="As it was said last.")
    code: str | None = None
    place: str | None = Field(default=None, examples=["shop/tasks.py:12 in convert"])
    kind: str | None = Field(description="The kind of the job that failed so last.")
    count: int = Field(description="Failed attempts, of those that are kept.")
    more: bool = Field(description="Whether only the newest of its jobs were asked how they stand.")
    failed: int = Field(description="Jobs that it ended.")
    open: int = Field(description="Jobs that failed so last and go on.")
    first_at: datetime
    last_at: datetime
    job: str = Field(description="The job that failed so last.")
    hours: list[int] = Field(description="Each of the last 24 hours, the current one last.")


class ErrorList(ListDocument[ErrorGroupDocument]):
    """Errors, the one that was seen last first."""


class ErrorExample(FailureDocument):
    """One attempt that failed so."""

    job: str


class ErrorDetailDocument(ErrorGroupDocument):
    """One error, with its last examples and what its jobs share."""

    shared: dict[str, dict[str, int]] = Field(
        description="How many of its newest jobs are of each kind, version, queue and tenant."
    )
    examples: list[ErrorExample]


def _document(group: ErrorGroup) -> dict[str, Any]:
    return document(ErrorGroupDocument, group, job=group.job_id)


@router.get("/v1/errors", responses=answers(ErrorList))
async def listing(*, call: ReadCall, limit: Limit = 50) -> Response:
    """List errors, the one that was seen last first."""
    call.principal.check_unbound("the list of errors")
    found = await call.run(failures.groups, most=limit)
    return json_response({"items": [_document(group) for group in found]})


@router.get("/v1/errors/{fingerprint}", responses=answers(ErrorDetailDocument, 404))
async def show(*, fingerprint: str, call: ReadCall) -> Response:
    """Show one error: its last examples, and what its jobs share."""
    call.principal.check_unbound("the list of errors")
    found = await call.run(failures.group, fingerprint)
    examples = [document(ErrorExample, one, job=job_id) for job_id, one in found.examples]
    return json_response({**_document(found.group), "shared": found.shared, "examples": examples})
