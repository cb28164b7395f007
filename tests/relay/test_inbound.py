"""Jobs and runs that arrive as messages, on every broker: once each, whatever comes twice."""

import asyncio
import json
import random
from contextlib import suppress
from string import ascii_letters
from uuid import uuid4

import pytest

import milepost as mp
from milepost.errors import LeaseLost, Unavailable
from milepost.relay import inbound
from milepost.relay.broker import Outgoing, broker_at
from milepost.store import failpoint

pytestmark = pytest.mark.in_turn

PATIENCE = 60


class OddError(Exception):
    """A mistake of ours."""


class Orders:
    """An inbound of an app, and the programs that send to it."""

    def __init__(self, app, server):
        self.app = app
        self.broker = broker_at(server.url)
        self.subject = f"orders-{uuid4().hex}"
        app.inbound("orders", self.broker, subject=self.subject)

    def send(self, *messages):
        """Publish messages: each an id and what it says."""

        async def publish():
            for message_id, said in messages:
                data = said if isinstance(said, bytes) else json.dumps(said).encode()
                await self.broker.publish(
                    self.subject, Outgoing(f"{self.subject}:{message_id}", data, {}), seconds=20
                )
            await self.broker.close()

        asyncio.run(publish())

    def receive(self, expected, *, rounds=0):
        """Receive as a worker does, until so many came, in so many rounds at least."""

        async def receive():
            [receiver] = self.app.receivers(await self.app.client.async_driver())
            count = looks = 0
            async with asyncio.timeout(PATIENCE):
                while count < expected or looks < rounds:
                    looks += 1
                    with suppress(Unavailable):
                        count += await receiver.once(0.5)
            await self.broker.close()
            await self.app.client.close_async()
            return count

        return asyncio.run(receive())

    def lag(self):
        async def ask():
            found = await self.broker.lag(self.subject, name="orders", seconds=10)
            await self.broker.close()
            return found

        return asyncio.run(ask())


@pytest.fixture
def orders(app, broker_server):
    """An inbound, a job and a batch for it."""
    nightly = app.batch("nightly", params=dict[str, int])

    @app.job(limit=mp.Limit(9, key="document"))
    def convert(document: str) -> str:
        return f"{document}.pdf"

    @nightly.step
    def read(params: dict[str, int]):
        yield from range(params["count"])

    @nightly.step
    def add(number: int) -> int:
        return number

    @nightly.reduce
    def total(numbers) -> int:
        return sum(numbers)

    return Orders(app, broker_server)


def test_jobs_and_runs_arrive_once_and_what_is_neither_is_kept(app, orders):
    """H-53: also those that come twice, as a publisher that was not sure repeats them."""
    job = {"kind": "convert", "args": ["report"], "options": {"priority": 2}}
    run = {"batch": "nightly", "params": {"count": 4}, "options": {"tags": {"by": "shop"}}}
    event = {"specversion": "1.0", "id": "7", "source": "/shop", "type": "order", "data": run}
    wrong = [b"\xff{", {"batch": "nightly", "param": 1}, {"batch": "nightly", "options": {"x": 1}}]
    good = [("job", job), ("run", run), ("event", event), ("again", event)]
    orders.send(*good, *((f"wrong-{place}", said) for place, said in enumerate(wrong)))
    orders.receive(len(good) + len(wrong))
    orders.send(("job", job), ("run", run))  # a broker that knows them may drop them itself
    orders.receive(0 if orders.broker.name == "nats" else 2)

    app.drain()
    [made] = app.jobs.list(kind="convert")
    assert (made.result, made.record.priority) == ("report.pdf", 2)
    assert made.limit_key == "report"
    runs = app.runs.list()
    assert [run.report for run in runs] == [6, 6]  # the plain one and the event
    assert {run.history[0].actor for run in runs} == {"inbound orders"}
    refused = {message.message_id.partition(":")[2]: message for message in app.channels.refused()}
    assert set(refused) == {"wrong-0", "wrong-1", "wrong-2"}
    assert "the message is no run" in refused["wrong-1"].error
    assert "unknown field `x`" in refused["wrong-2"].error
    assert orders.lag().in_flight in (0, None)


