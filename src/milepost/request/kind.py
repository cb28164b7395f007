"""Requests as kinds of jobs: declared, sent by the senders that workers share, and replayed.

A replay reads recorded replies again, offline, as a new job that points at the old one. Nothing is
sent (H-96). It tells the meaning of the remote's real answers under today's rules.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from milepost.codec import check_text, shorten
from milepost.context import Context
from milepost.declare import Arguments, Definition, Host
from milepost.errors import Invalid
from milepost.faces import Flow, Wait
from milepost.handles import JobHandle
from milepost.history import Entry
from milepost.job import Job
from milepost.lifecycle import JOB
from milepost.limit import MOST, TENANT, host_name, key_text, split_key
from milepost.limit import Limit as CountLimit
from milepost.options import DEFAULTS, Counted, check, names, read
from milepost.outcome import Outcome
from milepost.policy import Fail
from milepost.records import Job as Record
from milepost.records import NewJob
from milepost.request.attempt import CALLBACK, Attempt, Sender
from milepost.request.declaration import Request, RequestJobOptions, job_options, request_of
from milepost.request.guard import AddressGuard, parse
from milepost.request.redact import HIDDEN, Recorder
from milepost.request.reply import (
    Answer,
    Judge,
    Verdict,
    judge_reply,
    read_recorded,
    settle,
    succeed,
)
from milepost.request.secrets import Secrets
from milepost.store import jobs, journal
from milepost.store.hosts import SCOPE
from milepost.store.rules import ANY_HOST, Declared, Limit, check_host, ruled, see

KnownLimits = Mapping[str, CountLimit]
"""Limits by their names."""
NO_LIMITS: KnownLimits = MappingProxyType({})
KIND = "request"
REPLAY = "request.replay"
FIRST = ("method", "url")
REDACTED = (
    f"the result would hold {HIDDEN} where the remote had sent a secret, which is never recorded: "
    "read less of the reply (result=), or rerun the request"
)


PARTS: Mapping[str, Callable[[Request], str]] = {
    "host": lambda request: host_name(parse(request.url).host),
    "method": lambda request: request.method,
    # Without credentials and query: keys lie in clear.
    "url": lambda request: parse(request.url).shown,
}
"""The parts of a request that a limit may have as its key."""


class _Payload(msgspec.Struct):
    request: Request


def can_send() -> bool:
    """Tell whether the extra that sends requests is installed."""
    return find_spec("httpx2") is not None


class AttemptOutcome:
    """An outlet for handlers that return their outcome."""

    def put(self, context: Context, value: Any) -> Outcome:  # noqa: ARG002
        """Pass it on."""
        result: Outcome = value
        return result

    async def put_async(self, context: Context, value: Any) -> Outcome:
        """Pass it on."""
        return self.put(context, value)


def define(name: str, function: Callable[..., Any], **more: Any) -> Definition:
    """Define one of the engine's own kinds, whose function gives the outcome itself."""
    arguments = Arguments(function, name)
    outlet = AttemptOutcome()
    return Definition(
        name=name, function=function, arguments=arguments, is_async=True, outlet=outlet, **more
    )


class LimitedRequest(Definition, frozen=True, kw_only=True):
    """Requests under a limit: its key is a part of the request, or is given with it."""

    def _check_key(self) -> None:
        """Leave it to the request: it may bring its key along."""

    def _key(self, given: msgspec.Struct, tenant: str) -> str:
        key = None if self.limit is None else self.limit.key
        if key is None or key == TENANT:
            return "" if key is None else tenant
        if not isinstance(key, str):
            return key_text(self._called(key, given), what="the limit key of a request")
        if key not in PARTS:
            raise Invalid(
                f"limit key={key!r} is no part of a request (there are: {', '.join(PARTS)}): give "
                'the key by limit_key=; a function of the request or "tenant" will do, too'
            )
        return PARTS[key](self.arguments.value(given, "request"))


