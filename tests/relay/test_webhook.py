"""Webhooks over real HTTP: signed after Standard Webhooks, tried again, stopped by 410."""

import asyncio
import base64
import hashlib
import hmac
import json
import time

import pytest
from receivers import receiving

import milepost as mp
from milepost.relay.channel import DeliveryLimits
from milepost.relay.webhook import new_secret, signature
from milepost.request.guard import Refused
from milepost.store import outbox

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture
def receiver():
    with receiving() as made:
        yield made


@pytest.fixture
def allowed(monkeypatch):
    monkeypatch.setenv("MILEPOST_REQUEST_ALLOW", "127.0.0.1")


@pytest.fixture
def app(allowed, app):
    return app


@pytest.fixture
def database(allowed, database):
    return database


def declared(app, receiver, **options):
    options = {"secrets": [SECRET], "timeout": 2.0, **options}
    app.channel("orders", webhook=receiver.url, **options)

    @app.job(retries=0)
    def convert(document: str) -> str:
        return f"{document}.pdf"

    return convert.options(channel="orders")


def verified(secret, request):
    """Check a signature as a receiver would: nothing of Milepost's own is used here."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{request.headers['webhook-id']}.{request.headers['webhook-timestamp']}.".encode()
    due = base64.b64encode(hmac.new(key, signed + request.body, hashlib.sha256).digest()).decode()
    given = [part.partition(",") for part in request.headers["webhook-signature"].split(" ")]
    fresh = abs(time.time() - int(request.headers["webhook-timestamp"])) < 300
    return fresh and any(
        version == "v1" and hmac.compare_digest(found, due) for version, _, found in given
    )


def test_the_signature_is_the_one_of_the_standard():
    """The example that the standard's own libraries are tested with."""
    made = signature(
        base64.b64decode(SECRET.removeprefix("whsec_")),
        message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
        timestamp=1614265330,
        body=b'{"test": 2432232314}',
    )
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_an_end_is_posted_and_signed(app, receiver):
    job = declared(app, receiver).submit("report")
    app.drain()
    [request] = receiver.got
    assert request.path == "/hook"
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert verified(SECRET, request)
    event = json.loads(request.body)
    assert event["id"] == request.headers["webhook-id"]
    assert (event["subject"], event["data"]["result"]) == (job.id, "report.pdf")
    assert app.channels.messages("orders")[0].stands == "delivered"


def test_while_a_secret_is_replaced_both_sign(app, receiver):
    fresh = new_secret()
    declared(app, receiver, secrets=[fresh, SECRET]).submit("report")
    app.drain()
    [request] = receiver.got
    assert verified(fresh, request)
    assert verified(SECRET, request)
    assert not verified(new_secret(), request)


def test_a_changed_body_does_not_verify(app, receiver):
    declared(app, receiver).submit("report")
    app.drain()
    [request] = receiver.got
    request.body += b" "
    assert not verified(SECRET, request)


@pytest.mark.parametrize("status", [301, 307, 400, 404, 429, 500, 503])
def test_anything_but_success_is_tried_again_with_the_same_id(app, receiver, advance, status):
    """No redirect is followed: 307 to ourselves would arrive twice."""
    declared(app, receiver)
    receiver.answers.append((status, {"Location": "/elsewhere"}))
    submitted(app)
    [waiting] = app.channels.messages("orders")
    assert (waiting.stands, waiting.attempts) == ("waiting", 1)
    assert waiting.error.endswith(f"answered {status}")
    assert app.relay_once() == 0  # not before its time
    advance(2)
    assert app.relay_once() == 1
    first, second = receiver.got
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body
    assert [request.path for request in receiver.got] == ["/hook", "/hook"]


async def until(holds):
    """Look again until it holds: what is waited for happens in another thread or task."""
    while not await holds():  # noqa: ASYNC110 - nobody there could set an event
        await asyncio.sleep(0.01)


async def arrived(receiver, count):
    return len(receiver.got) >= count


async def settled(app):
    return not await app.client.run_async(outbox.coming, ["orders", "news"])


