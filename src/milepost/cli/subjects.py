"""Jobs and runs at a prompt: their documents, their end that is awaited, their cancellation."""

import json
import shlex
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from milepost.cli.bars import bar, spinner, watch_bars
from milepost.cli.command import Session
from milepost.cli.output import document, printable, say, show_json
from milepost.errors import IllegalMove

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from milepost.batch.handles import RunHandle
    from milepost.handles import JobHandle
    from milepost.history import Entry
    from milepost.records import Job, Run

    Handle = JobHandle[Any] | RunHandle

_PROGRESS = ("state", "done", "progress")
_COUNTERS = ("attempt", "errors", "losses", "polls", "releases", "retries")
_TIMES = ("created_at", "started_at", "finished_at")
FAILURE = ("attempt", "at", "type", "message", "code", "place", "traceback", "fingerprint")
LINE = 80
"""How much of an error a list shows."""
_LIMIT = ("limit", "limit_key", "units")
_RELATIVES = ("run", "step", "parent", "rerun_of", "rerun_by")


def job_summary(handle: "JobHandle[Any]") -> dict[str, Any]:
    """Say where a job stands, without its arguments and its result."""
    error = handle.error
    return document(
        handle.record,
        *("id", "kind", "version", "queue", "priority", *_PROGRESS, "progress_text"),
        *(*_COUNTERS, "cause", "error", "fingerprint", "worker", "phase"),
        *(*_TIMES, "due_at", "deadline_at", "tags", "unique", *_LIMIT),
        *(*_RELATIVES, "cancel_reason"),
        done=handle.done,
        progress=handle.progress,
        error=None if error is None else document(error, "type", "message", "code"),
        tags=_tags(handle.record),
        limit_key=handle.record.limit_value,
    )


def job_line(handle: "JobHandle[Any]", *, as_json: bool) -> dict[str, Any]:
    """Say where a job stands; to people also how old it is, how long it ran, and its error."""
    told = job_summary(handle)
    if as_json:
        return told
    now = datetime.now(UTC)
    begun, ended = told["started_at"], told["finished_at"]
    runs = begun is not None and (ended is not None or handle.state == "RUNNING")
    told["ran"] = span(((ended or now) - begun).total_seconds()) if runs else ""
    told["age"] = age(now, told["created_at"])
    told["error"] = "" if told["error"] is None else first_line(told["error"], most=LINE)
    return told


def job_document(handle: "JobHandle[Any]") -> dict[str, Any]:
    """Say everything of a job: its usage, its arguments and its result as they were stored."""
    record = handle.record
    carried = {"arguments": _shown(handle), "result": _stored(record, record.result)}
    told = {**job_summary(handle), "usage": handle.usage, **carried}
    return {**told, "failures": failed_attempts(handle)}


def failed_attempts(handle: "JobHandle[Any]") -> list[dict[str, Any]]:
    """Say why the last attempts of a job failed, in order."""
    if handle.record.fingerprint is None:
        return []
    from milepost.store import failures

    recent = handle._client.run(failures.attempts, handle.id, most=failures.SHOWN)  # noqa: SLF001
    return [document(one, *FAILURE) for one in recent]


def show_failures(failed: Sequence[Mapping[str, Any]]) -> None:
    """Print each attempt's error and traceback; one like that before is only mentioned."""
    before = None
    for one in failed:
        said = first_line(one)
        click.echo(f"\nattempt {one['attempt']}, {printable(one['at'])}: {said}")
        if one["place"]:
            click.echo(f"  at {printable(one['place'])}")
        if one["traceback"] and one["traceback"] == before:
            click.echo("  its traceback is that of the attempt before")
        elif one["traceback"]:
            for line in one["traceback"].splitlines():
                click.echo(f"  {printable(line)}")
        before = one["traceback"]


def age(now: datetime, then: datetime | None) -> str:
    """Say how long ago something was, in its largest unit."""
    return "" if then is None else span((now - then).total_seconds())


