"""Logging in with a token, and logging out."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from milepost.store import tokens
from milepost.telemetry import Log
from milepost.web.access import Principal
from milepost.web.dashboard import static
from milepost.web.dashboard.page import (
    FormRequest,
    PageRoute,
    address,
    environment,
    go_to,
    html_response,
    one,
)
from milepost.web.session import inside, new_session, set_cookie

router = APIRouter(route_class=PageRoute, include_in_schema=False)
log = Log("milepost.web")


def login_page(request: Request, *, wanted: str, wrong: str = "", status: int = 200) -> Response:
    """Show the form that takes a token."""
    root = request.scope.get("root_path", "").rstrip("/")
    text = (
        environment()
        .get_template("login.html")
        .render(
            root=root,
            next=wanted,
            wrong=wrong,
            provider=getattr(request.app.state, "provider_name", ""),
            static=lambda name: root + static.address(name),
            url=lambda path, **query: address(root, path, **query),
        )
    )
    return html_response(request, text, status)


@router.get("/login")
async def ask(request: Request) -> Response:
    """Ask for a token."""
    return login_page(request, wanted=inside(request.query_params.get("next", "/")))


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Begin a session with a token; the browser keeps its id under a signature, never the token."""
    assert isinstance(request, FormRequest)  # noqa: S101 - the route makes it
    fields = await request.unbound_fields()
    wanted, presented = inside(one(fields, "next") or "/"), one(fields, "token")
    client = request.app.state.engine.client
    token = await client.run_async(tokens.find, presented) if presented.isascii() else None
    if token is None:
        await request.app.state.throttle.count(request.scope)
        wrong = "This token opens nothing: it is wrong, expired or revoked."
        return login_page(request, wanted=wanted, wrong=wrong, status=401)
    return await begin(request, wanted, token_id=token.id, actor=token.name)


async def begin(request: Request, wanted: str, *, actor: str, **session: Any) -> Response:
    """Send the browser on with a session of its own."""
    signer = await request.app.state.keys.signer()
    log.info("logged in", actor=actor)
    response = go_to(request, wanted)
    cookie = signer.session_cookie(new_session(**session))
    response.headers["Set-Cookie"] = set_cookie(cookie, request.scope)
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """End the session in this browser."""
    assert isinstance(request, FormRequest)  # noqa: S101 - the route makes it
    await request.fields()
    principal: Principal = request.scope["milepost.principal"]
    log.info("logged out", actor=principal.actor)
    response = go_to(request, "/login")
    response.headers["Set-Cookie"] = set_cookie("", request.scope, seconds=0)
    return response
