"""Reads replies: complete, pending, failed, worth another try, or malformed (C's RESPONSE).

The one place that says what a reply means, for an attempt and for a replay.
"""

import base64
import codecs
import email.utils
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import msgspec

from milepost import outcome, policy
from milepost.codec import DEEPEST, Codec, limited, nested_deeper
from milepost.errors import Invalid
from milepost.outcome import Outcome, Problem
from milepost.policy import Fail, Later, RetryPolicy, storable
from milepost.records import Claim
from milepost.request.declaration import MISSING, Reply, Request, follow_path

AGAIN = frozenset({408, 425, 429})
"""Not now, say these and every 5xx; any other refusal would be repeated (H-92)."""
PENDING = "the reply says pending"
SHOWN = 200
REASONS = ("detail", "message", "reason", "error", "error_description", "title")
FLOOR_MOST = 366 * 86_400
"""A server's wish goes over `max_delay`, and still no server parks a job for good."""
DIGITS_MOST = 20
MESSAGE_LIMIT = 2_000
UNREADABLE = (msgspec.DecodeError, UnicodeError, RecursionError)
"""Errors of reading JSON; bytes that are no UTF-8 are not a `DecodeError`."""
NO_CHARSETS = frozenset({"idna", "punycode"})
"""Spellings of names, not of texts: reading a long one takes minutes."""


class TooLarge(Invalid):
    """A reply, or its result, that is larger than the limit."""

    code = "too_large"


class Answer(msgspec.Struct, frozen=True):
    """A server's answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes = b""
    url: str = ""

    @property
    def kind(self) -> str:
        """Its content type, in lower case."""
        return self.headers.get("content-type", "").lower()

    @property
    def text(self) -> str:
        """The content as a text."""
        _, _, charset = self.kind.partition("charset=")
        with suppress(LookupError, ValueError):
            named = codecs.lookup(charset.strip("\"' ;") or "utf-8").name
            if named not in NO_CHARSETS:
                return self.content.decode(named, errors="replace")
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
        """The content as a job's result: a JSON value, a text, or bytes in base64."""
        if not self.content:
            return None
        if "json" in self.kind:
            return self.json()
        if self.kind.startswith("text/") or "xml" in self.kind:
            return self.text
        if not self.kind:
            with suppress(Invalid):
                return self.json()
            with suppress(UnicodeDecodeError):
                return self.content.decode()
        return {"content_type": self.kind, "base64": base64.b64encode(self.content).decode()}

    @property
    def said(self) -> str:
        """Its status for people."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return str(self.status)


Judge = Callable[[Answer], Any]


class Verdict(msgspec.Struct, frozen=True):
    """The meaning of a reply: `complete`, `pending`, `failed`, `again` or `malformed`, and why."""

    word: str
    reason: str = ""
    value: Any = None
    after: float | None = None
    code: str = ""
    is_plain: bool = False
    """Whether the reason says only how it was answered, and not yet why."""


def malformed(reason: str, *, code: str = "malformed") -> Verdict:
    """Give the verdict on a reply that cannot be used."""
    return Verdict("malformed", reason, code=code)


def judge_reply(request: Request, answer: Answer, judges: Mapping[str, Judge]) -> Verdict:
    """Read a reply by the request's rules; one that cannot be read is malformed, whatever broke.

    An error would have the request sent again, and it was heard.
    """
    try:
        verdict = _judge(request.reply or Reply(), answer, judges)
    except Invalid as error:
        return malformed(str(error))
    except Exception as error:  # noqa: BLE001
        return malformed(f"the reply could not be read: {type(error).__qualname__}: {error}")
    # A request that is not recorded keeps the remote's words out, but for those asked for.
    reason = _remote_reason(answer) if verdict.is_plain and request.record else None
    if reason is None:
        return verdict
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason}: {reason}")


def _judge(reply: Reply, answer: Answer, judges: Mapping[str, Judge]) -> Verdict:
    by_code = reply.state is None and reply.by is None
    if by_code and (listed := reply.word(answer.status)) is not None:
        return _verdict(listed, reply, answer)
    if answer.status in AGAIN or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        reason = f"answered {answer.said}"
        return Verdict("again", reason, code=f"http_{answer.status}", is_plain=True)
    if reply.by is not None:
        return _by_judge(reply.by, answer, judges)
    if not HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
        reason = f"answered {answer.said}"
        if answer.status < HTTPStatus.BAD_REQUEST:
            reason += ", and redirects are not followed that far: see redirects="
        return Verdict("failed", reason, code=f"http_{answer.status}", is_plain=True)
    if reply.state is not None:
        return _by_state(reply, answer)
    pending = answer.status == HTTPStatus.ACCEPTED
    return _verdict("pending" if pending else "complete", reply, answer)


def _by_state(reply: Reply, answer: Answer) -> Verdict:
    state = _read(reply.state or "$", answer)
    if (word := reply.word(state)) is not None:
        return _verdict(word, reply, answer)
    shown = repr(state)
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
    raise Invalid(f"the reply says {shown} at {reply.state}, which no rule of it knows")


def _read(path: str, answer: Answer) -> Any:
    value = follow_path(path, answer.json())
    if value is MISSING:
        raise Invalid(f"the reply has nothing at {path}")
    return value


def _verdict(word: str, reply: Reply, answer: Answer) -> Verdict:
    if word == "pending":
        return Verdict(word, PENDING)
    if word == "complete":
        value = answer.value if reply.result is None else _read(reply.result, answer)
        return Verdict(word, value=value)
    reason = f"answered {answer.said}, which says that it failed"
    if reply.error is not None:
        with suppress(Invalid):
            reason = f"it failed: {str(_read(reply.error, answer))[: 5 * SHOWN]}"
    return Verdict(word, reason, code="remote_failure", is_plain=reply.error is None)


def _remote_reason(answer: Answer) -> str | None:
    """Find the remote's own reason in the members that are usual for it (RFC 9457 and others)."""
    told: Any = None
    with suppress(Invalid):
        told = answer.json()
    for _ in range(2):  # {"error": {"message": …}} is usual too
        if isinstance(told, dict):
            told = next((told[name] for name in REASONS if told.get(name)), None)
    return told[: 5 * SHOWN] if isinstance(told, str) else None


