"""Sessions of people: a signed cookie that names a token, or a person whom a provider vouches for.

Nothing of a session is stored: the cookie says whose it is and until when, under a signature. A
token is looked up again for every request, so that revoking it ends its sessions at once. Cookies
open pages, never the API under /v1: a program sends its token.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.datastructures import Headers
from starlette.types import Scope

from milepost.client import Client
from milepost.errors import AccessRefused, MilepostError
from milepost.store import dashboard
from milepost.telemetry import Log
from milepost.web.paths import encoded_path

COOKIE = "milepost_session"
SESSION_SECONDS = 12 * 3600
SALT_BYTES = 12
LONGEST = 4_000
"""Browsers keep no longer cookie."""

log = Log("milepost.web")


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whose session it is: a token's, or a person's with the rights that were granted."""

    until: int
    token_id: str | None = None
    person: str | None = None
    scopes: tuple[str, ...] = ()
    tenant: str | None = None
    queues: tuple[str, ...] | None = None


class Signer:
    """Signs sessions and forms with the server's key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, purpose: str, content: bytes) -> str:
        """Return content with its signature, as text."""
        packed = base64.urlsafe_b64encode(content).rstrip(b"=")
        mark = hmac.new(self._key, purpose.encode() + b"\0" + packed, hashlib.sha256)
        return f"{packed.decode()}.{mark.hexdigest()}"

    def read(self, purpose: str, signed: str) -> bytes | None:
        """Return what was signed for this purpose; None for anything else."""
        packed, _, mark = signed[:LONGEST].partition(".")
        expected = hmac.new(self._key, f"{purpose}\0{packed}".encode(), hashlib.sha256)
        if not hmac.compare_digest(expected.hexdigest().encode(), mark.encode()):
            return None
        try:
            return base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4))
        except (ValueError, binascii.Error):
            return None

    def session_cookie(self, session: Session) -> str:
        """Write a session."""
        return self.sign("session", msgspec.json.encode(session))

    def session(self, cookie: str) -> Session | None:
        """Read a session that has not ended."""
        content = self.read("session", cookie)
        if content is None:
            return None
        try:
            session = msgspec.json.decode(content, type=Session)
        except msgspec.MsgspecError:
            return None
        return session if session.until > time.time() else None

    def form_token(self, session_id: str) -> str:
        """Make the token that a form must carry; another one for every page.

        Pages are compressed: a token that never changed could be guessed by their sizes.
        """
        return self.sign(f"form {session_id}", secrets.token_bytes(SALT_BYTES))

    def is_form_token(self, session_id: str, token: str) -> bool:
        """Tell whether a form was made for this session."""
        return self.read(f"form {session_id}", token) is not None


class Keys:
    """The server's key: MILEPOST_SECRET_KEY, else one that the store keeps for all its servers.

    A server whose role may not read that one has a key of its own: its sessions end with it.
    """

    def __init__(self, client: Client, configured: str) -> None:
        self._client = client
        self._configured = configured
        self._signer: Signer | None = None

    async def signer(self) -> Signer:
        """Return the signer; the first time it may have to make the key."""
        if self._signer is None:
            key = self._configured.encode() or await self._stored()
            self._signer = Signer(hashlib.sha256(key).digest())
        return self._signer

    async def _stored(self) -> bytes:
        fresh = secrets.token_bytes(32)
        try:
            return await self._client.run_async(dashboard.server_key, fresh)
        except AccessRefused:
            log.warning(
                "sessions end with this server: its role may not read the store's key; "
                "set MILEPOST_SECRET_KEY, the same for every server"
            )
            return fresh


def cookie_of(scope: Scope) -> str | None:
    """Return the session's cookie, if the request has one."""
    for part in Headers(scope=scope).get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return None


def set_cookie(value: str, scope: Scope, *, seconds: int = SESSION_SECONDS) -> str:
    """Write the header that keeps a session in the browser; zero seconds end it.

    Behind a proxy that speaks TLS the browser's Origin tells so; the scheme here does not.
    """
    origin = Headers(scope=scope).get("origin", "")
    is_secure = scope.get("scheme") == "https" or origin.startswith("https://")
    path = scope.get("root_path", "").rstrip("/") + "/"
    words = [f"{COOKIE}={value}", f"Path={path}", f"Max-Age={seconds}", "HttpOnly"]
    return "; ".join([*words, "SameSite=Strict", *(["Secure"] if is_secure else [])])


def new_session(**fields: Any) -> Session:
    """Begin a session."""
    return Session(until=int(time.time()) + SESSION_SECONDS, **fields)


def login_address(scope: Scope) -> str:
    """Tell where a person without a session is sent, and comes back from."""
    root = scope.get("root_path", "").rstrip("/")
    return f"{root}/login?next={quote(_asked(scope), safe='')}"


def own_address(scope: Scope) -> str:
    """Write the address that was asked for, of this site alone: //evil.example is another's."""
    return f"{scope.get('root_path', '').rstrip('/')}{_asked(scope)}"


def _asked(scope: Scope) -> str:
    """Write the address that was asked for, below where the pages are mounted."""
    root = scope.get("root_path", "").rstrip("/")
    path = scope["path"].removeprefix(root)
    written = encoded_path(scope).removeprefix(quote(root)) if inside(path) == path else "/"
    query = scope.get("query_string", b"").decode("latin-1")
    return written + (f"?{query}" if query else "")


def inside(address: str) -> str:
    """Return a path below our own, or the first page: a form must not lead to another site."""
    safe = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if safe and "\\" not in address and address.isprintable() else "/"


async def session_of(keys: Keys, scope: Scope) -> Session | None:
    """Return the session of a request, if it has a valid one."""
    cookie = cookie_of(scope)
    if cookie is None:
        return None
    try:
        return (await keys.signer()).session(cookie)
    except MilepostError:
        return None
