"""`milepost worker app:app`: one worker, or several processes under a supervisor."""

import gc
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import click

from milepost.cli import complete, options
from milepost.cli.logs import logging_as
from milepost.cli.values import load_app
from milepost.telemetry import Log

if TYPE_CHECKING:
    from milepost.app import App

log = Log("milepost.worker")

SUPERVISOR = "MILEPOST_SUPERVISOR_PID"
END_SECONDS = 10.0
"""How long after its grace time a worker is waited for: by itself it ends in half of it."""
RESTART_FIRST = 0.5
RESTART_LONGEST = 30.0
STEADY_SECONDS = 60.0


@click.command()
@click.argument("app", metavar="APP")
@click.option(
    *("--queue", "queues"),
    multiple=True,
    shell_complete=complete.queues,
    help="Serve this queue only; may be repeated.",
)
@options.concurrency
@options.number("--processes", 1, "How many, under a supervisor.")
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve metrics for Prometheus there, on this machine alone unless HOST says otherwise.",
)
@click.option(
    "--isolate",
    flag_value="all",
    help="Run every job in a process of its own, which can be killed; by default those that are "
    "declared so.",
)
@options.logging
def worker(
    app: str,
    queues: tuple[str, ...],
    concurrency: int | None,
    processes: int,
    **chosen: str | None,
) -> None:
    """Run a worker until SIGTERM or SIGINT.

    APP is MODULE:APP, as in app:app, or a file, as in app.py.
    The first signal drains: running jobs may end. A second one releases them at once. With
    --processes N a supervisor starts N workers and restarts those that die; the first serves
    its metrics on PORT, the next on PORT + 1, and so on.
    """
    from milepost.queues import check_queues

    if queues:
        check_queues(queues)
    loaded = load_app(app)
    loaded.settings = loaded.settings.chosen(**chosen)
    loaded.logs_as_command = True
    if processes == 1:
        supervised = _leave_with_supervisor()
        gc.freeze()  # modules stay: no collection need look at them again
        with logging_as(loaded.settings):
            log.info("worker starts; Ctrl-C drains", store=str(loaded.client.url))
            worn_out = loaded.run_worker(list(queues) or None, concurrency, recycle=True)
        if worn_out and not supervised:
            # The same process with nothing left in it; a supervisor does it in its own way.
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves
        return
    arguments = [app, *(f"--queue={queue}" for queue in queues)]
    if concurrency is not None:
        arguments.append(f"--concurrency={concurrency}")
    if chosen["isolate"] is not None:
        arguments.append("--isolate")
    arguments += [
        f"--{name.replace('_', '-')}={chosen[name]}"
        for name in ("log_level", "log_format")
        if chosen[name] is not None
    ]
    told = partial(_note_exit, loaded)
    supervisor = Supervisor(arguments, processes, grace=loaded.settings.grace, on_end=told)
    if (address := loaded.settings.metrics_address) is not None:
        supervisor.serve_metrics(*address)
    with logging_as(loaded.settings):
        code = supervisor.run()
    sys.exit(code)


def _note_exit(app: "App", pid: int, exit_code: int) -> None:
    """Keep how a worker's process ended, for the jobs that it lost. Nobody waits for the store."""
    from milepost.store import workers

    def note() -> None:
        with suppress(Exception):  # the jobs are recovered without it
            app.client.run(workers.note_exit, host=platform.node(), pid=pid, exit_code=exit_code)

    threading.Thread(target=note, name="milepost-exit", daemon=True).start()


def _leave_with_supervisor() -> bool:
    """Drain when the supervisor is gone: nobody else would ever stop this worker."""
    supervisor = os.environ.pop(SUPERVISOR, None)
    if supervisor is None:
        return False

    def watch() -> None:
        while os.getppid() == int(supervisor):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="milepost-supervised", daemon=True).start()
    return True


@dataclass(slots=True)
class _Place:
    """One of the supervised workers, and when the next one may take its place."""

    process: "subprocess.Popen[bytes] | None" = None
    own: tuple[str, ...] = ()
    """Arguments that the others do not have."""
    since: float = 0.0
    """When it was started; after its end, when it ended."""
    pause: float = 0.0

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def vacate(self, now: float) -> None:
        steady = now - self.since > STEADY_SECONDS
        grown = min(max(self.pause * 2, RESTART_FIRST), RESTART_LONGEST)
        self.pause = RESTART_FIRST if steady else grown
        self.process, self.since = None, now


class Supervisor:
    """Keeps N worker processes alive, and drains them together."""

    def __init__(
        self,
        arguments: list[str],
        processes: int,
        *,
        grace: float,
        on_end: Callable[[int, int], None] = lambda _pid, _code: None,
    ) -> None:
        self._command = [sys.executable, "-m", "milepost.cli", "worker", *arguments]
        self._places = [_Place() for _ in range(processes)]
        self._stopping = False
        self._grace = grace
        self._on_end = on_end
        self._end_at = float("inf")

    def serve_metrics(self, host: str, port: int) -> None:
        """Have each of them serve its metrics, on a port of its own."""
        for number, place in enumerate(self._places):
            place.own = (f"--metrics={host}:{port + number if port else 0}",)

    @property
    def _live(self) -> "list[subprocess.Popen[bytes]]":
        return [place.process for place in self._places if place.process and place.is_alive]

    def run(self) -> int:
        """Supervise until stopped and every worker has ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        while not self._stopping or self._live:
            for place in self._places:
                self._tend(place)
            if time.monotonic() >= self._end_at:
                self._end()
            time.sleep(0.05)
        return 0

    def _tend(self, place: _Place) -> None:
        if place.is_alive or self._stopping:
            return
        now = time.monotonic()
        if (ended := place.process) is not None:
            place.vacate(now)
            log.warning("worker ended; starting another", pid=ended.pid, code=ended.returncode)
            self._on_end(ended.pid, ended.returncode)
        if now >= place.since + place.pause:
            place.process, place.since = self._started(place), now

    def _started(self, place: _Place) -> "subprocess.Popen[bytes]":
        # In a group of its own: Ctrl-C reaches it once, through us, and not twice.
        known = {**os.environ, SUPERVISOR: str(os.getpid())}
        child = subprocess.Popen([*self._command, *place.own], process_group=0, env=known)  # noqa: S603 - ourselves
        if self._stopping:  # the signal came while it was being made
            child.terminate()
        return child

    def _end(self) -> None:
        """Kill workers that ignore the signal: C code that holds the interpreter's lock does."""
        self._end_at = float("inf")
        for child in self._live:
            log.warning("worker did not end: killed", pid=child.pid)
            child.kill()

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        grace = 0.0 if self._stopping else self._grace  # a second signal gives back at once
        self._end_at = time.monotonic() + grace + END_SECONDS
        self._stopping = True
        for child in self._live:
            os.kill(child.pid, number)
