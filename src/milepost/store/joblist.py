"""Jobs as a page lists them: its rows, the same rows again while it is shown, and counts.

Each of these is one statement. Rows come from the index that serves the filter, as in `search`; a
count looks at a bounded number of them and says whether there may be more.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any
from uuid import UUID

import msgspec

from milepost.filters import Where
from milepost.lifecycle import JobState
from milepost.records import JobLine, Listed
from milepost.store import jobs, search
from milepost.store.catalog import Statement
from milepost.store.columns import reader
from milepost.store.driver import Steps
from milepost.store.search import ALL, LOOK, SEEN, UNUSUAL, WALK, Plan

COUNT_LOOK = 1_000
"""How many jobs of each state a count looks at."""
NEW_MOST = 1_000
"""How many jobs are counted that a shown list does not have yet."""
_PLAIN = ("state", "queue")
"""Filters of nothing but these are counted exactly: the store keeps such counts."""
_UNUSUAL = (UNUSUAL, JobState.FAILED.value)
_IN_LINE: Sequence[Mapping[str, str]] = (
    {"state": "RUNNING", "index": "job_held", "order": "worker_id"},
    {
        "state": "QUEUED",
        "index": "job_claim",
        "order": "queue, priority DESC, limit_key, queued_seq",
    },
)
"""States whose indexes have another order, and those orders."""
_line = reader(JobLine)


class Count(msgspec.Struct, frozen=True):
    """How many jobs there are; at least, if there may be `more`."""

    number: int = 0
    more: bool = False

    def __add__(self, other: "Count") -> "Count":
        return Count(self.number + other.number, self.more or other.more)


class Counts(msgspec.Struct, frozen=True):
    """How many jobs a filter lets through, by a word of theirs."""

    of: Mapping[str, Count]
    queued: int | None = None
    """How many jobs are queued, whatever the filter says; None: nobody has counted them."""

    def total(self, words: Sequence[str] | None = None) -> Count:
        """Add up the counts of some words, or of all."""
        chosen = self.of if words is None else words
        return sum((self.of.get(word, Count()) for word in chosen), Count())


class Line(msgspec.Struct, frozen=True):
    """A row of a list, and whether its filter lets it through still."""

    job: JobLine
    fits: bool = True


class Shown(msgspec.Struct, frozen=True):
    """Rows of a list that is shown, as they are now, and how many it lacks."""

    lines: list[Line]
    missing: Count


def page(
    where: Where, *, now_us: int, before: str | None = None, most: int, queued: int | None = None
) -> Steps[Listed[Line]]:
    """Read a page of a filter, newest first; `next` says where to go on."""
    plan = yield from search.plan_of(where, queued=queued)
    given = _given(where, plan, now_us=now_us, before=before)
    look = most if plan.whole or not where.terms else LOOK
    rows = yield from search.ask(_lines(plan.parts), {**given, "look": look, "most": most})
    found = Listed(_read(rows))
    if len(found) == most:
        found.next = found[-1].job.id
    elif (last := rows[0][0]) is not None:
        found.next, found.looked_to = last, search.created_about(last)
    found.more = found.next is not None
    return found


def again(
    where: Where,
    ids: Sequence[str],
    *,
    now_us: int,
    before: str | None = None,
    is_last: bool,
    queued: int | None = None,
) -> Steps[Shown]:
    """Read the rows of a page again, and count those between its ends that it does not show."""
    plan = yield from search.plan_of(where, queued=queued)
    given = _given(where, plan, now_us=now_us, before=before)
    if ids and not is_last:
        given["low"] = max(given["low"], ids[-1])
    most = NEW_MOST + len(ids)
    asked = {**given, "look": LOOK, "most": most, "shown": list(ids)}
    rows = yield from search.ask(_again(plan.parts), asked)
    lines, number = _read(rows), rows[0][0]
    missing = max(0, number - sum(line.fits for line in lines))
    return Shown(lines, Count(missing, more=number >= most))


def is_plain(where: Where) -> bool:
    """Tell whether a filter is of nothing but states and queues."""
    return all(term.key in _PLAIN for term in where.terms)


def counts(
    where: Where, *, now_us: int, counted: Mapping[str, Mapping[str, int]] | None = None
) -> Steps[Counts]:
    """Count the jobs of each state that the other terms of a filter let through.

    A caller that has `counted` all jobs, by `jobs.counts`, saves that for plain filters.
    """
    others = Where(tuple(term for term in where.terms if term.key != "state"))
    if is_plain(others):
        return (yield from _exactly(others, counted))
    plan = yield from search.plan_of(others)
    if plan.parts != WALK.parts:
        return (yield from _looked(others, "state", plan, now_us=now_us))
    given = _given(others, plan, now_us=now_us) | {"given": ALL, "look": COUNT_LOOK}
    rows = yield from search.ask(_by_state(), given)
    looked = {word or JobState.SUCCEEDED.value: (look, fits) for word, look, fits in rows}
    of = {word: Count(fits, more=look >= COUNT_LOOK) for word, (look, fits) in looked.items()}
    return Counts(of, _queued(looked.get(JobState.QUEUED.value, (0, 0))[0]))


def counts_by(word: str, where: Where, *, now_us: int) -> Steps[Counts]:
    """Count the newest jobs that a filter lets through by their kind or queue."""
    plan = yield from search.plan_of(where, queued=LOOK)
    return (yield from _looked(where, word, plan, now_us=now_us))


def _looked(where: Where, word: str, plan: Plan, *, now_us: int) -> Steps[Counts]:
    given = _given(where, plan, now_us=now_us) | {"look": LOOK}
    rows = yield from search.ask(_counted(word, plan.parts), given)
    more = sum(row[1] for row in rows) >= LOOK
    of = {told: Count(fits, more=more) for told, _, fits in rows if fits or more}
    # A state that was not seen may have some as well.
    unseen = ALL if word == "state" and more else ()
    return Counts({name: Count(more=True) for name in unseen} | of)


def _exactly(where: Where, counted: Mapping[str, Mapping[str, int]] | None = None) -> Steps[Counts]:
    if counted is None and not where.terms:
        counted = {"": (yield from jobs.state_counts())}
    by_queue = (yield from jobs.counts()) if counted is None else counted
    only, never = where.only("queue"), where.never("queue") or ()
    of: dict[str, Count] = {}
    for queue, states in by_queue.items():
        if (only is None or queue in only) and queue not in never:
            for state, number in states.items():
                of[state] = of.get(state, Count()) + Count(number)
    every = sum(states.get(JobState.QUEUED.value, 0) for states in by_queue.values())
    return Counts(of, every)


def _queued(looked: int) -> int | None:
    """Say how many are queued; a count that stopped early does not know."""
    return looked if looked < COUNT_LOOK or looked >= LOOK else None


def _given(where: Where, plan: Plan, *, now_us: int, before: str | None = None) -> dict[str, Any]:
    return {
        **search.bounds(where.created(now_us), before, plan.newest),
        "given": list(plan.given),
        "tag": plan.tag,
        "states": where.only("state") or ALL,
        **search.parameters(where, now_us=now_us, superseded=None),
    }


def _read(rows: Sequence[Sequence[Any]]) -> list[Line]:
    """Read rows, each behind a number of its page; a page without any has one of NULLs."""
    lines = [Line(_line(row[2:]), fits=bool(row[1])) for row in rows if row[2] is not None]
    return sorted(lines, key=lambda line: UUID(line.job.id), reverse=True)


# Statements


@cache
def _lines(parts: tuple[str, ...]) -> Statement:
    looked = search.source_of(parts, seen="NULL AS blank")
    texts = search.filled_in("lines", looked=looked, hits=_hits(parts))
    return Statement(f"search:lines:{'+'.join(parts)}", **texts)


@cache
def _again(parts: tuple[str, ...]) -> Statement:
    texts = search.filled_in("again", hits=_hits(parts), seen=SEEN, fits=search.fits())
    return Statement(f"search:again:{'+'.join(parts)}", **texts)


def _hits(parts: tuple[str, ...]) -> search.Texts:
    return search.filled_in("hits", source=search.source_of(parts, seen=SEEN), fits=search.fits())


@cache
def _counted(by: str, parts: tuple[str, ...]) -> Statement:
    source = search.source_of(parts, seen=SEEN)
    texts = search.filled_in("counted", by=by, source=source, fits=search.fits())
    return Statement(f"search:counted:{by}+{'+'.join(parts)}", **texts)


@cache
def _by_state() -> Statement:
    """Look at so many jobs of each state, by the index of the state, and at the newest of all."""
    parts = [one for part in _UNUSUAL for one in search.part_ids(part)]
    parts += [search.filled_in("first", **told) for told in _IN_LINE]
    nested = [
        {name: f"SELECT id FROM ({text}) AS part" for name, text in ids.items()} for ids in parts
    ]
    source = search.filled_in("some", ids=search.together(nested), seen=SEEN)
    walked = search.source_of(WALK.parts, seen=SEEN)
    texts = search.together(
        [
            search.filled_in("counted", by="state", source=source, fits=search.fits()),
            search.filled_in("succeeded", source=walked, fits=search.fits()),
        ]
    )
    return Statement("search:states:each", **texts)
