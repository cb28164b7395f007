"""Keeps secrets out of everything that is written down of a request and its replies (H-105).

Secrets are hidden twice: by the name they stand under (`Recorder`), and wherever their value turns
up again (`Hider`), for a server may repeat in its answer the values that it was sent.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import compress
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from milepost.request.declaration import REFERENCE
from milepost.request.guard import HttpUrl, Refused, parse

HIDDEN = "[redacted]"
SHORTEST = 4
"""A value that short cannot be looked for without hiding half of the text."""
SCHEMES = ("basic", "bearer", "digest")
"""Words of an Authorization header that are no secrets."""
REQUEST_KINDS = frozenset({"request", "request.final", "requests"})
"""Kinds whose payloads are requests."""
_SECRET = re.compile(
    r"authorization|authenticat|cookie|token|secret|passw|pwd|apikey|accesskey|privatekey"
    r"|credential|session|signature|bearer|jwt|^sig$|^auth$|^key$"
)
_LOOSE = re.compile(r"[^a-z0-9]")
SURE = 8
"""A shorter value in base64 or hex could not be told from others: it is looked for as it is."""
LEAST = 4
PASSES = 4
"""How often something may have been escaped."""
_BACKSLASHES = 8
_TOKEN = re.compile(
    rb"%[0-9a-f]{2}|\\{1,8}+(?:u00[0-9a-f]{2}|x[0-9a-f]{2}|[nrt])"
    rb"|&(?:#0{0,4}+[0-9]{1,3}|#x0{0,4}+[0-9a-f]{1,2}|amp|lt|gt|quot|apos);",
    re.IGNORECASE,
)
_WORDS = {
    b"&amp;": b"&",
    b"&lt;": b"<",
    b"&gt;": b">",
    b"&quot;": b'"',
    b"&apos;": b"'",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
}
Span = tuple[int, int, bytes]
Places = tuple[list[int], list[int]]


class _View:
    """A way to read bytes: some become others, and some are dropped."""

    def __init__(self, *, kept: bytes, become: Mapping[int, int]) -> None:
        self._dropped = bytes(set(range(256)) - set(kept))
        self._table = bytes(become.get(byte, byte) for byte in range(256))
        self._mask = bytes(byte in kept for byte in range(256))

    def read(self, data: bytes) -> bytes:
        return data.translate(self._table, self._dropped)

    def places(self, data: bytes, places: Places) -> Places:
        """Give the places of the bytes that are read."""
        kept = data.translate(self._mask)
        return list(compress(places[0], kept)), list(compress(places[1], kept))


def _pairs(given: bytes, wanted: bytes) -> dict[int, int]:
    return dict(zip(given, wanted, strict=True))


_ALL = bytes(range(256))
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_LOWER = _pairs(_LETTERS.upper(), _LETTERS)
_RAW = _View(kept=_ALL, become={})
_WIDE = _View(kept=_ALL[1:], become={})
# The number of backslashes depends on how often it was escaped.
_TEXT = _View(kept=_ALL.replace(b"\\", b""), become={**_LOWER, **_pairs(b"+", b" ")})
_HEX = _View(kept=b"0123456789abcdefABCDEF", become=_LOWER)
_BASE64 = _View(kept=_LETTERS + _LETTERS.upper() + b"0123456789+/-_", become=_pairs(b"-_", b"+/"))


class Hider:
    """Replaces known values in bytes however they are spelled, in time that grows with the bytes.

    The bytes are read in a few ways (as they are, and with escapes undone; as text, as hex digits,
    as base64), each of which drops the bytes that may stand between the characters, and the values
    are looked for by plain searches. A pattern that allowed for every spelling took as long as the
    value is long, at every byte.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        """Take values, and the replacement of each."""
        self._wanted: dict[_View, list[tuple[bytes, bytes]]] = {}
        for value, instead in values.items():
            for view, needle in _needles(value):
                self._wanted.setdefault(view, []).append((needle, instead.encode()))

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def content(self, content: bytes) -> bytes:
        """Hide them in bytes."""
        if not self._wanted:
            return content
        levels = _levels(_WIDE.read(content))
        spans = list(self._find(content, levels[:1]))
        if len(levels) > 1:
            spans += self._find(content, levels)
        return _replace(content, spans) if spans else content

    def text(self, text: str) -> str:
        """Hide them in a text."""
        if not self._wanted:
            return text
        hidden = self.content(text.encode(errors="surrogatepass"))
        return hidden.decode(errors="surrogatepass")

    def _find(self, content: bytes, levels: list[bytes]) -> Iterator[Span]:
        """Find them in the last of the levels, and say where they stand in the content."""
        data, places = levels[-1], None
        for view, wanted in self._wanted.items():
            read = view.read(data)
            hits = [hit for needle, instead in wanted for hit in _hits(read, needle, instead)]
            if hits:
                places = places or _places(content, levels)
                starts, ends = view.places(data, places)
                for first, last, instead in hits:
                    yield starts[first], ends[last - 1], instead


