"""The door: hosts, callers and rates are checked before anything of a request is read."""

import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from milepost.client import acting
from milepost.errors import MilepostError
from milepost.relay.message import traced
from milepost.web.auth import Who, authenticate
from milepost.web.engine import Engine
from milepost.web.limits import Rates, Strangers
from milepost.web.metrics import Traffic
from milepost.web.problems import Problem, from_engine, problem_response

OPEN = frozenset({"/livez", "/readyz"})
"""What a load balancer asks, without a token; it says nothing of what is stored."""

CALLBACK = re.compile(r"/v1/requests/[^/]+/callback/[^/]+")
"""Where a remote calls back: the address holds a secret of its own, made for one job."""


NO_GUESSING = (b"x-content-type-options", b"nosniff")
"""What is no page is not shown as one, whatever somebody's result looks like."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""What changes nothing, and so may come from a link on anybody's page."""


class Door:
    """Lets a request in, in its caller's name, or answers with a problem."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        engine: Engine,
        access: str,
        hosts: Sequence[str],
        rates: Rates,
        strangers: Strangers,
        traffic: Traffic,
    ) -> None:
        self._app = app
        self._engine = engine
        self._access = access
        self._hosts = frozenset(host.lower() for host in hosts)
        self._rates = rates
        self._strangers = strangers
        self._traffic = traffic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; what is no request (a lifespan) is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "none")
                passed = perf_counter() - began
                self._traffic.count(scope["method"], route, message["status"], passed)
                message["headers"] = [*message.get("headers", ()), NO_GUESSING]
            await send(message)

        try:
            await self._admit(scope)
        except Problem as problem:
            await problem_response(problem)(scope, receive, counted)
        except MilepostError as error:
            await problem_response(from_engine(error))(scope, receive, counted)
        else:
            await self._serve(scope, receive, counted)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        who = scope.get("milepost.who")
        if who is None:
            await self._app(scope, receive, send)
            return
        trace = traced(Headers(scope=scope).get("traceparent"))
        with acting(who.actor, tenant=who.tenant or "", trace=trace):
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if not known_host(headers.get("host", ""), self._hosts):
            raise Problem(
                421,
                "this server does not answer to that Host; name it in MILEPOST_HOSTS",
            )
        if scope["method"] not in SAFE and _foreign(headers, self._hosts):
            raise Problem(
                403,
                "a page of another site sent this; name its host in MILEPOST_HOSTS if it is yours",
            )
        if _path(scope) in OPEN:
            return
        if CALLBACK.fullmatch(_path(scope)):
            # Whoever was told this address may use it, and nobody is told more than 404 by it.
            return
        again = partial(authenticate, self._engine.client, scope, self._access)
        who = await self._known(again, scope)
        scope["milepost.again"] = again  # what lasts long asks once in a while
        self._rates.take(who.token_id or who.actor, who.bounds.rate)
        scope["milepost.who"] = who

    async def _known(self, again: Callable[[], Awaitable[Who]], scope: Scope) -> Who:
        try:
            return await again()
        except Problem:
            if "authorization" in Headers(scope=scope):
                await self._strangers.refused(scope)
            raise


def _path(scope: Scope) -> str:
    """Return the path below where the API is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))


def _foreign(headers: Headers, hosts: frozenset[str]) -> bool:
    """Tell whether a browser says that another site's page makes this request.

    A browser sends a form's POST, and what this machine's user may do, for any page. What is no
    browser sends neither header. The scheme is not compared: a proxy may speak TLS.
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
