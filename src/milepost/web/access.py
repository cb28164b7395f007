"""Access: the hosts that are answered to, tokens, and the scopes and bounds of their bearers.

A token opens the routes of its scopes, in the tenant and the queues that it is bound to. Under
`milepost dev` callers on this machine need none as long as there never was one; the first token
ends that. All of it is checked before anything of a request is read.
"""

import asyncio
import ipaddress
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from http import HTTPStatus
from math import ceil
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from milepost import bulk
from milepost.client import Client, acting
from milepost.errors import MilepostError
from milepost.records import Job, Run
from milepost.relay.message import read_traceparent
from milepost.request import batch as request_batch
from milepost.request import kind as request_kind
from milepost.store import outbox, tokens
from milepost.web.paths import matched_path
from milepost.web.problems import HttpProblem, problem_of, problem_response
from milepost.web.session import Session, login_address, own_address, session_of

ACCESS = ("tokens", "open", "local")
"""The callers let in without a token: none, all (the program that mounts the API guards it), or
those on this machine while there never was a token, which is for `milepost dev` alone."""

FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
REQUESTS = frozenset({request_kind.KIND, request_batch.KIND})
"""The kinds that send HTTP requests: a job, and a run of many."""

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="milepost"'}
EVERYTHING = frozenset({"admin"})

OPEN = frozenset({"/docs", "/livez", "/readyz", "/login", "/login/oidc", "/login/oidc/callback"})
"""Paths for browsers and load balancers, without a token; they show nothing of the store."""

STATIC = "/static/"
PROGRAMS = ("/v1/", "/metrics", "/openapi.json")
"""Paths for programs: a session does not open them, and no login page answers there."""

CALLBACK = re.compile(r"/v1/requests/[^/]+/callback/[^/]+")
"""Where a remote calls back: the address holds a secret of its own, made for one job."""

NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""No browser shows an answer as a page, whatever somebody's result looks like."""

BOUNCE = {"Content-Security-Policy": "default-src 'none'", "Cache-Control": "no-store"}

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing, and so may come from a link on anybody's page."""

WRONG_TOKENS_RATE = 5.0
"""How many wrong tokens a second an address may present before it is slowed."""

WRONG_TOKEN_SECONDS = 1.0
WRONG_TOKENS_WAITING = 100
"""How many of their senders are kept waiting at a time; further ones are answered at once."""

CALLERS = 10_000
"""How many callers' rates are remembered."""


class Principal(msgspec.Struct, frozen=True):
    """The caller: a token's name, scopes and bounds, or somebody on this machine."""

    actor: str
    scopes: frozenset[str]
    token_id: str | None = None
    tenant: str | None = None
    queues: tuple[str, ...] | None = None
    bounds: tokens.Bounds = tokens.Bounds()

    @property
    def id(self) -> str:
        """The name that its requests and its idempotency keys are counted by."""
        return self.token_id or self.actor

    def may(self, scope: str) -> bool:
        """Tell whether the caller has a scope; admin has each."""
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, record: Job | Run) -> bool:
        """Tell whether a job or run is within the caller's bounds."""
        return self.sees_within(record.tenant, record.queue)

    def sees_within(self, tenant: str | None, queue: str | None) -> bool:
        """Tell whether a tenant's jobs in a queue are within the caller's bounds."""
        return self.tenant in (None, tenant) and self.sees_queue(queue)

    def sees_queue(self, queue: str | None) -> bool:
        """Tell whether a queue is one that the token is bound to, if it is bound to any."""
        return self.queues is None or queue in self.queues

    def check_new(self, kind: str, *, queue: str | None = None, priority: int = 0) -> None:
        """Refuse a job or a run that the token may not create."""
        if queue is not None and not self.sees_queue(queue):
            raise _refused(f"this token is not for queue {queue!r}; it is bound to its own")
        bounds = self.bounds
        if kind in REQUESTS and not bounds.requests:
            raise _refused("this token sends no HTTP requests; see tokens create --requests")
        if kind not in REQUESTS and bounds.kinds is not None and kind not in bounds.kinds:
            kinds = ", ".join(bounds.kinds) or "no kind at all"
            raise _refused(f"this token is not for {kind!r}; it is for {kinds}")
        if bounds.max_priority is not None and priority > bounds.max_priority:
            most = bounds.max_priority
            raise _refused(f"this token's jobs have priority {most} at most, not {priority}")

    def check_rerun(self, job: Job) -> None:
        """Refuse to run a job again that the token may not create."""
        if job.kind == bulk.KIND and not self.may("admin"):
            raise _refused("an admin's token runs it again; order it anew: POST /v1/jobs:bulk")
        self.check_new(job.kind, queue=job.queue, priority=job.priority)

    def check_any_rerun(self) -> None:
        """Refuse a rerun of all that a filter finds, where each job would have to be looked at."""
        bounds = self.bounds
        if bounds.kinds is not None or bounds.max_priority is not None or not bounds.requests:
            raise _refused(
                "this token is bound to kinds, a priority or no requests: name the jobs by ids"
            )

    def check_unbound(self, subject: str, *, queues: bool = True) -> None:
        """Refuse a part of the whole installation to a token of a tenant, or of some `queues`."""
        if self.tenant is not None or (queues and self.queues is not None):
            raise _refused(f"{subject} is for tokens that are bound to no tenant and no queue")

    async def check_channel(self, client: Client, channel: str | None) -> None:
        """Refuse another tenant's channel, and the installation's own, to a token of a tenant."""
        if channel is None or self.tenant is None:
            return
        owner = await client.run_async(outbox.tenant, channel)
        if owner not in (None, outbox.EVERYONE, self.tenant):
            raise _refused(f"channel {channel!r} is not of this token's tenant")

    @property
    def filters(self) -> dict[str, Any]:
        """How listings are narrowed."""
        queues = None if self.queues is None else msgspec.json.encode(self.queues).decode()
        return {"tenant": self.tenant, "queues": queues}