def span(seconds: float) -> str:
    """Say a length of time in two digits or so: 0.4 s, 12 s, 5 min, 3 h, 12 d."""
    for most, size, unit in ((1, 1, "s"), (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < most:
            return f"{seconds / size:.1f} {unit}" if most == 1 else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def first_line(error: Mapping[str, Any], *, most: int | None = None) -> str:
    """Say an error in one line, of so many characters at most."""
    first = error["message"].partition("\n")[0]
    if first.startswith("sealed:"):
        first = "its text is encrypted; MILEPOST_CODEC_KEYS opens it"
    line = printable(f"{error['type']}: {first}" if first else error["type"])
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


def run_summary(handle: "RunHandle") -> dict[str, Any]:
    """Say where a run stands, without its parameters and its report."""
    # One that broke off is not on its way any more.
    ended = 1.0 if handle.state == "SUCCEEDED" else None
    return document(
        handle.record,
        *("id", "batch", "version", "priority", *_PROGRESS, "cause"),
        *(*_TIMES, "deadline_at", "tags", "resumes", "parent_run"),
        done=handle.done,
        parent_run=handle.record.parent_id,
        progress=ended if handle.done else round(handle.progress, 3),
        tags=_tags(handle.record),
    )


def run_document(handle: "RunHandle") -> dict[str, Any]:
    """Say everything of a run: its steps, its parameters and report, why it and its jobs failed."""
    from milepost.store import failures

    record = handle.record
    steps = ("name", "role", "gated", "opened", "counts")
    causes = ("job_id", "step", "type", "message", "cause")
    bad = handle.done and handle.state != "SUCCEEDED"
    why = failures.run_failure(record, handle.picture.steps, handle.errors) if bad else None
    return {
        **run_summary(handle),
        "current_step": handle.current_step,
        "eta_seconds": None if handle.eta is None else round(handle.eta.total_seconds(), 1),
        "jobs_per_second": handle.throughput and round(handle.throughput, 1),
        "error_count": handle.error_count,
        "parameters": _shown(handle),
        "report": _stored(record, record.report),
        "steps": [document(step, *steps) for step in handle.steps],
        "error": None if why is None else document(why, "type", "message", "code"),
        "errors": [document(error, *causes) for error in handle.errors],
    }


def entry_document(entry: "Entry") -> dict[str, Any]:
    """Say one move of a history."""
    move = ("seq", "move", "from_state", "to_state", "at", "actor", "db_user")
    return document(entry, *move, "attempt", "fence", "detail")


def _is_job(handle: "Handle") -> "TypeIs[JobHandle[Any]]":
    return handle.what == "job"


def _tags(record: "Job | Run") -> object:
    return json.loads(record.tags) if record.tags else {}


def _shown(handle: "Handle") -> object:
    from milepost.request.redact import show_arguments

    record = handle.record
    names = handle._client.settings.redacted  # noqa: SLF001 - the settings it was found with
    return show_arguments(record.kind, _stored(record, record.payload), names)


def _stored(record: "Job | Run", data: bytes | None) -> object:
    if data is None:
        return None
    from milepost.encrypt import EncryptingCodec, is_sealed

    # Another codec's bytes may be encrypted; only its app can read them.
    readable = record.codec in ("json", EncryptingCodec.name) and not is_sealed(data)
    return json.loads(data) if readable else f"{len(data)} bytes of {record.codec}"


def show_page(at: Session, rows: Sequence[Mapping[str, Any]], *columns: str, limit: int) -> None:
    """Print a page of jobs or runs, and how to go on."""
    at.table(rows, *columns, empty="none fits; nothing to show")
    if len(rows) == limit and not at.as_json:
        say(f"older ones: --before {rows[-1]['id']}")


def show_started(at: Session, handle: "Handle") -> None:
    """Print the id of a job or run that was started, and how to follow it."""
    from milepost.ingest.handles import PipelineRun

    is_job = _is_job(handle)
    if at.as_json:
        handle.refresh()
        if isinstance(handle, PipelineRun):
            show_json(document(handle, "id", "mode", "state"))
        else:
            show_json(_document(handle))
        return
    click.echo(handle.id)
    stands = "" if isinstance(handle, PipelineRun) else f"{handle.kind} is {handle.state}; "
    follows = at.typed(f"jobs wait {handle.id}" if is_job else f"runs watch {handle.id}")
    say(f"{stands}{follows} {'waits for' if is_job else 'follows'} it")


def _document(handle: "Handle") -> dict[str, Any]:
    return job_document(handle) if _is_job(handle) else run_document(handle)


def await_end(
    at: Session, handle: "Handle", timeout: float | None, *, target: str | None = None
) -> None:
    """Follow a job or run to its end; print its result or report, or raise if it failed.

    With a target, the app's, it was just started there: no line of a run's progress is printed.
    """
    with _say_warnings(target):
        _follow(handle, timeout, has_lines=target is None)
    shown, outcome = _document(handle), "result" if _is_job(handle) else "report"
    is_good = handle.state == "SUCCEEDED"
    if at.as_json or is_good:
        show_json(shown if at.as_json else shown[outcome])
    if is_good:
        return
    if not _is_job(handle):
        why, rest = at.typed(f"runs show {handle.id}"), at.typed(f"runs resume {handle.id}")
        say(f"{why} tells why; {rest} tries the rest")
    getattr(handle, outcome)  # raises, and says how it ended


def follow_here(handle: "JobHandle[Any]", work: "Callable[[], object]") -> None:
    """Do a job's work in a thread, and draw its bar; Ctrl-C cancels it and waits for its end."""
    from threading import Thread

    worker = Thread(target=work, name="milepost-here")
    worker.start()
    try:
        with bar(handle.kind) as draw:
            while not handle.refresh().done:
                draw(completed=handle.progress or 0, total=1.0, description=_stands(handle))
                worker.join(0.2) if worker.is_alive() else handle.wait()
    except KeyboardInterrupt:
        handle.cancel("Ctrl-C at the prompt")
        handle.wait()
    finally:
        worker.join()


def _stands(handle: "JobHandle[Any]") -> str:
    return printable(handle.progress_text or handle.state.value)


def _follow(handle: "Handle", timeout: float | None, *, has_lines: bool) -> None:
    if _is_job(handle):
        with spinner(handle):
            handle.wait(timeout)
        return
    with watch_bars(has_lines=has_lines) as show:
        for now in handle.watch(timeout):
            show(now)


@contextmanager
def _say_warnings(target: str | None) -> Iterator[None]:
    """Say on stderr that no worker could take it, without a line of our code.

    The command that starts one names the app, where it is known.
    """

    def tell(message: Warning | str, *_args: object, **_more: object) -> None:
        text = str(message)
        if target is not None:
            text = text.replace(" APP`", f" {shlex.quote(target)}`")
        say(f"milepost: {text}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = tell
        yield


def cancel(at: Session, handle: "Handle", reason: str) -> None:
    """Cancel a job or a run, and say how it stands now."""
    before, now, name = handle.state, handle.cancel(reason), f"{handle.what} {handle.id}"
    if at.as_json:
        handle.refresh()
        show_json(job_summary(handle) if _is_job(handle) else run_summary(handle))
    if now == "RUNNING":
        say(f"{name} is running; its worker was asked to stop")
    elif now == "STOPPING":
        say(f"{name} is stopping; it ends with the jobs that still run")
    elif before == "CANCELLED":
        say(f"{name} was cancelled before; nothing to do")
    elif now != "CANCELLED":
        raise IllegalMove(f"{name} is {now} already; only an open one is cancelled")
    else:
        say(f"{name} is cancelled")
