"""The job machine as a picture: where jobs are and how fast they move, or the path that one took.

States, moves and edges are those of `lifecycle.JOB`; only where a state stands, and how the usual
edges run, is set here. An edge without a line of its own is drawn from box to box once it is used.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import hypot

import msgspec
from markupsafe import Markup

from milepost.lifecycle import JOB, JobState
from milepost.machine import CREATION
from milepost.web.dashboard import words
from milepost.web.dashboard.charts import escaped

Point = tuple[float, float]
Pair = tuple[str, str]
"""From which state to which one."""

LINE = 14
"""The height of a line of a label."""


def _pairs() -> dict[Pair, tuple[str, ...]]:
    found: dict[Pair, list[str]] = {}
    for move in JOB.moves:
        for pair in move.pairs:
            found.setdefault(pair, []).append(move.name)
    return {pair: tuple(names) for pair, names in found.items()}


PAIRS: Mapping[Pair, tuple[str, ...]] = _pairs()
"""Every edge of the machine, and its moves; the first is the usual one."""


class Route(msgspec.Struct, frozen=True):
    """How an edge runs: two points of a line, or four of a curve; and where its label stands."""

    points: tuple[Point, ...]
    label: Point
    anchor: str = "start"
    """Which end of the label is there: start, middle or end."""
    in_line: bool = False
    """Whether the label is one line, not one under the other."""
    shown: bool = True
    """Whether it is drawn while nothing uses it."""


class Layout(msgspec.Struct, frozen=True):
    """Where everything is."""

    name: str
    width: float
    height: float
    box: tuple[float, float]
    origin: Point
    """The dot that new jobs come from."""
    places: Mapping[str, Point]
    routes: Mapping[Pair, Route]

    def route(self, pair: Pair) -> Route:
        """Tell how an edge runs."""
        source, target = pair
        if pair in self.routes:
            return self.routes[pair]
        if source == target:
            return self._loop(source)
        return self._straight(source, target)

    def _loop(self, state: str) -> Route:
        """Run from a box back to it, below its right corner."""
        (x, y), (wide, high) = self.places[state], self.box
        right, low = x + wide - 10, y + high
        points = ((right - 18, low), (right - 18, low + 15), (right, low + 15), (right, low + 1))
        return Route(points, (right - 24, low + 12), "end", in_line=True, shown=False)

    def _straight(self, source: str, target: str) -> Route:
        end = self._centre(target)
        begin = self.origin if source == CREATION else self._border(source, end)
        end = self._border(target, begin)
        middle = ((begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2)
        return Route((begin, end), middle, "middle", shown=False)

    def _centre(self, state: str) -> Point:
        (x, y), (wide, high) = self.places[state], self.box
        return x + wide / 2, y + high / 2

    def _border(self, state: str, toward: Point) -> Point:
        """Find where the line from a box's centre to a point leaves the box."""
        (x, y), (wide, high) = self._centre(state), self.box
        across, down = toward[0] - x, toward[1] - y
        share = max(abs(across) / (wide / 2 + 2), abs(down) / (high / 2 + 2)) or 1.0
        return x + across / share, y + down / share


WIDE = Layout(
    name="wide",
    width=798,
    height=252,
    box=(122, 46),
    origin=(8, 126),
    places={
        "CREATED": (1, 1),
        "READY": (171, 1),
        "WAITING": (324, 1),
        "CANCELLED": (675, 1),
        "QUEUED": (171, 103),
        "RUNNING": (477, 103),
        "SUCCEEDED": (675, 103),
        "GATED": (1, 205),
        "RETRYING": (324, 205),
        "FAILED": (675, 205),
    },
    routes={
        ("", "QUEUED"): Route(((8, 126), (169, 126)), (84, 118), "middle", in_line=True),
        ("", "CREATED"): Route(((8, 126), (8, 49)), (14, 92), shown=False),
        ("", "GATED"): Route(((8, 126), (8, 203)), (14, 160), shown=False),
        ("", "READY"): Route(
            ((8, 126), (60, 66), (150, 84), (190, 49)), (78, 78), "middle", shown=False
        ),
        ("", "WAITING"): Route(
            ((8, 126), (60, 56), (250, 96), (340, 49)), (110, 74), "middle", shown=False
        ),
        ("CREATED", "QUEUED"): Route(
            ((123, 24), (152, 24), (138, 114), (169, 114)), (132, 68), "end"
        ),
        ("GATED", "QUEUED"): Route(
            ((123, 228), (152, 228), (138, 138), (169, 138)), (132, 178), "end"
        ),
        ("READY", "QUEUED"): Route(((216, 47), (216, 101)), (210, 68), "end"),
        ("QUEUED", "READY"): Route(((238, 103), (238, 49)), (243, 70), "start"),
        ("WAITING", "QUEUED"): Route(((324, 30), (300, 32), (276, 60), (274, 101)), (294, 67)),
        ("RETRYING", "QUEUED"): Route(
            ((324, 228), (280, 228), (250, 202), (250, 151)), (240, 184), "end"
        ),
        ("QUEUED", "RUNNING"): Route(((293, 126), (475, 126)), (384, 118), "middle", in_line=True),
        ("RUNNING", "SUCCEEDED"): Route(((599, 126), (673, 126)), (635, 104), "middle"),
        ("RUNNING", "WAITING"): Route(((525, 103), (525, 60), (500, 24), (448, 24)), (524, 52)),
        ("RUNNING", "RETRYING"): Route(
            ((525, 149), (525, 194), (500, 228), (448, 228)), (524, 186)
        ),
        ("RUNNING", "CANCELLED"): Route(((573, 103), (573, 56), (612, 24), (673, 24)), (608, 54)),
        ("RUNNING", "FAILED"): Route(((573, 149), (573, 196), (612, 228), (673, 228)), (608, 184)),
    },
)

