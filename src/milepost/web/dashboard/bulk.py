"""Actions on many jobs: counted by what becomes of each, confirmed, and then done by a job.

The filter and its time are fixed when the jobs are counted, and the form carries them: what the
person has read is what is done. Selected jobs are few, and are acted on at once.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, cast

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response

from milepost import bulk, filters
from milepost.bulk import KIND, BulkOrder
from milepost.client import caller
from milepost.errors import Invalid
from milepost.filters import Where
from milepost.store import jobs, outcomes, search
from milepost.store.driver import Steps
from milepost.store.outcomes import Outcomes
from milepost.web.access import Principal
from milepost.web.bulk import BulkAction, acted, named
from milepost.web.call import Call, OperateCall
from milepost.web.dashboard.jobs import PAGE, within
from milepost.web.dashboard.page import PageRoute, audit, confirmation, form_of, go_to, one
from milepost.web.jobs import stored
from milepost.web.problems import HttpProblem
from milepost.web.subjects import id_within

router = APIRouter(route_class=PageRoute, include_in_schema=False)
TYPED_ABOVE = 100
"""An action on more jobs than that is confirmed by typing how many."""
RATE = 10
FROZEN_LONGEST = 2 * filters.LONGEST
Action = Literal["rerun", "cancel", "erase"]
LABELS = {"rerun": "Rerun", "cancel": "Cancel", "erase": "Erase"}
TEXTS = (
    ("rerun", "queued", "will run again"),
    ("cancel", "cancelled", "will be cancelled"),
    ("stop", "stopping", "run now, and will be asked to stop"),
    ("erase", "created", "will lose arguments, result and errors for good"),
    ("open", "retrying", "left out: not final"),
    ("final", "succeeded", "left out: final already"),
    ("succeeded", "succeeded", "left out: has succeeded itself"),
    ("rerun_succeeded", "succeeded", "left out: a rerun of it has succeeded"),
    ("rerun_open", "running", "left out: a rerun of it is under way"),
    ("rerun_ended", "failed", "left out: was run again, and its newest rerun speaks for it"),
    ("run", "gated", "left out: belongs to a run; resume that"),
    ("erased", "created", "left out: its arguments were erased"),
    ("needed", "running", "left out: an open rerun goes on with its steps"),
    ("bulk", "cancelled", "left out: an action on many jobs; order it anew"),
)
"""Outcomes in the order in which they are shown, each with a glyph and its words."""


class Order(msgspec.Struct, frozen=True):
    """What somebody is about to do, and to which jobs: some, or those of a filter."""

    action: Action
    query: str
    """The filter of the page that they come from."""
    ids: Sequence[str] | None
    where: Where | None = None
    """The filter with its time fixed."""


@router.get("/jobs/bulk")
async def ask(
    *,
    call: OperateCall,
    action: Action = "rerun",
    q: Annotated[str, Query(max_length=filters.LONGEST)] = "",
    all_: Annotated[str, Query(alias="all")] = "",
    id_: Annotated[list[str] | None, Query(alias="id", max_length=PAGE)] = None,
) -> Response:
    """Count what an action would do, and ask."""
    check(call.principal, action, by_filter=bool(all_))
    if not all_:
        ids = sorted({id_within(one, what="job") for one in id_ or ()})
        return await _shown(call, Order(action, q, ids))
    where = bulk.allowed(action, filters.parse(q) & within(call.principal))
    bulk.check_order(action, filters.parse(q), None)
    return await _shown(call, Order(action, q, None, await call.run(search.fixed, where)))


def check(principal: Principal, action: str, *, by_filter: bool) -> None:
    """Refuse an action that the caller may not order."""
    if action == "erase" and not principal.may("admin"):
        raise HttpProblem(403, "erasing needs a token with the scope admin")
    if action == "rerun" and by_filter:
        principal.check_any_rerun()


async def _count(call: Call, order: Order) -> Outcomes:
    if order.where is not None:
        return await call.run(outcomes.of_filter, order.where, order.action)
    return await call.run(_of_seen, order.ids or (), call.principal, order.action)


def _of_seen(ids: Sequence[str], principal: Principal, action: str) -> Steps[Outcomes]:
    found = yield from named(list(ids), principal)
    return (yield from outcomes.of_jobs([job.id for job in found], action))


async def _shown(call: Call, order: Order, *, wrong: str = "", status: int = 200) -> Response:
    counted = await _count(call, order)
    return await confirmation(
        call,
        "jobs/confirm.html",
        title=f"{LABELS[order.action]} jobs",
        section="jobs",
        values=_values(order, counted, wrong),
        cli=_command(order),
        status=status,
    )


def _values(order: Order, counted: Outcomes, wrong: str) -> dict[str, Any]:
    many = "" if counted.whole else "+"
    return {
        "order": order,
        "label": LABELS[order.action],
        "counted": counted,
        "matched": f"{counted.matched:,}{many}",
        "acted": f"{counted.acted:,}{many}",
        "rows": [
            (glyph, text, counted.counts.get(name, 0), name in outcomes.ACTED)
            for name, glyph, text in TEXTS
            if counted.counts.get(name) or name == order.action
        ],
        "must_type": is_typed(order, counted),
        "rate": RATE,
        "most": outcomes.MOST,
        "wrong": wrong,
        "at": datetime.now(UTC),
        "now": datetime.now(UTC),
    }


def is_typed(order: Order, counted: Outcomes) -> bool:
    """Tell whether the number is to be typed."""
    return order.where is not None and (counted.acted > TYPED_ABOVE or not counted.whole)


def _command(order: Order) -> str:
    if order.where is None:
        return f"milepost jobs {order.action} ID"
    quoted = "'" + order.query.replace("'", "'\\''") + "'"
    return f"milepost jobs {order.action} --where {quoted} --rate {RATE}"


@router.post("/jobs/bulk")
async def act(*, call: OperateCall) -> Response:
    """Do what was confirmed, under the person's name."""
    fields = await form_of(call)
    action = one(fields, "action")
    if action not in LABELS:
        raise HttpProblem(422, f"there is no action {action!r}")
    frozen, query = one(fields, "where"), one(fields, "q")
    check(call.principal, action, by_filter=bool(frozen))
    if not frozen:
        ids = [id_within(each, what="job") for each in fields.get("id", ())[:PAGE]]
        return await _selected(call, Order(cast("Action", action), query, ids), fields)
    if len(frozen) > FROZEN_LONGEST:
        raise Invalid(f"a filter has at most {FROZEN_LONGEST:,} characters")
    where = filters.parse(frozen, stored=True)
    bulk.check_order(action, where, None)
    # The form came from the person: what they may see is said once more.
    where = bulk.allowed(action, where & within(call.principal))
    return await _ordered(call, Order(cast("Action", action), query, None, where), fields)


