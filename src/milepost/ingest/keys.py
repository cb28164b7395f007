"""Keys that partitions are cut by: numbers, times or days; how they are cut, and written down.

The first partition begins and the last one ends beyond everything. No number, time or day lies
beyond its own kind's last value, so these two bounds are values that compare so: `key < high` holds
for the last day of the calendar, and for infinity itself.
"""

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

from milepost.errors import Invalid

LOWEST, HIGHEST = -math.inf, math.inf
KINDS = {"time": datetime, "date": date, "int": int, "float": int | float}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Open:
    """A bound beyond everything: before all keys, or after them, even one that equals it."""

    is_after = False
    __slots__ = ()

    def _is_same(self, other: object) -> bool:
        return isinstance(other, _Open) and other.is_after == self.is_after

    def __lt__(self, other: object) -> bool:
        return not self.is_after and not self._is_same(other)

    def __gt__(self, other: object) -> bool:
        return self.is_after and not self._is_same(other)

    def __le__(self, other: object) -> bool:
        return not self.is_after or self._is_same(other)

    def __ge__(self, other: object) -> bool:
        return self.is_after or self._is_same(other)

    def __conform__(self, protocol: object) -> str | float:
        """Give sqlite3 a number, or a text that sorts before or after that of every time."""
        if isinstance(self, float):
            return float(self)
        return "~" if self.is_after else ""


def _ends(kind: type, low: Any, high: Any) -> tuple[Any, Any]:
    """Make the two open bounds of a kind of keys: they equal its last values, and lie beyond."""
    before = type(f"Before_{kind.__name__}", (_Open, kind), {"__slots__": ()})
    after = type(f"After_{kind.__name__}", (_Open, kind), {"__slots__": (), "is_after": True})
    return before(*low), after(*high)


_NUMBERS = _ends(float, (LOWEST,), (HIGHEST,))
_ENDS = {
    "time": _ends(datetime, (1, 1, 1, 0, 0, 0, 0, UTC), (9999, 12, 31, 23, 59, 59, 999_999, UTC)),
    "date": _ends(date, (1, 1, 1), (9999, 12, 31)),
}


def is_open(bound: object) -> bool:
    """Tell whether a bound lies beyond everything."""
    return isinstance(bound, _Open)


class Axis:
    """Turns keys into numbers and back: positions on it can be halved and guessed between."""

    def __init__(self, kind: str, bounds: tuple[Any, Any] | None = None) -> None:
        self.kind = kind
        self.bounds = bounds

    @property
    def whole(self) -> bool:
        """Whether nothing lies between a number and the next."""
        return self.kind in ("int", "date")

    def key(self, place: float) -> Any:
        """Turn a position into a key."""
        if math.isinf(place):
            return self.ends[place > 0]
        if self.kind == "time":
            return _EPOCH + timedelta(seconds=place)
        if self.kind == "date":
            return date.fromordinal(_EPOCH.toordinal() + math.ceil(place))
        return math.ceil(place) if self.kind == "int" else place

    @property
    def ends(self) -> tuple[Any, Any]:
        """The bounds that the first partition begins with and the last one ends with."""
        return _ENDS.get(self.kind, _NUMBERS)

    @property
    def reach(self) -> tuple[float, float]:
        """Between which positions a cut can lie: no calendar goes farther, no float counts."""
        if self.kind in _ENDS:
            low, high = (self.place(end) for end in self.ends)
            return low, high
        return -1e18, 1e18

    def place(self, key: Any) -> float:
        """Turn a key into a position."""
        if isinstance(key, datetime):
            return ((key if key.tzinfo else key.replace(tzinfo=UTC)) - _EPOCH).total_seconds()
        if isinstance(key, date):
            return float(key.toordinal() - _EPOCH.toordinal())
        return float(key)


def axis_of(type_: Any, bounds: tuple[Any, Any] | None) -> Axis:
    """Choose how keys are cut, by the source's bounds or by their type."""
    known = isinstance(type_, type) and type_ is not bool
    for kind, classes in KINDS.items():
        if bounds is not None and all(isinstance(bound, classes) for bound in bounds):
            return Axis(kind, bounds)
        if bounds is None and known and issubclass(type_, classes):
            return Axis(kind)
    if bounds is not None:
        told = f"({bounds[0]!r}, {bounds[1]!r})"
        raise Invalid(f"bounds={told} must be two numbers, two times or two days")
    return Axis("number")


def written(key: Any) -> Any:
    """Write a bound as JSON holds it."""
    if isinstance(key, _Open):
        return "inf" if key.is_after else "-inf"
    if isinstance(key, date):  # a datetime is one too
        return key.isoformat()
    return key


def read(text: Any, axis: Axis | None = None) -> Any:
    """Read a bound back; with its axis, as one that a source is asked with."""
    if not isinstance(text, str):
        return text
    if text in ("inf", "-inf"):
        return (axis.ends if axis is not None else _NUMBERS)[text == "inf"]
    return date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text)  # noqa: PLR2004 - YYYY-MM-DD
