"""Hides known values in bytes however they are spelled, in time that grows with the bytes alone.

The bytes are read in a few ways (as they are, and with escapes undone; as text, as hex digits, as
base64), each of which drops what may stand between the characters, and the values are looked for
by plain searches. A pattern that allowed for every spelling took as long as the value is long, at
every byte.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import compress

import msgspec

SURE = 8
"""A shorter value in base64 or hex could not be told from others: it is looked for as it is."""
LEAST = 4
PASSES = 4
"""How often something may have been escaped."""
_BACKSLASH = ord("\\")
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
        """Say where what is read stands."""
        kept = data.translate(self._mask)
        return list(compress(places[0], kept)), list(compress(places[1], kept))


def _pairs(given: bytes, wanted: bytes) -> dict[int, int]:
    return dict(zip(given, wanted, strict=True))


_ALL = bytes(range(256))
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_LOWER = _pairs(_LETTERS.upper(), _LETTERS)
_RAW = _View(kept=_ALL, become={})
_WIDE = _View(kept=_ALL[1:], become={})
# How many backslashes there are depends on who wrote them.
_TEXT = _View(kept=_ALL.replace(b"\\", b""), become={**_LOWER, **_pairs(b"+", b" ")})
_HEX = _View(kept=b"0123456789abcdefABCDEF", become=_LOWER)
_BASE64 = _View(kept=_LETTERS + _LETTERS.upper() + b"0123456789+/-_", become=_pairs(b"-_", b"+/"))


class Hider:
    """Puts something else wherever a known value stands."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Take values, and what is put in the place of each."""
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
        spans = list(self._found(content, levels[:1]))
        if len(levels) > 1:
            spans += self._found(content, levels)
        return _replaced(content, spans) if spans else content

    def text(self, text: str) -> str:
        """Hide them in a text."""
        if not self._wanted:
            return text
        hidden = self.content(text.encode(errors="surrogatepass"))
        return hidden.decode(errors="surrogatepass")

    def _found(self, content: bytes, levels: list[bytes]) -> Iterator[Span]:
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
        plain = _TOKEN.sub(_unescaped, levels[-1])
        if plain == levels[-1]:
            break
        levels.append(plain)
    return levels


def _unescaped(match: re.Match[bytes]) -> bytes:
    return _meant(match[0].lower())


@lru_cache(maxsize=4096)
def _meant(token: bytes) -> bytes:
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
        starts, ends = _through(data, starts, ends)
    return starts, ends


def _through(data: bytes, starts: list[int], ends: list[int]) -> Places:
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


def _replaced(content: bytes, spans: Iterable[Span]) -> bytes:
    pieces: list[bytes] = []
    done = 0
    for start, end, instead in sorted(spans):
        if start >= done:
            pieces += [content[done : _unbroken(content, start, done)], instead]
        done = max(done, end)
    return b"".join((*pieces, content[done:]))


def _unbroken(content: bytes, start: int, least: int) -> int:
    """Take backslashes along: one that escaped what is hidden would escape what comes instead."""
    least = max(least, start - _BACKSLASHES)
    while start > least and content[start - 1] == _BACKSLASH:
        start -= 1
    return start


@lru_cache(maxsize=512)
def _needles(value: str) -> tuple[tuple[_View, bytes], ...]:
    """Say what to look for in which view."""
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
    """Spell what of a value is sure to turn up in base64, wherever in a group it begins."""
    for before in range(3):
        raw = b"\0" * before + plain
        # Characters that also hold bits of what stands around differ.
        yield base64.b64encode(raw)[-(-before * 8 // 6) : len(raw) * 8 // 6]
