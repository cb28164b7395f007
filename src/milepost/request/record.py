"""What is written down of a request and its replies: capped, and without secrets (H-105).

Known secrets are taken out twice: by the name they stand under, and wherever their value turns up
again, for a server may repeat in its answer what it was sent.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec

from milepost.request.guard import Refused, Target, parse
from milepost.request.hide import Hider
from milepost.request.secrets import without_names

HIDDEN = "[redacted]"
SHORTEST = 4
"""A value that short cannot be looked for without hiding half of the text."""
_SECRET = re.compile(
    r"authorization|authenticat|cookie|token|secret|passw|pwd|apikey|accesskey|privatekey"
    r"|credential|session|signature|bearer|jwt|^sig$|^auth$|^key$"
)
_LOOSE = re.compile(r"[^a-z0-9]")
Headers = Iterable[tuple[str, str]]


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    return _LOOSE.sub("", name.lower())


@lru_cache(maxsize=1024)
def _is_secret(plain: str) -> bool:
    return _SECRET.search(plain) is not None


class Recorder:
    """Makes notes of what was sent and what came back."""

    def __init__(self, *, names: Iterable[str] = (), most: int = 16 * 1024) -> None:
        """Take more names under which secrets stand, and how much of a body is kept."""
        self._names = frozenset(_plain(name) for name in names)
        self._most = most

    def is_secret(self, name: str) -> bool:
        """Tell whether something of this name is never written down."""
        plain = _plain(name)
        return _is_secret(plain) or plain in self._names

    def scrubber(self, headers: Mapping[str, str], target: Target, *more: str | None) -> "Scrubber":
        """Know the secrets of one request by their values."""
        values = [value for value in more if value]
        values += [value for name, value in headers.items() if self.is_secret(name)]
        values += [target.credentials] if target.credentials else []
        query = parse_qsl(target.path.partition("?")[2], keep_blank_values=True)
        values += [value for name, value in query if self.is_secret(name)]
        return Scrubber(values)

    def url(self, target: Target) -> str:
        """Show a URL: without credentials, and with what is secret in its query taken out."""
        _, mark, query = target.path.partition("?")
        if not mark:
            return target.shown
        pairs = parse_qsl(query, keep_blank_values=True)
        told = [(name, HIDDEN if self.is_secret(name) else value) for name, value in pairs]
        return f"{target.shown}?{urlencode(told, safe='[]{}:')}"

    def headers(self, headers: Headers) -> dict[str, str]:
        """Show headers; of one that came several times, all values."""
        shown: dict[str, str] = {}
        for name, value in headers:
            told = HIDDEN if self.is_secret(name) else value
            shown[name] = f"{shown[name]}, {told}" if name in shown else told
        return shown

    def body(self, content: bytes, kind: str) -> dict[str, Any]:
        """Show a body as what it is: JSON, a text, or bytes; cut where it is too long."""
        if not content:
            return {}
        if len(content) > self._most:
            kept = _readable(content[: self._most], cut=True)
            return {**kept, "bytes": len(content), "cut": True}
        if "json" in kind or content[:1] in b"{[":
            try:
                return {"json": self._without_secrets(msgspec.json.decode(content))}
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                pass
        if "x-www-form-urlencoded" in kind:
            pairs = parse_qsl(content.decode(errors="replace"), keep_blank_values=True)
            return {"form": {n: HIDDEN if self.is_secret(n) else v for n, v in pairs}}
        return _readable(content)

    def _without_secrets(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                name: HIDDEN if self.is_secret(name) else self._without_secrets(item)
                for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._without_secrets(item) for item in value]
        return value


def _readable(content: bytes, *, cut: bool = False) -> dict[str, Any]:
    """Show bytes as a text where they are one; what no text can hold stays as it was."""
    size = len(content)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        # A character may have been cut in two at the end.
        text = content[: error.start].decode() if cut and error.start >= size - 3 else "\0"
    if "\0" in text:
        return {"base64": base64.b64encode(content).decode(), "bytes": size}
    return {"text": text, "bytes": size}


class Scrubber:
    """Takes known secrets out of texts, wherever they turn up."""

    def __init__(self, values: Iterable[str]) -> None:
        # What names a secret is none.
        bare = [without_names(value) for value in values]
        parts = {part for value in bare for part in (value, *value.split())}
        words = sorted((p for p in parts if len(p) >= SHORTEST), key=len, reverse=True)
        # A scheme such as "Basic" is no secret.
        words = [word for word in words if word.lower() not in ("basic", "bearer", "digest")]
        self._hider = Hider(dict.fromkeys(words, HIDDEN))

    def text(self, text: str) -> str:
        """Take them out of a text."""
        return self._hider.text(text)

    def note(self, phase: str, told: Mapping[str, Any]) -> str:
        """Write a note as the journal keeps it; its phase stands first."""
        text = msgspec.json.encode({"phase": phase, **told}).decode()
        hidden = self.text(text)
        if hidden == text or _is_json(hidden):
            return hidden
        # Numbers in a row may spell a secret, and what hides them is none.
        return msgspec.json.encode({"phase": phase, "text": hidden}).decode()


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


SHOWN = frozenset({"request", "request.final", "requests"})
"""Kinds whose payloads are requests."""


def shown(kind: str, arguments: Any, names: Iterable[str]) -> Any:
    """Show what a job was given: of a request, without its secrets; they are for sending alone.

    `names` are the settings' own, under which secrets stand too.
    """
    if kind not in SHOWN:
        return arguments
    value = msgspec.json.decode(arguments) if isinstance(arguments, msgspec.Raw) else arguments
    return _masked(value, Recorder(names=names))


def _masked(value: Any, recorder: Recorder) -> Any:
    if isinstance(value, list):
        return [_masked(item, recorder) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: _masked_member(name, item, recorder) for name, item in value.items()}


def _masked_member(name: str, item: Any, recorder: Recorder) -> Any:
    if recorder.is_secret(name) or (name == "callback" and isinstance(item, str)):
        return HIDDEN
    if name == "url" and isinstance(item, str):
        try:
            return recorder.url(parse(item))
        except Refused:
            return HIDDEN
    return _masked(item, recorder)
