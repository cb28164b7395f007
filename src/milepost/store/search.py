"""Searches for jobs: which index serves a filter, and how far a page looks.

A filter of one term is read off an index, or off the ids where jobs that fit are everywhere. Of
several, one term is the source and the others are compared row by row: a page looks at `LOOK` rows
at most, then says up to where it looked, and the next page goes on from there.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import msgspec

from milepost.filters import EVER, TAG, WORDS, Interval, Term, Where, until
from milepost.lifecycle import ORDINARY, JobState
from milepost.records import Job, Listed
from milepost.store import jobs, workers
from milepost.store.catalog import DIALECTS, Statement, filled, query
from milepost.store.driver import Call, Rows, Steps
from milepost.store.instants import EPOCH, instant

LOOK = 10_000
"""How many rows a page looks at."""
LOOKS = 100
"""How often a count looks."""
NEAR = 1_000
"""How many of the last in line are looked at for the newest of them."""
EARLY_US, LATE_US = 86_400_000_000, 900_000_000
"""How far the clock of a program that makes ids may be from the store's: ids bound a walk."""
Texts = Mapping[str, str]
"""A piece of a statement, for each database."""
ALL = list(map(str, JobState))
LAST = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_COLUMNS = {
    **{word: word for word in WORDS},
    "run": "run_id",
    "worker": "worker_id",
    "key": "unique_key",
}
SEEN = (
    "state, kind, queue, run_id, worker_id, tenant, unique_key, fingerprint, error_type,"
    " error_code, error, tags, created_at, started_at, finished_at"
)
UNUSUAL = "unusual"
"""The states of the index `job_state`, as one part of a source."""
TAG_LENGTH = 200
"""So many characters of a tag's value stand in its index."""
_RAN = "(CASE seen.state WHEN 'RUNNING' THEN {now} ELSE seen.finished_at END - seen.started_at)"
_MESSAGE = {
    "postgres": "coalesce(milepost_json('json', convert_to(seen.error, 'UTF8')) ->> 'message',"
    " seen.error)",
    "sqlite": "coalesce(CASE WHEN json_valid(seen.error)"
    " THEN CAST(json_extract(seen.error, '$.message') AS TEXT) END, seen.error)",
}
"""What an error says; all of it when somebody else wrote it."""
_FEW = {"RUNNING": "job_held", "QUEUED": "job_claim"}
_HAVING = {
    "FAILED": ("state = v.value AND state = 'FAILED'",),
    "fingerprint": ("fingerprint = v.value",),
    "error": ("fingerprint = v.value", "error_type = v.value", "error_code = v.value"),
    "key": ("unique_key = v.value",),
}


class Plan(msgspec.Struct, frozen=True):
    """Where the rows of a page come from; `whole` if nothing else need be looked at."""

    parts: tuple[str, ...]
    given: tuple[str, ...] = ()
    tag: str = ""
    whole: bool = False
    newest: str | None = None
    """Where a walk may begin; nothing that is sought is newer."""


WALK = Plan(("walk",))


def page(
    where: Where,
    *,
    superseded: bool | None = None,
    before: str | None = None,
    most: int = 100,
    most_bytes: int | None = None,
) -> Steps[Listed[Job]]:
    """Read the newest jobs that a filter lets through; `next` says where to go on."""
    found = yield from ids(
        where, superseded=superseded, before=before, most=most, most_bytes=most_bytes
    )
    known = yield from jobs.find(found)
    found[:] = [job_id for job_id in found if job_id in known]
    return found.of_each(known.__getitem__)


def ids(
    where: Where,
    *,
    superseded: bool | None = None,
    before: str | None = None,
    most: int = LOOK,
    most_bytes: int | None = None,
) -> Steps[Listed[str]]:
    """Name the newest jobs that a filter lets through; `next` says where to go on."""
    now_us = yield from _now_us()
    plan = yield from plan_of(where)
    source = {
        **bounds(where.created(now_us), before, plan.newest),
        "given": list(plan.given),
        "tag": plan.tag,
        "states": where.only("state") or ALL,
        "look": most if plan.whole and superseded is None else LOOK,
    }
    wanted = parameters(where, now_us=now_us, superseded=superseded)
    rows = yield from _asked("page", plan, {**source, **wanted, "most": most})
    found = Listed(_fitting(rows, most_bytes))
    if len(rows) == most or len(found) < len(rows):
        found.next = found[-1]
    else:
        yield from _tell_looked(found, plan, source)
    found.more = found.next is not None
    return found


def count(where: Where, *, superseded: bool | None = None) -> Steps[tuple[int, bool]]:
    """Count the jobs that a filter lets through; False if there may be more than were counted."""
    counted, before = 0, None
    for _ in range(LOOKS):
        found = yield from ids(where, superseded=superseded, before=before)
        counted, before = counted + len(found), found.next
        if before is None:
            return counted, True
    return counted, False


