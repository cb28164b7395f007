"""A list of jobs as it is shown: tokens of its filter, rows, facets and the chart above it."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec
from markupsafe import Markup

from milepost.client import Client
from milepost.filters import EVER, TAG, Term, Token, Where, tokens
from milepost.lifecycle import JOB, JobState
from milepost.records import JobError, JobLine
from milepost.request.redact import show_arguments
from milepost.store import failures, tally
from milepost.store.driver import Steps
from milepost.store.joblist import Count, Counts, Line
from milepost.web.dashboard import charts, words
from milepost.web.documents import carried

ORDER = (
    *("CREATED", "GATED", "WAITING", "READY", "QUEUED"),
    *("RUNNING", "RETRYING", "SUCCEEDED", "FAILED", "CANCELLED"),
)
"""The states as a job passes them."""
ENDS: Mapping[str, str] = {
    "succeed": "SUCCEEDED",
    "cancel": "CANCELLED",
    **dict.fromkeys(("fail", "expire", "reject"), "FAILED"),
}
"""The moves that end a job, and the state that it is in then; one that is lost may be retried."""
GONE = "moved on while you looked; leaves with the next refresh"
BARS = 61
STEPS = (60, 120, 300, 600, 1_800, 3_600, 7_200, 14_400)
HISTORY_SECONDS = 2 * 3_600
"""How far back the chart goes unless the filter says it."""


class TokenView(msgspec.Struct, frozen=True):
    """A token of the filter: its key and its values, or what is wrong with it."""

    text: str
    without: str
    """The filter without it."""
    key: str = ""
    values: Sequence[tuple[str, str]] = ()
    """Words, each with the state that it names, if any."""
    wrong: str = ""


class Sought(msgspec.Struct, frozen=True):
    """A filter as it was written."""

    text: str
    tokens: Sequence[Token]

    @property
    def where(self) -> Where | None:
        """The filter; None if something of it cannot be read."""
        terms = [token.term for token in self.tokens]
        return None if None in terms else Where(tuple(term for term in terms if term))

    @property
    def views(self) -> list[TokenView]:
        """Its tokens, as they are shown."""
        return [_token_view(place, token, self.tokens) for place, token in enumerate(self.tokens)]

    @property
    def cli(self) -> str:
        """The command that lists the same."""
        quoted = "'" + self.text.replace("'", "'\\''") + "'"
        return f"milepost jobs ls --where {quoted}" if self.tokens else "milepost jobs ls"

    def with_states(self, state: str) -> str:
        """Write the filter with this state, and no other."""
        others = [token.text for token in self.tokens if not _is_state(token)]
        return " ".join([f"state:{state.lower()}", *others])

    @property
    def without_states(self) -> str:
        """Write the filter without its states."""
        return " ".join(token.text for token in self.tokens if not _is_state(token))


def _is_state(token: Token) -> bool:
    return token.term is not None and token.term.key == "state" and not token.term.negated


def sought(text: str) -> Sought:
    """Read a filter token by token."""
    found = tokens(text)
    return Sought(" ".join(token.text for token in found), found)


def _token_view(place: int, token: Token, every: Sequence[Token]) -> TokenView:
    without = " ".join(one.text for at, one in enumerate(every) if at != place)
    term = token.term
    if term is None:
        return TokenView(token.text, without, wrong=token.wrong)
    key, _, _ = str(term).partition(":")
    if term.key == TAG:
        key = f"{'-' if term.negated else ''}{TAG}.{term.name}"
    values = [(str(value), _state_of(term, value.word)) for value in term.values]
    return TokenView(token.text, without, key=key, values=values)


def _state_of(term: Term, word: str) -> str:
    return word.lower() if term.key == "state" and word.upper() in JobState.__members__ else ""


class Facet(msgspec.Struct, frozen=True):
    """A state, how many jobs of the filter are in it, and the filter for it."""

    state: str
    count: str
    is_empty: bool
    query: str
    chosen: bool


def facets(one: Sought, counts: Counts) -> list[Facet]:
    """Give the states with their counts."""
    where = one.where
    only = None if where is None else where.only("state")
    return [_facet(state, one, counts, only) for state in ORDER]


def _facet(state: str, one: Sought, counts: Counts, only: Sequence[str] | None) -> Facet:
    counted = counts.of.get(state, Count())
    chosen = only is not None and state in only
    query = one.without_states if only == [state] else one.with_states(state)
    return Facet(state, at_least(counted), counted.number == 0, query, chosen)


def at_least(count: Count) -> str:
    """Write a count that may have stopped early."""
    return f"{count.number:,}+" if count.more else f"{count.number:,}"


# Rows


class Row(msgspec.Struct, frozen=True):
    """A job as its row shows it."""

    id: str
    state: str
    kind: str
    arguments: str
    error: str
    pips: Markup
    ran: str
    at: datetime
    is_due: bool
    again: bool
    gone: bool

    @property
    def label(self) -> str:
        """Name the row for those who do not see it."""
        return f"{self.state.capitalize()} {self.kind} {self.id}"


def row(line: Line, client: Client, now: datetime) -> Row:
    """Make the row of a job."""
    job = line.job
    due = job.due_at if job.state in (JobState.WAITING, JobState.RETRYING) else None
    at = due or job.finished_at or (job.state == JobState.RUNNING and job.started_at)
    return Row(
        id=job.id,
        state=str(job.state),
        kind=job.kind,
        arguments=arguments(job, client),
        error="" if not line.fits else error_line(job),
        pips=_pips(job),
        ran=words.duration(_ran(job, now)),
        at=at or job.created_at,
        is_due=due is not None and due > now,
        again=job.again,
        gone=not line.fits,
    )


def arguments(job: JobLine, client: Client) -> str:
    """Write a job's arguments in a line, without what is secret; or say why they are not shown."""
    if job.size is None:
        return "erased"
    return written(job.kind, job.codec, job.payload, job.size, client)


