"""/v1/events: every move as it is committed, as server-sent events."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse

from milepost.errors import MilepostError
from milepost.specs import public
from milepost.store import events
from milepost.store.events import Cursor, Event
from milepost.subjects import checked_id
from milepost.web.access import Principal
from milepost.web.call import Call, ReadCall
from milepost.web.problems import HttpProblem, problems
from milepost.web.route import Route

router = APIRouter(route_class=Route, tags=["events"])

STREAMS = 200
"""How many may be open in one process."""

STREAMS_EACH = 20
"""How many of them one token may hold: each looks at the store by itself."""

PORTION = 500
LOOK_FIRST = 0.05
LOOK_LONGEST = 0.5
LOOK_GROWS = 1.5
SECONDS_MOST = 86_400
BEAT_SECONDS = 10.0
"""How often a quiet stream says that it is alive, and asks whether its token still is."""

EVENT = {
    "type": "object",
    "description": "One event of the stream.",
    "properties": {
        "id": {"type": "string"},
        "event": {"enum": ["hello", "job", "run", "reset", "beat", "end"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
    "required": ["id", "event", "data"],
}
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_open: Counter[str] = Counter()


class Subscription(msgspec.Struct, frozen=True):
    """The events that a follower wants to hear of, and may."""

    principal: Principal
    job: str | None = None
    run: str | None = None
    kind: str | None = None
    queue: str | None = None

    def wants(self, event: Event) -> bool:
        """Tell whether an event is for this follower."""
        return (
            self.principal.sees_within(event.tenant, event.queue)
            and self.job in (None, event.id if event.machine == "job" else ())
            and self.run in (None, event.id if event.machine == "run" else event.run_id)
            and self.kind in (None, event.kind)
            and self.queue in (None, event.queue)
        )


@router.get(
    "/v1/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One event for each move: `event` is job or run, `data` is JSON, `id` "
            "is for Last-Event-ID. `signal` is WORK_DONE where a partition of a pipeline ended, "
            "CONSOLIDATE where all of a run are read. A stream begins with `event: hello`; "
            "`event: reset` says that "
            "moves were missed, `event: end` that the time asked for is over.",
            "content": {"text/event-stream": {"schema": EVENT}},
        },
        **problems(404, 422),
    },
)
async def stream(
    *,
    call: ReadCall,
    last_event_id: Annotated[
        str | None, Header(description="The id of the last event that was heard.")
    ] = None,
    job: Annotated[str | None, Query(description="Moves of this job only.")] = None,
    run: Annotated[str | None, Query(description="Moves of this run and its jobs only.")] = None,
    kind: Annotated[str | None, Query()] = None,
    queue: Annotated[str | None, Query()] = None,
    seconds: Annotated[
        float | None,
        Query(ge=0, le=SECONDS_MOST, description="End the stream after so long; 0: what is there."),
    ] = None,
) -> StreamingResponse:
    """Follow the moves of jobs and runs, each once, from now on or from Last-Event-ID."""
    wanted = Subscription(
        call.principal,
        None if job is None else checked_id(job),
        None if run is None else checked_id(run, what="run"),
        kind,
        queue,
    )
    if last_event_id:
        cursor = Cursor.parse(last_event_id)
        # One that cannot be read is refused now: once the stream has begun it is too late.
        await call.run(events.follow, cursor, most=1)
    else:
        cursor = await call.run(events.here)
    _check_room(call.principal)
    stream = _counted(call, wanted, cursor, math.inf if seconds is None else seconds)
    return StreamingResponse(stream, media_type="text/event-stream", headers=HEADERS)


def _check_room(principal: Principal) -> None:
    """Refuse a stream too many: here, or with this token."""
    later = {"Retry-After": "5"}
    if _open.total() >= STREAMS:
        raise HttpProblem(503, f"{STREAMS} streams are open here", headers=later)
    if principal.token_id is not None and _open[principal.token_id] >= STREAMS_EACH:
        raise HttpProblem(429, f"this token has {STREAMS_EACH} streams open here", headers=later)


async def _counted(
    call: Call, wanted: Subscription, cursor: Cursor, seconds: float
) -> AsyncIterator[bytes]:
    mine = call.principal.token_id or ""
    _open[mine] += 1
    try:
        yield _encoded(cursor, "hello", {})
        async for piece in _followed(call, wanted, cursor, seconds):
            yield piece
    finally:
        _open[mine] -= 1
        if not _open[mine]:
            del _open[mine]


async def _followed(
    call: Call, wanted: Subscription, cursor: Cursor, seconds: float
) -> AsyncIterator[bytes]:
    pause, clock = LOOK_FIRST, asyncio.get_running_loop().time
    checked = clock()
    end = checked + seconds
    while True:
        found, cursor, lost = await call.run(events.follow, cursor, most=PORTION)
        if lost:
            yield _encoded(cursor, "reset", {})
        if pieces := [_event(event) for event in found if wanted.wants(event)]:
            yield b"".join(pieces)
        pause = LOOK_FIRST if found else min(pause * LOOK_GROWS, LOOK_LONGEST)
        if clock() - checked > BEAT_SECONDS:
            if not await _is_still_admitted(call):
                return
            # With the place: a follower that heard nothing for hours must not begin hours ago.
            yield _encoded(cursor, "beat", {})
            checked = clock()
        if len(found) < PORTION:
            if clock() >= end:
                # Where it came to, for the next one: all that it passed may have been for others.
                yield _encoded(cursor, "end", {})
                return
            await asyncio.sleep(min(pause, end - clock()))


async def _is_still_admitted(call: Call) -> bool:
    try:
        await call.request.scope["milepost.authenticate"]()
    except (HttpProblem, MilepostError):
        return False
    return True


def _event(event: Event) -> bytes:
    names = ("id", "kind", "queue", "seq", "move", "from_state", "to_state", "at", "actor", "fence")
    document: dict[str, Any] = {name: getattr(event, name) for name in names}
    document |= {"run": event.run_id, "state": public(event.to_state)}
    document |= {"trace": event.trace, "signal": event.signal}
    return _encoded(event.cursor, event.machine, document)


def _encoded(place: Cursor, name: str, document: dict[str, Any]) -> bytes:
    data = msgspec.json.encode(document)
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(place).encode(), name.encode(), data)
