"""Saved views: searches of jobs that have a name, for everybody."""

from fastapi import APIRouter
from starlette.responses import Response

from milepost import filters
from milepost.store import dashboard
from milepost.web.call import OperateCall
from milepost.web.dashboard.page import (
    PageRoute,
    acted,
    form_of,
    one,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.post("/views")
async def save(*, call: OperateCall) -> Response:
    """Save a search under a name, or change the one of that name."""
    fields = await form_of(call)
    call.principal.check_unbound("saving a view")
    name, query = one(fields, "name"), str(filters.parse(one(fields, "q")))
    await call.run(dashboard.save_view, name, query, actor=call.principal.actor)
    call.request.app.state.rail.forget()
    return acted(call, "save view", name, "/jobs", q=query)


@router.post("/views/drop")
async def drop(*, call: OperateCall) -> Response:
    """Delete a saved view."""
    fields = await form_of(call)
    call.principal.check_unbound("deleting a view")
    name = one(fields, "name")
    await call.run(dashboard.drop_view, name)
    call.request.app.state.rail.forget()
    return acted(call, "delete view", name, "/jobs", q=one(fields, "q"))