def written(kind: str, codec: str | None, payload: bytes | None, size: int, client: Client) -> str:
    """Write arguments of that size in a line; those that were not read are too many for one."""
    if payload is None or codec is None:
        return f"{words.size(size)}, shown with the job"
    given = show_arguments(kind, carried(payload, codec, client.codec), client.settings.redacted)
    try:
        value = msgspec.json.decode(given) if isinstance(given, msgspec.Raw) else given
    except msgspec.DecodeError:
        return f"{size} bytes of {codec}"
    if isinstance(value, dict):
        return words.arguments((), value)
    return words.cut(value, 120) if isinstance(value, str) else words.arguments((value,), {})


def error_line(job: JobLine) -> str:
    """Write the first line of why a job failed last, or of why it was cancelled."""
    if job.state == JobState.CANCELLED:
        return words.cut(job.cancel_reason or "cancelled", 200)
    if job.error is None and job.error_type is not None:
        return words.cut(job.error_type, 200)
    found = failures.last_error(job.error, job.cause)
    if found is None or job.state == JobState.SUCCEEDED:
        return ""
    return words.cut(_said(found), 200)


def _said(error: JobError) -> str:
    first = error.message[:1_000].partition("\n")[0]
    if first.startswith("sealed:"):
        first = "its text is encrypted"
    return f"{error.type}: {first}" if first else error.type


def _ran(job: JobLine, now: datetime) -> float | None:
    if job.started_at is None or not (job.finished_at or job.state == JobState.RUNNING):
        return None
    return ((job.finished_at or now) - job.started_at).total_seconds()


def _pips(job: JobLine) -> Markup:
    now = {JobState.RUNNING: "running", JobState.SUCCEEDED: "succeeded"}.get(job.state, "")
    used = job.errors + job.losses + bool(now)
    told = f"{used} of {job.attempts_allowed} attempts"
    if job.losses:
        told += f", {job.losses} lost"
    is_open = job.state not in JOB.terminal
    return charts.pips(
        job.errors,
        job.losses,
        allowed=job.attempts_allowed if is_open else used,
        now=now,
        told=told,
    )


# The rows that a page shows, in the address of its stream


