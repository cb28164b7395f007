"""SQS is a broker, as far as moto can show it; duplicates and disorder are injected."""

import asyncio
import json
from contextlib import asynccontextmanager
from random import Random

import pytest
from conformance import BrokerSuite, received, sent

import milepost as mp
from milepost.relay import sqs
from milepost.relay.broker import Lag, Outgoing, Undelivered, broker_at
from milepost.relay.sqs import SQS, queue_name
from tests.support.brokers import MotoServer
from tests.support.prove import PROVING

KEYS = {"aws_access_key_id": "tester", "aws_secret_access_key": "not-a-secret"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = MotoServer(tmp_path_factory.mktemp("sqs"))
    started.start()
    yield started
    started.stop()


@pytest.fixture
async def broker(server):
    made = SQS(server.url, create=True, **KEYS)
    yield made
    await made.close()


@pytest.mark.prove
class TestSQS(BrokerSuite):
    keeps_messages = False
    checks_passwords = False
    drops_duplicates = True

    def make(self, url):
        return SQS(url, create=True, fifo=True, **KEYS)

    def unrouted(self, url):
        return SQS(url, **KEYS)

    @asynccontextmanager
    async def full(self, server, subject):
        pytest.skip("a queue of SQS is never full")
        yield


if not PROVING:
    # moto takes a tenth of a second for what a broker does in a thousandth.
    for name in (
        "test_concurrent_publications_all_arrive",
        "test_each_event_loop_has_a_connection_of_its_own",
        "test_a_server_that_lost_everything_is_used_anew",
        "test_no_more_come_than_were_asked_for",
    ):
        setattr(TestSQS, name, None)


class TestStandard(TestSQS):
    """The same of queues that keep no order, which moto does all the same."""

    __test__ = PROVING
    drops_duplicates = False

    def make(self, url):
        return SQS(url, create=True, **KEYS)


class Unruly(SQS):
    """Hands out messages as a standard queue may: in any order, and again after their end."""

    random = Random(7)
    past: tuple = ()

    async def receive(self, subject, **options):
        found = list(await super().receive(subject, **options))
        again = self.random.sample(self.past, len(self.past) // 2)
        self.past = (*self.past, *found)
        return self.random.sample([*found, *again], len(found) + len(again))


def test_messages_that_come_twice_and_in_disorder_become_each_one_job(app, server):
    """H-53: the honest substitute for a service that cannot be had."""
    broker = Unruly(server.url, create=True, **KEYS)
    app.inbound("new-orders", broker, subject=f"orders-{id(app)}")

    @app.job
    def convert(document: str) -> str:
        return document

    async def receive():
        for number in range(25):
            body = json.dumps({"kind": "convert", "args": [str(number)]}).encode()
            outgoing = Outgoing(f"id-{number}", body, {})
            await broker.publish(f"orders-{id(app)}", outgoing, seconds=10)
        [receiver] = app.receivers(await app.client.async_driver())
        count = 0
        while len(await app.jobs.list_async()) < 25 or count < 30:
            count += await receiver.once(0.2)
        await broker.close()
        await app.client.close_async()
        return count

    assert asyncio.run(receive()) > 25
    found = [app.client.codec.decode(job.record.payload) for job in app.jobs.list()]
    assert len(found) == len({json.dumps(each) for each in found}) == 25


async def test_a_message_that_a_batch_leaves_out_is_not_published(broker, monkeypatch):
    """The answer to a batch is a success even if a part of it failed."""
    plain = sqs._entry

    def entry(message, *, fifo):
        late = {"DelaySeconds": 100_000} if message.id == "bad" else {}
        return plain(message, fifo=fifo) | late

    monkeypatch.setattr(sqs, "_entry", entry)
    publishing = [
        broker.publish("parts", Outgoing(message_id, b"{}", {}), seconds=10)
        for message_id in ("good", "bad", "better")
    ]
    done = await asyncio.gather(*publishing, return_exceptions=True)
    assert [type(each) for each in done] == [type(None), Undelivered, type(None)]
    assert {d.message.id for d in await received(broker, "parts", 2)} == {"good", "better"}


async def test_a_batch_that_is_refused_for_one_message_takes_the_others(broker):
    publishing = [
        broker.publish("refusal", Outgoing(str(number), b"{}", {header: "x"}), seconds=10)
        for number, header in enumerate(["fine", "not fine", "fine"])
    ]
    done = await asyncio.gather(*publishing, return_exceptions=True)
    assert [type(each) for each in done] == [type(None), Undelivered, type(None)]


async def test_a_message_that_came_too_often_is_among_the_dead(broker, monkeypatch):
    monkeypatch.setattr(sqs, "RECEIVES_MOST", 2)
    await sent(broker, "deadly", 1)
    for _ in range(2):
        [delivery] = await received(broker, "deadly", 1)
        await delivery.again(0)
    assert await broker.receive("deadly", name="name", most=1, seconds=0.2) == []
    lag = await broker.lag("deadly", name="name", seconds=10)
    assert lag == Lag(waiting=0, in_flight=0, dead=1)


def test_subjects_are_names_of_queues():
    assert queue_name("milepost.jobs_1") == "milepost-jobs_1"
    long, other = queue_name("a" * 200), queue_name("a/b")
    assert len(f"{long}-dead.fifo") <= 80
    assert other.startswith("a-b-")
    assert other != queue_name("a b")


def test_an_address_names_a_region_and_holds_no_password():
    assert SQS("sqs://eu-central-1").address == "sqs://eu-central-1"
    assert broker_at("sqs://127.0.0.1:9324/elasticmq").name == "sqs"
    for wrong in ("sqs://key:hush@eu-central-1", "https://a", "sqs://", "sqs://a/b", "sqs://a:1"):
        with pytest.raises(mp.Invalid, match="address") as caught:
            SQS(wrong)
        assert "hush" not in str(caught.value)


async def test_missing_credentials_are_named(server, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    broker = SQS(server.url)
    with pytest.raises(mp.Unavailable, match="AWS_ACCESS_KEY_ID"):
        await broker.publish("orders", Outgoing("1", b"{}", {}), seconds=5)
    await broker.close()
