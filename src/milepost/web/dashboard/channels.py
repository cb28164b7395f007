"""Channels: messages that wait, are dead or arrived; stopping one, and delivering again."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import Invalid, NotFound
from milepost.store import brokers, outbox
from milepost.store.blockers import explain_any
from milepost.store.brokers import BrokerReport
from milepost.store.driver import Steps
from milepost.store.explain import Explanation
from milepost.store.outbox import Channel, Message
from milepost.web.call import Call, OperateCall, ReadCall
from milepost.web.dashboard.facts import LATE_SECONDS
from milepost.web.dashboard.page import (
    PageRoute,
    View,
    acted,
    ask_first,
    command,
    confirmation,
    form_of,
    one,
    show,
)

router = APIRouter(route_class=PageRoute, include_in_schema=False)
MESSAGES = 30
"""How many messages of a channel are listed."""
LATELY_SECONDS = 3_600
STANDS = ("waiting", "dead", "delivered")
GLYPHS = {"active": "ready", "stopped": "paused", "vanished": "cancelled"}
ACTIONS = {"stop": "Stop", "start": "Start", "retry": "Try again"}


class Row(msgspec.Struct, frozen=True):
    """A channel as its line shows it."""

    channel: Channel
    oldest: float | None
    """For how many seconds its oldest message waits."""
    arrived: int
    """How many of its newest messages arrived within the hour."""
    last_at: datetime | None

    @property
    def id(self) -> str:
        """The name of its part: a channel's name may hold anything."""
        return hashlib.sha256(self.channel.name.encode()).hexdigest()[:12]

    @property
    def glyph(self) -> str:
        """The shape of its state."""
        return GLYPHS[self.channel.state]

    @property
    def late(self) -> bool:
        """Whether somebody should look: what is pulled waits for its receiver."""
        return self.channel.kind != "pull" and (self.oldest or 0.0) > LATE_SECONDS


class Found(msgspec.Struct, frozen=True):
    """What the page reads."""

    rows: Sequence[Row]
    inbounds: Sequence[BrokerReport] = ()
    """Where jobs come from, as their brokers last said."""
    chosen: Row | None = None
    explained: Explanation | None = None
    stands: str = ""
    messages: Sequence[Message] = ()


def _rows() -> Steps[list[Row]]:
    listed = yield from outbox.known()
    oldest = {name: waited for name, _, waited in (yield from outbox.waiting())}
    names = [channel.name for channel in listed]
    lately = yield from outbox.lately(names, seconds=LATELY_SECONDS)
    return [
        Row(channel, oldest.get(channel.name), *lately.get(channel.name, (0, None)))
        for channel in listed
    ]


def _read(name: str | None, stands: str | None) -> Steps[Found]:
    """Read the channels, and of one why it stands where it does, and some of its messages."""
    rows = yield from _rows()
    reports = yield from brokers.reports()
    inbounds = [report for report in reports if report.side == brokers.INBOUND]
    if name is None:
        return Found(rows, inbounds)
    chosen = require(rows, name)
    stands = stands or ("dead" if chosen.channel.dead else "waiting")
    explained = yield from explain_any("channel", name)
    messages = yield from outbox.shown(name, stands, most=MESSAGES)
    return Found(rows, inbounds, chosen, explained, stands, messages)


def require(rows: Sequence[Row], name: str) -> Row:
    """Find a channel, or say which there are."""
    found = next((row for row in rows if row.channel.name == name), None)
    if found is None:
        there = ", ".join(row.channel.name for row in rows) or "none"
        raise NotFound(f"there is no channel {name!r}; there are: {there}")
    return found


@router.get("/channels")
async def listing(
    *, call: ReadCall, name: str | None = None, show_only: str | None = None
) -> Response:
    """List channels; one of them closely, with its messages."""
    call.principal.check_unbound("the list of channels")
    if name is not None:
        check_text(name, what="channel")
    if show_only is not None and show_only not in STANDS:
        raise Invalid(f"show_only={show_only!r}: expected one of {', '.join(STANDS)}")

    async def load() -> View:
        return _view(await call.run(_read, name, show_only))

    return await show(call, load)


def _view(found: Found) -> View:
    chosen = found.chosen
    pieces: dict[str, tuple[str, Mapping[str, Any]]] = {
        f"channel-{row.id}": ("channels/row.html", {"row": row}) for row in found.rows
    }
    pieces["inbound-list"] = ("channels/inbound.html", {})
    cli = "milepost channels ls"
    if chosen is not None:
        pieces[f"channel-one-{chosen.id}"] = ("channels/one.html", {})
        cli = command("explain", "channel", chosen.channel.name)
    return View(
        template="channels/page.html",
        title="Channels",
        section="channels",
        cli=cli,
        values={
            "rows": found.rows,
            "inbounds": found.inbounds,
            "chosen": chosen,
            "explained": found.explained,
            "stands": found.stands,
            "messages": found.messages,
            "look": outbox.LOOK,
            "most": MESSAGES,
        },
        pieces=pieces,
    )


async def _asked(call: Call, name: str, action: str) -> Response:
    row = await _required(call, name)
    return await confirmation(
        call,
        "channels/confirm.html",
        title=f"{ACTIONS[action]}: channel {name}",
        section="channels",
        values={"row": row, "action": action, "label": ACTIONS[action]},
        cli=command("channels", action, name),
    )


ask_first(router, "/channels", ACTIONS, _asked)


async def _required(call: Call, name: str) -> Row:
    call.principal.check_unbound("a channel")
    return require(await call.run(_rows), check_text(name, what="channel"))


@router.post("/channels/{name}/stop")
async def stop(*, name: str, call: OperateCall) -> Response:
    """Let nothing leave through a channel; its messages wait."""
    fields = await form_of(call)
    await _required(call, name)
    reason = one(fields, "reason") or "stopped"
    check_text(reason, what="reason", most=PROSE_BYTES)
    await call.run(outbox.stop, name, reason=reason, actor=call.principal.actor)
    return acted(call, "stop channel", name, "/channels", name=name)


@router.post("/channels/{name}/start")
async def start(*, name: str, call: OperateCall) -> Response:
    """Let messages leave through a channel again."""
    await form_of(call)
    await _required(call, name)
    await call.run(outbox.start, name)
    return acted(call, "start channel", name, "/channels", name=name)


@router.post("/channels/{name}/retry")
async def retry(*, name: str, call: OperateCall) -> Response:
    """Try all dead messages of a channel again."""
    await form_of(call)
    await _required(call, name)
    ids = await call.run(outbox.retry, name)
    return acted(
        call, "retry messages", f"{name} ({len(ids)})", "/channels", name=name, show_only="waiting"
    )


@router.post("/channels/{name}/redeliver")
async def redeliver(*, name: str, call: OperateCall) -> Response:
    """Deliver one message once more that arrived, or is dead."""
    message = check_text(one(await form_of(call), "message"), what="message")
    await _required(call, name)
    if not await call.run(outbox.redeliver, name, [message]):
        raise NotFound(f"message {message} is not in channel {name}, or waits still")
    return acted(call, "redeliver message", message, "/channels", name=name, show_only="waiting")