def _refused(detail: str) -> HttpProblem:
    return HttpProblem(403, detail)


async def authenticate(
    client: Client, scope: Scope, access: str, session: Session | None = None
) -> Principal:
    """Return the caller, or raise a 401."""
    headers = Headers(scope=scope)
    if access == "open":
        return Principal("api", EVERYTHING)
    if "authorization" in headers:
        return await _by_token(client, headers["authorization"])
    if session is not None:
        return await _by_session(client, session)
    if access == "local" and _is_local(scope, headers):
        ever, _ = await client.run_async(tokens.presence)
        if not ever:
            return Principal("local", EVERYTHING)
    raise HttpProblem(401, "send a token: Authorization: Bearer mp_…", headers=CHALLENGE)


async def _by_token(client: Client, given: str) -> Principal:
    kind, _, presented = given.partition(" ")
    token = None
    if kind.lower() == "bearer" and presented.isascii():
        token = await client.run_async(tokens.find, presented.strip())
    if token is None:
        detail = "this token opens nothing: it is wrong, expired or revoked"
        raise HttpProblem(401, detail, headers=CHALLENGE)
    return _bearer(token)


def _bearer(token: tokens.Token) -> Principal:
    scopes = frozenset(token.scopes)
    return Principal(token.name, scopes, token.id, token.tenant, token.queues, token.bounds)


async def _by_session(client: Client, session: Session) -> Principal:
    """Return whose session it is; it ends at its time, or with its token, which may be revoked."""
    if session.until <= time.time():  # a stream asks again long after the cookie was read
        raise HttpProblem(401, "this session has ended; log in again")
    if session.token_id is None:
        person, scopes = session.person or "", frozenset(session.scopes)
        return Principal(person, scopes, None, session.tenant, session.queues)
    token = await client.run_async(tokens.live, session.token_id)
    if token is None:
        raise HttpProblem(401, "the token of this session was revoked or has expired")
    return _bearer(token)


def _is_local(scope: Scope, headers: Headers) -> bool:
    """Tell whether the caller is on this machine; one that a proxy speaks for is not."""
    if any(name in headers for name in FORWARDED):
        return False
    try:
        return ipaddress.ip_address((scope.get("client") or ("",))[0]).is_loopback
    except ValueError:
        return False  # a Unix socket: a proxy has one too


class RateLimiter:
    """So many requests a second for each caller, on the average; twice as many at once.

    They are counted in this process: with several servers each counts its own.
    """

    def __init__(self, rate: float, *, now: Callable[[], float] = time.monotonic) -> None:
        """Take a rate; zero is for no limit."""
        self._rate = rate
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, rate: float | None = None) -> None:
        """Count a request, or raise a 429 that says when to come again.

        A caller's own `rate` takes the place of the usual one.
        """
        rate = self._rate if rate is None else rate
        if not rate:
            return
        now = self._now()
        most = max(2 * rate, 1.0)
        left, at = self._left.pop(caller, (most, now))
        left = min(most, left + (now - at) * rate)
        allowed = left >= 1
        self._left[caller] = (left - allowed, now)
        if len(self._left) > CALLERS:
            self._left.popitem(last=False)
        if not allowed:
            detail = f"more than {rate:g} requests a second; slow down"
            raise HttpProblem(429, detail, headers={"Retry-After": str(ceil((1 - left) / rate))})


class WrongTokenThrottle:
    """Slows addresses that keep presenting wrong tokens.

    A right token is never counted here: many callers may share an address, and one of them must not
    lock the others out. There is nothing to guess in 256 random bits; this saves the server's time.
    """

    def __init__(
        self, rate: float = WRONG_TOKENS_RATE, *, seconds: float = WRONG_TOKEN_SECONDS
    ) -> None:
        self._rates = RateLimiter(rate)
        self._seconds = seconds
        self._waiting = 0

    async def count(self, scope: Scope) -> None:
        """Count a wrong token; beyond a few a second the answer comes late, and is a 429."""
        try:
            self._rates.take(network(scope))
        except HttpProblem as problem:
            if self._waiting < WRONG_TOKENS_WAITING:
                self._waiting += 1
                try:
                    await asyncio.sleep(self._seconds)
                finally:
                    self._waiting -= 1
            detail = "too many wrong tokens came from this address; slow down"
            raise HttpProblem(429, detail, headers=problem.headers) from None


