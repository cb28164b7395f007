"""Errors: failures by their cause, what their jobs are now, and one of them closely."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.client import Client
from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import NotFound
from milepost.filters import Term, Value, Where
from milepost.lifecycle import JOB
from milepost.records import FailedAttempt
from milepost.store import errorlist
from milepost.store.driver import Steps
from milepost.store.errorlist import Closer, ErrorLine, ErrorLines, Example
from milepost.web.call import Call, ReadCall
from milepost.web.dashboard import frames, joblines, words
from milepost.web.dashboard.page import PageRoute, View, address, command, show

router = APIRouter(route_class=PageRoute, include_in_schema=False)
RANGES = {"2h": ("2 h", 2 * words.HOUR), "24h": ("24 h", words.DAY), "7d": ("7 d", 7 * words.DAY)}
USUAL = "24h"
SHOWN = 50
"""How many errors a page lists."""
FILTERED = 200
"""How many of those that were seen last a text is looked for in."""
NEW_SECONDS = words.DAY
FIELDS = ("type", "kind", "code", "place", "message")
"""Which part of an error a word may be bound to: `kind:charge_card`."""


class Row(msgspec.Struct, frozen=True):
    """An error as its line shows it."""

    line: ErrorLine
    bars: Sequence[int]
    new: bool

    @property
    def id(self) -> str:
        """The name of its parts: a fingerprint may hold anything."""
        return hashlib.sha256(self.line.fingerprint.encode()).hexdigest()[:12]

    @property
    def count(self) -> int:
        """How often it came in the time that is shown."""
        return sum(self.bars)

    @property
    def more(self) -> bool:
        """Whether it came more often than was counted."""
        return len(self.bars) == errorlist.SLOTS and max(self.bars) >= errorlist.LOOK


class Found(msgspec.Struct, frozen=True):
    """What the page reads."""

    lines: ErrorLines
    rows: Sequence[Row]
    chosen: Row | None
    closer: Closer | None


def _read(seconds: float, text: str, chosen: str | None, *, must: bool) -> Steps[Found]:
    """Read the list, its bars, and the chosen error closely: three statements.

    Without one that `must` be shown it is the one that was seen last.
    """
    most = FILTERED if text else SHOWN
    found = yield from errorlist.lines(seconds=seconds, most=most, chosen=chosen)
    fits = [line for line in found.lines if line.listed and matches(line, text)][:SHOWN]
    picked = next((line for line in found.lines if line.fingerprint == chosen), None)
    if picked is None and fits and not must:
        picked = fits[0]
    named = dict.fromkeys(line.fingerprint for line in (*fits, *filter(None, [picked])))
    bars = yield from errorlist.slots(list(named), seconds=seconds)
    closer = None if picked is None else (yield from errorlist.closer(picked.fingerprint))

    def row(line: ErrorLine) -> Row:
        new = (found.now - line.first_at).total_seconds() < NEW_SECONDS
        return Row(line, bars[line.fingerprint], new)

    return Found(
        found, [row(line) for line in fits], None if picked is None else row(picked), closer
    )


def matches(line: ErrorLine, text: str) -> bool:
    """Tell whether an error has every word of a text in it; `kind:` and the like bind one."""
    last = line.last
    fields = {
        "type": last.type,
        "kind": line.kind or "",
        "code": last.code or "",
        "place": last.place or "",
        "message": last.message,
    }
    everything = "\n".join((*fields.values(), line.fingerprint)).lower()
    for word in text.lower().split():
        key, colon, value = word.partition(":")
        if value not in fields[key].lower() if colon and key in fields else word not in everything:
            return False
    return True


@router.get("/errors")
async def listing(
    *,
    call: ReadCall,
    range: str = USUAL,  # noqa: A002 - as the address has it
    q: str = "",
    shown: str | None = None,
) -> Response:
    """List errors of a time; the one that was seen last is shown closely.

    While the page is looked at it stays that one: its stream says which is `shown`.
    """
    if shown is not None:
        check_text(shown, what="fingerprint")
    return await _shown(call, range, q, None, shown)


@router.get("/errors/{fingerprint}")
async def one(*, fingerprint: str, call: ReadCall, range: str = USUAL, q: str = "") -> Response:  # noqa: A002
    """Show one error closely, next to the list."""
    check_text(fingerprint, what="fingerprint")
    return await _shown(call, range, q, fingerprint)


async def _shown(
    call: Call, asked: str, text: str, fingerprint: str | None, shown: str | None = None
) -> Response:
    call.principal.check_unbound("the list of errors")
    chosen_range = asked if asked in RANGES else USUAL
    if text:
        check_text(text, what="filter", most=PROSE_BYTES, blank=True)

    async def load() -> View:
        must = fingerprint is not None
        found = await call.run(
            _read, RANGES[chosen_range][1], text, fingerprint if must else shown, must=must
        )
        if fingerprint is not None and found.chosen is None:
            raise NotFound(f"there is no error {fingerprint!r}; its failures may have been removed")
        return _view(call, found, range=chosen_range, text=text, fingerprint=fingerprint)

    return await show(call, load)


def _view(call: Call, found: Found, *, range: str, text: str, fingerprint: str | None) -> View:  # noqa: A002
    chosen = found.chosen
    values: dict[str, Any] = {
        "rows": found.rows,
        "chosen": chosen,
        "closer": found.closer,
        "lines": found.lines,
        "alone": fingerprint is not None,
        "range": range,
        "ranges": RANGES,
        "q": text,
        "now": found.lines.now,
        "asked": {"range": None if range == USUAL else range, "q": text},
    }
    pieces: dict[str, tuple[str, Mapping[str, Any]]] = {
        f"error-row-{row.id}": ("errors/row.html", {"row": row}) for row in found.rows
    }
    if chosen is not None and found.closer is not None:
        values |= _closely(call.app.client, chosen.line, found.closer)
        pieces[f"error-sum-{chosen.id}"] = ("errors/sum.html", {})
        pieces[f"error-jobs-{chosen.id}"] = ("errors/jobs.html", {})
    cli = "milepost errors ls"
    if fingerprint is not None:
        cli = command("errors", "show", fingerprint)
    return View(
        template="errors/page.html",
        title="Errors",
        section="errors",
        cli=cli,
        values=values,
        parts={"error-head": "errors/head.html"},
        pieces=pieces,
        follow={"shown": chosen.line.fingerprint} if chosen and fingerprint is None else {},
    )


def _closely(client: Client, line: ErrorLine, closer: Closer) -> dict[str, Any]:
    newest = closer.examples[0].attempt if closer.examples else line.last
    term = Term("fingerprint", (Value(line.fingerprint),))
    failed = Where((term, Term("state", (Value("failed"),))))
    rerun = {"action": "rerun", "all": 1, "q": str(failed)}
    queues = list(closer.shared["queue"])
    return {
        "shared": list(shares(closer)),
        "to_rerun": closer.states.get("FAILED", 0) - closer.again,
        "rerun_path": address("", "/jobs/bulk", **rerun),
        "jobs_query": str(term),
        "queue": queues[0] if len(queues) == 1 else None,
        "blocks": frames.blocks(newest.traceback, newest.place) if newest.traceback else [],
        "newest": newest,
        "alike": _same_traceback(closer.examples, newest),
        "examples": [(one, arguments(one, client)) for one in closer.examples],
        "states": [(state, closer.states[state]) for state in STATES if state in closer.states],
        "looked": closer.jobs >= errorlist.LOOK,
    }


STATES = ("FAILED", "RETRYING", *(s.value for s in JOB.states if s not in ("FAILED", "RETRYING")))


def _same_traceback(examples: Sequence[Example], newest: FailedAttempt) -> bool:
    """Tell whether all that are shown failed by the same way through the code."""
    ways = {(one.attempt.traceback or "").rpartition("\n  ")[0] for one in examples}
    return len(ways) == 1 and newest.traceback is not None


def shares(closer: Closer) -> Iterator[tuple[str, str, str]]:
    """Say what the jobs of an error share: words before, a name, words behind."""
    if not closer.jobs:
        yield "Its jobs failed with another error since, or are removed", "", ". "
        return
    kind, of_kind = _most(closer, "kind")
    version, of_version = _most(closer, "version")
    if of_kind == of_version == 1:
        yield "All are of ", f"{kind} version {version}", ". "
    elif of_kind == 1:
        yield "All are of ", kind, ", "
        yield "", f"version {version}", f" in {words.percent(of_version)}. "
    else:
        yield _part(of_kind), kind, ". "
        yield f"{_part(of_version)}version ", version, ". "
    queue, of_queue = _most(closer, "queue")
    yield f"{_part(of_queue)}queue ", queue, ". "
    tenant, of_tenant = _most(closer, "tenant")
    if tenant:
        yield f"{_part(of_tenant)}tenant ", tenant, ". "


def _part(share: float) -> str:
    return "All are of " if share == 1 else f"{words.percent(share)} are of "


def _most(closer: Closer, name: str) -> tuple[str, float]:
    word, number = next(iter(closer.shared[name].items()))
    return word, number / closer.jobs


def arguments(example: Example, client: Client) -> str:
    """Write a job's arguments in a line, without what is secret; or say why they are not shown."""
    if example.size is None:
        return "no arguments" if example.kind else "its job is removed"
    kind = example.kind or ""
    return joblines.written(kind, example.codec, example.payload, example.size, client)
