"""The overview: what needs somebody, how much there is, and where jobs are."""

from fastapi import APIRouter
from starlette.responses import Response

from milepost.web.call import ReadCall
from milepost.web.dashboard.page import PageRoute, View, show

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/")
async def overview(*, call: ReadCall) -> Response:
    """Show how everything stands."""

    async def load() -> View:
        queues = await call.app.queues.list_async()
        return View(
            template="overview/page.html",
            title="Overview",
            section="overview",
            cli="milepost top",
            values={"queues": queues},
            parts={"worst-queues": "overview/queues.html"},
        )

    return await show(call, load)
