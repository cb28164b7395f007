"""Streams of pages that are looked at: one reader of the store for each page, however many look.

A topic is a page as callers with the same rights see it. While it has viewers it is read again and
again; the parts that changed go to all of them. Without viewers nothing is asked of the store.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

from milepost.errors import MilepostError
from milepost.telemetry import Log
from milepost.web.access import Principal
from milepost.web.call import Call
from milepost.web.dashboard.page import STREAM, Load, Renderer, mark
from milepost.web.problems import HttpProblem, problem_of

TICK_SECONDS = 0.5
"""How often a page is read again while it is looked at."""

IDLE_SHARE = 15
"""A page that takes long to read rests so many times as long: watching costs 6 % of a core."""

BEAT_SECONDS = 5.0
"""How often a quiet stream says that it is alive, and asks whether its caller still may look."""

ADMITTED_SECONDS = 1.0
"""So long the answer holds for all streams of one caller; a refusal is asked for again by each."""

VIEWERS = 1_000
"""How many streams of pages one process has."""

VIEWERS_EACH = 100
"""How many of them one caller has: pages that differ are read one by one."""

NOT_COUNTED = ("api", "local")
"""Callers without a name of their own: all are one where another program guards the pages."""

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
Key = tuple[str, Any]

log = Log("milepost.web")


class Viewer:
    """One who looks: the changes that were not sent yet, by part."""

    def __init__(self) -> None:
        self.pending: dict[str, bytes] = {}
        self.is_over = False
        self.woken = asyncio.Event()

    def tell(self, changed: Mapping[str, bytes]) -> None:
        """Add changes; a newer one of the same part takes the place of an older one."""
        self.pending.update(changed)
        if changed:
            self.woken.set()

    def end(self) -> None:
        """Let its stream end: there is nothing to look at any more."""
        self.is_over = True
        self.woken.set()

    def take(self) -> dict[str, bytes]:
        """Return what is to be sent."""
        taken, self.pending = self.pending, {}
        self.woken.clear()
        return taken


class Topic:
    """A page that is looked at."""

    def __init__(self) -> None:
        self.viewers: set[Viewer] = set()
        self.marks: dict[str, str] = {}
        self.parts: dict[str, bytes] = {}
        self.task: asyncio.Task[None] | None = None

    def publish(self, parts: Mapping[str, str]) -> None:
        """Tell all viewers what changed."""
        marks = {name: mark(html) for name, html in parts.items()}
        changed = {
            name: _event(name, html, marks[name])
            for name, html in parts.items()
            if self.marks.get(name) != marks[name]
        }
        self.marks = marks
        self.parts |= changed
        if changed:
            for viewer in self.viewers:
                viewer.tell(changed)

    def end(self) -> None:
        """End all streams: their pages are loaded again, and say why."""
        while self.viewers:
            self.viewers.pop().end()


def _event(name: str, html: str, marked: str) -> bytes:
    data = msgspec.json.encode({"id": name, "mark": marked, "html": html})
    return b"event: part\ndata: %s\n\n" % data


class Live:
    """The topics of one server process."""

    def __init__(self) -> None:
        self._topics: dict[Key, Topic] = {}
        self._open: Counter[str] = Counter()
        self._admitted: dict[str, tuple[float, asyncio.Future[bool]]] = {}

    @property
    def viewers(self) -> int:
        """How many look at some page."""
        return sum(len(topic.viewers) for topic in self._topics.values())

    async def stream(self, call: Call, load: Load) -> Response:
        """Follow a page: each part when it has changed."""
        later = {"Retry-After": "10"}
        if self.viewers >= VIEWERS:
            raise HttpProblem(503, f"{VIEWERS} pages are followed here already", headers=later)
        mine = call.principal.id
        if call.principal.actor not in NOT_COUNTED and self._open[mine] >= VIEWERS_EACH:
            told = f"you follow {VIEWERS_EACH} pages here already; close some"
            raise HttpProblem(429, told, headers=later)
        return StreamingResponse(self._followed(call, load), media_type=STREAM, headers=HEADERS)

    async def _followed(self, call: Call, load: Load) -> AsyncIterator[bytes]:
        key = (str(call.request.url), rights(call.principal))
        topic = self._topics.setdefault(key, Topic())
        viewer = Viewer()
        viewer.tell(topic.parts)
        topic.viewers.add(viewer)
        self._open[call.principal.id] += 1
        if topic.task is None:
            topic.task = asyncio.create_task(self._read(key, topic, call, load))
        try:
            yield b"event: beat\ndata: {}\n\n"
            async for piece in self._told(call, viewer):
                yield piece
        finally:
            topic.viewers.discard(viewer)
            self._open[call.principal.id] -= 1
            self._open += Counter()  # keeps those who look

    async def _told(self, call: Call, viewer: Viewer) -> AsyncIterator[bytes]:
        """Send changes as they come; once in a while, whether any came, ask if this goes on."""
        clock = asyncio.get_running_loop().time
        asked = clock()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, asked + BEAT_SECONDS - clock())):
                    await viewer.woken.wait()
            is_due = clock() - asked >= BEAT_SECONDS
            if viewer.is_over or (is_due and not await self._goes_on(call)):
                yield b"event: end\ndata: {}\n\n"
                return
            if is_due:
                asked = clock()
                yield b"event: beat\ndata: {}\n\n"
            if pieces := viewer.take():
                yield b"".join(pieces.values())

    async def _goes_on(self, call: Call) -> bool:
        """Tell whether the caller still may look; many streams of one ask together."""
        now, mine = asyncio.get_running_loop().time(), call.principal.id
        until, answer = self._admitted.get(mine, (0.0, None))
        if answer is None or now >= until:
            answer = asyncio.ensure_future(_is_admitted(call))
            others = {one: held for one, held in self._admitted.items() if now < held[0]}
            self._admitted = {**others, mine: (now + ADMITTED_SECONDS, answer)}
        # Whoever asked may go away meanwhile: the others wait for the answer all the same.
        return await asyncio.shield(answer) or await _is_admitted(call)

    async def _read(self, key: Key, topic: Topic, call: Call, load: Load) -> None:
        """Read a page while somebody looks at it."""
        clock = asyncio.get_running_loop().time
        try:
            while topic.viewers:
                began = clock()
                try:
                    shared = dict(await call.request.app.state.rail.shared(call))
                    # Others follow, too: each page puts its own into the forms of a new part.
                    shared["form_token"] = ""
                    topic.publish(Renderer(call, await load(), shared).parts())
                except Exception as error:  # noqa: BLE001 - whatever it is, others look at it too
                    if _is_gone(error):
                        topic.end()
                        return
                    told = str(error) if isinstance(error, MilepostError) else repr(error)
                    log.warning("a page could not be read again", page=key[0], error=told)
                await asyncio.sleep(max(TICK_SECONDS, IDLE_SHARE * (clock() - began)))
        finally:
            topic.task = None
            if not topic.viewers and self._topics.get(key) is topic:
                del self._topics[key]


def _is_gone(error: Exception) -> bool:
    """Tell whether a page will not come back: its job was removed, or it was never allowed."""
    if not isinstance(error, (MilepostError, HttpProblem)):
        return False
    return problem_of(error).status_code in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


def rights(principal: Principal) -> tuple[Any, ...]:
    """Tell what decides on what a caller sees: those who are equal share a reader."""
    return (principal.scopes, principal.tenant, principal.queues)


async def _is_admitted(call: Call) -> bool:
    try:
        await call.request.scope["milepost.authenticate"]()
    except (HttpProblem, MilepostError):
        return False
    return True
