"""Service Bus is a broker, as far as a peer of our own can show it."""

import asyncio
import gc
import warnings
from contextlib import asynccontextmanager

import pytest
from conformance import BrokerSuite, received, sent

import milepost as mp
from milepost.relay.broker import Lag, Outgoing, broker_at
from milepost.relay.servicebus import ENDING, ServiceBus
from tests.support.brokers import PASSWORD, USER, ServiceBusPeer
from tests.support.prove import PROVING

KILLS = ("dies", "crash", "lost")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    started = ServiceBusPeer(tmp_path_factory.mktemp("servicebus") / "queues")
    started.start()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
async def hung_up(request):
    """Wait for the client to hang up, which takes longer than a worker waits."""
    yield
    await asyncio.gather(*ENDING)
    if any(word in request.node.name for word in KILLS):
        with warnings.catch_warnings():  # it closes no socket whose server has died
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning", "ignore:loop is:ResourceWarning")
@pytest.mark.prove
class TestServiceBus(BrokerSuite):
    @pytest.fixture(autouse=True)
    def strict(self, server, request):
        """Make queues that are missing, which Azure does not, but where that is the question."""
        strict = "nobody_takes" in request.node.name
        server.put(f"?creates={'no' if strict else 'yes'}")

    def make(self, url):
        return ServiceBus(url)

    unrouted = make

    @asynccontextmanager
    async def full(self, server, subject):
        server.put(f"{subject}?most=1")
        yield
        server.put(f"{subject}?most=1000")

    async def test_lag_tells_what_waits_and_what_is_in_flight(self, broker, subject):
        """Azure counts messages under a lock among the active ones."""
        await sent(broker, subject, 2)
        [ended, dead] = await received(broker, subject, 2)
        assert await broker.lag(subject, name="name", seconds=10) == Lag(waiting=2, dead=0)
        await ended.acknowledge()
        await dead.terminate()
        assert await broker.lag(subject, name="name", seconds=10) == Lag(waiting=0, dead=1)

    @pytest.fixture(autouse=True)
    def without_tls(self, monkeypatch):
        """Ask the peer by HTTP for its counts: the client knows no other way than by HTTPS."""
        from azure.core.pipeline.transport import AioHttpTransport

        plain = AioHttpTransport.send

        async def send(transport, request, **options):
            request.url = request.url.replace("https://", "http://")
            return await plain(transport, request, **options)

        monkeypatch.setattr(AioHttpTransport, "send", send)


if not PROVING:
    # Its client waits a twentieth of a second for each frame of a connection, so few are made.
    for name in (
        "test_an_acknowledged_message_does_not_come_again",
        "test_a_message_that_is_given_back_comes_again_under_its_id",
        "test_no_more_come_than_were_asked_for",
        "test_messages_of_one_key_keep_their_order",
        "test_concurrent_publications_all_arrive",
        "test_a_message_that_is_published_twice_has_one_id",
        "test_nothing_in_time_is_no_trouble",
        "test_each_event_loop_has_a_connection_of_its_own",
        "test_a_server_that_is_not_there_is_named",
        "test_a_message_that_is_too_large_is_refused_or_taken",
        "test_a_server_that_lost_everything_is_used_anew",
    ):
        setattr(TestServiceBus, name, None)


async def test_sessions_are_received_in_order_by_one_consumer_at_a_time(server):
    server.put("keyed?sessions=yes")
    first, second = (ServiceBus(server.url, sessions=True) for _ in range(2))
    for number in range(4):
        outgoing = Outgoing(f"id-{number}", b"{}", {}, f"key-{number % 2}")
        await first.publish("keyed", outgoing, seconds=10)
    one, two = await asyncio.gather(*(received(each, "keyed", 2) for each in (first, second)))
    assert {tuple(d.message.id for d in each) for each in (one, two)} == {
        ("id-0", "id-2"),
        ("id-1", "id-3"),
    }
    await asyncio.gather(*(delivery.acknowledge() for delivery in (*one, *two)))
    await asyncio.gather(first.close(), second.close())


async def test_a_message_is_dead_after_as_many_deliveries_as_the_queue_allows(server):
    server.put("deadly?lock=0.1")
    broker = ServiceBus(server.url)
    await broker.publish("deadly", Outgoing("id", b"{}", {}), seconds=10)
    counts = []
    while len(counts) < 10:  # its lock ends each time
        counts += [d.message.deliveries for d in await received(broker, "deadly", 1)]
    assert counts == list(range(1, 11))
    assert not await broker.receive("deadly", name="name", most=1, seconds=0.5)
    await broker.close()


def test_an_address_is_a_url_or_a_connection_string():
    host = "orders.servicebus.windows.net"
    text = f"Endpoint=sb://{host}/;SharedAccessKeyName=policy;SharedAccessKey=a/b="
    for made in (ServiceBus(text), broker_at(f"sb://policy:a%2Fb%3D@{host}")):
        assert made.address == f"sb://{host}"
        assert "a/b=" in made._connection_string
    assert ServiceBus(f"sb://{host}", credential=object()).address == f"sb://{host}"
    for wrong in (f"sb://{host}", "amqp://host", f"sb://{USER}:{PASSWORD}@{host}?tls=no"):
        with pytest.raises(mp.Invalid) as caught:
            ServiceBus(wrong)
        assert PASSWORD not in str(caught.value)
