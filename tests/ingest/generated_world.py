"""A source that nobody wrote: made from a seed, with everything that real ones do.

A world is a number of rows that come, change, move, go, come twice or late, and cannot be used. Its
keys, places, versions, rules, record types and pages are of any kind. Each row is labelled when it
is made: the target must hold it, or it belongs into quarantine, or it is gone. Nothing here asks
the engine.
"""

import math
import mmap
import random
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import Any
from uuid import UUID

import milepost as mp

T0 = datetime(2024, 1, 1, tzinfo=UTC)
GOOD, UNUSABLE, GONE = "good", "unusable", "gone"
LONGEST = 20_000
"""How many bytes a record may take here, so that one with more is not too large for a test."""
SHAPES = 3
"""How many record types there are: the second has more fields, the third a wider one."""
TEXTS = (None, "", "ü", "日本", "🦆" * 9, "a'b\"c\\d", "NULL", " ", "\n\t", "%s :a {b}", "\x7f")

# Keys and places of every kind, with the extremes that each has.

TIMES = [
    datetime.min.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=UTC),
    datetime(9999, 12, 30, tzinfo=UTC),
    datetime(1, 1, 2, tzinfo=UTC),
]
FAR_TIMES = [
    datetime.min.replace(tzinfo=timezone(timedelta(hours=14))),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
]


def _whole_key(chance):
    ends = [-(2**63), 2**63 - 1, 10**18, -(10**18) - 1, chance.randrange(10**18, 9 * 10**18)]
    return chance.choice([*ends, *(chance.randrange(-9, 99) for _ in ends)])


def _text_key(chance):
    odd = ["0", "00", "1e5", "NULL", "k" * 200, "ключ", "a/b?c", "'", " a", "-1", "%s", ":key"]
    return chance.choice(odd) + chance.choice(["", str(chance.randrange(99))])


def _moment(chance):
    return T0 + timedelta(seconds=chance.randrange(10**8), microseconds=chance.randrange(10**6))


KEYS: dict[str, tuple[type, Callable[[random.Random], Any]]] = {
    "int": (int, _whole_key),
    "str": (str, _text_key),
    "date": (date, lambda r: r.choice([date.min, date.max, _moment(r).date(), _moment(r).date()])),
    "datetime": (datetime, lambda r: r.choice([*TIMES, *(_moment(r) for _ in TIMES)])),
    "uuid": (UUID, lambda r: UUID(int=r.choice([0, 2**128 - 1, *(r.getrandbits(128),) * 4]))),
    "float": (float, lambda r: r.choice([0.1, 1e300, -5e-324, *(r.uniform(-9, 9),) * 3])),
    "decimal": (Decimal, lambda r: Decimal(r.randrange(-999, 999)) / r.choice([1, 8, 1000])),
}
PLACES: dict[type, Callable[[random.Random], Any]] = {
    int: lambda r: r.choice([-(2**63), 2**63 - 1, 0, *(r.randrange(-50, 500) for _ in range(6))]),
    float: lambda r: r.choice(
        [-math.inf, math.inf, sys.float_info.max, -5e-324, *(r.uniform(-9, 99) for _ in range(6))]
    ),
    datetime: lambda r: r.choice([*TIMES, *FAR_TIMES, *(_moment(r) for _ in range(6))]),
    date: lambda r: r.choice(
        [date.min, date.max, date(9999, 12, 30), *(_moment(r).date() for _ in range(6))]
    ),
}
BOUNDS = {
    int: (0, 100),
    float: (0.0, 50.0),
    datetime: (T0, T0 + timedelta(days=100)),
    date: (T0.date(), T0.date() + timedelta(days=100)),
}

# Records that cannot be used.

