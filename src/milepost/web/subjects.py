"""The routes that jobs and runs have in common: look, wait, read the history, be accepted."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar
from weakref import WeakKeyDictionary

import msgspec
from fastapi import Query
from starlette.responses import Response

from milepost.batch.handles import RunHandle
from milepost.client import Client
from milepost.errors import Invalid, MilepostError, NotFound
from milepost.handles import JobHandle
from milepost.lifecycle import JOB, RUN
from milepost.machine import Machine
from milepost.records import Job, Run, Template
from milepost.store import jobs, journal, runs, workers
from milepost.store.driver import Steps
from milepost.subjects import Finder, Subject, checked_id
from milepost.web.call import Call, StoredAnswer, json_response
from milepost.web.documents import (
    GENERAL,
    EntryDocument,
    Face,
    PastDocument,
    document,
    in_words,
    receipt,
    whole_document,
)
from milepost.web.paging import PAGE_BYTES, PageQuery
from milepost.web.problems import Responses, problems

Handle = TypeVar("Handle", JobHandle[Any], RunHandle)
Spec = Annotated[
    str | None,
    Query(
        alias="as",
        description="The letter of a spec, to be told its word for the state (`id`, `state`); "
        "`D`, of a job, gives D's record in D's names.",
        examples=["D"],
    ),
]
At = Annotated[
    datetime | None,
    Query(description="Say how it stood at this time, folded from the journal; UTC by default."),
]
RETRY = {"Retry-After": "1"}
LOOK_FIRST = 0.01
LOOK_LONGEST = 0.25
LOOK_GROWS = 1.5
WAITERS = 5_000
"""Beyond so many callers are answered at once: waiting is a courtesy."""

_STATES: dict[str, tuple[Callable[[list[str]], Steps[list[tuple[str, str]]]], Machine]] = {
    "job": (jobs.standing, JOB),
    "run": (runs.standing, RUN),
}


def accepts(receipt: Any, document: Any, *statuses: int) -> Responses:
    """Document a route that accepts a job or a run, and may wait for its end."""
    headers = {
        "Location": {"schema": {"type": "string"}},
        "Retry-After": {"schema": {"type": "integer"}},
    }
    return {
        202: {"model": receipt, "headers": headers, "description": "Accepted, and durable."},
        200: {"model": document, "description": "It ended while the caller waited."},
        **problems(409, 413, 415, *statuses),
    }


def id_within(given: str, *, what: str) -> str:
    """Read an id that is part of a question: a wrong one is a mistake, not something missing."""
    try:
        return checked_id(given, what=what)
    except NotFound as error:
        raise Invalid(f"{what}={given!r} is not the id of a {what}") from error


async def visible(call: Call, finder: Finder[Handle], subject_id: str) -> Handle:
    """Read a job or a run, or raise `NotFound`: a foreign one is said not to exist."""
    found: Handle = await finder.get_async(subject_id)
    check_visible(call, found.record)
    return found


def check_visible(call: Call, record: Job | Run) -> None:
    """Say that a foreign job or run does not exist: the caller learns nothing of it."""
    if not call.principal.sees(record):
        what = "job" if isinstance(record, Job) else "run"
        raise NotFound(f"there is no {what} {record.id}")


async def show(
    call: Call,
    finder: Finder[Handle],
    subject_id: str,
    spec: str | None,
    at: datetime | None = None,
) -> Response:
    """Read a job or a run, and say how it stands, or stood, perhaps in the words of a spec."""
    found = await visible(call, finder, subject_id)
    if at is not None:
        moment = await past(call, at)
        stood = await call.run(journal.standing_at, found.id, moment, machine=found.what)
        return json_response(
            document(PastDocument, stood, subject=found.what, id=found.id, at=moment)
        )
    if spec is not None:
        return await answer(call, found, lambda: in_words(found, spec.upper()))
    return await answer(call, found, lambda: whole_document(found, call.app.client))


async def past(call: Call, at: datetime) -> datetime:
    """Read a time, in UTC if it says no zone, or raise `Invalid` if it is still to come."""
    moment, now = at if at.tzinfo else at.replace(tzinfo=UTC), await call.run(workers.now)
    if moment > now:
        raise Invalid(f"at={at.isoformat()} is still to come; it is {now.isoformat()}")
    return moment


async def answer(
    call: Call, found: Subject[Any], telling: Callable[[], Awaitable[object]]
) -> Response:
    """Say how it stands, once it has ended if that is waited for; 304 if the caller knows that."""
    await _await_end(call, found)
    body = msgspec.json.encode(await telling())
    tag = _etag(body)
    headers = {"ETag": tag, "Cache-Control": "no-cache", **call.preference.applied}
    if not found.done:
        headers |= RETRY
    known = (call.if_none_match or "").split(",")
    if any(each.strip().removeprefix("W/") in (tag, "*") for each in known):
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type="application/json")


async def _await_end(call: Call, found: Subject[Any]) -> None:
    if call.preference.wait and not found.done:
        seconds = call.preference.wait
        await wait_until_final(call.app.client, found.what, found.id, seconds=seconds)
        await found.refresh_async()


def _etag(body: bytes) -> str:
    """Mark a body, so that a caller who has it need not get it again."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


