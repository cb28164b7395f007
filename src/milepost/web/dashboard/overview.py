"""The overview: what needs somebody, how much there is, and where jobs are."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.errors import Invalid
from milepost.records import Queue
from milepost.store import queues, tally
from milepost.store.driver import Steps
from milepost.web.call import Call, ReadCall
from milepost.web.dashboard import charts, machine, static, words
from milepost.web.dashboard.attention import sentences
from milepost.web.dashboard.facts import STUCK_SECONDS, Counts, Facts
from milepost.web.dashboard.pace import DEFAULT, ENDS, RANGES, Pace, Range, overall, quantiles
from milepost.web.dashboard.page import PageRoute, View, address, go_to, show

router = APIRouter(route_class=PageRoute, include_in_schema=False)
NEEDS_SHOWN = 3
SHOWN = 5
"""How many errors and queues are shown; each links to all."""


class Numbers(msgspec.Struct, frozen=True):
    """What is read of the store each time."""

    queues: Sequence[Queue]
    oldest: Mapping[str, float]
    pace: Pace


def numbers(chosen: Range, now: datetime, counted: Counts) -> Steps[Numbers]:
    """Read everything of the overview that changes all the time."""
    listed, oldest = yield from queues.standing(counted)
    since = chosen.since(now)
    counts = yield from tally.pace(since, now, step_seconds=chosen.step)
    return Numbers(listed, oldest, Pace.of(chosen, now, *counts))


@router.get("/")
async def overview(*, call: ReadCall, range: str = DEFAULT) -> Response:  # noqa: A002 - the query's name
    """Show how everything stands."""
    if range not in RANGES:
        raise Invalid(f"range={range!r}: there are {', '.join(RANGES)}")
    if call.principal.tenant is not None or call.principal.queues is not None:
        return go_to(call.request, "/jobs")  # these numbers are of everybody's jobs

    async def load() -> View:
        return await _view(call, RANGES[range])

    return await show(call, load)


async def _view(call: Call, chosen: Range) -> View:
    state = call.request.app.state
    now = await state.rail.now()
    found = await call.run(numbers, chosen, now, await state.counts.read())
    facts: Facts = await state.facts.read()
    checks = (await state.rail.shared(call))["checks"]
    states = states_of(found.queues)
    return View(
        template="overview/page.html",
        title="Overview",
        section="overview",
        cli="milepost top",
        values={
            "ranges": RANGES.values(),
            "chosen": chosen,
            "needs": sentences(found.queues, found.oldest, facts, checks, now),
            "shown": NEEDS_SHOWN,
            "tiles": tiles(found, facts),
            "states": states,
            "machine": _machine(call, states, found.pace),
            "pace": found.pace,
            "ended": _ended(found.pace),
            "errors": facts.errors[:SHOWN],
            "groups": len(facts.errors),
            "worst": worst(found.queues, found.oldest)[:SHOWN],
            "queues_all": len(found.queues),
            "stuck": STUCK_SECONDS,
            "now": now,
        },
        parts={
            "attention": "overview/attention.html",
            "needs-told": "overview/told.html",
            "tiles": "overview/tiles.html",
            "machine": "overview/machine.html",
            "ended": "overview/ended.html",
            "latest-errors": "overview/errors.html",
            "worst-queues": "overview/queues.html",
        },
    )


def states_of(found: Sequence[Queue]) -> dict[str, int]:
    """Add the counts of all queues up, by state."""
    added: Counter[str] = Counter()
    for queue in found:
        added.update(queue.counts)
    return dict(added)


def worst(
    found: Sequence[Queue], oldest: Mapping[str, float]
) -> list[tuple[Queue, float | None, int]]:
    """Order queues by how long their oldest job waits: each with that, and how many are open."""
    final = ("SUCCEEDED", "FAILED", "CANCELLED")
    rows = [
        (
            queue,
            oldest.get(queue.name),
            sum(count for state, count in queue.counts.items() if state not in final),
        )
        for queue in found
    ]
    return sorted(rows, key=lambda row: (-(row[1] or 0.0), -row[2], row[0].name))


def tiles(found: Numbers, facts: Facts) -> list[dict[str, Any]]:
    """Give the six numbers: each a name, a number with its unit, a line below and its history."""
    pace = found.pace
    oldest = max(found.oldest.values(), default=None)
    waiting = max(found.oldest, key=lambda name: found.oldest[name], default="")
    busy, slots = slots_of(facts)
    share = pace.failure_share
    return [
        {
            "name": "Throughput",
            "number": [words.rate(pace.lately(*ENDS)).partition("/")],
            "below": f"{words.count(pace.total(*ENDS))} ended in {pace.range.name}",
            "history": pace.per_second(*ENDS),
            "path": "/jobs?q=state:succeeded,failed,cancelled",
        },
        {
            "name": "Failures",
            "number": [words.percent(share).partition(" ")],
            "below": f"{words.count(pace.total('fail', 'expire', 'reject'))} in {pace.range.name}",
            "history": pace.per_second("fail", "expire", "reject"),
            "css": "red",
            "path": "/errors",
        },
        _timed("Wait to start, p95", pace.waits),
        _timed("Run time, p95", pace.runs),
        {
            "name": "Oldest waiting",
            "duration": oldest,
            "below": waiting or "nothing waits",
            "path": address("", "/queues", name=waiting),
        },
        {
            "name": "Workers",
            "number": [(str(len(facts.live)), " ", "alive")],
            "below": f"{words.count(busy)} of {words.count(slots)} slots busy",
            "path": "/queues",
        },
    ]


def _timed(name: str, counts: Sequence[Any]) -> dict[str, Any]:
    half = overall(counts, 0.5)
    return {
        "name": name,
        "duration": overall(counts, 0.95),
        "below": f"p50 {words.duration(half)}",
        "history": quantiles(counts, 0.95),
        "path": "/jobs",
    }


def slots_of(facts: Facts) -> tuple[int, int]:
    """Count the slots of live workers: how many are busy, and all."""
    busy = every = 0
    for worker in facts.live:
        slots: dict[str, int] = msgspec.json.decode(worker.slots or "{}")
        every += sum(slots.values())
        busy += sum(count for state, count in slots.items() if state != "FREE")
    return busy, every


ANYWHERE = ("cancel", "expire", "reject")
"""Moves that jobs make from many states: they have no edge of their own."""


def _machine(call: Call, states: Mapping[str, int], pace: Pace) -> dict[str, Any]:
    """Draw the machine, for a wide screen and for a narrow one."""
    root = call.request.scope.get("root_path", "").rstrip("/")
    rates = {name: pace.lately(name) for name in pace.moves}
    drawn = partial(
        machine.flow,
        counts=states,
        rates=rates,
        sprite=root + static.address("sprite.svg"),
        href=lambda state: address(root, "/jobs", q=f"state:{state.lower()}"),
    )
    return {
        "wide": drawn(machine.WIDE),
        "tall": drawn(machine.TALL),
        "anywhere": [(name, rates.get(name, 0.0)) for name in ANYWHERE],
        "lost": pace.total("lose"),
    }


def _plots(
    pace: Pace,
    every: Sequence[float],
    failed: Sequence[float],
    waits: tuple[Sequence[float | None], Sequence[float | None]],
    scale: tuple[float, float],
) -> dict[str, str]:
    """Give the three charts' numbers to the script that lets one read them at a point."""
    since = pace.range.since(pace.now).timestamp()
    x = [int(since) + step * pace.range.step for step in range(pace.range.points)]
    p50, p95 = waits

    def told(series: list[dict[str, Any]], least: float, top: float, **more: Any) -> str:
        chart = {"x": x, "series": series, "least": least, "top": top, "height": 70, **more}
        return msgspec.json.encode(chart).decode()

    line = {"colour": "--ink", "fill": "--sunk"}
    bars = {"colour": "--failed-fill", "fill": "--failed-fill", "bars": True}
    return {
        "ended": told(
            [{"name": "ended", "values": _short(every), **line}],
            0,
            charts.nice_top(max(every, default=0)),
            unit="/s",
        ),
        "failed": told(
            [{"name": "failed", "values": _short(failed), **bars}],
            0,
            charts.nice_top(max(failed, default=0)),
            unit="/s",
            height=36,
        ),
        "waits": told(
            [
                {"name": "p95", "values": _short(p95), "colour": "--ink"},
                {"name": "p50", "values": _short(p50), "colour": "--ink3"},
            ],
            *scale,
            unit="s",
            log=True,
        ),
    }


