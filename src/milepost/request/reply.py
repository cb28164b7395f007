"""Reads replies: complete, pending, failed, worth another try, or malformed (C's RESPONSE)."""

import base64
import codecs
import email.utils
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

import msgspec

from milepost.codec import DEEPEST, nested_deeper
from milepost.errors import Invalid
from milepost.policy import Fail, Later
from milepost.request.declaration import Reply, Request
from milepost.request.paths import MISSING, found

AGAIN = frozenset({408, 425, 429})
"""Not now, say these and every 5xx; any other refusal would be repeated (H-92)."""
SHOWN = 200
FLOOR_MOST = 366 * 86_400
"""A server's wish goes over `max_delay`, and still no server parks a job for good."""
DIGITS_MOST = 20
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What reading JSON raises; bytes that are no UTF-8 are not a `DecodeError`."""
NO_CHARSETS = frozenset({"idna", "punycode"})
"""Spellings of names, not of texts: reading a long one takes minutes."""


class Answer(msgspec.Struct, frozen=True):
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    content: bytes = b""
    url: str = ""

    @property
    def kind(self) -> str:
        """What it says its content is, in lower case."""
        return self.headers.get("content-type", "").lower()

    @property
    def text(self) -> str:
        """The content as a text."""
        _, _, charset = self.kind.partition("charset=")
        try:
            named = codecs.lookup(charset.strip("\"' ;") or "utf-8").name
            if named not in NO_CHARSETS:
                return self.content.decode(named, errors="replace")
        except (LookupError, ValueError):
            pass
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """Read the content as JSON, or raise `Invalid`."""
        if nested_deeper(self.content, DEEPEST):
            raise Invalid(f"the reply's JSON is nested more than {DEEPEST} deep")
        try:
            return msgspec.json.decode(self.content)
        except UNREADABLE as error:
            raise Invalid(f"the reply is not JSON: {error}") from None

    @property
    def value(self) -> Any:
        """The content as a job's result: what its JSON says, a text, or bytes in base64."""
        if not self.content:
            return None
        if "json" in self.kind:
            return self.json()
        if self.kind.startswith("text/") or "xml" in self.kind:
            return self.text
        if not self.kind:
            return _guessed(self)
        return {"content_type": self.kind, "base64": base64.b64encode(self.content).decode()}

    @property
    def said(self) -> str:
        """Its status for people."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)


def _guessed(answer: Answer) -> Any:
    try:
        return answer.json()
    except Invalid:
        pass
    try:
        return answer.content.decode()
    except UnicodeDecodeError:
        return {"content_type": "", "base64": base64.b64encode(answer.content).decode()}


Judge = Callable[[Answer], Any]


class Verdict(msgspec.Struct, frozen=True):
    """What a reply means: `complete`, `pending`, `failed`, `again` or `malformed`, and why."""

    word: str
    reason: str = ""
    value: Any = None
    after: float | None = None
    code: str = ""


def judged(request: Request, answer: Answer, judges: Mapping[str, Judge]) -> Verdict:
    """Read a reply by the request's rules; one that cannot be read is malformed, whatever broke.

    An error would have the request sent again, and it was heard.
    """
    try:
        return _judged(request, answer, judges)
    except Exception as error:  # noqa: BLE001
        return _malformed(f"the reply could not be read: {type(error).__qualname__}: {error}")


def _judged(request: Request, answer: Answer, judges: Mapping[str, Judge]) -> Verdict:
    reply = request.reply or Reply()
    listed = _by_code(reply, answer) if reply.state is None and reply.by is None else None
    if listed is not None:
        return _worded(listed, reply, answer)
    if answer.status in AGAIN or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Verdict("again", f"answered {answer.said}", code=f"http_{answer.status}")
    if reply.by is not None:
        return _by_judge(reply.by, answer, judges)
    if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
        return Verdict("failed", _refusal(answer), code=f"http_{answer.status}")
    if reply.state is not None:
        return _by_state(reply, answer)
    pending = answer.status == HTTPStatus.ACCEPTED
    return _worded("pending" if pending else "complete", reply, answer)


def _refusal(answer: Answer) -> str:
    if answer.status < HTTPStatus.BAD_REQUEST:
        return f"answered {answer.said}, and redirects are not followed that far: see redirects="
    return f"answered {answer.said}"


def _by_code(reply: Reply, answer: Answer) -> str | None:
    words = (("complete", reply.complete), ("pending", reply.pending), ("failed", reply.failed))
    return next((word for word, codes in words if answer.status in codes), None)


def _by_state(reply: Reply, answer: Answer) -> Verdict:
    try:
        state = found(reply.state or "$", answer.json())
    except Invalid as error:
        return _malformed(str(error))
    if state is MISSING:
        return _malformed(f"the reply has nothing at {reply.state}")
    words = (("complete", reply.complete), ("pending", reply.pending), ("failed", reply.failed))
    for word, values in words:
        if any(type(value) is type(state) and value == state for value in values):
            return _worded(word, reply, answer)
    shown = repr(state)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
    return _malformed(f"the reply says {shown} at {reply.state}, which no rule of it knows")


def _worded(word: str, reply: Reply, answer: Answer) -> Verdict:
    if word == "pending":
        return Verdict(word, "the reply says pending")
    if word == "failed":
        return Verdict(word, _why(reply, answer), code="remote_failure")
    try:
        value = answer.value if reply.result is None else found(reply.result, answer.json())
    except Invalid as error:
        return _malformed(str(error))
    if value is MISSING:
        return _malformed(f"the reply has nothing at {reply.result}")
    return Verdict("complete", value=value)


def _why(reply: Reply, answer: Answer) -> str:
    told = f"answered {answer.said}, which says that it failed"
    if reply.error is None:
        return told
    try:
        said = found(reply.error, answer.json())
    except Invalid:
        return told
    return told if said is MISSING else f"it failed: {str(said)[: 5 * SHOWN]}"


def _by_judge(name: str, answer: Answer, judges: Mapping[str, Judge]) -> Verdict:
    if name not in judges:
        known = ", ".join(sorted(judges)) or "none"
        return _malformed(f"no reply function is called {name!r}; declared here: {known}")
    try:
        value = judges[name](answer)
    except Later as wish:
        value = wish
    except Fail as error:
        return Verdict("failed", str(error), code=error.code)
    except Exception as error:  # noqa: BLE001 - a reply that it cannot read is malformed
        return _malformed(f"{name} could not read the reply: {type(error).__qualname__}: {error}")
    if isinstance(value, Later):
        return Verdict("pending", wish_of(value), after=value.seconds)
    return Verdict("complete", value=value)


def wish_of(wish: Later) -> str:
    """Say what a function said that asked to be called later."""
    return wish.detail or "the reply says pending"


def _malformed(reason: str) -> Verdict:
    return Verdict("malformed", reason, code="malformed")


def retry_after(answer: Answer) -> float | None:
    """Read how long the server asks to be left alone; nonsense is not obeyed."""
    text = answer.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdecimal():
        # Python itself refuses to read thousands of digits.
        return float(min(int(text[:DIGITS_MOST]), FLOOR_MOST))
    try:
        until = email.utils.parsedate_to_datetime(text)
        # By the server's own clock where it tells, so that ours need not agree with it.
        dated = answer.headers.get("date")
        now = email.utils.parsedate_to_datetime(dated) if dated else datetime.now(UTC)
        return min(max(0.0, (until - now).total_seconds()), float(FLOOR_MOST))
    except (TypeError, ValueError, OverflowError):
        return None
