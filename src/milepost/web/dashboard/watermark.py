"""The watermark as a post on the time line: what is read and published, and what is behind."""

from datetime import datetime, timedelta

import msgspec
from markupsafe import Markup

from milepost.store.pipeline_page import PipelinePage
from milepost.web.dashboard import words
from milepost.web.dashboard.burn_up import times

WIDE, NARROW = (1100, 8), (340, 3)
"""Pixels, and how many times the axis names."""
HEIGHT, BASE, THICK = 92, 58, 14
LEAST_SECONDS = 600.0
LETTER = 5.7
"""About how wide a letter is."""
LABEL_WIDE, LABEL_NARROW, NOW_WIDE = 70.0, 36.0, 70.0
DONE = Markup('<rect class="done" x="2" y="{}" width="{:.1f}" height="{}"/>')
BEHIND = Markup('<rect class="behind{}" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>')
TEXTURE = Markup('<rect fill="url(#t-lost)" x="{:.1f}" y="{}" width="{:.1f}" height="{}"/>')
TICK = Markup('<path class="tick" d="M{0:.1f} {1}v4"/><text x="{0:.1f}" y="{2}">{3}</text>')
NOTE = Markup('<text class="note-text" x="{:.1f}" y="{}" text-anchor="{}">{}</text>')


class TimeLine(msgspec.Struct, frozen=True):
    """Where times are on a line."""

    width: int
    since: datetime
    seconds: float

    def x(self, at: datetime) -> float:
        """Place a time."""
        share = (at - self.since).total_seconds() / self.seconds
        return min(self.width - 2.0, max(2.0, share * self.width))

    @property
    def is_wide(self) -> bool:
        """Whether there is room for words."""
        return self.width == WIDE[0]


def drawn(page: PipelinePage) -> tuple[Markup, Markup] | None:
    """Draw it for a wide screen and for a narrow one; None where no time says how far it is."""
    mark = page.row.watermark
    if not isinstance(mark, datetime):
        return None
    return _post(page, mark, *WIDE), _post(page, mark, *NARROW)


def _post(page: PipelinePage, mark: datetime, width: int, ticks: int) -> Markup:
    lag = max(0.0, (page.now - mark).total_seconds())
    before = max(3 * lag, LEAST_SECONDS, page.fresh_seconds or 0.0)
    ahead = max(lag, page.fresh_seconds or 0.0)
    line = TimeLine(width, mark - timedelta(seconds=before), (before + ahead) * 1.06)
    post, now = line.x(mark), line.x(page.now)
    behind = max(0.0, now - post)
    told = f"Everything up to {words.absolute(mark)} is read and published"
    head = Markup('<svg class="mark" viewBox="0 0 {} {}" role="img" aria-label="{}">')
    pieces = [
        head.format(width, HEIGHT, told),
        DONE.format(BASE, post - 2, THICK),
        BEHIND.format(" late" if page.is_late else "", post, BASE, behind, THICK),
        TEXTURE.format(post, BASE, behind, THICK),
        *(
            TICK.format(line.x(at), BASE + THICK, HEIGHT - 4, label)
            for at, label in times(line.since, line.seconds, ticks)
        ),
        _promise(page, mark, line),
        _labels(page, mark, line),
        Markup("</svg>"),
    ]
    return Markup("").join(pieces)


def _promise(page: PipelinePage, mark: datetime, line: TimeLine) -> Markup:
    """Mark until when the watermark keeps its promise to be fresh, or when it broke it."""
    if page.fresh_seconds is None:
        return Markup("")
    until = mark + timedelta(seconds=page.fresh_seconds)
    at = line.x(until)
    css = "broke" if page.is_late else "kept"
    post = Markup('<path class="{}" d="M{:.1f} {}V{}"/>').format(css, at, BASE - 8, BASE + THICK)
    within = words.span(page.fresh_seconds)
    rest = f" broke at {words.clock(until, seconds=False)}" if page.is_late else ""
    before, after = at - line.x(mark) - 10, line.width - at - 10
    for text in (f"“fresh within {within}”{rest}", f"fresh within {within}", within):
        if len(text) * LETTER < before:
            return post + NOTE.format(at - 5, BASE - 5, "end", text)
        if len(text) * LETTER < after:
            return post + NOTE.format(at + 5, BASE - 5, "start", text)
    return post


def _labels(page: PipelinePage, mark: datetime, line: TimeLine) -> Markup:
    text = words.clock(mark) if mark.date() == page.now.date() else mark.strftime("%b %d %H:%M")
    text = f"watermark {text}" if line.is_wide else text
    half = LABEL_WIDE if line.is_wide else LABEL_NARROW
    post, now = line.x(mark), line.x(page.now)
    middle = min(line.width - half, max(half, post))
    pieces = [
        Markup('<path class="clock" d="M{:.1f} {}V{}"/>').format(now, BASE - 8, BASE + THICK + 1),
        Markup('<path class="post" d="M{:.1f} {}V{}"/>').format(post, BASE - 18, BASE + THICK + 1),
        Markup('<rect class="plate" x="{:.1f}" y="{}" width="{:.1f}" height="20" rx="4"/>').format(
            middle - half, BASE - 38, half * 2
        ),
        Markup('<text class="on-plate" x="{:.1f}" y="{}">{}</text>').format(
            middle, BASE - 24, text
        ),
    ]
    if (beside := max(now - 28, middle + half + 8)) < line.width - NOW_WIDE + 10:
        told = f"now {words.clock(page.now, seconds=False)}"
        pieces.append(NOTE.format(beside, BASE - 24, "start", told))
    return Markup("").join(pieces)
