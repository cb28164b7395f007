"""`milepost pipelines`: their watermarks, runs, quarantines, removals and tables."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from milepost.cli import options
from milepost.cli.command import (
    AppCommand,
    AppSession,
    Session,
    StartCommand,
    StoreGroup,
    open_session,
)
from milepost.cli.output import document, say, show_filled, show_json, show_rows, show_table
from milepost.cli.values import find_declared
from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import IllegalMove, Invalid
from milepost.store import pipelines as stored_pipelines
from milepost.store import tables as stored_tables
from milepost.store import watermarks

if TYPE_CHECKING:
    from milepost.ingest.handles import PipelineRun
    from milepost.ingest.pipeline import Pipeline

BAR = 40
decision_reason = options.reason("decided by hand")


@click.group(cls=StoreGroup)
def pipelines() -> None:
    """Start, plan, show and repair pipelines; their watermarks and quarantines.

    Where an APP is asked for it is MODULE:APP, as in app:app, or a file, as in app.py.
    """


@pipelines.command("ls")
def ls(at: Session) -> None:
    """List the pipelines that have run, with their watermarks and their last runs."""
    from milepost.store import watermarks
    from milepost.store.quarantine import count

    run, rows = at.client.run, []
    for row in run(watermarks.listing):
        last = run(stored_pipelines.latest, row.id)
        rows.append(
            {
                "pipeline": row.name,
                "watermark": row.watermark,
                "watermark_state": run(watermarks.state, row),
                "last_run": None if last is None else last.run_id,
                "state": None if last is None else last.state,
                "mode": None if last is None else last.mode,
                "gaps": len(run(stored_pipelines.gaps, row.id)),
                "quarantined": run(count, row.id),
                "behind": row.behind,
                "dataset": row.dataset_version,
            }
        )
    at.table(rows, empty="no pipeline has run here")
    for told in rows:
        if told["behind"] and not at.as_json:
            say(
                f"{told['behind']} records of {told['pipeline']} are behind its rules "
                "or its mapping: `milepost pipelines remap` makes them anew, or a full run"
            )


@pipelines.command(cls=StartCommand)
@options.name
@click.option("--full", is_flag=True, help="Read everything, and remove records that are gone.")
@click.option("--since", metavar="TIME", help="Backfill from then; the watermark stays.")
@click.option("--until", metavar="TIME", help="Backfill up to then.")
@click.option(
    "--force", is_flag=True, help="Publish the records that a failed run has read; its gap stays."
)
def start(
    at: AppSession, name: str, since: str | None, until: str | None, *, full: bool, force: bool
) -> "PipelineRun":
    """Start a run of a pipeline, and print its id; one that is under way answers instead."""
    pipeline = _pipeline(at, name)
    return pipeline.start(full=full, since=_moment(since), until=_moment(until), force=force)


@pipelines.command(cls=StartCommand)
@options.name
def remap(at: AppSession, name: str) -> "PipelineRun":
    """Rebuild the table from the landed records, without reading the source; print the run's id.

    Every landed record is mapped again, also those in quarantine; removed ones stay removed.
    """
    return _pipeline(at, name).remap()


@pipelines.command(cls=AppCommand)
@options.name
@click.option("--full", is_flag=True, help="Plan a full run, whatever the watermark is.")
def plan(at: AppSession, name: str, *, full: bool) -> None:
    """Count the source as the next run would, and show how it would be cut; nothing is kept."""
    made = _pipeline(at, name).plan(full=full)
    rows = [
        _partition(part, "partition", "low", "high", "records", records=part.estimate)
        for part in made.partitions
    ]
    if at.as_json:
        counts = document(made, "counted", "calls", "largest", largest=round(made.largest, 2))
        cells = [[_bound(low), _bound(high), count] for low, high, count in made.histogram]
        show_json({**counts, "partitions": rows, "histogram": cells})
        return
    most = max((row["records"] for row in rows), default=0) or 1
    show_table(
        ("partition", "low", "high", "records", ""),
        [[*row.values(), "█" * round(BAR * row["records"] / most)] for row in rows],
    )
    say(
        f"{made.counted} records in {len(rows)} partitions, found by {made.calls} counts; the "
        f"largest is {made.largest:.2f} times the mean"
    )


def _partition(part: Any, *names: str, **given: object) -> dict[str, Any]:
    bounds = {"partition": part.ordinal, "low": _bound(part.low), "high": _bound(part.high)}
    return document(part, *names, **bounds, **given)


@pipelines.command()
@options.subject_id
@click.option("--timeline", "told", is_flag=True, help="Show its timeline, one event to a line.")
def show(at: Session, subject_id: str, *, told: bool) -> None:
    """Show one run: its window, its counts and its partitions."""
    run = _found(at, subject_id)
    if told:
        _show_timeline(at, run)
        return
    pipeline = at.client.run(watermarks.find, run.about.pipeline)
    about = {
        **document(run.about, "id", "pipeline", "mode", id=run.id),
        "state": run.state,
        "B": run.as_spec("B"),
        "cause": run.record.cause,
        "progress": round(run.progress, 3),
        "from": run.window.start,
        "to": run.window.end,
        "watermark_state": at.client.run(watermarks.state, pipeline),
        "counts": dict(run.counts),
    }
    names = ("partition", "state", "low", "high", "pages", "records", "error")
    parts = [_partition(part, *names) for part in run.partitions]
    if at.as_json:
        show_json({**about, "partitions": parts})
        return
    show_filled(about)
    if parts:
        click.echo()
        show_rows(parts)


def _show_timeline(at: Session, run: "PipelineRun") -> None:
    from milepost.ingest.timeline import timeline

    events = timeline(run)
    if at.as_json:
        show_json([document(event, "at", "state", "detail") for event in events])
        return
    first = events[0].at
    show_table(
        ("time", "state", "details"),
        [[_clock((e.at - first).total_seconds()), e.state, e.detail] for e in events],
    )


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60):02d}:{seconds % 60:04.1f}"


@pipelines.command()
@options.name
@click.option("--out", type=click.Path(dir_okay=False), help="Write it to a file, atomically.")
@click.option("--set", "to", metavar="TIME", help="Set it by hand, back or forth; needs --reason.")
@click.option("--reason", help="With --set: why; kept on the record.")
@click.option("--history", is_flag=True, help="Show every move of it, and its actor.")
def watermark(
    at: Session, name: str, out: str | None, to: str | None, reason: str | None, *, history: bool
) -> None:
    """Show a pipeline's watermark: lastUpdatedAt, lastRunId, lastRunCompletedAt."""
    from milepost.ingest.watermark_file import write_file

    if to is not None:
        _override(at, name, to, reason)
    row = at.client.run(watermarks.find, name)
    if history:
        _show_moves(at, at.client.run(watermarks.entries, name), watermarks.Mark(row.measure))
    elif out is not None:
        folder = Path(out).absolute().parent
        if not folder.is_dir():
            raise Invalid(f"{out}: the folder {folder} does not exist; make it first")
        write_file(out, row.document())
        say(f"written to {out}")
    else:
        at.show(row.document())


