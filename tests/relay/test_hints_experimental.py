"""Queues on brokers that others stand in for: Kafka every day, SQS and Service Bus when proving."""

import asyncio

import pytest

import milepost as mp
from milepost.relay.kafka import Kafka
from milepost.relay.servicebus import ENDING, ServiceBus
from milepost.relay.sqs import SQS
from tests.support.brokers import MotoServer, ServiceBusPeer
from tests.support.kafka import KafkaMock
from tests.support.prove import PROVING

JOBS = 40
PATIENCE = 60.0
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}


@pytest.fixture(params=["kafka", *(["sqs", "servicebus"] if PROVING else [])])
def broker(request, tmp_path):
    """A broker of each kind, on a server of its own."""
    kind = {"kafka": KafkaMock, "sqs": MotoServer, "servicebus": ServiceBusPeer}[request.param]
    server = kind(tmp_path / "broker")
    server.start()
    if request.param == "kafka":
        yield Kafka(server.url, session_timeout_ms=1500, heartbeat_interval_ms=500)
    elif request.param == "sqs":
        yield SQS(server.url, create=True, **KEYS)
    else:
        server.put("?creates=yes")
        yield ServiceBus(server.url)
    server.stop()


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:loop is:ResourceWarning")
async def test_b12_jobs_are_claimed_by_the_hints_of_a_log_a_visibility_and_a_lock(
    database, broker, raw
):
    """B-12, B-18: each hint is acknowledged after its claim; no lock is renewed for a job."""
    app = await asyncio.to_thread(mp.App, database.url, sweep=0.05, concurrency=8)
    app.queue("slow", transport=broker)
    ran: list[int] = []
    done = asyncio.Event()

    @app.job(queue="slow")
    async def work(number: int) -> None:
        ran.append(number)
        if len(ran) == JOBS:
            done.set()

    await work.submit_many_async([(number,) for number in range(JOBS)])
    worker = await app.worker()
    task = asyncio.create_task(worker.run())
    await asyncio.wait_for(done.wait(), PATIENCE)
    worker.drain()
    await task
    [queue] = worker._hints._queues
    await app.close_async()
    await asyncio.gather(*ENDING)  # Service Bus hangs up for longer than a worker waits
    assert sorted(ran) == list(range(JOBS))
    assert queue.counts["claimed"] == JOBS  # by hints, not by a look into the store
    assert raw.value("SELECT count(*) FROM hint") == 0
