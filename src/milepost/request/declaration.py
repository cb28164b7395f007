"""What a request asks for, and how its replies are read. Plain data: it is the job's payload."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milepost.codec import check_text
from milepost.errors import Invalid
from milepost.options import check_seconds
from milepost.policy import RetryPolicy
from milepost.request.guard import parse
from milepost.request.paths import check_path

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CRASHES = ("resend", "fail_unknown")
REDIRECTS_MOST = 20
POLL_SECONDS = 60.0
CODE_LEAST, CODE_MOST = 100, 599
HEADERS_MOST = 100
HEADER_LIMIT = 8_000
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
OWN = frozenset({"host", "content-length", "transfer-encoding", "connection"})
"""Headers that follow from the request itself; another value would make two requests of one."""


class Poll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to look while a reply says pending, instead of sending the request again.

    `url` is a path into the reply ("$.href"), or the name of a header ("Location").
    """

    url: str
    every: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        check_text(self.url, what="Poll(url)")
        if self.url.startswith("$"):
            check_path(self.url)
        elif not _TOKEN.fullmatch(self.url):
            raise Invalid(
                f"Poll(url={self.url!r}): a path into the reply such as '$.href', or a header's "
                "name such as 'Location'"
            )
        check_seconds("Poll(every)", self.every, zero=True)


class Reply(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How a reply is read: by a value in its JSON, by its status code, or by a function.

    With `state` the lists hold what may stand there; without, they hold status codes. `by` names a
    function declared with `@app.reply` instead. `result` and `error` are paths to what the job
    gives and to why it failed.
    """

    state: str | None = None
    complete: Sequence[Any] = ()
    pending: Sequence[Any] = ()
    failed: Sequence[Any] = ()
    result: str | None = None
    error: str | None = None
    by: str | None = None
    poll: Poll | None = None

    def __post_init__(self) -> None:
        """Refuse rules that could never decide anything."""
        for path in (self.state, self.result, self.error):
            if path is not None:
                check_path(path)
        for name in ("complete", "pending", "failed"):
            if not isinstance(getattr(self, name), list | tuple):
                raise Invalid(f"Reply({name}=…) takes a list, such as ['done']")
        if self.by is not None:
            self._check_alone()
        elif self.state is not None:
            self._check_values()
        else:
            self._check_codes()

    def _check_alone(self) -> None:
        check_text(self.by, what="Reply(by)")
        others = (self.state, self.complete, self.pending, self.failed, self.result, self.error)
        if any(others):
            raise Invalid("Reply(by=…) reads the reply alone: leave the other rules out")

    def _check_values(self) -> None:
        if not self.complete:
            raise Invalid("Reply(state=…) needs complete=[…]: what stands there at the end")
        listed = [*self.complete, *self.pending, *self.failed]
        if any(isinstance(value, dict | list | tuple | float) for value in listed):
            raise Invalid("Reply: a state is a text, a whole number, true, false or null")
        if len({(type(value), value) for value in listed}) < len(listed):
            raise Invalid("Reply: a value stands in two lists; each means one thing")

    def _check_codes(self) -> None:
        listed = [*self.complete, *self.pending, *self.failed]
        for code in listed:
            fits = isinstance(code, int) and not isinstance(code, bool)
            if not fits or not CODE_LEAST <= code <= CODE_MOST:
                raise Invalid(
                    f"Reply: {code!r} is no status code; values in the reply's JSON need state=, "
                    "as in Reply(state='$.status', complete=['done'])"
                )
        if len(set(listed)) < len(listed):
            raise Invalid("Reply: a status code stands in two lists; each means one thing")


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long each part of a request may take, in seconds.

    `pool` is for its turn at the host, before anything is sent; `total` for all the rest.
    """

    connect: float = 10.0
    read: float = 30.0
    write: float = 30.0
    pool: float = 300.0
    total: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what is no duration."""
        for name in self.__struct_fields__:
            check_seconds(f"timeout[{name}]", getattr(self, name), zero=False)


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, with everything that an attempt needs to know."""

    method: str
    url: str
    headers: dict[str, str] = {}
    json: Any = msgspec.UNSET
    content: bytes | None = None
    reply: Reply | None = None
    poll: float | None = POLL_SECONDS
    crash: str = "resend"
    timeouts: Timeouts = Timeouts()
    retry: RetryPolicy = RetryPolicy(backoff="exponential", jitter=True)
    redirects: int = 0
    record: bool = True
    callback: str | None = None
    secrets: list[str] = []


def content_of(request: Request) -> bytes:
    """Give the body as it is sent, but for secrets."""
    if request.json is not msgspec.UNSET:
        return msgspec.json.encode(request.json)
    return request.content or b""


def checked(request: Request) -> Request:
    """Refuse a request that could never be sent, before it is stored; no address is judged here.

    Which addresses may be reached is for the worker that sends to say.
    """
    method = request.method.upper() if isinstance(request.method, str) else ""
    if method not in METHODS:
        raise Invalid(f"method={request.method!r}: expected one of {', '.join(METHODS)}")
    parse(request.url)
    _check_headers(request.headers)
    if request.json is not msgspec.UNSET and request.content is not None:
        raise Invalid("json= and content= exclude each other")
    if request.crash not in CRASHES:
        raise Invalid(f"crash={request.crash!r}: expected one of {', '.join(CRASHES)}")
    hops = request.redirects
    if isinstance(hops, bool) or not isinstance(hops, int) or not 0 <= hops <= REDIRECTS_MOST:
        raise Invalid(f"redirects={hops!r} must be a whole number from 0 to {REDIRECTS_MOST}")
    check_seconds("poll", request.poll, zero=True)
    return msgspec.structs.replace(request, method=method)


def _check_headers(headers: Any) -> None:
    if not isinstance(headers, Mapping):
        raise Invalid("headers= takes a dict of texts, such as {'Accept': 'application/json'}")
    if len(headers) > HEADERS_MOST:
        raise Invalid(f"a request has at most {HEADERS_MOST} headers")
    for name, value in headers.items():
        # The value is not repeated: it may be a secret.
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise Invalid(f"{name!r} is no name of a header")
        if name.lower() in OWN:
            raise Invalid(f"the header {name} follows from the request itself: leave it out")
        if not isinstance(value, str) or not _HEADER.fullmatch(value):
            raise Invalid(f"the value of header {name} must be a text without line breaks")
        if len(value) > HEADER_LIMIT or not value.isascii():
            raise Invalid(f"the value of header {name} must be ASCII, and at most 8,000 long")
