"""Operations on tokens of the API. A secret is never stored, only its hash."""

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from milepost.codec import check_text
from milepost.errors import Invalid, NotFound
from milepost.outcome import micros
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant

SCOPES = ("submit", "read", "operate", "admin")
"""The rights that a token may have; `admin` may do everything."""

ENGINE_ACTORS = frozenset(
    (
        *("api", "callback", "cli", "client", "engine", "inbound", "local", "maintenance"),
        *("milepost", "planner", "relay", "retention", "schedule", "scheduler", "server"),
        *("supervisor", "system", "worker"),
    )
)
"""Names of the engine's own parts in the journal; alone, or before a name of their own."""
_WORKER = re.compile(r".+-[0-9]+-[0-9a-f]{8}")

PREFIX = "mp"
SECRET_BYTES = 32


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that a token may create, and how often it may call; None for no bound of its own."""

    max_priority: int | None = None
    kinds: tuple[str, ...] | None = None
    requests: bool = True
    rate: float | None = None


class Token(msgspec.Struct, frozen=True):
    """A token as it stands, without its secret."""

    id: str
    name: str
    scopes: tuple[str, ...]
    tenant: str | None
    queues: tuple[str, ...] | None
    bounds: Bounds
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    expired: bool

    @property
    def state(self) -> str:
        """Whether it opens anything: `active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expired else "active"


def new_secret() -> tuple[str, str, bytes]:
    """Make a token: its id, the secret that is shown once, and the hash that is stored."""
    token_id = secrets.token_hex(6)
    secret = secrets.token_urlsafe(SECRET_BYTES)
    return token_id, f"{PREFIX}_{token_id}_{secret}", _hash(secret)


def _hash(secret: str) -> bytes:
    # 256 random bits need no slow hash: nobody can try them all.
    return hashlib.sha256(secret.encode()).digest()


def check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Return scopes in their order, each once, or say which there are."""
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown or not scopes:
        raise Invalid(f"{', '.join(unknown) or 'no scope'}: scopes are {', '.join(SCOPES)}")
    return tuple(scope for scope in SCOPES if scope in scopes)


def check_actor(name: str) -> str:
    """Refuse a name that the journal would take for the engine's own."""
    plain = name.strip().lower()
    first = re.split(r"[\s:/@]", plain, maxsplit=1)[0]
    if first in ENGINE_ACTORS or _WORKER.fullmatch(plain):
        raise Invalid(
            f"name={name!r}: the journal names the engine's own parts so; choose a name that says "
            "whose token it is"
        )
    return check_text(name.strip(), what="name")


def create(
    token_id: str,
    *,
    name: str,
    hashed: bytes,
    scopes: Sequence[str],
    tenant: str | None = None,
    queues: Sequence[str] | None = None,
    bounds: Bounds = Bounds(),  # noqa: B008 - it never changes
    expires_in: float | None = None,
) -> Steps[None]:
    """Enter a token; its name must not be another live one's: it is the journal's actor."""
    check_actor(name)
    rows = yield Call(
        "token_create",
        {
            "id": token_id,
            "name": name,
            "hash": hashed,
            "scopes": " ".join(check_scopes(scopes)),
            "tenant": tenant,
            "queues": _listed(queues),
            **msgspec.structs.asdict(bounds),
            "kinds": _listed(bounds.kinds),
            "expires_us": None if expires_in is None else micros(expires_in),
        },
    )
    if not rows:
        raise Invalid(f"a token is called {name!r} already; revoke it first, or choose a name")


def _listed(names: Sequence[str] | None) -> str | None:
    return None if names is None else msgspec.json.encode(sorted(names)).decode()


def _names(listed: str | None) -> tuple[str, ...] | None:
    return None if listed is None else tuple(msgspec.json.decode(listed))


def find(presented: str) -> Steps[Token | None]:
    """Return the live token that was presented; None for anything else, without saying why."""
    prefix, _, rest = presented.partition("_")
    token_id, _, secret = rest.partition("_")
    if prefix != PREFIX or not token_id.isascii() or not token_id.isalnum():
        return None
    rows = yield Call("token_get", {"id": token_id})
    stored = rows[0][2] if rows else b"\0" * hashlib.sha256().digest_size
    # Compared even where there is none: how long it takes says nothing.
    same = hmac.compare_digest(_hash(secret), bytes(stored))
    token = _token(rows[0]) if rows and same else None
    return token if token is not None and token.state == "active" else None


def live(token_id: str) -> Steps[Token | None]:
    """Return a token by its id, unless it was revoked or has expired."""
    rows = yield Call("token_get", {"id": token_id})
    token = _token(rows[0]) if rows else None
    return token if token is not None and token.state == "active" else None


def presence() -> Steps[tuple[bool, bool]]:
    """Tell whether there ever was a token, and whether there is a live one."""
    [(ever, live)] = yield Call("token_any")
    return bool(ever), bool(live)


def listing() -> Steps[list[Token]]:
    """Read every token, oldest first."""
    rows = yield Call("token_list")
    return [_token(row) for row in rows]


def revoke(word: str) -> Steps[str]:
    """Revoke the live token of that id or name at once, or raise `NotFound`."""
    rows = yield Call("token_revoke", {"word": word})
    if not rows:
        raise NotFound(f"there is no live token {word!r}; see `milepost tokens ls`")
    return str(rows[0][0])


def _token(row: Sequence[Any]) -> Token:
    token_id, name, _, scopes, tenant, queues, *bounds, created, expires, revoked, expired = row
    priority, kinds, requests, rate = bounds
    return Token(
        id=token_id,
        name=name,
        scopes=tuple(scopes.split()),
        tenant=tenant,
        queues=_names(queues),
        bounds=Bounds(
            max_priority=priority, kinds=_names(kinds), requests=bool(requests), rate=rate
        ),
        created_at=instant(created),
        expires_at=None if expires is None else instant(expires),
        revoked_at=None if revoked is None else instant(revoked),
        expired=bool(expired),
    )
