"""Queues on a broker: the hint is on the broker, the job in its row. Each hazard B-n has a test."""

import asyncio
import json
import time
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from time import monotonic
from uuid import uuid4

import psycopg
import pytest

import milepost as mp
from milepost.errors import Unavailable
from milepost.observe.verify import verify
from milepost.relay.broker import Outgoing, Undelivered, broker_at
from milepost.relay.hints import topic
from milepost.store import brokers, failpoint, hints
from milepost.store.workers import NewWorker
from milepost.worker import hints as following
from tests.support.brokers import NatsServer, RedisServer, ValkeyServer
from tests.support.databases import everyday_names
from tests.support.rabbitmq import RabbitMQServer, distant

SERVERS = {
    "nats": NatsServer,
    "rabbitmq": RabbitMQServer,
    "redis": RedisServer,
    "valkey": ValkeyServer,
}
POSTGRES = [name for name in everyday_names() if name != "sqlite"]
PATIENCE = 60.0
QUEUE = "slow"


WIPES = "b2_"
"""Empties the server: it must be that test's alone."""


@pytest.fixture(autouse=True)
def _looks_up_soon(monkeypatch):
    """Every worker here is stopped: let it wait a moment for its last answer, not a second.

    Workers of `test_hints_killed` wait as long as they do for users.
    """
    monkeypatch.setattr(following, "WAIT_SECONDS", 0.1)


@pytest.fixture(scope="module")
def own_servers(tmp_path_factory):
    """Servers of this runner, started when they are first asked for."""
    with ExitStack() as stack:

        @cache
        def started(name: str):
            server = SERVERS[name](tmp_path_factory.mktemp("broker") / "data")
            server.start()
            stack.callback(server.stop)
            return server

        yield started


@pytest.fixture(params=SERVERS)
def server(request, own_servers):
    """A broker of each kind; the stores of tests have names, and so topics, of their own."""
    if (missing := SERVERS[request.param].missing()) is not None:
        pytest.skip(missing)
    if request.param != "rabbitmq":
        yield own_servers(request.param)
        return
    alone = WIPES in request.function.__name__
    with (
        request.getfixturevalue("rabbitmq_servers").lent(alone=alone) as lent,
        distant(lent) as found,
    ):
        yield found  # it starts in seconds: its network dies in its place


class Case:
    """An app whose queue is on a broker, on a fresh store."""

    def __init__(self, database, server) -> None:
        self.database, self.server = database, server
        self.broker = Watched(broker_at(server.url))
        # The store's clock is moved under a worker that is not to be lost.
        self.settings = {"sweep": 0.05, "poll_max": 0.05, "broker_away": 0.3, "lease": 86_400}
        self.app = mp.App(database.url, **self.settings)
        self.app.queue(QUEUE, transport=self.broker)
        self.ran: list[int] = []

        @self.app.job(queue=QUEUE, retry_delay=0)
        async def work(number: int) -> int:
            self.ran.append(number)
            return number

        self.work = work
        self.store = self.app.client.run(hints.name)
        self.topic = topic(self.store, QUEUE)

    @asynccontextmanager
    async def working(self):
        worker = await self.app.worker()
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            worker.drain()
            await task

    def counts(self, worker) -> dict[str, int]:
        [queue] = worker._hints._queues
        return queue.counts

    async def ask(self) -> None:
        """Ask the broker how much waits there, as a worker does."""
        driver = await self.app.client.async_driver()
        [reporter] = self.app._reporters(driver, await self.app._hint_queues(driver, None))
        await reporter.once()

    async def tell(self, job_id: str, **changed) -> None:
        """Put a hint on the broker by hand."""
        told = {"v": 1, "store": self.store, "job": job_id, "version": 2, **changed}
        await self.put(json.dumps(told).encode())

    async def put(self, data: bytes) -> None:
        message = Outgoing(f"by-hand-{uuid4()}", data, {"Content-Type": "application/json"})
        await self.broker.publish(self.topic, message, seconds=10)

    async def close(self) -> None:
        await self.app.close_async()
        await self.broker.close()
        with self.database.driver() as driver:
            assert [str(problem) for problem in verify(driver).problems] == []


