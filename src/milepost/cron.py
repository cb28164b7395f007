"""Cron lines in time zones: when a schedule fires, and the slots it makes up for. Reads no clock.

A line that names its hours and minutes ("30 2 * * *") means so many fires a day, as Debian's cron
has it: a time that the clocks skip fires once, right after they have skipped it, and a time that
comes twice fires the first time. A line whose minute or hour begins with a star ("*/30 * * * *")
means the passing of time: it fires whenever the wall clock shows a time that fits, never for a time
that is skipped and both times for one that comes twice.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from milepost.errors import Invalid

if TYPE_CHECKING:
    from cronsim import CronSim

LATE_SECONDS = 60
"""A slot that was not fired within this time is missed; `MissedPolicy` decides on it."""

MADE_UP_MOST = 100
"""How many missed slots `MissedPolicy.ALL` makes up for at once; older ones are dropped."""

FIELDS = 5
SECOND = timedelta(seconds=1)
NEAR = timedelta(days=2)
"""Shorter than the time between two changes of any zone's offset, longer than any such change."""


class MissedPolicy(StrEnum):
    """The policy for slots that passed while no scheduler ran."""

    SKIP = "skip"  # nothing
    LAST = "last"  # the last of them fires, once
    ALL = "all"  # each fires, up to a limit

    @classmethod
    def named(cls, word: str) -> "MissedPolicy":
        """Read the word, or say which there are."""
        try:
            return cls(word)
        except ValueError:
            known = ", ".join(repr(missed.value) for missed in cls)
            raise Invalid(f"missed={word!r} must be one of {known}") from None


class CronLine(msgspec.Struct, frozen=True):
    """A cron line in a time zone; refused, when it is made, unless it will ever fire."""

    cron: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        """Refuse a line that is invalid, or never fires."""
        if not isinstance(self.cron, str) or len(self.cron.split()) != FIELDS:
            raise Invalid(
                f"cron line {self.cron!r} must have five fields: "
                "minute, hour, day of month, month, day of week"
            )
        if next(_walls(self.cron, datetime(2000, 1, 1, tzinfo=self._zone)), None) is None:
            raise Invalid(f"cron line {self.cron!r} never fires")

    @property
    def _zone(self) -> tzinfo:
        from zoneinfo import ZoneInfo  # noqa: PLC0415 - only schedules need it

        try:
            return ZoneInfo(self.zone)
        except (KeyError, ValueError, TypeError, OSError) as error:
            raise Invalid(
                f"there is no time zone {self.zone!r} here; expected a name such as Europe/Berlin "
                "(where the system has none, install the package tzdata)"
            ) from error

    def local(self, moment: datetime) -> datetime:
        """Convert to the wall clock of the zone."""
        return moment.astimezone(self._zone)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the slots after a moment, in order, without end, in UTC."""
        minute, hour, *_ = self.cron.split()
        counts_time = minute.startswith("*") or hour.startswith("*")
        find = _next_passing if counts_time else _next_of_the_day
        slot = moment.astimezone(UTC)
        while True:
            slot = find(self.cron, self._zone, slot)
            yield slot

    def between(self, first: datetime, last: datetime) -> list[datetime]:
        """List the slots from `first` to `last`, both included."""
        found = []
        for slot in self.after(first - SECOND):
            if slot > last:
                break
            found.append(slot)
        return found

    def latest(self, first: datetime, last: datetime, *, most: int) -> list[datetime]:
        """List the latest slots from `first` to `last`, without a walk over all of them."""
        window = timedelta(hours=1)
        while (start := last - window) > first:
            if len(found := self.between(start, last)) >= most:
                return found[-most:]
            window *= 2
        return self.between(first, last)[-most:]


def _next_of_the_day(cron: str, zone: tzinfo, after: datetime) -> datetime:
    """Find the next slot of a line that names its hours and minutes."""
    walls = _walls(cron, after.astimezone(zone))
    # While a time comes the second time, its first coming lies behind us.
    while (slot := next(walls).astimezone(UTC)) <= after:
        pass
    return slot


def _next_passing(cron: str, zone: tzinfo, after: datetime) -> datetime:
    """Find the next slot of a line that counts the passing of time.

    Between two changes of the zone's offset the wall clock is UTC, shifted. So the line is read in
    that shift, and where the offset changes before the slot comes, read again from the change on.
    """
    offset = _offset(zone, after)
    while True:
        wall = next(_walls(cron, (after + offset).replace(tzinfo=None)))
        slot = wall.replace(tzinfo=UTC) - offset
        near = min(slot, after + NEAR)
        if _offset(zone, near) != offset:
            change = _change(zone, after, near)  # a time that was shown may come again
            after, offset = change - SECOND, _offset(zone, change)
        elif near < slot:
            after = slot - NEAR  # nothing fires until then, whatever the offsets between
            offset = _offset(zone, after)
        else:
            return slot


def _walls(cron: str, after: datetime) -> "CronSim":
    """Iterate over the wall clock's times at which a line fires."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only schedules need it

    try:
        return CronSim(cron, after)
    except (CronSimError, ValueError, TypeError, AssertionError) as error:
        raise Invalid(f"cron line {cron!r} cannot be read: {error}") from error


def _offset(zone: tzinfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _change(zone: tzinfo, before: datetime, behind: datetime) -> datetime:
    """Find the second at which the offset changes between two moments."""
    offset = _offset(zone, before)
    before = before.replace(microsecond=0)
    while behind - before > SECOND:
        middle = before + timedelta(seconds=(behind - before) // SECOND // 2)
        if _offset(zone, middle) == offset:
            before = middle
        else:
            behind = middle
    return behind


def due(
    line: CronLine, missed: MissedPolicy, *, first: datetime, now: datetime
) -> tuple[list[datetime], datetime]:
    """Say which slots from `first` on fire now, and which comes next.

    Slots that are on time always fire. Those that are late were missed: dropped (`skip`), dropped
    but for the last where no slot is on time (`last`), or made up for (`all`).
    """
    on_time = line.between(max(first, now - timedelta(seconds=LATE_SECONDS)), now)
    following = next(line.after(now))
    if missed == MissedPolicy.SKIP or (missed == MissedPolicy.LAST and on_time):
        return on_time, following
    most = 1 if missed == MissedPolicy.LAST else MADE_UP_MOST
    return line.latest(first, now, most=most), following
