"""The part of JSON path that replies are read by: a fixed way through names and places.

`$` is the whole answer, `.name` or `['any name']` a member, `[0]` a place, `[-1]` the last one.
There are no wildcards, filters or slices: a rule that may find several values cannot be judged.
"""

import re
from functools import cache
from typing import Any

from milepost.errors import Invalid

MISSING: Any = object()
"""What a path leads to where there is nothing; null is something."""

_STEP = re.compile(
    r"\.(?P<name>[A-Za-z_][\w-]*)"
    r"|\[(?P<place>-?[0-9]{1,9})\]"
    r"|\['(?P<single>[^']*)'\]"
    r'|\["(?P<double>[^"]*)"\]'
)


@cache
def check_path(path: str) -> tuple[str | int, ...]:
    """Read a path into its steps, or raise `Invalid` saying what one looks like."""
    steps: list[str | int] = []
    place = 1
    if not isinstance(path, str) or not path.startswith("$"):
        raise Invalid(f"{path!r} is no path: it begins with $, as in $.status or $.items[0].state")
    while place < len(path):
        match = _STEP.match(path, place)
        if match is None:
            raise Invalid(
                f"{path!r}: {path[place:]!r} is not understood; a path has .name, ['a name'] and "
                "[0], and nothing that could find several values"
            )
        steps.append(_step(match))
        place = match.end()
    return tuple(steps)


def _step(match: re.Match[str]) -> str | int:
    if match["place"] is not None:
        return int(match["place"])
    return next(text for text in match.group("name", "single", "double") if text is not None)


def found(path: str, value: Any) -> Any:
    """Follow a path; `MISSING` where it leads nowhere."""
    for step in check_path(path):
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return MISSING
        elif not isinstance(value, list) or not -len(value) <= step < len(value):
            return MISSING
        value = value[step]
    return value
