"""Values from a prompt: JSON where it parses, else a string; names with values."""

import json
from typing import Any

from milepost.errors import Invalid

__all__ = ["pairs", "quoting", "value"]


def pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """Take NAME=VALUE apart, or say what was expected."""
    found = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise Invalid(f"{option} {pair!r}: expected NAME=VALUE")
        found[name] = text
    return found


def value(text: str) -> Any:
    """Read JSON where it parses; anything else is a string."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return text


def _refused(word: str) -> Any:
    raise ValueError(word)  # NaN and Infinity are no JSON, whatever Python says


def quoting(given: tuple[str, ...]) -> str:
    """Say how to pass a text that looks like something else, where that may be what is wrong."""
    for text in given:
        given_text = text.partition("=")[2] or text
        if not isinstance(value(given_text), str):
            as_text = json.dumps(given_text)
            return f"; {given_text} was read as JSON, and as a text it is '{as_text}'"
    return ""