class Watched:
    """A broker that tells what was asked of it, and whose answers a test may hold up."""

    def __init__(self, broker) -> None:
        self._broker = broker
        self.name, self.address = broker.name, broker.address
        self.asked: list[int] = []
        self.acknowledged: list[str] = []
        self.before_ack = None
        self.refuse: Exception | None = None

    async def publish(self, subject, message, *, seconds):
        if self.refuse is not None:
            raise self.refuse
        await self._broker.publish(subject, message, seconds=seconds)

    async def receive(self, subject, *, name, most, seconds):
        self.asked.append(most)
        found = await self._broker.receive(subject, name=name, most=most, seconds=seconds)
        return [WatchedDelivery(self, delivery) for delivery in found]

    async def lag(self, subject, *, name, seconds):
        return await self._broker.lag(subject, name=name, seconds=seconds)

    async def close(self):
        await self._broker.close()


class WatchedDelivery:
    """A delivery whose acknowledgement is seen."""

    def __init__(self, broker: Watched, delivery) -> None:
        self._broker, self._delivery = broker, delivery
        self.message = delivery.message
        self.again, self.terminate = delivery.again, delivery.terminate

    async def acknowledge(self) -> None:
        if self._broker.before_ack is not None:
            await self._broker.before_ack(self.message)
        await self._delivery.acknowledge()
        self._broker.acknowledged.append(self.message.id)


@pytest.fixture
async def case(database, server):
    """An app whose queue is on a broker; its journal is whole afterwards."""
    made = await asyncio.to_thread(Case, database, server)
    yield made
    await made.close()


@pytest.fixture
def advance(case):
    """Move the clock that decides."""

    async def move(seconds: float) -> None:
        from milepost.store import workers

        await case.app.client.run_async(workers.advance_clock, seconds)

    return move


async def until(condition, what: str = "it did not happen") -> None:
    limit = monotonic() + PATIENCE
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return
        assert monotonic() < limit, what
        await asyncio.sleep(0.01)


async def ended(case, jobs) -> None:
    """Wait until every job has succeeded, once."""

    async def all_final() -> bool:
        return all([(await job.refresh_async()).state == "SUCCEEDED" for job in jobs])

    await until(all_final, "not every job ended")


async def moves(job) -> list[str]:
    return [entry.move for entry in await job.history_async()]


async def test_a_job_is_ready_then_queued_then_claimed_by_its_id(case):
    job = await case.work.submit_async(1)
    assert (job.state, job.as_spec("A")) == ("READY", "READY")
    async with case.working():
        await ended(case, [job])
        await until(lambda: case.broker.acknowledged)
    assert await moves(job) == ["create", "dispatch", "claim", "succeed"]
    assert case.ran == [1]


async def test_many_jobs_run_once_each_and_leave_no_hint(case, raw):
    jobs = await case.work.submit_many_async([(number,) for number in range(120)])
    async with case.working() as worker:
        await ended(case, jobs)
        assert case.counts(worker)["told"] >= 120
    assert sorted(case.ran) == list(range(120))
    assert raw.value("SELECT count(*) FROM hint WHERE told_at IS NULL") == 0


async def test_maintenance_hands_out_and_the_relay_tells(case, raw):
    job = await case.work.submit_async(1)
    assert await case.app.maintain_once_async()
    assert (await job.refresh_async()).as_spec("A") == "QUEUED"
    assert raw.value("SELECT count(*) FROM hint WHERE told_at IS NULL") == 1
    assert await case.app.relay_once_async() == 1
    assert raw.value("SELECT count(*) FROM hint WHERE told_at IS NOT NULL") == 1
    async with case.working():
        await ended(case, [job])
    assert case.ran == [1]


async def test_b1_a_hint_that_comes_twice_or_too_late_does_nothing(case):
    job = await case.work.submit_async(1)
    stopped = await case.work.options(hold=True).submit_async(2)
    await stopped.cancel_async("not wanted")
    async with case.working() as worker:
        await ended(case, [job])
        for _ in range(3):
            await case.tell(str(job.id))
        await case.tell(str(stopped.id))
        await until(lambda: case.counts(worker).get("duplicate", 0) == 4)
        await until(lambda: len(case.broker.acknowledged) == 5)
    assert case.ran == [1]


