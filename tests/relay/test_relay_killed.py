"""Relays are killed and brokers crash: every message arrives, ids are stable, order is kept (I16).

The full proof kills 100 relays and crashes each broker ten times during 2,000 messages; every day a
tenth.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import aio_pika
import nats as client
import pytest
from redis.asyncio import Redis

import milepost as mp
from milepost.client import new_id
from milepost.observe.verify import verify
from milepost.records import NewJob, Template
from milepost.relay.broker import broker_at
from milepost.store import creation
from tests.support.brokers import NatsServer, RedisServer, ValkeyServer
from tests.support.prove import PROVING, size
from tests.support.rabbitmq import RabbitMQServer, private

PROGRAM = Path(__file__).parent / "relay_worker.py"
MESSAGES, KILLS = size(2_000), size(100)
IN_LINE = 4
"""A job and its reruns: so many messages must keep their order."""
LONGEST_SECONDS = 540


def ended(app: mp.App, raw, lines: int) -> dict[str, list[str]]:
    """End jobs and their reruns, one after the other; answer with each line's jobs in order."""
    made: dict[str, list[str]] = {new_id(): [] for _ in range(lines)}
    for _ in range(IN_LINE):
        new = []
        for first, line in made.items():
            job_id = new_id() if line else first
            template = Template(kind="k", channel="orders", rerun_of=line[-1] if line else None)
            new.append(NewJob(job_id, b"{}", template))
            line.append(job_id)
        app.client.run(creation.create, new)
        raw.execute(
            "UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1"
            " WHERE state = 'QUEUED'"
        )
    return made


