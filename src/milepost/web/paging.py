"""Pages and their cursors: opaque to callers, and bound to the filters they were made with."""

import base64
import binascii
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import msgspec
from fastapi import Depends, Query, Request
from starlette.responses import Response

from milepost.records import Listed
from milepost.web.call import json_response
from milepost.web.paths import encoded_path
from milepost.web.problems import HttpProblem

PAGE_LONGEST = 1_000
"""How many items a page may hold."""

PAGE_BYTES = 4 * 1024**2
"""How much content a page may hold before it ends early; one item it holds at least."""

SEQ_DIGITS = 10
NO_CURSOR = "cursor: this is none; leave it out to begin anew"
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
    Query(
        alias="cursor",
        max_length=1000,
        description="`next` of the page before, with the same filters.",
    ),
]


def cursor(last: str, filters: Mapping[str, Any]) -> str:
    """Say where the next page begins."""
    made = msgspec.json.encode([last, _mark(filters)])
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


def place(given: str | None, filters: Mapping[str, Any]) -> str | None:
    """Read where a page begins, or refuse a text that is no cursor of these filters."""
    if given is None:
        return None
    try:
        data = base64.urlsafe_b64decode(given + "=" * (-len(given) % 4))
        last, mark = msgspec.json.decode(data, type=tuple[str, int])
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise HttpProblem(422, NO_CURSOR) from error
    if mark != _mark(filters):
        raise HttpProblem(422, "cursor: it belongs to other filters; leave it out to begin anew")
    return last


def _mark(filters: Mapping[str, Any]) -> int:
    return zlib.crc32(msgspec.json.encode(dict(filters), order="deterministic"))


class PageQuery(msgspec.Struct, frozen=True):
    """The page that a caller wants of a listing, and the way to answer with it."""

    request: Request
    limit: int
    cursor: str | None

    def before(self, filters: Mapping[str, Any]) -> dict[str, Any]:
        """Say to a store's listing, newest first, which of its rows are on this page."""
        return {
            "before": place(self.cursor, filters),
            "most": self.limit,
            "most_bytes": PAGE_BYTES,
        }

    def number(self, filters: Mapping[str, Any]) -> int:
        """Read a place in a numbered line; it is one of ours, or refused."""
        given = place(self.cursor, filters) or "0"
        if not (given.isascii() and given.isdecimal() and len(given) < SEQ_DIGITS):
            raise HttpProblem(422, NO_CURSOR)
        return int(given)

    def listed(
        self,
        found: Listed[Any],
        show: Callable[[Any], Any],
        filters: Mapping[str, Any],
        *,
        by: str = "id",
    ) -> Response:
        """Answer with the rows of a store's listing; the next page goes on after the last one."""
        last = found.next or (str(getattr(found[-1], by)) if found.more else None)
        more = {} if found.looked_to is None else {"looked_to": found.looked_to}
        return self.response([show(one) for one in found], last, filters, **more)

    def named(self, found: Mapping[str, Any]) -> Response:
        """Answer with documents that have a name, in the order of the names."""
        after = place(self.cursor, {})
        names = sorted(name for name in found if after is None or name > after)
        items: list[msgspec.Raw] = []
        room = PAGE_BYTES
        for name in names[: self.limit]:
            item = msgspec.Raw(msgspec.json.encode(found[name]))
            room -= len(bytes(item))
            if items and room < 0:
                break
            items.append(item)
        return self.response(items, names[len(items) - 1] if len(items) < len(names) else None)

    def response(
        self, items: list[Any], last: str | None, filters: Mapping[str, Any] = {}, **more: Any
    ) -> Response:
        """Write a page; without the `last` of its items there is no page after it."""
        following = None if last is None else cursor(last, filters)
        response = json_response({"items": items, "next": following, **more})
        if following is not None:
            scope = self.request.scope
            given = self.request.query_params.multi_items()
            others = [(name, value) for name, value in given if name != "cursor"]
            root = quote(scope.get("root_path", ""))
            path = root.rstrip("/") + encoded_path(scope).removeprefix(root)
            link = f'<{path}?{urlencode([*others, ("cursor", following)])}>; rel="next"'
            response.headers["Link"] = link
        return response


def _paged(usual: int) -> Callable[..., Awaitable[PageQuery]]:
    async def paged(request: Request, limit: Limit = usual, given: Cursor = None) -> PageQuery:
        return PageQuery(request, limit, given)

    return paged


Paging = Annotated[PageQuery, Depends(_paged(100))]
"""The annotation of a handler's `page`; `LongPaging` is for listings that are short anyway."""
LongPaging = Annotated[PageQuery, Depends(_paged(PAGE_LONGEST))]