ERRORS = {
    error.__name__: error
    for error in (OSError, TimeoutError, ConnectionError, mp.Fail, mp.Reject, KeyError)
}
KEYED: list[dict[str, Any]] = [
    {"text": "a lone surrogate \ud800"},
    {"weight": math.nan},
    {"weight": math.inf},
    {"text": "x" * (LONGEST + 1)},
    {"text": object()},
    {"base": "seven"},
    {"base": 10**400},
    {"trouble": "enrich"},
    *({"trouble": name} for name in ERRORS),
]
"""Those whose key can be told all the same."""
KEYLESS: list[dict[str, Any]] = [
    {"id": None},
    {"id": ""},
    {"id": "k" * 10_000},
    {"id": "\udfff"},
    {"id": "a\0"},
]


@dataclass(frozen=True)
class Row:
    """One row of the source, and what must become of it."""

    number: int
    value: Any
    place: Any
    at: Any
    raw: Any
    fate: str
    key: str | None
    """What the engine must know it by; None where nothing tells."""
    last: str | None = None
    """As what the target may keep its last good version, where the version tells nothing."""

    @property
    def order(self) -> list[int]:
        """Where it stands among others; as a cursor, JSON holds it."""
        return [_ordered(self.place), self.number]


def _ordered(place):
    """Turn a place into a whole number that sorts as it does."""
    if isinstance(place, datetime):
        return micros(place)
    if isinstance(place, date):
        return place.toordinal()
    if isinstance(place, float):
        [bits] = struct.unpack("<q", struct.pack("<d", place))
        return bits if bits >= 0 else -(2**63) - bits
    return place or 0


def micros(at: datetime) -> int:
    """Count the microseconds since the world began."""
    return (at - T0) // timedelta(microseconds=1)


