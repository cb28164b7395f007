"""The page of limits: what each allows, who set it and why, how many run and wait; its forms."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.codec import check_text
from milepost.limit import EVENLY, SCOPES, number_text
from milepost.rules import clear_limit, reset_limit, set_limit
from milepost.store import buckets, limit_looks, rules
from milepost.store.driver import Steps
from milepost.store.limit_looks import LimitStand
from milepost.store.rules import ANY_HOST, RuleChange, RuleEdit
from milepost.web.call import Call, OperateCall, ReadCall
from milepost.web.dashboard.facts import Counts
from milepost.web.dashboard.page import (
    Fields,
    PageRoute,
    View,
    acted,
    command,
    confirmation,
    form_of,
    one,
    show,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)
CHANGES = 20
"""How many changes of a limit are listed."""
COUNTS = {"job": "of each key", "queue": "of its jobs", "host": "requests", "source": "calls"}


class Row(msgspec.Struct, frozen=True):
    """A limit as its line shows it."""

    limit: LimitStand

    @property
    def id(self) -> str:
        """The name of its part: a limit's name may hold anything."""
        named = f"{self.limit.scope} {self.limit.name}"
        return hashlib.sha256(named.encode()).hexdigest()[:12]

    @property
    def query(self) -> Mapping[str, str]:
        """What its page is asked for."""
        return {"name": self.limit.name, "scope": self.limit.scope}

    def counted(self, number: int | None) -> str:
        """Write a count; where counting ended it is that many or more. Empty if nobody counts."""
        if number is None:
            return ""
        ended = self.limit.counted_to is not None and number >= self.limit.counted_to
        return f"{number:,}{'+' if ended else ''}"

    def clear_path(self, key: str = "") -> str:
        """Where to ask for its rate, or that of a key, to begin anew."""
        place = f"/limits/{self.limit.scope}/{quote(self.limit.name, safe='')}/clear"
        return place + (f"?{urlencode({'key': key})}" if key else "")

    @property
    def has_keys(self) -> bool:
        """Whether a rate of it is that of a key, and which has to be said."""
        return self.limit.scope == "job" or self.limit.name == ANY_HOST

    @property
    def glyph(self) -> str:
        """The shape of its state: whether jobs wait while none may start."""
        return "paused" if self.limit.most == 0 else "ready"


class Found(msgspec.Struct, frozen=True):
    """What the page reads."""

    rows: Sequence[Row]
    chosen: Row | None = None
    changes: Sequence[RuleChange] = ()
    least: Mapping[str, float] = {}
    """Keys of the chosen one with the least left, and in how many seconds each is full again."""


def _read(counted: Counts, name: str | None, scope: str | None) -> Steps[Found]:
    """Read the limits, and of one who changed it."""
    rows = [Row(one) for one in (yield from limit_looks.listing(counted))]
    if name is None:
        return Found(rows)
    chosen = Row((yield from limit_looks.one(name, scope=scope)))
    named = chosen.limit.scope, chosen.limit.name
    changes = yield from rules.changes(named[1], scope=named[0], most=CHANGES)
    rule = (yield from rules.rules()).get(named)
    least = {} if rule is None else (yield from buckets.furthest(rule))
    return Found(rows, chosen, changes, least)


def _checked(call: Call, name: str | None = None) -> None:
    # They count jobs of every tenant, in every queue.
    call.principal.check_unbound("a limit")
    if name is not None:
        check_text(name, what="limit")


@router.get("/limits")
async def listing(*, call: ReadCall, name: str | None = None, scope: str | None = None) -> Response:
    """List limits; one of them closely, with its changes."""
    _checked(call, name)

    async def load() -> View:
        state = call.request.app.state
        found = await call.run(_read, await state.counts.read(), name, scope)
        return _view(found, await state.rail.now())

    return await show(call, load)


def _view(found: Found, now: datetime) -> View:
    chosen = found.chosen
    pieces: dict[str, tuple[str, Mapping[str, Any]]] = {
        f"limit-{row.id}": ("limits/row.html", {"row": row}) for row in found.rows
    }
    cli = "milepost limits ls"
    if chosen is not None:
        pieces[f"limit-one-{chosen.id}"] = ("limits/one.html", {})
        cli = command("limits", "show", chosen.limit.name, "--scope", chosen.limit.scope)
    values = {
        "rows": found.rows,
        "chosen": chosen,
        "changes": found.changes,
        "least": found.least,
        "now": now,
        "counts_of": COUNTS,
    }
    return View(
        template="limits/page.html",
        title="Limits",
        section="limits",
        cli=cli,
        values=values,
        pieces=pieces,
    )


