"""App: the object that users hold. It wires the layers and knows nothing else."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from milepost.batch.declaration import Batch, FailurePolicy
from milepost.batch.handles import Runs
from milepost.bulk import Bulk
from milepost.client import Client
from milepost.codec import Codec, check_text
from milepost.config import Settings, store_url
from milepost.context import Context, carry_job
from milepost.cron import CronLine, MissedPolicy
from milepost.declare import Definition, Registry, stored_limit
from milepost.encrypt import chosen_codec
from milepost.errors import Invalid
from milepost.faces import Flow, faces
from milepost.handles import Errors, JobHandle, Jobs
from milepost.hooks import HookFunction, check_point
from milepost.job import Job, JobDecorator, define, error_classes
from milepost.limit import Limit
from milepost.options import JobOptions, Whole
from milepost.process import Runner, transport_name
from milepost.queues import Queues, check_queues
from milepost.records import NewJob, Run
from milepost.relay.pull import Channels
from milepost.request.batch import Batches, BatchOptions, Item, RequestBatch
from milepost.request.declaration import RequestOptions
from milepost.request.kind import Requests
from milepost.request.reply import Judge
from milepost.request.secrets import Secrets
from milepost.rules import Limits
from milepost.schedules import Schedules
from milepost.store import jobs
from milepost.store.blockers import explain_any
from milepost.store.explain import Explanation
from milepost.store.hints import STORE
from milepost.subjects import checked_id
from milepost.workers import Workers

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from milepost.ingest.options import PipelineOptions
    from milepost.ingest.pipeline import Pipeline
    from milepost.ingest.source import Source
    from milepost.relay.broker import Broker

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Source[Any, Any, Any]")
H = TypeVar("H", bound=HookFunction)

MOUNTED = ("tokens", "open")
"""How callers are let in where an application mounts the API: by token, or all of them."""


class App(Runner):
    """Declares jobs, submits them, runs them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        retry_on: tuple[type[BaseException], ...] = (Exception,),
        fail_on: tuple[type[BaseException], ...] = (),
        codec: Codec | None = None,
        migrate: bool = False,
        channel: str | None = None,
        **settings: Any,
    ) -> None:
        """Take a store's address (or find it in the environment) and settings by name.

        An empty database is set up by itself; one with other tables in it, or with an older
        schema, only if it is asked to `migrate`. Jobs and runs that name no `channel` tell this
        one how they ended.
        """
        self.settings = Settings.load(os.environ, **settings)
        self.client = Client(
            store_url(url, os.environ),
            codec=codec or chosen_codec(os.environ),
            settings=self.settings,
            migrate_older=migrate,
        )
        self.client.channel = None if channel is None else check_text(channel, what="channel")
        self.registry = Registry(self.client.declared_rules)
        self.jobs = Jobs(self.client, self._result_type)
        self._batches = {}
        self._pipelines: dict[str, Pipeline[Any]] = {}
        self.bulk = Bulk(self)
        self.runs = Runs(self.client, self._report_type, self._fill)
        self.errors = Errors(self.client)
        self.queues = Queues(self.client)
        self.limits = Limits(self.client)
        self.workers = Workers(self.client)
        self._scheduled = {}
        self.schedules = Schedules(self.client, self._scheduled)
        known = Secrets.read(self.settings.request_secrets, os.environ)
        self.requests = Requests(self, known)
        self.request_batches = Batches(self, self.requests)
        self._channels = {}
        self._inbound = {}
        self._transports = {}
        self._brokers = {}
        self.channels = Channels(self.client)
        self._retry_on = error_classes("retry_on", retry_on, ())
        carry_job()
        self._fail_on = error_classes("fail_on", fail_on, ())

    def _result_type(self, name: str, version: int) -> Any:
        definition = self.registry.find(name, version)
        return Any if definition is None else definition.arguments.result_type

    # Declaring

    @overload
    def job(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Job[Concatenate[Context, P], P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Job[Concatenate[Context, P], P, R, R]: ...
    @overload
    def job(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Job[P, P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, P, R, R]: ...
    @overload
    def job(self, **options: Unpack[JobOptions]) -> JobDecorator: ...
    def job(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare a job: `@app.job` or `@app.job(retries=5, …)`.

        Options:
        * `queue`: The queue that its jobs wait in.
        * `priority`: 0 to 9; jobs with a larger one are claimed first.
        * `retries`: How many failed or lost attempts are followed by another one.
        * `recoveries`: How many lost attempts are followed by another one; None: they count among
          the retries.
        * `deadline`: Seconds from its submit until a job that has not ended fails; None: no
          deadline.
        * `start_within`: Seconds from its submit until a job that has not started fails; None: it
          may wait.
        * `poll_limit`: How often a handler may ask to be run later (`mp.Later`).
        * `timeout`: Seconds that one attempt may take; None in a declaration: no limit.
        * `poison_limit`: How many lost workers fail the job: it may be what kills them.
        * `retry_delay`: Seconds before the next attempt.
        * `backoff`: Whether the delay stays "fixed", or is doubled each time: "exponential".
        * `max_delay`: The longest delay, in seconds.
        * `jitter`: Whether a delay is a random part of itself, so that jobs do not return all at
          once.
        * `name`: The kind's name; the function's own unless given.
        * `retry_on`: The errors that are followed by another attempt; the app's own unless given.
        * `fail_on`: More errors that end the job at once, in addition to the app's.
        * `isolate`: Whether a worker runs it in a process of its own, which is killed at its
          timeout, when it is cancelled or when it passes a limit.
        * `memory`: With `isolate`: how much that process may hold with those it started, as in
          "512M"; None: no limit.
        * `cpu_seconds`: With `isolate`: how much processor time an attempt may take, with the
          processes it started; None: no limit.
        * `limit`: How many run at once, start in a time, or in which order, over all workers.
        * `channel`: The channel that is told how the job ended; the app's own unless given, None:
          nobody.
        * `on_failure`: A job that is created, with the failed one's id, by the transaction that
          makes it FAILED.
        * `version`: Counted up when waiting jobs must go on with the old code; versions stand side
          by side.
        """
        declare = JobDecorator(self, **declared)
        return declare if function is None else declare(function)

    def batch(
        self,
        name: str,
        *,
        version: int = 1,
        params: Any = None,
        policy: FailurePolicy | None = None,
    ) -> Batch:
        """Declare a batch: decorate its steps with `@batch.step`, then `batch.start(…)`.

        Versions stand side by side: new runs take the one they are started on, running ones keep
        theirs. Without a policy the first failure stops a run.
        """
        if (name, version) in self._batches:
            raise Invalid(f"batch {name!r} version {version} is declared twice")
        declared = Batch(self, name, version=version, params=params, policy=policy)
        self._batches[name, version] = declared
        return declared

    def pipeline(self, name: str, source: S, **options: "Unpack[PipelineOptions]") -> "Pipeline[S]":
        """Declare a pipeline: a source that is read into a table, whole once and then its changes.

        `key` names the field that tells records apart, `version` the one that grows with every
        change (either may be a function of the raw record), `partition_by` the one that the source
        is cut by. Then `pipeline.start()`.
        A full run makes every record anew when its type, the rules or `mapping_version` changed:
        count that one up when `map` or `enrich` was corrected.
        `channel` is told how runs end, and when the watermark is older than `fresh_within` seconds;
        `messages` is sent WORK_DONE when a partition has ended, and CONSOLIDATE.
        """
        from milepost.ingest.pipeline import Pipeline  # noqa: PLC0415 - few need it

        taken = {**self._pipelines, **{batch_name: None for batch_name, _ in self._batches}}
        if name in taken:
            raise Invalid(
                f"{name!r} is declared twice; pipelines and batches need names of their own"
            )
        declared = Pipeline(self, name, source, options)
        self._pipelines[name] = declared
        return declared

    @property
    def pipelines(self) -> "Mapping[str, Pipeline[Any]]":
        """The declared pipelines by their names."""
        return dict(sorted(self._pipelines.items()))

    def define(
        self,
        function: Callable[..., Any],
        declared: Mapping[str, Any],
        *,
        what: str | None = None,
    ) -> Definition:
        """Turn a function and the options of `@app.job` into a definition; batches call it."""
        return define(
            function,
            dict(declared),
            retry_on=self._retry_on,
            fail_on=self._fail_on,
            channel=self.client.channel,
            what=what,
        )

    @property
    def batches(self) -> Sequence[Batch]:
        """The declared batches, every version, in the order of their names."""
        return [self._batches[key] for key in sorted(self._batches)]

    def _report_type(self, name: str, version: int) -> Any:
        batch = self._batches.get((name, version))
        return Any if batch is None else batch.report_type(name, version)

    def _fill(self, run: Run, items: Iterable[Any]) -> list[NewJob]:
        """Turn items into jobs of a held run that was looked up."""
        batch = self._batches.get((run.kind, run.kind_version))
        if batch is None:
            raise Invalid(
                f"run {run.id} is one of {run.kind!r} version {run.kind_version}, which is not "
                "declared as a batch here: add to it where it is"
            )
        return batch.fill(run, items)

    def schedule(
        self,
        job: "Job[Any, Any, Any, Any] | Pipeline[Any]",
        cron: str,
        *,
        zone: str = "UTC",
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        missed: str = "last",
        name: str | None = None,
    ) -> None:
        """Have a worker of this program submit a job at the times of a cron line in a time zone.

        `missed` says what becomes of times that passed while no worker ran: "skip", "last", "all".
        The schedule is known by its `name`, the job's own unless given. Of a pipeline it is a run
        that is started; one that failed is resumed first.
        """
        opening = getattr(job, "opening", None)
        if isinstance(opening, Definition):
            job = Job(self, opening)
        if not isinstance(job, Job):
            raise Invalid(f"{job!r} is no job: declare it with @app.job first")
        line, call = CronLine(cron, zone), (tuple(args), kwargs or {})
        new = job.scheduled(self, name, line, call=call, missed=MissedPolicy.named(missed))
        if new.name in self._scheduled:
            raise Invalid(f"schedule {new.name!r} is declared twice; give one of them a name=")
        self._scheduled[new.name] = new

    def queue(
        self,
        name: str,
        *,
        most: int | None = None,
        rate: str | float | None = None,
        burst: float | None = None,
        max_waiting: int | None = None,
        transport: "str | Broker" = STORE,
    ) -> None:
        """Declare a queue: `most` of its jobs run at once, and start at a `rate`, as in "25/s".

        After a rest `burst` jobs may start at once, one second's worth unless given. All of it
        holds over all workers. A submit raises `QueueFull` once `max_waiting` jobs wait in it.

        With a `transport` a broker tells workers of its jobs: "nats", "rabbitmq", "redis" and
        others, at the address of MILEPOST_BROKER_URL, or a broker of its own. The jobs stay in the
        store, with their retries, delays and priorities; programs that submit need no broker.

        Any name is a queue without this. The bound holds for every program that submits, the HTTP
        API included, from when a worker of this app has started; the program that started last
        has the last word, and without `max_waiting` lifts the bound, without `most` and `rate` the
        limit. Jobs of steps and schedules, retries and reruns are not refused.
        """
        check_queues([name])
        is_limited = (most, rate, burst) != (None, None, None)
        limit = stored_limit(Limit(most, rate=rate, burst=burst)) if is_limited else None
        if max_waiting is not None:
            Whole(least=1).check("max_waiting", max_waiting)
        if transport != STORE:
            from milepost.relay.broker import check_broker  # noqa: PLC0415 - few queues have one

            check_broker(transport)
        self.client.declared_bounds[name] = max_waiting
        self.client.declared_rules["queue", name] = limit
        self._transports[name] = transport
        self.client.declared_transports[name] = transport_name(transport)

    def channel(
        self,
        name: str,
        *,
        tenant: str | None = None,
        on: str = "end",
        webhook: str | None = None,
        secrets: Sequence[str] = (),
        people: Sequence[str] | None = None,
        title: str | None = None,
        template: str | None = None,
        broker: "Broker | str | None" = None,
        subject: str | None = None,
        attempts: int = 20,
        timeout: float = 10.0,
        delay: float = 1.0,
        max_delay: float = 3600.0,
        concurrency: int = 16,
        max_bytes: int = 1_000_000,
    ) -> None:
        """Say where the final messages of a channel go; those of others wait to be pulled.

        It carries the messages of its `tenant`'s jobs alone: of those without a tenant unless one
        is given, of every tenant's for "*". A message names its tenant.

        It is told of every end, or `on="failure"` of jobs and runs that failed or were cancelled:
        messages of the others are put down as delivered, and nothing is sent.

        A `webhook` is posted to, signed with each of its `secrets`; `people` are addresses of
        Apprise, told by `title` and `template`; a `broker`, given as an object or as the name of
        the one at MILEPOST_BROKER_URL, is published to, on a `subject`, the channel's name unless
        given. A failed delivery is tried again after `delay` seconds, then twice as long each time
        up to `max_delay`; after so many `attempts` the message is dead.
        """
        given = {key: value for key, value in locals().items() if key not in ("self", "name")}
        from milepost.relay.channel import declare_channel  # noqa: PLC0415 - most declare none

        if name in self._channels:
            raise Invalid(f"channel {name!r} is declared twice")
        if broker is not None:
            given["broker"] = self._broker(broker)
        self._channels[name] = declare_channel(name, self.settings, given)

    def inbound(
        self,
        name: str,
        broker: "Broker | str",
        *,
        subject: str | None = None,
        tenant: str | None = None,
    ) -> None:
        """Let jobs and runs arrive as messages on a broker's `subject`, the `name` unless given.

        A message says what `POST /v1/jobs` takes, or `POST /v1/batches/{name}/runs` with the name
        as `batch`. The broker is given as an object, or as the name of the one at
        MILEPOST_BROKER_URL. Its consumer has the same name: programs that declare it share what
        comes.
        """
        from milepost.relay.inbound import declare_inbound  # noqa: PLC0415 - most declare none

        if name in self._inbound:
            raise Invalid(f"inbound {name!r} is declared twice")
        self._inbound[name] = declare_inbound(name, self._broker(broker), subject, tenant)

    def hook(self, point: str) -> Callable[[H], H]:
        """Declare a hook: a generator function with one `yield`, sync or async.

        It stands at the `point` "submit", "attempt", "step", "settle" (a batch of outcomes is
        written), "sweep" (a pass of maintenance), "request" or "message". It is called with a
        `HookEvent`, and its `yield` gives that event with the outcome. Hooks see and time; an error
        of theirs is logged once and changes nothing.
        """
        check_point(point)

        def declare(function: H) -> H:
            self.client.hooks.add(point, function)
            return function

        return declare

    def opentelemetry(self, *, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        """Trace submits, attempts, steps, requests and messages, and count, by OpenTelemetry.

        The program's own providers are used unless others are given. Without a provider of metrics
        nothing is counted.
        """
        try:
            from milepost.observe.otel import instrument  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Invalid("this needs an extra: pip install 'milepost[otel]'") from error
        own = instrument(self.client, tracer_provider, meter_provider)
        self.metrics = own or self.metrics

    # The API

    def asgi(self, *, access: str = "tokens", hosts: Sequence[str] = ()) -> "ASGIApp":
        """Return the HTTP API, to be served by itself or mounted under any prefix.

        Every request needs a token (`milepost tokens create`), unless `access="open"` says that
        the program that mounts it guards it. `hosts` are names that it answers to in addition to
        addresses and names without a dot.
        """
        if access not in MOUNTED:
            raise Invalid(
                f"access={access!r}: expected one of {', '.join(MOUNTED)}; callers on this machine "
                "are let in without a token by `milepost dev` alone"
            )
        try:
            from milepost.web.api import create_api  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise Invalid("the API needs an extra: pip install 'milepost[web]'") from error
        return create_api(self, access=access, hosts=hosts)

    # Requests

    def request(self, method: str, url: str, **asked: Unpack[RequestOptions]) -> JobHandle[Any]:
        """Send an HTTP request as a job; it is durable once this returns.

        The job's result is what the reply says: its JSON, a text, or bytes in base64. See
        docs/how-to/requests.md for everything that it takes.
        """
        job, request = self.requests.prepare(method, url, asked)
        return job.submit(request)

    async def request_async(
        self, method: str, url: str, **asked: Unpack[RequestOptions]
    ) -> JobHandle[Any]:
        """Send an HTTP request as a job; it is durable once this returns."""
        job, request = self.requests.prepare(method, url, asked)
        return await job.submit_async(request)

    def _request_batch(
        self,
        requests: Iterable[Item],
        *,
        channel: str | None = None,
        policy: FailurePolicy | None = None,
        final: Item | None = None,
        deadline: float | None = None,
        queue: str | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        common: RequestOptions | None = None,
    ) -> Flow[RequestBatch]:
        """Send many requests as one run; one message goes to its channel once all have ended.

        Each is a dict of what `request` takes, or a tuple such as ("GET", url); `common` holds
        for those that do not say otherwise. One may be a batch itself: {"batch": [...], "channel",
        "policy", "final"}. `final` is a call of its own, made at the end. Without a policy the
        first failure stops the rest.
        """
        options = {n: v for n, v in locals().items() if n in BatchOptions.__struct_fields__}
        return self.request_batches.start(requests, BatchOptions(**options), common or {})

    request_batch, request_batch_async = faces(_request_batch)

    def _replay(self, job_id: str, *, queue: str | None = None) -> Flow[JobHandle[Any]]:
        """Read a finished request's recorded replies again as a new job; nothing is sent."""
        return self.requests.replay(checked_id(job_id), queue=queue)

    replay, replay_async = faces(_replay)

    @overload
    def reply(self, function: Judge, /) -> Judge: ...
    @overload
    def reply(self, *, name: str) -> Callable[[Judge], Judge]: ...
    def reply(self, function: Any = None, /, **named: Any) -> Any:  # type: ignore[misc]
        """Declare a function that reads replies, for `mp.Reply(by="its name")`.

        It gets the answer (`status`, `headers`, `content`, `text`, `json()`); what it returns is
        the job's result. It returns or raises `mp.Later` while the reply says pending, and raises
        `mp.Fail` when it says failed.
        """
        if function is None:
            return lambda given: self.requests.judge(given, **named)
        return self.requests.judge(function, **named)

    def request_limit(
        self, host: str, *, concurrency: int | None = None, rate: str | float | None = None
    ) -> None:
        """Limit concurrency and rate for a host, as in rate="25/s", over all processes.

        A worker of this app declares it when it starts; `app.limits` and `milepost limits` set it
        at runtime, and the next request heeds it. The host "*" is every host without a limit.
        """
        self.requests.limit(host, concurrency=concurrency, rate=rate)

    # The store

    def _explain(self, subject: str, name: str) -> Flow[Explanation]:
        """Say why a queue, schedule, channel, pipeline, job or run stands where it does."""
        return self.client.flow(explain_any, subject, name)

    explain, explain_async = faces(_explain)

    def counts(self) -> dict[str, dict[str, int]]:
        """Count jobs by queue and state."""
        return self.client.run(jobs.counts)

    def close(self) -> None:
        """Close the connections to the store."""
        self.client.close()

    async def close_async(self) -> None:
        """Close the connections to the store, in the running event loop and outside of it."""
        await self.client.close_async()
        await asyncio.to_thread(self.client.close)
