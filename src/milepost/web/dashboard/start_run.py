"""Starting a run of a declared batch: a form made from the types of its parameters."""

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from milepost.batch.declaration import Batch
from milepost.client import Client
from milepost.errors import Invalid, NotFound
from milepost.web.call import Call, StoredAnswer, SubmitCall
from milepost.web.dashboard import fields as forms
from milepost.web.dashboard.fields import Sent
from milepost.web.dashboard.page import (
    Fields,
    FormRequest,
    PageRoute,
    View,
    audit,
    command,
    form_of,
    go_to,
    one,
    show,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)
NOTHING = Sent(None, {}, {})


def _declared(call: Call) -> dict[str, Batch]:
    """Find the batches that the caller may start; of each name the newest version comes last."""
    found = {batch.name: batch for batch in call.app.batches if batch.steps}
    sees = call.principal.sees_queue
    return {
        name: batch
        for name, batch in sorted(found.items())
        if all(sees(step.queue) for step in batch.plan())
    }


def _pipelines(call: Call) -> list[str]:
    """Name the pipelines in queues that the caller sees."""
    sees = call.principal.sees_queue
    return [name for name, one in call.app.pipelines.items() if sees(one.options["queue"])]


@router.get("/runs/new")
async def ask(*, call: SubmitCall, batch: str = "") -> Response:
    """Ask for the parameters of a run, or first for its batch."""
    return await _form(call, batch, NOTHING)


async def _form(call: Call, name: str, sent: Sent, *, wrong: str = "") -> Response:
    declared = _declared(call)
    if name and name not in declared and name not in _pipelines(call):
        raise NotFound(f"no batch is called {name!r}")
    chosen = declared.get(name)
    inputs = [] if chosen is None else forms.fields_of(chosen)

    async def load() -> View:
        return View(
            template="runs/start.html",
            title="Start a run",
            section="runs",
            cli=command("batches", "start", "APP", name or "NAME"),
            values={
                "declared": declared,
                "pipelines": sorted(_pipelines(call)),
                "batch": chosen,
                "inputs": inputs,
                "sent": sent,
                "wrong": wrong,
            },
        )

    response = await show(call, load)
    response.status_code = 422 if wrong or sent.problems else 200
    return response


@router.post("/runs/new")
async def start(*, call: SubmitCall, request: FormRequest) -> Response:
    """Start a run, or say what of its parameters does not fit."""
    del request
    fields = await form_of(call)
    batch = _declared(call).get(one(fields, "batch"))
    if batch is None:
        raise NotFound(f"no batch is called {one(fields, 'batch')!r}")
    inputs = forms.fields_of(batch)
    sent = forms.read(inputs, fields)
    if sent.problems:
        return await _form(call, batch.name, sent)
    try:
        run_id = await _started(call, batch, sent, _options(fields))
    except Invalid as error:
        return await _form(call, batch.name, sent, wrong=str(error))
    audit(call, "start", f"run {run_id} of {batch.name}")
    return go_to(call.request, f"/runs/{run_id}")


def _options(fields: Fields) -> dict[str, Any]:
    try:
        priority = int(one(fields, "priority") or 0)
    except ValueError:
        raise Invalid("priority: expected a whole number") from None
    return {"priority": priority, "reuse": one(fields, "reuse") == "on"}


async def _started(call: Call, batch: Batch, sent: Sent, options: Mapping[str, Any]) -> str:
    for step in batch.plan():
        call.principal.check_new(batch.name, queue=step.queue, priority=options["priority"])
    starting = batch.starting(sent.params, **options)
    client: Client = call.app.client

    async def stored() -> StoredAnswer:
        run_id = await client.run_async(starting)
        return StoredAnswer(202, b"", f"/runs/{run_id}")

    answer = await call.submitting(batch.name, "run_id", stored)
    return (answer.location or "").rpartition("/")[2]