@router.get("/limits/{scope}/{name}/set")
async def ask_set(*, scope: str, name: str, call: OperateCall) -> Response:
    """Ask what to set."""
    return await _asked(call, scope, name, "set")


@router.get("/limits/{scope}/{name}/reset")
async def ask_reset(*, scope: str, name: str, call: OperateCall) -> Response:
    """Ask whether to go back to what was declared."""
    return await _asked(call, scope, name, "reset")


def _choice(name: str, scope: str, *, first: bool) -> Steps[tuple[LimitStand, str]]:
    """Read a limit, and its burst unless that is the default of its rate.

    Where a `first` one may be made, of anything but jobs, it need not be there yet.
    """
    name = rules.own_name(name, scope)
    rule = (yield from rules.rules()).get((scope, name))
    if rule is None and first and scope in SCOPES[1:]:
        return LimitStand(scope=scope, name=name, words="no limit"), ""
    found = yield from limit_looks.one(name, scope=scope)
    burst = None if rule is None else rules.own_burst(rule.limit, scope)
    return found, "" if burst is None else number_text(burst)


@router.get("/limits/{scope}/{name}/clear")
async def ask_clear(*, scope: str, name: str, call: OperateCall, key: str = "") -> Response:
    """Ask whether a rate is to begin anew, and whose."""
    return await _asked(call, scope, name, "clear", key)


def _title(action: str, scope: str, name: str) -> str:
    if action == "clear":
        return f"Clear the rate of {'limit' if scope == 'job' else scope} {name}"
    of = "limit" if scope == "job" else f"the limit of {scope}"
    return f"{'Change' if action == 'set' else 'Reset'} {of} {name}"


async def _asked(call: Call, scope: str, name: str, action: str, key: str = "") -> Response:
    _checked(call, name)
    found, burst = await call.run(_choice, name, scope, first=action == "set")
    title = _title(action, scope, found.name)
    words = ["limits", action, found.name, *([key] if key else []), "--scope", scope]
    if action == "set":
        words += _suggested(found)
    return await confirmation(
        call,
        "limits/confirm.html",
        title=title,
        section="limits",
        values={
            "limit": found,
            "title": title,
            "row": Row(found),
            "burst": burst,
            "usual": "one" if scope in EVENLY else "one second's worth",
            "action": action,
            "whose": key,
            "counts_of": COUNTS,
        },
        cli=command(*words),
    )


def _suggested(limit: LimitStand) -> list[str]:
    """Give the options that a command would set; a source has a rate alone."""
    if limit.scope == "source":
        return ["--rate", limit.rate or "N/s"]
    return ["--most", "N" if limit.most is None else str(limit.most)]


@router.post("/limits/{scope}/{name}/set")
async def set_(*, scope: str, name: str, call: OperateCall) -> Response:
    """Set what a limit allows, from the next claim on."""
    _checked(call, name)
    fields = await form_of(call)
    said = {"actor": call.principal.actor, "reason": one(fields, "reason") or None}
    await call.run(set_limit, name, _edit_of(fields), scope=scope, **said)
    return acted(call, "set limit", f"{scope} {name}", "/limits", name=name, scope=scope)


def _edit_of(fields: Fields) -> RuleEdit:
    """Read the form: it holds all that can be set, and what is empty is taken away."""
    most, rate, burst = (one(fields, field) for field in ("most", "rate", "burst"))
    return RuleEdit(
        most=rules.read_most(most) if most else None,
        rate=rate or None,
        burst=rules.read_burst(burst) if rate and burst else None,
    )


@router.post("/limits/{scope}/{name}/reset")
async def reset(*, scope: str, name: str, call: OperateCall) -> Response:
    """Let what programs declare be in force again."""
    _checked(call, name)
    fields = await form_of(call)
    said = {"actor": call.principal.actor, "reason": one(fields, "reason") or None}
    after = await call.run(reset_limit, name, scope=scope, **said)
    place = {} if after.declared is None else {"name": name, "scope": scope}
    return acted(call, "reset limit", f"{scope} {name}", "/limits", **place)


@router.post("/limits/{scope}/{name}/clear")
async def clear(*, scope: str, name: str, call: OperateCall) -> Response:
    """Let a rate begin anew: what was taken is forgotten."""
    _checked(call, name)
    fields = await form_of(call)
    said = {"actor": call.principal.actor, "reason": one(fields, "reason") or None}
    await call.run(clear_limit, name, one(fields, "key") or None, scope=scope, **said)
    return acted(call, "clear limit", f"{scope} {name}", "/limits", name=name, scope=scope)