def _override(at: Session, name: str, to: str, reason: str | None) -> None:
    if not reason:
        raise Invalid("--set needs --reason: it is recorded with the change")
    moment = _moment(to)
    with open_session(at.store, access="write") as writing:
        row = writing.client.run(watermarks.find, name)
        mark = None if moment is None else watermarks.Mark(row.measure).stored(moment)
        writing.client.run(watermarks.override, name, mark, actor=writing.actor, reason=reason)
    say(f"the watermark of {name} was set by hand")


def _show_moves(at: Session, entries: Any, mark: Any) -> None:
    names = ("at", "move", "from", "to", "run", "actor", "reason")
    rows = []
    for entry in entries:
        bounds = {"from": entry.from_mark, "to": entry.to_mark}
        shown = {n: None if bound is None else mark.shown(bound) for n, bound in bounds.items()}
        rows.append(document(entry, *names, **shown))
    at.table(rows, empty="it was never moved")


@pipelines.command(access="write")
@options.subject_id
def resume(at: Session, subject_id: str) -> None:
    """Go on with a run that failed or was cancelled, with the same bounds; print the new id."""
    run = _found(at, subject_id)
    try:
        again = run.resume().refresh()
    except Invalid as error:
        raise IllegalMove(str(error)) from error
    if at.as_json:
        show_json({"id": again.id, "resumes": run.id, "state": again.state})
        return
    click.echo(again.id)
    say(f"{at.typed(f'runs watch {again.id}')} follows it")


@pipelines.command(cls=StartCommand)
@options.subject_id
@click.argument("partition", type=click.IntRange(0))
def retry(at: AppSession, subject_id: str, partition: int) -> "PipelineRun":
    """Read one failed partition of a run again, from its cursor, as a linked run."""
    return _of_app(at, subject_id).retry(partition)


