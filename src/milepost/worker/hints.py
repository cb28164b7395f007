"""Follows the hints of a broker: claims the jobs that they name, and acknowledges after that.

A hint may come twice, late, for a job that is gone, or for another store. It never decides: the
claim does. Acknowledgements go in the background, so no job waits for one (B-5).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from milepost.errors import Invalid, MilepostError
from milepost.lifecycle import JobState
from milepost.relay.adapter import DeliveryCounter
from milepost.relay.broker import Delivery, trouble_seconds
from milepost.relay.hints import VERSION, HintQueue, Teller, Told, read_hint
from milepost.store import hints, inbox
from milepost.store.hints import Standing
from milepost.telemetry import Log, ThrottledLog
from milepost.worker import Setup
from milepost.worker.claimer import Claimer
from milepost.worker.limited import others_chosen
from milepost.worker.slots import SlotTable

log = Log("milepost.worker")

WAIT_SECONDS = 1.0
"""How long a worker with free slots waits for hints, before it looks whether it is to stop."""
HOLD_SECONDS = 1.0
"""How long hints are kept that came for slots which others filled."""
AGAIN_SECONDS = 5.0
SOON_SECONDS = 0.5
RETURNS = 5
"""How often a hint is given back that cannot be followed now; then the sweep tells it again."""
ACK_SECONDS = 2.0
KEPT_BYTES = 64 * 1024


class Held(NamedTuple):
    """A hint in hand: the job that it names, and since when."""

    job_id: str
    delivery: Delivery
    since: float


class Follower:
    """Receives the hints of one queue, no more than there are free slots (B-16)."""

    def __init__(self, setup: Setup, queue: HintQueue, claimer: Claimer) -> None:
        self._driver = setup.driver
        self._registry = setup.registry
        self._queue = queue
        self._claimer = claimer
        self._stopping = asyncio.Event()
        self._came = asyncio.Event()
        self._followed = asyncio.Event()
        self._away = ThrottledLog(log)
        self._held: list[Held] = []
        self._counter = DeliveryCounter()
        self._background: set[asyncio.Future[Any]] = set()
        self._claiming = False
        self._paused = False
        """Whether nothing is received: the store is away."""

    def stop(self) -> None:
        """Receive no more."""
        self._stopping.set()
        self._came.set()
        self._followed.set()

    async def run(self) -> None:
        """Follow until stopped; hints that were not followed are given back at once."""
        await asyncio.gather(self._again(self._receive), self._again(self._follow))
        self._later([held.delivery.again(0) for held in self._held])
        self._held.clear()
        if self._background:
            await asyncio.wait(self._background, timeout=ACK_SECONDS)

    async def _again(self, turn: Callable[[], Awaitable[None]]) -> None:
        """Do the same again until stopped; after an error a little later each time."""
        trouble = 0
        while not self._stopping.is_set():
            try:
                await turn()
                trouble = 0
            except Exception as error:  # noqa: BLE001 - the broker or the store is away
                trouble += 1
                told = {"queue": self._queue.name, "error": str(error)}
                self._away.warning("following hints failed, tried again", **told)
                with suppress(TimeoutError):
                    async with asyncio.timeout(trouble_seconds(trouble)):
                        await self._stopping.wait()

    # Receiving

    async def _receive(self) -> None:
        queue, credit = self._queue, self._claimer.free - len(self._held)
        if credit <= 0 or self._paused:
            await self._wait_for_credit()
            return
        try:
            found = await queue.broker.receive(
                queue.topic, name=queue.topic, most=credit, seconds=WAIT_SECONDS
            )
        except MilepostError:
            queue.reach.lost("receive")
            raise
        queue.reach.found("receive")
        self._away.over("hints are followed again")
        now = monotonic()
        for delivery in found:
            if (told := self._read(delivery)) is not None:
                self._held.append(Held(told.job, delivery, now))
        if self._held:
            self._came.set()

    async def _wait_for_credit(self) -> None:
        """Wait until a slot is free, or hints in hand were followed: that may have taken none."""
        if self._held or self._claiming:
            self._followed.clear()
            await self._followed.wait()
        else:
            await self._claimer.wait_for_room()

    def _read(self, delivery: Delivery) -> Told | None:
        """Read a hint; one that is not ours, or that we cannot read yet, goes elsewhere."""
        try:
            told = read_hint(delivery.message.data)
        except Invalid as error:
            self._later([self._refuse(delivery, str(error))])
            return None
        if told.v > VERSION:
            # A newer program told it, and a newer worker understands it (B-9).
            self._give_back(delivery, "newer", AGAIN_SECONDS)
        elif told.store != self._queue.store:
            log.warning("hint of another store", queue=self._queue.name, store=told.store)
            self._give_back(delivery, "foreign", AGAIN_SECONDS)
        else:
            return told
        return None

    async def _refuse(self, delivery: Delivery, error: str) -> None:
        """Keep a message that can never be a hint, for operators to see (B-9)."""
        message, source = delivery.message, f"queue {self._queue.name}"
        kept = message.data[:KEPT_BYTES]
        try:
            await self._driver.run(inbox.refuse, source, message.id, error=error, content=kept)
        except Exception as away:  # noqa: BLE001 - the store is away: later, or by another worker
            self._away.warning("message not kept, tried again", error=repr(away))
            await delivery.again(AGAIN_SECONDS)
            return
        self._queue.count("refused")
        log.warning("message refused", queue=self._queue.name, message_id=message.id)
        await delivery.terminate()

    # Claiming

    async def _follow(self) -> None:
        """Follow the hints in hand, or wait for some."""
        if not self._held:
            self._paused = False
            self._came.clear()
            await self._came.wait()
            return
        self._claiming = True
        try:
            await self._claim()
        finally:
            self._claiming = False
            self._followed.set()

    async def _claim(self) -> None:
        """Claim the jobs that the hints in hand name, in one statement."""
        room = self._claimer.room
        if room <= 0:
            await self._claimer.wait_for_room()
            self._give_back_old()
            return
        chosen, self._held = self._held[:room], self._held[room:]
        ids = list(dict.fromkeys(held.job_id for held in chosen))
        try:
            tried, claims = await self._claimer.claim_hinted(self._queue.name, ids)
            claimed = {claim.id for claim in claims}
            left = [job_id for job_id in tried if job_id not in claimed]
            stands = await self._driver.run(hints.standing, left) if left else {}
        except BaseException:
            # The store is away, or the lease is lost: others may follow them (B-6).
            self._paused = True
            self._later([held.delivery.again(AGAIN_SECONDS) for held in chosen])
            raise
        self._paused = False
        self._queue.count("claimed", len(claims))
        # Only now: before the commit a crash would lose it, after it a crash brings it again, to
        # no effect (B-3, B-4).
        self._later([h.delivery.acknowledge() for h in chosen if h.job_id in claimed])
        for held in chosen:
            if held.job_id in left:
                self._answer(held.delivery, stands.get(held.job_id))
        # Others filled their slots during the claim, or were choosing: they wait for the next ones.
        self._held = [*(held for held in chosen if held.job_id not in tried), *self._held]
        if not tried:
            await others_chosen()

    def _answer(self, delivery: Delivery, stands: Standing | None) -> None:
        """Say what becomes of a hint whose job could not be claimed."""
        if stands is None:
            self._give_back(delivery, "unknown", AGAIN_SECONDS)  # restored, late or erased (B-7)
        elif stands.state != JobState.QUEUED or stands.queue != self._queue.name:
            self._queue.count("duplicate")  # claimed, ended, or to be told again (B-1)
            self._later([delivery.acknowledge()])
        elif stands.paused or stands.word not in self._registry.words:
            self._give_back(delivery, "unfit", AGAIN_SECONDS)  # (B-8)
        elif stands.word not in self._claimer.words:
            self._give_back(delivery, "busy", SOON_SECONDS)
        elif stands.limited:
            self._give_back(delivery, "limited", AGAIN_SECONDS)
        else:
            # A suspect, which is claimed alone, a job of a run that stops, or one that another
            # worker is about to claim: the sweep tells it again if it is still there.
            self._queue.count("left")
            self._later([delivery.acknowledge()])

    def _give_back(self, delivery: Delivery, why: str, seconds: float) -> None:
        """Give a hint back a few times; then it is left to the sweep (B-7, B-8)."""
        message = delivery.message
        times = self._counter.count(message)
        if times > RETURNS:
            self._counter.forget(message)
            self._queue.count(f"{why}_left")
            self._later([delivery.acknowledge()])
        else:
            self._queue.count(why)
            self._later([delivery.again(seconds * times)])

    def _give_back_old(self) -> None:
        """Give back hints that came for slots which others filled meanwhile."""
        limit = monotonic() - HOLD_SECONDS
        old = [held for held in self._held if held.since < limit]
        self._held = [held for held in self._held if held.since >= limit]
        self._queue.count("held", len(old))
        self._later([held.delivery.again(0) for held in old])

    def _later(self, answers: Sequence[Awaitable[None]]) -> None:
        """Answer the broker in the background: no job waits for that (B-5)."""
        if answers:
            task = asyncio.gather(*answers, return_exceptions=True)
            self._background.add(task)
            task.add_done_callback(self._background.discard)


class HintParts:
    """The tellers and followers of a worker, one of each for every queue on a broker."""

    def __init__(
        self, setup: Setup, queues: Sequence[HintQueue], claimer: Claimer, slots: SlotTable
    ) -> None:
        self._queues = list(queues)
        self._slots = slots
        given = setup.settings, setup.registry
        self._tellers = [Teller(setup.driver, queue, *given) for queue in queues]
        self._followers = [Follower(setup, queue, claimer) for queue in queues]
        self._following: list[asyncio.Task[None]] = []

    def __bool__(self) -> bool:
        """Tell whether any queue is on a broker."""
        return bool(self._queues)

    def wake(self) -> None:
        """Look for jobs to hand out."""
        for teller in self._tellers:
            teller.wake()

    async def run(self) -> None:
        """Tell and follow until cancelled, or stopped."""
        async with asyncio.TaskGroup() as tasks:
            for teller in self._tellers:
                tasks.create_task(teller.run())
            tasks.create_task(self._wake_for_keys())
            self._following = [tasks.create_task(one.run()) for one in self._followers]

    async def _wake_for_keys(self) -> None:
        """Hand out the next job of a key when one has ended here."""
        while True:
            await self._slots.key_freed.wait()
            self._slots.key_freed.clear()
            self.wake()

    def halt(self) -> None:
        """Follow no more hints."""
        for follower in self._followers:
            follower.stop()

    async def stop(self) -> None:
        """Wait until hints in hand are given back."""
        self.halt()
        if self._following:
            await asyncio.wait(self._following, timeout=WAIT_SECONDS + ACK_SECONDS)

    async def close(self) -> None:
        """Hang up."""
        for broker in {id(queue.broker): queue.broker for queue in self._queues}.values():
            with suppress(Exception):
                async with asyncio.timeout(ACK_SECONDS):
                    await broker.close()
