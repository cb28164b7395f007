"""What the page of a pipeline draws: density, cuts and the grid; and one partition closely."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import ceil, isfinite
from typing import Any

import msgspec
from markupsafe import Markup

from milepost.codec import Codec
from milepost.ingest.keys import Axis, read
from milepost.lifecycle import RUN
from milepost.store import failures
from milepost.store.pipeline_page import Cell, PipelinePage, RunOfPipeline, is_trouble
from milepost.store.watermarks import Mark
from milepost.web.dashboard import words

COLUMNS_MOST = 60
BARS = 100
"""Of how many bars the density is drawn."""
WORST = (
    *("FAILED", "RETRYING", "CANCELLED", "RUNNING", "WAITING", "QUEUED", "READY"),
    *("GATED", "CREATED", "SUCCEEDED"),
)
LEVELS = 4
PLACES = Axis("float")


class Square(msgspec.Struct, frozen=True):
    """A cell of the grid: a partition, or several where there are very many."""

    cell: Cell
    """The one that is worst off."""
    state: str
    records: int
    level: int
    """From 1 to 4: stronger is more records."""
    count: int


class Line(msgspec.Struct, frozen=True):
    """A run as a row of the grid."""

    made: RunOfPipeline
    squares: Sequence[Square | None]
    is_live: bool


class Grid(msgspec.Struct, frozen=True):
    """Partitions by run."""

    columns: Sequence[int]
    """The first partition of each column."""
    size: int
    """How many partitions a column has."""
    lines: Sequence[Line]
    density: Markup | None
    low: str
    high: str


def grid(page: PipelinePage, selected: Cell | None) -> Grid:
    """Lay the partitions of the last runs out."""
    ordinals = [ordinal for cells in page.cells.values() for ordinal in cells if ordinal >= 0]
    width = max(ordinals, default=-1) + 1
    size = max(1, ceil(width / COLUMNS_MOST))
    columns = list(range(0, width, size))
    lines = [
        Line(
            made,
            _squares(page.cells.get(made.run.id, {}), columns, size),
            is_live=made.run.state not in RUN.terminal,
        )
        for made in page.runs
    ]
    drawn, low, high = _density(page, columns, size, selected)
    return Grid(columns, size, lines, drawn, low, high)


def _squares(cells: Mapping[int, Cell], columns: Sequence[int], size: int) -> list[Square | None]:
    most = max((cell.records for cell in cells.values()), default=0)
    found: list[Square | None] = []
    for first in columns:
        some = [cells[n] for n in range(first, first + size) if n in cells]
        if not some:
            found.append(None)
            continue
        worst = min(some, key=lambda cell: WORST.index(cell.state))
        records = sum(cell.records for cell in some)
        level = 1 + min(LEVELS - 1, LEVELS * records // (most * len(some) + 1))
        found.append(Square(worst, worst.state, records, level, len(some)))
    return found


def chosen(page: PipelinePage, run_id: str, partition: int | None) -> Cell | None:
    """Find the partition that is shown closely: the one asked for, else the first in trouble."""
    if run_id and partition is not None:
        return page.cells.get(run_id, {}).get(partition)
    for made in page.runs[:1]:
        cells = page.cells.get(made.run.id, {}).values()
        found = sorted((cell for cell in cells if is_trouble(cell)), key=_badness)
        if found:
            return found[0]
    return None


def _badness(cell: Cell) -> tuple[int, int]:
    return WORST.index(cell.state), cell.ordinal


# Density and cuts


def place_of(bound: Any) -> float | None:
    """Place a key on a line; None beyond everything, and for what is no key."""
    try:
        number = float(bound)
    except (ValueError, TypeError):
        try:
            number = PLACES.place(read(bound))
        except (ValueError, TypeError):
            return None
    return number if isfinite(number) else None


def shown_bound(bound: str | None) -> str:
    """Write a key as people do."""
    if bound is None or bound in ("inf", "-inf"):
        return {"-inf": "the first", "inf": "the last"}.get(bound or "", "none")
    try:
        number = float(bound)
    except ValueError:
        return bound.replace("T", " ").removesuffix("+00:00")
    return f"{number:,.0f}" if number.is_integer() else f"{number:,.6g}"


def _density(
    page: PipelinePage, columns: Sequence[int], size: int, selected: Cell | None
) -> tuple[Markup | None, str, str]:
    made_plans = [made for made in page.runs if made.plan]
    # The run that fills the columns; of several the newest.
    planned = max(made_plans, key=lambda one: len(page.cells.get(one.run.id, ())), default=None)
    if planned is None or not columns:
        return None, "", ""
    cells = [
        (low, high, count, names)
        for *names, count in msgspec.json.decode(planned.plan or "{}").get("histogram", ())
        if (low := place_of(names[0])) is not None and (high := place_of(names[1])) is not None
        if high > low
    ]
    if not cells:
        return None, "", ""
    while len(cells) > 1 and not cells[0][2]:
        cells = cells[1:]
    while len(cells) > 1 and not cells[-1][2]:
        cells = cells[:-1]
    least, most = cells[0][0], cells[-1][1]
    bounds = [
        place_of(cell.low)
        for ordinal, cell in sorted(page.cells.get(planned.run.id, {}).items())
        if ordinal > 0 and ordinal % size == 0
    ]
    drawn = _drawn_density(
        cells, bounds, len(columns), selected.ordinal // size if selected else -1
    )
    ends = (shown_bound(str(cells[0][3][0])), shown_bound(str(cells[-1][3][1])))
    return drawn if most > least else None, *ends


def density_bars(cells: Sequence[tuple[float, float, int, Any]]) -> list[float]:
    """Count the keys under bars of equal width: cells are narrow where keys lie dense."""
    least, most = cells[0][0], cells[-1][1]
    bars, step = [0.0] * BARS, (most - least) / BARS
    for low, high, count, _ in cells:
        first, last = (low - least) / step, (high - least) / step
        for place in range(int(first), min(BARS, ceil(last))):
            bars[place] += count * (min(last, place + 1) - max(first, place)) / (last - first)
    return bars


def _drawn_density(
    cells: Sequence[tuple[float, float, int, Any]],
    bounds: Sequence[float | None],
    columns: int,
    selected: int,
) -> Markup:
    """Draw how densely keys lie, and from each cut a line to the column that it begins."""
    least, most = cells[0][0], cells[-1][1]
    wide, tall, foot = 1000.0, 64.0, 92.0
    pieces = [
        Markup(
            '<svg class="density" viewBox="0 0 1000 92" preserveAspectRatio="none" role="img" '
            'aria-label="Records by key: cut into {} partitions of about equal count">'
        ).format(columns)
    ]
    bars = density_bars(cells)
    top, w = max(bars) or 1.0, wide / len(bars)
    for place, count in enumerate(bars):
        h = max(0.6, count / top * tall) if count else 0.0
        pieces.append(
            Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                place * w, tall - h, w * 0.8, h
            )
        )
    for place, bound in enumerate(bounds, start=1):
        if bound is None or not least <= bound <= most:
            continue
        x, end = (bound - least) / (most - least) * wide, place / columns * wide
        curve = Markup('<path class="cut{}" d="M{:.1f} {:.0f}C{:.1f} 80 {:.1f} 76 {:.1f} {:.0f}"/>')
        near = " near" if selected in (place, place - 1) else ""
        pieces.append(curve.format(near, x, tall, x, end, end, foot))
    return Markup("").join([*pieces, Markup("</svg>")])


# One partition


class Closer(msgspec.Struct, frozen=True):
    """A partition as it is shown closely."""

    cell: Cell
    made: RunOfPipeline
    keys: str
    window: str
    cursor: str | None
    error: str | None


def keys_of(cell: Cell) -> str:
    """Say which keys a partition has."""
    if cell.low is None and cell.high is None:
        return "records without a key"
    return f"{shown_bound(cell.low)} up to {shown_bound(cell.high)}"


def closer(page: PipelinePage, cell: Cell | None, codec: Codec) -> Closer | None:
    """Tell all that there is to know of a partition."""
    made = next((one for one in page.runs if cell is not None and one.run.id == cell.run_id), None)
    if cell is None or made is None:
        return None
    found = failures.last_error(cell.error, cell.cause)
    return Closer(
        cell,
        made,
        keys_of(cell),
        _window(page, made),
        _cursor(codec, cell.position),
        None if found is None else f"{found.type}: {found.message}",
    )


def _cursor(codec: Codec, position: bytes | None) -> str | None:
    """Write where a partition goes on: what the source gave with its last page."""
    found = words.decoded(codec, position)
    if isinstance(found, dict) and found.keys() == {"at"}:
        found = found["at"]
    return None if found is None else words.arguments((found,), {}, 80)


def _window(page: PipelinePage, made: RunOfPipeline) -> str:
    mark = Mark(page.row.measure)
    ends = [shown_mark(mark, value) for value in (made.start_mark, made.end_mark)]
    day = f"{page.now:%Y-%m-%d} "
    return " up to ".join(end.removeprefix(day) for end in ends)


class Trouble(msgspec.Struct, frozen=True):
    """Why nothing is published: a partition that failed in the last run."""

    said: str
    more: str


def trouble(page: PipelinePage) -> Trouble | None:
    """Name the partition that keeps the last run from being published."""
    if not page.runs:
        return None
    run = page.runs[0].run
    cells = page.cells.get(run.id, {})
    bad = sorted((cell for cell in cells.values() if cell.state == "FAILED"), key=_badness)
    if not bad:
        return None
    first = bad[0]
    row = 0
    for made in page.runs:
        cell = page.cells.get(made.run.id, {}).get(first.ordinal)
        if cell is None or cell.state != "FAILED":
            break
        row += 1
    found = failures.last_error(first.error, first.cause)
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    times_ = f" in the last {row} runs" if row > 1 else ""
    error = "" if found is None else f": {found.type}: {found.message}"
    done = sum(cell.state == "SUCCEEDED" for cell in cells.values())
    return Trouble(
        f"Partition {first.ordinal} ({keys_of(first)}){others} failed{times_}{error}",
        f"{done} of {len(cells)} were read to their ends; nothing is published until all are.",
    )


def shown_mark(mark: Mark, value: int | None) -> str:
    """Write a mark as people do."""
    if value is None:
        return "the beginning"
    shown = mark.shown(value)
    return shown.strftime("%Y-%m-%d %H:%M:%S") if isinstance(shown, datetime) else f"{shown:,}"
