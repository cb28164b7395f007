"""The parts that adapters of brokers share: a connection, the messages in hand, and a counter."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeVar
from urllib.parse import SplitResult, urlsplit

from milepost.errors import Invalid, Unavailable
from milepost.relay.broker import BROKERS, Delivery, Incoming

C = TypeVar("C")

CONNECT_SECONDS = 6.0
ACK_SECONDS = 1.0
"""How long an acknowledgement is waited for: one that is lost only brings the message again."""
AWAY_SECONDS = 0.5
COUNTED_MOST = 10_000


def split_address(url: str, *, kind: str, several: bool = False) -> SplitResult:
    """Split an address, or raise `Invalid`; a password that is not quoted ends its host early."""
    schemes = BROKERS[kind].schemes
    if not isinstance(url, str) or url.partition("://")[0].lower() not in schemes:
        begin = " or ".join(f"{scheme}://" for scheme in schemes)
        raise Invalid(f"the address of {kind} is a text that begins with {begin}")
    parts = urlsplit(url)
    with suppress(ValueError):  # of a port that is no number; its text repeats the password
        if ("@" in parts.netloc or "@" not in url) and (several or parts.port != 0):
            return parts
    raise Invalid(
        "the address of a broker is SCHEME://USER:PASSWORD@HOST:PORT, with / # ? and @ in the user"
        " and the password percent-encoded: %2F %23 %3F %40"
    )


def public_address(url: str, *, kind: str) -> str:
    """Write an address without its user, password, path and options."""
    parts = split_address(url, kind=kind)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{host}{port}"


def reason(error: BaseException) -> str:
    """Name an error: its text may repeat an address with a password, its name never does."""
    return type(error).__name__


class Link(Generic[C]):
    """A connection that is opened when it is first used, and again when it was lost.

    It belongs to the event loop that opened it: another loop opens its own. Whatever an adapter
    remembers of a connection is part of the connection, so that it goes with it.
    """

    def __init__(
        self,
        address: str,
        connect: Callable[[], Awaitable[C]],
        *,
        hang_up: Callable[[C], Awaitable[None]],
        alive: Callable[[C], bool] = lambda _: True,
    ) -> None:
        self._address = address
        self._connect = connect
        self._hang_up = hang_up
        self._alive = alive
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._connection: C | None = None
        self._away_until = 0.0
        self._away: Exception = Unavailable(address)
        """Why it could not be reached."""

    async def get(self) -> C:
        """Give the connection, or raise `Unavailable`: within `CONNECT_SECONDS`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._opening, self._connection = loop, asyncio.Lock(), None
            self._away_until = 0.0
        async with self._opening:
            found = self._connection
            if found is None or not self._alive(found):
                await self._lose(found)
                found = self._connection = await self._open(loop)
            return found

    async def drop(self, broken: C) -> None:
        """Hang up a connection that failed, unless another has taken its place; the next is due."""
        if self._connection is broken:
            await self._lose(broken)

    async def close(self) -> None:
        """Hang up; the next use connects anew, and at once."""
        await self._lose(self._connection)
        self._away_until = 0.0

    async def _lose(self, found: C | None) -> None:
        self._connection = None
        if found is not None and self._loop is asyncio.get_running_loop():
            with suppress(Exception):
                async with asyncio.timeout(ACK_SECONDS):
                    await self._hang_up(found)

    async def _open(self, loop: asyncio.AbstractEventLoop) -> C:
        if loop.time() < self._away_until:
            raise self._away.with_traceback(None)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._connect()
        except BaseException as error:
            # Others that wait for the connection need not try, one after the other.
            self._away_until = loop.time() + AWAY_SECONDS
            self._away = self._told(error)
            if isinstance(error, TimeoutError):
                raise self._away from error
            raise

    def _told(self, error: BaseException) -> Exception:
        """Say to the others why it cannot be reached: nobody else's end is theirs."""
        if isinstance(error, TimeoutError):
            text = f"{self._address} does not answer: is it the broker's address and port?"
            return Unavailable(text)
        if isinstance(error, Exception):
            return error
        return Unavailable(f"{self._address} cannot be reached")


class Hand:
    """The messages that a connection has received and that have not come to an end.

    It makes of an adapter's delivery, whose ends may raise, hang and know no delay, one that keeps
    what `Delivery` promises. An adapter whose broker has no delay is given `again(0)` when the time
    has come; until then the message is held, unacknowledged. A crash brings it sooner.
    """

    def __init__(self, *, delays: bool) -> None:
        self._delays = delays
        self._open: dict[InHand, asyncio.Task[None] | None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def take(self, raw: Delivery) -> "InHand":
        """Take a message in hand."""
        taken = InHand(raw, self)
        self._open[taken] = None
        return taken

    async def end(self, taken: "InHand", ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Bring it to an end, once, within a second; an end that gets lost brings it again."""
        if taken in self._open:
            self._drop(taken)
            with suppress(Exception):
                async with asyncio.timeout(ACK_SECONDS):
                    await ending()

    async def give_back(self, taken: "InHand", seconds: float) -> None:
        """Give it back, now or when the time has come."""
        if self._delays or seconds <= 0:
            await self.end(taken, lambda: taken.raw.again(max(seconds, 0)))
        elif taken in self._open:
            self._open[taken] = asyncio.create_task(self._hold(taken, seconds))

    async def empty(self) -> None:
        """Give back at once whatever is in hand: a connection is about to be closed."""
        await asyncio.gather(*(self.give_back(taken, 0) for taken in list(self._open)))

    async def _hold(self, taken: "InHand", seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._open[taken] = None
        await self.give_back(taken, 0)

    def _drop(self, taken: "InHand") -> None:
        held = self._open.pop(taken)
        if held is not None:
            held.cancel()


class InHand:
    """A received message whose end is due (`Delivery`): ends neither raise nor take long."""

    def __init__(self, raw: Delivery, hand: Hand) -> None:
        self.raw = raw
        self.message: Incoming = raw.message
        self._hand = hand

    async def acknowledge(self) -> None:
        """Say that it is ours now."""
        await self._hand.end(self, self.raw.acknowledge)

    async def again(self, seconds: float) -> None:
        """Give it back; it comes again, not before that."""
        await self._hand.give_back(self, seconds)

    async def terminate(self) -> None:
        """Say that it can never be used."""
        await self._hand.end(self, self.raw.terminate)


class DeliveryCounter:
    """Counts how often messages came, where their broker does not.

    It remembers the latest `most` of them, in this process alone: a bound, not a record.
    """

    def __init__(self, most: int = COUNTED_MOST) -> None:
        self._most = most
        self._counts: OrderedDict[str, int] = OrderedDict()

    def count(self, message: Incoming) -> int:
        """Tell for how many times a message that just came has come, with this one."""
        if message.deliveries is not None:
            return message.deliveries
        count = self._counts.pop(message.id, 0) + 1
        self._counts[message.id] = count
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)
        return count

    def forget(self, message: Incoming) -> None:
        """Forget a message that does not come again."""
        self._counts.pop(message.id, None)