@pytest.mark.parametrize("server", ["nats"], indirect=True)
async def test_b1_hints_that_come_twice_hold_up_nobody(case):
    """A worker waited a second after each handful of them: it was behind for ever."""
    case.app.settings = case.app.settings.chosen(concurrency=1)
    stopped = await case.work.options(hold=True).submit_async(2)
    await stopped.cancel_async("not wanted")
    await asyncio.gather(*(case.tell(str(stopped.id)) for _ in range(20)))
    async with case.working() as worker, asyncio.timeout(15):
        await until(lambda: case.counts(worker).get("duplicate", 0) == 20)


async def test_b2_b10_b11_a_wiped_broker_costs_time_only_and_tellings_slow_down(
    case, server, advance, raw
):
    job = await case.work.submit_async(1)
    await case.app.relay_once_async()
    await asyncio.to_thread(server.wipe)
    due = "SELECT tellings, fence, due_at - told_at FROM hint"
    for tellings in (2, 3):
        await advance(30 * 2 ** (tellings - 2) - 1)
        assert await case.app.relay_once_async() == 0
        await advance(2)
        # Another message: under the same id the broker's window might drop it.
        assert await case.app.relay_once_async() == 1
        [(told, fence, wait)] = raw.execute(due)
        seconds = wait / 1e6 if isinstance(wait, int) else wait.total_seconds()
        assert (told, fence, round(seconds)) == (tellings, tellings, 30 * 2 ** (tellings - 1))
    async with case.working():
        await ended(case, [job])
    assert case.ran == [1]


async def test_b3_a_crash_between_claim_and_acknowledgement_is_told_anew(case, advance):
    job = await case.work.submit_async(1)
    await case.app.relay_once_async()
    run = case.app.client.run_async
    dead = NewWorker(id="dead", lease_us=30_000_000)
    from milepost.store import workers

    await run(workers.register, dead)
    word = case.app.registry.words
    [claim] = await run(hints.claim, [str(job.id)], worker_id="dead", queue=QUEUE, kinds=word)
    async with case.working() as worker:
        # Its hint comes, and there is nothing to claim.
        await until(lambda: case.counts(worker).get("duplicate"))
        await advance(31)
        await ended(case, [job])
    assert await moves(job) == [
        *("create", "dispatch", "claim"),
        *("lose", "due", "dispatch", "claim", "succeed"),
    ]
    assert claim.fence == 1


async def test_b4_b5_acknowledged_after_the_commit_and_never_in_the_way(case):
    seen, hanging = [], asyncio.Event()

    async def before_ack(message) -> None:
        job = await case.app.jobs.get_async(json.loads(message.data)["job"])
        seen.append(job.state)
        await hanging.wait()

    case.broker.before_ack = before_ack
    jobs = await case.work.submit_many_async([(number,) for number in range(10)])
    began = monotonic()
    async with case.working():
        await ended(case, jobs)
        await until(lambda: len(seen) == 10)
    # The worker has stopped although no acknowledgement ever came back.
    assert set(seen) <= {"RUNNING", "SUCCEEDED"}
    assert monotonic() - began < PATIENCE
    hanging.set()


async def test_b6_hints_are_given_back_while_the_store_is_away(case, monkeypatch):
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.05)
    failures = iter(range(3))

    def away() -> None:
        if next(failures, None) is not None:
            raise Unavailable("the store is away")

    job = await case.work.submit_async(1)
    with failpoint.armed("before:job_claim_hinted", away):
        async with case.working():
            await ended(case, [job])
    assert case.ran == [1]
    assert (await job.refresh_async()).attempt == 1


async def test_b7_an_unknown_job_is_given_back_a_few_times_then_dropped(case, monkeypatch):
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.01)
    async with case.working() as worker:
        await case.tell("01900000-0000-7000-8000-000000000000")
        await until(lambda: case.counts(worker).get("unknown_left"))
        assert case.counts(worker)["unknown"] == following.RETURNS
        await until(lambda: len(case.broker.acknowledged) == 1)


