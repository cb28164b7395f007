"""Who calls, and what they may do and see.

A token opens what its scopes say, in the tenant and the queues that it is bound to. Under `milepost
dev` callers on this machine need none as long as there never was one; the first token ends that.
"""

import ipaddress
from collections.abc import MutableMapping
from typing import Any, cast

import msgspec
from fastapi import Depends, Request
from fastapi.params import Depends as Dependency
from starlette.datastructures import Headers

from milepost.client import Client
from milepost.errors import NotFound
from milepost.records import Job, Run
from milepost.request import batch as request_batch
from milepost.request import kind as request_kind
from milepost.store import outbox, tokens
from milepost.web.problems import Problem

ACCESS = ("tokens", "open", "local")
"""Who is let in without a token: nobody, everybody (whoever mounts the API guards it), or callers
on this machine while there never was a token, which is for `milepost dev` alone."""

FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
REQUESTS = frozenset({request_kind.KIND, request_batch.KIND})
"""What sends HTTP requests: a job, and a run of many."""

CHALLENGE = {"WWW-Authenticate": 'Bearer realm="milepost"'}


class Who(msgspec.Struct, frozen=True):
    """The caller: a token's name, scopes and bounds, or somebody on this machine."""

    actor: str
    scopes: frozenset[str]
    token_id: str | None = None
    tenant: str | None = None
    queues: tuple[str, ...] | None = None
    bounds: tokens.Bounds = tokens.Bounds()

    @property
    def bound(self) -> bool:
        """Whether there is anything in the store that the caller must not see."""
        return self.tenant is not None or self.queues is not None

    def may(self, scope: str) -> bool:
        """Tell whether the caller has a scope; admin has each."""
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, record: Job | Run) -> bool:
        """Tell whether a job or run is within the caller's bounds."""
        if self.tenant is not None and record.tenant != self.tenant:
            return False
        return self.queues is None or record.queue in self.queues

    def check_queue(self, queue: str) -> None:
        """Refuse a queue that the token is not bound to."""
        if self.queues is not None and queue not in self.queues:
            raise Problem(403, f"this token is not for queue {queue!r}; it is bound to its own")

    def check_new(self, kind: str, *, queue: str | None = None, priority: int = 0) -> None:
        """Refuse a job or a run that the token may not create."""
        if queue is not None:
            self.check_queue(queue)
        bounds = self.bounds
        if kind in REQUESTS and not bounds.requests:
            raise Problem(403, "this token sends no HTTP requests; see tokens create --requests")
        if kind not in REQUESTS and bounds.kinds is not None and kind not in bounds.kinds:
            raise Problem(403, f"this token is not for {kind!r}; it is for {_told(bounds.kinds)}")
        if bounds.max_priority is not None and priority > bounds.max_priority:
            most = bounds.max_priority
            raise Problem(403, f"this token's jobs have priority {most} at most, not {priority}")

    def check_free(self, what: str) -> None:
        """Refuse what belongs to the whole installation to a token that is bound to a part."""
        if self.bound:
            raise Problem(403, f"{what} is for tokens that are bound to no tenant and no queue")

    @property
    def filters(self) -> dict[str, Any]:
        """What listings are narrowed by."""
        queues = None if self.queues is None else msgspec.json.encode(self.queues).decode()
        return {"tenant": self.tenant, "queues": queues}


async def check_channel(client: Client, who: Who, channel: str | None) -> None:
    """Refuse another tenant's channel, and the installation's own, to a token of a tenant."""
    if channel is None or who.tenant is None:
        return
    owner = await client.run_async(outbox.tenant, channel)
    if owner not in (None, outbox.EVERYONE, who.tenant):
        raise Problem(403, f"channel {channel!r} is not of this token's tenant")


def _told(kinds: tuple[str, ...]) -> str:
    return ", ".join(kinds) or "no kind at all"


def seen(who: Who, record: Any, *, what: str) -> None:
    """Say that a foreign id is not there: whether it exists is none of the caller's business."""
    if not who.sees(record):
        raise NotFound(f"there is no {what} {record.id}")


EVERYTHING = frozenset({"admin"})


async def authenticate(client: Client, scope: MutableMapping[str, Any], access: str) -> Who:
    """Tell who calls, or raise a 401."""
    headers = Headers(scope=scope)
    given = headers.get("authorization")
    if given is not None and access != "open":
        return await _by_token(client, given)
    if access == "open":
        return Who("api", EVERYTHING)
    if access == "local" and is_local(scope, headers):
        ever, _ = await client.run_async(tokens.door)
        if not ever:
            return Who("local", EVERYTHING)
    raise Problem(401, "send a token: Authorization: Bearer mp_…", headers=CHALLENGE)


async def _by_token(client: Client, given: str) -> Who:
    kind, _, presented = given.partition(" ")
    token = None
    if kind.lower() == "bearer" and presented.isascii():
        token = await client.run_async(tokens.find, presented.strip())
    if token is None:
        raise Problem(
            401, "this token opens nothing: it is wrong, expired or revoked", headers=CHALLENGE
        )
    scopes = frozenset(token.scopes)
    return Who(token.name, scopes, token.id, token.tenant, token.queues, token.bounds)


def is_local(scope: MutableMapping[str, Any], headers: Headers) -> bool:
    """Tell whether the caller is on this machine; one that a proxy speaks for is not."""
    if any(name in headers for name in FORWARDED):
        return False
    try:
        return ipaddress.ip_address((scope.get("client") or ("",))[0]).is_loopback
    except ValueError:
        return False  # a Unix socket: a proxy has one too


def who_calls(request: Request) -> Who:
    """Return the caller, authenticated before anything of the request was read."""
    return cast("Who", request.scope["milepost.who"])


def require(scope: str) -> Dependency:
    """Let a caller with this scope in, and hand the caller over."""

    async def allowed(request: Request) -> Who:
        who = who_calls(request)
        if not who.may(scope):
            raise Problem(403, f"this needs a token with the scope {scope!r}")
        return who

    vars(allowed)["scope"] = scope  # the matrix of routes reads it
    return cast("Dependency", Depends(allowed))
