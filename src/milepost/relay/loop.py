"""The relay: takes what is due from the outbox to where its channel leads, at least once (H-52).

It runs in every worker. A message is taken under a fence, like a job: whoever is killed, or comes
back late, changes nothing that the next one has done. Only the first message of a line is taken, so
the news of a job and of its reruns arrive in order. One channel that is slow or down holds up no
other.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from milepost.clock import Clock, SystemClock
from milepost.errors import MilepostError, Unavailable
from milepost.relay.channel import Channel
from milepost.relay.courier import Courier, Gone, Undelivered, cancelled
from milepost.relay.message import compose
from milepost.store import outbox
from milepost.store.driver import AsyncDriver
from milepost.store.outbox import Failure, Message
from milepost.telemetry import Log, Seldom

log = Log("milepost.relay")

ACTOR = "relay"
LOOK_SECONDS = 1.0
"""How long a message that another process wrote may wait to be seen."""
AGAIN_SECONDS = 0.5
"""How long a channel rests whose due messages all stand behind others of their line."""
DECLARE_SECONDS = 10.0
TROUBLE_MOST = 30.0
RETURN_SECONDS = 5.0
LEAST_SECONDS = 0.02

Outcome = Undelivered | Gone | Unavailable | None


class Relay:
    """Delivers the messages of the channels that this program declares."""

    def __init__(
        self,
        driver: AsyncDriver,
        channels: Mapping[str, Channel],
        *,
        clock: Clock | None = None,
    ) -> None:
        self._driver = driver
        self._channels = dict(channels)
        self._ways = {
            name: channel.courier for name, channel in channels.items() if channel.courier
        }
        self._clock = clock or SystemClock()
        self._away = Seldom(log)
        self._poked = asyncio.Event()
        self._rounds: dict[str, asyncio.Task[int]] = {}
        self._rests: dict[str, float] = {}
        self._troubles: dict[str, int] = {}
        self._declare_at = 0.0

    def poke(self) -> None:
        """Look now: something ended."""
        self._poked.set()

    async def run(self) -> None:
        """Deliver until cancelled."""
        try:
            while not cancelled():
                pause = LOOK_SECONDS
                try:
                    pause = await self._turn()
                    self._away.over("the relay goes on")
                except Exception as error:  # noqa: BLE001 - whatever it is, look again
                    told = self._away if isinstance(error, Unavailable) else log
                    told.warning("relay failed, tried again", error=repr(error))
                await self._wait(pause)
        finally:
            await self._stop()

    async def once(self) -> int:
        """Deliver everything that is due now; answer with how much was delivered."""
        try:
            await self._declare()
            names = list(self._ways)
            done = await asyncio.gather(*(self._round(self._channels[name]) for name in names))
            return sum(done)
        finally:
            await self._close()

    async def _turn(self) -> float:
        """Start a round for every channel that has something due; tell when to look again."""
        await self._declare()
        if not self._ways:
            return DECLARE_SECONDS
        waits = [LOOK_SECONDS]
        for name, seconds in (await self._driver.run(outbox.coming, list(self._ways))).items():
            wait = max(seconds, self._rests.get(name, 0.0) - self._clock.monotonic())
            if wait > 0:
                waits.append(wait)
            elif name not in self._rounds:
                self._begin(self._channels[name])
        return max(LEAST_SECONDS, min(waits))

    def _begin(self, channel: Channel) -> None:
        task = asyncio.create_task(self._round(channel))
        self._rounds[channel.name] = task
        task.add_done_callback(lambda done: self._ended(channel.name, done))

    def _ended(self, name: str, task: "asyncio.Task[int]") -> None:
        self._rounds.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._rest(name)
            log.warning("a channel is in trouble", channel=name, error=repr(error))
        self.poke()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._poked.wait()
        self._poked.clear()

    async def _declare(self) -> None:
        now = self._clock.monotonic()
        if self._channels and now >= self._declare_at:
            await self._driver.run(outbox.declare, [c.row for c in self._channels.values()])
            self._declare_at = now + DECLARE_SECONDS

    # One channel

    async def _round(self, channel: Channel) -> int:
        """Take and deliver until nothing is due or the channel is in trouble."""
        courier, limits = self._ways[channel.name], channel.limits
        done = 0
        while True:
            taken = await self._driver.run(
                outbox.take,
                channel.name,
                tenant=channel.tenant,
                most=limits.concurrency,
                lease_seconds=limits.lease_seconds,
            )
            if not taken:
                self._rests[channel.name] = self._clock.monotonic() + AGAIN_SECONDS * (not done)
                return done
            outcomes = await self._tried(channel, courier, taken)
            done += outcomes.count(None)
            if await self._record(channel, taken, outcomes) or cancelled():
                return done

    async def _tried(
        self, channel: Channel, courier: Courier, taken: Sequence[Message]
    ) -> list[Outcome]:
        try:
            return await asyncio.gather(
                *(self._try(channel, courier, message) for message in taken)
            )
        except asyncio.CancelledError:
            # They may have arrived; given back, they arrive once more, under the same id.
            with suppress(Exception):
                async with asyncio.timeout(RETURN_SECONDS):
                    await self._give_back(taken)
            raise

    async def _try(self, channel: Channel, courier: Courier, message: Message) -> Outcome:
        try:
            event = await self._driver.run(compose, message, most=channel.limits.max_bytes)
            async with asyncio.timeout(channel.limits.timeout):
                await courier.deliver(event)
        except (Undelivered, Gone, Unavailable) as error:
            return error
        except TimeoutError:
            return Undelivered(f"no answer within {channel.limits.timeout:g} s")
        except MilepostError as error:
            return Undelivered(str(error))
        except Exception as error:  # noqa: BLE001 - a courier's mistake is that message's trouble
            log.warning("a courier failed", message_id=message.id, error=repr(error))
            return Undelivered(f"the delivery broke off: {type(error).__name__}")
        return None

    async def _record(
        self, channel: Channel, taken: Sequence[Message], outcomes: Sequence[Outcome]
    ) -> bool:
        """Write what came of each; tell whether the channel must rest."""
        pairs = list(zip(taken, outcomes, strict=True))
        arrived = [message for message, outcome in pairs if outcome is None]
        if arrived:
            self._troubles.pop(channel.name, None)
            late = len(arrived) - len(await self._driver.run(outbox.delivered, arrived))
            if late:
                log.warning("messages arrived twice", channel=channel.name, messages=late)
        failures = [_failure(channel, *pair) for pair in pairs if pair[1] is not None]
        if failures:
            most = channel.limits.attempts
            if dead := await self._driver.run(outbox.failed, failures, most=most):
                log.warning("messages are dead", channel=channel.name, messages=dead)
        return await self._troubled(channel, outcomes)

    async def _troubled(self, channel: Channel, outcomes: Sequence[Outcome]) -> bool:
        gone = next((outcome for outcome in outcomes if isinstance(outcome, Gone)), None)
        if gone is not None:
            reason = str(gone)
            await self._driver.run(outbox.stop, channel.name, reason=reason, actor=ACTOR)
            log.warning("a channel was stopped", channel=channel.name, reason=reason)
            return True
        away = next((outcome for outcome in outcomes if isinstance(outcome, Unavailable)), None)
        if away is not None:
            self._rest(channel.name)
            log.warning("a channel cannot be reached", channel=channel.name, error=str(away))
        return away is not None

    def _rest(self, name: str) -> None:
        self._troubles[name] = self._troubles.get(name, 0) + 1
        wait = min(0.1 * 2.0 ** min(self._troubles[name], 20), TROUBLE_MOST)
        self._rests[name] = self._clock.monotonic() + wait

    async def _give_back(self, taken: Sequence[Message]) -> None:
        failures = [Failure(m.id, m.fence, "the relay was stopped", 0.0, 0) for m in taken]
        await self._driver.run(outbox.failed, failures, most=2**31 - 1)

    async def _stop(self) -> None:
        rounds = list(self._rounds.values())
        for task in rounds:
            task.cancel()
        await asyncio.gather(*rounds, return_exceptions=True)
        await self._close()

    async def _close(self) -> None:
        for courier in self._ways.values():
            with suppress(Exception):
                await courier.close()


def _failure(channel: Channel, message: Message, outcome: Outcome) -> Failure:
    if isinstance(outcome, Undelivered):
        wait = channel.limits.wait_seconds(message.attempts, outcome.after)
        return Failure(message.id, message.fence, str(outcome), wait)
    # Nobody was there to take it: that is not its fault.
    return Failure(message.id, message.fence, str(outcome), 0.0, 0)