class Requests:
    """The requests of one app."""

    def __init__(self, host: Host, secrets: Secrets) -> None:
        self.host = host
        self.secrets = secrets
        self.judges: dict[str, Judge] = {}
        self.declared: dict[str, Limit] = {}
        self._seen: set[str] = set()
        self._senders: WeakKeyDictionary[asyncio.AbstractEventLoop, Sender] = WeakKeyDictionary()
        settings = host.settings
        if settings.request_rate:
            self.declared[ANY_HOST] = ruled(
                SCOPE, settings.request_per_host, rate=settings.request_rate
            )
        self.guard = AddressGuard(settings.request_allow, ports=settings.ports)
        self.recorder = Recorder(names=settings.redacted, most=settings.request_record)
        self.definition = define(KIND, self.run, channel=host.client.channel)
        if can_send():  # elsewhere requests are left to workers that can
            host.registry.add(self.definition, own=True)
        options = {**DEFAULTS, "retries": 0}
        self._replay = define(REPLAY, self.run_replay, options=options)
        host.registry.add(self._replay, own=True)

    async def run(self, ctx: Context, request: Request) -> Any:
        """Send it, or poll its reply."""
        await self._see(ctx.claim.limit_key)
        return await Attempt(self, ctx, request).outcome()

    async def _see(self, limit_key: str | None) -> None:
        """Say once that requests under a limit run here: no worker's program may declare it."""
        rule = None if limit_key is None else split_key(limit_key)[0]
        if rule is not None and rule not in self._seen:
            self._seen.add(rule)
            await self.host.client.run_async(see, [("job", rule)])

    # Declaring

    def judge(self, function: Judge, name: str | None = None) -> Judge:
        """Register a function that reads replies, by its name."""
        named = getattr(function, "__name__", "reply") if name is None else name
        check_text(named, what="name")
        if named in self.judges:
            raise Invalid(f"a reply function {named!r} is declared twice; give one a name=")
        self.judges[named] = function
        return function

    def limit(self, host: str, *, concurrency: int | None, rate: str | float | None) -> None:
        """Limit the concurrency and the rate of requests to a host, over all processes."""
        name = check_host(host)
        most = self.host.settings.request_per_host if concurrency is None else concurrency
        if isinstance(most, bool) or not isinstance(most, int) or not 1 <= most <= MOST:
            raise Invalid(f"concurrency={shorten(most)} must be a whole number from 1 to {MOST:,}")
        self.declared[name] = ruled(SCOPE, most, rate=rate)

    @property
    def rules(self) -> Declared:
        """The rules that workers declare."""
        return {(SCOPE, host): limit for host, limit in self.declared.items()}

    def prepare(
        self, method: str, url: str, asked: Mapping[str, Any], known: KnownLimits = NO_LIMITS
    ) -> tuple[Job[..., ..., Any, Any], Request]:
        """Check a request, and make the job that submits it.

        A limit that it calls by a name is one that this program declares, or one of the `known`.
        """
        if not can_send():
            raise Invalid("requests need httpx2: pip install 'milepost[http]'")
        request = request_of(method, url, asked)
        self.secrets.check(request)
        named = request.reply.by if request.reply is not None else None
        if named is not None and named not in self.judges:
            there = ", ".join(sorted(self.judges)) or "none"
            raise Invalid(f"Reply(by={named!r}): declared with @app.reply: {there}")
        if asked.get("callback"):
            request = self._with_callback(request)
        cautious = None if request.crash == "resend" else request.crash
        definition = self._under_limit(asked, known)
        return Job(self.host, definition, job_options(asked), policy=cautious), request

    def _under_limit(self, asked: Mapping[str, Any], known: KnownLimits) -> Definition:
        """Give the kind of a request, under the limit that it asks for."""
        limit = asked.get("limit")
        if limit is None:
            if alone := [name for name in names(Counted) if asked.get(name) is not None]:
                raise Invalid(
                    f"{' and '.join(sorted(alone))} of a request without limit=: give that, too, "
                    'as in limit=mp.Limit(5, name="partner")'
                )
            return self.definition
        is_named = isinstance(limit, str)
        found = self._named_limit(limit, known) if is_named else limit
        check({"limit": found})
        line = {name: asked[name] for name in ("queue", "priority") if asked.get(name) is not None}
        own = msgspec.structs.asdict(self.definition)
        options = {**self.definition.options, **line}
        made = LimitedRequest(**{**own, "limit": found, "options": options})
        if not is_named:
            self.host.registry.enter_rule(made)
        return made

    def _named_limit(self, name: str, known: KnownLimits) -> CountLimit:
        found = self.host.registry.limit(name) or known.get(name)
        if found is None:
            there = ", ".join(sorted({*self.host.registry.limits, *known})) or "none"
            raise Invalid(f"limit={name!r}: there is no limit of that name; there are: {there}")
        return found

    def new(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> NewJob:
        """Make the job of a request that comes as names and values, by a message or the API.

        They are those of `app.request`; the job's own may stand among `options` too.
        """
        if len(args) > len(FIRST):
            raise Invalid("a request takes a method and a URL; the rest by names, in kwargs")
        placed = dict(zip(FIRST, args, strict=False))
        if twice := sorted(set(placed) & set(kwargs)):
            raise Invalid(f"a request takes {', '.join(twice)} once")
        asked = {"method": "GET", **placed, **kwargs}
        if "url" not in asked:
            raise Invalid("a request needs a url")
        asked.update(read(RequestJobOptions, job_options(asked), what="a request"))
        options = dict(options)
        asked.update({name: options.pop(name) for name in names(Counted) & options.keys()})
        job, made = self.prepare(asked.pop("method"), asked.pop("url"), asked)
        return job.options(**options).new((made,), {})

    def _with_callback(self, request: Request) -> Request:
        """Give a request an address to be called back at."""
        if not self.host.settings.public_url:
            raise Invalid("callback=True needs MILEPOST_PUBLIC_URL, where the API is reached")
        whole = msgspec.json.encode(request) + (request.content or b"")  # bytes are not spelled out
        if CALLBACK.encode() not in whole:
            raise Invalid(f"callback=True: say with {CALLBACK} where its address goes")
        return msgspec.structs.replace(request, callback=secrets.token_urlsafe(24))

    # Sending

    @property
    def sender(self) -> Sender:
        """The sender of the running event loop, made when first used."""
        loop = asyncio.get_running_loop()
        if loop not in self._senders:
            self._senders[loop] = Sender(self)
        return self._senders[loop]

    @asynccontextmanager
    async def open(self, *, drains: bool = False) -> AsyncIterator[None]:
        """Keep connections for as long as a worker of this loop runs, then close them.

        One that only `drains` waits for hosts: what it gave back would not come back in time.
        """
        sender = self.sender
        if drains:
            sender.hosts.wait_all()
        sender.users += 1
        try:
            yield
        finally:
            sender.users -= 1
            if not sender.users:
                del self._senders[asyncio.get_running_loop()]
                await sender.close()

    # Replaying

    def replay(self, job_id: str, *, queue: str | None) -> Flow[JobHandle[Any]]:
        """Store a replay of a finished request."""
        client = self.host.client
        new = self._new_replay((yield from client.flow(jobs.get, job_id)), queue)
        [made] = yield Wait(client.create, client.create_async, ([new],))
        return JobHandle(client, made)

    def _new_replay(self, record: Record, queue: str | None) -> NewJob:
        if record.kind != KIND:
            raise Invalid(f"job {record.id} is a {record.kind}; only requests are replayed")
        if record.state not in JOB.terminal:
            raise Invalid(f"job {record.id} is {record.state}; only a finished one is replayed")
        self._stored(record)
        job: Job[..., ..., Any, Any]
        job = Job(self.host, self._replay, {"queue": queue or record.queue})
        made = job.new((record.id,), {})
        linked = msgspec.structs.replace(made.template, parent_id=record.id, tenant=record.tenant)
        return msgspec.structs.replace(made, template=linked)

    def _stored(self, record: Record) -> Request:
        if record.payload is None:
            raise Invalid(f"the payload of job {record.id} was erased; nothing is left to replay")
        payload: _Payload = self.host.client.codec.decode(record.payload, _Payload)
        return payload.request

    async def run_replay(self, ctx: Context, job_id: str) -> Any:
        """Read every recorded reply in its order, until one decides."""
        client = self.host.client
        record = await client.run_async(jobs.get, job_id)
        history = await client.run_async(journal.history, job_id)
        request = self._stored(record)
        replies = [entry for entry in history if _is_reply(entry)]
        for entry in replies:
            answer = read_recorded(msgspec.json.decode(entry.detail or ""))
            verdict = judge_reply(request, answer, self.judges)
            if verdict.word not in ("pending", "again"):
                return self._replayed(ctx, request, verdict, answer, entry)
        seen = len(replies)
        told = f"{seen} recorded replies decide nothing" if seen else "no reply was recorded"
        if history[0].summary is not None:
            told += " since its history was summed up (keep_history)"
        raise Fail(f"{told} of job {job_id}", code="replay")

    def _replayed(
        self, ctx: Context, request: Request, verdict: Verdict, answer: Answer, entry: Entry
    ) -> Outcome:
        client = self.host.client
        if HIDDEN in msgspec.json.encode(verdict.value, enc_hook=str).decode():
            verdict = Verdict("failed", REDACTED, code="redacted")
        if verdict.word == "complete":
            most = client.settings.max_payload
            result = succeed(verdict.value, ctx.id, client.codec, most)
        else:
            named = f"{request.method} {parse(request.url).shown}"
            result = settle(verdict, ctx.claim, answer, named=named, retry=request.retry)
        shown = {"phase": "RESPONSE", "from": "record", "seq": entry.seq, "status": answer.status}
        hidden = {"redacted": True} if HIDDEN.encode() in answer.content else {}
        note = msgspec.json.encode({**shown, **hidden}).decode()
        return msgspec.structs.replace(result, phase="RESPONSE", note=note)


def _is_reply(entry: Entry) -> bool:
    return entry.move == "note" and (entry.detail or "").startswith('{"phase":"RESPONSE"')
