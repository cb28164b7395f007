"""Calls of a user's source: within one budget for all workers, with one login, and in a thread."""

import asyncio
import inspect
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from milepost.client import Client
from milepost.errors import Unavailable
from milepost.ingest.source import Source
from milepost.policy import Later
from milepost.store import buckets, budgets
from milepost.store.buckets import MICROS
from milepost.store.budgets import Login
from milepost.store.rules import ruled

SCOPE = "source"
"""The scope of the rules that limit how often sources are called."""
PATIENCE_SECONDS = 5.0
"""A longer pause is not slept through here: the job sleeps, and its slot is free."""
SLOWEST_SECONDS = 60.0
"""The next call of a rate is waited for here, if it is not slower than one in so long."""
PAUSE_SECONDS = 30.0
"""The pause for a source that is overrun and does not say for how long."""
LOGIN_SECONDS = 30.0
"""How long others wait for the worker that logs in, before one of them does."""
LOOK_AGAIN_SECONDS = 0.2
UNAUTHORIZED = 401
THROTTLED = 429


class Calls:
    """The one way to a source's methods."""

    def __init__(self, client: Client, name: str, source: Source[Any, Any, Any], rate: Any) -> None:
        self._client = client
        self._name = name
        self._source = source
        client.declared_rules[SCOPE, name] = None if rate is None else ruled(SCOPE, rate=rate)
        self._login = 0
        """Which login of the source's this program uses."""
        self._is_taken_over = False
        """Whether another program made it: then it may be old, and a refusal is no last word."""
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )

    async def remote(
        self, method: Callable[..., Any], *args: Any, turn: asyncio.Lock | None = None
    ) -> Any:
        """Call a method that asks the source itself: within the budget, and again after a login.

        Calls with the same `turn` wait one after the other for the next call of a slow rate: the
        third of them would find that its own is too far away, and be made later.
        """
        async with turn or nullcontext():
            await self._wait()
        try:
            return await self._admitted(method, *args)
        except Later as wish:
            await self._block(PAUSE_SECONDS if wish.seconds is None else wish.seconds)
            raise
        except Exception as error:
            pause = pause_of(error)
            if pause is None:
                raise
            await self._block(pause)
            # Throttled time is no failure: nothing is spent (H-89).
            raise Later(pause, detail=f"the source asked for a pause of {pause:g} s") from error

    async def local(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method, which may be async; a plain one has a thread."""
        if inspect.iscoroutinefunction(method):
            return await method(*args)
        value = await self._client.call_async(method, *args)
        return await value if inspect.isawaitable(value) else value

    async def _wait(self) -> None:
        """Wait until the source may be called, by the rate in force; for a long time, later."""
        run, patience = self._client.run_async, PATIENCE_SECONDS
        found = await run(budgets.standing, self._name)
        wait, limit = found.blocked, found.limit
        if limit is not None and wait <= patience:
            # A slow rate's next call is waited for: a plan that began anew would never be whole.
            patience = max(patience, min(limit.unit_us / MICROS, SLOWEST_SECONDS))
            take = partial(buckets.take, limit=limit, after=wait, within=patience)
            wait = await run(take, SCOPE, self._name)
        if wait > patience:
            raise Later(wait, detail=f"the source may be called again in {wait:g} s")
        if wait > 0:
            await asyncio.sleep(wait)

    async def _block(self, seconds: float) -> None:
        await self._client.run_async(budgets.block, self._name, seconds=seconds)

    async def _admitted(self, method: Callable[..., Any], *args: Any) -> Any:
        """Call a method; after a refusal again, with a new login, and once more if that was old."""
        is_new = False
        while True:
            seen = self._login
            try:
                return await self.local(method, *args)
            except Exception as error:
                if is_new or status_of(error) != UNAUTHORIZED:
                    raise
            is_new = await self._renewed(seen)

    async def _renewed(self, seen: int) -> bool:
        """Get another login, one for all callers; tell whether it was made here (H-90)."""
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:
            if self._login != seen:
                return not self._is_taken_over
            while True:
                found = await self._client.run_async(
                    budgets.look_for_login, self._name, seen=seen, lease_seconds=LOGIN_SECONDS
                )
                if found.is_ours:
                    await self._log_in(seen, found.until)
                    return True
                if found.number != seen:
                    return await self._take_over(found)
                await asyncio.sleep(LOOK_AGAIN_SECONDS)

    async def _log_in(self, seen: int, until: Any) -> None:
        """Log in for every worker: the session is theirs too.

        When it fails, this job fails, and the next may try at once.
        """
        try:
            session = await self.local(self._source.login)
        except BaseException:
            with suppress(Unavailable):  # then the turn ends by itself
                await self._client.run_async(budgets.leave_login, self._name, until=until)
            raise
        self._source.session, self._is_taken_over = session, False
        data = None if session is None else self._client.codec.encode(session)
        self._login = await self._client.run_async(
            budgets.give_login, self._name, seen=seen, session=data
        )

    async def _take_over(self, found: Login) -> bool:
        """Use the session of another worker's login; where that has none, each logs in."""
        if found.session is None:
            await self.local(self._source.login)
        else:
            self._source.session = self._client.codec.decode(found.session)
        self._login, self._is_taken_over = found.number, found.session is not None
        return not self._is_taken_over


def status_of(error: BaseException) -> int | None:
    """Read the status of an HTTP answer that an error of some library stands for."""
    for holder in (getattr(error, "response", None), error):
        for name in ("status_code", "status", "code"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and not isinstance(status, bool):
                return status
    return None


def pause_of(error: BaseException) -> float | None:
    """Read for how long a source asks to be left alone; None when it does not."""
    asked = getattr(error, "retry_after", None)
    if asked is None:
        for holder in (getattr(error, "response", None), error):
            headers = getattr(holder, "headers", None)
            if headers is not None and hasattr(headers, "get"):
                asked = headers.get("Retry-After") or headers.get("retry-after")
    try:
        seconds = None if asked is None else float(asked)
    except (TypeError, ValueError):
        seconds = None
    if seconds is not None and 0 <= seconds < 86_400:  # noqa: PLR2004 - a day; more is nonsense
        return seconds
    return PAUSE_SECONDS if status_of(error) == THROTTLED else None
