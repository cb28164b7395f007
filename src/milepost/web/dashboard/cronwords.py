"""Cron lines in words: `30 6 * * 1-5` is "at 06:30, Monday to Friday"."""

import re
from collections.abc import Iterable

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_DAY_NAMES = {name[:3].lower(): number for number, name in enumerate(DAYS[:7])}
_MONTH_NAMES = {name[:3].lower(): number for number, name in enumerate(MONTHS, start=1)}
TIMES_MOST = 4
"""How many times of a day are listed; a line with more of them is shown as it is."""


def told(cron: str) -> str | None:
    """Say when a line fires, without its zone; None for a line that has no short words."""
    try:
        minute, hour, day, month, weekday = cron.lower().split()
        when, days = _time(minute, hour), _days(day, month, weekday)
    except (ValueError, LookupError):
        return None
    if not days and when.startswith("at "):
        days = "every day"
    return f"{when}, {days}" if days else when


def _time(minute: str, hour: str) -> str:
    if hour == "*":
        if minute == "*":
            return "every minute"
        if step := _step(minute):
            return f"every {step} minutes"
        return "every hour at " + _listed([f":{number:02d}" for number in _numbers(minute, 59)])
    if (step := _step(hour)) and minute.isdecimal():
        return f"every {step} hours at :{int(minute):02d}"
    times = [f"{at:02d}:{past:02d}" for at in _numbers(hour, 23) for past in _numbers(minute, 59)]
    if len(times) > TIMES_MOST:
        raise ValueError(times)
    return "at " + _listed(times)


def _days(day: str, month: str, weekday: str) -> str:
    parts = []
    if weekday != "*":
        parts.append(_named(weekday, DAYS, _DAY_NAMES))
    if day != "*":
        if parts:
            parts.append("or")
        which = "the last day" if day == "l" else "day " + _listed(map(str, _numbers(day, 31)))
        parts.append(f"on {which} of " + ("the month" if month == "*" else ""))
    if month != "*":
        names = _named(month, ("", *MONTHS), _MONTH_NAMES)
        parts.append(names if day != "*" else f"in {names}")
    return " ".join(part.strip() for part in parts)


def _step(field: str) -> int | None:
    found = re.fullmatch(r"\*/(\d+)", field)
    return int(found[1]) if found and int(found[1]) > 1 else None


def _numbers(field: str, most: int) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", field):
        raise ValueError(field)
    found = sorted({int(part) for part in field.split(",")})
    if found[-1] > most:
        raise ValueError(field)
    return found


def _named(field: str, names: tuple[str, ...], short: dict[str, int]) -> str:
    """Name days or months: one, a list of them, or a range."""

    def name(word: str) -> str:
        return names[short[word] if word in short else int(word)]

    if field.count("-") == 1 and "," not in field:
        first, _, last = field.partition("-")
        return f"{name(first)} to {name(last)}"
    return _listed([name(word) for word in field.split(",")])


def _listed(items: Iterable[str]) -> str:
    *others, last = items
    return f"{', '.join(others)} and {last}" if others else last