def _by_judge(name: str, answer: Answer, judges: Mapping[str, Judge]) -> Verdict:
    if name not in judges:
        known = ", ".join(sorted(judges)) or "none"
        raise Invalid(f"no reply function is called {name!r}; declared here: {known}")
    try:
        value = judges[name](answer)
    except Later as wish:
        value = wish
    except Fail as error:
        return Verdict("failed", str(error), code=error.code)
    except Exception as error:  # noqa: BLE001 - a reply that it cannot read is malformed
        return malformed(f"{name} could not read the reply: {type(error).__qualname__}: {error}")
    if isinstance(value, Later):
        return Verdict("pending", value.detail or PENDING, after=value.seconds)
    return Verdict("complete", value=value)


def succeed(value: Any, job_id: str, codec: Codec, most: int) -> Outcome:
    """Give the outcome of a complete reply: its value is the job's result."""
    if value is None:
        return outcome.succeeded()
    data = codec.encode(value)
    try:
        return outcome.succeeded(limited(data, most=most, what=f"the result of job {job_id}"))
    except Invalid as error:
        raise TooLarge(str(error)) from None


def settle(
    verdict: Verdict, claim: Claim, answer: Answer, *, named: str, retry: RetryPolicy
) -> Outcome:
    """Give the outcome of a reply that is neither complete nor pending."""
    again = verdict.word == "again"
    floor = retry_after(answer) if again else None
    problem = Problem(
        type={"again": "HTTPError", "malformed": "Malformed"}.get(verdict.word, "RequestFailed"),
        message=storable(f"{named}: {verdict.reason}")[:MESSAGE_LIMIT],
        kind=("retryable" if floor is None else "throttled") if again else "permanent",
        code=verdict.code or verdict.word,
        attempt=claim.attempt,
        retry_after=floor,
    )
    return policy.after_error(claim, problem, retry)


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


def read_recorded(shown: Mapping[str, Any]) -> Answer:
    """Read an answer back from the note that was recorded of it, or raise `Fail`."""
    if shown.get("cut"):
        raise Fail(
            f"of a reply with {shown['bytes']:,} bytes only the beginning was recorded; "
            "MILEPOST_REQUEST_RECORD says how much is kept",
            code="replay",
        )
    if "headers" not in shown and shown.get("from") != "signal" and shown.get("bytes"):
        raise Fail("the request was made with record=False: no body was kept", code="replay")
    content = str(shown.get("text", "")).encode()
    if "json" in shown:
        content = msgspec.json.encode(shown["json"])
    elif "form" in shown:
        content = urlencode(shown["form"]).encode()
    elif "base64" in shown:
        content = base64.b64decode(shown["base64"])
    headers = shown.get("headers", {})
    return Answer(shown.get("status", 0), headers, content, shown.get("url", ""))
