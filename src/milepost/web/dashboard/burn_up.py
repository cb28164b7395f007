"""The chart of a run: jobs that ended over time, and where that leads at this pace."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import floor, log10

import msgspec
from markupsafe import Markup

from milepost.lifecycle import RUN
from milepost.store.run_page import RunPage
from milepost.web.dashboard import charts, words
from milepost.web.dashboard.run_figures import Pace, Progress, StepFigure

LEFT, RIGHT, TOP, BOTTOM = 48.0, 10.0, 16.0, 22.0
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)
DAY = 86_400
AHEAD_MOST = 3.0
"""A forecast is drawn as far as so many times what has passed."""
WIDE, NARROW = (760, 196, 6), (340, 176, 3)
MINUTES = 5 * 60
CHARACTER, LINE = 6.5, 13.0
"""About how wide a character of a label is, and how high a label."""
PARTS_OF = {1.0: 2, 1.5: 3, 2.0: 2, 3.0: 3, 5.0: 5, 7.5: 3}
"""Into how many round parts an axis is divided, by the first digits of its top."""


class Frame(msgspec.Struct, frozen=True):
    """Where times and counts are on a chart."""

    width: int
    height: int
    since: datetime
    seconds: float
    top: float

    def x(self, at: datetime) -> float:
        """Place a time."""
        share = (at - self.since).total_seconds() / self.seconds
        return LEFT + min(1.0, max(0.0, share)) * (self.width - LEFT - RIGHT)

    def y(self, count: float) -> float:
        """Place a count."""
        return self.height - BOTTOM - min(1.0, count / self.top) * (self.height - TOP - BOTTOM)


class Labels:
    """Texts of a chart that must not lie on each other: one that would moves down."""

    def __init__(self) -> None:
        self._boxes: list[tuple[float, float, float]] = []

    def place(self, x: float, y: float, anchor: str, text: str) -> float:
        """Give the height at which a text may stand that would like to stand at `y`."""
        width = len(text) * CHARACTER
        left = x - width if anchor == "end" else x
        while any(
            left < end and begin < left + width and abs(y - at) < LINE
            for begin, end, at in self._boxes
        ):
            y += LINE
        self._boxes.append((left, left + width, y))
        return y


Point = tuple[datetime, float]


class Drawing(msgspec.Struct, frozen=True):
    """What is drawn."""

    page: RunPage
    done: Progress
    pace: Pace
    steps: Sequence[StepFigure]
    line: Sequence[Point]


def chart(
    page: RunPage, done: Progress, pace: Pace, steps: Sequence[StepFigure]
) -> tuple[Markup, Markup] | None:
    """Draw it for a wide screen and for a narrow one; None where ends by time are not known."""
    if page.ends is None or page.run.started_at is None or not done.ended:
        return None
    drawing = Drawing(page, done, pace, steps, _line(page))
    return _drawn(drawing, *WIDE), _drawn(drawing, *NARROW)


def _line(page: RunPage) -> list[Point]:
    """Sum ends up along the time line."""
    until = page.run.finished_at or page.head.now
    places: dict[int, int] = {}
    for found in (page.ends or {}).values():
        for place, count in found.items():
            places[place] = places.get(place, 0) + count
    line: list[Point] = [(page.since, 0.0)]
    total = 0
    for place in range(max(places, default=0) + 1):
        total += places.get(place, 0)
        at = page.since + timedelta(seconds=(place + 1) * page.width)
        line.append((min(at, until), float(total)))
    return line if line[-1][0] >= until else [*line, (until, float(total))]


def _sentence(page: RunPage, done: Progress, pace: Pace) -> str:
    text = f"{words.count(done.ended)} of {words.count(done.expected)} jobs ended"
    if pace.done_at is not None:
        return f"{text}; the last would end at {words.clock(pace.done_at)} at this pace"
    return text + (f" by {words.clock(page.run.finished_at)}" if page.run.finished_at else "")


def _drawn(drawing: Drawing, width: int, height: int, ticks: int) -> Markup:
    page, pace, line = drawing.page, drawing.pace, drawing.line
    passed = max(1.0, (line[-1][0] - page.since).total_seconds())
    ahead = min(pace.eta or 0.0, passed * AHEAD_MOST)
    seconds = passed + (ahead + min(pace.spread or 0.0, ahead)) * 1.02
    top = charts.nice_top(max(drawing.done.expected, line[-1][1]))
    frame = Frame(width, height, page.since, seconds, top)
    told = words.visible(_sentence(page, drawing.done, pace))
    svg = Markup('<svg class="burn" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    pieces = [svg.format(width, height, told), _grid(frame, ticks), _curve(frame, line)]
    labels = Labels()
    if pace.eta is not None and page.run.state not in RUN.terminal:
        pieces.append(_forecast(frame, labels, drawing, ahead))
    pieces.append(_now(frame, labels, page, line))
    pieces += [_gates(frame, labels, line, drawing.steps), Markup("</svg>")]
    return Markup("").join(pieces)


def _grid(frame: Frame, ticks: int) -> Markup:
    pieces = []
    right = frame.width - RIGHT
    for count in charts.axis(
        frame.top, PARTS_OF[round(frame.top / 10 ** floor(log10(frame.top)), 1)]
    ):
        y = frame.y(count)
        pieces.append(
            Markup(
                '<path class="grid" d="M{:.1f} {:.1f}H{:.1f}"/>'
                '<text x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(LEFT, y, right, LEFT - 6, y + 4, words.short_count(round(count)))
        )
    for at, label in times(frame.since, frame.seconds, ticks):
        x = frame.x(at)
        anchor = "end" if x > right - 16 else "middle" if x > LEFT + 16 else "start"
        pieces.append(
            Markup('<text x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                x, frame.height - 6, anchor, label
            )
        )
    return Markup("").join(pieces)


def times(since: datetime, seconds: float, most: int) -> list[tuple[datetime, str]]:
    """Choose the times that an axis names: round ones, as few as fit."""
    step = next((tick for tick in TICKS if seconds / tick <= most), None)
    step = step or DAY * max(1, round(seconds / most / DAY))
    first = -(-since.timestamp() // step) * step
    found = []
    while first <= since.timestamp() + seconds:
        at = datetime.fromtimestamp(first, UTC)
        form = "%b %d" if step >= DAY else "%H:%M:%S" if seconds < MINUTES else "%H:%M"
        found.append((at, at.strftime(form)))
        first += step
    return found


def _curve(frame: Frame, line: Sequence[Point]) -> Markup:
    points = "L".join(f"{frame.x(at):.1f} {frame.y(count):.1f}" for at, count in line)
    base = f"{frame.height - BOTTOM:.1f}"
    last = f"{frame.x(line[-1][0]):.1f}"
    return Markup(
        '<path class="area" d="M{}L{} {}L{:.1f} {}Z"/><path class="line" d="M{}"/>'
    ).format(points, last, base, LEFT, base, points)


def _forecast(frame: Frame, labels: Labels, drawing: Drawing, ahead: float) -> Markup:
    """Draw a dashed line to the end, in a cone as wide as the pace has varied."""
    page, done, pace = drawing.page, drawing.done, drawing.pace
    now, spread = page.head.now, min(pace.spread or 0.0, ahead)
    goal = done.ended + (done.expected - done.ended) * ahead / (pace.eta or 1.0)
    x, y = frame.x(now), frame.y(done.ended)
    low, end, high = (frame.x(now + timedelta(seconds=ahead + off)) for off in (-spread, 0, spread))
    is_whole = ahead == pace.eta
    label = f"done, {words.clock(pace.done_at)}" if is_whole else ""
    right = frame.width - RIGHT
    return Markup(
        '<path class="cone" d="M{x:.1f} {y:.1f}L{low:.1f} {goal:.1f}H{high:.1f}Z"/>'
        '<path class="goal" d="M{left} {goal:.1f}H{right}"/>'
        '<path class="ahead" d="M{x:.1f} {y:.1f}L{end:.1f} {goal:.1f}"/>'
        '<text class="strong" x="{at:.1f}" y="{under:.1f}" text-anchor="end">{label}</text>'
    ).format(
        x=x,
        y=y,
        low=low,
        high=high,
        end=end,
        left=LEFT,
        right=right,
        goal=frame.y(goal),
        at=min(right, high),
        under=labels.place(min(right, high), frame.y(goal) - 5, "end", label),
        label=label,
    )


def _gates(
    frame: Frame, labels: Labels, line: Sequence[Point], steps: Sequence[StepFigure]
) -> Markup:
    """Mark when gates opened."""
    pieces = []
    for figure in steps:
        if figure.gate is None or not figure.gate.is_gate or figure.gate.at is None:
            continue
        x, y = frame.x(figure.gate.at), frame.y(_at(line, figure.gate.at))
        side = x + 8 if x < frame.width * 0.7 else x - 8
        name, anchor = words.cut(figure.step.name, 24), "start" if side > x else "end"
        under = labels.place(side, y + 14, anchor, f"gate to {name}")
        pieces.append(
            Markup(
                '<circle class="gate" cx="{:.1f}" cy="{:.1f}" r="3"/>'
                '<text x="{:.1f}" y="{:.1f}" text-anchor="{}">gate to {}</text>'
            ).format(
                *(x, y, side, min(frame.height - BOTTOM - 4, under)),
                *(anchor, charts.escaped(name)),
            )
        )
    return Markup("").join(pieces)


def _at(line: Sequence[Point], at: datetime) -> float:
    """Read a line between two of its points."""
    for (begin, low), (end, high) in pairwise(line):
        if begin <= at <= end:
            share = (at - begin) / (end - begin) if end > begin else 1.0
            return low + (high - low) * share
    return line[-1][1]


def _now(frame: Frame, labels: Labels, page: RunPage, line: Sequence[Point]) -> Markup:
    at, count = line[-1]
    x, y = frame.x(at), frame.y(count)
    word = "ended" if page.run.state in RUN.terminal else "now"
    side, anchor = max(LEFT, x - 8), "end" if x > LEFT + 90 else "start"
    height = labels.place(side, max(11, y - 8), anchor, f"{word}, {words.count(count)}")
    return Markup(
        '<circle class="now" cx="{:.1f}" cy="{:.1f}" r="3.5"/>'
        '<text class="strong" x="{:.1f}" y="{:.1f}" text-anchor="{}">{}, {}</text>'
    ).format(
        *(x, y, side, height, anchor, word),
        words.count(count),
    )
