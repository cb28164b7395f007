"""The little language that jobs are searched by: `state:failed tag.customer:42 age:>1h`.

Terms that stand next to each other must all hold; of values with commas between them one must; a
leading dash turns a term around. A value in quotes may hold anything: `kind:"load files"`. It is
parsed here and nowhere else, for the command line, the API and pages; `store/search.py` asks the
database.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Final
from uuid import UUID

import msgspec

from milepost.errors import Invalid
from milepost.lifecycle import JobState
from milepost.specs import PUBLIC_WORDS

Interval = tuple[int, int]
"""From one microsecond, up to and without another."""

TAG: Final = "tag"
WORDS: Final = ("state", "kind", "queue", "run", "worker", "tenant", "key", "fingerprint")
"""Keys whose values are compared as they are."""
TIMES: Final = ("created", "age", "duration")
KEYS: Final = (*WORDS, *TIMES, "error", f"{TAG}.NAME")
EVER: Final = 253_402_300_800_000_000
"""The year 10,000: no time is later."""
LONGEST = 2_000
TERMS_MOST = 30

_HEAD = re.compile(r'(-?)(?:tag\.("(?:[^"\\]|\\.)*"|[^\s:",]+)|([^\s:"]*)):', re.DOTALL)
_VALUE = re.compile(r'([<>]?)(?:"((?:[^"\\]|\\.)*)"|([^\s,"<>][^\s,"]*))', re.DOTALL)
_BARE = re.compile(r'[^\s,"<>][^\s,"]*')
_BARE_NAME = re.compile(r'[^\s:",]+')
_PIECE = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^\s"]|"(?=\S))+', re.DOTALL)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Value(msgspec.Struct, frozen=True):
    """One value of a term; a `text` is quoted words of an error, to be found within it."""

    word: str
    sign: str = ""
    text: bool = False

    def __str__(self) -> str:
        bare = not self.text and _BARE.fullmatch(self.word)
        return self.sign + (self.word if bare else _quoted(self.word))


class Term(msgspec.Struct, frozen=True):
    """A key and its values, one of which must hold; or none, if it is turned around."""

    key: str
    values: tuple[Value, ...]
    name: str = ""
    """Which tag, if it is one."""
    negated: bool = False

    def __str__(self) -> str:
        name = self.name if _BARE_NAME.fullmatch(self.name) else _quoted(self.name)
        key = f"{TAG}.{name}" if self.key == TAG else self.key
        return f"{'-' if self.negated else ''}{key}:{','.join(map(str, self.values))}"

    @property
    def words(self) -> list[str]:
        """What its values say, without signs; states as the engine has them."""
        if self.key == "state":
            return [state for value in self.values for state in _states(value.word)]
        if self.key == "run":
            return [str(UUID(value.word)) for value in self.values]
        return [value.word for value in self.values if not value.text]

    def intervals(self, now_us: int) -> list[Interval]:
        """Give the times, or the lengths of time, that hold."""
        found = [_interval(self.key, value, now_us) for value in self.values]
        return complement(found) if self.negated else union(found)


class Where(msgspec.Struct, frozen=True):
    """A filter of jobs; without terms it lets every job through."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def __and__(self, other: "Where") -> "Where":
        return Where(self.terms + other.terms)

    def of(self, key: str, *, negated: bool | None = None) -> list[Term]:
        """Give the terms of a key."""
        return [
            term
            for term in self.terms
            if term.key == key and (negated is None or term.negated is negated)
        ]

    def only(self, key: str) -> list[str] | None:
        """Give the words that a key may have; None if it may have any."""
        given = [set(term.words) for term in self.of(key, negated=False)]
        return sorted(set.intersection(*given)) if given else None

    def never(self, key: str) -> list[str] | None:
        """Give the words that a key may not have; None if there are none."""
        return sorted({word for term in self.of(key, negated=True) for word in term.words}) or None

    def created(self, now_us: int) -> list[Interval]:
        """Give the times at which a job may have been created."""
        return self._between(("created", "age"), now_us)

    def duration(self) -> list[Interval]:
        """Give the lengths of time that a job may have run."""
        return self._between(("duration",), 0)

    def _between(self, keys: Sequence[str], now_us: int) -> list[Interval]:
        left: list[Interval] = [(0, EVER)]
        for term in self.terms:
            if term.key in keys:
                left = intersection(left, term.intervals(now_us))
        return left

    def fixed(self, now_us: int) -> "Where":
        """Say ages as times, so that the filter means the same jobs tomorrow."""
        return Where(tuple(_fixed(term, now_us) for term in self.terms))


