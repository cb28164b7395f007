"""The part of an app that runs: work, drain, relay and maintain in this process."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.client import Importing
from milepost.config import Settings
from milepost.declare import Host
from milepost.ending import Ending, on_signals
from milepost.errors import AccessRefused, Invalid, NotFound, SchemaMismatch, Unavailable
from milepost.faces import refuse_in_loop
from milepost.job import Job
from milepost.kept_loop import new_loop
from milepost.options import check_seconds
from milepost.queues import check_queues
from milepost.records import NewJob
from milepost.request.kind import Requests
from milepost.store import followups, hints, rules
from milepost.store.brokers import INBOUND, QUEUE
from milepost.store.connections import import_asyncpg
from milepost.store.driver import AsyncDriver, Steps
from milepost.store.queues import declare
from milepost.store.schedules import NewSchedule
from milepost.telemetry import Log, ThrottledLog

if TYPE_CHECKING:
    from milepost.batch.declaration import Batch
    from milepost.maintain.chores import Chore
    from milepost.maintain.loop import Maintainer
    from milepost.observe.metrics import WorkerMetrics
    from milepost.relay.broker import Broker
    from milepost.relay.channel import ChannelSpec
    from milepost.relay.hints import HintQueue
    from milepost.relay.inbound import Inbound, Receiver
    from milepost.relay.loop import Relay
    from milepost.relay.report import Reporter
    from milepost.worker.loop import Worker
    from milepost.worker.pipe import Begin

log = Log("milepost.worker")

T = TypeVar("T")


class Runner(Host):
    """Runs the jobs of an app in this process; each call makes the parts that it needs.

    Declarations are read when something runs, so that they may come at any time before.
    """

    requests: Requests
    _scheduled: dict[str, NewSchedule]
    _channels: "dict[str, ChannelSpec]"
    _inbound: "dict[str, Inbound]"
    _transports: "dict[str, str | Broker]"
    _brokers: "dict[str, Broker]"
    """The brokers that were called by their names."""
    _batches: "dict[tuple[str, int], Batch]"
    metrics: "WorkerMetrics | None" = None
    """Where workers of this process count their work, if they do."""
    logs_as_command: bool = False
    """Whether a command writes this process's lines, as processes of isolated jobs then do too."""

    # Working

    def drain(
        self,
        timeout: float = 0,
        *,
        queues: Sequence[str] | None = None,
        isolate: bool = False,
    ) -> int:
        """Run due jobs, here, with the real worker; return how many jobs were run.

        With `timeout` it goes on for up to that many seconds with retries, wake-ups and gates that
        come due meanwhile; it returns when nothing is open or the time is over. With `queues` the
        others are left alone. Ctrl-C lets running jobs end; a second one gives them back at once.
        Jobs declared with `isolate=True` run in this process too, without their limits, unless it
        is asked to `isolate` them as a worker does.
        """
        refuse_in_loop("drain")
        # A program that has its own way with Ctrl-C keeps it.
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        interrupts: list[int] = []
        work = self._drain(timeout, queues, interrupts if usual else None, isolate=isolate)
        ran = self.client.run_in_loop(work)
        if interrupts:
            raise KeyboardInterrupt
        return ran

    async def drain_async(
        self,
        timeout: float = 0,  # noqa: ASYNC109 - the caller's limit
        *,
        queues: Sequence[str] | None = None,
        isolate: bool = False,
    ) -> int:
        """Run due jobs, here, with the real worker; return how many jobs were run."""
        return await self._drain(timeout, queues, None, isolate=isolate)

    async def _drain(
        self,
        seconds: float,
        queues: Sequence[str] | None,
        interrupts: list[int] | None,
        *,
        isolate: bool,
    ) -> int:
        """Run the jobs that are due; each Ctrl-C is entered in `interrupts`, if they are given."""
        check_seconds("timeout", seconds, zero=True)
        worker = await self.worker(queues, drains=True, isolate=isolate)

        def interrupted() -> None:
            if interrupts is not None:
                interrupts.append(signal.SIGINT)
            worker.drain()

        with on_signals(() if interrupts is None else (signal.SIGINT,), interrupted):
            async with self.requests.open(drains=True):
                ran = await worker.run_until_idle(seconds)
        if queues is None and not interrupts:
            await self.relay_once_async()
        return ran

    def run_worker(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        *,
        recycle: bool = False,
    ) -> bool:
        """Run a worker until SIGTERM or SIGINT; a second one gives back running jobs at once.

        A thread cannot be killed: one whose handler ran past its timeout stays behind. With
        `recycle` the worker also stops when as many are stuck as may work at once, and answers
        True: the process should be started anew, as `milepost worker` does by itself.
        """
        refuse_in_loop("run_worker")
        ending = Ending(self.settings.grace)
        with ending, asyncio.Runner(loop_factory=new_loop) as runner:
            work = self._run_worker(queues, concurrency, ending, recycle=recycle)
            if worn_out := runner.run(self._and_close(work)):
                ending.begin()  # a stuck thread must not keep the process from its end
            return worn_out

    async def run_worker_async(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        *,
        signals: bool = True,
        recycle: bool = False,
    ) -> bool:
        """Run a worker until SIGTERM or SIGINT, or until the task is cancelled.

        Without `signals` they are left to the server that this worker is a part of.
        """
        with Ending(self.settings.grace) if signals else nullcontext() as ending:
            return await self._run_worker(queues, concurrency, ending, recycle=recycle)

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Serve the metrics of this process, if the settings say where."""
        address = self.settings.metrics_address
        if address is None:
            yield
            return
        from milepost.observe.fresh import FreshMetrics  # noqa: PLC0415 - asked for
        from milepost.observe.metrics import WorkerMetrics, read, serving  # noqa: PLC0415 - likewise

        own, stored = self.metrics or WorkerMetrics(), FreshMetrics()
        self.metrics = own
        counted = partial(stored.get, partial(self.client.run, read))
        with serving(*address, own, counted) as (host, port):
            shown = f"[{host}]" if ":" in host else host
            log.info("metrics are served", address=f"http://{shown}:{port}/metrics")
            yield

    async def _run_worker(
        self,
        queues: Sequence[str] | None,
        concurrency: int | None,
        ending: Ending | None,
        *,
        recycle: bool,
    ) -> bool:
        with self._measured():
            return await self._work(queues, concurrency, ending, recycle=recycle)

    async def _work(
        self,
        queues: Sequence[str] | None,
        concurrency: int | None,
        ending: Ending | None,
        *,
        recycle: bool,
    ) -> bool:
        caught = () if ending is None else (signal.SIGTERM, signal.SIGINT)
        first = None if ending is None else ending.begin
        stopped = asyncio.Event()
        worker: Worker | None = None

        def stop() -> None:
            stopped.set()
            if worker is not None:
                worker.drain()

        with on_signals(caught, stop, first=first):
            if not await self._reached(stopped):
                return False
            worker = await self.worker(queues, concurrency, recycle=recycle)
            if stopped.is_set():
                return False  # it came before there was a worker to be told
            async with self.requests.open():
                await worker.run()
        return recycle and worker.worn_out

    async def _reached(self, stopped: asyncio.Event) -> bool:
        """Wait until the store is there; False when it is to stop before.

        Errors that waiting does not change are raised: a login or a schema that is refused, a file
        that cannot be used, a driver that is not installed.
        """
        client, away = self.client, ThrottledLog(log)
        if not client.url.can.file:
            import_asyncpg()
        while not stopped.is_set():
            try:
                await client.async_driver()
            except (AccessRefused, SchemaMismatch):
                raise
            except Unavailable as error:
                if client.url.can.file:
                    raise
                away.warning("the store cannot be reached; waiting for it", error=str(error))
            else:
                away.over("the store is there")
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(self.settings.error_wait):
                    await stopped.wait()
        return not stopped.is_set()

    async def worker(
        self,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        *,
        drains: bool = False,
        recycle: bool = False,
        isolate: bool = True,
    ) -> "Worker":
        """Make a worker with its maintenance, and with the relay and receivers that it needs.

        One that only `drains` maintains without an election, and finds the jobs of a broker's
        queues in the store: no broker need be there.
        """
        begin = self._isolation() if isolate else None
        from milepost.worker import Setup  # noqa: PLC0415 - clients need no worker
        from milepost.worker.loop import Worker  # noqa: PLC0415 - likewise

        Importing.refuse("a worker begins, or a drain,")
        if queues is not None:
            check_queues(queues)
        settings = self._settings_for(concurrency)
        driver = await self.client.async_driver()
        await self._declare(driver)
        hinted = [] if drains else await self._hint_queues(driver, queues)
        relay = self._relay(driver)
        self._count_in(driver, relay, hinted)
        reporters = [] if drains else self._reporters(driver, hinted)
        return Worker(
            Setup(
                client=self.client,
                driver=driver,
                registry=self.registry,
                settings=settings,
                queues=queues,
                metrics=self.metrics,
                begin=begin,
            ),
            maintainer=self._maintainer(
                driver, elected=drains, dispatching=_enqueue(queues) if drains else None
            ),
            relay=relay,
            receivers=[*self.receivers(driver), *reporters],
            hinted=hinted,
            recycle=recycle,
        )

    def _settings_for(self, concurrency: int | None) -> Settings:
        """Read the settings of a worker that has so many slots, or as many as they say."""
        if concurrency is None:
            return self.settings
        settings = replace(self.settings, concurrency=concurrency)
        settings.check()
        return settings

    def _isolation(self) -> "Begin | None":
        """Say how a process becomes what this one is; None if it cannot, and no job needs it."""
        from milepost.worker.pipe import Begin  # noqa: PLC0415 - likewise
        from milepost.worker.processes import can_isolate, can_measure, find_place  # noqa: PLC0415 - likewise

        limited = [d.name for d in self.registry if d.memory or d.cpu_seconds]
        if limited and not can_measure():
            raise Invalid(
                f"job {limited[0]!r} has a limit of memory or processor time, and this system has "
                "no /proc to read them from: run its workers on Linux, or leave the limit out"
            )
        wanted = [d.name for d in self.registry if d.isolate]
        needed = wanted or self.settings.isolate == "all"
        # Where none is needed a suspect would have one: not worth a search in every module.
        modules = {d.function.__module__: None for d in self.registry} | dict.fromkeys(
            list(sys.modules) if needed else ()
        )
        place = find_place(self, modules) if can_isolate() else None
        if place is not None:
            settings = self.settings
            lines = (settings.log_level, settings.log_format) if self.logs_as_command else None
            address = self.client.url.address
            return Begin(place, list(sys.argv), address, lines, settings.max_payload)
        if needed:
            told = f"job {wanted[0]!r} is" if wanted else "all jobs are"
            raise Invalid(
                f"{told} to run in a process of its own, which imports the app anew: "
                + (
                    "it must be a name at the top of a module, as in `app = milepost.App()`"
                    if can_isolate()
                    else "this system has no way to hand a connection to a process"
                )
            )
        return None

    async def _declare(self, driver: AsyncDriver) -> None:
        """Store what this program declares and others act on."""
        if self.client.declared_bounds:
            await driver.run(declare, self.client.declared_bounds)
        if self.client.declared_transports:
            await driver.run(hints.declare, self.client.declared_transports)
        declared = {**self.client.declared_rules, **self.requests.rules}
        if declared:
            await driver.run(rules.declare, declared)
            await driver.run(rules.see, declared)
        following = {(d.name, d.version): d.on_failure for d in self.registry}
        if following:
            await driver.run(followups.declare, following)

    async def _and_close(self, work: Awaitable[T]) -> T:
        """Await work in a loop made for it: connections opened there are closed there."""
        try:
            return await work
        finally:
            await self.client.close_async()

    # Messages

    def relay_once(self) -> int:
        """Deliver the final messages that are due now; return how many arrived."""
        refuse_in_loop("relay_once")
        return self.client.run_in_loop(self.relay_once_async())

    async def relay_once_async(self) -> int:
        """Deliver the final messages that are due now; return how many arrived."""
        driver = await self.client.async_driver()
        relay = self._relay(driver)
        return (0 if relay is None else await relay.once()) + await self._tell_once(driver)

    def _relay(self, driver: AsyncDriver) -> "Relay | None":
        if not self._channels:
            return None
        from milepost.relay.loop import Relay  # noqa: PLC0415 - most declare no channel

        return Relay(driver, self._channels, self.client.hooks)

    async def _tell_once(self, driver: AsyncDriver) -> int:
        """Tell brokers of the jobs that were handed to them; return how many they took."""
        queues = await self._hint_queues(driver, None)
        if not queues:
            return 0
        from milepost.relay.hints import Teller  # noqa: PLC0415 - few queues are on a broker

        try:
            return sum([await Teller(driver, queue, self.settings).once() for queue in queues])
        finally:
            for queue in queues:
                await queue.broker.close()

    async def _hint_queues(
        self, driver: AsyncDriver, queues: Sequence[str] | None
    ) -> "list[HintQueue]":
        """Find the brokers of the queues that are served here and wait on one."""
        found = {
            name: transport
            for name, transport in self._transports.items()
            if transport != hints.STORE and (queues is None or name in queues)
        }
        if not found:
            return []
        from milepost.relay.hints import HintQueue, Reach  # noqa: PLC0415 - few are on a broker

        store = await driver.run(hints.name)
        away = self.settings.broker_away
        return [
            HintQueue(name, self._broker(transport), store, Reach(away))
            for name, transport in found.items()
        ]

    def _broker(self, given: "Broker | str") -> "Broker":
        """Give a broker, or the one of MILEPOST_BROKER_URL by its name: one for the whole app."""
        from milepost.relay.broker import broker_named, check_broker  # noqa: PLC0415 - most declare none

        check_broker(given)
        if not isinstance(given, str):
            return given
        if given not in self._brokers:
            self._brokers[given] = broker_named(given, self.settings.broker_url)
        return self._brokers[given]

    def new_job(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> NewJob:
        """Make a job that is to be stored, from names and values; the API calls this."""
        if kind == self.requests.definition.name:
            return self.requests.new(args, kwargs, options)
        definition = self.registry.newest(kind)
        if definition.feed is not None or definition.outlet is not None:
            raise Invalid(f"{kind} is a step of a batch; start a run of the batch")
        job: Job[Any, Any, Any, Any] = Job(self, definition)
        return job.options(**options).new(args, kwargs)

    def new_run(
        self, name: str, params: Any, options: Mapping[str, Any]
    ) -> "Callable[[], Steps[str]]":
        """Give the operation that starts a run of the newest version of a batch."""
        versions = [key for key in self._batches if key[0] == name]
        if not versions:
            raise NotFound(f"no batch is called {name!r} here")
        return self._batches[max(versions)].starting(params, **options)

    def receivers(self, driver: AsyncDriver) -> "list[Receiver]":
        """Make the receivers of jobs from brokers, one for each inbound."""
        if not self._inbound:
            return []
        from milepost.relay.inbound import Receiver  # noqa: PLC0415 - most declare none

        most = self.settings.max_payload * 2
        return [Receiver(driver, one, self, most_bytes=most) for one in self._inbound.values()]

    def _count_in(
        self, driver: AsyncDriver, relay: "Relay | None", hinted: "Sequence[HintQueue]"
    ) -> None:
        """Let the metrics of this process show what they count."""
        if self.metrics is not None:
            self.metrics.driver = driver
            self.metrics.hints = {queue.name: queue.counts for queue in hinted}
            self.metrics.messages = {} if relay is None else relay.counts

    def _reporters(self, driver: AsyncDriver, hinted: "Sequence[HintQueue]") -> "list[Reporter]":
        """Ask the brokers how much waits on them, for whoever looks at the store."""
        if not (hinted or self._inbound):
            return []
        from milepost.relay.report import Asked, Reporter  # noqa: PLC0415 - most declare none

        places = [Asked(QUEUE, q.name, q.broker, q.topic, q.topic) for q in hinted]
        inbound = self._inbound.values()
        places += [Asked(INBOUND, i.name, i.broker, i.subject, i.name) for i in inbound]
        return [Reporter(driver, places)]

    # Maintenance

    def maintain_once(self) -> int:
        """Do one pass of maintenance; return how much there was to do."""
        refuse_in_loop("maintain_once")
        return self.client.run_in_loop(self.maintain_once_async())

    async def maintain_once_async(self) -> int:
        """Do one pass of maintenance; return how much there was to do."""
        driver = await self.client.async_driver()
        await self._declare(driver)
        maintainer = self._maintainer(driver, dispatching=self._dispatch())
        return (await maintainer.whole_pass()).total

    def _dispatch(self) -> "Chore":
        """Hand out the jobs of this program's queues: another program's are left to it."""
        from milepost.maintain.chores import dispatch, enqueue_left  # noqa: PLC0415 - likewise

        queues = [name for name, found in self._transports.items() if found != hints.STORE]
        return dispatch(queues, self.settings.hints) if queues else enqueue_left

    def _maintainer(
        self, driver: AsyncDriver, *, elected: bool = False, dispatching: "Chore | None" = None
    ) -> "Maintainer":
        from milepost.maintain.chores import enqueue_left  # noqa: PLC0415 - clients need none
        from milepost.maintain.loop import Maintainer  # noqa: PLC0415 - likewise

        settings = self.settings
        return Maintainer(
            driver,
            settings,
            scheduled=self._scheduled,
            hooks=self.client.hooks,
            metrics=self.metrics,
            elected=elected,
            dispatching=dispatching or enqueue_left,
        )


def _enqueue(queues: Sequence[str] | None) -> "Chore":
    from milepost.maintain.chores import enqueue  # noqa: PLC0415 - clients need none

    return enqueue(queues)


def transport_name(found: "str | Broker") -> str:
    """Name what carries a queue: the store, or a kind of broker."""
    return found if isinstance(found, str) else found.name
