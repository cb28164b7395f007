"""Jobs: the list that a filter gives, its states, and what ended; live, but it holds still.

The address is the whole state of the page. While it is shown its rows are read again by their ids,
which the address of its stream has: they change in place, and none comes or goes.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from milepost import filters
from milepost.filters import Where
from milepost.lifecycle import JobState
from milepost.store import joblist
from milepost.store.driver import Steps
from milepost.store.joblist import Count, Counts, Line
from milepost.store.search import LOOK
from milepost.store.tally import MoveCount
from milepost.web.access import Principal
from milepost.web.call import Call, ReadCall
from milepost.web.dashboard import facts, joblines, words
from milepost.web.dashboard.joblines import Chart, Row, Sought, Span, sought
from milepost.web.dashboard.page import PageRoute, View, go_to, show
from milepost.web.subjects import id_within

router = APIRouter(route_class=PageRoute, include_in_schema=False)
PAGE = 50
DONE = {
    "rerun": "run again, as new jobs",
    "cancel": "cancelled, or asked to stop",
    "erase": "erased",
}

Ids = Annotated[str, Query(max_length=4_000)]


class Listing(msgspec.Struct, frozen=True):
    """What a page read."""

    counts: Counts
    lines: Sequence[Line]
    next: str | None = None
    looked_to: datetime | None = None
    missing: Count = Count()
    moves: list[MoveCount] | None = None
    dropped: tuple[str, Count] | None = None
    """For a page without rows: the filter without one term, and how many it has."""


class Asked(msgspec.Struct, frozen=True):
    """What a page asks the store for."""

    where: Where
    bounds: Where
    """The part of the filter that is not the caller's to drop."""
    now_us: int
    before: str | None = None
    shown: Sequence[str] | None = None
    """The rows that are shown already; None for a page that is not."""
    is_last: bool = False
    span: Span | None = None
    counted: facts.Counts | None = None
    """All jobs by queue and state, if that answers for the filter."""


def within(principal: Principal) -> Where:
    """Give the filter of what a caller may see."""
    return filters.where(tenant=principal.tenant, queue=principal.queues)


@router.get("/jobs")
async def listing(
    *,
    call: ReadCall,
    q: str = "",
    had: str | None = None,
    before: str = "",
    rows: Ids = "",
    end: bool = False,
    did: Annotated[str, Query(max_length=60)] = "",
) -> Response:
    """List the jobs of a filter, newest first."""
    if had is not None:  # a token was added to those that were there
        return go_to(call.request, "/jobs", q=sought(f"{had} {q}").text)
    one = sought(q)
    shown = joblines.unpacked(rows, PAGE) if "rows" in call.request.query_params else None
    cursor = id_within(before, what="job") if before else None

    async def load() -> View:
        now = datetime.now(UTC)
        if one.where is None:
            return _view(call, one, None, now)
        bounds = within(call.principal)
        where = one.where & bounds
        may_chart = call.principal.tenant is None
        asked = Asked(
            where=where,
            bounds=bounds,
            now_us=time.time_ns() // 1_000,
            before=cursor,
            shown=shown,
            is_last=end,
            span=joblines.span(where, now) if may_chart else None,
            counted=await call.request.app.state.counts.read() if joblist.is_plain(where) else None,
        )
        return _view(call, one, await call.run(_read, asked), now, asked)

    async def told() -> View:
        view = await load()
        return msgspec.structs.replace(view, values={**view.values, "did": told_done(did)})

    return await show(call, told if did else load)


def told_done(did: str) -> str:
    """Say what an action on selected jobs did: `rerun-3-1` is three done, one left out."""
    action, _, numbers = did.partition("-")
    done, _, left = numbers.partition("-")
    if action not in DONE or not (done.isdecimal() and left.isdecimal()):
        return ""
    rest = f"; {words.plural(int(left[:6]), 'job')} left out" if int(left[:6]) else ""
    return f"{words.plural(int(done[:6]), 'job')} {DONE[action]}{rest}."


