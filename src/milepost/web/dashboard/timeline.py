"""The time line of a job: its states in a lane, a bar for each attempt, and what comes next.

Widths are shares of the picture, heights and texts are not: it fits any screen, and its texts keep
their size.
"""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from math import floor, log10

import msgspec
from markupsafe import Markup

from milepost.history import SNAPSHOT, Entry
from milepost.lifecycle import JOB, JobState
from milepost.records import FailedAttempt
from milepost.store.job_view import JobView
from milepost.web.dashboard import words
from milepost.web.dashboard.charts import TEXTURED, escaped

ATTEMPTS = 5
"""How many attempts have a bar: the last ones."""
ROW, HEAD, LANE = 33, 26, 32
STEPS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
QUANTA = 200
"""The picture of an open job changes so often while it grows to twice its length."""
LEFT, RIGHT = 40.0, 60.0
"""Where a label stands: after a bar that ends before the one, before a bar that begins after the
other, or else in it."""
PHONE_LETTERS = 14
"""So much of a bar's label fits next to it on a phone; of more, only how long it took is shown."""
_HEARD = re.compile(r"nothing was heard of its worker for (\d+) s")


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One claim of a job, and how it ended."""

    number: int
    fence: int
    worker: str
    begun: datetime
    ended: datetime | None = None
    move: str = ""
    problem: FailedAttempt | None = None

    @property
    def unheard(self) -> timedelta | None:
        """How long nothing was known of its worker before it was taken away; None: all along."""
        found = _HEARD.search(self.problem.message) if self.problem else None
        return timedelta(seconds=int(found[1])) if found else None


def attempts(view: JobView) -> list[Attempt]:
    """List the attempts whose claim is known, in order."""
    problems = {one.fence: one for one in view.failures}
    found: list[Attempt] = []
    for entry in view.moves:
        if entry.move == "claim" and entry.at is not None:
            found.append(
                Attempt(
                    number=max(1, entry.attempt),
                    fence=entry.fence,
                    worker=entry.actor or "",
                    begun=entry.at,
                    problem=problems.get(entry.fence),
                )
            )
        elif found and entry.from_state == JobState.RUNNING != entry.to_state:
            last = msgspec.structs.replace(found[-1], ended=entry.at, move=entry.move)
            found[-1] = last
    return found


class Scale:
    """Places instants in the picture."""

    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin = begin
        self.seconds = max((end - begin).total_seconds(), 0.001)

    def x(self, at: datetime) -> float:
        """Place an instant, in percent."""
        share = (at - self.begin).total_seconds() / self.seconds
        return min(100.0, max(0.0, 100 * share))

    def ticks(self) -> list[tuple[float, float]]:
        """Give round distances from the beginning, in seconds and percent."""
        step = _step(self.seconds)
        count = floor(self.seconds / step * 0.97)
        return [
            (number * step, 100 * number * step / self.seconds) for number in range(1, count + 1)
        ]


def _step(seconds: float) -> float:
    wanted = seconds / 5
    if wanted < 1:
        size: float = 10.0 ** floor(log10(wanted))
        return next(size * unit for unit in (1, 2, 5, 10) if size * unit >= wanted)
    fitting = [step for step in STEPS if step >= wanted]
    return fitting[0] if fitting else 86_400.0 * max(1, round(wanted / 86_400))


class Timeline(msgspec.Struct, frozen=True):
    """What is drawn."""

    view: JobView
    shown: Sequence[Attempt]
    before: int
    """How many earlier attempts are not shown."""

    @classmethod
    def of(cls, view: JobView) -> "Timeline":
        """Choose what is drawn of a job."""
        found = attempts(view)
        return cls(view, found[-ATTEMPTS:], max(0, len(found) - ATTEMPTS))

    @property
    def begin(self) -> datetime:
        """Where it begins: with the job, or with the first move or attempt that is shown."""
        if self.before:
            return self.shown[0].begun
        if self.view.earlier and self.view.moves and self.view.moves[0].at:
            return self.view.moves[0].at
        return self.view.job.created_at

    @property
    def due(self) -> datetime | None:
        """When it is to be tried next, if it waits for that."""
        job = self.view.job
        sleeps = job.state in (JobState.RETRYING, JobState.WAITING)
        return job.due_at if sleeps and job.due_at and job.due_at > self.view.now else None

    @property
    def now(self) -> datetime | None:
        """The time of reading, in coarse steps; None for a job that has ended."""
        if self.view.job.state in JOB.terminal:
            return None
        passed = max(0.001, (self.view.now - self.begin).total_seconds())
        quantum = 2.0 ** floor(log10(passed / QUANTA) / log10(2)) if passed > QUANTA / 100 else 0
        coarse = floor(passed / quantum) * quantum if quantum else passed
        return self.begin + timedelta(seconds=max(coarse, 0.001))

    @property
    def end(self) -> datetime:
        """Where it ends."""
        last = [entry.at for entry in self.view.moves if entry.move != "erase" and entry.at]
        known = [self.due or self.now, *last[-1:], self.view.job.finished_at]
        end = max((at for at in known if at is not None), default=self.begin)
        room = 0.08 if self.due else 0.02
        return end + (end - self.begin) * room + timedelta(milliseconds=1)

    @property
    def told(self) -> str:
        """Say in words how long it took."""
        begin, job = self.begin, self.view.job
        if job.finished_at is not None:
            took = (job.finished_at - job.created_at).total_seconds()
            return f"{words.duration(took)} from creation to its end"
        if self.due is not None:
            left = (self.due - begin).total_seconds()
            return f"{words.duration(left)} from {self._from} to its next attempt"
        return f"since {words.clock(begin)}"

    @property
    def _from(self) -> str:
        return "creation" if self.begin == self.view.job.created_at else words.clock(self.begin)

    @property
    def next_number(self) -> int:
        """The number of the next attempt."""
        return self.view.job.attempt + 1

    @property
    def height(self) -> int:
        """How high it is."""
        return HEAD + LANE + ROW * (len(self.shown) + (self.due is not None))


def draw(line: Timeline) -> Markup:
    """Draw it."""
    scale = Scale(line.begin, line.end)
    pieces = [
        Markup('<svg class="line" width="100%" height="{}" role="img" aria-label="{}">').format(
            line.height, _sentence(line)
        ),
        _axis(line, scale),
        _lane(line, scale),
    ]
    y = HEAD + LANE
    for one in line.shown:
        pieces.append(_bar(one, line, scale, y))
        y += ROW
    if line.due is not None:
        pieces.append(_next(line, scale, line.due, y))
    if line.now is not None:
        mark = Markup(
            '<rect class="now" x="{0}%" y="20" width="1.5" height="30"/>'
            '<text class="now" x="{0}%" y="12" text-anchor="middle">now</text>'
        )
        pieces.append(mark.format(_p(scale.x(line.now))))
    return Markup("").join([*pieces, Markup("</svg>")])


def _sentence(line: Timeline) -> str:
    parts = [f"attempt {one.number} {how(one)}" for one in line.shown]
    due = [f"the next one is due at {words.clock(line.due)}"] if line.due else []
    return f"Time line, {line.told}: " + (", ".join([*parts, *due]) or "no attempt yet") + "."


def _p(share: float) -> str:
    return f"{share:.2f}".rstrip("0").rstrip(".")


def _axis(line: Timeline, scale: Scale) -> Markup:
    high = line.height - 4
    first = Markup(
        '<text class="tick" x="0" y="12">{}</text>'
        '<rect class="rule" x="0" y="20" width="1" height="{}"/>'
    )
    pieces = [first.format(words.clock(scale.begin), high - 20)]
    taken = scale.x(line.now) if line.now else -100.0
    each = Markup(
        '<rect class="rule" x="{0}%" y="20" width="1" height="{1}"/><g class="{4}">'
        '<text class="tick rel" x="{0}%" y="12" text-anchor="middle">+{2}</text>'
        '<text class="tick abs" x="{0}%" y="12" text-anchor="middle">{3}</text></g>'
    )
    for number, (seconds, x) in enumerate(scale.ticks()):
        if x < 12 or x > 97:  # noqa: PLR2004 - the clock stands there, or it would be cut
            continue
        at = scale.begin + timedelta(seconds=seconds)
        css = "covered" if abs(x - taken) < 7 else "" if number % 2 else "second"  # noqa: PLR2004
        told = (
            words.duration(seconds).replace(" 00 s", "").replace(" 0 h", "").replace(" 0 min", "")
        )
        pieces.append(each.format(_p(x), high - 20, told, words.clock(at), css))
    return Markup("").join(pieces)


def _lane(line: Timeline, scale: Scale) -> Markup:
    moves = [entry for entry in line.view.moves if entry.at is not None and entry.move != SNAPSHOT]
    ends: list[datetime | None] = [entry.at for entry in moves[1:]]
    if moves:  # of an old job they may all be folded
        ends.append(line.now or moves[-1].at)
    pieces = []
    for entry, end in zip(moves, ends, strict=True):
        if entry.at is not None and end is not None and entry.to_state not in JOB.terminal:
            pieces.append(_stretch(entry, scale, max(entry.at, scale.begin), end))
    if line.due is not None and line.now is not None:
        shape = Markup('x="{}%" y="28" width="{}%" height="14"').format(
            _p(scale.x(line.now)), _p(scale.x(line.due) - scale.x(line.now))
        )
        rest = Markup('<rect class="fill-{} coming" {}/><rect fill="url(#t-lost)" {}/>')
        pieces.append(rest.format(line.view.job.state.lower(), shape, shape))
    return Markup("").join(pieces)


def _stretch(entry: Entry, scale: Scale, begin: datetime, end: datetime) -> Markup:
    x, wide = scale.x(begin), scale.x(end) - scale.x(begin)
    if wide <= 0:
        return Markup("")
    shape = Markup('x="{}%" y="28" width="{}%" height="14"').format(_p(x), _p(max(0.15, wide)))
    state = entry.to_state
    title = f"{state.capitalize()} for {words.duration((end - begin).total_seconds())}"
    rect = Markup('<rect class="fill-{}" {}><title>{}</title></rect>')
    drawn = rect.format(state.lower(), shape, title)
    if state in TEXTURED:
        drawn += Markup('<rect fill="url(#t-{})" {}/>').format(state.lower(), shape)
    return drawn


def how(one: Attempt) -> str:
    """Say how an attempt ended, without its error's text."""
    if one.ended is None:
        return "runs"
    took = words.duration((one.ended - one.begun).total_seconds())
    ended = {"succeed": "succeeded", "later": "put off", "release": "released"}
    ended |= {"cancel": "cancelled", "expire": "expired"}
    if one.move == "lose":
        return f"lost after {took}"
    if one.problem is not None:
        return f"failed after {took} with {words.cut(one.problem.type, 60)}"
    return f"{ended.get(one.move, one.move)} after {took}"