@pipelines.command(cls=StartCommand)
@options.subject_id
def force(at: AppSession, subject_id: str) -> "PipelineRun":
    """Publish the records that a failed run has read, as a linked run; watermark and gap stay."""
    return _of_app(at, subject_id).force()


@pipelines.group()
def quarantine() -> None:
    """List records that could not be used, and try them again."""


@quarantine.command("ls")
@options.name
@options.limit()
@options.after
def list_quarantine(at: Session, name: str, limit: int, after: str) -> None:
    """List the records in quarantine, with the reason."""
    from milepost.store import watermarks
    from milepost.store.quarantine import page
    from milepost.subjects import check_page

    most = check_page(limit)
    row = at.client.run(watermarks.find, name)
    found = at.client.run(page, row.id, after=after, most=most)
    columns = ("key", "type", "reason", "run", "at")
    rows = [
        document(kept, *columns, "payload", payload=kept.payload.decode(errors="backslashreplace"))
        for kept in found
    ]
    at.table(rows, *columns, empty="the quarantine is empty")


@quarantine.command(cls=StartCommand)
@options.name
@click.option("--key", "keys", multiple=True, help="Only this record; may be repeated.")
def replay(at: AppSession, name: str, keys: tuple[str, ...]) -> "PipelineRun":
    """Map records in quarantine again, as a run of their own; print its id."""
    return _pipeline(at, name).quarantine.replay(list(keys) or None)


@pipelines.group()
def removals() -> None:
    """Decide on records that a full run did not see, when they are more than its limit."""


@removals.command("ls")
@options.name
@options.limit()
@options.after
def list_removals(at: Session, name: str, limit: int, after: str) -> None:
    """List the keys that wait for a decision."""
    from milepost.ingest.handles import Removals

    keys = Removals(at.client, name).list(after=after, limit=limit)
    at.table([{"key": key} for key in keys], empty="no removal waits for a decision")


@removals.command(access="write")
@options.name
@decision_reason
def confirm(at: Session, name: str, reason: str) -> None:
    """Let the next run remove them; the person and the reason are recorded."""
    _decide(at, name, "confirmed", reason)


@removals.command(access="write")
@options.name
@decision_reason
def dismiss(at: Session, name: str, reason: str) -> None:
    """Keep them until a full run misses them again; the person and the reason are recorded."""
    _decide(at, name, "dismissed", reason)


def _decide(at: Session, name: str, decision: str, reason: str) -> None:
    from milepost.ingest.handles import Removals

    count = at.client.run(Removals(at.client, name).deciding(decision, reason=reason))
    told = {"pipeline": name, "decision": decision, "records": count}
    at.answer(told, f"{count} removals {decision}")


@pipelines.command()
def tables(at: Session) -> None:
    """List the tables that pipelines hold or held, and by whom and why they were released."""
    rows = [asdict(holding) for holding in at.client.run(stored_tables.holdings)]
    at.table(rows, empty="no pipeline holds a table")


@pipelines.command(access="write")
@click.argument("table")
@decision_reason
def release(at: Session, table: str, reason: str) -> None:
    """Release a TABLE for another pipeline; the person and the reason are recorded.

    The next pipeline that takes it begins with none of its rows: they count as removed until that
    pipeline reads them. Refused while a run of the pipeline that has it is under way.
    """
    check_text(reason, what="reason", most=PROSE_BYTES)
    owner = at.client.run(stored_tables.release, table, actor=at.actor, reason=reason)
    was = f"; it was one of pipeline {owner}" if owner else ""
    at.answer({"table": table, "pipeline": owner}, f"table {table} is free{was}")


def _pipeline(at: AppSession, name: str) -> "Pipeline[Any]":
    return find_declared("pipeline", name, at.app.pipelines)


def _found(at: Session, subject_id: str) -> "PipelineRun":
    from milepost.ingest.handles import PipelineRun

    return PipelineRun(at.client, at.runs.find(subject_id).id)


def _of_app(at: AppSession, subject_id: str) -> "PipelineRun":
    run = at.app.runs.find(subject_id)
    return _pipeline(at, run.kind).run(run.id)


def _moment(text: str | None) -> datetime | int | None:
    """Read a time, or a number of a sequence."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid(f"{text!r} is no time such as 2024-01-16T02:00:00Z") from error
    if found.tzinfo is None:
        raise Invalid(f"{text!r} needs a time zone: 2024-01-16T02:00:00Z")
    return found


def _bound(bound: Any) -> Any:
    from milepost.ingest.keys import written

    return None if bound is None else written(bound)
