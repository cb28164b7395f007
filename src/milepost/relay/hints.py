"""Queues on a broker: the teller hands jobs to it, as hints, and tells again what nobody followed.

The job stays in its row. A hint says its id and nothing of its content; it may come twice, late or
never: what counts is the claim. Several tellers may serve one queue.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from time import monotonic

import msgspec

from milepost.config import Settings
from milepost.declare import Registry
from milepost.errors import Invalid, MilepostError, Unavailable
from milepost.relay.broker import (
    Broker,
    Outgoing,
    Undelivered,
    cancelled,
    publish_all,
    trouble_seconds,
)
from milepost.store import hints
from milepost.store.driver import AsyncDriver
from milepost.store.hints import Hint, Place
from milepost.telemetry import Log, ThrottledLog

log = Log("milepost.relay")

ACTOR = "relay"
VERSION = 1
BATCH = 250
TELLING = 3
"""How many batches are on their way to the broker at a time."""
LOOKS = 8
"""How often the next ones are looked at in turn, where limits block all that were found."""
TELL_SECONDS = 5.0
RECORD_SECONDS = 0.2
"""How long a confirmation may wait to be recorded with others."""
LEASE_SECONDS = 30.0
"""How long a hint that was taken is left to its teller: longer than a telling can take."""
NAME_MOST = 40
HEADERS = {"Content-Type": "application/json"}
_OTHER = re.compile(r"[^A-Za-z0-9-]")


encode = msgspec.json.Encoder().encode


class Told(msgspec.Struct, frozen=True):
    """A hint as it stands in a message."""

    v: int
    store: str
    job: str
    version: int = 0


def topic(store: str, queue: str) -> str:
    """Name the place on a broker where a queue's hints are: letters, digits, `-` and `_` alone."""
    word = _OTHER.sub(lambda found: "".join(f"_{byte:02x}" for byte in found[0].encode()), queue)
    if len(word) > NAME_MOST:
        word = f"{word[: NAME_MOST - 13]}_{sha256(queue.encode()).hexdigest()[:12]}"
    return f"milepost-{store}-{word}"


def read_hint(data: bytes) -> Told:
    """Read a message, or raise `Invalid`: it can never be a hint."""
    try:
        return msgspec.json.decode(data, type=Told)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the message is no hint: {error}") from error


@dataclass(slots=True)
class Reach:
    """Whether a broker was reached lately, to tell and to receive."""

    away_seconds: float
    """After so long without it, workers look for jobs in the store themselves."""
    _since: dict[str, float] = field(default_factory=dict)

    def lost(self, side: str) -> None:
        """Note that it was not reached just now."""
        self._since.setdefault(side, monotonic())

    def found(self, side: str) -> None:
        """Note that it was."""
        self._since.pop(side, None)

    @property
    def scanning(self) -> bool:
        """Whether workers must not wait for hints."""
        now = monotonic()
        return any(now - since >= self.away_seconds for since in self._since.values())


@dataclass(slots=True)
class HintQueue:
    """A queue that this program serves through a broker."""

    name: str
    broker: Broker
    store: str
    reach: Reach
    has_others: bool = False
    """Whether jobs under a limit are queued without a hint: workers look for those themselves."""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def topic(self) -> str:
        """Where its hints are; the consumer has the same name."""
        return topic(self.store, self.name)

    def count(self, what: str, number: int = 1) -> None:
        """Count what became of hints."""
        if number:
            self.counts[what] = self.counts.get(what, 0) + number


