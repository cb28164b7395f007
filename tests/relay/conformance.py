"""The definition of a broker: one suite that each adapter passes on a real server.

An adapter's tests subclass `BrokerSuite` and give it a server (a fixture of the class or of the
session), a way to make brokers on it, and a subject that is full. Each test has a subject of its
own, so one server serves them all.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from itertools import count
from time import monotonic
from urllib.parse import urlsplit

import pytest

from milepost.errors import Unavailable
from milepost.relay.adapter import DeliveryCounter
from milepost.relay.broker import Broker, Outgoing, Undelivered
from milepost.relay.message import CONTENT_TYPE
from tests.support.brokers import PASSWORD, BrokerServer, silent_port

PATIENCE = 60.0
"""How long something that must happen is waited for."""
LATE = 5.0
"""How much later than promised an error may come on a busy machine."""
_numbers = count()


class BrokerSuite:
    """What every broker promises."""

    counts_deliveries = True
    """Whether the broker itself counts how often a message came."""
    drops_duplicates = False
    """Whether it recognises a message by its id, and drops it when it comes again."""
    refuses_unknown_subjects = True
    """Whether a broker of `unrouted` refuses what nobody takes."""
    keeps_messages = True
    """Whether messages outlive a crash of the server."""
    checks_passwords = True

    def make(self, url: str) -> Broker:
        """Make a broker that makes the streams or queues that it uses."""
        raise NotImplementedError

    def unrouted(self, url: str) -> Broker:
        """Make a broker that makes no stream or queue by itself."""
        raise NotImplementedError

    def full(self, server: BrokerServer, subject: str) -> AbstractAsyncContextManager[None]:
        """See to it that the subject takes no more, as long as this lasts."""
        raise NotImplementedError

    @pytest.fixture
    def subject(self) -> str:
        """A subject of the test's own."""
        return f"subject-{next(_numbers)}"

    @pytest.fixture
    async def broker(self, server):
        """A broker on the server."""
        made = self.make(server.url)
        yield made
        await made.close()

    @pytest.fixture
    async def other(self, server):
        """Another connection, as of another process."""
        made = self.make(server.url)
        yield made
        await made.close()

    # Out and in

    async def test_a_message_arrives_as_it_was_sent(self, broker, subject):
        data = bytes(range(256)) * 4
        headers = {"Content-Type": CONTENT_TYPE, "traceparent": "00-ab-cd-01"}
        await broker.publish(
            subject, Outgoing(f"{subject}:id-1", data, headers, "key"), seconds=PATIENCE
        )
        [delivery] = await received(broker, subject, 1)
        message = delivery.message
        assert (message.id, message.data) == (f"{subject}:id-1", data)
        assert message.headers["content-type"] == CONTENT_TYPE
        assert message.headers["traceparent"] == "00-ab-cd-01"
        assert message.deliveries == (1 if self.counts_deliveries else None)
        await delivery.acknowledge()

    async def test_an_acknowledged_message_does_not_come_again(self, broker, other, subject):
        await sent(broker, subject, 2)
        for delivery in await received(broker, subject, 2):
            await delivery.acknowledge()
        await broker.close()
        assert await none_come(other, subject)

    async def test_a_terminated_message_does_not_come_again(self, broker, other, subject):
        await sent(broker, subject, 1)
        [delivery] = await received(broker, subject, 1)
        await delivery.terminate()
        await broker.close()
        assert await none_come(other, subject)

    async def test_a_message_that_is_given_back_comes_again_under_its_id(self, broker, subject):
        await sent(broker, subject, 1)
        counter, seen = DeliveryCounter(), []
        for _ in range(3):
            [delivery] = await received(broker, subject, 1)
            seen.append((delivery.message.id, counter.count(delivery.message)))
            await delivery.again(0)
        assert seen == [(f"{subject}:0", 1), (f"{subject}:0", 2), (f"{subject}:0", 3)]

    async def test_it_comes_again_no_sooner_than_asked(self, broker, subject):
        await sent(broker, subject, 1)
        [delivery] = await received(broker, subject, 1)
        began = monotonic()
        await delivery.again(1.0)
        assert monotonic() - began < 1.0 + LATE  # giving back holds nobody up
        [delivery] = await received(broker, subject, 1)
        assert monotonic() - began >= 0.9
        await delivery.acknowledge()

    async def test_no_more_come_than_were_asked_for(self, broker, other, subject):
        """B-16: the others stay for whoever asks next."""
        await sent(broker, subject, 5)
        first = await received(broker, subject, 2, most=2)
        assert len(first) == 2
        rest = await received(other, subject, 3)
        assert {d.message.id for d in (*first, *rest)} == {f"{subject}:{n}" for n in range(5)}
        for delivery in (*first, *rest):
            await delivery.acknowledge()

    async def test_close_gives_back_what_is_in_hand(self, broker, other, subject):
        """B-16: at once, rather than when the broker loses its patience."""
        await sent(broker, subject, 3)
        [done, *held] = await received(broker, subject, 3)
        await done.acknowledge()
        await broker.close()
        came = await received(other, subject, 2)
        assert {d.message.id for d in came} == {d.message.id for d in held}
        for delivery in came:
            await delivery.acknowledge()

    async def test_messages_of_one_key_keep_their_order(self, broker, subject):
        for number in range(20):
            await broker.publish(
                subject, Outgoing(f"{subject}:{number}", b"{}", {}, "key"), seconds=PATIENCE
            )
        came = []
        while len(came) < 20:
            for delivery in await received(broker, subject, 1, most=20):
                came.append(delivery.message.id)
                await delivery.acknowledge()
        assert came == [f"{subject}:{number}" for number in range(20)]

    async def test_concurrent_publications_all_arrive(self, broker, subject):
        await sent(broker, subject, 200)
        ids = set()
        while len(ids) < 200:
            deliveries = await received(broker, subject, 1, most=100)
            ids |= {delivery.message.id for delivery in deliveries}
            await asyncio.gather(*(delivery.acknowledge() for delivery in deliveries))
        assert ids == {f"{subject}:{number}" for number in range(200)}

    async def test_a_message_that_is_published_twice_has_one_id(self, broker, subject):
        for _ in range(2):
            await broker.publish(subject, Outgoing(f"{subject}:same", b"{}", {}), seconds=PATIENCE)
        expected = 1 if self.drops_duplicates else 2
        came = await received(broker, subject, expected)
        assert [delivery.message.id for delivery in came] == [f"{subject}:same"] * expected
        for delivery in came:
            await delivery.acknowledge()

    async def test_nothing_in_time_is_no_trouble(self, broker, subject):
        for seconds in (0.2, 0.01, 0.0002):
            found = await broker.receive(subject, name="name", most=8, seconds=seconds)
            assert list(found) == []

    async def test_lag_tells_what_waits_and_what_is_in_flight(self, broker, subject):
        await sent(broker, subject, 3)
        [delivery] = await received(broker, subject, 1, most=1)
        await until(lambda: self._lag_is(broker, subject, waiting=2, in_flight=1))
        await delivery.acknowledge()
        await until(lambda: self._lag_is(broker, subject, waiting=2, in_flight=0))

    async def _lag_is(self, broker, subject, *, waiting, in_flight):
        lag = await broker.lag(subject, name="name", seconds=PATIENCE)
        return lag.waiting in (None, waiting) and lag.in_flight in (None, in_flight)

    async def test_each_event_loop_has_a_connection_of_its_own(self, server, subject):
        """An app is used from several: each `asyncio.run` is another."""
        broker = self.make(server.url)

        async def publish_and_receive():
            await broker.publish(subject, Outgoing(f"{subject}:id", b"{}", {}), seconds=PATIENCE)
            [delivery] = await received(broker, subject, 1)
            await delivery.acknowledge()
            await broker.close()

        await publish_and_receive()
        await asyncio.to_thread(asyncio.run, self._twice(broker, subject))

    async def _twice(self, broker, subject):
        await broker.publish(subject, Outgoing(f"{subject}:other", b"{}", {}), seconds=PATIENCE)
        [delivery] = await received(broker, subject, 1)
        await delivery.acknowledge()
        await broker.close()

    # Errors, in words and in time

    async def test_what_nobody_takes_is_refused(self, server, subject):
        """B-22: an error, never silence."""
        if not self.refuses_unknown_subjects:
            pytest.skip("this broker makes whatever is published to")
        broker = self.unrouted(server.url)
        with pytest.raises(Undelivered, match=subject):
            await broker.publish(subject, Outgoing(f"{subject}:1", b"{}", {}), seconds=PATIENCE)
        await broker.close()

    async def test_a_full_queue_refuses(self, server, broker, subject):
        """B-22: it is not dropped, and not the oldest in its place."""
        await broker.publish(subject, Outgoing(f"{subject}:first", b"{}", {}), seconds=PATIENCE)
        async with self.full(server, subject):
            with pytest.raises(Undelivered, match=r"full|exceeded|maxmemory"):
                await broker.publish(
                    subject, Outgoing(f"{subject}:second", b"{}", {}), seconds=PATIENCE
                )
        [delivery] = await received(broker, subject, 1)
        assert delivery.message.id == f"{subject}:first"
        await delivery.acknowledge()
        await broker.publish(subject, Outgoing(f"{subject}:second", b"{}", {}), seconds=PATIENCE)
        [delivery] = await received(broker, subject, 1)
        assert delivery.message.id == f"{subject}:second"
        await delivery.acknowledge()

    async def test_a_wrong_password_is_named_and_not_shown(self, server, subject):
        if not self.checks_passwords:
            pytest.skip("this server takes every password")
        broker = self.make(server.wrong_url)
        for call in (lambda: publishing(broker, subject, 5), lambda: receiving(broker, subject)):
            with pytest.raises(Unavailable, match="password") as caught:
                await call()
            assert "another-one" not in str(caught.value)
            assert PASSWORD not in str(caught.value)
            await broker.close()
        both = (publishing(broker, subject, 5), receiving(broker, subject))
        errors = await asyncio.gather(*both, return_exceptions=True)
        assert all("password" in str(error) for error in errors)  # who waited for it hears why, too
        await broker.close()

    async def test_a_server_that_hangs_is_given_up_in_time(self, server, subject):
        parts = urlsplit(server.url)
        with silent_port() as listening:
            port = listening.getsockname()[1]
            broker = self.make(server.url.replace(str(parts.port), str(port)))
            began = monotonic()
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
                await publishing(broker, subject, 0.5)
            assert monotonic() - began < 0.5 + LATE
            await broker.close()

    async def test_a_server_that_is_not_there_is_named(self, server, subject):
        broker = self.make(server.url.replace(str(urlsplit(server.url).port), "1"))
        for call in (lambda: publishing(broker, subject, 5), lambda: receiving(broker, subject)):
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1") as caught:
                await call()
            assert PASSWORD not in str(caught.value)
        await broker.close()

    async def test_a_message_that_is_too_large_is_refused_or_taken(self, broker, subject):
        """Never lost in silence, and later messages pass."""
        with suppress(Undelivered):
            await broker.publish(
                subject, Outgoing(f"{subject}:large", b"x" * 3_000_000, {}), seconds=PATIENCE
            )
        await broker.publish(subject, Outgoing(f"{subject}:small", b"{}", {}), seconds=PATIENCE)
        ids = set()
        while f"{subject}:small" not in ids:
            for delivery in await received(broker, subject, 1):
                ids.add(delivery.message.id)
                await delivery.acknowledge()

    # The server dies

    async def test_an_end_neither_raises_nor_blocks_when_the_server_dies(self, server, subject):
        """B-5: three ends of messages whose server is away, one that just hangs first."""
        broker = self.make(server.url)
        await sent(broker, subject, 4)
        deliveries = await received(broker, subject, 4)
        began = monotonic()
        with server.hanging():
            await deliveries[0].acknowledge()
        server.kill()
        try:
            await deliveries[1].acknowledge()
            await deliveries[2].again(0.1)
            await deliveries[3].terminate()
            await broker.close()
            assert monotonic() - began < 4 + LATE
            with pytest.raises(Unavailable):
                await publishing(broker, subject, 2)
        finally:
            server.start()
        await broker.close()

    async def test_messages_outlive_a_crash_of_the_server(self, server, broker, subject):
        if not self.keeps_messages:
            pytest.skip("this server keeps its messages in memory")
        await sent(broker, subject, 10)
        ids = set()
        for delivery in await received(broker, subject, 3, most=3):
            ids.add(delivery.message.id)
            await delivery.acknowledge()
        await asyncio.to_thread(server.restart)
        while len(ids) < 10:
            with suppress(Unavailable):
                for delivery in await received(broker, subject, 1):
                    ids.add(delivery.message.id)
                    await delivery.acknowledge()

    async def test_a_server_that_lost_everything_is_used_anew(self, server, broker, subject):
        """B-2: queues and consumers are made again."""
        await sent(broker, subject, 3)
        [delivery] = await received(broker, subject, 1, most=1)
        await asyncio.to_thread(server.wipe)
        await delivery.acknowledge()
        await until(lambda: published(broker, subject, f"{subject}:after"))
        ids = set()
        while f"{subject}:after" not in ids:
            with suppress(Unavailable):
                for delivery in await received(broker, subject, 1):
                    ids.add(delivery.message.id)
                    await delivery.acknowledge()


