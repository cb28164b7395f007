"""One attempt at a request: note it, send it, read the reply, and give the outcome."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import msgspec

from milepost import outcome, policy
from milepost.client import caller
from milepost.context import Context
from milepost.errors import Invalid, LeaseLost
from milepost.faces import perform_async
from milepost.hooks import HookEvent, one_call
from milepost.lifecycle import Cause
from milepost.limit import host_name
from milepost.outcome import Outcome, Problem
from milepost.policy import Later, storable
from milepost.request.declaration import MISSING, OWN, Request, WireRequest, content_of, follow_path
from milepost.request.guard import HttpUrl, Refused, parse
from milepost.request.hosts import Busy, Hosts
from milepost.request.redact import write_note
from milepost.request.reply import (
    MESSAGE_LIMIT,
    Answer,
    Verdict,
    judge_reply,
    malformed,
    retry_after,
    settle,
    succeed,
)
from milepost.request.secrets import Filling, MissingValue, named_in
from milepost.store import requests as store_requests
from milepost.store.group import AsyncGroupCommit, GroupSize, Refusal
from milepost.store.hosts import Place
from milepost.store.requests import Begin, Signals

if TYPE_CHECKING:
    from milepost.request.kind import Requests
    from milepost.request.wire import Wire

KEY = "Idempotency-Key"
TRACE = "traceparent"
CALLBACK = "{callback}"
POLL_LEAST = 0.1
"""How many seconds lie between two polls at least."""


class Sender:
    """The connections, host limits and shared notes of the attempts in one event loop."""

    def __init__(self, requests: "Requests") -> None:
        self._requests = requests
        self._wire: Wire | None = None
        self._notes: AsyncGroupCommit[Begin, Signals | Place] = AsyncGroupCommit(
            self._note, size=GroupSize(200)
        )
        settings = requests.host.settings
        # The other half of a worker's slots is for those that need not wait.
        half = max(1, settings.concurrency // 2)
        self.hosts = Hosts(settings.request_per_host, waiting=half)
        self.hosts.limited.update(requests.declared)
        self.users = 0

    @property
    def wire(self) -> "Wire":
        """The pool of connections, opened when something is sent."""
        from milepost.request.wire import Wire  # noqa: PLC0415 - an extra

        if self._wire is None:
            connections = self._requests.host.settings.concurrency
            self._wire = Wire(self._requests.guard, connections=connections)
        return self._wire

    async def begin(self, begin: Begin, *, within: float) -> Signals | None:
        """Note one attempt, or raise `LeaseLost`; attempts at the same time share a transaction.

        Answers with signals to be read first; None means that it is noted, and is to send now. If
        the host has no place for it within so many seconds, `Busy` is raised.
        """
        with self.hosts.asking() as stays:
            begin = msgspec.structs.replace(begin, stays=stays)
            begun = await self._begun(begin)
        if isinstance(begun, Place) and not begun.is_free:
            if not stays:
                raise Busy(f"{begin.host} has no place free", seconds=begun.back)
            begun = await self._waited(begin, begun, within)
        if not isinstance(begun, Place):
            return begun
        if begun.seconds:
            await asyncio.sleep(begun.seconds)
        return None

    async def _begun(self, begin: Begin) -> Signals | Place:
        begun = await self._notes.run(begin)
        if isinstance(begun, Place):
            self.hosts.learn(begin.host, begun)
        return begun

    async def _waited(self, begin: Begin, place: Place, within: float) -> Signals | Place:
        """Wait in line for a place; the first in line asks for it again."""
        loop, host = asyncio.get_running_loop(), begin.host
        until = loop.time() + within
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until) as patience, self.hosts.head(host):
                patience.reschedule(None)  # what the store does is not left half-way
                while (left := until - loop.time()) > 0:
                    begun = await self._begun(begin)
                    if not isinstance(begun, Place) or begun.is_free:
                        return begun
                    place = begun
                    await self.hosts.rest(host, min(place.seconds, left))
        raise Busy(f"{host} was busy for {within:g} s", seconds=place.back)

    async def _note(self, begins: list[Begin]) -> list[Signals | Place | Refusal]:
        run = self._requests.host.client.run_async
        ended = self.hosts.take_ended({one.host for one in begins})
        begun = await run(store_requests.begin, begins, actor=None, ended=ended)
        return [begun[one.claim.id] if one.claim.id in begun else _lost(one) for one in begins]

    async def close(self) -> None:
        """Close every connection."""
        if self._wire is not None:
            await self._wire.close()


class Attempt:
    """One attempt; made when its job is claimed."""

    def __init__(self, requests: "Requests", context: Context, request: Request) -> None:
        self._requests = requests
        self._sender = requests.sender
        self._context = context
        self._claim = context.claim
        self._request = _insert_callback(request, context.id, requests.host.settings.public_url)
        self._home = parse(self._request.url)
        self._named = f"{request.method} {self._home.shown}"
        self._polled: str | None = None
        self._filling: Filling | None = None
        given, recorder = self._request.headers, requests.recorder
        self._hider = recorder.hider(given, self._home, request.callback)
        secret = (n.lower() for n, v in given.items() if recorder.is_secret(n) or named_in(v))
        self._private = frozenset({"authorization", "cookie", *secret})
        named = {name.lower(): value for name, value in given.items()}
        self._key = named.get(KEY.lower(), context.idempotency_key)

    async def outcome(self) -> Outcome:
        """Make the attempt, and give its outcome."""
        try:
            self._filling = self._requests.secrets.filling(self._request, self._home)
        except MissingValue as error:
            return self._again(f"{self._named}: {error}", type_="NotReached")
        except Invalid as error:
            return self._failed(str(error), code="secret")
        outgoing = await self._build()
        host, pool = host_name(outgoing.target.host), self._request.timeouts.pool
        try:
            async with self._sender.hosts.slot(host, within=pool):
                return await self._in_turn(outgoing)
        except Busy as error:
            # Others may use this worker's slot meanwhile.
            return outcome.released(str(error), after=error.seconds)

    async def _in_turn(self, outgoing: WireRequest) -> Outcome:
        target = outgoing.target
        try:
            async with asyncio.timeout(self._request.timeouts.connect):
                await self._requests.guard.check(target.host, target.port)
        except OSError as error:
            return self._unreached(target, error)
        except Refused as error:
            return self._failed(str(error), code=error.code)
        if result := await self._begin(outgoing):
            return result
        try:
            return await self._send(outgoing)
        finally:
            self._sender.hosts.leave(host_name(target.host), self._claim.id, self._claim.fence)

    async def _build(self) -> WireRequest:
        """Build the request itself, or a poll of the URL that the last reply gave."""
        request, claim = self._request, self._claim
        goes_on = claim.polls > 0 or claim.origin_id is not None
        if request.reply is not None and request.reply.poll is not None and goes_on:
            self._polled = await self._context.cursor_async()
        polls = self._polled is not None
        target = self._home if self._polled is None else parse(self._polled)
        content = b"" if polls else content_of(request)
        return WireRequest(
            method="GET" if polls else request.method,
            target=target,
            headers=self._headers(target, content),
            private=self._private,
            content=content,
            timeouts=request.timeouts,
            redirects=request.redirects,
            most=self._requests.host.settings.max_payload,
        )

    def _headers(self, target: HttpUrl, content: bytes) -> dict[str, str]:
        """Complete the headers; those for one origin only are not sent to another."""
        own = self._home.origin == target.origin
        given = dict(self._request.headers)
        if not own:
            given = {n: v for n, v in given.items() if n.lower() not in self._private}
        names = {name.lower() for name in given} | OWN
        extra = {KEY: self._key, "Accept": "*/*", "Accept-Encoding": "gzip, deflate"}
        extra["User-Agent"] = "milepost"
        if self._claim.trace:
            extra[TRACE] = self._claim.trace
        if target.credentials and own:
            extra["Authorization"] = target.credentials
        if content and self._request.json is not msgspec.UNSET:
            extra["Content-Type"] = "application/json"
        return given | {name: v for name, v in extra.items() if name.lower() not in names}

    # Before

    async def _begin(self, outgoing: WireRequest) -> Outcome | None:
        """Note that it is about to be sent; an outcome if a signal has brought the reply."""
        url = self._requests.recorder.url(outgoing.target)
        kind = outgoing.headers.get("Content-Type", "")
        shown = self._shown(outgoing.headers, outgoing.content, kind)
        key = {"idempotency_key": self._key, "attempt": self._context.attempt}
        begin = Begin(
            self._claim,
            write_note(self._hider, "REQUEST", {"method": outgoing.method, "url": url, **shown}),
            write_note(self._hider, "REQUESTING", key),
            host_name(outgoing.target.host),
            self._listens,
        )
        pool = self._request.timeouts.pool
        signals = await self._sender.begin(begin, within=pool)
        if signals is None:
            return None
        decode = self._requests.host.client.codec.decode
        result = self._read_signals([decode(data) for data in signals if data is not None])
        if result is None:
            begin = msgspec.structs.replace(begin, listens=False)
            await self._sender.begin(begin, within=pool)
        return result

    @property
    def _listens(self) -> bool:
        """Whether a signal may be the reply: not before anything was sent."""
        return self._claim.fence > 1

    def _read_signals(self, values: list[Any]) -> Outcome | None:
        """Read signals as the reply; None when they only say to look again."""
        for value in values:
            if value is None:
                continue
            told = {"content-type": "application/json"}
            content = msgspec.json.encode(value)
            answer = self._requests.secrets.answer(Answer(200, told, content, "signal"))
            verdict = judge_reply(self._request, answer, self._requests.judges)
            if verdict.word in ("complete", "failed"):
                return self._end(verdict, answer, {"from": "signal"})
        return None

    # Sending

    async def _send(self, outgoing: WireRequest) -> Outcome:
        from milepost.request import wire  # noqa: PLC0415 - httpx2, when something is sent

        target, started, secrets = outgoing.target, time.monotonic(), self._requests.secrets
        filled = self._fill(outgoing)
        self._context.outcome_if_interrupted = (
            self._unknown("it was cut off") if self._is_cautious else None
        )
        try:
            async with asyncio.timeout(outgoing.timeouts.total):
                answer = await self._sent(filled)
        except wire.UNSENT as error:
            return self._unreached(target, error)
        except (TimeoutError, *wire.UNHEARD) as error:
            return self._unheard(target, error)
        except wire.UnreadableReply as error:
            verdict = malformed(str(error), code=error.code)
            return self._end(verdict, secrets.answer(error.answer), _took(started))
        except (Refused, *wire.UNSENDABLE) as error:
            return self._failed(_said(error), code=getattr(error, "code", "invalid_input"))
        except Exception as error:
            if self._filling is None:
                raise
            raise RuntimeError(secrets.hider.text(_said(error))) from None
        finally:
            self._context.outcome_if_interrupted = None
        return await self._judge(secrets.answer(answer), _took(started))

    async def _sent(self, filled: WireRequest) -> Answer:
        hooks, send = self._requests.host.client.hooks, self._sender.wire.send
        if not hooks.at["request"]:
            return await send(filled)
        event = HookEvent.of("request", self._claim, name=f"{filled.method} {filled.target.host}")
        body = one_call(self._traced, filled)
        answer: Answer = await perform_async(hooks.watch(event, body, _told))
        return answer

    async def _traced(self, filled: WireRequest) -> Answer:
        """Send it, with the trace context that a hook has begun."""
        trace, given = caller().trace, {name.lower() for name in self._request.headers}
        if trace is not None and TRACE not in given:
            headers = {**filled.headers, TRACE: trace}
            filled = msgspec.structs.replace(filled, headers=headers)
        return await self._sender.wire.send(filled)

    def _fill(self, outgoing: WireRequest) -> WireRequest:
        """Put in the secrets, where they are meant: their origin's (H-94)."""
        filling = self._filling
        if filling is None or outgoing.target.origin != self._home.origin:
            return outgoing
        target = parse(filling.url(self._polled or self._request.url))
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

    # After

    async def _judge(self, answer: Answer, told: dict[str, Any]) -> Outcome:
        verdict = judge_reply(self._request, answer, self._requests.judges)
        if verdict.word != "pending":
            return self._end(verdict, answer, told)
        if not self._listens:
            # It may have been signalled before the first sending; nothing else would read that.
            result = self._read_signals(await self._context.signals_async())
            if result is not None:
                return result
        return await self._pending(verdict, answer, told)

    async def _pending(self, verdict: Verdict, answer: Answer, told: dict[str, Any]) -> Outcome:
        poll = self._request.reply.poll if self._request.reply else None
        seconds = self._request.poll if verdict.after is None else verdict.after
        if poll is not None:
            place = self._poll_url(poll.url, answer)
            if place is None and self._polled is None:
                reason = f"the reply says pending, and no URL stands at {poll.url}"
                return self._end(malformed(reason), answer, told)
            if place is not None and place != self._polled:
                await self._context.save_async(place)
            seconds = seconds if poll.every is None else poll.every
        floor = retry_after(answer)
        if floor is not None and seconds is not None:
            seconds = max(seconds, floor)
        # However little was asked for: a partner that stays pending is not asked in a tight loop.
        seconds = None if seconds is None else max(seconds, POLL_LEAST)
        result = policy.after_later(self._claim, Later(seconds, detail=verdict.reason))
        return self._with_note(result, answer, told)

    def _poll_url(self, where: str, answer: Answer) -> str | None:
        """Find the URL to poll next; None when the reply does not say."""
        try:
            if where.startswith("$"):
                place = follow_path(where, answer.json())
            else:
                place = answer.headers.get(where.lower())
            if place is None or place is MISSING:
                return None
            whole = urljoin(self._polled or self._request.url, str(place))
            parse(whole)
        except (Invalid, ValueError):
            return None
        return whole

    def _end(self, verdict: Verdict, answer: Answer, told: dict[str, Any]) -> Outcome:
        host, claim = self._requests.host, self._claim
        if verdict.word == "complete":
            try:
                most = host.settings.max_payload
                result = succeed(verdict.value, claim.id, host.client.codec, most)
            except Exception as error:  # noqa: BLE001 - it was heard: on the record, not sent again
                verdict = malformed(_said(error), code=getattr(error, "code", "malformed"))
            else:
                return self._with_note(result, answer, told)
        verdict = msgspec.structs.replace(verdict, reason=self._hider.text(verdict.reason))
        retry = self._request.retry
        result = settle(verdict, claim, answer, named=self._named, retry=retry)
        return self._with_note(result, answer, told)

    def _with_note(self, result: Outcome, answer: Answer, told: dict[str, Any]) -> Outcome:
        """Have the reply noted by the transaction that ends the attempt."""
        shown = self._shown(answer.headers, answer.content, answer.kind)
        shown = {"status": answer.status, "url": answer.url, **told, **shown}
        if not self._request.record:
            shown["bytes"] = len(answer.content)
        return msgspec.structs.replace(
            result, phase="RESPONSE", note=write_note(self._hider, "RESPONSE", shown)
        )

    def _shown(self, headers: Mapping[str, str], content: bytes, kind: str) -> dict[str, Any]:
        """Show headers and a body, where they are to be recorded."""
        if not self._request.record:
            return {}
        recorder = self._requests.recorder
        return {"headers": recorder.headers(headers), **recorder.body(content, kind)}

    # Without an answer

    @property
    def _is_cautious(self) -> bool:
        return self._request.crash == "fail_unknown"

    def _unreached(self, target: HttpUrl, error: Exception) -> Outcome:
        """Nothing was sent: another attempt does no harm."""
        message = f"{self._named}: {target.host} was not reached: {_said(error)}"
        return self._again(message, type_="NotReached")

    def _unheard(self, target: HttpUrl, error: Exception) -> Outcome:
        message = f"no answer from {target.host}: {_said(error)}"
        if self._is_cautious:
            return self._unknown(message)
        return self._again(f"{self._named}: {message}", type_="NoAnswer")

    def _again(self, message: str, *, type_: str) -> Outcome:
        problem = self._problem(message, type_, "dependency_unavailable", kind="retryable")
        return policy.after_error(self._claim, problem, self._request.retry)

    def _unknown(self, why: str) -> Outcome:
        message = (
            f"{self._named} may have been sent and was not answered ({why}): ask the remote "
            "whether it was done, then rerun the job or leave it"
        )
        problem = self._problem(message, "OutcomeUnknown", "outcome_unknown")
        return outcome.failed(problem, cause=Cause.OUTCOME_UNKNOWN)

    def _failed(self, message: str, *, code: str) -> Outcome:
        return outcome.failed(self._problem(f"{self._named}: {message}", "RequestFailed", code))

    def _problem(self, message: str, type_: str, code: str, *, kind: str = "permanent") -> Problem:
        hidden = self._requests.secrets.hider.text(message)
        told = storable(self._hider.text(hidden))[:MESSAGE_LIMIT]
        attempt = self._context.attempt
        return Problem(type=type_, message=told, kind=kind, code=code, attempt=attempt)


def _lost(begin: Begin) -> Refusal:
    claim = begin.claim
    return Refusal(LeaseLost(f"job {claim.id} is no longer held with fence {claim.fence}"))


def _told(answer: Answer) -> dict[str, Any]:
    return {"outcome": str(answer.status)}


def _took(started: float) -> dict[str, Any]:
    return {"seconds": round(time.monotonic() - started, 3)}


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _insert_callback(request: Request, job_id: str, public_url: str) -> Request:
    """Put the callback's address where the request asks for it."""
    if request.callback is None:
        return request
    url = f"{public_url.rstrip('/')}/v1/requests/{job_id}/callback/{request.callback}"
    text = msgspec.json.encode(request).decode().replace(CALLBACK, url)
    made = msgspec.json.decode(text, type=Request)
    # Bytes are not spelled out in JSON.
    content = made.content and made.content.replace(CALLBACK.encode(), url.encode())
    return msgspec.structs.replace(made, content=content)
