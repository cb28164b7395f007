"""A request: the options that `app.request` takes, and the plain data that is its job's payload."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from milepost.codec import check_text
from milepost.errors import Invalid
from milepost.limit import Limit
from milepost.options import Counted, Retrying, Submitting, check_names, check_seconds, names
from milepost.policy import RetryPolicy, retry_policy
from milepost.request.guard import HttpUrl, parse

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
REFERENCE = re.compile(r"\{secret:([^{}\s]*)\}")
"""How a request names a secret; see `secrets`."""
MISSING: Any = object()
"""The value at a path that leads nowhere; null is something."""
_STEP = re.compile(
    r"\.(?P<name>[A-Za-z_][\w-]*)"
    r"|\[(?P<place>-?[0-9]{1,9})\]"
    r"|\['(?P<single>[^']*)'\]"
    r'|\["(?P<double>[^"]*)"\]'
)


@cache
def check_path(path: str) -> tuple[str | int, ...]:
    """Read a JSON path into its steps, or raise `Invalid` with an example of one.

    `$` is the whole reply, `.name` or `['any name']` a member, `[0]` a place, `[-1]` the last one.
    There are no wildcards, filters or slices: a rule must not find several values.
    """
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
        index = match["place"]
        steps.append(match[match.lastgroup or 0] if index is None else int(index))
        place = match.end()
    return tuple(steps)


def follow_path(path: str, value: Any) -> Any:
    """Follow a path; `MISSING` where it leads nowhere."""
    for step in check_path(path):
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return MISSING
        elif not isinstance(value, list) or not -len(value) <= step < len(value):
            return MISSING
        value = value[step]
    return value


class Poll(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to look while a reply says pending, instead of sending the request again.

    `url` is a path into the reply ("$.href"), or the name of a header ("Location").
    """

    url: str
    every: float | None = None

    def __post_init__(self) -> None:
        """Refuse a URL that is neither a path nor a header's name."""
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

    With `state` the lists hold the values there; without, they hold status codes. `by` names a
    function declared with `@app.reply` instead. `result` and `error` are paths to the job's result
    and to the reason of a failure.
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
            check_text(self.by, what="Reply(by)")
            if any((self.state, self.result, self.error, self._listed)):
                raise Invalid("Reply(by=…) reads the reply alone: leave the other rules out")
        elif self.state is not None:
            self._check_values()
        else:
            self._check_codes()

    @property
    def _listed(self) -> list[Any]:
        return [*self.complete, *self.pending, *self.failed]

    def word(self, value: Any) -> str | None:
        """Say in which of the lists a value of that very type stands; None: in none."""
        for name in ("complete", "pending", "failed"):
            if any(type(one) is type(value) and one == value for one in getattr(self, name)):
                return name
        return None

    def _check_values(self) -> None:
        if not self.complete:
            raise Invalid("Reply(state=…) needs complete=[…]: what stands there at the end")
        if any(isinstance(value, dict | list | tuple | float) for value in self._listed):
            raise Invalid("Reply: a state is a text, a whole number, true, false or null")
        if len({(type(value), value) for value in self._listed}) < len(self._listed):
            raise Invalid("Reply: a value stands in two lists; each means one thing")

    def _check_codes(self) -> None:
        for code in self._listed:
            fits = isinstance(code, int) and not isinstance(code, bool)
            if not fits or not CODE_LEAST <= code <= CODE_MOST:
                raise Invalid(
                    f"Reply: {code!r} is no status code; values in the reply's JSON need state=, "
                    "as in Reply(state='$.status', complete=['done'])"
                )
        if len(set(self._listed)) < len(self._listed):
            raise Invalid("Reply: a status code stands in two lists; each means one thing")


class RequestTimeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long each part of a request may take, in seconds.

    `pool` is for its turn at the host, before anything is sent; `total` for all the rest.
    """

    connect: float = 10.0
    read: float = 30.0
    write: float = 30.0
    pool: float = 300.0
    total: float = 300.0

    def __post_init__(self) -> None:
        """Refuse a value that is no duration."""
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
    timeouts: RequestTimeouts = RequestTimeouts()
    retry: RetryPolicy = RetryPolicy(backoff="exponential", jitter=True)
    redirects: int = 0
    record: bool = True
    callback: str | None = None
    secrets: list[str] = []


class WireRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it goes over the wire.

    `private` headers stay with their origin, and so does content that is `sealed`.
    """

    method: str
    target: HttpUrl
    headers: Mapping[str, str]
    private: frozenset[str] = frozenset()
    content: bytes = b""
    sealed: bool = False
    timeouts: RequestTimeouts = RequestTimeouts()
    redirects: int = 0
    most: int = 1024**2