def fixed(where: Where) -> Steps[Where]:
    """Say ages as times, and leave out jobs that are created from now on."""
    now_us = yield from _now_us()
    return where.fixed(now_us) & until(now_us)


def _now_us() -> Steps[int]:
    return ((yield from workers.now()) - EPOCH) // EPOCH.resolution


def _asked(what: str, plan: Plan, given: Mapping[str, Any]) -> Steps[Rows]:
    return (yield from ask(_statement(what, plan.parts), given))


def ask(statement: Statement, given: Mapping[str, Any]) -> Steps[Rows]:
    """Run a statement with those of the parameters that it has."""
    used = query(statement, "sqlite").parameters
    return (yield Call(statement, {name: given[name] for name in used}))


def _fitting(rows: Sequence[Sequence[Any]], most_bytes: int | None) -> list[str]:
    """Leave out those that stand behind more content than a page may hold."""
    ids: list[str] = []
    room = most_bytes
    for job_id, size in rows:
        if room is not None:
            if ids and room <= 0:
                break
            room -= size or 0
        ids.append(job_id)
    return ids


def _tell_looked(found: Listed[str], plan: Plan, source: Mapping[str, Any]) -> Steps[None]:
    """Say up to where a page looked that did not get full, unless it looked at everything."""
    for last, at in (yield from _asked("looked", plan, source)):
        found.next, found.looked_to = last, instant(at)


# Sources


def plan_of(where: Where, *, queued: int | None = None) -> Steps[Plan]:
    """Choose the term that leaves the fewest rows, as far as that can be known.

    A caller that has counted jobs that are `queued`, up to `LOOK`, saves a look at them.
    """
    for key in ("key", "worker", "fingerprint", "run", "error", TAG):
        for term in where.of(key, negated=False):
            if not any(value.text for value in term.values):
                is_long = any(len(word) >= TAG_LENGTH for word in term.words)
                whole = len(where.terms) == 1 and not (key == TAG and is_long)
                return Plan((key,), tuple(term.words), tag=term.name, whole=whole)
    states = where.only("state")
    if states is None or JobState.SUCCEEDED in states:
        return WALK
    if JobState.QUEUED in states:
        if queued is None:
            [(queued,)] = yield Call("search_queued", {"look": LOOK})
        if queued >= LOOK:
            return (yield from _backlog(states))
    return _indexed(states, whole=len(where.terms) == len(where.of("state")))


def _indexed(states: Sequence[str], *, whole: bool = False) -> Plan:
    # Terms that contradict each other leave no state; an index then gives nothing.
    parts = sorted({state if state in ORDINARY else UNUSUAL for state in states}) or [UNUSUAL]
    return Plan(tuple(parts), tuple(states), whole=whole)


def _backlog(states: Sequence[str]) -> Steps[Plan]:
    """Walk from the newest job of these states: of many that are queued, others are next to it."""
    [(newest,)] = yield Call("search_newest_queued", {"most": NEAR})
    others = [state for state in states if state != JobState.QUEUED]
    if others:
        plan = _indexed(others)
        source = {**bounds([(0, EVER)], None, None), "given": others, "look": 1}
        found = [job_id for job_id, _ in (yield from _asked("looked", plan, source))]
        newest = max(filter(None, [newest, *found]), default=None)
    return msgspec.structs.replace(WALK, newest=newest)


@cache
def _statement(what: str, parts: tuple[str, ...]) -> Statement:
    """Fill a template in with its source: the walk, or the ids of all these parts."""
    source = source_of(parts, seen=SEEN if what == "page" else "created_at")
    texts = filled_in(what, source=source, fits=fits())
    return Statement(f"search:{what}:{'+'.join(parts)}", **texts)


def source_of(parts: tuple[str, ...], *, seen: str = "created_at") -> Texts:
    """Give the statement of a source: the walk, or the ids of all these parts, newest first."""
    if parts == WALK.parts:
        return filled_in("walk", seen=seen)
    ids = together([one for part in parts for one in part_ids(part)])
    return filled_in("found", ids=ids, seen=seen)


def together(every: Sequence[Texts]) -> Texts:
    """Put statements that give the same columns together."""
    return {
        dialect: " UNION ALL ".join(filter(None, (one[dialect] for one in every)))
        for dialect in DIALECTS
    }


@cache
def fits() -> Texts:
    """Give the condition of a filter on a row of its source."""
    return filled_in("fits", words=_words(), ran=_RAN, message=_MESSAGE)


def part_ids(part: str) -> list[Texts]:
    """Say where the ids of a part come from; those of one part may come from several indexes."""
    match part:
        case "run":
            # On SQLite the index of runs has those that are RUNNING, too.
            running = _few("RUNNING", postgres="run_id = ANY(:given::uuid[])")
            return [filled_in("run"), {**running, "sqlite": ""}]
        case "worker":
            listed = "worker_id IN (SELECT value FROM json_each(:given))"
            return [_few("RUNNING", postgres="worker_id = ANY(:given::text[])", sqlite=listed)]
        case "tag":
            return [
                _each(
                    "name = :tag AND value = substr(v.value, 1, 200)", table="job_tag", id="job_id"
                )
            ]
        case "RUNNING" | "QUEUED":
            return [_few(part)]
        case "unusual":
            return [_each(filled_in(part))]
        case _:
            return [_each(having) for having in _HAVING[part]]