def submitted(app):
    from milepost.job import Job

    job = Job(app, app.registry.newest("convert")).options(channel="orders").submit("report")
    app.drain()
    return job


def test_waits_double_with_jitter_and_end():
    limits = DeliveryLimits(delay=1.0, max_delay=60.0)
    waits = [limits.wait_seconds(attempts) for attempts in range(10)]
    for place, wait in enumerate(waits):
        whole = min(2.0**place, 60.0)
        assert whole / 2 <= wait <= whole
    assert len(set(waits)) == 10
    assert limits.wait_seconds(0, after=30.0) == 30.0
    assert limits.wait_seconds(0, after=1e9) == 60.0


def test_retry_after_is_kept(app, receiver, advance):
    declared(app, receiver)
    receiver.answers.append((429, {"Retry-After": "100"}))
    submitted(app)
    advance(99)
    assert app.relay_once() == 0
    advance(2)
    assert app.relay_once() == 1


def test_after_so_many_failures_it_is_dead_and_can_be_tried_again(app, receiver, advance):
    declared(app, receiver, attempts=3)
    receiver.answers += [(500, {})] * 3
    submitted(app)
    for _ in range(4):
        advance(3600)
        app.relay_once()
    assert len(receiver.got) == 3
    [dead] = app.channels.messages("orders", state="dead")
    assert dead.attempts == 3
    [channel] = app.channels.list()
    assert (channel.dead, channel.waiting) == (1, 0)
    assert app.channels.retry("orders", [dead.id]) == 1
    assert app.relay_once() == 1
    assert receiver.got[-1].headers["webhook-id"] == dead.id


def test_gone_stops_the_channel_until_it_is_started_again(app, receiver, advance):
    declared(app, receiver)
    receiver.answers.append((410, {}))
    submitted(app)
    [channel] = app.channels.list()
    assert (channel.state, channel.stopped_by) == ("stopped", "relay")
    assert "410" in channel.reason
    submitted(app)
    advance(3600)
    app.relay_once()
    assert len(receiver.got) == 1
    assert [m.attempts for m in app.channels.messages("orders")] == [0, 0]
    assert app.channels.start("orders")
    assert app.relay_once() == 2


def test_a_receiver_that_never_answers_costs_one_attempt(app, receiver):
    declared(app, receiver, timeout=0.2)
    receiver.silent.set()
    submitted(app)
    [waiting] = app.channels.messages("orders")
    assert waiting.attempts == 1
    assert "answer" in waiting.error


def test_a_receiver_that_is_not_there_costs_one_attempt(app, receiver):
    declared(app, receiver)
    receiver.url = ""
    app._channels.clear()
    app.channel("orders", webhook="http://127.0.0.1:1/", secrets=[SECRET], timeout=1.0)
    submitted(app)
    [waiting] = app.channels.messages("orders")
    assert (waiting.attempts, "did not answer" in waiting.error) == (1, True)


def test_a_private_address_is_not_reached_unless_it_is_allowed(database, receiver, monkeypatch):
    """H-94: a channel's URL is judged like a request's."""
    monkeypatch.delenv("MILEPOST_REQUEST_ALLOW")
    app = mp.App(database.url)
    declared(app, receiver).submit("report")
    app.drain()
    assert receiver.got == []
    [waiting] = app.channels.messages("orders")
    assert "MILEPOST_REQUEST_ALLOW" in waiting.error
    app.close()


def test_one_slow_channel_holds_up_no_other(app, receiver):
    """Both run at once: the slow one is still silent when the other has arrived."""
    declared(app, receiver, timeout=30.0)
    with receiving() as other:
        app.channel("news", webhook=other.url, secrets=[SECRET])
        receiver.silent.set()
        from milepost.job import Job

        convert = Job(app, app.registry.newest("convert"))

        async def both():
            for channel in ("orders", "news"):
                await convert.options(channel=channel).submit_async("report")
            working = asyncio.create_task(app.run_worker_async(signals=False))
            await until(lambda: arrived(other, 1))
            await until(lambda: arrived(receiver, 1))
            receiver.silent.clear()
            await until(lambda: settled(app))
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await app.client.close_async()

        asyncio.run(asyncio.wait_for(both(), 60))
    assert {m.stands for m in app.channels.messages("orders")} == {"delivered"}


