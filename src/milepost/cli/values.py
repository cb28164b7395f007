"""Values from a prompt: JSON where it parses, else a string; names with values."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from milepost.cli.groups import did_you_mean
from milepost.errors import Invalid

OPENS = ("{", "[", '"')
_TEXT_WANTED = re.compile(r"Expected `str\b")


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


def document(text: str) -> Any:
    """Read a JSON document; a plain word may stand for itself, a broken document may not."""
    if broken := _broken(text):
        raise Invalid(f"the parameters {text!r} are no JSON: {broken}")
    return value(text)


def _broken(text: str) -> str | None:
    """Say where something that was meant as JSON does not parse."""
    if not text.lstrip().startswith(OPENS):
        return None
    try:
        json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        return str(error)
    return None


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")  # whatever Python says


def no_such(kind: str, word: str, known: Iterable[str]) -> Invalid:
    """Say that nothing has that name, and what was perhaps meant."""
    names = list(known)
    guess = did_you_mean(word, names) or f" Declared: {', '.join(names) or 'none'}."
    return Invalid(f"no {kind} is called {word!r}.{guess}")


def advice(complaint: str, given: Mapping[str, str], known: Iterable[str]) -> str:
    """Say what to type instead, where the complaint is about how a value was typed."""
    names = list(known)
    for name, text in given.items():
        if name not in names:
            return f".{guess}" if (guess := did_you_mean(name, names)) else ""
        if not re.search(rf"\$\.{re.escape(name)}\b|\b{re.escape(name)}: ", complaint):
            continue
        if broken := _broken(text):
            return f"; {text} was read as a text, because it is no JSON: {broken}"
        if _TEXT_WANTED.search(complaint) and not isinstance(value(text), str):
            return f"; {text} was read as JSON, and as a text it is '{json.dumps(text)}'"
    return ""
