"""`milepost pipelines`: where each has come to, how a run stands, and what to do now."""

import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.load import load_app
from milepost.cli.options import (
    SECONDS,
    acting,
    decision_reason,
    id_argument,
    json_option,
    limit_option,
    looking,
    store_option,
    typed,
)
from milepost.cli.output import say, show_filled, show_json, show_table
from milepost.cli.pipeline_tables import release, tables
from milepost.cli.values import no_such
from milepost.config import StoreUrl
from milepost.errors import IllegalMove, Invalid

if TYPE_CHECKING:
    from milepost.cli.options import Lookup
    from milepost.ingest.handles import PipelineRun
    from milepost.ingest.pipeline import Pipeline

BAR = 40
app_argument = click.argument("app", metavar="APP")
name_argument = click.argument("name")
wait_option = click.option(
    "--wait", is_flag=True, help="Wait for its end; exit code 3 unless it succeeded."
)
timeout_option = click.option(
    "--timeout", type=SECONDS, metavar="SECONDS", help="With --wait: give up then."
)


@click.group(cls=HelpfulGroup)
def pipelines() -> None:
    """Start, plan, show and repair pipelines; their watermarks and quarantines.

    Where an APP is asked for it is MODULE:APP, as in app:app, or a file, as in app.py.
    """


pipelines.add_command(tables)
pipelines.add_command(release)


@pipelines.command("ls")
@store_option
@json_option
def ls(store: StoreUrl, *, as_json: bool) -> None:
    """List the pipelines that have run, with their watermarks and their last runs."""
    from milepost.store import pipelines as operations
    from milepost.store import removals, watermarks

    with looking(store) as lookup:
        run = lookup.client.run
        documents = []
        for row in run(watermarks.listing):
            last = run(operations.latest, row.id)
            documents.append(
                {
                    "pipeline": row.name,
                    "watermark": row.watermark,
                    "last_run": None if last is None else last.run_id,
                    "state": None if last is None else last.state,
                    "mode": None if last is None else last.mode,
                    "gaps": len(run(operations.gaps, row.id)),
                    "quarantined": run(removals.unresolved, row.id),
                    "behind": row.behind,
                    "dataset": row.dataset_version,
                }
            )
    if as_json:
        show_json(documents)
    elif documents:
        show_table(tuple(documents[0]), [list(document.values()) for document in documents])
        for document in documents:
            if document["behind"]:
                say(
                    f"{document['behind']} records of {document['pipeline']} are behind its rules "
                    "or its mapping: `milepost pipelines remap` makes them anew, or a full run"
                )
    else:
        say("no pipeline has run here")