TALL = Layout(
    name="tall",
    width=314,
    height=372,
    box=(99, 44),
    origin=(20, 116),
    places={
        "CREATED": (1, 1),
        "GATED": (107.5, 1),
        "READY": (214, 1),
        "QUEUED": (107.5, 94),
        "WAITING": (1, 170),
        "RETRYING": (214, 170),
        "RUNNING": (107.5, 245),
        "CANCELLED": (1, 326),
        "SUCCEEDED": (107.5, 326),
        "FAILED": (214, 326),
    },
    routes={
        ("", "QUEUED"): Route(((20, 116), (105, 116)), (14, 108), in_line=True),
        ("", "CREATED"): Route(((20, 116), (20, 47)), (26, 70), shown=False),
        ("", "WAITING"): Route(((20, 116), (20, 168)), (26, 134), shown=False),
        ("", "GATED"): Route(((20, 116), (20, 76), (120, 90), (126, 47)), (32, 84), shown=False),
        ("", "READY"): Route(((20, 116), (20, 56), (222, 96), (232, 47)), (32, 80), shown=False),
        ("CREATED", "QUEUED"): Route(((62, 45), (62, 82), (78, 104), (105, 104)), (60, 60), "end"),
        ("GATED", "QUEUED"): Route(((157, 45), (157, 92)), (163, 64)),
        ("READY", "QUEUED"): Route(((252, 45), (252, 80), (236, 104), (209, 104)), (258, 64)),
        ("QUEUED", "READY"): Route(
            ((207, 98), (224, 94), (234, 74), (235, 47)), (226, 62), "end", shown=False
        ),
        ("WAITING", "QUEUED"): Route(((50, 170), (50, 146), (76, 128), (105, 128)), (74, 151)),
        ("RETRYING", "QUEUED"): Route(((264, 170), (264, 142), (238, 118), (209, 118)), (266, 142)),
        ("QUEUED", "RUNNING"): Route(((157, 138), (157, 243)), (163, 182)),
        ("RUNNING", "WAITING"): Route(
            ((107, 262), (76, 262), (50, 244), (50, 216)), (46, 234), "end"
        ),
        ("RUNNING", "RETRYING"): Route(
            ((207, 262), (238, 262), (264, 244), (264, 216)), (268, 234)
        ),
        ("RUNNING", "CANCELLED"): Route(
            ((107, 276), (76, 276), (50, 296), (50, 324)), (46, 296), "end"
        ),
        ("RUNNING", "SUCCEEDED"): Route(((157, 289), (157, 324)), (163, 304)),
        ("RUNNING", "FAILED"): Route(((207, 276), (238, 276), (264, 296), (264, 324)), (268, 296)),
        ("WAITING", "CANCELLED"): Route(((16, 214), (16, 324)), (20, 300), shown=False),
        ("RETRYING", "FAILED"): Route(((298, 214), (298, 324)), (292, 300), "end", shown=False),
        ("QUEUED", "CANCELLED"): Route(
            ((118, 138), (98, 190), (110, 270), (88, 324)), (84, 310), "end", shown=False
        ),
        ("QUEUED", "FAILED"): Route(
            ((196, 138), (216, 190), (204, 270), (226, 324)), (232, 310), shown=False
        ),
    },
)


class Cell(msgspec.Struct, frozen=True):
    """What stands in a state's box."""

    text: str = ""
    href: str = ""
    css: str = ""
    told: str = ""


