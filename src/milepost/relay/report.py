"""Asks the brokers of this program how much waits on them, and stores what they say."""

import asyncio
from collections.abc import Sequence

import msgspec

from milepost.errors import MilepostError
from milepost.relay.broker import Broker, Lag, cancelled
from milepost.store import brokers
from milepost.store.driver import AsyncDriver
from milepost.telemetry import Log

log = Log("milepost.relay")

ASK_SECONDS = 5.0
ERROR_MOST = 1_000


class Asked(msgspec.Struct, frozen=True):
    """A place on a broker that is asked about: where a queue's hints wait, or an inbound's jobs."""

    side: str
    name: str
    broker: Broker
    subject: str
    consumer: str


class Reporter:
    """Asks in turn with the other workers: one question to each broker, however many there are."""

    def __init__(self, driver: AsyncDriver, places: Sequence[Asked]) -> None:
        self._driver = driver
        self._places = places

    async def run(self) -> None:
        """Ask until cancelled."""
        while not cancelled():
            try:
                await self.once()
            except Exception as error:  # noqa: BLE001 - the store is away: ask later
                log.info("brokers were not asked", error=repr(error))
            await asyncio.sleep(brokers.EVERY_SECONDS / 3)

    async def once(self) -> None:
        """Ask every broker whose turn it is."""
        await asyncio.gather(*(self._report(place) for place in self._places))

    async def _report(self, place: Asked) -> None:
        broker = place.broker
        given = {"broker": broker.name, "address": broker.address}
        if not await self._driver.run(brokers.ask, place.side, place.name, **given):
            return
        found = await _asked(place)
        if isinstance(found, str):
            await self._driver.run(brokers.silent, place.side, place.name, error=found)
        else:
            counts = msgspec.structs.asdict(found)
            await self._driver.run(brokers.answered, place.side, place.name, **counts)


async def _asked(place: Asked) -> Lag | str:
    """Ask one; in words if it did not answer."""
    try:
        async with asyncio.timeout(ASK_SECONDS * 2):
            return await place.broker.lag(place.subject, name=place.consumer, seconds=ASK_SECONDS)
    except MilepostError as error:
        return str(error)[:ERROR_MOST]
    except TimeoutError:
        return f"no answer within {ASK_SECONDS * 2:g} s"
    except Exception as error:  # noqa: BLE001 - its text may hold a password, its name does not
        log.warning("asking a broker raised an error", broker=place.broker.name)
        return type(error).__name__
