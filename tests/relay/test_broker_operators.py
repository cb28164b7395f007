"""What operators see of brokers: figures, explanations, findings and pages, by the store alone."""

import asyncio

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from milepost.observe import doctor, metrics
from milepost.relay.broker import Lag, Outgoing
from milepost.relay.nats import Nats
from milepost.relay.report import Asked, Reporter
from milepost.store import brokers
from milepost.store.explain import explain
from milepost.store.queue_explain import explain_queue
from milepost.web.api import create_api
from tests.support.brokers import NatsServer

QUEUE = "slow/one"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all, with queues of other names for each store."""
    started = NatsServer(tmp_path_factory.mktemp("nats") / "jetstream")
    started.start()
    yield started
    started.stop()


@pytest.fixture
def work(app, server):
    app.queue(QUEUE, transport=Nats(server.url, stream=f"S{id(app)}"))

    @app.job(queue=QUEUE)
    def work(number: int) -> int:
        return number

    return work


async def reported(app):
    """Ask the brokers, as a worker does."""
    driver = await app.client.async_driver()
    hinted = await app._hint_queues(driver, None)
    [reporter] = app._reporters(driver, hinted)
    await reporter.once()
    for queue in hinted:
        await queue.broker.close()


async def handed_out(app):
    await app.maintain_once_async()
    await app.relay_once_async()


def step(app, coroutine):
    """Do one thing as a program would that connects, does it and leaves."""

    async def run():
        try:
            return await coroutine
        finally:
            await app.client.close_async()

    return asyncio.run(run())


def figures(app):
    registry = CollectorRegistry()
    registry.register(app.client.run(metrics.read))
    lines = generate_latest(registry).decode().splitlines()
    return {line for line in lines if line.startswith(("milepost_hint", "milepost_broker"))}


def findings(app):
    return {(found.subject, found.text) for found in app.client.run(doctor._brokers)}


def test_a_job_of_a_broker_queue_is_explained_from_ready_to_told(app, work, advance):
    job = work.submit(1)
    why = app.client.run(explain, job.id)
    assert (why.state, why.reasons[0]) == ("READY", "broker")
    assert "(nats)" in why.details[0]
    assert {found[1] for found in findings(app)} == {
        "it is on nats, and no running program serves it there"
    }
    step(app, handed_out(app))
    advance(7)
    why = app.client.run(explain, job.id)
    assert why.state == "QUEUED"
    assert "told" in why.reasons
    told = why.details[why.reasons.index("told")]
    assert "nats was told of it once, last " in told
    assert "no_worker" in why.reasons
    step(app, reported(app))
    assert findings(app) == set()
    queue = app.client.run(explain_queue, QUEUE)
    line = queue.details[queue.reasons.index("on_broker")]
    assert "1 job was told, 0 yet to be" in line
    assert "the broker has 1 waiting, 0 in flight" in line
    label = f'queue="{QUEUE}"'
    assert figures(app) >= {
        f'milepost_hints{{{label},state="told"}} 1.0',
        f'milepost_hints{{{label},state="untold"}} 0.0',
        f'milepost_broker_up{{name="{QUEUE}",side="queue"}} 1.0',
        f'milepost_broker_messages{{name="{QUEUE}",side="queue",state="waiting"}} 1.0',
    }


def test_a_broker_that_is_away_is_told_and_so_are_hints_that_nobody_follows(
    app, work, advance, server
):
    job = work.submit(1)
    step(app, handed_out(app))
    step(app, reported(app))
    waits = work.submit(2)
    server.kill()
    try:
        advance(20)
        step(app, handed_out(app))
        step(app, reported(app))
    finally:
        server.start()
    why = app.client.run(explain, waits.id)
    assert {"broker_away", "untold"} <= set(why.reasons)
    away = why.details[why.reasons.index("broker_away")]
    assert f"the broker at nats://127.0.0.1:{server.port} last answered " in away
    assert "not-a-secret" not in why.text
    queue = app.client.run(explain_queue, QUEUE)
    assert "broker_away" in queue.reasons
    assert f'milepost_broker_up{{name="{QUEUE}",side="queue"}} 0.0' in figures(app)
    texts = " ".join(text for _, text in findings(app))
    assert f"its broker at nats://127.0.0.1:{server.port} does not answer" in texts
    assert "nats does not take 1 of its hints" in texts

    advance(400)
    texts = " ".join(text for _, text in findings(app))
    assert "no running program serves it there" in texts
    assert "1 job was told, once, and not claimed" in texts
    assert app.client.run(explain, job.id).reasons[-1] != "in_line"
    step(app, app.drain_async())  # no broker is needed
    assert job.refresh().state == "SUCCEEDED"


def test_one_worker_asks_for_all(app, server):
    broker = Counting(server.url, stream=f"C{id(app)}")

    async def ask():
        driver = await app.client.async_driver()
        place = Asked(brokers.INBOUND, "orders", broker, f"orders-{id(app)}", "orders")
        await broker.publish(place.subject, Outgoing("1", b"{}", {}), seconds=10)
        for _ in range(3):
            await Reporter(driver, [place]).once()
        await broker.close()

    step(app, ask())
    [report] = app.client.run(brokers.reports)
    assert (broker.asked, report.up, report.figures["waiting"]) == (1, True, 1)


class Counting(Nats):
    asked = 0

    async def lag(self, subject, **options) -> Lag:
        self.asked += 1
        return await super().lag(subject, **options)


def test_a_worker_counts_what_became_of_hints_and_of_messages(app, server):
    """The names of outcomes are few; whatever a program calls its queues, so are theirs."""
    own = metrics.WorkerMetrics()
    own.hints = {f"q{number}": {"told": 1, "unroutable": 2} for number in range(500)}
    own.messages = {"orders": {"arrived": 3, "refused": 1}}
    registry = CollectorRegistry()
    registry.register(own)
    text = generate_latest(registry).decode()
    assert 'milepost_messages_sent_total{channel="orders",outcome="refused"} 1.0' in text
    assert 'milepost_hints_followed_total{outcome="unroutable",queue="q1"} 2.0' in text
    lines = [line for line in text.splitlines() if line.startswith("milepost_hints_followed_total")]
    assert len(lines) == metrics.NAMES_MOST * len(metrics.HINTED)


def test_a_worker_hands_its_counts_to_its_metrics(app, work, server):
    app.metrics = metrics.WorkerMetrics()
    app.channel("orders", broker=Nats(server.url, stream=f"S{id(app)}"), subject=f"done-{id(app)}")
    job = work.options(channel="orders").submit(1)

    async def run():
        worker = await app.worker()
        working = asyncio.create_task(worker.run())
        counts = app.metrics
        while not (counts.hints[QUEUE].get("claimed") and counts.messages.get("orders")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while not await app.client.run_async(brokers.reports):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        worker.drain()
        await asyncio.wait_for(working, 60)
        return counts

    counts = step(app, run())
    assert counts.hints[QUEUE]["told"] >= 1
    assert counts.messages["orders"] == {"arrived": 1}
    assert job.refresh().state == "SUCCEEDED"


PAGE = {"Accept": "text/html"}


async def test_pages_show_what_brokers_say_and_whom_to_worry_about(app, work):
    """The pages of queues and of channels; nothing of a broker that nobody uses."""
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as api:
        assert "Inbound" not in (await api.get("/channels", headers=PAGE)).text
        await work.submit_async(1)
        page = (await api.get("/queues", headers=PAGE)).text
        assert "on nats · nobody serves it there" in page
        await handed_out(app)
        await reported(app)
        place = (brokers.INBOUND, "new-orders")
        run = app.client.run_async
        await run(brokers.ask, *place, broker="sqs", address="sqs://<b>eu")
        counts = {"waiting": 7, "in_flight": 1, "redelivered": None, "dead": 4}
        await run(brokers.answered, *place, **counts)
        page = (await api.get("/queues", headers=PAGE)).text
        assert "on nats · 1 told, 0 to tell" in page
        assert 'title="1 waiting, 0 in flight' in page
        page = (await api.get("/channels", headers=PAGE)).text
        assert "sqs://&lt;b&gt;eu" in page
        assert "Answers" in page
        await run(brokers.silent, *place, error="it cannot be reached")
        page = (await api.get("/channels", headers=PAGE)).text
        assert "Away" in page
        assert "it cannot be reached" in page
    await app.client.close_async()
