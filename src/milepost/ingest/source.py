"""What a user says of a source: how to count, fetch, map and enrich."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Generic, TypeVar

import msgspec

from milepost.codec import check_text
from milepost.errors import Invalid
from milepost.ingest.keys import is_open

Raw = TypeVar("Raw")
Record = TypeVar("Record")
Cursor = TypeVar("Cursor")

Bound = int | float | datetime | date
"""What a partition begins or ends with; the first begins, and the last ends, beyond everything."""


class Reject(Exception):  # noqa: N818 - what a mapping says, not what went wrong here
    """Raised by `map` or `enrich`: this record cannot be used; it goes into quarantine."""


class Gone(Exception):  # noqa: N818 - what a source says, not what went wrong here
    """A record was deleted: among the records of a page, or raised or returned by `map`.

    With a `version`, it is removed only if what is known of it is not newer.
    """

    def __init__(self, key: Any, version: Any = None) -> None:
        super().__init__(key)
        self.key = "" if key is None else str(key)
        self.version = None if version is None else stamp(version)


class Window(msgspec.Struct, frozen=True):
    """What changed when: from `start`, which belongs to it, up to `end`, which does not (H-72).

    A `start` of None is the beginning of time.
    """

    start: Any
    end: Any

    def covers(self, value: Any) -> bool:
        """Tell whether a record that changed then belongs to it."""
        return bool((self.start is None or self.start <= value) and value < self.end)


class Partition(msgspec.Struct, frozen=True):
    """A range of keys, `low` belonging to it and `high` not; both None for records without a key.

    `page` is how many records the pipeline would like in a page.
    """

    low: Any
    high: Any
    ordinal: int = 0
    estimate: int = 0
    page: int = 30

    @property
    def is_null(self) -> bool:
        """Whether it is the one for records whose key is NULL."""
        return self.low is None

    @property
    def is_first(self) -> bool:
        """Whether nothing lies before it; `low` compares so, in SQL leave its condition out."""
        return is_open(self.low)

    @property
    def is_last(self) -> bool:
        """Whether nothing lies after it; `high` compares so, in SQL leave its condition out."""
        return is_open(self.high)

    def covers(self, key: Any) -> bool:
        """Tell whether a record with that key belongs to it."""
        if key is None or self.is_null:
            return key is None and self.is_null
        return bool(self.low <= key < self.high)


class Page(msgspec.Struct, Generic[Raw, Cursor]):
    """Some records, and where the next page begins; `next` None is the end, and the only one."""

    records: Sequence[Raw]
    next: Cursor | None = None


class Source(Generic[Raw, Record, Cursor]):
    """A source of records: subclass it. Every method may be async."""

    nullable: bool = False
    """Whether there are records whose key is NULL: they get a partition of their own."""
    session: Any = None
    """What the last login returned, here or in another worker; None before the first."""
    bounds: tuple[Any, Any] | None = None
    """Between what the keys lie, if that is known: the plan needs fewer calls then."""

    def count(self, window: Window, low: Any, high: Any) -> Any:
        """Tell about how many records changed in the window and have a key from low up to high."""
        raise NotImplementedError(f"{type(self).__name__} has no count()")

    def fetch(self, window: Window, partition: Partition, cursor: Any) -> Any:
        """Read one page, in an order that does not change; the first has the cursor None."""
        raise NotImplementedError(f"{type(self).__name__} has no fetch()")

    def map(self, raw: Any) -> Any:
        """Turn what the source gave into a record of the target; raise `mp.Reject` if it cannot."""
        return raw

    def enrich(self, records: list[Any], rules: Any) -> Any:  # noqa: ARG002 - for subclasses
        """Add to mapped records what rules say, such as prices; the same number comes back."""
        return records

    def rules(self) -> Any:
        """Read the rules that a run is to use from its first record to its last (H-86)."""
        return None

    def upper_bound(self) -> Any:
        """Say up to where everything can be read: a time by the source's clock, or a number.

        Without one it is the store's clock, less the pipeline's margin.
        """
        return None

    def login(self) -> Any:
        """Get new credentials: called once, whoever was refused, and then the call is repeated.

        What it returns becomes `session` in every worker, by way of the store, where it is kept as
        the codec writes it. Return None to keep credentials out of there: each program logs in.
        """
        return None


class OffsetSource(Source[Raw, Record, int]):
    """A source that knows offsets only: its cursor is one, and an empty page is the end.

    `fetch` returns the records from there on, or a `Page` without `next`. Records move between
    offsets while they are read: a few of each page are read again, and a partition that gave fewer
    records than it counts is read again from its start .
    """

    again: int = 5
    """How many records of a page the next one repeats."""
    passes: int = 3
    """How often a partition is read at most."""


def page_of(source: Source[Any, Any, Any], answer: Any, cursor: Any) -> Page[Any, Any]:
    """Check what fetch gave, and say where an offset goes on."""
    if isinstance(source, OffsetSource):
        records = answer.records if isinstance(answer, Page) else answer
        return Page(_listed(source, records), _onward(source, len(records), cursor or 0))
    if not isinstance(answer, Page):
        raise Invalid(
            f"{type(source).__name__}.fetch() returned {type(answer).__name__}; return "
            "mp.Page(records, next), with next=None at the end"
        )
    return Page(_listed(source, answer.records), answer.next)


def _onward(source: OffsetSource[Any, Any], count: int, offset: int) -> int | None:
    if count == 0:
        return None
    return offset + (count - source.again if count > source.again else count)


def _listed(source: Source[Any, Any, Any], records: Any) -> Sequence[Any]:
    if isinstance(records, str | bytes) or not hasattr(records, "__iter__"):
        raise Invalid(f"{type(source).__name__}.fetch(): the records of a page are a list")
    return records if isinstance(records, list | tuple) else list(records)


Field = str | Callable[[Any], Any]
"""How a value is found in a raw record: the name of a field, or a function of the record."""
PLAIN_KEY_CHARACTERS = 100
SHOWN_CHARACTERS = 200
INTEGERS = range(-(2**63), 2**63)
"""What a database stores as a whole number."""


class Identity:
    """Reads a raw record's key and version, each by the name of a field or by a function."""

    def __init__(self, key: Field, version: Field | None) -> None:
        self._key = key
        self._version = version
        self.key_name = key if isinstance(key, str) else "its key"

    def __str__(self) -> str:
        told = {"key": self._key, "version": self._version}
        return " and ".join(f"{name}={_named(field)}" for name, field in told.items() if field)

    def key_of(self, raw: Any) -> str:
        """Read a record's key as a text, or raise `Reject`."""
        value = _found(raw, self._key)
        if value is None or value == "":
            raise Reject(f"it has no {self.key_name}, which is its key")
        try:
            text = str(value)
        except (RecursionError, ValueError) as error:  # nested too deep, or too many digits
            raise Reject(f"{self.key_name} cannot be a key: {error}") from error
        _check_key(text, self.key_name)
        return text

    def version_of(self, raw: Any) -> int:
        """Read a record's version as a number that grows, or raise `Reject`."""
        return 0 if self._version is None else stamp(_found(raw, self._version))