def where(**words: str | Sequence[str] | None) -> Where:
    """Make a filter of keys and their words, one or several; None says nothing of its key."""
    given = {
        key: (told,) if isinstance(told, str) else told
        for key, told in words.items()
        if told is not None
    }
    return Where(tuple(Term(key, tuple(map(Value, told))) for key, told in given.items()))


def until(now_us: int) -> Where:
    """Make a filter that leaves out jobs that are created from now on."""
    return Where((Term("created", (Value(_spelled(now_us + 1), "<"),)),))


def parse(text: str, *, stored: bool = False) -> Where:
    """Read a filter, or raise `Invalid` with the column of what is wrong.

    One that was `stored` may be longer than people may write it.
    """
    if len(text) > LONGEST and not stored:
        raise Invalid(f"a filter has at most {LONGEST:,} characters, this one {len(text):,}")
    terms: list[Term] = []
    if found := _UNSTORABLE.search(text):
        raise _wrong(found.start(), "a character that no database stores")
    at = _skipped(text, 0)
    while at < len(text):
        if len(terms) == TERMS_MOST and not stored:
            raise _wrong(at, f"a filter has at most {TERMS_MOST} terms")
        term, at = _term(text, at)
        terms.append(term)
        at = _skipped(text, at)
    return Where(tuple(terms))


class Token(msgspec.Struct, frozen=True):
    """A piece of a filter as somebody wrote it: a term, or what is wrong with it."""

    text: str
    term: Term | None = None
    wrong: str = ""


def tokens(text: str) -> list[Token]:
    """Take a filter apart, and go on behind what cannot be read."""
    if len(text) > LONGEST:
        wrong = f"a filter has at most {LONGEST:,} characters, this one {len(text):,}"
        return [Token(text[:LONGEST], wrong=wrong)]
    found: list[Token] = []
    at = _skipped(text, 0)
    while at < len(text):
        token, at = _token(text, at, has_room=len(found) < TERMS_MOST)
        found.append(token)
        at = _skipped(text, at)
    return found


def _token(text: str, at: int, *, has_room: bool) -> tuple[Token, int]:
    try:
        term, end = _term(text, at)
    except Invalid as error:
        piece = _PIECE.match(text, at)
        end = len(text) if piece is None else piece.end()
        said = str(error).partition(": ")[2]
        return Token(text[at:end], wrong=said), end
    if _UNSTORABLE.search(text[at:end]):
        return Token(text[at:end], wrong="a character that no database stores"), end
    if not has_room:
        return Token(text[at:end], wrong=f"a filter has at most {TERMS_MOST} terms"), end
    return Token(text[at:end], term), end