def _hits(read: bytes, needle: bytes, instead: bytes) -> Iterator[Span]:
    at = read.find(needle)
    while at >= 0:
        yield at, at + len(needle), instead
        at = read.find(needle, at + len(needle))


def _levels(data: bytes) -> list[bytes]:
    """Undo escapes, again and again while there are some."""
    levels = [data]
    for _ in range(PASSES):
        plain = _TOKEN.sub(lambda match: _unescape(match[0].lower()), levels[-1])
        if plain == levels[-1]:
            break
        levels.append(plain)
    return levels


@lru_cache(maxsize=4096)
def _unescape(token: bytes) -> bytes:
    bare = token.lstrip(b"\\")
    if (word := _WORDS.get(bare)) is not None:
        return word
    digits = bare.strip(b"%&#;ux")
    decimal = bare.startswith(b"&#") and not bare.startswith(b"&#x")
    number = int(digits, 10 if decimal else 16)
    return bytes([number]) if number < len(_ALL) else b"?"


def _places(content: bytes, levels: list[bytes]) -> Places:
    """Say for each byte of the last level where it begins and ends in the content."""
    whole = list(range(len(content))), list(range(1, len(content) + 1))
    starts, ends = _WIDE.places(content, whole)
    for data in levels[:-1]:
        starts, ends = _trace_back(data, starts, ends)
    return starts, ends


def _trace_back(data: bytes, starts: list[int], ends: list[int]) -> Places:
    begun: list[int] = []
    ended: list[int] = []
    at = 0
    for match in _TOKEN.finditer(data):
        first, last = match.span()
        begun += starts[at : first + 1]
        ended += ends[at:first]
        ended.append(ends[last - 1])
        at = last
    return begun + starts[at:], ended + ends[at:]


def _replace(content: bytes, spans: Iterable[Span]) -> bytes:
    pieces: list[bytes] = []
    done = 0
    for start, end, instead in sorted(spans):
        if start >= done:
            pieces += [content[done : _unbroken(content, start, done)], instead]
        done = max(done, end)
    return b"".join((*pieces, content[done:]))


def _unbroken(content: bytes, start: int, least: int) -> int:
    """Take backslashes along: one that escaped the hidden value would escape its replacement."""
    least = max(least, start - _BACKSLASHES)
    kept = content[least:start].rstrip(b"\\")
    return least + len(kept)


@lru_cache(maxsize=512)
def _needles(value: str) -> tuple[tuple[_View, bytes], ...]:
    """List the byte strings to look for, each with its view."""
    plain = value.encode(errors="surrogatepass")
    texts = {_TEXT.read(plain), _TEXT.read(_levels(plain)[-1])}
    found = [(_TEXT, text) for text in texts if len(text) >= LEAST]
    if len(value) < SURE or len(found) < len(texts):
        spelled = {plain, msgspec.json.encode(value)[1:-1]}
        return tuple((_RAW, spelling) for spelling in spelled)
    digits = plain.hex()
    # As in 0x73, 0x65.
    apart = "".join(f"0{digits[at : at + 2]}" for at in range(0, len(digits), 2))
    found += [(_HEX, spelling.encode()) for spelling in (digits, apart)]
    return (*found, *((_BASE64, spelling) for spelling in _in_base64(plain)))