def packed(ids: Sequence[str]) -> str:
    """Write ids so that an address has room for them."""
    data = b"".join(UUID(one).bytes for one in ids)
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def unpacked(text: str, most: int) -> list[str]:
    """Read ids that were packed; none if it is something else."""
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (ValueError, binascii.Error):
        return []
    whole = len(data) // 16
    return [str(UUID(bytes=data[at * 16 : at * 16 + 16])) for at in range(min(whole, most))]


# The chart


class Chart(msgspec.Struct, frozen=True):
    """How many jobs ended in each step of time."""

    svg: Markup
    since: datetime
    until: datetime
    step: int
    total: int

    @property
    def step_label(self) -> str:
        """Say how long a bar is."""
        return f"{self.step // 3_600} h" if self.step >= 3_600 else f"{self.step // 60} min"  # noqa: PLR2004


class Span(msgspec.Struct, frozen=True):
    """What a chart is asked for."""

    since: datetime
    until: datetime
    step: int
    states: frozenset[str]
    kind: str | None
    queues: frozenset[str] | None


def span(where: Where, now: datetime) -> Span | None:
    """Say what the chart of a filter shows; None if the tally does not know it."""
    if any(term.key not in ("state", "kind", "queue", "age", "created") for term in where.terms):
        return None
    if any(term.negated for term in where.terms) or len(where.only("kind") or ()) > 1:
        return None
    only = where.only("state")
    states = frozenset(ENDS.values()) & frozenset(ENDS.values() if only is None else only)
    period = _period(where, now)
    if not states or period is None:
        return None
    kind, queues = where.only("kind"), where.only("queue")
    if kind == [] or queues == []:
        return None
    since, until, step = period
    named = None if queues is None else frozenset(queues)
    return Span(since, until, step, states, kind[0] if kind else None, named)


def _period(where: Where, now: datetime) -> tuple[datetime, datetime, int] | None:
    now_us = int(now.timestamp() * 1e6)
    created = where.created(now_us)
    if not created:
        return None
    low, high = created[0][0], created[-1][1]
    until = now if high == EVER else min(now, datetime.fromtimestamp(high / 1e6, UTC))
    kept = timedelta(seconds=tally.KEEP_SECONDS)
    since = (
        datetime.fromtimestamp(low / 1e6, UTC)
        if low
        else until - timedelta(seconds=HISTORY_SECONDS)
    )
    since = max(since, now - kept)
    length = (until - since).total_seconds()
    if length <= 0:
        return None
    least = 60 if since > now - timedelta(hours=3) else 600
    least = least if since > now - timedelta(hours=25) else 3_600
    step = next((one for one in STEPS if one >= least and length / one < BARS), STEPS[-1])
    return since, until, step


def ended(asked: Span) -> Steps[list[tally.MoveCount]]:
    """Count the jobs that ended."""
    queue = next(iter(asked.queues)) if asked.queues and len(asked.queues) == 1 else None
    return (
        yield from tally.moves(
            asked.since,
            asked.until,
            by=("move",) if asked.queues is None or queue else ("move", "queue"),
            queue=queue,
            kinds=None if asked.kind is None else [asked.kind],
            step_seconds=asked.step,
        )
    )


def chart(asked: Span, moves: Sequence[tally.MoveCount]) -> Chart:
    """Draw how many jobs ended."""
    first = int(asked.since.timestamp()) // asked.step
    number = int(asked.until.timestamp()) // asked.step - first + 1
    bars: list[dict[str, int]] = [{} for _ in range(number)]
    total = 0
    for one in moves:
        state, place = ENDS.get(one.move or ""), int(one.at.timestamp()) // asked.step - first
        is_mine = one.queue is None or asked.queues is None or one.queue in asked.queues
        if state in asked.states and is_mine and 0 <= place < number:
            bars[place][state] = bars[place].get(state, 0) + one.count
            total += one.count
    begin = datetime.fromtimestamp(first * asked.step, UTC)
    told = f"{total:,} jobs ended from {words.clock(begin)} to {words.clock(asked.until)} UTC"
    return Chart(charts.columns(bars, told), begin, asked.until, asked.step, total)
