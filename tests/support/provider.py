"""A small OpenID provider on this machine: it logs in whom a test says, and lies when told to."""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode

from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

CLIENT, SECRET = "milepost", "s3cret of the client"


class Provider:
    """What the provider knows, whom it logs in, and how it lies."""

    def __init__(self) -> None:
        self.address = ""
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
        self.person: dict[str, Any] = {"sub": "4711", "email": "ana@example.org", "groups": ["ops"]}
        self.userinfo: dict[str, Any] | None = None
        self.claims: dict[str, Any] = {}
        """Claims that take the place of true ones; None leaves one out."""
        self.signs_with: Any = None
        self.algorithm = "RS256"
        self.described: dict[str, Any] = {}
        self.asked: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def app(self) -> Starlette:
        """Its routes."""
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self.discovery),
                Route("/authorize", self.authorize),
                Route("/token", self.token, methods=["POST"]),
                Route("/keys", self.keys),
                Route("/userinfo", self.about),
            ]
        )

    async def discovery(self, _request: Request) -> Response:
        """Describe itself."""
        self.asked.append("discovery")
        here = self.address
        told = {
            "issuer": here,
            "authorization_endpoint": f"{here}/authorize",
            "token_endpoint": f"{here}/token",
            "jwks_uri": f"{here}/keys",
            "response_types_supported": ["code"],
            **({"userinfo_endpoint": f"{here}/userinfo"} if self.userinfo is not None else {}),
        }
        return JSONResponse({**told, **self.described})

    async def authorize(self, request: Request) -> Response:
        """Log in without asking anything, and send the browser back with a code."""
        asked = dict(request.query_params)
        assert asked["client_id"] == CLIENT
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        back = urlencode({"code": code, "state": asked["state"]})
        return RedirectResponse(f"{asked['redirect_uri']}?{back}", 302)

    async def token(self, request: Request) -> Response:
        """Change a code, once, for an ID token."""
        self.asked.append("token")
        form = dict(parse_qsl((await request.body()).decode()))
        login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        asked = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = _packed(digest)
        if (
            asked is None
            or request.headers.get("authorization") != f"Basic {login}"
            or challenge != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
        ):
            return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse(
            {"token_type": "Bearer", "access_token": "at-1", "id_token": self.id_token(asked)}
        )

    def id_token(self, asked: dict[str, str]) -> str:
        """Write the ID token of a login."""
        now = int(time.time())
        claims = {
            "iss": self.address,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **self.person,
            **self.claims,
        }
        told = {name: value for name, value in claims.items() if value is not None}
        if self.algorithm != "RS256":
            return self._forged(told)
        key = self.signs_with or self.key
        return jwt.encode({"alg": "RS256", "kid": key.kid}, told, key)

    def _forged(self, told: dict[str, Any]) -> str:
        """Sign with what everybody knows, the provider's public key, or not at all."""
        parts = ({"alg": self.algorithm, "kid": self.key.kid}, told)
        text = ".".join(_packed(json.dumps(part).encode()) for part in parts)
        shared = self.key.as_pem(private=False)
        mark = hmac.digest(shared, text.encode(), "sha256") if self.algorithm == "HS256" else b""
        return f"{text}.{_packed(mark)}"

    async def keys(self, _request: Request) -> Response:
        """Publish its key."""
        self.asked.append("keys")
        return JSONResponse({"keys": [self.key.as_dict(private=False)]})

    async def about(self, request: Request) -> Response:
        """Say more of a person to whoever has the access token."""
        assert request.headers["authorization"] == "Bearer at-1"
        return JSONResponse(self.userinfo)


def _packed(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@contextmanager
def provided() -> Iterator[Provider]:
    """Run a provider in a thread."""
    from milepost.web.serve import link, listen, server

    provider = Provider()
    serving = server(provider.app(), connections=100)
    bound = listen("127.0.0.1", 0)
    provider.address = link(bound)
    thread = threading.Thread(target=lambda: asyncio.run(serving.serve([bound])))
    thread.start()
    try:
        yield provider
    finally:
        serving.should_exit = True
        thread.join(timeout=30)