def test_what_nobody_declares_yet_comes_again_and_is_refused_at_last(app, orders, monkeypatch):
    """A newer program may be on its way; also where the broker does not count."""
    monkeypatch.setattr(inbound, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(inbound, "DELIVERIES_MOST", 3)
    orders.send(("job", {"kind": "later"}), ("run", {"batch": "later"}))
    came = 0
    while len(refused := app.channels.refused("orders")) < 2:
        came += orders.receive(1)
    assert 2 < came <= 6  # a broker also counts what it took back unasked
    assert sorted(message.error for message in refused) == [
        "no batch is called 'later' here",
        "no job is called 'later' here",
    ]
    assert app.jobs.list() == app.runs.list() == []


def test_messages_stay_with_the_broker_while_the_queue_is_full_and_none_is_refused(
    app, orders, monkeypatch
):
    monkeypatch.setattr(inbound, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(inbound, "DELIVERIES_MOST", 3)
    monkeypatch.setattr(inbound, "FULL_SECONDS", 0.05)
    app.queue("default", max_waiting=2)
    job, run = {"kind": "convert", "args": ["a"]}, {"batch": "nightly", "params": {"count": 1}}
    said = [job, job, job, run, job]
    orders.send(*((f"{place}", one) for place, one in enumerate(said)))
    for _ in range(5):
        orders.receive(0, rounds=2)
        assert app.counts()["default"]["QUEUED"] == 2
    for _ in range(20):
        app.drain(queues=["default"])
        if len(app.jobs.list(kind="convert")) + len(app.runs.list()) == len(said):
            break
        orders.receive(1, rounds=4)
    app.drain()
    assert {job.state for job in app.jobs.list()} == {"SUCCEEDED"}
    assert (len(app.jobs.list(kind="convert")), len(app.runs.list())) == (4, 1)
    assert app.channels.refused() == []


@pytest.mark.parametrize("broker_server", ["redis"], indirect=True)
def test_a_message_that_came_before_is_acknowledged_though_the_queue_is_full(app, orders):
    app.queue("default", max_waiting=1)
    said = {"kind": "convert", "args": ["a"]}
    for _ in range(2):
        orders.send(("order", said))
        orders.receive(1)
    assert len(app.jobs.list()) == 1
    assert orders.lag().in_flight in (0, None)


@pytest.mark.parametrize("broker_server", ["redis"], indirect=True)
async def test_nothing_is_taken_from_the_broker_while_the_queue_stays_full(
    app, orders, monkeypatch
):
    """A broker counts how often a message was given back, and gives up at last."""
    monkeypatch.setattr(inbound, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(inbound, "FULL_SECONDS", 0.01)
    app.queue("default", max_waiting=1)
    for number in range(4):
        said = Outgoing(f"{orders.subject}:{number}", b'{"kind": "convert", "args": ["a"]}', {})
        await orders.broker.publish(orders.subject, said, seconds=20)
    [receiver] = app.receivers(await app.client.async_driver())
    assert await receiver.once(5) == 4  # of which one fits
    for _ in range(10):
        assert await receiver.once(0.1) == 0
    for _ in range(3):
        await app.drain_async()
        async with asyncio.timeout(PATIENCE):
            while not (came := await receiver.once(0.1)):
                pass
        assert came == 1, "no more than there is room for"
    await app.drain_async()
    assert len(await app.jobs.list_async(state="SUCCEEDED")) == 4
    await orders.broker.close()
    await app.close_async()


def test_a_message_that_cannot_be_kept_now_comes_again(app, orders, monkeypatch):
    """It stayed in the worker's hand: on RabbitMQ for as long as the worker ran."""
    monkeypatch.setattr(inbound, "AGAIN_SECONDS", 0.01)
    failures = iter(range(2))

    def away() -> None:
        if next(failures, None) is not None:
            raise Unavailable("the store is away")

    orders.send(("wrong", b"no job"))
    with failpoint.armed("before:inbox_add", away):
        orders.receive(1)
    [kept] = app.channels.refused("orders")
    assert kept.content == b"no job"


def test_a_message_that_nobody_can_handle_is_refused_at_last_and_others_pass(
    app, orders, monkeypatch
):
    """Whatever is raised: a message that comes for ever holds up those behind it."""
    monkeypatch.setattr(inbound, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(inbound, "DELIVERIES_MOST", 3)
    make = app.new_job

    def raising(kind, args, kwargs, options):
        if args == ["odd"]:
            raise OddError
        return make(kind, args, kwargs, options)

    monkeypatch.setattr(app, "new_job", raising)
    orders.send(*((name, {"kind": "convert", "args": [name]}) for name in ("odd", "plain")))
    while not (refused := app.channels.refused("orders")):
        orders.receive(1)
    assert [message.error for message in refused] == ["OddError()"]
    app.drain()
    assert [job.result for job in app.jobs.list()] == ["plain.pdf"]


@pytest.mark.parametrize("broker_server", ["redis"], indirect=True)
def test_a_message_whose_unique_key_changed_hands_comes_again(app, orders, monkeypatch):
    """It is right: where many submit with one key, it is their turn that is over."""
    monkeypatch.setattr(inbound, "AGAIN_SECONDS", 0.01)
    create, failures = app.client.create_in_bounds, iter(range(1))

    def create_in_bounds(new):
        if next(failures, None) is not None:
            raise LeaseLost("unique key 'k' changed hands too often; submit again")
        return (yield from create(new))

    monkeypatch.setattr(app.client, "create_in_bounds", create_in_bounds)
    said = {"kind": "convert", "args": ["a"], "options": {"unique": "k", "on_conflict": "replace"}}
    orders.send(("order", said))
    orders.receive(1, rounds=4)
    assert [job.kind for job in app.jobs.list()] == ["convert"]
    assert app.channels.refused() == []


@pytest.mark.parametrize("broker_server", ["redis"], indirect=True)
@pytest.mark.both_stores
def test_every_id_is_recognised_also_one_that_no_index_holds(app, orders):
    long = "".join(random.Random(7).choices(ascii_letters, k=20_000))
    said = {"kind": "convert", "args": ["report"]}
    event = {"specversion": "1.0", "source": "/shop", "type": "order", "data": said}
    ids = [long, f"{long}x", "a\0b", "a\0c", "ä" * 999]
    orders.send(*((f"{n}-{i}", {**event, "id": one}) for n in "ab" for i, one in enumerate(ids)))
    orders.send(("\0", b"no job"), ("\0x", said))
    orders.receive(2 * len(ids) + 2)
    assert len(app.jobs.list()) == len(ids) + 1
    [refused] = app.channels.refused()
    assert refused.content == b"no job"


# A stream of NATS drops an id that came within two minutes by itself.
@pytest.mark.parametrize("broker_server", ["redis", "rabbitmq"], indirect=True)
def test_a_message_that_was_refused_and_is_put_right_becomes_a_job(app, orders):
    """It was acknowledged, and no job made: its id was known."""
    orders.send(("order", b"no job"))
    orders.receive(1)
    orders.send(("order", b"no job either"))
    orders.receive(1)
    [refused] = app.channels.refused()
    assert refused.content == b"no job either"
    for _ in range(2):
        orders.send(("order", {"kind": "convert", "args": ["report"]}))
        orders.receive(1)
    assert len(app.jobs.list()) == 1
    assert app.channels.refused() == []
