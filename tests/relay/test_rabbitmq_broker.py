"""RabbitMQ: quorum queues, confirms, and what it refuses."""

import asyncio
from contextlib import asynccontextmanager
from time import monotonic
from uuid import uuid4

import aio_pika
import pytest
from conformance import LATE, PATIENCE, BrokerSuite, publishing, received, receiving, sent, until

from milepost.errors import Unavailable
from milepost.relay.broker import Outgoing, Undelivered
from milepost.relay.message import CONTENT_TYPE
from milepost.relay.rabbitmq import RabbitMQ
from tests.support.brokers import PASSWORD
from tests.support.prove import PROVING
from tests.support.rabbitmq import distant, private

WIPES = "test_a_server_that_lost_everything_is_used_anew"
"""It empties the server, which no other may use meanwhile."""
KILLS = {"test_messages_outlive_a_crash_of_the_server", *([WIPES] if PROVING else [])}
"""Tests that kill the server, which is their own."""


class TestRabbitMQ(BrokerSuite):
    @pytest.fixture
    def server(self, rabbitmq_servers, request, tmp_path):
        name = request.function.__name__
        if name in KILLS:
            with private(tmp_path / "rabbitmq") as server:
                yield server
            return
        with rabbitmq_servers.lent(alone=name == WIPES) as server:
            if name == WIPES:  # it starts in seconds
                with distant(server) as found:
                    yield found
            else:
                yield server

    @pytest.fixture
    def distant(self, server):
        """The server, with a network in between."""
        with distant(server) as found:
            yield found

    @pytest.fixture
    def subject(self):
        """One that no other runner uses: they share the server."""
        return f"subject-{uuid4().hex}"

    def make(self, url):
        return RabbitMQ(url)

    def unrouted(self, url):
        return RabbitMQ(url, declare=False)

    async def test_an_end_neither_raises_nor_blocks_when_the_server_dies(self, distant, subject):
        """B-5: it starts in seconds, so that here its network dies."""
        suite = super()
        await suite.test_an_end_neither_raises_nor_blocks_when_the_server_dies(distant, subject)

    async def test_a_full_queue_refuses(self, server, subject):
        """A quorum queue may take one more than its limit before it refuses; it drops none."""
        broker, taken = RabbitMQ(server.url, arguments={"x-max-length": 1}), []

        async def fill():
            for number in map(str, range(5)):
                await broker.publish(subject, Outgoing(number, b"{}", {}), seconds=PATIENCE)
                taken.append(number)

        with pytest.raises(Undelivered, match="full"):
            await fill()
        came = await received(broker, subject, len(taken))
        assert [delivery.message.id for delivery in came] == taken
        for delivery in came:
            await delivery.acknowledge()
        await broker.publish(subject, Outgoing("after", b"{}", {}), seconds=PATIENCE)
        await broker.close()

    async def test_each_part_of_a_message_has_its_own_place(self, server, broker, subject):
        """Programs of other people read it with other clients, and write it so."""
        headers = {"Content-Type": CONTENT_TYPE, "traceparent": "00-ab-cd-01"}
        await broker.publish(
            subject, Outgoing("id-1", b"{}", headers, "customer 7"), seconds=PATIENCE
        )
        async with plain(server) as channel:
            queue = await channel.get_queue(subject)
            message = await queue.get()
            await message.ack()
            assert (message.message_id, message.content_type) == ("id-1", CONTENT_TYPE)
            assert message.headers["traceparent"] == "00-ab-cd-01"
            assert message.headers["key"] == "customer 7"
            assert message.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
            for _ in range(2):
                await channel.default_exchange.publish(aio_pika.Message(b"plain"), subject)
        one, another = await received(broker, subject, 2)
        assert one.message.data == another.message.data == b"plain"
        assert one.message.id != another.message.id

    async def test_what_came_too_often_and_what_is_of_no_use_is_dead(self, server, subject):
        broker = RabbitMQ(server.url, delivery_limit=2)
        await sent(broker, subject, 2)
        first, useless = await received(broker, subject, 2)
        await useless.terminate()
        await first.again(0)
        seen = []
        while len(seen) < 2:
            [delivery] = await received(broker, subject, 1)
            seen.append(delivery.message.deliveries)
            await delivery.again(0)
        assert seen == [2, 3]

        async def are_dead():
            lag = await broker.lag(subject, name="name", seconds=PATIENCE)
            return (lag.waiting, lag.dead) == (0, 2)

        await until(are_dead)
        await broker.close()

    async def test_a_queue_of_another_kind_is_named_and_used_if_one_says_so(self, server, subject):
        async with plain(server) as channel:
            await channel.declare_queue(subject, durable=True)
        broker = RabbitMQ(server.url)
        for call in (publishing(broker, subject, PATIENCE), receiving(broker, subject)):
            with pytest.raises(Unavailable, match=r"x-dead-letter-exchange.*declare=False"):
                await call
        await broker.close()
        broker = RabbitMQ(server.url, declare=False)
        await sent(broker, subject, 1)
        [delivery] = await received(broker, subject, 1)
        assert delivery.message.deliveries == 1
        await delivery.again(0)
        [delivery] = await received(broker, subject, 1)
        assert delivery.message.deliveries is None  # it says that it came before, not how often
        await delivery.acknowledge()
        await broker.close()

    async def test_a_queue_that_is_not_there_to_receive_from_is_named(self, server, subject):
        broker = RabbitMQ(server.url, declare=False)
        with pytest.raises(Unavailable, match=f"{subject}.*declare=True"):
            await receiving(broker, subject)
        await broker.close()

    async def test_a_virtual_host_that_is_missing_is_named(self, server, subject):
        broker = RabbitMQ(f"{server.url}/nowhere")
        with pytest.raises(Unavailable, match=r"virtual host.*add_vhost") as caught:
            await publishing(broker, subject, PATIENCE)
        assert PASSWORD not in str(caught.value)
        await broker.close()

    async def test_an_exchange_takes_what_is_bound_to_it(self, server, broker, subject):
        out = RabbitMQ(server.url, exchange="amq.topic")
        with pytest.raises(Undelivered, match=r"amq\.topic.*bind"):
            await publishing(out, subject, PATIENCE)
        async with plain(server) as channel:
            queue = await channel.declare_queue(subject, durable=True, exclusive=False)
            await queue.bind("amq.topic", subject)
            await publishing(out, subject, PATIENCE)
            await (await queue.get()).ack()
        await out.close()
        out = RabbitMQ(server.url, exchange="not-there")
        with pytest.raises(Unavailable, match="not-there"):
            await publishing(out, subject, PATIENCE)
        await out.close()

    async def test_the_largest_message_is_a_setting(self, broker, subject):
        with pytest.raises(Undelivered, match="max_message_size"):
            await broker.publish(subject, Outgoing("large", b"x" * 2_000_000, {}), seconds=PATIENCE)

    async def test_a_queue_that_was_removed_is_made_anew(self, server, broker, subject):
        await sent(broker, subject, 1)
        async with plain(server) as channel:
            await channel.queue_delete(subject)
        with pytest.raises(Undelivered, match=subject):
            await publishing(broker, subject, PATIENCE)
        await publishing(broker, subject, PATIENCE)
        [delivery] = await received(broker, subject, 1)
        await delivery.acknowledge()

    async def test_a_receiver_that_is_cancelled_keeps_nothing_from_others(
        self, server, broker, other, subject
    ):
        await receiving(broker, subject)  # so that it is there
        asking = asyncio.create_task(broker.receive(subject, name="name", most=8, seconds=60))
        async with plain(server) as channel:

            async def is_asking():
                found = await channel.declare_queue(subject, passive=True)
                return found.declaration_result.consumer_count == 1

            await until(is_asking)
        asking.cancel()
        await asyncio.wait([asking])
        await sent(other, subject, 3)
        came = await received(other, subject, 3)
        for delivery in came:
            await delivery.acknowledge()

    async def test_a_connection_that_falls_silent_is_given_up_in_time(self, distant, subject):
        broker = RabbitMQ(distant.url)
        await sent(broker, subject, 1)
        with distant.hanging():
            began = monotonic()
            with pytest.raises(Unavailable, match="did not answer"):
                await publishing(broker, subject, 0.3)
            assert monotonic() - began < 1.3 + LATE
            distant.kill()
        await broker.close()


@asynccontextmanager
async def plain(server):
    """A channel of another program's."""
    connection = await aio_pika.connect(server.url)
    async with connection, connection.channel() as channel:
        yield channel