async def sent(broker, subject, number):
    """Publish so many, all at once."""
    messages = [Outgoing(f"{subject}:{n}", b'{"n": 1}', {}, f"key-{n}") for n in range(number)]
    await asyncio.gather(*(broker.publish(subject, m, seconds=PATIENCE) for m in messages))


async def received(broker, subject, least, *, most=8):
    """Receive until at least so many came."""
    found, end = [], monotonic() + PATIENCE
    while len(found) < least:
        assert monotonic() < end, f"{len(found)} of {least} messages came"
        found += await broker.receive(subject, name="name", most=most, seconds=0.5)
    return found


async def none_come(broker, subject):
    """Look for a while whether messages come."""
    return not await broker.receive(subject, name="name", most=8, seconds=0.5)


async def publishing(broker, subject, seconds):
    await broker.publish(subject, Outgoing(f"{subject}:1", b"{}", {}), seconds=seconds)


async def receiving(broker, subject):
    await broker.receive(subject, name="name", most=1, seconds=0.5)


async def published(broker, subject, message_id):
    """Try to publish; tell whether it succeeded."""
    with suppress(Unavailable):
        await broker.publish(subject, Outgoing(message_id, b"{}", {}), seconds=2)
        return True
    return False


async def until(condition):
    """Wait until a condition holds."""
    end = monotonic() + PATIENCE
    while not await condition():
        assert monotonic() < end, "it did not come to that"
        await asyncio.sleep(0.05)