def _read(asked: Asked) -> Steps[Listing]:
    """Read a page: counts, rows, and what ended; at most three statements."""
    counts = yield from joblist.counts(asked.where, now_us=asked.now_us, counted=asked.counted)
    states, queued = asked.where.only("state") or [], counts.queued
    if states == [JobState.QUEUED]:
        queued = LOOK if queued is None else queued
    how: dict[str, Any] = {"now_us": asked.now_us, "before": asked.before, "queued": queued}
    if asked.shown is None:
        page = yield from joblist.page(asked.where, most=PAGE, **how)
        found = Listing(counts, page, page.next, page.looked_to)
    else:
        again = yield from joblist.again(asked.where, asked.shown, is_last=asked.is_last, **how)
        found = Listing(counts, again.lines, missing=again.missing)
    if not found.lines and asked.shown is None:
        return msgspec.structs.replace(found, dropped=(yield from _dropped(asked)))
    # Where many are queued, the search for them took a look of its own.
    looked = JobState.QUEUED in states and (queued is None or queued >= LOOK)
    if asked.span is None or looked:
        return found
    return msgspec.structs.replace(found, moves=(yield from joblines.ended(asked.span)))


def _dropped(asked: Asked) -> Steps[tuple[str, Count] | None]:
    """Count what the filter finds without the term that is most likely in the way."""
    terms, bounds = asked.where.terms, asked.bounds.terms
    for keys in (("age", "created"), ("duration", "error", "kind", "queue", filters.TAG)):
        for term in terms:
            if term.key in keys and not term.negated and term not in bounds:
                others = Where(tuple(one for one in terms if one is not term))
                found = yield from joblist.counts(others, now_us=asked.now_us)
                return str(term), found.total(others.only("state"))
    return None


def _view(
    call: Call, one: Sought, found: Listing | None, now: datetime, asked: Asked | None = None
) -> View:
    lines = [] if found is None else found.lines
    rows = [joblines.row(line, call.app.client, now) for line in lines]
    values = _values(one, found, rows, now, asked)
    pieces = {f"job-{row.id}": ("jobs/row.html", {"row": row}) for row in rows}
    parts = {"job-facets": "jobs/facets.html", "job-ended": "jobs/ended.html"}
    parts |= {"job-matches": "jobs/matches.html", "job-missing": "jobs/missing.html"}
    follow = {"rows": joblines.packed([row.id for row in rows])}
    if found is not None and found.next is None:
        follow["end"] = "1"
    return View(
        template="jobs/page.html",
        title="Jobs",
        section="jobs",
        cli=one.cli,
        values=values,
        parts=parts,
        pieces=pieces,
        follow=follow,
    )


def _values(
    one: Sought, found: Listing | None, rows: list[Row], now: datetime, asked: Asked | None
) -> dict[str, Any]:
    where = None if asked is None else asked.where
    matches = Count()
    if found is not None and where is not None:
        matches = found.counts.total(where.only("state"))
    return {
        "one": one,
        "rows": rows,
        "facets": joblines.facets(one, found.counts if found else Counts({})),
        "matches": joblines.at_least(matches),
        "matched": matches,
        "missing": found.missing if found else Count(),
        "chart": _chart(found, asked),
        "following": found.next if found else None,
        "looked_to": found.looked_to if found else None,
        "before": asked.before if asked else None,
        "dropped": _offer(one, found),
        "now": now,
        "did": "",
        "gone": joblines.GONE,
    }


def _chart(found: Listing | None, asked: Asked | None) -> Chart | None:
    if found is None or found.moves is None or asked is None or asked.span is None:
        return None
    return joblines.chart(asked.span, found.moves)


def _offer(one: Sought, found: Listing | None) -> tuple[str, str, str] | None:
    """Offer the filter without a term, for a page that found nothing."""
    if found is None or found.lines:
        return None
    states = found.counts.total()
    if one.without_states != one.text and states.number:
        named = " ".join(token.text for token in one.tokens if token.text.startswith("state:"))
        return named, one.without_states, joblines.at_least(states)
    if found.dropped is not None and found.dropped[1].number:
        term, count = found.dropped
        rest = [token.text for token in one.tokens if str(token.term) != term]
        return term, " ".join(rest), joblines.at_least(count)
    return None
