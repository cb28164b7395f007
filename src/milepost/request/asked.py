"""What `app.request` takes: one part is the request, the other is about its job."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milepost.errors import Invalid
from milepost.options import (
    Retrying,
    Submitting,
    check_names,
    check_seconds,
    names,
    read,
)
from milepost.policy import retry_policy
from milepost.request.declaration import POLL_SECONDS, Reply, Request, Timeouts


class Asked(Submitting, Retrying, total=False):
    """What is asked of the request itself, and of its job."""

    headers: Mapping[str, str]
    json: Any
    content: bytes | str
    reply: Reply | Mapping[str, Any] | None
    poll: float | None
    crash: str
    timeout: float | Mapping[str, float]
    redirects: int
    record: bool
    callback: bool
    secrets: Sequence[str]


JOB_NAMES = names(Submitting)


def request_of(method: str, url: str, asked: Mapping[str, Any]) -> Request:
    """Make the request of what was asked, or raise `Invalid` naming what it does not take."""
    check_names(Asked, asked, what="a request")
    given = {**asked}
    return Request(
        method=method,
        url=url,
        headers=dict(_mapping("headers", given.get("headers") or {})),
        json=given.get("json", msgspec.UNSET),
        content=_content(given.get("content")),
        reply=_reply(given.get("reply")),
        poll=given.get("poll", POLL_SECONDS),
        crash=given.get("crash", "resend"),
        timeouts=_timeouts(given.get("timeout")),
        retry=retry_policy(given, backoff="exponential", jitter=True),
        redirects=given.get("redirects", 0),
        record=bool(given.get("record", True)),
        secrets=_names(given.get("secrets") or []),
    )


def job_part(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Take out what is about the job."""
    return {name: value for name, value in asked.items() if name in JOB_NAMES}


def read_job_part(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Read what is about the job from JSON's values, or raise `Invalid` where it does not fit."""
    return read(Submitting, job_part(asked), what="a request")


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{name}= takes a dict, not {type(value).__name__}")
    return value


def _names(names: Any) -> list[str]:
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise Invalid("secrets= takes a list of names, such as ['partner-token']")
    return list(dict.fromkeys(names))


def _content(content: Any) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        try:
            return content.encode()
        except UnicodeEncodeError as error:
            raise Invalid("content= holds a lone surrogate, which is no text") from error
    raise Invalid(f"content= takes bytes or a text, not {type(content).__name__}; see json=")


def _reply(reply: Any) -> Reply | None:
    if reply is None or isinstance(reply, Reply):
        return reply
    try:
        return msgspec.convert(_mapping("reply", reply), Reply, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid(f"reply: {error}") from None


def _timeouts(timeout: Any) -> Timeouts:
    if timeout is None:
        return Timeouts()
    if not isinstance(timeout, Mapping):
        check_seconds("timeout", timeout, zero=False)
        seconds = float(timeout)
        usual = Timeouts()
        return Timeouts(
            connect=min(seconds, usual.connect),
            read=seconds,
            write=seconds,
            total=max(seconds, usual.total),
        )
    if unknown := sorted(set(timeout) - set(Timeouts.__struct_fields__)):
        known = ", ".join(Timeouts.__struct_fields__)
        raise Invalid(f"timeout= takes no {', '.join(unknown)}; it takes {known}")
    return Timeouts(**timeout)