class Strand(msgspec.Struct, frozen=True):
    """What is shown along an edge: lines of a name and a number."""

    lines: Sequence[tuple[str, str]] = ()
    css: str = ""
    speed: int = 0
    """How fast its dots go, 1 to 4; 0: no dots."""
    marks: Mapping[str, int] = {}
    """Which moves were made along it, and how often."""


def draw(
    layout: Layout,
    cells: Mapping[str, Cell],
    strands: Mapping[Pair, Strand],
    told: str,
    *,
    sprite: str,
) -> Markup:
    """Draw the machine: what is not used is there, but pale."""
    linked = any(cell.href for cell in cells.values())
    loops = any(
        a == b and layout.places[a][1] + layout.box[1] > layout.height - 9 for a, b in strands
    )
    high = layout.height + (18 if loops else 0)
    pieces = [
        Markup('<svg class="machine {}" viewBox="0 0 {} {}" width="{}" height="{}" ').format(
            layout.name, _n(layout.width), _n(high), _n(layout.width), _n(high)
        ),
        Markup('role="{}" aria-label="{}">').format(
            "group" if linked else "img", words.visible(told)
        ),
    ]
    idle = [pair for pair, route in layout.routes.items() if route.shown and pair not in strands]
    pieces += [_line(layout.route(pair), "edge idle") for pair in idle]
    for pair, strand in strands.items():
        pieces.append(_edge(pair, layout.route(pair), strand))
    if any(pair[0] == CREATION for pair in (*idle, *strands)):
        css = "lit" if any(pair[0] == CREATION for pair in strands) else ""
        dot = Markup('<circle class="origin {}" cx="{}" cy="{}" r="4"/>')
        pieces.append(dot.format(css, *layout.origin))
    pieces += [_label(layout.route(pair), strand) for pair, strand in strands.items()]
    pieces += [_box(layout, state, cells.get(state, Cell()), sprite) for state in layout.places]
    return Markup("").join([*pieces, Markup("</svg>")])


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _d(points: Sequence[Point]) -> str:
    flat = [f"{_n(x)} {_n(y)}" for x, y in points]
    return f"M{flat[0]}" + (f"C{' '.join(flat[1:])}" if len(flat) > 2 else f"L{flat[1]}")  # noqa: PLR2004


def _head(points: Sequence[Point]) -> str:
    """Draw an arrow head at the end of a line, along its last stretch."""
    (bx, by), (x, y) = points[-2:]
    length = hypot(x - bx, y - by) or 1.0
    ux, uy = (x - bx) / length, (y - by) / length
    left = (x - 7 * ux - 3.2 * uy, y - 7 * uy + 3.2 * ux)
    right = (x - 7 * ux + 3.2 * uy, y - 7 * uy - 3.2 * ux)
    return f"M{_n(x)} {_n(y)}L{_n(left[0])} {_n(left[1])}L{_n(right[0])} {_n(right[1])}Z"


def _line(route: Route, css: str) -> Markup:
    path = Markup('<path class="{}" d="{}"/><path class="{}" d="{}"/>')
    return path.format(css, _d(route.points), f"head {css}", _head(route.points))


def _edge(pair: Pair, route: Route, strand: Strand) -> Markup:
    drawn = _line(route, f"edge {strand.css}")
    if strand.speed:
        flow = Markup('<path class="flow speed-{} {}" d="{}"/>')
        drawn += flow.format(strand.speed, strand.css, _d(route.points))
    if not strand.marks:
        return drawn
    moves = " ".join(f"{move}:{number}" for move, number in strand.marks.items())
    group = Markup('<g class="walked" data-from="{}" data-to="{}" data-moves="{}">{}</g>')
    return group.format(*pair, moves, drawn)


def _label(route: Route, strand: Strand) -> Markup:
    x, y = route.label
    lines = strand.lines
    open_text = Markup('<text class="move" x="{}" y="{}" text-anchor="{}">')
    if route.in_line or len(lines) > 1:
        pieces: list[Markup] = []
        top = y - LINE * (len(lines) - 1) * (1.0 if route.in_line else 0.5)
        for name, number in lines:
            text = open_text + Markup("{} <tspan>{}</tspan></text>").format(name, number)
            pieces.append(text.format(_n(x), _n(top), route.anchor))
            top += LINE
        return Markup("").join(pieces)
    second = Markup('<tspan x="{}" dy="{}">{}</tspan></text>')
    return Markup("").join(
        open_text.format(_n(x), _n(y), route.anchor)
        + escaped(name)
        + second.format(_n(x), LINE, number)
        for name, number in lines
    )


