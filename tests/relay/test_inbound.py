"""Jobs and runs that arrive as messages, on every broker: once each, whatever comes twice."""

import asyncio
import json
from uuid import uuid4

import pytest

from milepost.relay import inbound
from milepost.relay.broker import Outgoing, broker_at

pytestmark = pytest.mark.in_turn

PATIENCE = 60


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

    def receive(self, expected):
        """Receive as a worker does, until so many came and nothing is left in hand."""

        async def receive():
            [receiver] = self.app.receivers(await self.app.client.async_driver())
            count = 0
            async with asyncio.timeout(PATIENCE):
                while count < expected:
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

    @app.job
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
