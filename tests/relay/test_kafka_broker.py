"""Kafka is a broker, as far as a log can be: on librdkafka's mock cluster."""

import asyncio
import re

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from conformance import PATIENCE, BrokerSuite, none_come, publishing, received, sent, until

from milepost.errors import Invalid, Unavailable
from milepost.relay.broker import Outgoing, Undelivered
from milepost.relay.kafka import Kafka, _told
from milepost.relay.message import CONTENT_TYPE
from tests.support.kafka import UNKNOWN_TOPIC, KafkaMock


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = KafkaMock(tmp_path_factory.mktemp("kafka"))
    started.start()
    yield started
    started.stop()


class TestKafka(BrokerSuite):
    counts_deliveries = False
    keeps_messages = False
    checks_passwords = False

    def make(self, url):
        # The mock cluster lets a group wait for members that have left.
        return Kafka(url, session_timeout_ms=1500, heartbeat_interval_ms=500)

    async def test_what_nobody_takes_is_refused(self, broker):
        with pytest.raises(Undelivered, match=rf"{UNKNOWN_TOPIC}.*auto\.create\.topics\.enable"):
            await publishing(broker, UNKNOWN_TOPIC, 20)

    async def test_no_more_come_than_were_asked_for(self, broker, subject):
        """A partition has one consumer: what it has not asked for comes when it asks."""
        await sent(broker, subject, 5)
        ids = []
        while len(ids) < 5:
            came = await broker.receive(subject, name="name", most=2, seconds=0.5)
            assert len(came) <= 2
            ids += [delivery.message.id for delivery in came]
        assert len(set(ids)) == 5

    async def test_a_full_queue_refuses(self):
        pytest.skip("a topic is never full: its oldest messages go, by the broker's settings")

    async def test_a_server_that_lost_everything_is_used_anew(self):
        pytest.skip("the mock cluster comes back on another port; the real one is tried as a proof")

    async def test_what_is_done_out_of_order_is_committed_up_to_the_first_that_is_not(
        self, broker, other, subject
    ):
        """B-12: Kafka keeps one place in a partition; nothing before it may be open."""
        for number in range(5):
            await broker.publish(subject, Outgoing(str(number), b"{}", {}, "key"), seconds=PATIENCE)
        came = await received(broker, subject, 5)
        assert [delivery.message.id for delivery in came] == list("01234")
        for number in (0, 1, 3, 4):
            await came[number].acknowledge()
        await broker.close()
        again = await received(other, subject, 3)
        assert [delivery.message.id for delivery in again] == list("234")
        for delivery in again:
            await delivery.acknowledge()
        await other.close()
        assert await none_come(broker, subject)

    async def test_a_second_consumer_takes_over_partitions_and_nothing_is_lost(
        self, broker, other, subject
    ):
        """B-17: what was in hand comes to the other as well; acknowledging it here is harmless."""
        await sent(broker, subject, 40)
        ids, in_hand = set(), await received(broker, subject, 1)

        async def consume(consumer):
            for delivery in await consumer.receive(subject, name="name", most=8, seconds=0.2):
                ids.add(delivery.message.id)
                await delivery.acknowledge()

        async def all_came():
            await asyncio.gather(consume(broker), consume(other))
            return len(ids | {delivery.message.id for delivery in in_hand}) == 40

        await until(all_came)
        for delivery in in_hand:
            await delivery.acknowledge()

    async def test_each_part_of_a_message_has_its_own_place(self, server, broker, subject):
        headers = {"Content-Type": CONTENT_TYPE}
        await broker.publish(
            subject, Outgoing("id-1", b"{}", headers, "customer 7"), seconds=PATIENCE
        )
        reader = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{server.port}",
                "group.id": "another",
                "auto.offset.reset": "earliest",
            }
        )
        reader.subscribe([subject])
        message = None
        while message is None or message.error():
            message = await asyncio.to_thread(reader.poll, 1)
        await asyncio.to_thread(reader.close)
        assert (message.key(), message.value()) == (b"customer 7", b"{}")
        assert dict(message.headers()) == {"content-type": CONTENT_TYPE.encode(), "id": b"id-1"}

    async def test_a_message_without_an_id_has_its_place_as_one(self, server, broker, subject):
        """Kafka before 0.11 drops headers and says nothing."""
        writer = Producer({"bootstrap.servers": f"127.0.0.1:{server.port}"})
        writer.produce(subject, b"plain", partition=0)
        await asyncio.to_thread(writer.flush, 10)
        [delivery] = await received(broker, subject, 1)
        assert (delivery.message.id, delivery.message.data) == (f"{subject}:0:0", b"plain")
        await delivery.acknowledge()

    async def test_the_largest_message_is_a_setting(self, broker, subject):
        with pytest.raises(Undelivered, match=r"message\.max\.bytes"):
            await broker.publish(subject, Outgoing("large", b"x" * 2_000_000, {}), seconds=PATIENCE)

    async def test_a_password_is_part_of_no_error_and_no_address(self, subject):
        address = "kafka://user:secret@127.0.0.1:1,127.0.0.1:2"
        for options, expected in (({}, Unavailable), ({"sasl_mechanism": "NO"}, Invalid)):
            broker = Kafka(address, **options)
            assert broker.address == "kafka://127.0.0.1:1,127.0.0.1:2"
            with pytest.raises(expected, match=r"127\.0\.0\.1:1") as caught:
                await publishing(broker, subject, 5)
            assert "secret" not in str(caught.value)
            await broker.close()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, Undelivered, r"auto\.create\.topics\.enable"),
        (KafkaError._AUTHENTICATION, Unavailable, "password"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, Unavailable, "ACLs"),
        (KafkaError.NOT_ENOUGH_REPLICAS, Unavailable, r"min\.insync\.replicas"),
        (KafkaError._UNSUPPORTED_FEATURE, Unavailable, "enable_idempotence=False"),
        (KafkaError._TRANSPORT, Unavailable, "_TRANSPORT"),
    ],
)
def test_errors_name_the_setting(code, kind, words):
    told = _told(KafkaException(KafkaError(code)), "kafka://host", "orders")
    assert isinstance(told, kind)
    assert re.search(words, str(told))