def _box(layout: Layout, state: str, cell: Cell, sprite: str) -> Markup:
    (x, y), (wide, high) = layout.places[state], layout.box
    middle = y + high / 2
    rect = Markup('<rect class="box" x="{}" y="{}" width="{}" height="{}" rx="6"/>')
    glyph = Markup(
        '<svg class="glyph s-{0}" x="{1}" y="{2}" width="14" height="14" aria-hidden="true">'
        '<use href="{3}#{0}"/></svg>'
    )
    name = Markup('<text class="name" x="{}" y="{}">{}</text>')
    box = rect.format(_n(x), _n(y), _n(wide), _n(high))
    box += glyph.format(state.lower(), _n(x + 8), _n(middle - 7), sprite)
    box += name.format(_n(x + 27), _n(middle + (-4 if cell.text else 4)), state.capitalize())
    if cell.text:
        value = Markup('<text class="value" x="{}" y="{}">{}</text>')
        box += value.format(_n(x + 27), _n(middle + 13), cell.text)
    css = f"node {cell.css} at-{state.lower()}".replace("  ", " ")
    title = Markup("<title>{}</title>").format(cell.told) if cell.told else Markup("")
    if cell.href:
        link = Markup('<a class="{}" href="{}" aria-label="{}">{}{}</a>')
        return link.format(css, cell.href, cell.told or state.capitalize(), title, box)
    return Markup('<g class="{}">{}{}</g>').format(css, title, box)


# Where jobs are


def usual_edge(move: str) -> Pair | None:
    """Find the edge that shows a move's rate: the drawn one whose usual move it is."""
    shown = {pair for pair, route in WIDE.routes.items() if route.shown}
    return next((pair for pair, names in PAIRS.items() if names[0] == move and pair in shown), None)


WAITERS = ("CREATED", "GATED", "WAITING", "READY", "RETRYING")
"""Edges out of these have their colour, others that of the state they lead to."""
SPEEDS = (0.1, 1.0, 10.0)
"""From how many moves a second on dots go faster."""


def flow(
    layout: Layout,
    counts: Mapping[str, int],
    rates: Mapping[str, float],
    *,
    sprite: str,
    href: Callable[[str], str],
) -> Markup:
    """Draw where jobs are, how many in each state, and how many make each move a second."""
    number = words.count if layout is WIDE else words.short_count
    cells = {
        state.value: Cell(
            number(counts.get(state, 0)),
            href(state.value),
            "counted",
            f"{state.capitalize()}: {words.plural(counts.get(state, 0), 'job')}",
        )
        for state in JobState
    }
    strands: dict[Pair, Strand] = {}
    for move in JOB.move_names:
        pair, rate = usual_edge(move), rates.get(move, 0.0)
        if pair is not None and rate > 0:
            speed = 1 + sum(rate >= bound for bound in SPEEDS)
            css = f"live s-{pair[pair[0] not in WAITERS].lower()}"
            strands[pair] = Strand([(move, words.rate(rate))], css, speed)
    held = ", ".join(
        f"{counts[state]:,} {state.lower()}" for state in JobState if counts.get(state)
    )
    told = f"The job machine: {held or 'no jobs'}."
    return draw(layout, cells, strands, told, sprite=sprite)


# The path of one job


class Walk(msgspec.Struct, frozen=True):
    """The moves that a job made, and how long it was in each state."""

    moves: Mapping[Pair, Mapping[str, int]]
    """By edge: the moves along it, and how often each was made."""
    state: str
    """Where it is now."""
    spent: Mapping[str, str] = {}
    """How long it was in each state, in words."""

    @property
    def total(self) -> int:
        """How many moves it made."""
        return sum(number for names in self.moves.values() for number in names.values())

    def rows(self) -> Iterable[tuple[str, str, str, int]]:
        """List the moves: name, from, to and how often, in the machine's order."""
        for (source, target), names in self.moves.items():
            for name, number in names.items():
                yield name, source, target, number


def path(walk: Walk, *, sprite: str, layout: Layout = TALL) -> Markup:
    """Draw the path that a job took: its edges lit, the rest pale."""
    reached = {state for pair in walk.moves for state in pair if state != CREATION} | {walk.state}
    cells = {
        state: Cell(walk.spent.get(state, ""), css="now" if state == walk.state else "reached")
        for state in reached
    }
    strands = {
        pair: Strand(
            [(name, f"{number:,}\N{MULTIPLICATION SIGN}") for name, number in names.items()],
            "lit",
            marks=names,
        )
        for pair, names in walk.moves.items()
    }
    told = f"The path of this job through the job machine, {words.plural(walk.total, 'move')}: "
    made = (
        f"{name} {number} times"
        for _, names in walk.moves.items()
        for name, number in names.items()
    )
    return draw(layout, cells, strands, f"{told}{', '.join(made)}.", sprite=sprite)
