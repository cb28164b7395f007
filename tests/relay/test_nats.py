"""NATS JetStream: what ends is published once the stream has it, under the same id every time."""

import asyncio
import json
import signal

import nats as client
import pytest

import milepost as mp
from milepost.relay.broker import Outgoing, Undelivered
from milepost.relay.nats import Nats

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def stored(server, subject="orders"):
    """Read everything that a subject's stream holds, with a client of NATS's own."""

    async def read():
        connection = await client.connect(server.url)
        stream = connection.jetstream()
        reader = await stream.subscribe(subject, ordered_consumer=True)
        info = await stream.stream_info(await stream.find_stream_name_by_subject(subject))
        found = [await reader.next_msg(timeout=5) for _ in range(info.state.messages)]
        await connection.close()
        return found

    return asyncio.run(read())


def declared(app, server, **options):
    """Declare the channel and a job for it."""
    app.channel("orders", broker=Nats(server.url, stream="FINAL"), **options)

    @app.job(retries=0)
    def convert(document: str) -> str:
        if document == "bad":
            raise mp.Fail("unsupported format")
        return f"{document}.pdf"

    return convert.options(channel="orders")


def test_an_end_is_published_as_a_cloud_event(app, nats):
    convert = declared(app, nats)
    job, bad = convert.submit("report"), convert.submit("bad")
    app.drain()
    told = {
        json.loads(message.data)["subject"]: json.loads(message.data) for message in stored(nats)
    }
    first, second = told[job.id], told[bad.id]
    assert first["specversion"] == "1.0"
    assert (first["type"], first["source"]) == ("milepost.job.succeeded", "/v1/jobs")
    assert (first["subject"], first["datacontenttype"]) == (job.id, "application/json")
    assert first["id"] == f"job_{job.id}_{job.refresh().record.version}"
    data = first["data"]
    assert (data["state"], data["job_state"], data["done"]) == ("COMPLETE", "SUCCEEDED", True)
    assert data["result"] == "report.pdf"
    assert "error" not in data
    assert second["type"] == "milepost.job.failed"
    assert second["data"]["error"] == {
        "type": "Fail",
        "message": "unsupported format",
        "cause": "error",
        "code": "invalid_input",
    }
    assert [m.stands for m in app.channels.messages("orders")] == ["delivered"] * 2


def test_the_trace_travels_along(app, nats, raw):
    convert = declared(app, nats)
    convert.submit("report")
    raw.execute(
        f"UPDATE job SET trace = '{TRACE}', move = 'cancel', state = 'CANCELLED',"
        " version = version + 1"
    )
    app.relay_once()
    [message] = stored(nats)
    assert json.loads(message.data)["traceparent"] == TRACE
    assert message.headers["traceparent"] == TRACE
    assert message.headers["Content-Type"] == "application/cloudevents+json"


def test_what_is_published_again_has_the_same_id_and_the_stream_drops_it(app, nats, advance):
    """At least once: a relay that was killed after the publication repeats it."""
    convert = declared(app, nats)
    convert.submit("report")
    app.drain()
    [before] = stored(nats)
    convert.submit("other")
    broker = Nats(nats.url, stream="FINAL")

    async def publish_again():
        again = Outgoing(before.headers["Nats-Msg-Id"], before.data, {})
        await broker.publish("orders", again, seconds=5)
        await broker.close()

    asyncio.run(publish_again())
    app.drain()
    ids = [message.headers["Nats-Msg-Id"] for message in stored(nats)]
    assert len(ids) == len(set(ids)) == 2


def test_a_server_that_is_down_costs_no_message_an_attempt(app, nats, advance):
    convert = declared(app, nats, attempts=1)
    job = convert.submit("report")
    nats.stop(signal.SIGKILL)
    app.drain()
    [waiting] = app.channels.messages("orders")
    assert (waiting.stands, waiting.attempts) == ("waiting", 0)
    assert "cannot be reached" in waiting.error
    nats.start()
    assert app.relay_once() == 1
    [message] = stored(nats)
    assert json.loads(message.data)["subject"] == job.id


def test_a_subject_that_no_stream_takes_says_what_to_do(nats):
    async def publish():
        broker = Nats(nats.url)
        try:
            await broker.publish("nowhere", Outgoing("1", b"{}", {}), seconds=2)
        finally:
            await broker.close()

    with pytest.raises(Undelivered, match="make one, or name it by"):
        asyncio.run(publish())


def test_a_message_that_the_stream_refuses_counts_against_it(nats):
    async def publish():
        broker = Nats(nats.url, stream="FINAL")
        try:
            await broker.publish("orders", Outgoing("1", b"x" * 2_000_000, {}), seconds=2)
        finally:
            await broker.close()

    with pytest.raises(Undelivered, match="as large as this"):
        asyncio.run(publish())


