"""/v1/explain: why something stands where it does, and what happens next."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from milepost.codec import check_text
from milepost.errors import NotFound
from milepost.store.blockers import explain_any
from milepost.web.call import ReadCall, json_response
from milepost.web.documents import document
from milepost.web.problems import answers
from milepost.web.route import Route
from milepost.web.subjects import visible

router = APIRouter(route_class=Route, tags=["explain"])
Named = Literal["job", "run", "queue", "schedule", "channel", "pipeline"]


class ExplanationDocument(BaseModel):
    """Why something stands where it does, the nearest reason first, and what happens next."""

    subject: str
    id: str
    kind: str
    state: str
    reasons: list[str] = Field(description="One word for each reason.", examples=[["no_worker"]])
    details: list[str] = Field(description="The same reasons in sentences.")
    ruled_out: list[str] = Field(
        description="What one might suspect of an open job that does not run, and is not the cause."
    )
    next: str = Field(description="The next thing that will happen.")


@router.get("/v1/explain/{subject}/{name}", responses=answers(ExplanationDocument, 404))
async def explain(*, subject: Named, name: str, call: ReadCall) -> Response:
    """Say why a job, run, queue, schedule, channel or pipeline stands where it does."""
    if subject == "job":
        name = (await visible(call, call.app.jobs, name)).id
    elif subject == "run":
        name = (await visible(call, call.app.runs, name)).id
    else:
        call.principal.check_unbound(f"a {subject}", queues=subject != "queue")
        check_text(name, what=subject)
        if subject == "queue" and not call.principal.sees_queue(name):
            raise NotFound(f"no job was ever in a queue {name!r}")
    return json_response(document(ExplanationDocument, await call.run(explain_any, subject, name)))
