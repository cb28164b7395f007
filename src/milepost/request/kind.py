"""Requests as kinds of jobs: what an app declares once, and what its workers share to send them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from milepost.codec import check_text
from milepost.context import Context
from milepost.declare import Arguments, Definition, Host
from milepost.errors import Invalid
from milepost.job import Job
from milepost.outcome import Outcome
from milepost.records import NewJob
from milepost.request.asked import job_part, read_job_part, request_of
from milepost.request.attempt import CALLBACK, Attempt, Means
from milepost.request.begin import Beginner
from milepost.request.declaration import Request, checked
from milepost.request.guard import Guard
from milepost.request.hosts import Hosts, Limit, read_rate
from milepost.request.record import Recorder
from milepost.request.reply import Judge
from milepost.request.secrets import Secrets

KIND = "request"
FIRST = ("method", "url")


def can_send() -> bool:
    """Tell whether what sends requests is installed."""
    return find_spec("httpx2") is not None


class Passed:
    """Takes the outcome that an attempt already came to."""

    def put(self, context: Context, value: Any) -> Outcome:  # noqa: ARG002
        """Pass it on."""
        result: Outcome = value
        return result

    async def put_async(self, context: Context, value: Any) -> Outcome:
        """Pass it on."""
        return self.put(context, value)


class Requests:
    """The requests of one app."""

    def __init__(self, host: Host, secrets: Secrets) -> None:
        self._host = host
        self.secrets = secrets
        self._judges: dict[str, Judge] = {}
        self._limits: dict[str, Limit] = {}
        self._means: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()
        settings = host.settings
        self._default = Limit(settings.request_per_host, read_rate(settings.request_rate))
        self.guard = Guard(settings.request_allow, ports=settings.ports)
        self.recorder = Recorder(names=settings.redacted, most=settings.request_record)
        self.definition = Definition(
            name=KIND,
            function=self.run,
            arguments=Arguments(self.run, KIND),
            is_async=True,
            outlet=Passed(),
        )
        if can_send():  # elsewhere requests are left to workers that can
            host.registry.add(self.definition, own=True)

    async def run(self, ctx: Context, request: Request) -> Any:
        """Send it, or look how it stands."""
        return await Attempt(await self.means(), ctx, request).outcome()

    # Declaring

    def judge(self, function: Judge, name: str | None = None) -> Judge:
        """Know a function that reads replies by its name."""
        named = getattr(function, "__name__", "reply") if name is None else name
        check_text(named, what="name")
        if named in self._judges:
            raise Invalid(f"a reply function {named!r} is declared twice; give one a name=")
        self._judges[named] = function
        return function

    @property
    def judges(self) -> Mapping[str, Judge]:
        """The functions that read replies, by name."""
        return self._judges

    def limit(self, host: str, *, concurrency: int | None, rate: str | None) -> None:
        """Spare a host: so many at a time, so many a second, from each worker process."""
        check_text(host, what="host")
        most = self._default.concurrency if concurrency is None else concurrency
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise Invalid(f"concurrency={most!r} must be a whole number from 1")
        self._limits[host.lower()] = Limit(most, read_rate(rate))

    def asked(
        self, method: str, url: str, asked: Mapping[str, Any]
    ) -> tuple[Job[..., ..., Any, Any], Request]:
        """Check a request, and make the job that submits it."""
        request = request_of(method, url, asked)
        ready = self.prepared(request, callback=bool(asked.get("callback")))
        cautious = None if ready.crash == "resend" else ready.crash
        return Job(self._host, self.definition, job_part(asked), policy=cautious), ready

    def new(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> NewJob:
        """Make the job of a request that comes as names and values, by a message or the API.

        They are those of `app.request`; what is about the job may stand among `options` too.
        """
        if len(args) > len(FIRST):
            raise Invalid("a request takes a method and a URL; the rest by names, in kwargs")
        placed = dict(zip(FIRST, args, strict=False))
        if twice := sorted(set(placed) & set(kwargs)):
            raise Invalid(f"a request takes {', '.join(twice)} once")
        asked = {"method": "GET", **placed, **kwargs}
        if "url" not in asked:
            raise Invalid("a request needs a url")
        asked.update(read_job_part(asked))
        job, made = self.asked(asked.pop("method"), asked.pop("url"), asked)
        return job.options(**options).new((made,), {})

    def prepared(self, request: Request, *, callback: bool) -> Request:
        """Check a request before it is stored, and give it an address to be called back at."""
        if not can_send():
            raise Invalid("requests need httpx2: pip install 'milepost[http]'")
        request = checked(request)
        self.secrets.check(request)
        named = request.reply.by if request.reply is not None else None
        if named is not None and named not in self._judges:
            known = ", ".join(sorted(self._judges)) or "none"
            raise Invalid(f"Reply(by={named!r}): declared with @app.reply: {known}")
        if not callback:
            return request
        if not self._host.settings.public_url:
            raise Invalid("callback=True needs MILEPOST_PUBLIC_URL, where the API is reached")
        whole = msgspec.json.encode(request) + (request.content or b"")  # bytes are not spelled out
        if CALLBACK.encode() not in whole:
            raise Invalid(f"callback=True: say with {CALLBACK} where its address goes")
        return msgspec.structs.replace(request, callback=secrets.token_urlsafe(24))

    # Sending

    async def means(self) -> Means:
        """Give out what the attempts of the running loop share, made when first used."""
        loop = asyncio.get_running_loop()
        shared = self._means.get(loop)
        if shared is None:
            shared = self._means.setdefault(loop, _Shared())
        if shared.means is None:
            shared.means = self._made()
        return shared.means

    def _made(self) -> Means:
        from milepost.request.wire import Wire  # noqa: PLC0415 - httpx2, when something is sent

        settings = self._host.settings
        return Means(
            wire=Wire(self.guard, connections=settings.concurrency),
            guard=self.guard,
            beginner=Beginner(self._host.client),
            hosts=Hosts(self._default, self._limits),
            recorder=self.recorder,
            secrets=self.secrets,
            judges=self._judges,
            codec=self._host.client.codec,
            max_payload=settings.max_payload,
            public_url=settings.public_url,
        )

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Keep connections for as long as somebody works in this loop, then close them."""
        loop = asyncio.get_running_loop()
        shared = self._means.get(loop) or self._means.setdefault(loop, _Shared())
        shared.users += 1
        try:
            yield
        finally:
            shared.users -= 1
            if not shared.users and (means := shared.means) is not None:
                shared.means = None
                await means.wire.close()


class _Shared:
    """What one event loop holds, and how many workers use it."""

    def __init__(self) -> None:
        self.means: Means | None = None
        self.users = 0
