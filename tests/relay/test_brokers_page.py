"""The examples of the page on brokers: a message becomes a job, whose end is a message."""

import asyncio
import json
import re
from pathlib import Path
from uuid import uuid4

import pytest

from milepost.relay.broker import Outgoing, broker_at
from tests.support.brokers import NatsServer, RedisServer, ValkeyServer
from tests.support.kafka import KafkaMock

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "brokers.md"
PATIENCE = 60


SERVERS = {
    "nats": ("NATS", NatsServer),
    "redis": ("Redis and Valkey", RedisServer),
    "valkey": ("Redis and Valkey", ValkeyServer),
}


@pytest.fixture(params=["RabbitMQ", "Kafka", *SERVERS])
def server(request, tmp_path):
    if request.param in SERVERS:
        section, kind = SERVERS[request.param]
        if missing := kind.missing():
            pytest.skip(missing)
        found = kind(tmp_path / "data")
        found.start()
        yield section, found.url
        found.kill()
        return
    if request.param == "RabbitMQ":
        with request.getfixturevalue("rabbitmq_servers").lent() as found:
            yield request.param, found.url
        return
    found = KafkaMock(tmp_path / "kafka")
    found.start()
    yield request.param, found.url
    found.stop()


async def test_the_example_runs_on_a_real_broker(server, tmp_path, monkeypatch):
    section, url = server
    monkeypatch.chdir(tmp_path)
    app = example(section, url)
    order = {"kind": "convert", "args": ["report"], "options": {"channel": "orders"}}
    there = broker_at(url)
    subject, done = (app._inbound["new-orders"].subject, app._channels["orders"].courier._subject)
    for _ in range(2):  # sent twice, under one id
        message = Outgoing("order-7", json.dumps(order).encode(), {})
        await there.publish(subject, message, seconds=PATIENCE)
    worker = await app.worker()
    working = asyncio.create_task(worker.run())
    async with asyncio.timeout(PATIENCE):
        while not (came := await there.receive(done, name="reader", most=1, seconds=1)):
            pass
        event = json.loads(came[0].message.data)
        assert came[0].message.headers["content-type"] == "application/cloudevents+json"
        assert (event["type"], event["data"]["result"]) == ("milepost.job.succeeded", "report.pdf")
        await came[0].acknowledge()
    worker.drain()
    await working
    assert len(await app.jobs.list_async()) == 1
    await there.close()
    await app.close_async()


def example(section, url):
    """Run a section's program, with the address of our own server and subjects of its own."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2]
    [program, *_] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    mine = uuid4().hex
    program = re.sub(r'"\w+://[^"]*internal[^"]*"', repr(url), program)
    program = program.replace('"orders.done"', f'"done-{mine}"')
    program = program.replace(
        'app.inbound("new-orders", broker)',
        f'app.inbound("new-orders", broker, subject="new-{mine}")',
    )
    names: dict[str, object] = {}
    exec(compile(program, str(PAGE), "exec"), names)
    return names["app"]
