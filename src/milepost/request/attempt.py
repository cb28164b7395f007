"""One attempt at a request: note it, send it, read the reply, say what it came to."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urljoin

import msgspec

from milepost import outcome, policy
from milepost.codec import Codec, limited
from milepost.context import Context
from milepost.errors import Invalid
from milepost.lifecycle import Cause
from milepost.outcome import Outcome, Problem
from milepost.policy import Later, RetryPolicy, storable
from milepost.records import Claim
from milepost.request.begin import Beginner
from milepost.request.declaration import OWN, Request, content_of
from milepost.request.guard import Guard, Refused, Target, parse
from milepost.request.hosts import Busy, Hosts
from milepost.request.paths import MISSING, found
from milepost.request.record import Recorder
from milepost.request.reply import Answer, Judge, Verdict, judged, retry_after
from milepost.request.secrets import Filling, NoValue, Secrets, named_in
from milepost.store.requests import Begin

KEY = "Idempotency-Key"
CALLBACK = "{callback}"
POLL_LEAST = 0.1
"""How many seconds lie between two looks at least."""
MESSAGE_LIMIT = 2_000


class Sender(Protocol):
    """What sends a request; see `wire`."""

    async def send(self, outgoing: Any) -> Answer:
        """Send it and read the answer."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class Means(msgspec.Struct, frozen=True):
    """What the attempts of one event loop share."""

    wire: Sender
    guard: Guard
    beginner: Beginner
    hosts: Hosts
    recorder: Recorder
    secrets: Secrets
    judges: Mapping[str, Judge]
    codec: Codec
    max_payload: int
    public_url: str


class _Next(msgspec.Struct, frozen=True):
    """What is sent by one attempt, with the names of secrets in their places."""

    method: str
    url: str
    target: Target
    headers: dict[str, str]
    content: bytes


class TooLarge(Invalid):
    """A result that is too large to keep."""

    code = "too_large"