def _label(one: Attempt) -> tuple[str, str]:
    """Give the bold and the plain part of a bar's label."""
    if one.ended is None:
        return "", ""
    took = words.duration((one.ended - one.begun).total_seconds())
    if one.move == "lose":
        unheard = one.unheard
        said = one.problem.message.partition(" while it ran")[0] if one.problem else ""
        noticed = (
            f"noticed after {unheard.total_seconds():.0f} s" if unheard else words.cut(said, 60)
        )
        return "", f"lost{': ' if noticed else ''}{noticed}"
    if one.problem is not None:
        code = f" {one.problem.code}" if one.problem.code not in (None, "error") else ""
        return took, words.cut(f"{one.problem.type}{code}", 40)
    plain = {"succeed": "succeeded", "later": "waits", "release": "given back"}
    return took, plain.get(one.move, one.move)


def _bar(one: Attempt, line: Timeline, scale: Scale, y: int) -> Markup:
    end = one.ended or line.now or line.end
    x, right = scale.x(one.begun), scale.x(end)
    wide = max(0.5, right - x)
    css = "done" if one.ended else "going"
    rect = Markup('<rect class="bar {}" x="{}%" y="{}" width="{}%" height="17" rx="2"/>')
    pieces = [rect.format(css, _p(x), y + 4, _p(wide))]
    if one.move == "lose":
        silent = scale.x(max(one.begun, end - one.unheard)) if one.unheard else x
        shape = Markup('x="{}%" y="{}" width="{}%" height="17" rx="2"').format(
            _p(silent), y + 4, _p(max(0.5, right - silent))
        )
        lost = Markup(
            '<rect class="silent" {}/><rect class="fill-lost" {}/><rect fill="url(#t-lost)" {}/>'
        )
        pieces.append(lost.format(shape, shape, shape))
    elif one.problem is not None or one.move == "succeed":
        tip = Markup('<rect class="fill-{}" x="{}%" y="{}" width="4" height="17"/>')
        ended = "failed" if one.problem is not None else "succeeded"
        pieces.append(tip.format(ended, _p(x + wide), y + 4))
    pieces.append(_caption(*_label(one), x, x + wide, y + 17))
    number = Markup('<text class="inbar" x="{}%" y="{}" dx="5">{}</text>')
    if wide > 6:  # noqa: PLR2004 - it would not fit
        pieces.append(number.format(_p(x), y + 17, one.number))
    return Markup("").join(pieces)


