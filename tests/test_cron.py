"""Cron lines in time zones: the slots, and what is made up for, against a walk minute by minute."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import example, given, settings
from hypothesis import strategies as st

from milepost.cron import LATE_SECONDS, MADE_UP_MOST, CronLine, MissedPolicy, due
from milepost.errors import Invalid

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
CHANGES = [
    ("Europe/Berlin", datetime(2027, 3, 28, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2027, 10, 31, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),  # half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Asia/Beirut", datetime(2026, 3, 28, 22, tzinfo=UTC)),  # midnight is skipped
    ("Asia/Beirut", datetime(2026, 10, 24, 21, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 11, 4, 3, tzinfo=UTC)),  # likewise, while it still did
    ("America/Sao_Paulo", datetime(2019, 2, 17, 2, tzinfo=UTC)),
    ("Antarctica/Troll", datetime(2026, 10, 25, 1, tzinfo=UTC)),  # two hours
    ("Africa/Casablanca", datetime(2026, 2, 15, 2, tzinfo=UTC)),  # back in winter's place
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),  # a whole day is skipped
    ("UTC", datetime(2026, 1, 1, tzinfo=UTC)),
]

# The walks are long; how long is nobody's business here.
unhurried = settings(deadline=None, max_examples=40, database=None)
changes = st.sampled_from(CHANGES)
minutes = st.sampled_from(["*", "*/15", "*/7", "0", "30", "5,45", "0-20/10"])
hours = st.sampled_from(["*", "*/2", "0", "1", "2", "1-3", "23", "0,2"])
days = st.sampled_from(["*", "*/2", "1-15"])
seconds = st.integers(0, 40 * 3600)


@cache
def read(cron: str) -> CronSim:
    return CronSim(cron, datetime(2000, 1, 1))  # noqa: DTZ001 - read for its fields alone


def fits(cron: str, wall: datetime) -> bool:
    fields = read(cron)
    shown = wall.minute in fields.minutes and wall.hour in fields.hours
    return shown and wall.month in fields.months and fields.match_day(wall.date())


def walked(cron: str, zone: str, first: datetime, last: datetime) -> list[datetime]:
    """Every minute at which the wall clock shows a time that fits."""
    moment = first.replace(second=0, microsecond=0)
    moment += MINUTE if moment < first else timedelta(0)
    found = []
    while moment <= last:
        if fits(cron, moment.astimezone(ZoneInfo(zone))):
            found.append(moment)
        moment += MINUTE
    return found


def once_a_day(cron: str, zone: str, first: datetime, last: datetime) -> list[datetime]:
    """Every time of the calendar that fits, at its first coming, or right after it is skipped."""
    place = ZoneInfo(zone)
    wall = (first - 30 * HOUR).astimezone(place).replace(second=0, microsecond=0, tzinfo=None)
    found = set()
    while wall < (last + 30 * HOUR).astimezone(place).replace(tzinfo=None):
        if fits(cron, wall):
            shown = wall
            while not real(shown, place):
                shown += MINUTE
            found.add(shown.replace(tzinfo=place).astimezone(UTC))
        wall += MINUTE
    return sorted(slot for slot in found if first <= slot <= last)


def real(wall: datetime, place: ZoneInfo) -> bool:
    there = wall.replace(tzinfo=place).astimezone(UTC)
    return there.astimezone(place).replace(tzinfo=None) == wall


def expected(line: CronLine, first: datetime, last: datetime) -> list[datetime]:
    minute, hour, *_ = line.cron.split()
    passing = "*" in (minute[0], hour[0])
    return (walked if passing else once_a_day)(line.cron, line.zone, first, last)


@unhurried
@given(changes, minutes, hours, days, seconds)
@example(CHANGES[5], "*/15", "0", "*", 3600)
@example(CHANGES[1], "30", "2", "*", 7200)
@example(CHANGES[8], "*", "2", "1-15", 0)  # what comes again is the last before a long pause
def test_the_slots_around_a_change_of_the_clocks_are_those_of_a_walk(change, m, h, d, before):
    zone, at = change
    line = CronLine(f"{m} {h} {d} * *", zone)
    first, last = at - timedelta(seconds=before), at + 26 * HOUR
    assert line.between(first, last) == expected(line, first, last)


@unhurried
@given(changes, minutes, hours, seconds, st.integers(0, 59))
def test_slots_come_one_after_the_other_wherever_one_begins(change, m, h, before, odd):
    zone, at = change
    line = CronLine(f"{m} {h} * * *", zone)
    first = at - timedelta(seconds=before)
    slots = line.between(first, at + 26 * HOUR)
    assert slots == sorted(set(slots))
    for slot, following in pairwise(slots[:20]):
        between = min(slot + timedelta(seconds=odd), following - SECOND)
        assert next(line.after(slot)) == next(line.after(between)) == following


@unhurried
@given(changes, minutes, hours, seconds, st.integers(1, 200))
def test_the_latest_slots_are_found_without_walking_over_all(change, m, h, before, most):
    zone, at = change
    line = CronLine(f"{m} {h} * * *", zone)
    first, last = at - timedelta(seconds=before), at + 9 * HOUR
    assert line.latest(first, last, most=most) == line.between(first, last)[-most:]


@unhurried
@given(changes, minutes, hours, seconds, st.sampled_from(list(MissedPolicy)))
def test_what_fires_is_due_in_order_and_before_what_comes_next(change, m, h, outage, missed):
    zone, at = change
    line = CronLine(f"{m} {h} * * *", zone)
    first = next(line.after(at - timedelta(seconds=outage)))
    now = max(first, at)
    fired, following = due(line, missed, first=first, now=now)
    there = line.between(first, now)
    on_time = [slot for slot in there if now - slot <= timedelta(seconds=LATE_SECONDS)]
    assert following > now
    assert line.between(now + SECOND, following) == [following]
    assert (
        fired
        == {
            MissedPolicy.SKIP: on_time,
            MissedPolicy.LAST: on_time or there[-1:],
            MissedPolicy.ALL: there[-MADE_UP_MOST:],
        }[missed]
    )


def test_years_of_missed_minutes_are_bounded_and_found_at_once():
    line = CronLine("* * * * *", "Europe/Berlin")
    first, now = datetime(2020, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)
    fired, following = due(line, MissedPolicy.ALL, first=first, now=now)
    assert len(fired) == MADE_UP_MOST
    assert (fired[-1], following) == (now, now + MINUTE)
    assert due(line, MissedPolicy.LAST, first=first, now=now) == ([now - MINUTE, now], now + MINUTE)


@pytest.mark.parametrize(
    ("cron", "zone", "says"),
    [
        ("0 2 * *", "UTC", "must have five fields"),
        ("0 0 2 * * *", "UTC", "must have five fields"),
        ("61 2 * * *", "UTC", "cannot be read: Bad minute"),
        ("0 2 30 2 *", "UTC", "cannot be read: Bad day-of-month"),
        ("0 2 * 2 MON#9", "UTC", "cannot be read: Bad day-of-week"),
        (None, "UTC", "must have five fields"),
        ("0 2 * * *", "Europe/Atlantis", "no time zone 'Europe/Atlantis'"),
        ("0 2 * * *", "../etc", "no time zone"),
        ("0 2 * * *", None, "no time zone"),
    ],
)
def test_a_line_that_cannot_be_meant_is_refused(cron, zone, says):
    with pytest.raises(Invalid, match=says):
        CronLine(cron, zone)
