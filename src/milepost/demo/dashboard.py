"""`milepost demo --dashboard`: fills a store with an invented evening, and opens its pages.

Nothing is painted: the store's clock is put back, real jobs are submitted and run minute by minute,
and then the clock is right again. Workers go on with more while somebody looks.
"""

import logging
import os
import random
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from milepost.errors import MilepostError

if TYPE_CHECKING:
    from rich.console import Console

    from milepost.config import Settings

MINUTES = 120
"""How long the evening has been when somebody looks."""
LATE_SINCE, FAILING_SINCE, PAUSED_SINCE, UNSERVED_SINCE = 75, 18, 14, 9
RUNS_AT = (MINUTES, 75, 47, 26)
FEED_SECONDS = 1.0
RUN_EVERY = 150
TENANTS = ("acme", "globex", "initech", "umbrella")
SERVED = ("default", "payments", "convert", "mail", "ingest")
"""Nobody serves the queue `index`: a page says so."""


class Evening:
    """The shop, whose jobs come and go."""

    def __init__(self, console: "Console") -> None:
        from milepost.demo import evening

        self._console = console
        self._shop = evening
        self.app = evening.app
        self._random = random.Random(4)  # noqa: S311 - an invention, always the same

    def fill(self) -> None:
        """Let the evening happen, faster than it would."""
        from rich.progress import track

        os.environ[self._shop.PACE] = "0.01"
        self.app.counts()
        self._move_clock(-MINUTES * 60)
        for minute in track(
            range(MINUTES), "an evening happens", console=self._console, transient=True
        ):
            left = MINUTES - minute
            with _ids_of(left * 60):
                self._happen(left)
                self.app.drain()
            self._move_clock(60)
        self.app.queues.resume("index")
        self._verify()
        os.environ[self._shop.PACE] = "1"

    def _verify(self) -> None:
        """Compare the journal with the rows, and keep what came of it as `milepost verify` does."""
        from milepost.observe.verify import verify
        from milepost.store import dashboard

        verdict = verify(self.app.client.driver)
        told = f"{verdict.entries:,} entries, {verdict.rows:,} rows"
        self.app.client.run(dashboard.note_check, "verify", clean=verdict.clean, summary=told)

    def _move_clock(self, seconds: float) -> None:
        from milepost.store import workers

        self.app.client.run(workers.advance_clock, seconds)

    def _happen(self, left: int) -> None:
        """Do what happens in one minute, so many minutes before now."""
        if left == LATE_SINCE:
            os.environ[self._shop.TROUBLE] = "supplier"
        if left == FAILING_SINCE:
            os.environ[self._shop.TROUBLE] = "payments supplier"
        if left == PAUSED_SINCE:
            self._as_ana(self.app.queues.pause, "mail", "bounce storm")
        if left in RUNS_AT:
            self._shop.catalogue.start({"folder": f"2026-11-1{left % 9}"})
        if left == MINUTES - 5:
            self._shop.await_approval.submit_many([(f"C-{n}",) for n in range(40)])
        if left == UNSERVED_SINCE:
            self.app.queues.pause("index")
        self.feed(3 + 2 * (left % 3))

    @staticmethod
    def _as_ana(action: Any, *arguments: Any) -> None:
        from milepost.client import acting

        with acting("ana", tenant=""):
            action(*arguments)

    def feed(self, much: int) -> None:
        """Submit what comes in within a while."""
        shop, rnd = self._shop, self._random
        tenant = rnd.choice(TENANTS)
        tags = {"tenant": tenant}
        shop.send_mail.options(tags=tags).submit_many(
            [(rnd.randrange(10_000), "receipt") for _ in range(much * 2)]
        )
        shop.convert.options(tags=tags).submit_many(
            [(f"offer-{rnd.randrange(99_999)}",) for _ in range(much)]
        )
        for _ in range(max(1, much // 3)):
            order = f"A-{rnd.randrange(10_000, 30_000)}"
            shop.charge_card.options(tags=tags, channel="orders").submit(
                order, rnd.randrange(100, 9_000)
            )
        shop.index_document.submit_many([(f"doc-{rnd.randrange(9_999)}",) for _ in range(much)])
        if rnd.random() < 0.2:  # noqa: PLR2004
            shop.refund.submit(f"A-{rnd.randrange(10_000, 30_000)}")

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let jobs come in while somebody looks."""
        stopped = threading.Event()

        def come() -> None:
            for turn in count():
                with suppress(MilepostError):
                    if turn % RUN_EVERY == 0:
                        self._shop.catalogue.start({"folder": f"evening-{turn}"})
                    self.feed(2)
                if stopped.wait(FEED_SECONDS):
                    return

        feeder = threading.Thread(target=come, daemon=True)
        feeder.start()
        try:
            yield
        finally:
            stopped.set()
            feeder.join()


@contextmanager
def _ids_of(seconds_ago: float) -> Iterator[None]:
    """Make ids of a time that has passed: an id says when it was made."""
    import uuid_utils

    made: Any = uuid_utils.uuid7

    def earlier() -> Any:
        return made(nanoseconds=time.time_ns() - int(seconds_ago * 1e9))

    with patch.object(uuid_utils, "uuid7", earlier):
        yield


@contextmanager
def lines_in(file: Path, settings: "Settings") -> Iterator[None]:
    """Write log lines into a file: jobs that fail all the time would fill the terminal."""
    from milepost.cli.logs import logging_as

    root, handler = logging.getLogger(), logging.FileHandler(file)
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        with logging_as(settings):
            yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()


def show(console: "Console", folder: Path, *, port: int | None, opens: bool) -> None:
    """Fill a store in a folder, and serve its pages until Ctrl-C."""
    os.environ["MILEPOST_DATABASE_URL"] = f"sqlite:///{folder}/evening.db"
    evening = Evening(console)
    with lines_in(folder / "evening.log", evening.app.settings):
        evening.fill()
        _serve(console, evening, port, opens=opens)
    evening.app.close()


def _serve(console: "Console", evening: Evening, port: int | None, *, opens: bool) -> None:
    from milepost.cli.serve import serve_api

    with serve_api(evening.app, port) as link:
        console.print(f"the evening's pages: [bold]{link}[/]; Ctrl-C stops", highlight=False)
        if opens and link:
            webbrowser.open(link)
        with evening.going_on():
            evening.app.run_worker(list(SERVED), None)