class Teller:
    """Hands the jobs of one queue to its broker, a bounded number at a time (B-11)."""

    def __init__(
        self,
        driver: AsyncDriver,
        queue: HintQueue,
        settings: Settings,
        registry: Registry | None = None,
    ) -> None:
        self._driver = driver
        self._queue = queue
        self._topic = queue.topic
        self._settings = settings
        self._registry = registry
        self._away = ThrottledLog(log)
        self._woken = asyncio.Event()
        self._telling: set[asyncio.Task[None]] = set()
        self._confirmed: list[Hint] = []
        self._recording: asyncio.Task[None] | None = None
        self._sweep_at = self._rest_until = 0.0
        self._troubles = 0
        self._pause = settings.poll_min
        self._blocked_to: Place | None = None
        """The last of the jobs that were looked at, where limits block many."""

    def wake(self) -> None:
        """Look now: there may be jobs to hand out."""
        self._woken.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        try:
            while not cancelled():
                pause = self._settings.sweep
                try:
                    pause = await self._turn()
                except Exception as error:  # noqa: BLE001 - whatever it is, look again
                    chosen = self._away if isinstance(error, Unavailable) else log
                    chosen.warning("telling failed, tried again", error=repr(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
                self._woken.clear()
        finally:
            tasks = [*self._telling, *([self._recording] if self._recording else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(Exception):  # what is not recorded is told once more
                async with asyncio.timeout(RECORD_SECONDS * 5):
                    await self._flush()

    async def once(self) -> int:
        """Tell what is due now; answer with how many the broker took."""
        before = self._queue.counts.get("told", 0)
        self._sweep_at = self._rest_until = 0.0
        while found := [*await self._due(BATCH), *await self._dispatched(BATCH)]:
            await self._tell(found)
            await self._flush()
            if self._troubles:
                break
        return self._queue.counts.get("told", 0) - before

    async def _turn(self) -> float:
        """Start to tell the next ones; answer with how long to wait before the next look."""
        if self._queue.reach.scanning:
            return await self._scan()
        if monotonic() < self._rest_until:
            return self._rest_until - monotonic()
        found = await self._due(BATCH)
        if len(self._telling) < TELLING:
            found += await self._dispatched(BATCH)
        if found:
            task = asyncio.create_task(self._tell(found))
            self._telling.add(task)
            task.add_done_callback(self._told)
            self._pause = self._settings.poll_min
            return 0.0 if len(self._telling) < TELLING else self._settings.sweep
        self._pause = min(self._pause * 2, self._settings.sweep)
        return self._pause

    def _told(self, task: "asyncio.Task[None]") -> None:
        self._telling.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("telling failed, tried again", queue=self._queue.name, error=repr(error))
        self.wake()

    async def _due(self, batch: int) -> list[Hint]:
        """Take the hints that are to be told again, and those of jobs that have none."""
        now = monotonic()
        if now < self._sweep_at:
            return []
        self._sweep_at = now + self._settings.sweep
        name, most = self._queue.name, self._settings.hints
        again = await self._driver.run(hints.take, name, batch=batch, lease_seconds=LEASE_SECONDS)
        self._queue.count("again", len(again))
        new = await self._driver.run(
            hints.adopt, name, most=most, batch=batch, lease_seconds=LEASE_SECONDS
        )
        self._queue.has_others = await self._driver.run(hints.any_left, name)
        return [*again, *new]

    async def _dispatched(self, batch: int) -> list[Hint]:
        """Hand out the first jobs; if limits block many of them, others behind those too."""
        found, last = await self._dispatched_behind(None, batch)
        if last is None:
            self._blocked_to = None
            return found
        behind: Place | None = self._blocked_to or last
        more: list[Hint] = []
        for _ in range(LOOKS):
            more, behind = await self._dispatched_behind(behind, batch - len(found))
            if more or behind is None:
                break
        self._blocked_to = behind
        return [*found, *more]

    async def _dispatched_behind(
        self, after: Place | None, batch: int
    ) -> tuple[list[Hint], Place | None]:
        return await self._driver.run(
            hints.dispatch_behind,
            self._queue.name,
            after,
            most=self._settings.hints,
            batch=batch,
            lease_seconds=LEASE_SECONDS,
            actor=ACTOR,
            kinds=None if self._registry is None else self._registry.words,
        )

    async def _scan(self) -> float:
        """Queue jobs for workers that scan; now and then see whether the broker is back (B-15)."""
        if monotonic() >= self._rest_until:
            self._sweep_at = 0.0
            if probe := await self._due(1) or await self._dispatched(1):
                await self._tell(probe)
                if not self._queue.reach.scanning:
                    return 0.0
            else:
                self._queue.reach.found("tell")  # nothing to be told: nothing is held up
        await self._driver.run(
            hints.enqueue,
            [self._queue.name],
            most=BATCH,
            actor=ACTOR,
            detail="the broker is away",
        )
        return self._settings.poll_min

    # One batch

    async def _tell(self, found: Sequence[Hint]) -> None:
        """Publish hints; those that the broker confirmed are told, the others come again."""
        results = await self._published(found)
        done = [hint for hint, error in zip(found, results, strict=True) if error is None]
        failed = {h: e for h, e in zip(found, results, strict=True) if e is not None}
        self._queue.count("told", len(done))
        if failed:
            await self._not_told(failed)
        else:
            self._troubles = 0
            self._queue.reach.found("tell")
            self._away.over("hints are told again")
        self._confirmed += done
        if self._confirmed and self._recording is None:
            self._recording = asyncio.create_task(self._record())

    async def _record(self) -> None:
        """Record confirmations, a little later: most of the jobs are claimed by then."""
        await asyncio.sleep(RECORD_SECONDS)
        self._recording = None
        try:
            await self._flush()
        except Exception as error:  # noqa: BLE001 - what is not recorded is told once more
            self._away.warning("tellings were not recorded", error=repr(error))

    async def _flush(self) -> None:
        done, self._confirmed = self._confirmed, []
        if done:
            again = self._settings.hint_again
            await self._driver.run(hints.told, done, again_seconds=again)

    async def _published(self, found: Sequence[Hint]) -> Sequence[MilepostError | None]:
        """Publish hints; answer with what was wrong with each."""
        store, headers = self._queue.store, HEADERS
        messages = [
            Outgoing(h.message_id, encode(Told(VERSION, store, h.job_id, h.version)), headers)
            for h in found
        ]
        try:
            async with asyncio.timeout(TELL_SECONDS * 2):
                return await publish_all(
                    self._queue.broker, self._topic, messages, seconds=TELL_SECONDS
                )
        except TimeoutError:
            # Some may have arrived: told again, they come twice.
            return [Unavailable(f"no answer within {TELL_SECONDS * 2:g} s")] * len(found)

    async def _not_told(self, failed: Mapping[Hint, MilepostError]) -> None:
        """Let the broker rest: the jobs are stored, and nothing is spent (B-15, B-22)."""
        error = next(iter(failed.values()))
        self._troubles += 1
        wait = trouble_seconds(self._troubles)
        self._rest_until = monotonic() + wait
        self._queue.reach.lost("tell")
        refused = sum(isinstance(each, Undelivered) for each in failed.values())
        self._queue.count("unroutable", refused)
        self._queue.count("unreached", len(failed) - refused)
        self._away.warning("hints cannot be told", queue=self._queue.name, error=str(error))
        await self._driver.run(
            hints.untold, list(failed), error=str(error)[:1000], delay_seconds=wait
        )
