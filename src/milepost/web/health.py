"""What a load balancer asks: is the process alive, and can it reach its store."""

from fastapi import APIRouter
from pydantic import BaseModel

from milepost.store import workers
from milepost.web.body import Route
from milepost.web.engine import Held
from milepost.web.problems import problems

router = APIRouter(route_class=Route, tags=["health"])


class Health(BaseModel):
    """It is well."""

    status: str


@router.get("/livez", responses={status: problems()[status] for status in (421, 422)})
async def livez() -> Health:
    """Tell that the process answers."""
    return Health(status="alive")


@router.get("/readyz", responses={status: problems()[status] for status in (421, 422, 503)})
async def readyz(app: Held) -> Health:
    """Tell that the store can be reached."""
    await app.client.run_async(workers.now)
    return Health(status="ready")
