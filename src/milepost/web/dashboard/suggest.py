"""Suggestions while somebody types a filter: keys, then their words, counted where cheap."""

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.filters import Value, Where
from milepost.store import joblist
from milepost.store.joblist import Counts
from milepost.web.call import Call, ReadCall
from milepost.web.dashboard.joblines import ORDER, at_least, sought
from milepost.web.dashboard.jobs import within
from milepost.web.dashboard.page import PageRoute, environment, html_response

router = APIRouter(route_class=PageRoute, include_in_schema=False)
MOST = 8
TYPED_LONGEST = 200
KEYS: Mapping[str, str] = {
    "state": "failed, retrying, running …",
    "kind": "the name of the job",
    "queue": "the queue it is in",
    "age": "<2h or >1d",
    "created": "a day or a time",
    "duration": "how long it ran: >30s",
    "error": 'type, code or "text"',
    "tag.": "a tag by its name",
    "run": "the id of its run",
    "worker": "the worker that holds it",
    "tenant": "whose job it is",
    "key": "its unique key",
    "fingerprint": "of its last error",
}
SPANS = ("<5m", "<1h", "<2h", "<1d", ">1h", ">1d")
RUNS = (">1s", ">10s", ">1m", ">10m")


class Suggestion(msgspec.Struct, frozen=True):
    """A token that may be meant."""

    take: str
    """What takes the place of what was typed."""
    head: str
    """The part of it that was typed."""
    rest: str
    note: str = ""
    state: str = ""
    whole: bool = True
    """Whether it is a whole term, or a key that wants a value."""


@router.get("/jobs/suggest")
async def suggest(*, call: ReadCall, q: str = "", typed: str = "") -> Response:
    """Suggest tokens for what was typed, as a list of options."""
    typed = typed[:TYPED_LONGEST]
    dash = "-" if typed.startswith("-") else ""
    key, colon, value = typed.removeprefix("-").partition(":")
    others = sought(q).where
    if not colon:
        found: Sequence[Suggestion] = list(_keys(dash, key))
    elif others is None:
        found = []
    else:
        found = await _words(call, dash, key, value, others)
    template = environment().get_template("jobs/suggest.html")
    return html_response(call.request, template.render(found=found[:MOST]))


def _keys(dash: str, typed: str) -> Iterable[Suggestion]:
    for key, note in KEYS.items():
        if key.startswith(typed):
            take = f"{dash}{key}" if key.endswith(".") else f"{dash}{key}:"
            yield Suggestion(
                take, f"{dash}{typed}", take[len(dash) + len(typed) :], note, whole=False
            )


async def _words(
    call: Call, dash: str, key: str, value: str, others: Where
) -> Sequence[Suggestion]:
    *before, last = value.split(",")
    head = f"{dash}{key}:" + "".join(f"{one}," for one in before)
    now_us = time.time_ns() // 1_000
    mine = others & within(call.principal)
    if key == "state":
        counts = await call.run(joblist.counts, mine, now_us=now_us)
        return _counted(head, last, [state.lower() for state in ORDER], counts, is_state=True)
    if key in ("kind", "queue"):
        where = Where(tuple(term for term in mine.terms if term.key != key)) & within(
            call.principal
        )
        counts = await call.run(joblist.counts_by, key, where, now_us=now_us)
        by_number = sorted(counts.of, key=lambda word: -counts.of[word].number)
        return _counted(head, last, by_number, counts)
    fixed = {"age": SPANS, "duration": RUNS}.get(key, ())
    return [Suggestion(head + one, last, one[len(last) :]) for one in fixed if one.startswith(last)]


def _counted(
    head: str, typed: str, words: Sequence[str], counts: Counts, *, is_state: bool = False
) -> list[Suggestion]:
    found = []
    for word in words:
        if word.startswith(typed):
            count = counts.of.get(word.upper() if is_state else word)
            note = "0" if count is None else at_least(count)
            state = word if is_state else ""
            taken = head + str(Value(word))
            found.append(Suggestion(taken, typed, word[len(typed) :], note, state))
    return found