async def history(call: Call, finder: Finder[Handle], subject_id: str, page: PageQuery) -> Response:
    """Answer with a page of its moves, in order."""
    found = await visible(call, finder, subject_id)
    filters = {"history": found.id}
    moves = await call.run(
        journal.history_page,
        found.id,
        machine=found.what,
        after=page.number(filters),
        most=page.limit,
        most_bytes=PAGE_BYTES,
    )
    return page.listed(moves, lambda move: document(EntryDocument, move), filters, by="seq")


def acceptance(
    subject_id: str,
    record: Job | Run | Template,
    face: Face = GENERAL,
    *,
    duplicate: str | None = None,
) -> StoredAnswer:
    """Say that a job or a run was accepted, where it is, and when to look."""
    told = {} if duplicate is None else {"duplicate": duplicate}
    body = msgspec.json.encode({**receipt(subject_id, record, face), **told})
    place = face.runs if isinstance(record, Run) else face.jobs
    return StoredAnswer(202, body, f"{place}/{subject_id}", RETRY)


async def accepted(
    call: Call, finder: Finder[Handle], answer: StoredAnswer, face: Face = GENERAL
) -> Response:
    """Answer that it was accepted, or how it ended if that is waited for and comes in time."""
    response = answer.response(call.request)
    if call.preference.wait and answer.location is not None:
        found: Handle = await finder.get_async(answer.location.rpartition("/")[2])
        await _await_end(call, found)
        if found.done and call.principal.sees(found.record):
            body = msgspec.json.encode(await whole_document(found, call.app.client, face))
            headers = {"Location": response.headers["Location"], "ETag": _etag(body)}
            response = Response(body, 200, headers, media_type="application/json")
    response.headers.update(call.preference.applied)
    return response


class Waiters:
    """Callers that wait for jobs, or for runs, and the task that looks while there are any.

    The client is not kept: that would keep both of them for ever.
    """

    def __init__(self, what: str) -> None:
        self._states, machine = _STATES[what]
        self._final = machine.terminal
        self._waiting: dict[str, asyncio.Event] = {}
        self._callers: Counter[str] = Counter()
        self._pause = LOOK_FIRST
        self._looking: asyncio.Task[None] | None = None

    async def wait(self, client: Client, subject_id: str, *, seconds: float) -> None:
        """Return once it has ended, or the time is over."""
        if self._callers.total() >= WAITERS:
            return
        event = self._waiting.setdefault(subject_id, asyncio.Event())
        self._callers[subject_id] += 1
        self._pause = LOOK_FIRST
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(client))
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._leave(subject_id)

    def _leave(self, subject_id: str) -> None:
        self._callers[subject_id] -= 1
        if not self._callers[subject_id]:
            del self._callers[subject_id]
            self._waiting.pop(subject_id, None)

    async def _look(self, client: Client) -> None:
        try:
            while self._waiting:
                for subject_id in await self._ended(client):
                    if subject_id in self._waiting:
                        self._waiting[subject_id].set()
                await asyncio.sleep(self._pause)
                self._pause = min(self._pause * LOOK_GROWS, LOOK_LONGEST)
        finally:
            self._looking = None

    async def _ended(self, client: Client) -> list[str]:
        try:
            found = await client.run_async(self._states, list(self._waiting))
        except MilepostError:
            return []  # the read that answers a waiting caller says so
        return [subject_id for subject_id, state in found if state in self._final]


_waiters: WeakKeyDictionary[
    asyncio.AbstractEventLoop, WeakKeyDictionary[Client, dict[str, Waiters]]
] = WeakKeyDictionary()


async def wait_until_final(client: Client, what: str, subject_id: str, *, seconds: float) -> None:
    """Return once a job or a run has ended, or the time is over."""
    here = _waiters.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())
    known = here.setdefault(client, {})
    if what not in known:
        known[what] = Waiters(what)
    await known[what].wait(client, subject_id, seconds=seconds)