def network(scope: Scope) -> str:
    """Name where a caller is: an address, or the network of one that has as many as it likes."""
    host = str((scope.get("client") or ("",))[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


class AccessMiddleware:
    """Lets a request in, in its caller's name, or answers with a problem."""

    def __init__(self, api: FastAPI, *, access: str, hosts: Sequence[str]) -> None:
        self._api = api
        self._access = access
        self._hosts = frozenset(host.lower() for host in hosts)
        self._rates = RateLimiter(api.state.engine.settings.api_rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; anything else (a lifespan) is passed on."""
        if scope["type"] != "http":
            await self._api(scope, receive, send)
            return
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                passed = time.perf_counter() - began
                self._api.state.metrics.count(scope["method"], route, message["status"], passed)
                message["headers"] = [*message.get("headers", ()), NO_SNIFFING]
            await send(message)

        try:
            await self._admit(scope)
        except (HttpProblem, MilepostError) as error:
            answer = _sent_to_login(scope, error) or problem_response(problem_of(error))
            await answer(scope, receive, counted)
        else:
            await self._serve(scope, receive, counted)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        principal = scope.get("milepost.principal")
        if principal is None:
            await self._api(scope, receive, send)
            return
        trace = read_traceparent(Headers(scope=scope).get("traceparent"))
        with acting(principal.actor, tenant=principal.tenant or "", trace=trace):
            await self._api(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not known_host(headers.get("host", ""), self._hosts):
            detail = "this server does not answer to that Host; name it in MILEPOST_HOSTS"
            raise HttpProblem(421, detail)
        if scope["method"] not in SAFE and _is_cross_site(headers, self._hosts):
            raise HttpProblem(
                403,
                "a page of another site sent this; name its host in MILEPOST_HOSTS if it is yours",
            )
        path = _below_root(scope)
        # A remote that knows a callback's address may use it; any other gets no more than a 404.
        if path in OPEN or path.startswith(STATIC) or CALLBACK.fullmatch(path):
            return
        session = None
        if not path.startswith(PROGRAMS):
            session = await session_of(self._api.state.keys, scope)
        scope["milepost.session"] = session
        client = self._api.state.engine.client
        again = partial(authenticate, client, scope, self._access, session)
        try:
            principal = await again()
        except HttpProblem:
            if "authorization" in headers:
                await self._api.state.throttle.count(scope)
            raise
        self._rates.take(principal.id, principal.bounds.rate)
        scope["milepost.principal"] = principal
        scope["milepost.authenticate"] = again  # a long answer asks once in a while


def _below_root(scope: Scope) -> str:
    """Return the path as routes match it: what is open here must be what answers there."""
    return matched_path(scope).removeprefix(scope.get("root_path", "").rstrip("/"))


def _sent_to_login(scope: Scope, error: Exception) -> Response | None:
    """Send a person who must log in to the page for it; a program gets a problem.

    A browser that comes by a link from another site leaves the session's cookie out. It is sent to
    the same page once more, from here, and then brings it.
    """
    headers = Headers(scope=scope)
    path = _below_root(scope)
    if not (
        isinstance(error, HttpProblem)
        and error.status_code == HTTPStatus.UNAUTHORIZED
        and scope["method"] == "GET"
        and "authorization" not in headers
        and "text/html" in headers.get("accept", "")
        and not path.startswith(PROGRAMS)
    ):
        return None
    if headers.get("sec-fetch-site") == "cross-site":
        refresh = f'<meta http-equiv="refresh" content="0;url={escape(own_address(scope))}">'
        page = f"<!doctype html><title>Milepost</title>{refresh}"
        return HTMLResponse(page, headers=BOUNCE)
    return RedirectResponse(login_address(scope), 303, {"Cache-Control": "no-store"})


def _is_cross_site(headers: Headers, hosts: frozenset[str]) -> bool:
    """Tell whether a browser says that another site's page makes this request.

    A browser sends a form's POST, with the rights of this machine's user, for any page. Clients
    that are no browsers send neither header. The scheme is not compared: a proxy may speak TLS.
    """
    if headers.get("sec-fetch-site", "").lower() == "cross-site":
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    place = origin.lower().partition("://")[2]
    return place != headers.get("host", "").lower() and _name(place) not in hosts


def known_host(host: str, allowed: frozenset[str]) -> bool:
    """Tell whether a Host header cannot be a stranger's name for this machine (DNS rebinding).

    An address is no name, and a name without a dot is nobody's on the internet.
    """
    name = _name(host)
    if "*" in allowed or name in allowed or name.endswith(".localhost"):
        return True
    if "." not in name and ":" not in name:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """Return a host without its port and brackets."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0] if name.count(":") == 1 else name
