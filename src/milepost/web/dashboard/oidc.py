"""Logging in with an OpenID provider: a code and PKCE; groups of the provider give scopes.

A login is a cookie of ten minutes, signed: the state, the nonce and the verifier of its code. What
comes back is believed after its signature, issuer, audience, nonce and times have been checked.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
from fastapi import APIRouter, Request
from starlette.datastructures import URL
from starlette.responses import RedirectResponse, Response

from milepost.config import Settings
from milepost.errors import Invalid
from milepost.store.tokens import check_actor, check_scopes
from milepost.telemetry import Log
from milepost.web.dashboard.login import begin, login_page
from milepost.web.dashboard.page import PageRoute
from milepost.web.problems import HttpProblem
from milepost.web.session import inside

router = APIRouter(route_class=PageRoute, include_in_schema=False)
log = Log("milepost.web")
COOKIE = "milepost_login"
LOGIN_SECONDS = 600
FRESH_SECONDS = 3_600
"""For so long the provider's description and keys are not asked for again."""
REFRESH_SECONDS = 60
"""How soon keys are asked for again for a token that none of them has signed."""
LEEWAY_SECONDS = 60
TIMEOUT_SECONDS = 10.0
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]
"""Signatures by a key that only the provider has; never one by a secret that is shared, or none."""
NEEDED = "logging in with a provider needs an extra: pip install 'milepost[oidc]'"


class Login(msgspec.Struct, frozen=True):
    """A login that is under way in one browser."""

    state: str
    nonce: str
    verifier: str
    wanted: str
    redirect: str
    until: int


class Described(msgspec.Struct, frozen=True):
    """What a provider says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


def groups_of(text: str) -> dict[str, tuple[str, ...]]:
    """Read `ops=operate read;dev=read`: scopes by groups."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        group, equals, scopes = part.rpartition("=")
        if not equals or not group.strip():
            raise Invalid(f"oidc_groups: {part!r} is not GROUP=SCOPE SCOPE, as in ops=operate read")
        found[group.strip()] = check_scopes(scopes.replace(",", " ").split())
    return found


def provider_of(settings: Settings) -> "Provider | None":
    """Return the provider that settings name, or say what is missing; None if they name none."""
    if not settings.oidc_issuer:
        return None
    try:
        import authlib  # noqa: F401, PLC0415
        import httpx2  # noqa: F401, PLC0415
    except ImportError as error:
        raise Invalid(NEEDED) from error
    place = urlsplit(settings.oidc_issuer)
    is_here = place.hostname in ("127.0.0.1", "::1", "localhost")
    if place.scheme != "https" and not (place.scheme == "http" and is_here):
        raise Invalid(f"oidc_issuer={settings.oidc_issuer!r} must be an https:// address")
    if not settings.oidc_client_id:
        raise Invalid("oidc_issuer is set, but not oidc_client_id: the provider knows us by it")
    groups = groups_of(settings.oidc_groups)
    if not groups:
        raise Invalid("oidc_issuer is set, but not oidc_groups: nobody could log in")
    return Provider(settings, groups)


