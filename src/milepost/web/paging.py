"""Pages and their cursors: opaque to callers, and bound to the filters they were made with."""

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from fastapi import Query, Request
from starlette.responses import Response

from milepost.records import Job
from milepost.store import journal, outputs
from milepost.web.documents import carried, entries, result_of
from milepost.web.engine import Engine
from milepost.web.limits import PAGE_BYTES, PAGE_LONGEST
from milepost.web.problems import Problem

SEQ_DIGITS = 10
FEW = 16
"""How many results, each of which may be large, are read at once."""

Limit = Annotated[
    int,
    Query(
        ge=1,
        le=PAGE_LONGEST,
        description="How many items a page holds; large ones make it end early, with a cursor.",
    ),
]
Cursor = Annotated[
    str | None,
    Query(max_length=1000, description="`next` of the page before, with the same filters."),
]


def cursor(last: str, filters: Mapping[str, Any]) -> str:
    """Say where the next page begins."""
    made = msgspec.json.encode([last, _mark(filters)])
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


def place(given: str | None, filters: Mapping[str, Any]) -> str | None:
    """Read where a page begins, or refuse what is no cursor of these filters."""
    if given is None:
        return None
    try:
        data = base64.urlsafe_b64decode(given + "=" * (-len(given) % 4))
        last, mark = msgspec.json.decode(data, type=tuple[str, int])
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise Problem(422, "cursor: this is none; leave it out to begin anew") from error
    if mark != _mark(filters):
        raise Problem(422, "cursor: it belongs to other filters; leave it out to begin anew")
    return last


def _mark(filters: Mapping[str, Any]) -> int:
    return zlib.crc32(msgspec.json.encode(dict(filters), order="deterministic"))


async def history_page(
    request: Request, app: Engine, subject_id: str, *, machine: str, limit: int, given: str | None
) -> Response:
    """Answer with a page of a subject's moves, in order."""
    filters = {"history": subject_id}
    at = _number(place(given, filters))
    found = await app.client.run_async(
        journal.history_page,
        subject_id,
        machine=machine,
        after=at,
        most=limit,
        most_bytes=PAGE_BYTES,
    )
    following = cursor(str(found[-1].seq), filters) if found.more else None
    return page(request, entries(found), following=following)


def _number(at: str | None) -> int:
    """Read a place in a numbered line; it is one of ours, or refused."""
    told = at or "0"
    if not (told.isascii() and told.isdecimal() and len(told) < SEQ_DIGITS):
        raise Problem(422, "cursor: this is none; leave it out to begin anew")
    return int(told)


async def output_page(
    request: Request, app: Engine, job: Job, *, limit: int, given: str | None
) -> Response:
    """Answer with a page of what a job gave, in order: its several results, or its only one."""
    filters = {"outputs": job.id}
    start, room = _number(place(given, filters)), PAGE_BYTES
    items: list[Any] = []
    if job.result is not None:
        return page(request, [result_of(job, app.client.codec)], following=None)
    while len(items) < limit and room > 0:
        after, most = start + len(items) - 1, min(FEW, limit - len(items))
        found = await app.client.run_async(outputs.kept, job.id, after=after, most=most)
        items += [carried(data, job.codec, app.client.codec) for _, data in found]
        room -= sum(len(data) for _, data in found)
        if len(found) < most:
            return page(request, items, following=None)
    return page(request, items, following=cursor(str(start + len(items)), filters))


def named_page(
    request: Request, found: Mapping[str, Any], *, limit: int, given: str | None
) -> Response:
    """Answer with a page of what has a name, in the order of the names."""
    after = place(given, {})
    names = sorted(name for name in found if after is None or name > after)
    items: list[msgspec.Raw] = []
    room = PAGE_BYTES
    for name in names[:limit]:
        item = msgspec.Raw(msgspec.json.encode(found[name]))
        room -= len(bytes(item))
        if items and room < 0:
            break
        items.append(item)
    following = cursor(names[len(items) - 1], {}) if len(items) < len(names) else None
    return page(request, items, following=following)


def page(
    request: Request, items: list[Any], *, following: str | None, headers: Mapping[str, str] = {}
) -> Response:
    """Write a page; `next` is null on the last one."""
    body = msgspec.json.encode({"items": items, "next": following})
    sent = dict(headers)
    if following is not None:
        asked = [(k, v) for k, v in request.query_params.multi_items() if k != "cursor"]
        path = request.scope.get("root_path", "").rstrip("/") + request.scope["path"].removeprefix(
            request.scope.get("root_path", "")
        )
        sent["Link"] = f'<{path}?{urlencode([*asked, ("cursor", following)])}>; rel="next"'
    return Response(body, headers=sent, media_type="application/json")