class Relays:
    """Two workers at a time; whoever is killed is replaced."""

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, str(PROGRAM), *arguments]
        self._running = [self._started() for _ in range(2)]
        self.killed = 0

    def _started(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill_one(self) -> None:
        """Kill the older one, without a chance to say anything, and start another."""
        oldest = self._running.pop(0)
        oldest.send_signal(signal.SIGKILL)
        oldest.wait(10)
        self.killed += 1
        self._running.append(self._started())

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.wait(10)


def delivered(raw) -> int:
    return raw.value("SELECT count(*) FROM outbox WHERE delivered_at IS NOT NULL")


def nats_arrivals(server: NatsServer, subject: str) -> list[tuple[str, str, bytes]]:
    """Read what the stream holds, in order: (id, the event's subject, body)."""

    async def read():
        connection = await client.connect(server.url)
        stream = connection.jetstream()
        reader = await stream.subscribe(subject, ordered_consumer=True)
        count = (await stream.stream_info("MILEPOST")).state.messages
        found = [await reader.next_msg(timeout=10) for _ in range(count)]
        await connection.close()
        return [(m.headers["Nats-Msg-Id"], json.loads(m.data)["subject"], m.data) for m in found]

    return asyncio.run(read())


def rabbitmq_arrivals(server: RabbitMQServer, subject: str) -> list[tuple[str, str, bytes]]:
    """Take what the queue holds, in order: (id, the event's subject, body)."""

    async def read():
        connection = await aio_pika.connect(server.url)
        channel = await connection.channel()
        queue, found = await channel.get_queue(subject), []
        while (message := await queue.get(fail=False, no_ack=True)) is not None:
            found.append(message)
        await connection.close()
        return [(m.message_id, json.loads(m.body)["subject"], m.body) for m in found]

    return asyncio.run(read())


def redis_arrivals(server: RedisServer, subject: str) -> list[tuple[str, str, bytes]]:
    """Read what the stream holds, in order: (id, the event's subject, body)."""

    async def read():
        redis = Redis.from_url(server.url.replace("valkey", "redis", 1))
        found = [fields for _, fields in await redis.xrange(subject)]
        await redis.aclose()
        return [(m[b"id"].decode(), json.loads(m[b"data"])["subject"], m[b"data"]) for m in found]

    return asyncio.run(read())


def survived(database, raw, server, arrivals, *, kills, crashes, seconds):
    """End jobs, and kill relays and the broker until their messages are delivered."""
    app = mp.App(database.url)
    lines = ended(app, raw, MESSAGES // IN_LINE)
    app.close()
    total = sum(map(len, lines.values()))
    subject = f"orders-{new_id()}"
    relays = Relays(database.url, server.url, subject, str(seconds))
    crashed, until = 0, time.monotonic() + LONGEST_SECONDS
    try:
        while (done := delivered(raw)) < total:
            assert time.monotonic() < until, f"{done} of {total} after {relays.killed} kills"
            if relays.killed < kills and done >= relays.killed * total // (kills + 1):
                relays.kill_one()
            elif crashed < crashes and done >= (crashed + 1) * total // (crashes + 1):
                server.restart()
                crashed += 1
            time.sleep(0.005)  # another look at what other processes have done
    finally:
        relays.stop()

    assert (relays.killed, crashed) == (kills, crashes)
    came = arrivals(server, subject)
    due = {job_id for line in lines.values() for job_id in line}
    assert {subject for _, subject, _ in came} == due
    ids, bodies = defaultdict(set), defaultdict(set)
    for message_id, subject, body in came:
        ids[subject].add(message_id)
        bodies[subject].add(body)
    assert all(len(found) == 1 for found in (*ids.values(), *bodies.values()))
    first = {subject: place for place, (_, subject, _) in reversed(list(enumerate(came)))}
    for line in lines.values():
        places = [first[job_id] for job_id in line]
        assert places == sorted(places)
    taken = raw.value("SELECT sum(fence) FROM outbox")
    twice = sum(count - 1 for count in Counter(subject for _, subject, _ in came).values())
    print(
        f"{total} messages, {relays.killed} relays killed, the broker crashed {crashed} times:"
        f" {taken - total} taken again, {twice} stored twice"
    )
    with database.driver() as driver:
        assert verify(driver).clean


@pytest.mark.both_stores
@pytest.mark.prove
@pytest.mark.timeout(600)
def test_every_message_arrives_in_order_however_often_relays_and_nats_die(database, raw, nats):
    survived(database, raw, nats, nats_arrivals, kills=KILLS, crashes=size(10), seconds=0.5)


@pytest.fixture(params=["redis", "valkey"])
def streams(request, tmp_path):
    """A server with streams, of the test's own."""
    kind = {"redis": RedisServer, "valkey": ValkeyServer}[request.param]
    if missing := kind.missing():
        pytest.skip(missing)
    server = kind(tmp_path / "data")
    server.start()
    yield server
    server.kill()


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_every_message_arrives_in_order_however_often_redis_or_valkey_die(database, raw, streams):
    survived(database, raw, streams, redis_arrivals, kills=size(10), crashes=size(10), seconds=1)


@pytest.mark.prove
@pytest.mark.timeout(900)
def test_every_message_arrives_in_order_however_often_rabbitmq_dies(database, raw, tmp_path):
    """Ten times in the proof; it takes seconds to come back."""
    if missing := RabbitMQServer.missing():
        pytest.skip(missing)
    with private(tmp_path / "rabbitmq") as server:
        survived(
            database, raw, server, rabbitmq_arrivals, kills=size(10), crashes=size(10), seconds=5
        )


@pytest.fixture(params=["nats", "redis", "valkey", *(["rabbitmq"] if PROVING else [])])
def wiped(request, tmp_path):
    """A server that may be wiped, and the way to read what it holds; RabbitMQ starts slowly."""
    if request.param == "rabbitmq":
        if missing := RabbitMQServer.missing():
            pytest.skip(missing)
        with private(tmp_path / "rabbitmq") as server:
            yield server, rabbitmq_arrivals
        return
    kinds = {"nats": NatsServer, "redis": RedisServer, "valkey": ValkeyServer}
    if missing := kinds[request.param].missing():
        pytest.skip(missing)
    server = kinds[request.param](tmp_path / "data")
    server.start()
    yield server, nats_arrivals if request.param == "nats" else redis_arrivals
    server.kill()


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_a_broker_that_lost_everything_is_told_again_under_the_same_ids(app, raw, wiped):
    """B-2: later messages arrive by themselves, those that it had had are redelivered."""
    server, arrivals = wiped
    subject = f"orders-{new_id()}"
    app.channel("orders", broker=broker_at(server.url), subject=subject)
    ended(app, raw, MESSAGES // IN_LINE // 2)
    while app.relay_once():
        pass
    lost = {message.id for message in app.channels.messages("orders", limit=MESSAGES // 2)}
    server.wipe()
    ended(app, raw, MESSAGES // IN_LINE // 2)
    until = time.monotonic() + LONGEST_SECONDS
    while delivered(raw) < MESSAGES:
        assert time.monotonic() < until
        app.relay_once()
    ids = {message_id for message_id, _, _ in arrivals(server, subject)}
    assert len(ids) == MESSAGES // 2
    assert not ids & lost
    assert app.channels.redeliver("orders", sorted(lost)) == len(lost)
    while app.relay_once():
        pass
    if server.scheme != "amqp":  # reading takes them out of its queue
        assert {message_id for message_id, _, _ in arrivals(server, subject)} == ids | lost
    else:
        assert {message_id for message_id, _, _ in arrivals(server, subject)} == lost
