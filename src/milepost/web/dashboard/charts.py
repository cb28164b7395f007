"""Charts as SVG, made here: attributes and classes only, no styles, so that the policy holds.

Each has a sentence for those who do not see it. Coordinates are rounded: pages stay small.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, log10
from typing import Any

import msgspec
from markupsafe import Markup

from milepost.lifecycle import JOB
from milepost.web.dashboard import words

STATES = (
    *("SUCCEEDED", "FAILED", "CANCELLED", "RUNNING", "RETRYING"),
    *("QUEUED", "READY", "WAITING", "GATED", "CREATED"),
)
"""Furthest along first: the order of every stacked bar."""

TEXTURED = frozenset({"GATED", "WAITING", "CANCELLED", "LOST"})
"""Greys of areas carry a texture, since their tints come close to others."""


class Series(msgspec.Struct, frozen=True):
    """One line of a chart: its values in order (None: no value), and its class."""

    values: Sequence[float | None]
    name: str = ""
    css: str = ""


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _markup(pieces: Iterable[str]) -> Markup:
    return Markup("".join(pieces))  # noqa: S704 - numbers and escaped texts


def _open(width: float, height: float, told: str, css: str) -> str:
    return str(
        Markup(
            '<svg class="chart {}" viewBox="0 0 {} {}" width="{}" height="{}" role="img" '
            'aria-label="{}" preserveAspectRatio="none">'
        ).format(css, _n(width), _n(height), _n(width), _n(height), words.visible(told))
    )


def _points(
    values: Sequence[float | None], width: float, height: float, top: float, pad: float = 1.5
) -> list[list[tuple[float, float]]]:
    """Place values as runs of points; a missing value ends a run."""
    step = width / max(1, len(values) - 1)
    runs: list[list[tuple[float, float]]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            share = 0.0 if top <= 0 else min(1.0, max(0.0, value / top))
            runs[-1].append((index * step, height - pad - share * (height - 2 * pad)))
    return [run for run in runs if run]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def spark(
    values: Sequence[float | None], told: str, *, css: str = "", width: int = 164, height: int = 30
) -> Markup:
    """Draw a line over its area, without axes."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    pieces = [_open(width, height, told, f"spark {css}")]
    for run in _points(values, width, height, top):
        first, last = run[0][0], run[-1][0]
        pieces.append(
            f'<path class="area" d="{_path(run)}L{_n(last)} {height}L{_n(first)} {height}Z"/>'
            f'<path class="line" d="{_path(run)}"/>'
        )
    return _markup([*pieces, "</svg>"])


def bars(
    values: Sequence[float], told: str, *, css: str = "", width: int = 96, height: int = 24
) -> Markup:
    """Draw a bar for each value; where nothing was, the base line shows."""
    top = max(values, default=0.0) or 1.0
    step = width / max(1, len(values))
    pieces = [
        _open(width, height, told, f"bars {css}"),
        f'<path class="base" d="M0 {height - 0.5}H{width}"/>',
    ]
    for index, value in enumerate(values):
        if value > 0:
            tall = max(1.5, value / top * (height - 1))
            pieces.append(
                f'<rect x="{_n(index * step + step * 0.1)}" y="{_n(height - tall)}" '
                f'width="{_n(step * 0.8)}" height="{_n(tall)}"/>'
            )
    return _markup([*pieces, "</svg>"])


def columns(
    values: Sequence[Mapping[str, int]], told: str, *, width: int = 1100, height: int = 44
) -> Markup:
    """Draw a column for each step of time, of counts by state; empty ones are a base line."""
    top = max((sum(one.values()) for one in values), default=0) or 1
    step = width / max(1, len(values))
    pieces = [_open(width, height, told, "columns-chart")]
    for index, one in enumerate(values):
        x, y = index * step + step * 0.07, float(height)
        place = f'x="{_n(x)}" width="{_n(step * 0.86)}"'
        pieces.append(f'<rect class="base-bar" {place} y="{height - 1}" height="1"/>')
        for state in STATES:
            if count := one.get(state, 0):
                tall = max(1.5, count / top * (height - 1))
                y -= tall
                pieces.append(
                    f'<rect class="fill-{state.lower()}" {place} y="{_n(y)}" height="{_n(tall)}"/>'
                )
    return _markup([*pieces, "</svg>"])


PIPS = 8
"""So many attempts are drawn one by one; of more, the last ones."""


def pips(
    errors: int, losses: int, *, allowed: int, now: str = "", told: str = "", drawn: int = PIPS
) -> Markup:
    """Draw a job's attempts: those that failed, those that were lost, the current one, the rest."""
    line = ["failed"] * errors + ["lost"] * losses + ([now] if now else [])
    line += ["left"] * (allowed - len(line))
    line = line[max(0, errors + losses + bool(now) - drawn) :][:drawn]
    wide = max(1, len(line)) * 7 - 2
    pieces = [
        str(
            Markup('<svg class="pips" width="{}" height="12" role="img" aria-label="{}">').format(
                wide, words.visible(told)
            )
        )
    ]
    for place, kind in enumerate(line):
        x = place * 7
        if kind == "lost":
            pieces += (
                f'<rect class="fill-lost" x="{x}" y="{y}" width="5" height="5"/>' for y in (0, 7)
            )
        elif kind == "left":
            pieces.append(
                f'<rect class="pip-left" x="{x + 0.5}" y=".5" width="4" height="11" rx="1"/>'
            )
        else:
            pieces.append(f'<rect class="fill-{kind}" x="{x}" width="5" height="12" rx="1"/>')
    return _markup([*pieces, "</svg>"])