async def _ordered(call: Call, order: Order, fields: Any) -> Response:
    assert order.where is not None  # noqa: S101 - the caller has looked
    counted = await _count(call, order)
    shown = one(fields, "counted")
    if is_typed(order, counted) and one(fields, "typed").replace(",", "") != str(counted.acted):
        wrong = f"Type {counted.acted:,} to {order.action} so many jobs."
        return await _shown(call, order, wrong=wrong, status=422)
    if not shown.isdecimal() or counted.acted > int(shown):
        wrong = f"Meanwhile it is {counted.acted:,} jobs. Look again."
        return await _shown(call, order, wrong=wrong, status=409)
    if not counted.acted and counted.whole:
        return await _shown(call, order, wrong="There is nothing to do.", status=409)
    made = BulkOrder(
        action=order.action,
        where=str(order.where),
        total=counted.passed if order.action == "rerun" else counted.matched,
        counted=counted.whole,
        reason=one(fields, "reason") or "cancelled",
        rate=RATE if one(fields, "slowly") else None,
    )
    answer = await call.submitting(KIND, "job_id", lambda: stored(call, call.app.bulk.new(made)))
    job_id = (answer.location or "").rpartition("/")[2]
    audit(call, order.action, f"jobs {order.query}", job=job_id, number=counted.acted)
    return go_to(call.request, f"/jobs/{job_id}")


async def _selected(call: Call, order: Order, fields: Any) -> Response:
    """Act on the jobs that were selected, in one transaction."""
    if not order.ids:
        raise HttpProblem(422, "select at least one job")
    reason = one(fields, "reason") or "cancelled"
    if order.action == "erase":
        matched, done = await call.run(_erased, list(order.ids), call.principal)
    else:
        asked = BulkAction(action=order.action, ids=list(order.ids), reason=reason)
        told = await call.run(acted, asked, call.principal, {}, caller().trace)
        matched, done = told["matched"], told["count"]
    audit(call, order.action, " ".join(order.ids), number=done)
    did = f"{order.action}-{done}-{matched - done}"
    return go_to(call.request, "/jobs", q=order.query, did=did)


def _erased(ids: list[str], principal: Principal) -> Steps[tuple[int, int]]:
    found = yield from named(ids, principal)
    done = 0
    for job in found:
        counted = yield from outcomes.of_jobs([job.id], "erase")
        if counted.acted:
            done += yield from jobs.erase(job.id, actor=principal.actor)
    return len(found), done
