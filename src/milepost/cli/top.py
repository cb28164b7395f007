"""`milepost top`: queues, workers, throughput, the slowest jobs and errors, as they stand now.

Each frame is one write, on the terminal's other screen, so nothing flickers and the screen before
comes back. Only ANSI sequences are used: it works wherever a shell does.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from milepost.cli import options
from milepost.cli.command import Session, StoreCommand
from milepost.cli.output import printable, show_json
from milepost.errors import Invalid, Unavailable
from milepost.lifecycle import JOB

if TYPE_CHECKING:
    from milepost.records import ErrorGroup, Queue, Worker
    from milepost.store.driver import Steps

COLUMNS = ("queue", "queued", "running", "waiting", "failed", "oldest")
SHOWN = 5
"""How many of the slowest jobs and of the errors are shown."""
PLAIN = (120, 200)
"""The columns and lines of a frame without a terminal."""
WIDE, NARROW = 24, 10
BEGIN, END = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
HOME, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"}
KEYS = "q quit   p pause   ← → sort by   ↑ ↓ order"


class Glance(NamedTuple):
    """What stands where, at one moment."""

    at: datetime
    queues: "Sequence[Queue]"
    oldest: dict[str, float]
    workers: "Sequence[Worker]"
    slowest: Sequence[tuple[str, str, str, int]]
    errors: "Sequence[ErrorGroup]"

    @property
    def ended(self) -> int:
        """How many jobs that are kept have ended."""
        final = (queue.counts.get(state, 0) for queue in self.queues for state in JOB.terminal)
        return sum(final)


class View(NamedTuple):
    """How a person wants to see it."""

    column: int = 1
    descending: bool = True
    paused: bool = False

    def after(self, key: str) -> "View":
        """Tell how it is to be seen after a key; others change nothing."""
        match key:
            case "p":
                return self._replace(paused=not self.paused)
            case "left" | "right":
                step = 1 if key == "right" else -1
                return self._replace(column=(self.column + step) % len(COLUMNS))
            case "up" | "down":
                return self._replace(descending=key == "down")
        return self


def glance() -> "Steps[Glance]":
    """Read everything that a frame shows."""
    from milepost.store import failures, queues, workers
    from milepost.store.driver import Call

    listed, oldest = yield from queues.standing()
    return Glance(
        at=(yield from workers.now()),
        queues=listed,
        oldest=oldest,
        workers=(yield from workers.listing()),
        slowest=(yield Call("job_slowest", {"most": SHOWN})),
        errors=(yield from failures.groups(most=SHOWN)),
    )


@click.command(cls=StoreCommand)
@click.option("--once", is_flag=True, help="Print one frame as plain text; so without a terminal.")
@options.number("--interval", 2, "Look again after N seconds.")
def top(at: Session, *, once: bool, interval: int) -> None:
    """Watch queues, workers, throughput, the slowest jobs and errors live. No app is needed.

    Keys: q quits, p pauses, left and right choose the column that queues are sorted by, up and down
    its order.
    """
    if at.as_json:
        show_json(_document(at.client.run(glance)))
    elif once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        for line in frame(at.client.run(glance), View(), size=PLAIN):
            click.echo(line.rstrip())
    else:
        _watch(at, interval)


# Drawing


def frame(seen: Glance, view: View, *, size: tuple[int, int], head: str = "") -> list[str]:
    """Draw one frame as plain text: at most so many lines, each at most so wide."""
    from rich.cells import set_cell_size

    from milepost.store.phrases import some

    width, height = size
    live = sum(map(_is_live, seen.workers))
    lines = [f"milepost   {printable(seen.at)}   {some(live, 'live worker')}{head}", ""]
    lines += _queue_lines(seen, view)
    lines += ["", *_worker_lines(seen)]
    lines += ["", "slowest running", *_or_none(_slow_lines(seen))]
    lines += ["", "errors seen last", *_or_none(_error_lines(seen))]
    return [set_cell_size(line, width) for line in lines[:height]]


def styled(lines: list[str], view: View) -> list[str]:
    """Make the first line bold, and mark the column that queues are sorted by."""
    first, empty, heads, *rest = lines
    start = WIDE + 1 + (view.column - 1) * (NARROW + 1) if view.column else 0
    stop = start + (NARROW if view.column else WIDE)
    marked = f"{heads[:start]}\x1b[7m{heads[start:stop]}\x1b[0m{heads[stop:]}"
    return [f"\x1b[1m{first}\x1b[0m", empty, marked, *rest]


def _queue_lines(seen: Glance, view: View) -> Iterator[str]:
    rows = sorted(_queue_rows(seen), key=lambda row: row[view.column], reverse=view.descending)
    yield " ".join(
        f"{name:>{NARROW}}" if place else f"{name:<{WIDE}}" for place, name in enumerate(COLUMNS)
    )
    for name, queued, running, waiting, failed, oldest in rows:
        age = f"{oldest:.0f} s" if oldest else "-"
        counts = " ".join(f"{count:>{NARROW},}" for count in (queued, running, waiting, failed))
        yield f"{printable(name)[:WIDE]:<{WIDE}} {counts} {age:>{NARROW}}"


def _queue_rows(seen: Glance) -> Iterator[tuple[Any, ...]]:
    for queue in seen.queues:
        counts = queue.counts
        waiting = sum(counts.get(state, 0) for state in ("CREATED", "GATED", "WAITING", "RETRYING"))
        ready = counts.get("QUEUED", 0) + counts.get("READY", 0)
        name = f"{queue.name} (paused)" if queue.paused else queue.name
        yield (
            *(name, ready, counts.get("RUNNING", 0), waiting, counts.get("FAILED", 0)),
            seen.oldest.get(queue.name, 0.0),
        )


def _is_live(worker: "Worker") -> bool:
    from milepost.store.job_facts import is_live

    return is_live(worker)


def _worker_lines(seen: Glance) -> Iterator[str]:
    from milepost.cli.operate import busy_slots

    yield f"{'worker':<40} {'state':<12} {'busy':>5} {'beat':>8}"
    for worker in [worker for worker in seen.workers if worker.state != "STOPPED"][: 2 * SHOWN]:
        state = worker.state if _is_live(worker) else "DEAD"
        beat = (seen.at - worker.heartbeat_at).total_seconds()
        name = printable(f"{worker.id} {worker.host or ''}")[:40]
        yield f"{name:<40} {state:<12} {busy_slots(worker):>5} {beat:>6.0f} s"


def _slow_lines(seen: Glance) -> Iterator[str]:
    for job_id, kind, worker, micros in seen.slowest:
        yield f"  {micros / 1e6:>8.1f} s  {printable(kind):<24} {job_id}  {printable(worker)}"


def _error_lines(seen: Glance) -> Iterator[str]:
    for group in seen.errors:
        said = f"{printable(group.type)}: {printable(group.message)}"
        yield f"  {group.count:>6,} x  {printable(group.kind or '-')}  {said}"


def _or_none(lines: Iterable[str]) -> list[str]:
    return list(lines) or ["  none"]


def _document(seen: Glance) -> dict[str, object]:
    queues = [dict(zip(COLUMNS, row, strict=True)) for row in _queue_rows(seen)]
    slowest = [
        {"job": job_id, "kind": kind, "worker": worker, "seconds": micros / 1e6}
        for job_id, kind, worker, micros in seen.slowest
    ]
    errors = [{"type": e.type, "message": e.message, "count": e.count} for e in seen.errors]
    live = sum(map(_is_live, seen.workers))
    return {"at": seen.at, "live": live, "queues": queues, "slowest": slowest, "errors": errors}


# Watching


def _watch(at: Session, interval: float) -> None:
    seen, view, head = at.client.run(glance), View(), ""
    looked = time.monotonic()
    with _terminal():
        while True:
            _draw(seen, view, head)
            passed = time.monotonic() - looked
            key = _key(interval if view.paused else max(0.0, interval - passed))
            if key == "q":
                return
            view = view.after(key)
            if key or view.paused:
                continue
            before, elapsed, looked = seen, time.monotonic() - looked, time.monotonic()
            try:
                seen = at.client.run(glance)
                # Retention removes some that ended: the speed is not negative for that.
                head = f"   {max(0, seen.ended - before.ended) / elapsed:,.1f} jobs/s"
            except Unavailable as error:
                head = f"   the store cannot be reached: {printable(error)}"


def _draw(seen: Glance, view: View, head: str) -> None:
    """Write a frame at once, over the one before."""
    columns, height = os.get_terminal_size(sys.stdout.fileno())
    head += "   paused" if view.paused else ""
    # The last column stays free: what follows it would erase it on some terminals.
    lines = frame(seen, view, size=(columns - 1, max(4, height) - 1), head=head)
    shown = [*styled(lines, view), KEYS[: columns - 1]]
    text = HOME + "\r\n".join(line + REST_OF_LINE for line in shown) + REST_OF_SCREEN
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _key(seconds: float) -> str:
    """Wait so long for a key; "" if none came."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    if not ready:
        return ""
    typed = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
    if not typed:  # the terminal went away
        return "q"
    return ARROWS.get(typed[:3].replace("\x1bO", "\x1b["), typed[0])


@contextmanager
def _terminal() -> Iterator[None]:
    """Take the terminal, and give it back as it was, however this ends."""
    try:
        import termios
        import tty
    except ImportError as error:
        raise Invalid("top needs a POSIX terminal; `milepost top --once` needs none") from error

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    ended = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        tty.setcbreak(descriptor)
        os.write(sys.stdout.fileno(), BEGIN.encode())
        yield
    except KeyboardInterrupt:
        pass
    finally:
        os.write(sys.stdout.fileno(), END.encode())
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, ended)