async def test_b8_a_paused_queue_keeps_its_jobs_and_loses_none(case, monkeypatch, advance):
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.01)
    job = await case.work.submit_async(1)
    await case.app.relay_once_async()
    later = await case.work.submit_async(2)
    await case.app.queues.pause_async(QUEUE)
    async with case.working() as worker:
        await until(lambda: case.counts(worker).get("unfit_left"))
        assert case.ran == []
        assert (await later.refresh_async()).state == "READY"  # a paused queue hands out nothing
        await case.app.queues.resume_async(QUEUE)
        await advance(31)
        await ended(case, [job, later])
    assert sorted(case.ran) == [1, 2]


async def test_b8_a_kind_that_nobody_has_here_is_left_to_others(case, monkeypatch):
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.01)
    other = mp.App(case.database.url)

    @other.job(queue=QUEUE)
    async def elsewhere() -> None: ...

    job = await elsewhere.submit_async()
    async with case.working() as worker:
        await until(lambda: case.counts(worker).get("unfit_left"))
    assert (await job.refresh_async()).state == "QUEUED"
    await other.close_async()


async def test_b9_b19_poison_is_kept_and_what_is_not_ours_goes_elsewhere(case, monkeypatch):
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.01)
    job = await case.work.submit_async(1)
    async with case.working() as worker:
        await case.put(b"\xffno hint")
        await case.tell(str(job.id), v=99, more="than we know")
        await case.tell(str(job.id), store="another")
        await until(lambda: case.counts(worker).get("newer"))
        await until(lambda: case.counts(worker).get("foreign"))
        await until(lambda: case.counts(worker).get("refused"))
        await ended(case, [job])
    [kept] = await case.app.channels.refused_async(f"queue {QUEUE}")
    assert kept.content == b"\xffno hint"
    assert case.ran == [1]


async def test_b9_poison_that_cannot_be_kept_now_holds_up_no_hint(case, monkeypatch):
    """The store was away for a moment: hints that came with it stayed in the worker's hand."""
    monkeypatch.setattr(following, "AGAIN_SECONDS", 0.05)
    failures = iter(range(1))

    def away() -> None:
        if next(failures, None) is not None:
            raise Unavailable("the store is away")

    await case.put(b"no hint")
    job = await case.work.submit_async(1)
    await case.app.relay_once_async()
    with failpoint.armed("before:inbox_add", away):
        async with case.working() as worker:
            await ended(case, [job])
            await until(lambda: case.counts(worker).get("refused"))
            assert not case.counts(worker).get("again")


async def test_b11_what_the_broker_still_has_is_not_told_again(case, advance):
    """A backlog that took longer than the interval was told again and again, and grew by it."""
    await case.work.submit_many_async([(number,) for number in range(4)])
    assert await case.app.relay_once_async() == 4
    await advance(31)
    await case.ask()
    assert await case.app.relay_once_async() == 0
    lost = []
    while len(lost) < 3:
        lost += await case.broker.receive(case.topic, name=case.topic, most=1, seconds=1)
        await lost[-1].acknowledge()
    await advance(16)
    await case.ask()
    assert await case.app.relay_once_async() == 4


async def test_b11_b13_so_many_are_handed_out_the_most_urgent_first(case, raw):
    for number, priority in enumerate((0, 5, 9, 5)):
        await case.work.options(priority=priority).submit_async(number)
    run = case.app.client.run_async
    given = {"most": 3, "batch": 250, "lease_seconds": 30.0, "actor": "test"}
    assert len(await run(hints.dispatch, QUEUE, **given)) == 3
    assert await run(hints.dispatch, QUEUE, **given) == []
    assert raw.value("SELECT priority FROM job WHERE state = 'READY'") == 0


@pytest.mark.parametrize("server", ["nats"], indirect=True)
async def test_b11_jobs_of_a_blocked_key_do_not_keep_others_from_the_broker_l20(case):
    case.app.settings = case.app.settings.chosen(hints=10)
    ran, released = [], asyncio.Event()

    @case.app.job(queue=QUEUE, limit=mp.Limit(1, key="who"))
    async def keyed(who: str) -> None:
        ran.append(who)
        await released.wait()

    jobs = await keyed.submit_many_async([("a",)] * 30 + [("b",)])
    async with case.working():
        await until(lambda: sorted(ran) == ["a", "b"])
        released.set()
        await ended(case, jobs)
    assert ran.count("a") == 30