class World:
    """A source as it stands, and what is about to happen to it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        chance = self.chance = random.Random(seed)
        self.rows: dict[int, Row] = {}
        """As it stands once everything has happened."""
        self.once_good: set[str] = set()
        """Keys that could be used once: the target may keep their last good version."""
        self.broken: str | None = None
        self._base: dict[int, Row] = {}
        self._coming: list[tuple[int, int, Row | None]] = []
        self._pages = mmap.mmap(-1, 8)  # counts in every process that reads
        self._numbers = count(1)
        # What stays the same in this world:
        self.key_kind = chance.choice(list(KEYS))
        self.key_type, self._new_key = KEYS[self.key_kind]
        self.place_type = chance.choice(list(PLACES))
        self.is_nullable = chance.random() < 0.2
        self.has_bounds = chance.random() < 0.3
        self.is_sequence = chance.random() < 0.25
        self.has_clock = self.is_sequence or chance.random() < 0.5
        self.is_versioned = chance.random() < 0.75
        self.version_kind = chance.choice(["iso", "native", "micros"])
        self.has_key_function = chance.random() < 0.2
        self.is_async = chance.random() < 0.3
        self.style = chance.choice(["plain", "plain", "twice", "overlapping", "empty", "offsets"])
        self.counting = chance.choice([1, 1, 0.3, 3])
        self.page = chance.randrange(1, 8)
        self.has_rules = chance.random() < 0.7
        # What changes:
        self.now: Any = 1_000 if self.is_sequence else T0
        self.shape = 0
        self.mapping = 0
        self.factor = 1
        self.reprice()

    def __str__(self) -> str:
        told = {
            "key": self.key_kind + " by a function" * self.has_key_function,
            "place": self.place_type.__name__,
            "version": "none" if not self.is_versioned else self.version_kind,
            "clock": "sequence" if self.is_sequence else "own" if self.has_clock else "the store's",
            "pages": f"{self.style} of {self.page}",
        }
        return f"seed {self.seed}: " + ", ".join(f"{name} {is_}" for name, is_ in told.items())

    # What a source shows

    @property
    def pages(self) -> int:
        """How many pages were read so far, by whomever."""
        return int.from_bytes(self._pages[:8], "little")

    def read(self) -> None:
        """Count a page."""
        self._pages[:8] = (self.pages + 1).to_bytes(8, "little")

    def shown(self) -> list[Row]:
        """List the rows as they stand after so many pages, in their order."""
        rows = dict(self._base)
        for due, number, row in self._coming:
            if due <= self.pages:
                _put(rows, number, row)
        return sorted(rows.values(), key=lambda row: row.order)

    @property
    def end(self) -> Any:
        """Up to where everything can be read: what happens while it is read lies after it."""
        return self.later(self.now, 1)

    # Time

    def later(self, at, steps):
        """Say what is so many minutes, or numbers, later."""
        return at + (steps if self.is_sequence else timedelta(minutes=steps))

    # What happens

    def settle(self) -> None:
        """Let everything have happened."""
        self._base, self._coming = dict(self.rows), []

    def reprice(self) -> None:
        """Change the rules."""
        if self.has_rules:
            self.factor = self.chance.choice([1, 2, 3, 7])

    def mutate(self, times: int, *, during: bool = False) -> None:
        """Let so many things happen to rows: at once, or one by one while somebody reads."""
        due = self.pages
        for _ in range(times):
            self.now = self.later(self.now, 1)
            due += self.chance.randrange(5)
            for number, row in list(self._happening()):
                _put(self.rows, number, row)
                if during:
                    self._coming.append((due, number, row))
                if row is not None and row.fate == GOOD:
                    self.once_good.add(row.key)
        if not during:
            self.settle()

    def _happening(self) -> Iterator[tuple[int, Row | None]]:
        """Choose one thing: a row comes, changes, moves, goes, is doubled or cannot be used."""
        chance = self.chance
        acts = {
            self._new: 5,
            self._change: 4,
            self._move: 2,
            self._delete: 2,
            self._bury: 2,
            self._double: 1,
            self._spoil: 3,
        }
        [act] = chance.choices(list(acts), list(acts.values()))
        single = [row for row in self.rows.values() if len(self._twins(row)) == 1]
        if len(single) < 3:
            return self._new(None)
        return act(chance.choice(single))

    def _twins(self, row):
        return [one for one in self.rows.values() if one.value == row.value]

    def _new(self, _row):
        """Let a row come; now and then its commit is late, by more or by less than the overlap."""
        value = self._new_key(self.chance)
        if all(row.value != value for row in self.rows.values()):
            at = self.later(self.now, -self.chance.choice([0, 0, 0, 2, 5, 60]))
            row = self._good(next(self._numbers), value, self._place(), at)
            yield row.number, row if self.chance.random() < 0.85 else self._spoilt(row)

    def _change(self, row):
        yield row.number, self._good(row.number, row.value, row.place, self._since(row))

    def _move(self, row):
        yield row.number, self._good(row.number, row.value, self._place(), self._since(row))

    def _delete(self, row):
        """Let a row go without a word; or a doubled one, all of it or its older half."""
        doubled = [one for one in self.rows.values() if len(self._twins(one)) > 1]
        if not doubled:
            yield row.number, None
            return
        twins = sorted(self._twins(doubled[0]), key=lambda one: one.at)
        for twin in twins[: self.chance.choice([-1, len(twins)])]:
            yield twin.number, None

    def _bury(self, row):
        """Let a row go with a word: a tombstone in its page, or a mark that `map` sees."""
        at = self._since(row)
        if self.chance.random() < 0.5:
            told = self._version(at) if self.is_versioned and self.chance.random() < 0.7 else None
            raw = mp.Gone(self.key_text(row.value), told)
        else:
            raw = self._raw(row.value, row.place, at)
            raw["trouble"] = self.chance.choice(["gone", "raise gone"])
        key = self.key_text(row.value)
        yield row.number, Row(row.number, row.value, row.place, at, raw, GONE, key)

    def _double(self, row):
        """Let a row be there twice: just so, or as a newer version at another place."""
        if row.key is None or isinstance(row.raw, mp.Gone):
            return
        twin = replace(row, number=next(self._numbers))
        if self.is_versioned and row.fate == GOOD and self.chance.random() < 0.7:
            twin = self._good(twin.number, row.value, self._place(), self._since(row))
        yield twin.number, twin

    def _spoil(self, row):
        at = self._since(row)
        yield row.number, self._spoilt(self._good(row.number, row.value, row.place, at))

    def _since(self, row):
        """Say when a row changed: after it did so before, but its commit may be late."""
        late = self.later(self.now, -self.chance.choice([0, 0, 0, 3]))
        least = row.at + (1 if self.is_sequence else timedelta(milliseconds=1))
        return max(late, least)

    # Rows

    def key_text(self, value) -> str:
        """Say by which text a record is told apart."""
        return f"shop-{value}" if self.has_key_function else str(value)

    def _place(self):
        if self.is_nullable and self.chance.random() < 0.2:
            return None
        return PLACES[self.place_type](self.chance)

    def _version(self, at):
        if self.is_sequence or self.version_kind == "native":
            return at
        return at.isoformat() if self.version_kind == "iso" else micros(at)

    def _raw(self, value, place, at) -> dict[str, Any]:
        chance = self.chance
        raw = {
            "id": value,
            "at": self._version(at),
            "base": chance.choice([0, -1, 10**15, chance.randrange(9999)]),
            "text": chance.choice(TEXTS),
            "weight": chance.choice([None, 0.0, 0.1, 1e300, -5e-324]),
            "moment": chance.choice([None, _moment(chance), *TIMES]),
            "extra": chance.choice([{}, {"a": [1, None, "ü"]}, {"": {"'": 1.5}}]),
        }
        return raw if isinstance(place, float) and math.isinf(place) else {**raw, "place": place}

    def _good(self, number, value, place, at) -> Row:
        raw = self._raw(value, place, at)
        return Row(number, value, place, at, raw, GOOD, self.key_text(value))

    def _spoilt(self, row: Row) -> Row:
        """Make a record that cannot be used, of one that can."""
        chance = self.chance
        if chance.random() < 0.7:
            return replace(row, raw={**row.raw, **chance.choice(KEYED)}, fate=UNUSABLE)
        if self.key_kind == "int" and not self.has_key_function and chance.random() < 0.3:
            long = 2**64 + row.number
            return replace(row, raw={**row.raw, "id": long}, fate=UNUSABLE, key=str(long))
        if self.is_versioned and chance.random() < 0.3:
            raw = {**row.raw, "at": "yesterday"}
            return replace(row, raw=raw, fate=UNUSABLE, key=None, last=row.key)
        raw = {**row.raw, **chance.choice(KEYLESS)}
        return replace(row, raw=raw, fate=UNUSABLE, key=None)

    # What must come of it

    def winners(self) -> list[Row]:
        """List the rows that count: of doubled ones the newest."""
        best: dict[Any, Row] = {}
        for row in self.rows.values():
            known = best.get(row.value)
            if known is None or known.at < row.at:
                best[row.value] = row
        return list(best.values())

    def steady(self) -> list[Row]:
        """List the rows that count, and that nothing happens to while somebody reads."""
        moving = {number for _, number, _ in self._coming}
        return [row for row in self.winners() if row.number not in moving]

    def expected(self, row: Row) -> dict[str, Any]:
        """Say what the target must hold of a row, by the rules and the record type of now."""
        raw = row.raw
        price = raw["base"] * self.factor
        text = None if raw["text"] is None else raw["text"] * (self.mapping + 1)
        shapes = [
            {"id": row.value, "price": price, "text": text, "extra": raw["extra"]},
            {"weight": raw["weight"], "moment": raw["moment"]},
            {"price": price / 2},
        ]
        return {name: is_ for shape in shapes[: self.shape + 1] for name, is_ in shape.items()}


def _put(rows, number, row):
    if row is None:
        rows.pop(number, None)
    else:
        rows[number] = row