def test_an_address_with_a_password_is_never_shown(app):
    app.channel("orders", broker=Nats("nats://user:secret@127.0.0.1:1"))
    app.relay_once()
    [channel] = app.channels.list()
    assert (channel.kind, channel.target) == ("nats", "nats://127.0.0.1:1 orders")
    assert "secret" not in repr(app.channels.messages("orders"))


# Inbound


def sent(server, *messages, subject="new-orders", **headers):
    """Publish as any other program would."""

    async def send():
        connection = await client.connect(server.url)
        stream = connection.jetstream()
        await stream.add_stream(name="ORDERS", subjects=["new-orders"])
        for body in messages:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            await stream.publish(subject, data, headers=headers or None)
        await connection.close()

    asyncio.run(send())


def received(app, expected, seconds=2.0):
    """Receive as a worker does beside its jobs, until that many came; answer with how many did."""

    async def receive():
        [receiver] = app.receivers(await app.client.async_driver())
        count = 0
        for _ in range(20):
            count += await receiver.once(seconds)
            if count >= expected:
                break
        await receiver._inbound.broker.close()
        await app.client.close_async()
        return count

    return asyncio.run(receive())


def taking(app, server):
    app.inbound("new-orders", Nats(server.url))

    @app.job
    def convert(document: str, *, format: str = "pdf") -> str:  # noqa: A002 - the design's own
        return f"{document}.{format}"


def test_a_message_becomes_a_job(app, nats):
    """Spec C's add_job_from_message."""
    taking(app, nats)
    options = {"channel": "orders", "priority": 3, "tags": {"user": "42"}}
    sent(
        nats,
        {"kind": "convert", "args": ["a"], "kwargs": {"format": "html"}, "options": options},
        traceparent=TRACE,
    )
    assert received(app, 1) == 1
    [job] = app.jobs.list()
    assert (job.record.priority, job.record.channel, job.record.trace) == (3, "orders", TRACE)
    assert job.history[0].actor == "inbound new-orders"
    app.drain()
    assert job.refresh().result == "a.html"
    assert received(app, 0, seconds=0.5) == 0


def test_a_request_arrives_as_a_message(app, nats):
    """Spec C's add_job_from_message: C's jobs are requests."""
    app.inbound("new-orders", Nats(nats.url))
    asked = {"headers": {"Accept": "text/html"}, "json": {"a": 1}, "retries": 5, "timeout": 3}
    url = "https://partner.example/convert"
    sent(
        nats,
        {"kind": "request", "args": ["post", url], "kwargs": asked, "options": {"channel": "c"}},
        {"kind": "request", "kwargs": {"url": url, "start_at": "2030-01-01T00:00:00Z"}},
        traceparent=TRACE,
    )
    assert received(app, 2) == 2
    plain, job = sorted(app.jobs.list(), key=lambda job: job.record.retries)
    assert (job.kind, job.state, job.record.channel) == ("request", "QUEUED", "c")
    assert (job.record.retries, job.record.trace) == (5, TRACE)
    assert job.history[0].actor == "inbound new-orders"
    stored = app.client.codec.decode(job.record.payload)["request"]
    assert (stored["method"], stored["url"], stored["json"]) == ("POST", url, {"a": 1})
    assert plain.state == "WAITING"


UNFIT = [
    {},
    {"url": 7},
    {"url": "ftp://partner.example"},
    {"url": "https://a.example", "method": "BREW"},
    {"url": "https://a.example", "method": 1},
    {"url": "https://a.example", "headers": ["a"]},
    {"url": "https://a.example", "headers": {"A": 1}},
    {"url": "https://a.example", "tags": ["a"]},
    {"url": "https://a.example", "tags": {"a": 1}},
    {"url": "https://a.example", "queue": 5},
    {"url": "https://a.example", "unique": 5},
    {"url": "https://a.example", "start_at": "now"},
    {"url": "https://a.example", "retries": "x"},
    {"url": "https://a.example", "timeout": {"read": "x"}},
    {"url": "https://a.example", "timeout": {"read": -1}},
    {"url": "https://a.example", "timeout": "x"},
    {"url": "https://a.example", "poll": "x"},
    {"url": "https://a.example", "crash": ["x"]},
    {"url": "https://a.example", "retry_delay": "x"},
    {"url": "https://a.example", "backoff": ["x"]},
    {"url": "https://a.example", "jitter": "x"},
    {"url": "https://a.example", "redirects": "x"},
    {"url": "https://a.example", "content": 5},
    {"url": "https://a.example", "reply": {"by": "nobody"}},
    {"url": "https://a.example", "reply": 5},
    {"url": "https://a.example", "callback": True},
    {"url": "https://a.example", "policy": "x"},
    {"url": "https://a.example", "nonsense": 1},
]


def test_a_request_that_does_not_fit_is_refused_by_name(app):
    for asked in UNFIT:
        with pytest.raises(mp.Invalid):
            app.new_job("request", [], asked, {})


