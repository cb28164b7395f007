"""The relay: delivers due messages of the outbox through their channels, at least once (H-52).

It runs in every worker. A message is taken under a fence, like a job: a relay that was killed, or
comes back late, changes nothing that the next one has done. Only the first message of a line is
taken, so the news of a job and of its reruns arrive in order. One channel that is slow or down
holds up no other.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from milepost.errors import MilepostError, Unavailable
from milepost.faces import perform_async
from milepost.hooks import HookEvent, Hooks, one_call
from milepost.outcome import micros
from milepost.relay.broker import ReceiverGone, Undelivered, cancelled, trouble_seconds
from milepost.relay.channel import ChannelSpec
from milepost.relay.message import compose
from milepost.store import outbox
from milepost.store.driver import AsyncDriver
from milepost.store.outbox import Failure, Message
from milepost.telemetry import Log, ThrottledLog

log = Log("milepost.relay")

ACTOR = "relay"
LOOK_SECONDS = 1.0
"""How long a message that another process wrote may wait to be seen."""
AGAIN_SECONDS = 0.5
"""How long a channel rests whose due messages all stand behind others of their line."""
DECLARE_SECONDS = 10.0
RETURN_SECONDS = 5.0
LEAST_SECONDS = 0.02

Delivered = Undelivered | ReceiverGone | Unavailable | None
"""The result of one delivery: None when the message arrived."""


class Relay:
    """Delivers the messages of the channels that this program declares."""

    def __init__(
        self, driver: AsyncDriver, channels: Mapping[str, ChannelSpec], hooks: Hooks
    ) -> None:
        self._driver = driver
        self._hooks = hooks
        self._channels = dict(channels)
        self._couriers = {name: c.courier for name, c in channels.items() if c.courier}
        self._away = ThrottledLog(log)
        self._woken = asyncio.Event()
        self._rounds: dict[str, asyncio.Task[int]] = {}
        self._rests: dict[str, float] = {}
        self._troubles: dict[str, int] = {}
        self._declare_at = 0.0
        self.counts: dict[str, dict[str, int]] = {}
        """What became of messages: arrived, refused or unreached, by channel."""

    def wake(self) -> None:
        """Look now: a job or a run ended."""
        self._woken.set()

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
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            rounds = list(self._rounds.values())
            for task in rounds:
                task.cancel()
            await asyncio.gather(*rounds, return_exceptions=True)
            await self._close()

    async def once(self) -> int:
        """Deliver every message that is due now; answer with how many were delivered."""
        try:
            await self._declare()
            rounds = (self._round(self._channels[name]) for name in self._couriers)
            return sum(await asyncio.gather(*rounds))
        finally:
            await self._close()

    async def _turn(self) -> float:
        """Start a round for every channel with a due message; tell when to look again."""
        await self._declare()
        if not self._couriers:
            return DECLARE_SECONDS
        waits = [LOOK_SECONDS]
        coming = await self._driver.run(outbox.coming, list(self._couriers))
        for name, seconds in coming.items():
            wait = max(seconds, self._rests.get(name, 0.0) - monotonic())
            if wait > 0:
                waits.append(wait)
            elif name not in self._rounds:
                task = asyncio.create_task(self._round(self._channels[name]), name=name)
                self._rounds[name] = task
                task.add_done_callback(self._ended)
        return max(LEAST_SECONDS, min(waits))

    def _ended(self, task: "asyncio.Task[int]") -> None:
        name = task.get_name()
        self._rounds.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._rest(name)
            log.warning("channel failed, tried again", channel=name, error=repr(error))
        self.wake()

    async def _declare(self) -> None:
        now = monotonic()
        if self._channels and now >= self._declare_at:
            await self._driver.run(outbox.declare, [c.row for c in self._channels.values()])
            self._declare_at = now + DECLARE_SECONDS

    async def _close(self) -> None:
        for courier in self._couriers.values():
            with suppress(Exception):
                await courier.close()

    # One channel

    async def _round(self, channel: ChannelSpec) -> int:
        """Take and deliver until nothing is due, or the channel must rest."""
        done = 0
        while True:
            taken = await self._driver.run(
                outbox.take,
                channel.name,
                tenant=channel.tenant,
                most=channel.limits.concurrency,
                lease_seconds=channel.limits.lease_seconds,
            )
            if not taken:
                self._rests[channel.name] = monotonic() + AGAIN_SECONDS * (not done)
                return done
            results = await self._deliver(channel, taken)
            done += results.count(None)
            await self._record(channel, taken, results)
            if await self._must_rest(channel, results) or cancelled():
                return done

    async def _deliver(self, channel: ChannelSpec, taken: Sequence[Message]) -> list[Delivered]:
        try:
            call = self._watched if self._hooks.at["message"] else self._try
            return await asyncio.gather(*(call(channel, message) for message in taken))
        except asyncio.CancelledError:
            # They may have arrived; given back, they arrive once more, under the same id.
            failures = [Failure(m.id, m.fence, "the relay was stopped", spent=0) for m in taken]
            with suppress(Exception):
                async with asyncio.timeout(RETURN_SECONDS):
                    await self._driver.run(outbox.failed, failures, most=2**31 - 1)
            raise

    async def _watched(self, channel: ChannelSpec, message: Message) -> Delivered:
        by_run = message.machine == "run"
        event = HookEvent(
            point="message",
            run_id=message.subject_id if by_run else None,
            job_id=None if by_run else message.subject_id,
            kind=message.kind,
            queue=message.queue,
            tenant=message.tenant,
            attempt=message.attempts,
            name=channel.name,
            trace=message.trace,
        )
        body = one_call(self._try, channel, message)
        delivered: Delivered = await perform_async(self._hooks.watch(event, body, _told))
        return delivered

    async def _try(self, channel: ChannelSpec, message: Message) -> Delivered:
        limits = channel.limits
        if not channel.wants(message):
            return None
        try:
            event = await self._driver.run(compose, message, most=limits.max_bytes)
            async with asyncio.timeout(limits.timeout):
                await self._couriers[channel.name].deliver(event)
        except (Undelivered, ReceiverGone, Unavailable) as error:
            return error
        except TimeoutError:
            return Undelivered(f"no answer within {limits.timeout:g} s")
        except MilepostError as error:
            return Undelivered(str(error))
        except Exception as error:  # noqa: BLE001 - a courier's mistake fails that message alone
            log.warning("delivery raised an error", message_id=message.id, error=repr(error))
            return Undelivered(f"the delivery broke off: {type(error).__name__}")
        return None

    def _count(self, channel: str, results: Sequence[Delivered]) -> None:
        counts = self.counts.setdefault(channel, {})
        for result in results:
            away = isinstance(result, Unavailable)
            word = "arrived" if result is None else "unreached" if away else "refused"
            counts[word] = counts.get(word, 0) + 1

    async def _record(
        self, channel: ChannelSpec, taken: Sequence[Message], results: Sequence[Delivered]
    ) -> None:
        self._count(channel.name, results)
        pairs = list(zip(taken, results, strict=True))
        arrived = [message for message, result in pairs if result is None]
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

    async def _must_rest(self, channel: ChannelSpec, results: Sequence[Delivered]) -> bool:
        """Stop a channel whose receiver is gone, let one rest that cannot be reached."""
        gone = next((result for result in results if isinstance(result, ReceiverGone)), None)
        away = next((result for result in results if isinstance(result, Unavailable)), None)
        if gone is not None:
            await self._driver.run(outbox.stop, channel.name, reason=str(gone), actor=ACTOR)
            log.warning("channel stopped", channel=channel.name, reason=str(gone))
        elif away is not None:
            self._rest(channel.name)
            log.warning("channel cannot be reached", channel=channel.name, error=str(away))
        return gone is not None or away is not None

    def _rest(self, name: str) -> None:
        self._troubles[name] = self._troubles.get(name, 0) + 1
        self._rests[name] = monotonic() + trouble_seconds(self._troubles[name])


def _told(result: Delivered) -> dict[str, Any]:
    return {"outcome": "done" if result is None else "undelivered", "error": result}


def _failure(channel: ChannelSpec, message: Message, result: Delivered) -> Failure:
    if isinstance(result, Undelivered):
        wait = channel.limits.wait_seconds(message.attempts, result.after)
        return Failure(message.id, message.fence, str(result), micros(wait))
    # Nobody was there to take it: that is not its fault.
    return Failure(message.id, message.fence, str(result), spent=0)