def _in_base64(plain: bytes) -> Iterator[bytes]:
    """Spell the part of a value that is sure to turn up in base64, wherever its group begins."""
    for before in range(3):
        raw = b"\0" * before + plain
        # Characters that also hold bits of the neighbours differ.
        yield base64.b64encode(raw)[-(-before * 8 // 6) : len(raw) * 8 // 6]


class Recorder:
    """Shows the parts of requests and replies: capped, and without secrets."""

    def __init__(self, *, names: Iterable[str] = (), most: int = 16 * 1024) -> None:
        """Take more names under which secrets stand, and how much of a body is kept."""
        self._names = frozenset(_plain(name) for name in names)
        self._most = most

    def is_secret(self, name: str) -> bool:
        """Tell whether something of this name is never written down."""
        plain = _plain(name)
        return _is_secret(plain) or plain in self._names

    def hider(self, headers: Mapping[str, str], target: HttpUrl, *more: str | None) -> Hider:
        """Know the secrets of one request by their values."""
        query = parse_qsl(target.path.partition("?")[2], keep_blank_values=True)
        named = [*headers.items(), *query]
        values = [*more, target.credentials, *(v for n, v in named if self.is_secret(n))]
        # A reference names a secret, and is none.
        bare = [REFERENCE.sub("", value) for value in values if value]
        words = {word for value in bare for word in (value, *value.split())}
        secret = {w for w in words if len(w) >= SHORTEST and w.lower() not in SCHEMES}
        return Hider(dict.fromkeys(sorted(secret, key=len, reverse=True), HIDDEN))

    def _shown(self, name: str, value: str) -> str:
        return HIDDEN if self.is_secret(name) else value

    def url(self, target: HttpUrl) -> str:
        """Show a URL: without credentials, and with secrets in its query hidden."""
        _, mark, query = target.path.partition("?")
        if not mark:
            return target.shown
        pairs = parse_qsl(query, keep_blank_values=True)
        shown = [(name, self._shown(name, value)) for name, value in pairs]
        return f"{target.shown}?{urlencode(shown, safe='[]{}:')}"

    def headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Show headers."""
        return {name: self._shown(name, value) for name, value in headers.items()}

    def body(self, content: bytes, kind: str) -> dict[str, Any]:
        """Show a body as JSON, a text, or bytes; cut where it is too long."""
        if not content:
            return {}
        if len(content) > self._most:
            kept = _readable(content[: self._most], cut=True)
            return {**kept, "bytes": len(content), "cut": True}
        if "json" in kind or content[:1] in b"{[":
            with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                return {"json": self.masked(msgspec.json.decode(content))}
        if "x-www-form-urlencoded" in kind:
            pairs = parse_qsl(content.decode(errors="replace"), keep_blank_values=True)
            return {"form": {name: self._shown(name, value) for name, value in pairs}}
        return _readable(content)

    def masked(self, value: Any, *, request: bool = False) -> Any:
        """Hide the members of a JSON value whose names say that they are secret.

        Of a `request` as it is stored, the credentials of its URL and its callback's too.
        """
        if isinstance(value, list):
            return [self.masked(item, request=request) for item in value]
        if not isinstance(value, dict):
            return value
        return {name: self._member(name, item, request=request) for name, item in value.items()}

    def _member(self, name: str, item: Any, *, request: bool) -> Any:
        if self.is_secret(name):
            return HIDDEN
        if not request or not isinstance(item, str):
            return self.masked(item, request=request)
        if name == "url":
            with suppress(Refused):
                return self.url(parse(item))
        return HIDDEN if name in ("callback", "url") else item


def write_note(hider: Hider, phase: str, shown: Mapping[str, Any]) -> str:
    """Write a note as the journal keeps it; its phase stands first."""
    text = msgspec.json.encode({"phase": phase, **shown}).decode()
    hidden = hider.text(text)
    if hidden == text:
        return text
    try:
        msgspec.json.decode(hidden, type=msgspec.Raw)
    except msgspec.DecodeError:
        # Numbers in a row may spell a secret, and the text that hides them is none.
        return msgspec.json.encode({"phase": phase, "text": hidden}).decode()
    return hidden


def show_arguments(kind: str, arguments: Any, names: Iterable[str]) -> Any:
    """Show a job's arguments: of a request, without its secrets; they are for sending alone.

    `names` are the settings' own, under which secrets stand too.
    """
    if kind not in REQUEST_KINDS:
        return arguments
    value = msgspec.json.decode(arguments) if isinstance(arguments, msgspec.Raw) else arguments
    return Recorder(names=names).masked(value, request=True)


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    return _LOOSE.sub("", name.lower())


@lru_cache(maxsize=1024)
def _is_secret(plain: str) -> bool:
    return _SECRET.search(plain) is not None


def _readable(content: bytes, *, cut: bool = False) -> dict[str, Any]:
    """Show bytes as a text where they are one, or else in base64."""
    size = len(content)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        # A character may have been cut in two at the end.
        text = content[: error.start].decode() if cut and error.start >= size - 3 else "\0"
    if "\0" in text:
        return {"base64": base64.b64encode(content).decode(), "bytes": size}
    return {"text": text, "bytes": size}