class Provider:
    """An OpenID provider: where it sends people back from, and who they are."""

    def __init__(self, settings: Settings, groups: Mapping[str, tuple[str, ...]]) -> None:
        self._settings = settings
        self._groups = groups
        self._known: Described | None = None
        self._keys: Any = None
        self._until = self._keys_at = 0.0
        self._asking = asyncio.Lock()

    @property
    def name(self) -> str:
        """What the button of the login page calls it."""
        return urlsplit(self._settings.oidc_issuer).hostname or self._settings.oidc_issuer

    async def address(self, login: Login) -> str:
        """Tell where a browser is sent for a login."""
        from authlib.oauth2.rfc7636 import create_s256_code_challenge  # noqa: PLC0415

        known = await self._described()
        asked = {
            "response_type": "code",
            "client_id": self._settings.oidc_client_id,
            "redirect_uri": login.redirect,
            "scope": self._settings.oidc_scope,
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": create_s256_code_challenge(login.verifier),
            "code_challenge_method": "S256",
        }
        joint = "&" if "?" in known.authorization_endpoint else "?"
        return f"{known.authorization_endpoint}{joint}{urlencode(asked)}"

    async def person(self, login: Login, code: str) -> tuple[str, tuple[str, ...]]:
        """Tell who came back with a code, and the scopes of that person's groups."""
        answer = await self._exchanged(login, code)
        claims = await self._claims(str(answer.get("id_token", "")), login, answer)
        name = next(
            (str(claims[key]) for key in ("email", "preferred_username", "sub") if claims.get(key)),
            "",
        )
        if claims.get("email_verified") is False and claims.get("email") == name:
            name = str(claims.get("preferred_username") or claims["sub"])
        groups = await self._groups_of(claims, answer)
        allowed = {scope for group in groups for scope in self._groups.get(group, ())}
        if not allowed:
            detail = f"{name}: none of your groups at {self.name} opens anything here"
            raise HttpProblem(403, detail, name="no-group")
        return check_actor(name), check_scopes(sorted(allowed))

    async def _groups_of(self, claims: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        claim = self._settings.oidc_claim
        known = await self._described()
        if claim not in claims and known.userinfo_endpoint and answer.get("access_token"):
            bearer = {"Authorization": f"Bearer {answer['access_token']}"}
            told = await self._asked("GET", known.userinfo_endpoint, headers=bearer)
            claims = told if told.get("sub") == claims["sub"] else {}
        found = claims.get(claim, [])
        return found.split() if isinstance(found, str) else [str(group) for group in found or ()]

    async def _exchanged(self, login: Login, code: str) -> Mapping[str, Any]:
        known, settings = await self._described(), self._settings
        data = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": login.redirect,
            "code_verifier": login.verifier,
        }
        secret, more = settings.oidc_client_secret, {}
        if secret and "client_secret_basic" in known.token_endpoint_auth_methods_supported:
            more["auth"] = (settings.oidc_client_id, secret)
        else:
            data |= {"client_id": settings.oidc_client_id}
            data |= {"client_secret": secret} if secret else {}
        return await self._asked("POST", known.token_endpoint, data=data, **more)

    async def _claims(
        self, token: str, login: Login, answer: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Check an ID token, and give what it claims."""
        from authlib.oidc.core import CodeIDToken  # noqa: PLC0415
        from joserfc.errors import JoseError  # noqa: PLC0415

        client_id = self._settings.oidc_client_id
        try:
            decoded = await self._decoded(token)
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                {
                    "iss": {"essential": True, "value": self._settings.oidc_issuer},
                    "aud": {"essential": True, "value": client_id},
                },
                {
                    "nonce": login.nonce,
                    "client_id": client_id,
                    "access_token": answer.get("access_token"),
                },
            )
            claims.validate(leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError) as error:
            log.warning("an ID token was refused", issuer=self.name, error=str(error))
            raise HttpProblem(403, f"what {self.name} says of you cannot be verified") from error
        return claims  # type: ignore[no-any-return]

    async def _decoded(self, token: str) -> Any:
        """Verify a signature; keys are asked for once more if none of them has made it."""
        from joserfc import jwt  # noqa: PLC0415
        from joserfc.errors import JoseError  # noqa: PLC0415

        try:
            return jwt.decode(token, await self._keyset(), algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            if time.monotonic() - self._keys_at < REFRESH_SECONDS:
                raise
            self._keys = None
            return jwt.decode(token, await self._keyset(), algorithms=ALGORITHMS)

    async def _keyset(self) -> Any:
        from joserfc.jwk import KeySet  # noqa: PLC0415

        known = await self._described()
        async with self._asking:
            if self._keys is None or time.monotonic() - self._keys_at > FRESH_SECONDS:
                published: Any = await self._asked("GET", known.jwks_uri)
                self._keys = KeySet.import_key_set(published)
                self._keys_at = time.monotonic()
            return self._keys

    async def _described(self) -> Described:
        async with self._asking:
            if self._known is None or time.monotonic() > self._until:
                issuer = self._settings.oidc_issuer
                path = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
                try:
                    known = msgspec.convert(await self._asked("GET", path), Described)
                except msgspec.ValidationError as error:
                    raise self._away(str(error)) from error
                if known.issuer != issuer:
                    raise self._away(f"it calls itself {known.issuer!r}, not {issuer!r}")
                self._known, self._until = known, time.monotonic() + FRESH_SECONDS
            return self._known

    async def _asked(self, method: str, address: str, **more: Any) -> Mapping[str, Any]:
        """Ask the provider something; its answer is a JSON object."""
        import httpx2  # noqa: PLC0415

        try:
            async with httpx2.AsyncClient(timeout=TIMEOUT_SECONDS) as client:
                answer: httpx2.Response = await client.request(method, address, **more)
                found = msgspec.json.decode(answer.content)
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise self._away(str(error) or type(error).__name__) from error
        if answer.status_code != HTTPStatus.OK or not isinstance(found, dict):
            told = found.get("error") if isinstance(found, dict) else None
            raise self._away(f"it answered {answer.status_code} {told or ''}".strip())
        return found

    def _away(self, why: str) -> HttpProblem:
        log.warning("the OpenID provider cannot be used", issuer=self.name, error=why)
        return HttpProblem(502, f"{self.name} cannot be used for logging in now; try again")


def _provider(request: Request) -> Provider:
    provider: Provider | None = request.app.state.provider
    if provider is None:
        raise HttpProblem(404, "people log in with tokens here: no OpenID provider is set up")
    return provider


@router.get("/login/oidc")
async def ask(request: Request) -> Response:
    """Send a browser to the provider."""
    provider = _provider(request)
    root = request.scope.get("root_path", "").rstrip("/")
    callback = request.app.state.engine.settings.oidc_redirect or str(
        URL(scope=request.scope).replace(path=f"{root}/login/oidc/callback", query="", fragment="")
    )
    wanted = inside(request.query_params.get("next", "/"))
    login = Login(
        state=secrets.token_urlsafe(32),
        nonce=secrets.token_urlsafe(32),
        verifier=secrets.token_urlsafe(32),
        wanted=wanted[:1000],
        redirect=callback,
        until=int(time.time()) + LOGIN_SECONDS,
    )
    answer = RedirectResponse(await provider.address(login), 303, {"Cache-Control": "no-store"})
    signer = await request.app.state.keys.signer()
    cookie = signer.sign("oidc", msgspec.json.encode(login))
    answer.headers["Set-Cookie"] = _cookie(request, cookie, LOGIN_SECONDS)
    return answer


def _cookie(request: Request, value: str, seconds: int) -> str:
    """Write the login's cookie: it comes along when the provider sends the browser back (Lax)."""
    root = request.scope.get("root_path", "").rstrip("/")
    callback = request.app.state.engine.settings.oidc_redirect
    words = [f"{COOKIE}={value}", f"Path={root}/login/oidc", f"Max-Age={seconds}"]
    is_secure = request.url.scheme == "https" or callback.startswith("https://")
    return "; ".join([*words, "HttpOnly", "SameSite=Lax", *(["Secure"] if is_secure else [])])


@router.get("/login/oidc/callback")
async def callback(request: Request) -> Response:
    """Begin the session of a person whom the provider vouches for."""
    provider = _provider(request)
    login = await _login(request)
    given = request.query_params
    state = given.get("state", "").encode()
    if login is None or not hmac.compare_digest(login.state.encode(), state):
        wrong = "This login was begun elsewhere, or too long ago. Begin again."
        return login_page(request, wanted="/", wrong=wrong, status=403)
    if given.get("iss", issuer := request.app.state.engine.settings.oidc_issuer) != issuer:
        raise HttpProblem(403, "another provider answered than was asked")
    if "code" not in given:
        told = given.get("error_description") or given.get("error") or "it gave no reason"
        wrong = f"{provider.name} did not log you in: {told[:200]}"
        return login_page(request, wanted=login.wanted, wrong=wrong, status=403)
    try:
        person, scopes = await provider.person(login, given["code"])
    except (HttpProblem, Invalid) as error:
        told = error.detail if isinstance(error, HttpProblem) else str(error)
        status = error.status_code if isinstance(error, HttpProblem) else 403
        return login_page(request, wanted=login.wanted, wrong=told, status=status)
    answer = await begin(request, login.wanted, actor=person, person=person, scopes=scopes)
    answer.headers.append("Set-Cookie", _cookie(request, "", 0))
    return answer


async def _login(request: Request) -> Login | None:
    """Read the login that this browser began."""
    signer = await request.app.state.keys.signer()
    content = signer.read("oidc", request.cookies.get(COOKIE, ""))
    try:
        login = msgspec.json.decode(content, type=Login) if content else None
    except msgspec.MsgspecError:
        return None
    return login if login is not None and login.until > time.time() else None