def _skipped(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _term(text: str, at: int) -> tuple[Term, int]:
    head = _HEAD.match(text, at)
    if head is None:
        word = text[at:].split(maxsplit=1)[0]
        raise _wrong(at, f"{word!r} has no key; write KEY:VALUE, as in error:{word}")
    dash, tag, key = head.groups()
    if tag is None and key not in (*WORDS, *TIMES, "error"):
        raise _wrong(at + len(dash), f"there is no key {key!r}{_meant(key)}")
    term = Term(TAG if tag else key, (), name=_unquoted(tag) if tag else "", negated=bool(dash))
    values, end = _values(text, head.end(), term)
    return msgspec.structs.replace(term, values=tuple(values)), end


def _meant(key: str) -> str:
    near = [f"{TAG}.NAME"] if key == TAG else get_close_matches(key, KEYS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{hint}; there are {', '.join(KEYS)}"


def _values(text: str, at: int, term: Term) -> tuple[list[Value], int]:
    values = []
    while True:
        value, end = _value(text, at, term)
        values.append(value)
        if end == len(text) or text[end].isspace():
            return values, end
        if text[end] != ",":
            raise _wrong(end, f"expected a space or a comma before {text[end]!r}")
        at = end + 1


def _value(text: str, at: int, term: Term) -> tuple[Value, int]:
    found = _VALUE.match(text, at)
    if found is None:
        wrong = "a quote has no end" if text[at : at + 1] == '"' else "a value is missing"
        raise _wrong(at, wrong)
    sign, quoted, bare = found.groups()
    word = bare if quoted is None else _unescaped(quoted)
    value = Value(word, sign, text=term.key == "error" and quoted is not None)
    try:
        _check(term.key, value)
    except (ValueError, OverflowError) as error:
        raise _wrong(at, str(error)) from error
    return value, found.end()


def _check(key: str, value: Value) -> None:
    """Raise `ValueError` unless the key takes the value."""
    if key in TIMES:
        if key != "created" and not value.sign:
            raise ValueError(f"{key} takes < or >, as in {key}:>{value.word}")
        _interval(key, value, EVER // 2)
    elif value.sign:
        raise ValueError(f"{key} takes no {value.sign}; put the value in quotes if it begins so")
    elif key == "state":
        _states(value.word)
    elif key == "run":
        try:
            UUID(value.word)
        except ValueError:
            raise ValueError(f"{value.word!r} is not the id of a run") from None


def _states(word: str) -> list[str]:
    named = word.upper()
    if named in JobState.__members__:
        return [named]
    if named in PUBLIC_WORDS:
        return [str(state) for state in PUBLIC_WORDS[named] if state in JobState.__members__]
    known = ", ".join(dict.fromkeys([*JobState.__members__, *PUBLIC_WORDS]))
    raise ValueError(f"there is no state {word!r}; there are {known}")


def _interval(key: str, value: Value, now_us: int) -> Interval:
    """Give the microseconds that a value stands for: of a day all, of an instant one."""
    if key == "created":
        first, last = _day_or_instant(value.word)
        sign = value.sign
    else:
        length = _span_us(value.word)
        first = length if key == "duration" else max(0, now_us - length)
        last = first + 1
        # What is older was created earlier.
        sign = value.sign if key == "duration" else "<>"["<>".index(value.sign) - 1]
    return {"": (first, last), "<": (0, first), ">": (last, EVER)}[sign]


def _span_us(word: str) -> int:
    found = _SPAN.fullmatch(word)
    if found is None:
        raise ValueError(f"{word!r} is no length of time; write 30s, 5m, 1.5h or 7d")
    return round(float(found[1]) * _UNITS[found[2]] * 1e6)


def _day_or_instant(word: str) -> Interval:
    try:
        found = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError(
            f"{word!r} is no time; write 2026-11-16 or 2026-11-16T10:30Z, or age:>1h"
        ) from None
    zoned = found if found.tzinfo else found.replace(tzinfo=UTC)
    first = max(0, (zoned - _EPOCH) // timedelta(microseconds=1))
    return first, first + (_UNITS["d"] * 1_000_000 if _DAY.fullmatch(word) else 1)


def _fixed(term: Term, now_us: int) -> Term:
    if term.key != "age":
        return term
    values = [
        Value(_spelled(now_us - _span_us(value.word)), "<>"["<>".index(value.sign) - 1])
        for value in term.values
    ]
    return Term("created", tuple(values), negated=term.negated)


def _spelled(at_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=max(0, at_us))).isoformat().replace("+00:00", "Z")


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unquoted(word: str) -> str:
    return _unescaped(word[1:-1]) if word.startswith('"') else word


def _unescaped(text: str) -> str:
    return re.sub(r"(?s)\\(.)", r"\1", text)


def _wrong(at: int, text: str) -> Invalid:
    return Invalid(f"filter, column {at + 1}: {text}")


# Intervals, in order and apart from each other


def union(given: Iterable[Interval]) -> list[Interval]:
    """Join those that meet; leave out empty ones."""
    joined: list[Interval] = []
    for low, high in sorted(pair for pair in given if pair[0] < pair[1]):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def complement(given: Iterable[Interval]) -> list[Interval]:
    """Give what is between them, before and after."""
    ends = [0, *(end for pair in union(given) for end in pair), EVER]
    return [pair for pair in zip(ends[::2], ends[1::2], strict=True) if pair[0] < pair[1]]


def intersection(some: Iterable[Interval], others: Iterable[Interval]) -> list[Interval]:
    """Give what is in one of these and in one of those."""
    others = list(others)
    return union((max(a, c), min(b, d)) for a, b in some for c, d in others)