def test_a_worker_that_stops_gives_back_what_it_was_sending(app, receiver):
    declared(app, receiver, timeout=30.0)
    receiver.silent.set()
    from milepost.job import Job

    convert = Job(app, app.registry.newest("convert")).options(channel="orders")

    async def stop_while_sending():
        await convert.submit_async("report")
        working = asyncio.create_task(app.run_worker_async(signals=False))
        await until(lambda: arrived(receiver, 1))
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await app.client.close_async()

    asyncio.run(asyncio.wait_for(stop_while_sending(), 60))
    receiver.silent.clear()
    [waiting] = app.channels.messages("orders")
    assert (waiting.stands, waiting.attempts) == ("waiting", 0)
    assert app.relay_once() == 1  # at once: nobody has to wait for a lease
    assert receiver.got[0].headers["webhook-id"] == receiver.got[1].headers["webhook-id"]


def test_a_worker_delivers_beside_its_jobs(app, receiver):
    convert = declared(app, receiver)

    async def work():
        working = asyncio.create_task(app.run_worker_async(signals=False))
        for _ in range(20):
            await convert.submit_async("report")
        await until(lambda: arrived(receiver, 20))
        await until(lambda: settled(app))
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await app.client.close_async()

    asyncio.run(asyncio.wait_for(work(), 60))
    ids = [request.headers["webhook-id"] for request in receiver.got]
    assert len(set(ids)) == len(ids) == 20


BAD = {
    "no secret": ({"webhook": "https://a.example/"}, "needs a secret"),
    "one text": ({"webhook": "https://a.example/", "secrets": SECRET}, "is a list"),
    "short": ({"webhook": "https://a.example/", "secrets": ["whsec_AAAA"]}, "24 to 64 bytes"),
    "no base64": ({"webhook": "https://a.example/", "secrets": ["hunter2!"]}, "in base64"),
    "no url": ({"webhook": "ftp://a.example/", "secrets": [SECRET]}, "http"),
    "two ways": ({"webhook": "https://a.example/", "people": ["mailto://x"]}, "one place"),
    "secrets alone": ({"secrets": [SECRET]}, "goes with webhook="),
    "subject alone": ({"subject": "x"}, "goes with broker="),
    "nobody": ({"people": []}, "names nobody"),
    "template": ({"people": ["json://x"], "template": "$nothing"}, "it may name"),
    "attempts": ({"attempts": 0}, "attempts=0"),
    "timeout": ({"timeout": -1}, "timeout=-1"),
    "bytes": ({"max_bytes": 5}, "max_bytes=5"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_meant_is_refused_when_it_is_declared(case, tmp_path):
    options, told = BAD[case]
    app = mp.App(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(mp.Invalid, match=told) as refused:
        app.channel("orders", **options)
    assert "hunter2" not in str(refused.value)
    assert SECRET not in str(refused.value)


def test_a_channel_is_declared_once(tmp_path):
    app = mp.App(f"sqlite:///{tmp_path}/x.db")
    app.channel("orders")
    with pytest.raises(mp.Invalid, match="twice"):
        app.channel("orders")


def test_a_webhook_reaches_the_ports_that_requests_reach(database, monkeypatch):
    """MILEPOST_REQUEST_PORTS holds for webhooks too; an address is judged without a network."""
    monkeypatch.setenv("MILEPOST_REQUEST_PORTS", "443, 9000")
    app = mp.App(database.url)
    app.channel("orders", webhook="https://8.8.8.8:9000/", secrets=[SECRET])
    guard = app._channels["orders"].courier._guard
    assert asyncio.run(guard.addresses("8.8.8.8", 9000)) == ["8.8.8.8"]
    with pytest.raises(Refused, match="443, 9000"):
        asyncio.run(guard.addresses("8.8.8.8", 8080))
    app.close()
