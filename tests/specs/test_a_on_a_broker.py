"""A's chunk diagram on a real broker: READY and QUEUED are two states, and each is seen."""

import asyncio
from collections.abc import Iterator

import pytest

import milepost as mp
from milepost.observe.verify import verify
from milepost.relay.broker import broker_at
from milepost.specs import JOB_VIEWS, Facts
from tests.support.brokers import NatsServer

PATIENCE = 60.0
QUEUE = "chunks"
STORIES = {
    "find": ["READY QUEUED IN_PROGRESS COMPLETED"],
    "load": [
        "GATE_WAITING READY QUEUED IN_PROGRESS COMPLETED",
        "GATE_WAITING READY QUEUED IN_PROGRESS ERROR READY QUEUED IN_PROGRESS COMPLETED",
    ],
    "indexed": [
        "POLL_WAITING READY QUEUED IN_PROGRESS POLL_WAITING READY QUEUED IN_PROGRESS COMPLETED",
    ],
}


@pytest.fixture
def server(tmp_path):
    """A broker of the test's own."""
    made = NatsServer(tmp_path / "broker")
    made.start()
    yield made
    made.stop()


def declared(url: str, broker: str) -> tuple[mp.App, mp.Batch]:
    """A batch with a gate, a poll and an error, all of whose chunks pass the broker."""
    app = mp.App(url, sweep=0.05, poll_max=0.05)
    app.queue(QUEUE, transport=broker_at(broker))
    batch = app.batch("import")

    @batch.step(queue=QUEUE)
    def find() -> Iterator[int]:
        yield from (1, 2)

    @batch.step(queue=QUEUE, gated=True, retry_delay=0)
    async def load(number: int) -> int:
        if number == 1 and mp.current().attempt == 1:
            raise ConnectionError
        return number

    @batch.step(queue=QUEUE, poll=0.05)
    async def indexed(ctx: mp.Context, number: int) -> int:
        if ctx.fence == 1:
            raise mp.Later(0.05)
        return number

    return app, batch


async def test_h_50_every_chunk_walks_a_diagram_through_the_broker(database, raw, server):
    app, batch = declared(database.url, server.url)
    run = await batch.start_async()
    [chunk] = await app.jobs.list_async()
    # READY: not yet handed to the broker. QUEUED: handed to the outbox, by the maintenance phase.
    assert chunk.state == "READY"
    assert tuple(map(chunk.as_spec, "ABDE")) == ("READY", "PartitionPending", "QUEUED", "pending")
    assert await app.maintain_once_async()
    chunk = await chunk.refresh_async()
    assert chunk.state == "QUEUED"
    assert tuple(map(chunk.as_spec, "ABDE")) == ("QUEUED", "PartitionPending", "QUEUED", "pending")
    assert raw.value("SELECT count(*) FROM hint WHERE told_at IS NULL") == 1
    assert await app.relay_once_async() == 1
    assert raw.value("SELECT count(*) FROM hint WHERE told_at IS NULL") == 0

    worker = await app.worker()
    working = asyncio.create_task(worker.run())
    await run.wait_async(PATIENCE)
    worker.drain()
    await working

    view, told = JOB_VIEWS["A"], {}
    for job in await app.jobs.list_async():
        seen = [view.word(Facts(e.to_state, transport="nats")) for e in await job.history_async()]
        story = " ".join(w for w, before in zip(seen, ["", *seen], strict=False) if w != before)
        told.setdefault(job.kind.rpartition(".")[2], set()).add(story)
    assert {kind: sorted(stories) for kind, stories in told.items()} == {
        kind: sorted(stories) for kind, stories in STORIES.items()
    }
    await app.close_async()
    with database.driver() as driver:
        assert verify(driver).clean
