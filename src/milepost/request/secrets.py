"""Secrets by reference: a request names one, and the worker that sends it puts it in (H-94).

The name is stored, journalled, recorded and shown: `{secret:partner-token}`. A setting says which
names there are and where each may go, so that nobody who may send a request can have a secret sent
to a place of their own. Its value stands in the environment of the worker alone.
"""

import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, quote_plus

import msgspec

from milepost.errors import Invalid
from milepost.request.declaration import REFERENCE, Request, content_of
from milepost.request.guard import HttpUrl, Refused, host_matches, parse
from milepost.request.redact import Hider
from milepost.request.reply import Answer

SHORTEST = 8
"""A shorter text cannot be told from others when a server repeats it."""
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_ENTRY = re.compile(r"(?P<name>[^@\s]+)@(?:(?P<scheme>https?)://)?(?P<place>[^@/\s]+)/?")
Spelled = Callable[[str], str]
SETTING = "MILEPOST_REQUEST_SECRETS"


class MissingValue(Invalid):
    """A secret whose value is not in this worker's environment."""


class AllowedOrigin(msgspec.Struct, frozen=True):
    """Where a secret may be sent: one origin, or, with `*.`, those of a domain."""

    scheme: str
    host: str
    port: int

    def admits(self, target: HttpUrl) -> bool:
        """Tell whether a request to there may carry it."""
        same = (self.scheme, self.port) == (target.scheme, target.port)
        return same and host_matches(target.host.removesuffix("."), self.host)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"


class Secrets:
    """The secrets that requests may name; printing it shows no value."""

    def __init__(
        self, places: Mapping[str, list[AllowedOrigin]], values: Mapping[str, str]
    ) -> None:
        self._places = places
        self._values = values
        self.hider = Hider({value: reference(name) for name, value in values.items()})

    @classmethod
    def read(cls, text: str, environment: Mapping[str, str]) -> "Secrets":
        """Read which there are, as in `token@partner.example`, and those values that are here."""
        places: dict[str, list[AllowedOrigin]] = {}
        for word in filter(None, re.split(r"[,\s]+", text)):
            name, place = _parse_entry(word)
            places.setdefault(name, []).append(place)
        found = {name: environment.get(variable(name), "").strip() for name in places}
        return cls(places, {n: _check_value(n, value) for n, value in found.items() if value})

    def check(self, request: Request) -> None:
        """Refuse, before it is stored, a request whose secrets could never be sent."""
        given, target = set(request.secrets), parse(request.url)
        shown = set(named_in(request.url)).union(*map(named_in, request.headers.values()))
        if unasked := sorted(shown - given):
            raise Invalid(
                f"the request names {', '.join(map(reference, unasked))}: say so by "
                f"secrets={unasked}"
            )
        everywhere = shown.union(named_in(content_of(request).decode("latin-1")))
        if unused := sorted(given - everywhere):
            raise Invalid(
                f"secrets={unused}: say with {reference(unused[0])} in the URL, a header or the "
                "body where it goes"
            )
        for name in request.secrets:
            self._check_bound(name, target)

    def filling(self, request: Request, home: HttpUrl) -> "Filling | None":
        """Give the values for one request, where it goes; None when it names no secret.

        It is checked once more: a stored request may be older than the settings, or by hand.
        """
        if not request.secrets:
            return None
        for name in request.secrets:
            self._check_bound(name, home)
            if name not in self._values:
                raise MissingValue(
                    f"the secret {name} has no value here: set {variable(name)} for this worker"
                )
        return Filling({name: self._values[name] for name in request.secrets})

    def answer(self, answer: Answer) -> Answer:
        """Put the names where a server repeats values, whichever request it had them from.

        Nobody after this sees them.
        """
        if not self.hider:
            return answer
        text, content = self.hider.text, self.hider.content(answer.content)
        headers = {text(name): text(value) for name, value in answer.headers.items()}
        return Answer(answer.status, headers, content, text(answer.url))

    def _check_bound(self, name: str, target: HttpUrl) -> None:
        places = self._places.get(name)
        if places is None:
            known = ", ".join(sorted(self._places)) or "none"
            raise Invalid(
                f"no secret is called {name!r} here (known: {known}); {SETTING} says which there "
                f"are and where each may go, as in {name}@{target.host}, for those who submit "
                "and for those who send"
            )
        if not any(place.admits(target) for place in places):
            bound = ", ".join(map(str, places))
            raise Refused(
                f"the secret {name} may go to {bound}, and not to {target.scheme}://"
                f"{target.host}:{target.port}; {SETTING} says where"
            )


class Filling:
    """The secrets of one request: puts values where names stand."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def url(self, url: str) -> str:
        """Fill a URL; a value is one part of it, whatever it holds."""
        return self._fill(url, lambda value: quote(value, safe=""))

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Fill the values of headers."""
        return {name: self._fill(value, str) for name, value in headers.items()}

    def content(self, content: bytes, kind: str) -> bytes:
        """Fill a body, spelled as its kind spells a text."""
        spelled: Spelled = str
        if "json" in kind:
            spelled = _in_json
        elif "x-www-form-urlencoded" in kind:
            spelled = quote_plus
        return self._fill(content.decode("latin-1"), spelled).encode("latin-1")

    def _fill(self, text: str, spelled: Spelled) -> str:
        known = self._values
        return REFERENCE.sub(lambda m: spelled(known[m[1]]) if m[1] in known else m[0], text)


def variable(name: str) -> str:
    """Name the environment's variable in which a secret's value stands."""
    return f"MILEPOST_SECRET_{name.upper().replace('-', '_')}"


def reference(name: str) -> str:
    """Write a secret's name as a request does."""
    return f"{{secret:{name}}}"


def named_in(text: str) -> list[str]:
    """Find the secrets that a text names."""
    return REFERENCE.findall(text)


def _parse_entry(word: str) -> tuple[str, AllowedOrigin]:
    match = _ENTRY.fullmatch(word)
    if match is None or not _NAME.fullmatch(match["name"]):
        raise Invalid(
            f"request_secrets: {word!r}: expected name@host, name@host:port or, where TLS is not "
            "to be had, name@http://host; names are made of a-z, 0-9 and dashes"
        )
    scheme = match["scheme"] or "https"
    domain = match["place"].removeprefix("*.")
    try:
        target = parse(f"{scheme}://{domain}/")
    except Refused as error:
        raise Invalid(f"request_secrets: {word!r}: {error}") from None
    host = target.host.removesuffix(".")
    wild = domain != match["place"]
    return match["name"], AllowedOrigin(scheme, f"*.{host}" if wild else host, target.port)


def _check_value(name: str, value: str) -> str:
    # The value is not repeated.
    if not (value.isascii() and value.isprintable()):
        raise Invalid(f"{variable(name)}: expected printable ASCII in one line")
    if len(value) < SHORTEST:
        raise Invalid(
            f"{variable(name)}: a secret has at least {SHORTEST} characters, or it could not be "
            "told from other texts when a server repeats it"
        )
    return value


def _in_json(value: str) -> str:
    return msgspec.json.encode(value).decode()[1:-1]