def test_a_request_takes_its_method_and_url_once(app):
    for args in (["GET", "https://a.example", 1], ["GET"]):
        with pytest.raises(mp.Invalid):
            app.new_job("request", args, {"method": "GET", "url": "https://a.example"}, {})


def test_a_message_that_comes_twice_becomes_one_job(app, nats):
    """H-53: deduplicated by its id, by the commit that stored the job."""
    taking(app, nats)
    event = {
        "specversion": "1.0",
        "id": "order-7",
        "source": "/shop",
        "type": "shop.order",
        "data": {"kind": "convert", "args": ["a"]},
    }
    sent(nats, event, event, event)
    assert received(app, 3) == 3
    assert len(app.jobs.list()) == 1


def test_messages_without_an_id_of_their_own_are_told_apart_by_their_place(app, nats):
    taking(app, nats)
    sent(nats, *[{"kind": "convert", "args": ["a"]}] * 3)
    assert received(app, 3) == 3
    assert len(app.jobs.list()) == 3


POISON = {
    "no json": b"\xff{",
    "deep": b"[" * 100_000,
    "no object": [1, 2],
    "no kind": {"args": ["a"]},
    "unknown field": {"kind": "convert", "args": ["a"], "now": True},
    "wrong argument": {"kind": "convert", "args": [7]},
    "unknown option": {"kind": "convert", "args": ["a"], "options": {"nice": 1}},
    "bad option": {"kind": "convert", "args": ["a"], "options": {"priority": 99}},
}


def test_poison_is_terminated_and_shown(app, nats):
    taking(app, nats)
    sent(nats, *POISON.values(), {"kind": "convert", "args": ["good"]})
    assert received(app, len(POISON) + 1) == len(POISON) + 1
    assert len(app.jobs.list()) == 1
    refused = app.channels.refused("new-orders")
    assert len(refused) == len(POISON)
    assert all(message.error and message.content for message in refused)
    assert received(app, 0, seconds=0.5) == 0  # none comes again


def test_a_kind_that_nobody_declares_yet_is_not_thrown_away(app, nats):
    """A newer program may be on its way; after many deliveries it is shown as refused."""
    taking(app, nats)
    sent(nats, {"kind": "later", "args": []})
    assert received(app, 1) == 1
    assert app.channels.refused() == []
    assert app.jobs.list() == []


def test_it_is_acknowledged_after_the_commit(app, nats):
    """H-53: a store that is away loses nothing; the message comes again."""
    taking(app, nats)
    sent(nats, {"kind": "convert", "args": ["a"]})

    async def receive():
        driver = await app.client.async_driver()
        [receiver] = app.receivers(driver)
        seen = []

        class Store:
            dialect = driver.dialect

            async def run(self, operation, *args, **kwargs):
                result = await driver.run(operation, *args, **kwargs)
                seen.append("commit")
                return result

        receiver._driver = Store()
        found = await receiver._inbound.broker.receive(
            "new-orders", name="new-orders", most=1, seconds=2
        )
        plain = found[0].acknowledge

        async def acknowledge():
            seen.append("acknowledge")
            await plain()

        found[0].acknowledge = acknowledge
        await receiver._take(found[0])
        await receiver._inbound.broker.close()
        await app.client.close_async()
        return seen

    assert asyncio.run(receive()) == ["commit", "acknowledge"]
    assert len(app.jobs.list()) == 1


def test_the_names_of_an_inbound_are_checked(app):
    broker = Nats("nats://127.0.0.1:1")
    with pytest.raises(mp.Invalid, match="letters, digits"):
        app.inbound("a b", broker)
    app.inbound("a", broker)
    with pytest.raises(mp.Invalid, match="twice"):
        app.inbound("a", broker)


def test_a_worker_that_receives_and_publishes_ends_when_it_is_told(app, nats):
    """A library may swallow a cancellation; a worker must end all the same."""
    broker = Nats(nats.url, stream="BOTH")
    app.inbound("new-orders", broker)
    app.channel("orders", broker=broker)

    @app.job
    def convert(document: str) -> str:
        return document

    async def work():
        await convert.options(channel="orders").submit_async("a")
        worker = await app.worker()
        working = asyncio.create_task(worker.run())
        # Another task delivers it, and has no event for us.
        while not [m for m in await app.channels.messages_async("orders") if m.delivered_at]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        worker.drain()  # as SIGTERM does
        await asyncio.wait([working], timeout=20)
        ended = working.done()
        working.cancel()
        await asyncio.wait([working], timeout=20)
        await app.client.close_async()
        return ended

    assert asyncio.run(work())


def test_nothing_in_time_is_no_trouble(nats):
    """However little time was left when the server was asked: the client says so in two ways."""

    async def receive():
        broker = Nats(nats.url, stream="milepost")
        try:
            return [
                await broker.receive("new-orders", name="new-orders", most=64, seconds=seconds)
                for seconds in (0.5, 0.01, 0.001, 0.0002)
            ]
        finally:
            await broker.close()

    assert asyncio.run(receive()) == [[], [], [], []]