@pipelines.command()
@app_argument
@name_argument
@click.option("--full", is_flag=True, help="Read everything, and remove what is gone.")
@click.option("--since", metavar="TIME", help="Backfill from then; the watermark stays.")
@click.option("--until", metavar="TIME", help="Backfill up to then.")
@click.option("--force", is_flag=True, help="Publish what a failed run has read; its gap stays.")
@wait_option
@timeout_option
@json_option
def start(
    app: str,
    name: str,
    since: str | None,
    until: str | None,
    timeout: float | None,
    *,
    full: bool,
    force: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Start a run of a pipeline, and print its id; one that is under way answers instead."""
    pipeline = _declared(app, name)
    run = pipeline.start(full=full, since=_moment(since), until=_moment(until), force=force)
    _told(run, app, timeout, wait=wait, as_json=as_json)


@pipelines.command()
@app_argument
@name_argument
@wait_option
@timeout_option
@json_option
def remap(app: str, name: str, timeout: float | None, *, wait: bool, as_json: bool) -> None:
    """Make the table anew from what was landed, without reading the source; print the run's id.

    Every landed record is mapped again, also those in quarantine; what was removed stays removed.
    """
    _told(_declared(app, name).remap(), app, timeout, wait=wait, as_json=as_json)


@pipelines.command()
@app_argument
@name_argument
@click.option("--full", is_flag=True, help="Plan a full run, whatever the watermark is.")
@json_option
def plan(app: str, name: str, *, full: bool, as_json: bool) -> None:
    """Count the source as the next run would, and show how it would be cut; nothing is kept."""
    made = _declared(app, name).plan(full=full)
    rows = [
        {
            "partition": p.ordinal,
            "low": _bound(p.low),
            "high": _bound(p.high),
            "records": p.estimate,
        }
        for p in made.partitions
    ]
    if as_json:
        cells = [[_bound(low), _bound(high), count] for low, high, count in made.histogram]
        show_json(
            {
                "counted": made.counted,
                "calls": made.calls,
                "largest": round(made.largest, 2),
                "partitions": rows,
                "histogram": cells,
            }
        )
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


@pipelines.command()
@store_option
@id_argument
@click.option("--timeline", "told", is_flag=True, help="Tell what happened, line by line.")
@json_option
def show(store: StoreUrl, subject_id: str, *, told: bool, as_json: bool) -> None:
    """Show one run: its window, its counts and its partitions."""
    with looking(store) as lookup:
        run = _found(lookup, subject_id)
        if told:
            _show_timeline(run, as_json=as_json)
            return
        row = run.about
        document: dict[str, Any] = {
            "id": run.id,
            "pipeline": row.pipeline,
            "mode": row.mode,
            "state": run.state.value,
            "B": run.as_spec("B"),
            "cause": run.record.cause,
            "progress": round(run.progress, 3),
            "from": run.window.start,
            "to": run.window.end,
            "counts": dict(run.counts),
        }
        parts = [
            {
                "partition": part.ordinal,
                "state": part.state.value,
                "low": _bound(part.low),
                "high": _bound(part.high),
                "pages": part.pages,
                "records": part.records,
                "error": part.error,
            }
            for part in run.partitions
        ]
    if as_json:
        show_json({**document, "partitions": parts})
        return
    show_filled(document)
    if parts:
        click.echo()
        show_table(tuple(parts[0]), [list(part.values()) for part in parts])


def _show_timeline(run: "PipelineRun", *, as_json: bool) -> None:
    from milepost.ingest.timeline import timeline

    events = timeline(run)
    if as_json:
        show_json([{"at": e.at, "state": e.state, "detail": e.detail} for e in events])
        return
    first = events[0].at
    show_table(
        ("time", "state", "details"),
        [[_clock((e.at - first).total_seconds()), e.state, e.detail] for e in events],
    )


def _clock(seconds: float) -> str:
    return f"{int(seconds // 60):02d}:{seconds % 60:04.1f}"


@pipelines.command()
@store_option
@name_argument
@click.option("--out", type=click.Path(dir_okay=False), help="Write it to a file, whole or not.")
@click.option("--set", "to", metavar="TIME", help="Set it by hand, back or forth; needs --reason.")
@click.option("--reason", help="With --set: why; kept on the record.")
@click.option("--history", is_flag=True, help="Show every move of it, and who made it.")
@json_option
def watermark(
    store: StoreUrl,
    name: str,
    out: str | None,
    to: str | None,
    reason: str | None,
    *,
    history: bool,
    as_json: bool,
) -> None:
    """Show up to where everything was read: lastUpdatedAt, lastRunId, lastRunCompletedAt."""
    from milepost.store import watermarks

    if to is not None:
        _override(store, name, to, reason)
    with looking(store) as lookup:
        row = lookup.client.run(watermarks.find, name)
        entries = lookup.client.run(watermarks.entries, name) if history else []
    if history:
        _show_moves(entries, watermarks.Mark(row.measure), as_json=as_json)
        return
    document = row.document()
    if out is not None:
        _write(Path(out), document)
        say(f"written to {out}")
    elif as_json:
        show_json(document)
    else:
        show_filled(document)


def _override(store: StoreUrl, name: str, to: str, reason: str | None) -> None:
    from milepost.client import caller
    from milepost.store import watermarks

    if not reason:
        raise Invalid("--set needs --reason: who reads it later must know why")
    moment = _moment(to)
    with acting(store) as lookup:
        row = lookup.client.run(watermarks.find, name)
        mark = None if moment is None else watermarks.Mark(row.measure).stored(moment)
        lookup.client.run(watermarks.override, name, mark, actor=caller().actor, reason=reason)
    say(f"the watermark of {name} was set by hand")


def _show_moves(entries: Any, mark: Any, *, as_json: bool) -> None:
    rows = [
        {
            "at": e.at,
            "move": e.move,
            "from": None if e.from_mark is None else mark.shown(e.from_mark),
            "to": None if e.to_mark is None else mark.shown(e.to_mark),
            "run": e.run_id,
            "actor": e.actor,
            "reason": e.reason,
        }
        for e in entries
    ]
    if as_json:
        show_json(rows)
    elif rows:
        show_table(tuple(rows[0]), [list(row.values()) for row in rows])
    else:
        say("it was never moved")


def _write(path: Path, document: dict[str, object]) -> None:
    """Write a file so that whoever reads it finds the old one or the new one, whole."""
    import json

    folder = path.absolute().parent
    if not folder.is_dir():
        raise Invalid(f"{path}: the folder {folder} does not exist; make it first")
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as made:
        json.dump(document, made)
    Path(made.name).replace(path)


@pipelines.command()
@store_option
@id_argument
@json_option
def resume(store: StoreUrl, subject_id: str, *, as_json: bool) -> None:
    """Go on with a run that failed or was cancelled, with the same bounds; print the new id."""
    with acting(store) as lookup:
        run = _found(lookup, subject_id)
        try:
            again = run.resume().refresh()
        except Invalid as error:
            raise IllegalMove(str(error)) from error
        if as_json:
            show_json({"id": again.id, "resumes": run.id, "state": again.state.value})
            return
    click.echo(again.id)
    say(f"{typed(f'runs watch {again.id}', store)} follows it")


@pipelines.command()
@app_argument
@id_argument
@click.argument("partition", type=click.IntRange(0))
@wait_option
@timeout_option
@json_option
def retry(
    app: str,
    subject_id: str,
    partition: int,
    timeout: float | None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Read one failed partition of a run again, from its cursor, as a linked run."""
    run = _of_app(app, subject_id).retry(partition)
    _told(run, app, timeout, wait=wait, as_json=as_json)


@pipelines.command()
@app_argument
@id_argument
@wait_option
@timeout_option
@json_option
def force(app: str, subject_id: str, timeout: float | None, *, wait: bool, as_json: bool) -> None:
    """Publish what a failed run has read, as a linked run; the watermark stays, the gap open."""
    _told(_of_app(app, subject_id).force(), app, timeout, wait=wait, as_json=as_json)


@pipelines.group(cls=HelpfulGroup)
def quarantine() -> None:
    """List records that could not be used, and try them again."""


@quarantine.command("ls")
@store_option
@name_argument
@limit_option(50)
@click.option("--after", default="", metavar="KEY", help="Go on after this key.")
@json_option
def quarantine_ls(store: StoreUrl, name: str, limit: int, after: str, *, as_json: bool) -> None:
    """List what is in quarantine, with the reason."""
    from milepost.store import removals, watermarks

    with looking(store) as lookup:
        row = lookup.client.run(watermarks.find, name)
        found = lookup.client.run(removals.quarantined, row.id, after=after, most=limit)
    rows = [
        {
            "key": kept.key,
            "type": kept.type,
            "reason": kept.reason,
            "run": kept.run_id,
            "at": kept.at,
        }
        for kept in found
    ]
    if as_json:
        show_json(
            [{**row, "payload": _text(k.payload)} for row, k in zip(rows, found, strict=True)]
        )
    elif rows:
        show_table(tuple(rows[0]), [list(row.values()) for row in rows])
    else:
        say("the quarantine is empty")


def _text(payload: bytes) -> str:
    return payload.decode(errors="backslashreplace")


@quarantine.command()
@app_argument
@name_argument
@click.option("--key", "keys", multiple=True, help="Only this record; may be repeated.")
@wait_option
@timeout_option
@json_option
def replay(
    app: str,
    name: str,
    keys: tuple[str, ...],
    timeout: float | None,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    """Map records in quarantine again, as a run of their own; print its id."""
    run = _declared(app, name).quarantine.replay(list(keys) or None)
    _told(run, app, timeout, wait=wait, as_json=as_json)


@pipelines.group(cls=HelpfulGroup)
def removals() -> None:
    """Decide on records that a full run did not see, when they are more than its limit."""


@removals.command("ls")
@store_option
@name_argument
@limit_option(50)
@click.option("--after", default="", metavar="KEY", help="Go on after this key.")
@json_option
def removals_ls(store: StoreUrl, name: str, limit: int, after: str, *, as_json: bool) -> None:
    """List the keys that wait for a decision."""
    from milepost.ingest.handles import Removals

    with looking(store) as lookup:
        keys = Removals(lookup.client, name).list(after=after, limit=limit)
    if as_json:
        show_json([{"key": key} for key in keys])
    elif keys:
        show_table(("key",), [[key] for key in keys])
    else:
        say("no removal waits for a decision")


@removals.command()
@store_option
@name_argument
@decision_reason
@json_option
def confirm(store: StoreUrl, name: str, reason: str, *, as_json: bool) -> None:
    """Let the next run remove them; who said so and why stays on the record."""
    _decided(store, name, "confirmed", reason, as_json=as_json)


@removals.command()
@store_option
@name_argument
@decision_reason
@json_option
def dismiss(store: StoreUrl, name: str, reason: str, *, as_json: bool) -> None:
    """Keep them until a full run misses them again; who said so and why stays on the record."""
    _decided(store, name, "dismissed", reason, as_json=as_json)


def _decided(store: StoreUrl, name: str, decision: str, reason: str, *, as_json: bool) -> None:
    from milepost.ingest.handles import Removals

    with acting(store) as lookup:
        count = lookup.client.run(Removals(lookup.client, name).deciding(decision, reason=reason))
    if as_json:
        show_json({"pipeline": name, "decision": decision, "records": count})
    else:
        say(f"{count} removals {decision}")


def _declared(app: str, name: str) -> "Pipeline[Any]":
    found = load_app(app).pipelines
    if name not in found:
        raise no_such("pipeline", name, found)
    return found[name]


def _found(lookup: "Lookup", subject_id: str) -> "PipelineRun":
    from milepost.ingest.handles import PipelineRun

    return PipelineRun(lookup.client, lookup.runs.find(subject_id).id)


def _of_app(app: str, subject_id: str) -> "PipelineRun":
    loaded = load_app(app)
    run = loaded.runs.find(subject_id)
    if run.kind not in loaded.pipelines:
        raise no_such("pipeline", run.kind, loaded.pipelines)
    return loaded.pipelines[run.kind].run(run.id)


def _told(
    run: "PipelineRun", app: str, timeout: float | None, *, wait: bool, as_json: bool
) -> None:
    store = run._client.url  # noqa: SLF001 - to be named in what is said
    if wait:
        from milepost.cli.runs import await_run

        say(f"run {run.id}")
        await_run(run, timeout, store, as_json=as_json, app=app)
    elif as_json:
        run.refresh()
        show_json({"id": run.id, "mode": run.mode, "state": run.state.value})
    else:
        click.echo(run.id)
        say(f"{typed(f'runs watch {run.id}', store)} follows it")


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