def _caption(bold: str, plain: str, left: float, right: float, y: int) -> Markup:
    if right <= RIGHT:
        x, dx, anchor = right, 11, "start"
    elif left >= LEFT:
        x, dx, anchor = left, -7, "end"
    else:
        x, dx, anchor = left, 24, "start"
    text = Markup(
        '<text class="caption" x="{}%" dx="{}" y="{}" text-anchor="{}"><tspan>{}</tspan> '
        '<tspan class="plain{}">{}</tspan></text>'
    )
    long = " long" if bold and len(plain) > PHONE_LETTERS else ""
    return text.format(_p(x), dx, y, anchor, escaped(bold), long, escaped(plain))


def _next(line: Timeline, scale: Scale, due: datetime, y: int) -> Markup:
    x = scale.x(due)
    left = (due - line.view.now).total_seconds()
    drawn = Markup(
        '<rect class="coming" x="{0}%" y="{1}" width="20" height="17" rx="3"/>'
        '<text class="caption" x="{0}%" dx="-8" y="{2}" text-anchor="end">due <tspan>{3}</tspan>'
        '<tspan class="rel plain">, in {4}</tspan></text>'
    )
    told = words.duration(left if left < 10 else round(left))  # noqa: PLR2004
    return drawn.format(_p(x), y + 4, y + 17, words.clock(due), told)