@pytest.mark.both_stores
@pytest.mark.parametrize("server", ["redis"], indirect=True)
async def test_b15_after_an_outage_a_blocked_key_does_not_keep_others_from_starting_l20(case):
    """All were queued while the broker was away, and it was told of the first ones by key."""
    case.app.settings = case.app.settings.chosen(hints=10)
    ran, released = [], asyncio.Event()

    @case.app.job(queue=QUEUE, limit=mp.Limit(1, key="who"))
    async def keyed(who: str) -> None:
        ran.append(who)
        await released.wait()

    jobs = await keyed.submit_many_async([(who,) for who in ["a"] * 30 + ["b", "c"] + ["d"] * 30])
    jobs.append(await case.work.submit_async(1))
    queued = await asyncio.to_thread(
        case.app.client.run, hints.enqueue, [QUEUE], actor="m", most=99
    )
    assert queued == len(jobs)
    async with case.working():
        await until(lambda: sorted(ran) == ["a", "b", "c", "d"])
        await until(lambda: case.ran == [1])
        released.set()
        await ended(case, jobs)
    assert ran.count("a") == 30


@pytest.mark.parametrize("server", ["redis"], indirect=True)
async def test_b11_a_queue_with_a_limit_is_handed_out_job_by_job(case, monkeypatch):
    """Each of its hints came in vain, and again after five seconds and more."""
    monkeypatch.setattr(following, "AGAIN_SECONDS", 3600.0)
    case.app.settings = case.app.settings.chosen(hint_again=3600)
    case.app.queue(QUEUE, transport=case.broker, most=1)
    jobs = await case.work.submit_many_async([(number,) for number in range(30)])
    async with case.working():
        await ended(case, jobs)


@pytest.mark.parametrize("server", ["redis"], indirect=True)
@pytest.mark.parametrize("database", POSTGRES, indirect=True)
async def test_a_job_whose_key_others_choose_from_starts_as_soon_as_they_have_l21(
    case, monkeypatch
):
    """Its hint was given back for five seconds and more: another claim held the stripes."""
    monkeypatch.setattr(following, "AGAIN_SECONDS", 3600.0)
    case.app.settings = case.app.settings.chosen(hint_again=3600)

    @case.app.job(queue=QUEUE, limit=mp.Limit(1, key="who"))
    async def keyed(who: str) -> str:
        return who

    async with await psycopg.AsyncConnection.connect(case.database.url) as other:
        await other.execute("SET search_path TO milepost")
        await other.execute("SELECT milepost_lock_stripes(0, 16)")
        job = await keyed.submit_async("a")
        async with case.working() as worker:
            await until(lambda: case.counts(worker).get("told"))
            await asyncio.sleep(0.2)  # it comes, and cannot be chosen
            await other.rollback()
            await ended(case, [job])


async def test_b14_delays_and_retries_stay_in_the_store(case, advance):
    failing = iter([True])

    @case.app.job(queue=QUEUE, retry_delay=60)
    async def shaky() -> None:
        if next(failing, False):
            raise ConnectionError

    job = await shaky.options(start_in=60).submit_async()
    assert job.state == "WAITING"
    async with case.working():
        await advance(61)
        await until(lambda: _is(job, "RETRYING"))
        await advance(61)
        await ended(case, [job])
    assert await moves(job) == [
        *("create", "wake", "dispatch", "claim", "retry"),
        *("due", "dispatch", "claim", "succeed"),
    ]


async def _is(job, state: str) -> bool:
    return (await job.refresh_async()).state == state


async def test_b15_workers_scan_while_the_broker_is_away(case, server):
    await asyncio.to_thread(server.kill)
    try:
        jobs = await case.work.submit_many_async([(number,) for number in range(20)])
        async with case.working() as worker:
            await ended(case, jobs)
            assert not case.counts(worker).get("told")
            await asyncio.to_thread(server.start)
            number = 20
            while not case.counts(worker).get("claimed"):  # by a hint, from now on
                await ended(case, [await case.work.submit_async(number)])
                number += 1
    finally:
        if not server.is_ready():
            await asyncio.to_thread(server.start)
    assert sorted(case.ran) == list(range(number))
    assert {job.attempt for job in [await job.refresh_async() for job in jobs]} == {1}


