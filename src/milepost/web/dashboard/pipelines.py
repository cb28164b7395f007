"""Pipelines: the list of them, and one: its watermark, its partitions by run, its quarantine."""

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import Response

from milepost.errors import Invalid, NotFound
from milepost.ingest.pipeline import Pipeline
from milepost.lifecycle import RUN
from milepost.store import pipeline_page
from milepost.store.pipeline_page import PipelineLine, PipelinePage
from milepost.store.watermarks import Mark
from milepost.web.call import Call, ReadCall
from milepost.web.dashboard import pipeline_figures, watermark
from milepost.web.dashboard.page import PageRoute, View, command, show

router = APIRouter(route_class=PageRoute, include_in_schema=False)
NUMBER_LONGEST = 6


def declared(call: Call, name: str) -> Pipeline[Any]:
    """Find a pipeline that this server declares and the caller sees, or raise `NotFound`."""
    found = call.app.pipelines.get(name)
    if found is None or not call.principal.sees_queue(found.options["queue"]):
        raise NotFound(f"no pipeline is called {name!r}")
    return found


def whole(call: Call, name: str) -> Pipeline[Any]:
    """Find a pipeline whose records are acted on: they are no tenant's."""
    call.principal.check_unbound("what a pipeline keeps", queues=False)
    return declared(call, name)


@router.get("/pipelines")
async def listing(*, call: ReadCall) -> Response:
    """List the declared pipelines, and those that ran here once."""
    call.principal.check_unbound("what a pipeline keeps", queues=False)

    async def load() -> View:
        found = {line.name: line for line in await call.run(pipeline_page.listing)}
        lines = [(name, found.get(name)) for name in _names(call, found)]
        return View(
            template="pipelines/list.html",
            title="Pipelines",
            section="pipelines",
            cli="milepost pipelines ls",
            values={"names": [name for name, _ in lines], "declared": call.app.pipelines},
            pieces={
                f"pipeline-{place}": ("pipelines/row.html", {"name": name, "line": line})
                for place, (name, line) in enumerate(lines)
            },
        )

    return await show(call, load)


def _names(call: Call, found: dict[str, PipelineLine]) -> list[str]:
    sees = call.principal.sees_queue
    mine = {name for name, one in call.app.pipelines.items() if sees(one.options["queue"])}
    stored = {name for name, line in found.items() if sees(line.queue)}
    return sorted(mine | (stored - call.app.pipelines.keys()))


PARTS = {
    "pipe-subject": "pipelines/subject.html",
    "pipe-why": "pipelines/why.html",
    "pipe-watermark": "pipelines/watermark.html",
    "pipe-density": "pipelines/density.html",
    "pipe-partition": "pipelines/partition.html",
    "pipe-quarantine": "pipelines/quarantine.html",
    "pipe-removals": "pipelines/removals.html",
    "pipe-moves": "pipelines/moves.html",
    "pipe-new": "pipelines/new_pill.html",
}


@router.get("/pipelines/{name}")
async def pipeline(*, name: str, call: ReadCall, run: str = "", partition: str = "") -> Response:
    """Show where a pipeline has come to, and what keeps it there."""
    call.principal.check_unbound("what a pipeline keeps", queues=False)
    known = call.app.pipelines.get(name)
    if known is not None:
        declared(call, name)
    ordinal = _ordinal(partition)

    async def load() -> View:
        try:
            page = await call.run(pipeline_page.read, name)
        except NotFound:
            if known is None:
                raise
            return _never(name, known)
        _check_queue(call, page)
        return _view(call, page, known, run, ordinal)

    return await show(call, load)


def _check_queue(call: Call, page: PipelinePage) -> None:
    """Say of a pipeline in queues that the caller does not see that it is not there."""
    if page.runs and not call.principal.sees_queue(page.runs[0].run.queue):
        raise NotFound(f"no pipeline is called {page.row.name!r}")


def _ordinal(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_LONGEST):
        raise Invalid("partition: expected a number")
    return int(text)


def path_of(name: str) -> str:
    """Tell where a pipeline is shown; a name may hold anything."""
    return f"/pipelines/{quote(name, safe='')}"


def _never(name: str, known: Pipeline[Any]) -> View:
    return View(
        template="pipelines/never.html",
        title=name,
        section="pipelines",
        cli=command("pipelines", "start", "APP", name),
        values={"name": name, "known": known},
    )


def _view(
    call: Call, page: PipelinePage, known: Pipeline[Any] | None, run: str, ordinal: int | None
) -> View:
    selected = pipeline_figures.chosen(page, run, ordinal)
    grid = pipeline_figures.grid(page, selected)
    latest = page.runs[0] if page.runs else None
    values = {
        "page": page,
        "name": page.row.name,
        "known": known,
        "source": None if known is None else type(known.source).__name__,
        "grid": grid,
        "selected": selected,
        "closer": pipeline_figures.closer(page, selected, call.app.client.codec),
        "mark": watermark.drawn(page),
        "latest": latest,
        "trouble": pipeline_figures.trouble(page),
        "is_live": latest is not None and latest.run.state not in RUN.terminal,
        "state": _state(page),
        "limit": None if known is None else known.options["quarantine_limit"],
        "shown_mark": lambda value: pipeline_figures.shown_mark(Mark(page.row.measure), value),
    }
    return View(
        template="pipelines/pipeline.html",
        title=page.row.name,
        section="pipelines",
        cli=command("explain", "pipeline", page.row.name),
        values=values,
        parts=PARTS,
        pieces={
            f"prun-{line.made.run.id}": ("pipelines/line.html", {"line": line})
            for line in grid.lines
        },
    )


def _state(page: PipelinePage) -> str:
    """Choose the glyph of a pipeline: amber while it breaks its promise."""
    if page.is_late:
        return "RETRYING"
    return page.runs[0].run.state.value if page.runs else "CREATED"
