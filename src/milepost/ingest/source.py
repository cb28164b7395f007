"""A source of records, as users subclass it: how to count, fetch, map and enrich."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from milepost.errors import Invalid
from milepost.ingest.keys import is_open
from milepost.store.watermarks import micros_of

Raw = TypeVar("Raw")
Record = TypeVar("Record")
Cursor = TypeVar("Cursor")


class Reject(Exception):  # noqa: N818 - a mapping's word, not an error here
    """Raised by `map` or `enrich`: this record cannot be used; it goes into quarantine."""


class Gone(Exception):  # noqa: N818 - a source's word, not an error here
    """A record was deleted: among the records of a page, or raised or returned by `map`.

    With a `version`, it is removed only if no newer one is known.
    """

    def __init__(self, key: Any, version: Any = None) -> None:
        super().__init__(key)
        self.key = "" if key is None else str(key)
        self.version = None if version is None else stamp(version)


class Window(msgspec.Struct, frozen=True):
    """A range of changes: from `start`, which belongs to it, up to `end`, which does not.

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
    """The result of the last login, here or in another worker; None before the first."""
    bounds: tuple[Any, Any] | None = None
    """The lowest and the highest key, if known: the plan needs fewer calls then."""

    def count(self, window: Window, low: Any, high: Any) -> Any:
        """Tell about how many records changed in the window and have a key from low up to high."""
        raise NotImplementedError(f"{type(self).__name__} has no count()")

    def fetch(self, window: Window, partition: Partition, cursor: Any) -> Any:
        """Read one page, in an order that does not change; the first has the cursor None."""
        raise NotImplementedError(f"{type(self).__name__} has no fetch()")

    def map(self, raw: Any) -> Any:
        """Turn a raw record into a record of the target; raise `mp.Reject` if it cannot be used."""
        return raw

    def enrich(self, records: list[Any], rules: Any) -> Any:  # noqa: ARG002 - for subclasses
        """Apply the rules to mapped records, such as prices; the same number comes back."""
        return records

    def rules(self) -> Any:
        """Read the rules that a run is to use from its first record to its last."""
        return None

    def upper_bound(self) -> Any:
        """Say up to where everything can be read: a time by the source's clock, or a number.

        Without one it is the store's clock, less the pipeline's margin.
        """
        return None

    def login(self) -> Any:
        """Get new credentials: called once for all refused callers, which then repeat their calls.

        Its result becomes `session` in every worker, by way of the store, where it is kept as
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
    """Check the answer of fetch, and tell where an offset goes on."""
    name, is_offset = type(source).__name__, isinstance(source, OffsetSource)
    if not isinstance(answer, Page) and not is_offset:
        raise Invalid(
            f"{name}.fetch() returned {type(answer).__name__}; return mp.Page(records, next), with "
            "next=None at the end"
        )
    records = answer.records if isinstance(answer, Page) else answer
    if isinstance(records, str | bytes) or not hasattr(records, "__iter__"):
        raise Invalid(f"{name}.fetch(): the records of a page are a list")
    records = records if isinstance(records, list | tuple) else list(records)
    if not isinstance(source, OffsetSource):
        return Page(records, answer.next)
    count, again = len(records), source.again
    step = count - again if count > again else count
    return Page(records, (cursor or 0) + step if count else None)


INTEGERS = range(-(2**63), 2**63)
"""The whole numbers that a database stores."""
SHOWN_CHARACTERS = 200


def stamp(value: Any) -> int:
    """Turn a record's version into a number that grows: a time, a number, a time as a text."""
    number = _number(_parsed(value) if isinstance(value, str) else value)
    if number is None or number not in INTEGERS:
        told = shown(value)[:SHOWN_CHARACTERS]
        raise Reject(f"{told} is no version: a time or a whole number of 64 bits is expected")
    return number


def shown(value: Any) -> str:
    """Spell any value for people."""
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


def micros(value: datetime) -> int:
    """Count the microseconds since 1970; a time without a zone is one of UTC."""
    return micros_of(value if value.tzinfo else value.replace(tzinfo=UTC))