async def test_b16_a_worker_asks_for_no_more_than_its_free_slots(case):
    case.app.settings = case.app.settings.chosen(concurrency=4)
    released = asyncio.Event()
    begun = []

    @case.app.job(queue=QUEUE)
    async def slow(number: int) -> None:
        begun.append(number)
        await released.wait()

    await slow.submit_many_async([(number,) for number in range(12)])
    async with case.working() as worker:
        await until(lambda: len(begun) == 4)
        await until(lambda: case.counts(worker).get("told") == 12)
        assert max(case.broker.asked) <= 4

        async def others_wait() -> bool:
            [follower] = worker._hints._followers
            lag = await case.broker.lag(case.topic, name=case.topic, seconds=10)
            # NATS counts what was given back as in flight until somebody has it again.
            on_broker = lag.waiting is None or lag.waiting + (lag.in_flight or 0) >= 8
            return on_broker and not follower._held

        # The others are on the broker, for any worker; those that were in hand are given back.
        await until(others_wait)
        released.set()
        await until(lambda: len(begun) == 12)


async def test_b16_hints_in_hand_are_given_back_when_a_worker_stops(case):
    job = await case.work.submit_async(1)
    await case.app.relay_once_async()
    held = asyncio.Event()
    with failpoint.armed("before:job_claim_hinted", held.set):
        worker = await case.app.worker()
        [follower] = worker._hints._followers
        follower._claimer = Full()
        task = asyncio.create_task(worker.run())
        await until(lambda: follower._held)
        worker.drain()
        await task
    assert not held.is_set()
    async with case.working():
        await ended(case, [job])
    assert case.ran == [1]


async def test_b16_hints_whose_slots_were_filled_during_the_claim_are_kept(case, monkeypatch):
    await case.work.submit_many_async([(number,) for number in range(4)])
    await case.app.relay_once_async()
    case.app.settings = case.app.settings.chosen(concurrency=8)
    worker = await case.app.worker()
    asked: list[int] = []
    claimer, slots, claim = worker._claimer, worker._slots, worker._claimer.claim_hinted

    async def others_come_first(queue, ids):
        monkeypatch.setattr(claimer, "claim_hinted", claim)
        asked.append(len(ids))
        slots.take(taken := slots.free - 1)
        try:
            return await claim(queue, ids)
        finally:
            slots.miss(taken)

    monkeypatch.setattr(claimer, "claim_hinted", others_come_first)
    task = asyncio.create_task(worker.run())
    await until(lambda: len(case.ran) == 4)
    worker.drain()
    await task
    assert asked[0] > 1
    assert case.counts(worker).keys() <= {"told", "again", "claimed", "held"}


class Full:
    """A claimer whose slots were filled when the hints had come."""

    free, room, words = 4, 0, ()

    async def wait_for_room(self) -> None:
        await asyncio.sleep(0.01)


async def test_b17_a_broker_that_dies_while_a_job_runs_touches_its_hint_alone(case, server):
    begun, released = asyncio.Event(), asyncio.Event()

    @case.app.job(queue=QUEUE)
    async def slow() -> None:
        begun.set()
        await released.wait()

    job = await slow.submit_async()
    async with case.working():
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await asyncio.to_thread(server.kill)
        try:
            released.set()
            await ended(case, [job])
        finally:
            await asyncio.to_thread(server.start)
    assert await moves(job) == ["create", "dispatch", "claim", "succeed"]


async def test_b18_a_dead_hint_is_seen_and_its_job_told_again(case, advance):
    job = await case.work.submit_async(1)
    await case.app.relay_once_async()
    [hint] = await case.broker.receive(case.topic, name=case.topic, most=1, seconds=30)
    await hint.terminate()
    dead = 1 if case.broker.name == "rabbitmq" else None  # others keep none
    until = time.monotonic() + 30
    while True:  # it moves there by itself, after the answer
        await case.ask()
        report = await case.app.client.run_async(brokers.report, brokers.QUEUE, QUEUE)
        if report.dead == dead or time.monotonic() > until:
            break
        await asyncio.sleep(0.02)
    assert report.dead == dead
    await advance(31)
    async with case.working() as worker:
        await ended(case, [job])
        assert case.counts(worker)["claimed"] == 1