def _found(raw: Any, field: Field) -> Any:
    if isinstance(field, str):
        # A dict, as most are, is known by its type in a fraction of the time.
        is_mapping = type(raw) is dict or isinstance(raw, Mapping)
        return raw.get(field) if is_mapping else getattr(raw, field, None)
    try:
        return field(raw)
    except Exception as error:
        raise Reject(f"{_named(field)} raised {type(error).__name__}: {error}") from error


def _named(field: Field) -> str:
    return repr(field) if isinstance(field, str) else getattr(field, "__name__", "a function")


def _check_key(text: str, name: str) -> None:
    if text.startswith("?"):
        raise Reject(f"{name}={text[:40]!r} cannot be a key: it begins with ?")
    if len(text) > PLAIN_KEY_CHARACTERS or not text.isascii() or "\0" in text:
        try:
            check_text(text, what=name)
        except Invalid as error:
            raise Reject(str(error)) from error


def could_be_key(text: str) -> bool:
    """Tell whether a record can have that key: no other one was ever landed with it."""
    try:
        _check_key(text, "key")
    except Reject:
        return False
    return bool(text)


def stamp(value: Any) -> int:
    """Turn a record's version into a number that grows: a time, a number, a time as a text."""
    number = _number(_parsed(value) if isinstance(value, str) else value)
    if number is None or number not in INTEGERS:
        told = shown(value)[:SHOWN_CHARACTERS]
        raise Reject(f"{told} is no version: a time or a whole number of 64 bits is expected")
    return number


def shown(value: Any) -> str:
    """Spell a value for people, whatever it is."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - nested too deep, too many digits, its own mistake
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _number(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, datetime):
        return micros(value)
    if isinstance(value, float) and math.isfinite(value):
        return round(value * 1_000_000)
    return None


def _parsed(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise Reject(
            f"{text!r} is no time: as a text, a version is like 2024-01-16T02:00Z"
        ) from error


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(value: datetime) -> int:
    """Count the microseconds since 1970; a time without a zone is one of UTC."""
    span = (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