def _short(values: Sequence[float | None]) -> list[float | None]:
    """Round to what a chart shows: pages stay small."""
    return [None if value is None else float(f"{value:.3g}") for value in values]


def _ended(pace: Pace) -> dict[str, Any]:
    """Prepare the charts of what ended, what failed, and how long jobs waited."""
    p50, p95 = quantiles(pace.waits, 0.5), quantiles(pace.waits, 0.95)
    least, most = charts.decades([*p50, *p95])
    every = pace.per_second(*ENDS)
    failed = pace.per_second("fail", "expire", "reject")
    since = pace.range.since(pace.now)
    marks = [since + (pace.now - since) * share for share in (0, 1 / 3, 2 / 3, 1)]
    return {
        "ended": every,
        "top": charts.nice_top(max(every, default=0)),
        "failed": failed,
        "failed_top": charts.nice_top(max(failed, default=0)),
        "p50": charts.log_scale(p50, least, most),
        "p95": charts.log_scale(p95, least, most),
        "p50_now": overall(pace.waits[-5:], 0.5),
        "p95_now": overall(pace.waits[-5:], 0.95),
        "least": least,
        "most": most,
        "marks": marks,
        "plots": _plots(pace, every, failed, (p50, p95), (least, most)),
        "is_long": pace.range.seconds > 2 * 86_400,
    }