async def test_b20_a_hint_says_nothing_of_its_job(case):
    await case.work.options(tags={"customer": "42"}).submit_async(4711)
    await case.app.relay_once_async()
    [delivery] = await case.broker.receive(case.topic, name=case.topic, most=1, seconds=30)
    assert set(json.loads(delivery.message.data)) == {"v", "store", "job", "version"}
    await delivery.again(0)


async def test_b21_a_late_confirmation_changes_nothing(case, advance, raw):
    await case.work.submit_async(1)
    run = case.app.client.run_async
    given = {"most": 9, "batch": 9, "lease_seconds": 1.0, "actor": "test"}
    [first] = await run(hints.dispatch, QUEUE, **given)
    await advance(2)
    [second] = await run(hints.take, QUEUE, batch=9, lease_seconds=30.0)
    assert second.fence == first.fence + 1
    assert first.message_id != second.message_id
    await run(hints.told, [first], again_seconds=30.0)
    assert raw.value("SELECT count(*) FROM hint WHERE told_at IS NULL") == 1
    await run(hints.told, [second], again_seconds=30.0)
    assert raw.value("SELECT count(*) FROM hint WHERE told_at IS NULL") == 0


async def test_b22_what_a_broker_refuses_is_not_told_and_runs_all_the_same(case, raw):
    case.broker.refuse = Undelivered("the queue is full")
    job = await case.work.submit_async(1)
    assert await case.app.relay_once_async() == 0
    assert raw.execute("SELECT told_at, error FROM hint") == [(None, "the queue is full")]
    async with case.working():
        await ended(case, [job])
    assert case.ran == [1]


async def test_b23_a_job_that_is_moved_by_hand_is_told(case, raw):
    job = await case.work.submit_async(1)
    raw.execute(
        "UPDATE job SET state = 'QUEUED', move = 'dispatch', version = version + 1"
        f" WHERE id = '{job.id}'"
    )
    async with case.working() as worker:
        await ended(case, [job])
        assert case.counts(worker)["claimed"] == 1


async def test_a_job_that_nobody_claims_in_time_is_taken_back(case, advance, raw):
    job = await case.work.submit_async(1)
    await case.app.relay_once_async()
    await advance(901)
    case.app._transports.clear()  # a program that only maintains
    assert await case.app.maintain_once_async()
    assert (await job.refresh_async()).state == "READY"
    assert await moves(job) == ["create", "dispatch", "undispatch"]
    assert raw.value("SELECT count(*) FROM hint") == 0


async def test_a_queue_that_is_on_a_broker_no_more_hands_out_what_waited(case):
    job = await case.work.submit_async(1)
    case.app.queue(QUEUE)
    assert await case.app.maintain_once_async()
    assert (await job.refresh_async()).state == "QUEUED"
    assert (await case.work.submit_async(2)).state == "QUEUED"
    assert await case.app.drain_async() == 2


async def test_drain_needs_no_broker(database, raw):
    app = mp.App(database.url, broker_url="nats://127.0.0.1:1")
    app.queue(QUEUE, transport="nats")

    @app.job(queue=QUEUE, retry_delay=0)
    async def work() -> None:
        if mp.current().attempt == 1:
            raise ConnectionError

    jobs = [await work.submit_async() for _ in range(2)]
    assert await app.drain_async(30) == 4
    assert await moves(jobs[1]) == [
        *("create", "dispatch", "claim", "retry"),
        *("due", "dispatch", "claim", "succeed"),
    ]
    await app.close_async()
    assert raw.value("SELECT count(*) FROM hint") == 0


def test_a_transport_that_is_none_is_refused_in_words(app):
    with pytest.raises(mp.Invalid, match="no broker is called 'pigeon': there are nats"):
        app.queue("slow", transport="pigeon")
    with pytest.raises(mp.Invalid, match="is no broker"):
        app.queue("slow", transport=42)
    app.queue("slow", transport="nats")
    with pytest.raises(mp.Invalid, match="set MILEPOST_BROKER_URL"):
        app.run_worker()
