"""Paths that hold names: a name may have slashes, written as %2F or as they are.

A server decodes a path before it is matched, so that `%2F` would part it like any other slash. Here
an encoded slash stays part of the name it stands in: `/v1/limits/eu%2Fchanges` is the limit
`eu/changes`, and `/v1/limits/eu/changes` are the changes of the limit `eu`.
"""

import re
from typing import Any
from urllib.parse import quote, unquote

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Scope

NAMES = ("name", "fingerprint")
"""The parts of a path that may have slashes."""

SLASH = "\udc2f"
"""An encoded slash, in a path that is matched: no path decodes to it."""

_ENCODED = re.compile("%2f", re.IGNORECASE)
_SEGMENT = r"[^/]+"
_ANYTHING = r"[\s\S]+"


def matched_path(scope: Scope) -> str:
    """Return the decoded path, with `SLASH` for each slash that was encoded."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if b"%2F" not in raw and b"%2f" not in raw:
        return path
    pieces = _ENCODED.split(raw.partition(b"?")[0].decode("latin-1"))
    marked = SLASH.join(map(unquote, pieces))
    # It is of no use where something on the way has changed the path, and not what was sent.
    return marked if marked.replace(SLASH, "/") == path else path


def encoded_path(scope: Scope) -> str:
    """Write the path as an address has it, with slashes encoded where they were."""
    return "%2F".join(map(quote, matched_path(scope).split(SLASH)))


class NamedRoute(APIRoute):
    """A route that takes any name: `{name}` in its path may have slashes.

    Where a slash as it stands could part a path in two ways, the route that is declared first
    answers: declare `/things/{name}/parts` before `/things/{name}`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        pattern = self.path_regex.pattern
        for name in NAMES:
            pattern = pattern.replace(f"(?P<{name}>{_SEGMENT})", f"(?P<{name}>{_ANYTHING})")
        self.path_regex = re.compile(pattern)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path in which an encoded slash parts nothing."""
        if scope["type"] != "http" or SLASH not in (path := matched_path(scope)):
            return super().matches(scope)
        match, found = super().matches({**scope, "path": path})
        if match is not Match.NONE:
            values = found["path_params"].items()
            found["path_params"] = {name: value.replace(SLASH, "/") for name, value in values}
        return match, found