class RequestJobOptions(Submitting, Counted, total=False):
    """The options of a request that are its job's."""


class RequestOptions(RequestJobOptions, Retrying, total=False):
    """Taken by `app.request`: options of the request itself, and of its job."""

    limit: Limit | str | None

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


def job_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options that are the job's; a key or units of None were not asked for."""
    chosen = {name: value for name, value in asked.items() if name in names(RequestJobOptions)}
    return {n: v for n, v in chosen.items() if v is not None or n not in names(Counted)}


def content_of(request: Request) -> bytes:
    """Give the body as it is sent, but for secrets."""
    if request.json is not msgspec.UNSET:
        return msgspec.json.encode(request.json)
    return request.content or b""


def request_of(method: str, url: str, asked: Mapping[str, Any]) -> Request:
    """Build a request, or raise `Invalid` for one that could never be sent.

    No address is judged here: the worker that sends it says which may be reached.
    """
    check_names(RequestOptions, asked, what="a request")
    request = Request(
        method=method.upper() if isinstance(method, str) else "",
        url=url,
        headers=dict(_mapping("headers", asked.get("headers") or {})),
        json=asked.get("json", msgspec.UNSET),
        content=_content(asked.get("content")),
        reply=_reply(asked.get("reply")),
        poll=asked.get("poll", POLL_SECONDS),
        crash=asked.get("crash", "resend"),
        timeouts=_timeouts(asked.get("timeout")),
        retry=retry_policy(asked, backoff="exponential", jitter=True),
        redirects=asked.get("redirects", 0),
        record=bool(asked.get("record", True)),
        secrets=_secrets(asked.get("secrets") or []),
    )
    if request.method not in METHODS:
        raise Invalid(f"method={method!r}: expected one of {', '.join(METHODS)}")
    parse(url)
    _check_headers(request.headers)
    if request.json is not msgspec.UNSET and request.content is not None:
        raise Invalid("json= and content= exclude each other")
    if request.crash not in CRASHES:
        raise Invalid(f"crash={request.crash!r}: expected one of {', '.join(CRASHES)}")
    hops = request.redirects
    if isinstance(hops, bool) or not isinstance(hops, int) or not 0 <= hops <= REDIRECTS_MOST:
        raise Invalid(f"redirects={hops!r} must be a whole number from 0 to {REDIRECTS_MOST}")
    check_seconds("poll", request.poll, zero=True)
    return request


def _check_headers(headers: Mapping[str, Any]) -> None:
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


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Invalid(f"{name}= takes a dict, not {type(value).__name__}")
    return value


def _secrets(given: Any) -> list[str]:
    if not isinstance(given, list | tuple) or not all(isinstance(name, str) for name in given):
        raise Invalid("secrets= takes a list of names, such as ['partner-token']")
    return list(dict.fromkeys(given))


def _content(content: Any) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    if not isinstance(content, str):
        raise Invalid(f"content= takes bytes or a text, not {type(content).__name__}; see json=")
    try:
        return content.encode()
    except UnicodeEncodeError as error:
        raise Invalid("content= holds a lone surrogate, which is no text") from error


def _reply(reply: Any) -> Reply | None:
    if reply is None or isinstance(reply, Reply):
        return reply
    try:
        return msgspec.convert(_mapping("reply", reply), Reply, strict=True)
    except msgspec.ValidationError as error:
        raise Invalid(f"reply: {error}") from None


def _timeouts(timeout: Any) -> RequestTimeouts:
    usual = RequestTimeouts()
    if timeout is None:
        return usual
    if isinstance(timeout, Mapping):
        known = RequestTimeouts.__struct_fields__
        if unknown := sorted(set(timeout) - set(known)):
            raise Invalid(f"timeout= takes no {', '.join(unknown)}; it takes {', '.join(known)}")
        return RequestTimeouts(**timeout)
    check_seconds("timeout", timeout, zero=False)
    seconds = float(timeout)
    connect, total = min(seconds, usual.connect), max(seconds, usual.total)
    return RequestTimeouts(connect=connect, read=seconds, write=seconds, total=total)
