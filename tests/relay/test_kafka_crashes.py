"""A real Kafka crashes: what it confirmed arrives. It is of 2016; `make prove` fetches it."""

import asyncio
from contextlib import suppress

import pytest
from conformance import publishing, received, until

from milepost.errors import Unavailable
from milepost.relay.broker import Outgoing, Undelivered
from milepost.relay.kafka import Kafka
from tests.support.kafka import OLD, KafkaServer, fetched_kafka
from tests.support.prove import PROVING

MESSAGES, CRASHES = 2_000, 3

pytestmark = [pytest.mark.prove, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    if not PROVING:
        pytest.skip("a real Kafka is fetched and started by `make prove`")
    if missing := KafkaServer.missing():
        pytest.skip(f"{missing} is not installed")
    libraries = fetched_kafka(tmp_path_factory.mktemp("package"))
    started = KafkaServer(tmp_path_factory.mktemp("kafka") / "server", libraries)
    started.start()
    yield started
    started.end()


@pytest.fixture
async def broker(server):
    made = Kafka(server.url, **OLD)
    yield made
    await made.close()


async def test_what_was_confirmed_while_it_crashed_arrives(server, broker):
    """2,000 messages, three crashes: an error costs no message, which is published again."""
    confirmed = set()

    async def publish(number):
        while number not in confirmed:
            with suppress(Unavailable):
                message = Outgoing(f"id-{number}", str(number).encode(), {}, f"key-{number % 7}")
                await broker.publish("crashes", message, seconds=5)
                confirmed.add(number)

    async def publish_all():
        for first in range(0, MESSAGES, 50):
            await asyncio.gather(*map(publish, range(first, first + 50)))

    publishing_all = asyncio.create_task(publish_all())
    for crash in range(CRASHES):
        while len(confirmed) < (crash + 1) * MESSAGES // (CRASHES + 1):  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # other tasks confirm them
        await asyncio.to_thread(server.restart)
    await publishing_all
    came = []
    while set(came) != set(range(MESSAGES)):
        for delivery in await received(broker, "crashes", 1, most=200):
            came.append(int(delivery.message.data))
            # It drops headers, so that its place is the id.
            assert delivery.message.id.startswith("crashes:0:")
            await delivery.acknowledge()
    print(f"{MESSAGES} messages, {CRASHES} crashes: {len(came) - MESSAGES} twice, none lost")


async def test_a_group_goes_on_after_a_crash_where_it_was(server, broker):
    for number in range(10):
        await broker.publish("places", Outgoing(str(number), b"%d" % number, {}), seconds=10)
    came = await received(broker, "places", 10, most=10)
    for delivery in came[:4]:
        await delivery.acknowledge()
    await came[7].acknowledge()
    await broker.close()
    await asyncio.to_thread(server.restart)
    again = []
    while len(again) < 6:
        with suppress(Unavailable):
            again += await received(broker, "places", 1)
    assert [delivery.message.data for delivery in again] == [b"%d" % n for n in range(4, 10)]


async def test_one_that_lost_everything_is_used_anew(server, broker):
    await publishing(broker, "before", 10)
    await asyncio.to_thread(server.wipe)

    async def published():
        with suppress(Unavailable, Undelivered):
            await publishing(broker, "after", 5)
            return True
        return False

    await until(published)
    [delivery] = await received(broker, "after", 1)
    await delivery.acknowledge()
