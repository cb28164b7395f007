"""Tokens: whom they are for, what they may do; creating and revoking them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from milepost.codec import check_text
from milepost.config import seconds
from milepost.errors import Invalid, NotFound
from milepost.limit import read_rate
from milepost.store import tokens
from milepost.store.tokens import SCOPES, Bounds, Token
from milepost.web.access import Principal
from milepost.web.call import AdminCall, Call
from milepost.web.dashboard.page import (
    Fields,
    PageRoute,
    Renderer,
    View,
    audit,
    command,
    confirmation,
    form_of,
    go_to,
    html_response,
    one,
    show,
)
from milepost.web.problems import HttpProblem

router = APIRouter(route_class=PageRoute, include_in_schema=False)
GLYPHS = {"active": "ready", "expired": "waiting", "revoked": "cancelled"}
MEANINGS = {
    "submit": "create jobs and runs",
    "read": "see jobs, runs and these pages",
    "operate": "cancel, rerun, pause, deliver again",
    "admin": "everything, tokens too",
}
TEXTS = ("name", "tenant", "queues", "kinds", "max_priority", "rate", "expires")


class Wanted(msgspec.Struct, frozen=True):
    """A token as the form asks for it."""

    name: str
    scopes: tuple[str, ...]
    tenant: str | None
    queues: tuple[str, ...] | None
    bounds: Bounds
    expires_in: float | None


def _check_whole(principal: Principal, subject: str) -> None:
    """Refuse a token that is bound in any way: it could create one that is not."""
    principal.check_unbound(subject)
    if principal.bounds != Bounds():
        raise HttpProblem(403, f"{subject} is for tokens without bounds; this one has some")


@router.get("/tokens")
async def listing(*, call: AdminCall) -> Response:
    """List tokens; none shows its secret."""
    _check_whole(call.principal, "the list of tokens")

    async def load() -> View:
        return _view(await call.run(tokens.listing))

    return await show(call, load)


def _view(found: Sequence[Token], **more: Any) -> View:
    order = sorted(found, key=lambda token: (token.state != "active", token.name, token.id))
    pieces: Mapping[str, tuple[str, Mapping[str, Any]]] = {
        f"token-{token.id}": ("tokens/row.html", {"token": token}) for token in order
    }
    values = {"tokens": order, "scopes": SCOPES, "meanings": MEANINGS, "glyphs": GLYPHS}
    given = dict.fromkeys(TEXTS, "")
    asked: dict[str, Any] = {"wrong": "", "given": given, "chosen": ("read",), "secret": None}
    return View(
        template="tokens/page.html",
        title="Tokens",
        section="tokens",
        cli="milepost tokens ls",
        values={**values, **asked, **more},
        pieces=pieces,
    )


@router.post("/tokens")
async def create(*, call: AdminCall) -> Response:
    """Create a token, and show its secret: this once, in this answer."""
    _check_whole(call.principal, "a token")
    fields = await form_of(call)
    try:
        wanted = read(fields)
        token_id, secret, hashed = tokens.new_secret()
        stored = msgspec.structs.asdict(wanted)
        await call.run(tokens.create, token_id, hashed=hashed, **stored)
    except Invalid as error:
        given = {name: one(fields, name) for name in TEXTS}
        chosen = tuple(fields.get("scope", ()))
        return await _answer(call, 422, wrong=str(error), given=given, chosen=chosen)
    audit(call, "create token", wanted.name)
    return await _answer(call, 201, secret=secret, made=wanted.name)


async def _answer(call: Call, status: int, **more: Any) -> Response:
    """Show the page once, without a stream: its address would not show this again."""
    view = _view(await call.run(tokens.listing), **more)
    shared = await call.request.app.state.rail.shared(call)
    text = Renderer(call, view, {**shared, "still": True}).whole()
    return html_response(call.request, text, status)


def read(fields: Fields) -> Wanted:
    """Read the form, or say what is wrong with it."""
    name = tokens.check_actor(one(fields, "name"))
    priority, expires = one(fields, "max_priority"), one(fields, "expires")
    if priority and (not priority.isdecimal() or int(priority) > 9):  # noqa: PLR2004
        raise Invalid(f"highest priority {priority!r}: it is a number from 0 to 9")
    kinds, rate = _listed(fields, "kinds"), one(fields, "rate")
    bounds = Bounds(
        max_priority=int(priority) if priority else None,
        kinds=kinds,
        requests=kinds is None or bool(one(fields, "requests")),
        rate=read_rate(rate).per_second if rate else None,
    )
    span = seconds(expires, "expires") if expires else None
    if span is not None and span <= 0:
        raise Invalid(f"expires {expires}: it would never work")
    tenant = one(fields, "tenant")
    return Wanted(
        name=name,
        scopes=tokens.check_scopes(list(fields.get("scope", ()))),
        tenant=check_text(tenant, what="tenant") if tenant else None,
        queues=_listed(fields, "queues"),
        bounds=bounds,
        expires_in=span,
    )


def _listed(fields: Fields, name: str) -> tuple[str, ...] | None:
    found = tuple(word.strip() for word in one(fields, name).split(",") if word.strip())
    if one(fields, name) and not found:
        raise Invalid(f"{name} is blank: a token that is bound to none would have them all")
    return tuple(check_text(word, what=name) for word in found) or None


@router.get("/tokens/{token_id}/revoke")
async def ask_revoke(*, token_id: str, call: AdminCall) -> Response:
    """Ask whether a token shall open nothing any more."""
    token = await _required(call, token_id)
    return await confirmation(
        call,
        "tokens/confirm.html",
        title=f"Revoke token {token.name}",
        section="tokens",
        values={"token": token, "own": token.id == call.principal.token_id},
        cli=command("tokens", "revoke", token.name),
    )


async def _required(call: Call, token_id: str) -> Token:
    _check_whole(call.principal, "a token")
    found = await call.run(tokens.listing)
    token = next((token for token in found if token.id == token_id), None)
    if token is None or token.state == "revoked":
        raise NotFound(f"there is no live token {token_id!r}")
    return token


@router.post("/tokens/{token_id}/revoke")
async def revoke(*, token_id: str, call: AdminCall) -> Response:
    """Revoke a token; its sessions end at once."""
    await form_of(call)
    token = await _required(call, token_id)
    await call.run(tokens.revoke, token.id)
    audit(call, "revoke token", token.name)
    return go_to(call.request, "/tokens")
