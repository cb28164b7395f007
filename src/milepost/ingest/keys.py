"""Keys that partitions are cut by: numbers, times or days; how they are cut, and written down."""

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

from milepost.errors import Invalid

__all__ = ["Axis", "axis_of", "read", "written"]

LOWEST, HIGHEST = -math.inf, math.inf
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = datetime(1, 1, 2, tzinfo=UTC)
LAST = datetime(9999, 12, 30, tzinfo=UTC)
DAY_SECONDS = 86_400.0


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
        if self.kind == "time":
            return _time(place)
        if self.kind == "date":
            return _day(place)
        if math.isinf(place):
            return place
        return math.ceil(place) if self.kind == "int" else place

    def place(self, key: Any) -> float:
        """Turn a key into a position."""
        if isinstance(key, datetime):
            return ((key if key.tzinfo else key.replace(tzinfo=UTC)) - _EPOCH).total_seconds()
        if isinstance(key, date):
            return float(key.toordinal() - _EPOCH.toordinal())
        return float(key)


def _time(place: float) -> datetime:
    if place == LOWEST:
        return FIRST
    if place == HIGHEST:
        return LAST
    return _EPOCH + timedelta(seconds=place)


def _day(place: float) -> date:
    if math.isinf(place):
        return _time(place).date()
    return date.fromordinal(_EPOCH.toordinal() + math.ceil(place))


def axis_of(type_: Any, bounds: tuple[Any, Any] | None) -> Axis:
    """Choose how keys are cut, by what the source says they lie between or by their type."""
    if bounds is not None:
        return Axis(_kind_of(bounds[0], bounds[1]), bounds)
    for kind, classes in (("time", datetime), ("date", date), ("int", int), ("float", float)):
        if isinstance(type_, type) and issubclass(type_, classes) and type_ is not bool:
            return Axis(kind)
    return Axis("number")


def _kind_of(low: Any, high: Any) -> str:
    if isinstance(low, datetime) and isinstance(high, datetime):
        return "time"
    if isinstance(low, date) and isinstance(high, date):
        return "date"
    if isinstance(low, int) and isinstance(high, int):
        return "int"
    if isinstance(low, int | float) and isinstance(high, int | float):
        return "float"
    raise Invalid(f"bounds=({low!r}, {high!r}) must be two numbers, two times or two days")


def written(key: Any) -> Any:
    """Write a bound as JSON holds it."""
    if isinstance(key, float) and math.isinf(key):
        return "inf" if key > 0 else "-inf"
    if isinstance(key, date):  # a datetime is one too
        return key.isoformat()
    return key


def read(text: Any) -> Any:
    """Read a bound back."""
    if not isinstance(text, str):
        return text
    if text in ("inf", "-inf"):
        return float(text)
    return date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text)  # noqa: PLR2004 - YYYY-MM-DD