class Attempt:
    """One attempt; made when its job is claimed."""

    def __init__(self, means: Means, context: Context, request: Request) -> None:
        self._means = means
        self._context = context
        self._request = _called_back(request, context.id, means.public_url)
        self._home = parse(self._request.url)
        self._polled: str | None = None
        self._scrubber = means.recorder.scrubber(
            self._request.headers, self._home, request.callback
        )
        given = self._request.headers
        secret = (n for n, v in given.items() if means.recorder.is_secret(n) or named_in(v))
        self._private = frozenset({"authorization", "cookie", *(name.lower() for name in secret)})
        self._filling: Filling | None = None

    async def outcome(self) -> Outcome:
        """Do it, and say what it came to."""
        try:
            self._filling = self._means.secrets.filling(self._request, self._home)
        except NoValue as error:
            return self._again(f"{self._named}: {error}", type_="NotReached")
        except Invalid as error:
            return self._failed(str(error), code="secret")
        following = await self._next()
        host, pool = following.target.host, self._request.timeouts.pool
        try:
            async with self._means.hosts.slot(host, within=pool):
                return await self._in_turn(following)
        except Busy as error:
            return outcome.released(str(error))  # others may use this worker's slot meanwhile

    async def _in_turn(self, following: _Next) -> Outcome:
        target = following.target
        try:
            async with asyncio.timeout(self._request.timeouts.connect):
                await self._means.guard.check(target.host, target.port)
        except OSError as error:
            return self._unreached(target, error)
        except Refused as error:
            return self._failed(str(error), code=error.code)
        if (heard := await self._begun(following)) is not None:
            return heard
        return await self._sent(following)

    async def _next(self) -> _Next:
        """Say what is sent now: the request itself, or a look at where the reply said to look."""
        request = self._request
        goes_on = self._has_polled or self._context.claim.origin_id is not None
        if request.reply is not None and request.reply.poll is not None and goes_on:
            self._polled = await self._context.cursor_async()
        if self._polled is not None:
            target = parse(self._polled)
            return _Next("GET", self._polled, target, self._headers(target, b""), b"")
        content = content_of(request)
        headers = self._headers(self._home, content)
        return _Next(request.method, request.url, self._home, headers, content)

    @property
    def _has_polled(self) -> bool:
        return self._context.claim.polls > 0

    # Before

    async def _begun(self, following: _Next) -> Outcome | None:
        """Note what is about to be sent; an outcome if a signal has brought the reply already."""
        begin = self._begin(following)
        signals = await self._means.beginner.begin(begin)
        if signals is None:
            return None
        decode = self._means.codec.decode
        brought = [decode(data) for data in signals if data is not None]
        if (result := self._decided(brought)) is not None:
            return result
        await self._means.beginner.begin(msgspec.structs.replace(begin, listens=False))
        return None

    def _begin(self, following: _Next) -> Begin:
        recorder, headers = self._means.recorder, following.headers
        told: dict[str, Any] = {"method": following.method, "url": recorder.url(following.target)}
        if self._request.record:
            told["headers"] = recorder.headers(headers.items())
            told |= recorder.body(following.content, headers.get("Content-Type", ""))
        key = {"idempotency_key": self._key, "attempt": self._context.attempt}
        return Begin(
            self._context.claim,
            self._scrubber.note("REQUEST", told),
            self._scrubber.note("REQUESTING", key),
            self._listens,
        )

    @property
    def _listens(self) -> bool:
        """Whether a signal may be the reply: not before anything was sent."""
        return self._context.claim.fence > 1

    def _decided(self, brought: list[Any]) -> Outcome | None:
        results = (self._signalled(value) for value in brought if value is not None)
        return next((result for result in results if result is not None), None)

    def _signalled(self, value: Any) -> Outcome | None:
        """Read a signal as the reply; None when it only says to look again."""
        content = msgspec.json.encode(value)
        told = {"content-type": "application/json"}
        answer = self._hidden(Answer(200, told, content, "signal"))
        verdict = judged(self._request, answer, self._means.judges)
        if verdict.word not in ("complete", "failed"):
            return None
        return self._ended(verdict, answer, {"from": "signal"})

    # Sending

    async def _sent(self, following: _Next) -> Outcome:
        from milepost.request import wire  # noqa: PLC0415 - httpx2, when something is sent

        request, started = self._request, time.monotonic()
        outgoing = self._filled(
            wire.Outgoing(
                method=following.method,
                target=following.target,
                headers=following.headers,
                private=self._private,
                content=following.content,
                timeouts=request.timeouts,
                redirects=request.redirects,
                most=self._means.max_payload,
            ),
            following.url,
        )
        self._context.if_cut_off = self._unknown("it was cut off") if self._is_cautious else None
        try:
            async with asyncio.timeout(request.timeouts.total):
                answer = await self._means.wire.send(outgoing)
        except wire.UNSENT as error:
            return self._unreached(following.target, error)
        except (TimeoutError, *wire.UNHEARD) as error:
            return self._unheard(following.target, error)
        except wire.Unreadable as error:
            verdict = Verdict("malformed", str(error), code=error.code)
            return self._ended(verdict, self._hidden(error.answer), _took(started))
        except (Refused, *wire.UNSENDABLE) as error:
            return self._failed(_said(error), code=getattr(error, "code", "invalid_input"))
        except Exception as error:
            if self._filling is None:
                raise
            raise RuntimeError(self._means.secrets.text(_said(error))) from None
        finally:
            self._context.if_cut_off = None
        return await self._heard(self._hidden(answer), _took(started))

    def _filled(self, outgoing: Any, url: str) -> Any:
        """Put in the secrets, where they are meant: their origin's (H-94)."""
        filling = self._filling
        if filling is None or outgoing.target.origin != self._home.origin:
            return outgoing
        target = parse(filling.url(url))
        headers = filling.headers(self._headers(target, outgoing.content))
        kind = {name.lower(): value for name, value in headers.items()}.get("content-type", "")
        content = filling.content(outgoing.content, kind.lower())
        return msgspec.structs.replace(
            outgoing,
            target=target,
            headers=headers,
            content=content,
            sealed=content != outgoing.content,
        )

    def _hidden(self, answer: Answer) -> Answer:
        return self._means.secrets.answer(answer)

    async def _heard(self, answer: Answer, told: dict[str, Any]) -> Outcome:
        verdict = judged(self._request, answer, self._means.judges)
        if verdict.word == "pending":
            return await self._overtaken() or await self._pending(verdict, answer, told)
        return self._ended(verdict, answer, told)

    @property
    def _key(self) -> str:
        given = {name.lower(): value for name, value in self._request.headers.items()}
        return given.get(KEY.lower(), self._context.idempotency_key)

    def _headers(self, target: Target, content: bytes) -> dict[str, str]:
        """Complete the headers; what is for one origin only is not sent to another."""
        own = self._home.origin == target.origin
        given = dict(self._request.headers)
        if not own:
            given = {n: v for n, v in given.items() if n.lower() not in self._private}
        names = {name.lower() for name in given} | OWN
        extra = {KEY: self._key, "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
        extra["User-Agent"] = "milepost"
        if self._context.claim.trace:
            extra["traceparent"] = self._context.claim.trace
        if target.credentials and own:
            extra["Authorization"] = target.credentials
        if content and self._request.json is not msgspec.UNSET:
            extra["Content-Type"] = "application/json"
        return given | {name: v for name, v in extra.items() if name.lower() not in names}

    # After

    async def _overtaken(self) -> Outcome | None:
        """Read as the reply what was signalled before the first sending; nothing else would."""
        if self._listens:
            return None
        return self._decided(await self._context.signals_async())

    async def _pending(self, verdict: Verdict, answer: Answer, told: dict[str, Any]) -> Outcome:
        poll = self._request.reply.poll if self._request.reply else None
        seconds = self._request.poll if verdict.after is None else verdict.after
        if poll is not None:
            place = self._place(poll.url, answer)
            if place is None and self._polled is None:
                reason = f"the reply says pending, and no URL stands at {poll.url}"
                verdict = Verdict("malformed", reason, code="malformed")
                return self._ended(verdict, answer, told)
            if place is not None and place != self._polled:
                await self._context.save_async(place)
            seconds = seconds if poll.every is None else poll.every
        floor = retry_after(answer)
        if floor is not None and seconds is not None:
            seconds = max(seconds, floor)
        # However little was asked for: a partner that stays pending is not asked in a tight loop.
        seconds = None if seconds is None else max(seconds, POLL_LEAST)
        result = policy.after_later(self._context.claim, Later(seconds, detail=verdict.reason))
        return self._noted(result, answer, told)

    def _place(self, where: str, answer: Answer) -> str | None:
        """Find where to look next, as a whole URL; None when the reply does not say."""
        if not where.startswith("$"):
            place: Any = answer.headers.get(where.lower())
        else:
            try:
                place = found(where, answer.json())
            except Invalid:
                return None
        if place is None or place is MISSING:
            return None
        try:
            whole = urljoin(self._polled or self._request.url, str(place))
            parse(whole)
        except (Refused, ValueError):
            return None
        return whole

    def _ended(self, verdict: Verdict, answer: Answer, told: dict[str, Any]) -> Outcome:
        means, claim = self._means, self._context.claim
        result: Outcome | None = None
        if verdict.word == "complete":
            try:
                result = succeeded(verdict.value, claim.id, means.codec, means.max_payload)
            except Exception as error:  # noqa: BLE001 - it was heard: on the record, not sent again
                verdict = Verdict(
                    "malformed", _said(error), code=getattr(error, "code", "malformed")
                )
        if result is None:
            told_of = msgspec.structs.replace(verdict, reason=self._scrubber.text(verdict.reason))
            retry = self._request.retry
            result = settled(told_of, claim, answer, named=self._named, retry=retry)
        return self._noted(result, answer, told)

    @property
    def _named(self) -> str:
        return f"{self._request.method} {self._home.shown}"

    def _noted(self, result: Outcome, answer: Answer, told: dict[str, Any]) -> Outcome:
        """Have the reply noted by the transaction that ends the attempt."""
        recorder = self._means.recorder
        shown: dict[str, Any] = {"status": answer.status, "url": answer.url, **told}
        if self._request.record:
            shown["headers"] = recorder.headers(answer.headers.items())
            shown |= recorder.body(answer.content, answer.kind)
        else:
            shown["bytes"] = len(answer.content)
        note = self._scrubber.note("RESPONSE", shown)
        return msgspec.structs.replace(result, phase="RESPONSE", note=note)

    # Without an answer

    @property
    def _is_cautious(self) -> bool:
        return self._request.crash == "fail_unknown"

    def _unreached(self, target: Target, error: Exception) -> Outcome:
        """Nothing was sent: another attempt does no harm."""
        message = f"{self._named}: {target.host} was not reached: {_said(error)}"
        return self._again(message, type_="NotReached")

    def _unheard(self, target: Target, error: Exception) -> Outcome:
        message = f"no answer from {target.host}: {_said(error)}"
        if self._is_cautious:
            return self._unknown(message)
        return self._again(f"{self._named}: {message}", type_="NoAnswer")

    def _again(self, message: str, *, type_: str) -> Outcome:
        problem = self._problem(
            message, type_=type_, kind="retryable", code="dependency_unavailable"
        )
        return policy.after_error(self._context.claim, problem, self._request.retry)

    def _unknown(self, why: str) -> Outcome:
        message = (
            f"{self._named} may have been sent and was not answered ({why}): ask the remote "
            "whether it was done, then rerun the job or leave it"
        )
        problem = self._problem(
            message, type_="OutcomeUnknown", kind="permanent", code="outcome_unknown"
        )
        return outcome.failed(problem, cause=Cause.OUTCOME_UNKNOWN)

    def _failed(self, message: str, *, code: str) -> Outcome:
        named = f"{self._named}: {message}"
        return outcome.failed(
            self._problem(named, type_="RequestFailed", kind="permanent", code=code)
        )

    def _problem(self, message: str, *, type_: str, kind: str, code: str) -> Problem:
        hidden = self._means.secrets.text(message)
        told = storable(self._scrubber.text(hidden))[:MESSAGE_LIMIT]
        attempt = self._context.attempt
        return Problem(type=type_, message=told, kind=kind, code=code, attempt=attempt)


def succeeded(value: Any, job_id: str, codec: Codec, most: int) -> Outcome:
    """Say that a reply was complete: what it says is the job's result."""
    data = None if value is None else codec.encode(value)
    if data is not None:
        try:
            limited(data, most=most, what=f"the result of job {job_id}")
        except Invalid as error:
            raise TooLarge(str(error)) from None
    return outcome.succeeded(data)


def settled(
    verdict: Verdict, claim: Claim, answer: Answer, *, named: str, retry: RetryPolicy
) -> Outcome:
    """Say what a reply comes to that is neither complete nor pending."""
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


def _took(started: float) -> dict[str, Any]:
    return {"seconds": round(time.monotonic() - started, 3)}


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _called_back(request: Request, job_id: str, public_url: str) -> Request:
    """Put the callback's address where the request asks for it."""
    if request.callback is None:
        return request
    url = f"{public_url.rstrip('/')}/v1/requests/{job_id}/callback/{request.callback}"
    text = msgspec.json.encode(request).decode().replace(CALLBACK, url)
    made = msgspec.json.decode(text, type=Request)
    if made.content is None:
        return made
    # Bytes are not spelled out in JSON.
    content = made.content.replace(CALLBACK.encode(), url.encode())
    return msgspec.structs.replace(made, content=content)