def _each(having: str | Texts, *, table: str = "job", id: str = "job.id") -> Texts:  # noqa: A002 - its column
    return filled_in("each", having=having, table=table, id=id)


def _few(state: str, **more: str) -> Texts:
    having = {
        dialect: " AND ".join(filter(None, (f"state = '{state}'", more.get(dialect))))
        for dialect in DIALECTS
    }
    return filled_in("few", having=having, index=_FEW[state])


def filled_in(template: str, **words: str | Texts) -> Texts:
    """Fill a template of `search.sql` in, for each database."""
    spelled = {
        dialect: {
            word: text if isinstance(text, str) else text[dialect] for word, text in words.items()
        }
        for dialect in DIALECTS
    }
    made = filled(f"search:{template}", "", spelled)
    return {"postgres": made.postgres, "sqlite": made.sqlite}


# Conditions


def _words() -> Texts:
    """Compare each word of a row with those that it may and may not have."""
    conditions: dict[str, list[str]] = {dialect: [] for dialect in DIALECTS}
    for key, column in _COLUMNS.items():
        kind = "uuid" if key == "run" else "text"
        for sense, form in (("only", "{}"), ("never", "({}) IS NOT TRUE")):
            given = f":{sense}_{key}"
            array, listed = f"ANY({given}::{kind}[])", f"(SELECT value FROM json_each({given}))"
            fits = {"postgres": f"seen.{column} = {array}", "sqlite": f"seen.{column} IN {listed}"}
            absent = {"postgres": f"{given}::{kind}[] IS NULL", "sqlite": f"{given} IS NULL"}
            for dialect, told in conditions.items():
                told.append(f"({absent[dialect]} OR {form.format(fits[dialect])})")
    return {dialect: " AND ".join(told) for dialect, told in conditions.items()}


def parameters(where: Where, *, now_us: int, superseded: bool | None) -> dict[str, Any]:
    """Give what the rows of a source are compared with."""
    duration, errors = where.of("duration"), where.of("error")
    dated = bool(where.of("created") or where.of("age"))
    return {
        **{f"only_{key}": where.only(key) for key in WORDS},
        **{f"never_{key}": where.never(key) for key in WORDS},
        "superseded": superseded,
        **_between("created", where.created(now_us) if dated else None),
        **_between("ran", where.duration() if duration else None),
        "not_run": all(term.negated for term in duration),
        "tags": _listed([_tag(term) for term in where.of(TAG)], where.of(TAG)),
        "errors": _listed([_error(term) for term in errors], errors),
        "has_error": any(not term.negated for term in errors),
    }


def _between(name: str, given: Sequence[Interval] | None) -> dict[str, Any]:
    """Bound a time; most filters leave one interval, which is compared more quickly than a list."""
    if given is not None and len(given) == 1:
        return {f"{name}_low": given[0][0], f"{name}_high": given[0][1], name: None}
    several = None if given is None else msgspec.json.encode(given).decode()
    return {f"{name}_low": None, f"{name}_high": None, name: several}


def _listed(value: object, terms: Sequence[Term]) -> str | None:
    return msgspec.json.encode(value).decode() if terms else None


def _tag(term: Term) -> dict[str, Any]:
    return {"name": term.name, "values": term.words, "negated": term.negated}


def _error(term: Term) -> dict[str, Any]:
    # An error is stored as JSON: only where the text, as it is spelled there, stands anywhere in it
    # is the message taken out and looked at.
    texts = [
        [json.dumps(value.word, ensure_ascii=False)[1:-1], value.word]
        for value in term.values
        if value.text
    ]
    return {"words": term.words, "texts": texts, "negated": term.negated}


def bounds(created: Sequence[Interval], before: str | None, newest: str | None) -> dict[str, str]:
    """Bound a walk by the ids that jobs of that time have; they begin with the time."""
    low, high = (created[0][0], created[-1][1]) if created else (0, 0)
    last = LAST if high == EVER else _id_at(high + LATE_US)
    begins = LAST if newest is None else str(UUID(int=UUID(newest).int + 1))
    return {"low": _id_at(low - EARLY_US), "before": min(last, before or LAST, begins)}


def created_about(job_id: str) -> datetime:
    """Tell about when a job was created: its id begins with the time of whoever made it."""
    return EPOCH + timedelta(milliseconds=UUID(job_id).int >> 80)


def _id_at(at_us: int) -> str:
    digits = f"{max(0, at_us) // 1000:012x}"
    return f"{digits[:8]}-{digits[8:]}-0000-0000-000000000000"
