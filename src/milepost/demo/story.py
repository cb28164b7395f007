"""`milepost demo`: workers are killed, and nothing is lost or done twice."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from milepost.cli import options
from milepost.cli.bars import Bar, changes, draw_bars
from milepost.cli.output import printable
from milepost.errors import MilepostError

if TYPE_CHECKING:
    from rich.console import Console

    from milepost.records import Job

WORKERS = 2
KILLS = (0.25, 0.6)
"""After which share of the documents a worker is killed."""
LOOK_SECONDS = 0.1
GIVE_UP_SECONDS = 110.0
SETTINGS = {
    "MILEPOST_LEASE": "3",
    "MILEPOST_HEARTBEAT": "1",
    "MILEPOST_SWEEP": "0.2",
    "MILEPOST_POLL_MAX": "0.2",
    "MILEPOST_CONCURRENCY": "8",
    "MILEPOST_THREADS": "4",
}
"""A short lease, so that nobody waits half a minute for a dead worker to be noticed."""
STATES = {
    "SUCCEEDED": "converted",
    "FAILED": "refused for good",
    "RUNNING": "being converted",
    "RETRYING": "to be tried again",
    "WAITING": "at the partner's",
}


@click.command()
@options.number("--documents", 400, "How many are converted.", least=20)
@click.option("--dashboard", is_flag=True, help="Show the pages of an invented evening instead.")
@click.option("--port", type=int, metavar="N", help="Where its pages are.  [default: 8000, or any]")
def demo(documents: int, port: int | None, *, dashboard: bool) -> None:
    """Convert documents, kill workers with SIGKILL, and show that nothing was lost or done twice.

    Everything happens in a temporary folder, on a SQLite store, in less than two minutes. With
    --dashboard that store is filled with an invented evening, and its pages are served.
    """
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100)
    with tempfile.TemporaryDirectory(prefix="milepost-demo-") as folder:
        if dashboard:
            from milepost.demo.dashboard import show

            show(console, Path(folder), port=port, opens=sys.stdout.isatty())
            return
        good = _Story(console, Path(folder), documents).tell()
    sys.exit(0 if good else 1)


class _Story:
    """One demonstration, from an empty folder to the verdict."""

    def __init__(self, console: "Console", folder: Path, documents: int) -> None:
        from milepost.app import App
        from milepost.demo.documents import converter

        self.console = console
        self.documents = documents
        self.folder = folder
        self.url = f"sqlite:///{folder}/demo.db"
        self.app = App(self.url)
        self.job = converter(self.app)
        self.killed: list[str] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    def tell(self) -> bool:
        """Tell it; answer whether everything is as promised."""
        from milepost.demo.documents import TABLE

        self.job.submit_many([(number,) for number in range(1, self.documents + 1)])
        with self._raw() as raw:
            raw.execute(TABLE)
        with self._at_work():
            self._say(
                f"[bold]1. {self.documents} documents to convert[/], on a fresh SQLite store, by "
                f"{WORKERS} worker processes. Some partners hang up, some take their time, some "
                "formats are not supported."
            )
            with _shown(self.console, self.documents) as show:
                self._work(show)
        self._summarize()
        self._show_a_history()
        honest, kept = self._try_to_cheat(), self._verdict()
        self.app.close()
        return honest and kept

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    @contextmanager
    def _raw(self) -> Iterator[Any]:
        """Open the database as a person at a SQL prompt does, without the engine."""
        import sqlite3

        path = self.folder / "demo.db"
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as connection:
            yield connection

    # Work, and workers that are killed

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        try:
            for _ in range(WORKERS):
                self._start_worker()
            yield
        finally:
            for process in self.workers:
                process.terminate()
            for process in self.workers:
                process.wait()

    def _start_worker(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MILEPOST_")}
        with (self.folder / "workers.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "milepost.cli", "worker", "milepost.demo.documents:app"],
                cwd=self.folder,
                env={**kept, **SETTINGS, "MILEPOST_DATABASE_URL": self.url},
                stdout=log,
                stderr=log,
            )
        self.workers.append(process)

    def _work(self, show: Callable[[Mapping[str, int]], None]) -> None:
        until = time.monotonic() + GIVE_UP_SECONDS
        kills = [round(share * self.documents) for share in KILLS]
        while True:
            counts = self.app.counts().get("default", {})
            show(counts)
            done = _ended(counts)
            if done == self.documents:
                return
            if kills and done >= kills[0]:
                kills = kills[1:] if self._kill_a_worker() else kills
            self._check_on_workers(until)
            time.sleep(LOOK_SECONDS)

    def _kill_a_worker(self) -> bool:
        """Kill a worker in the middle of something, without a warning, and start another."""
        running = [handle.record.worker_id for handle in self.app.jobs.list(state="RUNNING")]
        pids = {w.pid: w.id for w in self.app.workers.list() if w.id in running}
        for process in self.workers:
            if process.pid in pids:
                process.send_signal(signal.SIGKILL)
                process.wait()
                self.workers.remove(process)
                self.killed.append(pids[process.pid])
                held = self.app.jobs.list(state="RUNNING")
                count = sum(handle.record.worker_id == self.killed[-1] for handle in held)
                self._say(
                    f"   [bold red]kill -9 {process.pid}[/]: that worker was converting "
                    f"{count} documents; another one starts"
                )
                self._start_worker()
                return True
        return False

    def _check_on_workers(self, until: float) -> None:
        log = self.folder / "workers.log"
        if any(process.poll() is not None for process in self.workers):
            raise MilepostError(f"a worker ended by itself:\n{log.read_text()[-2000:]}")
        if time.monotonic() > until:
            raise MilepostError(f"the work was not done in time:\n{log.read_text()[-2000:]}")

    # What came of it

    def _records(self) -> "list[Job]":
        return [handle.record for handle in self.app.jobs.list(limit=self.documents)]

    def _summarize(self) -> None:
        from rich.table import Table

        records = self._records()
        good = [r for r in records if r.state == "SUCCEEDED"]
        bad = [r for r in records if r.state == "FAILED"]
        table = Table("what happened", "documents", title="2. What happened")
        table.columns[1].justify = "right"
        for said, found in (
            ("converted at the first attempt", [r for r in good if r.attempt == 1 and not r.polls]),
            ("converted when the partner was asked again later", [r for r in good if r.polls]),
            ("converted after the partner had hung up", [r for r in good if r.errors]),
            ("lost with a killed worker, converted by another", [r for r in good if r.losses]),
            ("refused for good: the format is not supported", bad),
        ):
            table.add_row(said, str(len(found)))
        self._say("")
        self.console.print(table)
        self._say("Some documents met more than one of these.\n")

    def _show_a_history(self) -> None:
        from rich.table import Table

        records = self._records()
        told = max(records, key=lambda r: (r.losses, r.errors, r.version))
        columns = ("seq", "move", "from_state", "to_state", "attempt", "actor")
        table = Table("after", *columns, title=f"3. The history of document {_number(told)}")
        for entry in self.app.jobs.get(told.id).history:
            after = 0.0 if entry.at is None else (entry.at - told.created_at).total_seconds()
            cells = (printable(getattr(entry, name)) for name in columns)
            table.add_row(f"{after:.1f} s", *cells)
        self.console.print(table)
        self._say(f"Killed: {', '.join(self.killed) or 'nobody'}.\n")

    def _try_to_cheat(self) -> bool:
        from milepost.demo.cheats import CHEATS, try_each

        with self._raw() as raw:
            said = try_each(raw)
        refused = [wish for wish, answer in said.items() if answer is not None]
        self._say(
            "[bold]4. Somebody with a SQL prompt[/] tries to "
            f"{', '.join(CHEATS)}: {len(refused)} of {len(CHEATS)} refused by the database.\n"
        )
        return len(refused) == len(CHEATS)

    def _verdict(self) -> bool:
        from milepost.demo.documents import is_supported
        from milepost.observe.verify import verify

        verdict = verify(self.app.client.driver)
        with self._raw() as raw:
            kept = dict(raw.execute("SELECT job_id, count(*) FROM converted GROUP BY job_id"))
        able = {r.id for r in self._records() if is_supported(_number(r))}
        lost, twice = able - set(kept), [job_id for job_id, count in kept.items() if count > 1]
        strange = set(kept) - able
        told = "clean" if verdict.clean else f"{verdict.found} problems"
        self._say(
            f"[bold]5. The verdict.[/] Of {self.documents} documents {len(able)} can be converted; "
            f"{sum(kept.values())} conversions were kept: [bold]{len(lost)} lost, {len(twice)} "
            f"done twice[/], {len(strange)} that should not be there.\n"
            f"   milepost verify folded the journal's {verdict.entries:,} entries from empty and "
            f"compared them with {verdict.rows:,} rows: [bold]{told}[/]."
        )
        return verdict.clean and not (lost or twice or strange)


def _number(record: "Job") -> int:
    return int(json.loads(record.payload or b"{}").get("document", 0))


@contextmanager
def _shown(console: "Console", documents: int) -> Iterator[Callable[[Mapping[str, int]], None]]:
    """Show the states as bars on a terminal, and as a line now and then elsewhere."""
    if not console.is_terminal:
        tell = changes(lambda line: console.print(line, highlight=False))

        def show(counts: Mapping[str, int]) -> None:
            parts = [f"{counts.get(state, 0)} {said}" for state, said in STATES.items()]
            tell(f"   {', '.join(parts)}", is_last=_ended(counts) == documents)

        yield show
        return
    with draw_bars(console) as draw:
        yield lambda counts: draw(
            Bar(said, count := counts.get(state, 0), documents, f"{count}/{documents}")
            for state, said in STATES.items()
        )


def _ended(counts: Mapping[str, int]) -> int:
    return counts.get("SUCCEEDED", 0) + counts.get("FAILED", 0)
