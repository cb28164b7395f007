"""Progress on a terminal: bars and spinners; of a run elsewhere a line now and then."""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from milepost.cli.output import printable, say

if TYPE_CHECKING:
    from rich.console import Console

    from milepost.batch.handles import RunHandle, StepState
    from milepost.handles import JobHandle

LINE_SECONDS = 2.0
BAR_WIDTH = 40

Show = Callable[["RunHandle"], None]


@contextmanager
def bar(title: str) -> Iterator[Callable[..., None]]:
    """Draw a bar on a terminal, which the function updates; stay silent elsewhere."""
    if not sys.stderr.isatty():
        yield lambda **_fields: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as drawn:
        yield partial(drawn.update, drawn.add_task(title, total=None))


@contextmanager
def spinner(handle: "JobHandle[Any]") -> Iterator[None]:
    """Show on a terminal where a job stands while it is awaited."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots")

    def now() -> Spinner:
        share = f" {handle.progress:.0%} {handle.progress_text or ''}" if handle.progress else ""
        spinner.update(text=printable(f"{handle.kind} {handle.id}: {handle.state.value}{share}"))
        return spinner

    with Live(get_renderable=now, console=Console(stderr=True), transient=True):
        yield


@contextmanager
def watch_bars(*, has_lines: bool) -> Iterator[Show]:
    """Show a run's bars on a terminal; elsewhere lines, if they are wanted."""
    if not sys.stderr.isatty():
        yield lines(say) if has_lines else lambda _run: None
        return
    from rich.console import Console

    with stepwise(Console(stderr=True), say) as show:
        yield show


class Bar(NamedTuple):
    """One bar, and the words next to it."""

    name: str
    done: float
    total: float
    counted: str
    note: str = ""


@contextmanager
def draw_bars(console: "Console") -> Iterator[Callable[[Iterable[Bar]], None]]:
    """Draw bars on a terminal; the function draws them as they are now."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    columns = (
        TextColumn("   {task.description}", markup=False),
        # Plain colours: a terminal of sixteen would show a full bar like an empty one.
        BarColumn(BAR_WIDTH, complete_style="cyan", finished_style="green"),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as progress:
        tasks: list[TaskID] = []

        def draw(bars: Iterable[Bar]) -> None:
            for place, (name, done, total, count, note) in enumerate(bars):
                if place == len(tasks):
                    tasks.append(progress.add_task(name, count="", note=""))
                task = tasks[place]
                progress.update(task, description=name, completed=done, total=total)
                progress.update(task, count=count, note=note)

        yield draw


def changes(echo: Callable[[str], None]) -> Callable[..., None]:
    """Print lines that differ from the one before, not too often; the last one in any case."""
    told, at = "", -math.inf

    def tell(text: str, *, is_last: bool) -> None:
        nonlocal told, at
        now = time.monotonic()
        if text != told and (is_last or now - at >= LINE_SECONDS):
            told, at = text, now
            echo(text)

    return tell


@contextmanager
def stepwise(console: "Console", echo: Callable[[str], None]) -> Iterator[Show]:
    """Draw a run's bars on a terminal; elsewhere print its lines."""
    if not console.is_terminal:
        yield lines(echo)
        return
    with draw_bars(console) as draw:
        yield lambda run: draw(_bars(run))


def lines(echo: Callable[[str], None]) -> Show:
    """Print how a run stands when that has changed, and at its end."""
    tell = changes(echo)
    return lambda run: tell(_line(run), is_last=run.done)


def _bars(run: "RunHandle") -> Iterator[Bar]:
    """Give one bar of the whole run, then one of each step."""
    yield Bar(run.state.value, run.progress, 1.0, _share(run), _left(run))
    for step in run.steps:
        # A bar of nothing would count as full.
        total = step.total or 1
        yield Bar(printable(step.name), step.ended, total, _count(step), _note(step))


def _line(run: "RunHandle") -> str:
    parts = [
        f"{step.name} {_count(step) or '-'}{f' ({note})' if (note := _note(step)) else ''}"
        for step in run.steps
    ]
    told = ", ".join(word for word in (_share(run), _left(run)) if word)
    return printable(f"{run.state.value}{told and f' {told}'}: {', '.join(parts)}")


def _count(step: "StepState") -> str:
    return f"{step.ended}/{step.total}" if step.total else ""


def _note(step: "StepState") -> str:
    """Name the exceptions: every state but success, and a gate that is shut."""
    told = [f"{n} {state.lower()}" for state, n in step.counts.items() if state != "SUCCEEDED"]
    shut = step.gated and not step.opened
    return ", ".join(["the gate is shut"] if shut and not told else told)


def _share(run: "RunHandle") -> str:
    """Say how far it is; one that broke off is not on its way any more."""
    is_on_its_way = not run.done or run.state == "SUCCEEDED"
    return f"{run.progress:.0%}" if is_on_its_way else ""


def _left(run: "RunHandle") -> str:
    return "" if run.eta is None else f"about {run.eta.total_seconds():.0f} s to go"
