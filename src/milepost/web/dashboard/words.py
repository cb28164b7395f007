"""Numbers and times as pages write them: 1,021,388 · 0.44 % · 118/s · 14 min 08 s · 12 s ago."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from milepost.codec import Codec
from milepost.errors import MilepostError

NONE = "\N{EN DASH}"
MINUTE, HOUR, DAY = 60, 3_600, 86_400
CAP = 10_000
"""Lists are counted so far; beyond it a page says 10,000+."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")


def count(number: float | None) -> str:
    """Write a whole number with commas; a dash for none."""
    return NONE if number is None else f"{number:,.0f}"


def capped(number: int, most: int = CAP) -> str:
    """Write a number that was counted only so far."""
    return f"{most:,}+" if number > most else f"{number:,}"


def short_count(number: float) -> str:
    """Write a number where there is little room: 1.02 M."""
    for bound, unit in ((1e9, "bn"), (1e6, "M")):
        if number >= bound:
            return f"{number / bound:.2f} {unit}"
    return count(number)


def percent(share: float | None) -> str:
    """Write a share: 0.44 %, 12 %."""
    if share is None:
        return NONE
    value = share * 100
    digits = 0 if value >= 10 or value == 0 else 1 if value >= 1 else 2  # noqa: PLR2004
    return f"{value:.{digits}f} %"


def rate(per_second: float) -> str:
    """Write how often something happens, in the unit that gives a readable number."""
    if per_second >= 10:  # noqa: PLR2004
        return f"{per_second:,.0f}/s"
    if per_second >= 1:
        return f"{per_second:.1f}/s"
    if per_second * MINUTE >= 1:
        return f"{per_second * MINUTE:.0f}/min"
    if per_second * HOUR >= 1:
        return f"{per_second * HOUR:.0f}/h"
    return "0" if not per_second else f"{per_second * DAY:.0f}/d"


def parts_of_duration(seconds: float) -> list[tuple[str, str]]:
    """Split a duration into numbers and units, the two largest: [("14", "min"), ("08", "s")]."""
    seconds = max(0.0, seconds)
    if seconds < 0.0005:  # noqa: PLR2004
        return [("0", "ms")]
    if seconds < 0.9995:  # noqa: PLR2004
        millis = seconds * 1000
        return [(f"{millis:.1f}" if millis < 9.95 else f"{millis:.0f}", "ms")]  # noqa: PLR2004
    if seconds < 59.95:  # noqa: PLR2004
        return [(f"{seconds:.1f}".removesuffix(".0"), "s")]
    whole = round(seconds)
    for size, unit, lower, least in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min")):
        if whole >= size:
            return [(f"{whole // size:,}", unit), (str(whole % size // lower), least)]
    return [(str(whole // MINUTE), "min"), (f"{whole % MINUTE:02d}", "s")]


def duration(seconds: float | None) -> str:
    """Write a duration: 38 ms, 1.9 s, 14 min 08 s, 1 d 4 h; a dash for none."""
    if seconds is None:
        return NONE
    return " ".join(f"{number} {unit}" for number, unit in parts_of_duration(seconds))


def span(seconds: float) -> str:
    """Write a duration that somebody chose: 1 h rather than 1 h 0 min."""
    return duration(seconds).removesuffix(" 0 h").removesuffix(" 0 min").removesuffix(" 00 s")


def seconds(number: float) -> str:
    """Write a power of ten of an axis: 10 ms, 100 s."""
    return f"{number:g} s" if number >= 1 else f"{number * 1000:g} ms"


def ago(passed: float) -> str:
    """Write how long ago something was, or how soon it will be."""
    if abs(passed) < 1:
        return "now"
    whole = abs(passed)
    for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1, "s")):
        if whole >= size:
            text = f"{whole // size:,.0f} {unit}"
            return f"in {text}" if passed < 0 else f"{text} ago"
    return "now"


def clock(at: datetime | None, *, seconds: bool = True) -> str:
    """Write a time of day, in UTC as the store has it."""
    if at is None:
        return NONE
    return at.astimezone(UTC).strftime("%H:%M:%S" if seconds else "%H:%M")


def absolute(at: datetime) -> str:
    """Write a time with its date and zone."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at: datetime) -> str:
    """Write a time for `<time datetime=…>`."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds")


def size(number: float) -> str:
    """Write a number of bytes."""
    for bound, unit in ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if number >= bound:
            return f"{number / bound:.1f} {unit}"
    return f"{number:.0f} B"


def plural(number: float, one: str, many: str | None = None) -> str:
    """Write a number and its noun."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def visible(text: object) -> str:
    """Show characters that would act on the text around them, as commands print them."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def cut(text: object, most: int) -> str:
    """Shorten a text to one line of so many characters."""
    line = " ".join(str(text)[: most * 4].split())
    return visible(line if len(line) <= most else line[: most - 1] + "…")


def arguments(args: Sequence[Any], kwargs: dict[str, Any], most: int = 120) -> str:
    """Write a call's arguments in a line: order="A-20418", amount=4990."""
    words = [_value(value) for value in args]
    words += [f"{name}={_value(value)}" for name, value in kwargs.items()]
    return cut(", ".join(words), most)


def _value(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()[:400]
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(value)[:400]


def stored_arguments(codec: Codec, data: bytes | None, most: int) -> str:
    """Write stored arguments in a line; where they cannot be read, nothing."""
    found = decoded(codec, data)
    if isinstance(found, dict) and all(isinstance(name, str) for name in found):
        return arguments((), found, most)
    return "" if found is None else arguments((found,), {}, most)


def pretty(codec: Codec, data: bytes | None, most: int = 20_000) -> str | None:
    """Write stored content as indented JSON, so far; None where there is none."""
    found = decoded(codec, data)
    if found is None:
        return None
    text = msgspec.json.format(msgspec.json.encode(found, enc_hook=repr), indent=2).decode()
    return text if len(text) <= most else f"{text[:most]}…"


def decoded(codec: Codec, data: bytes | None) -> Any:
    """Read stored content; None where there is none, or it cannot be read."""
    try:
        return None if data is None else codec.decode(data)
    except (MilepostError, ValueError, TypeError):
        return None


def short_place(place: str) -> str:
    """Leave the folders of a place in code out: its file, line and function are what fits."""
    file, found, function = place.partition(" in ")
    return file.rpartition("/")[2] + found + function


def short_id(subject_id: str) -> str:
    """Write an id where there is little room; the whole one is in the title."""
    return f"{subject_id[:8]}…{subject_id[-4:]}"