def stacked(
    counts: Sequence[tuple[str, float]],
    told: str,
    *,
    whole: float | None = None,
    width: int = 400,
    height: int = 10,
) -> Markup:
    """Draw parts of a whole side by side: pairs of a state and its count, furthest along first."""
    total = whole or sum(count for _, count in counts) or 1
    order = {state: place for place, state in enumerate(STATES)}
    pieces = [
        _open(width, height, told, "stacked"),
        f'<rect class="rest" width="{width}" height="{height}"/>',
    ]
    x = 0.0
    for state, count in sorted(counts, key=lambda pair: order.get(pair[0], len(order))):
        wide = min(width - x, max(count / total * width, 2.0)) if count else 0.0
        if wide > 0:
            pieces.append(_block(state, x, wide, height))
            x += wide
    return _markup([*pieces, "</svg>"])


def _block(state: str, x: float, wide: float, height: int) -> str:
    name = state.lower()
    shape = f'x="{_n(x)}" width="{_n(max(0.8, wide - 0.8))}" height="{height}"'
    drawn = f'<rect class="fill-{name}" {shape}/>'
    return drawn + (f'<rect fill="url(#t-{name})" {shape}/>' if state in TEXTURED else "")


def open_counts(counts: Mapping[str, int]) -> list[tuple[str, float]]:
    """Leave the jobs that have ended out: a bar of open ones would vanish beside them."""
    return [(state, count) for state, count in counts.items() if state not in JOB.terminal]


def meter(share: float, told: str, *, css: str = "", width: int = 64, height: int = 8) -> Markup:
    """Draw how much of a whole there is."""
    wide = min(1.0, max(0.0, share)) * width
    return _markup(
        (
            _open(width, height, told, f"meter {css}"),
            f'<rect class="rest" width="{width}" height="{height}" rx="1.5"/>',
            f'<rect class="value" width="{_n(wide)}" height="{height}" rx="1.5"/></svg>',
        )
    )


SLOTS_SHOWN = 100


def slots(busy: int, every: int) -> Markup:
    """Draw a mark for each slot of a worker, in two rows; of very many, a share of them."""
    shown = min(every, SLOTS_SHOWN)
    full = round(busy / every * shown) if every else 0
    columns = max(1, ceil(shown / 2)) if shown > SLOTS_SHOWN // 2 else max(1, shown)
    height = 14 if columns < shown else 6
    pieces = [_open(columns * 6, height, f"{busy} of {every} slots busy", "slots")]
    for index in range(shown):
        row, column = divmod(index, columns)
        css = "busy" if index < full else "rest"
        pieces.append(
            f'<rect class="{css}" x="{column * 6}" y="{row * 8}" width="4.6" height="6"/>'
        )
    return _markup([*pieces, "</svg>"])


def nice_top(value: float) -> float:
    """Round up to a number that an axis can end with."""
    if value <= 0:
        return 1.0
    size = 10.0 ** floor(log10(value))
    return next(step * size for step in (1, 1.5, 2, 3, 5, 7.5, 10) if step * size >= value - 1e-9)


def axis(top: float, parts: int = 2) -> list[float]:
    """Give the numbers of an axis from zero to its top."""
    return [top * index / parts for index in range(parts + 1)]


def plot(
    series: Sequence[Series],
    told: str,
    *,
    top: float | None = None,
    width: int = 320,
    height: int = 74,
    css: str = "",
) -> Markup:
    """Draw lines over lines of a grid; numbers beside it are text, so that they keep their size."""
    highest = max((v for one in series for v in one.values if v is not None), default=0.0)
    top = top or nice_top(highest)
    pieces = [_open(width, height, told, f"plot {css}")]
    pieces += [
        f'<path class="grid" d="M0 {_n(y)}H{width}"/>' for y in (0.5, height / 2, height - 0.5)
    ]
    for index, one in enumerate(series):
        for run in _points(one.values, width, height, top):
            if index == 0 and one.css != "bare":
                end = f"L{_n(run[-1][0])} {height}L{_n(run[0][0])} {height}Z"
                pieces.append(f'<path class="area {one.css}" d="{_path(run)}{end}"/>')
            pieces.append(f'<path class="line {one.css}" d="{_path(run)}"/>')
    return _markup([*pieces, "</svg>"])


def log_scale(values: Sequence[float | None], least: float, most: float) -> list[float | None]:
    """Place values on a scale of powers of ten: 0 at the least, 1 at the most."""
    low, high = log10(least), log10(most)
    return [
        None
        if value is None
        else min(1.0, max(0.0, (log10(max(value, least)) - low) / (high - low)))
        for value in values
    ]


def decades(values: Sequence[float | None]) -> tuple[float, float]:
    """Choose powers of ten around durations, at least two apart."""
    there = [value for value in values if value]
    low = floor(log10(min(there))) if there else -2
    high = max(ceil(log10(max(there))) if there else 1, low + 2)
    return 10.0**low, 10.0**high


def escaped(text: Any) -> Markup:
    """Escape a text that is written into SVG."""
    return Markup.escape(words.visible(text))
