"""The `milepost` command.

A new command is a line in `COMMANDS` and a function in the module named there, which is imported
when the command runs. `command.py` has its classes (on a store, on an app, one that starts
something), `options.py` the options that several have, `output.py` the printing:

    @queues.command("pause", access="write")
    @options.name
    def pause_queue(at: Session, name: str) -> None: ...
"""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from milepost.cli.groups import LazyGroup
from milepost.errors import (
    AccessRefused,
    IllegalMove,
    Invalid,
    JobFailed,
    LeaseLost,
    MilepostError,
    NotFound,
    QueueFull,
    Unavailable,
    WaitTimeout,
)

__all__ = ["main"]

COMPLETE = "_MILEPOST_COMPLETE"
"""Set by a shell that asks for completions."""

COMMANDS = {
    "at": ("milepost.cli.looks", "Show a job, a run or a queue as it stood at a time."),
    "batches": ("milepost.cli.batches", "List batches, start a run of one."),
    "bench": ("milepost.cli.bench", "Measure a store next to hand-written SQL."),
    "channels": (
        "milepost.cli.channels",
        "Final messages: waiting, delivered and dead ones.",
    ),
    "completion": ("milepost.cli.about", "Print the completion script of a shell."),
    "config": ("milepost.cli.about", "Show the settings, and where each comes from."),
    "demo": ("milepost.demo.story", "Kill workers, show that nothing is lost or done twice."),
    "dev": ("milepost.cli.serve", "Run a file's app: store, worker, maintenance and API in one."),
    "doctor": ("milepost.cli.doctor", "Find what is wrong in a store and around it; repair it."),
    "errors": ("milepost.cli.errors", "List errors that are the same one, show one."),
    "explain": (
        "milepost.cli.looks",
        "Say why a job, run, queue, schedule, channel or pipeline stands still.",
    ),
    "grants": ("milepost.cli.store", "Print the SQL that gives PostgreSQL roles their rights."),
    "jobs": ("milepost.cli.jobs", "List, show, await, cancel and run again."),
    "limits": ("milepost.cli.limits", "List limits, set and reset them; who changed them."),
    "machine": ("milepost.cli.about", "Show a lifecycle as a diagram and a table."),
    "migrate": ("milepost.cli.store", "Bring a store's schema to this version."),
    "move": ("milepost.cli.move", "Move a whole store from a SQLite file to PostgreSQL."),
    "pipelines": (
        "milepost.cli.pipelines",
        "Start, plan, show and repair pipelines; their watermarks and quarantines.",
    ),
    "queues": ("milepost.cli.operate", "List queues, pause and resume them."),
    "replay": ("milepost.cli.jobs", "Read a request's recorded replies again, offline."),
    "retention": ("milepost.cli.store", "The minimum age of jobs and runs that retention removes."),
    "runs": ("milepost.cli.batches", "List, show, watch, cancel and resume runs of batches."),
    "schedules": ("milepost.cli.operate", "List, pause and resume schedules; when they fire."),
    "server": ("milepost.cli.serve", "Serve the HTTP API of an app."),
    "submit": ("milepost.cli.jobs", "Submit a job."),
    "tokens": ("milepost.cli.tokens", "Create, list and revoke tokens of the HTTP API."),
    "top": ("milepost.cli.top", "Watch queues, workers, the slowest jobs and errors live."),
    "verify": ("milepost.cli.store", "Fold the journal and compare it with the live rows."),
    "worker": ("milepost.cli.worker", "Run a worker, or several under a supervisor."),
    "workers": ("milepost.cli.operate", "List the workers."),
}

EXIT_CODES: tuple[tuple[type[MilepostError], int], ...] = (
    (Invalid, 2),
    (JobFailed, 3),
    (NotFound, 4),
    (IllegalMove, 5),
    (LeaseLost, 5),
    (AccessRefused, 5),
    (QueueFull, 5),
    (Unavailable, 75),
    (WaitTimeout, 124),
)
EXITS = {
    0: "done",
    1: "failed",
    2: "usage",
    3: "the job or run awaited ended FAILED or CANCELLED",
    4: "not found",
    5: "refused",
    6: "doctor: something wants attention",
    75: "store unreachable",
    124: "timed out",
    141: "the reader of the output went away",
}

PIPE_CLOSED = 141
"""A shell's code for a program that SIGPIPE ended; click's own 1 would mean that we failed."""
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of a write to stdout; EPIPE, a reader that went away, is none of them."""


class PipeClosed(click.ClickException):
    """The reader of the output went away, as `head` does: not an error, so nothing is printed."""

    exit_code = PIPE_CLOSED

    def show(self, file: IO[Any] | None = None) -> None:
        """Keep quiet."""
        del file
        _discard(sys.stdout, sys.stderr)


class Milepost(LazyGroup):
    """The commands of the table above."""

    table = COMMANDS

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the words of a command; `--help` is answered here."""
        with _while_read():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        with _while_read():
            return super().invoke(ctx)


@contextmanager
def _while_read() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise PipeClosed(str(error)) from error


@click.group(
    cls=Milepost,
    epilog=f"Exit codes: {', '.join(f'{code} {means}' for code, means in EXITS.items())}.",
)
@click.version_option(package_name="milepost")
def cli() -> None:
    """Durable jobs: every job passes its mileposts in order, once, on the record."""


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; our own errors become a line on stderr and a documented exit code."""
    try:
        return _run(arguments)
    except BrokenPipeError:  # an error message that nobody reads
        _discard(sys.stdout, sys.stderr)
        sys.exit(PIPE_CLOSED)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _discard(sys.stdout)
        click.echo(f"milepost: the output cannot be written: {error.strerror}", err=True)
        sys.exit(1)


def _run(arguments: list[str] | None) -> Any:
    if COMPLETE in os.environ:
        from milepost.cli import bash

        bash.register()
    try:
        return cli.main(args=arguments, prog_name="milepost")
    except MilepostError as error:
        click.echo(f"milepost: {error}", err=True)
        sys.exit(next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1))


def _discard(*streams: IO[str]) -> None:
    """Discard buffered output: at the exit Python would try to write it, and fail, again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
