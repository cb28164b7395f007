"""Why a limit keeps a job waiting: which jobs hold it, how many are before, when it may start.

A bounded number of rows is read, whatever waits: nothing is stored about a job that a limit keeps.
"""

import shlex
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import inf
from typing import Any

import msgspec

from milepost.lifecycle import JobState
from milepost.records import Job
from milepost.store import jobs, tally
from milepost.store.driver import Call, Steps
from milepost.store.limit_looks import COUNTED
from milepost.store.phrases import moment, some, span
from milepost.store.reasons import LimitReason, Why
from milepost.store.rules import ANY_HOST, Limit, Rule, rules

HOLDERS, NAMED = 100, 5
"""How many leases are read, and how many of those are named."""
DAY_SECONDS = 86_400
SLEEPING = (JobState.WAITING, JobState.RETRYING)
OWED_LEAST = 60.0
"""A bucket that owes more than this is told, with the command that clears it."""


class Holder(msgspec.Struct, frozen=True):
    """A live lease under the limit."""

    id: str
    tenant: str
    worker_id: str
    seconds: float
    """For how long it has been held."""


class Turn(msgspec.Struct, frozen=True):
    """The job of an ordered key that is next."""

    id: str
    tenant: str
    kind: str
    kind_version: int
    state: str
    left: float | None
    """In how many seconds it is due, if it sleeps until then."""

    @property
    def is_open_ended(self) -> bool:
        """Whether it sleeps until something wakes it, such as a signal."""
        return self.state in SLEEPING and self.left is None


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that a job is under: that of its key, or that of its queue."""

    rule: Rule
    key: str = ""
    """The key, as its program named it; empty for a queue."""
    live: int = 0
    holders: Sequence[Holder] = ()
    before: int = 0
    """How many are in line before the job, of the key or in the queue."""
    units: float = 1.0
    """What the job takes from the bucket."""
    units_before: float = 0.0
    """What those before it take."""
    ahead_us: float | None = None
    """How far the bucket is ahead of now; None: it is full."""
    turn: Turn | None = None

    @property
    def limit(self) -> Limit:
        """What is in force."""
        return self.rule.limit

    @property
    def name(self) -> str:
        """The name of the limit in explanations."""
        return (
            f"queue {self.rule.name}" if self.rule.scope == "queue" else f"limit {self.rule.name}"
        )

    @property
    def is_full(self) -> bool:
        """Whether as many run as may."""
        return self.limit.most is not None and self.live >= self.limit.most

    def earned_in(self, units: float) -> float:
        """Seconds until the bucket has that many units."""
        ahead = max(0.0, self.ahead_us or 0.0)
        if self.limit.rate is None or (not ahead and not self.before):
            return 0.0  # a full bucket lets the first one go, whatever that takes
        if not self.before:
            units = min(units, self.limit.burst or 0.0)
        missing_us = units * self.limit.unit_us - (self.limit.burst_us - ahead)
        return max(0.0, missing_us / 1e6)

    @property
    def units_first(self) -> float:
        """What the first in line takes: as much as those before the job do on average."""
        if not self.before:
            return self.units
        return min(self.units_before / self.before, self.limit.burst or inf)

    @property
    def owes(self) -> float:
        """Seconds until the rate has earned what was taken beyond its burst; 0 below a burst of it.

        Claims alone take no more than that: a handler counted more, or the rate was changed.
        """
        beyond = (self.ahead_us or 0.0) - self.limit.burst_us
        return beyond / 1e6 if self.limit.rate and beyond > self.limit.burst_us else 0.0

    @property
    def slowed(self) -> float:
        """Seconds until the rate lets the job start, after those before it."""
        return self.earned_in(self.units_before + self.units)


class Limited(msgspec.Struct, frozen=True, kw_only=True):
    """The limits that a job is under."""

    levels: Sequence[Level]
    job: Job
    now: datetime
    seconds: float | None = None
    """How long jobs of its kind ran lately."""


class HostWait(msgspec.Struct, frozen=True):
    """A request that waits for its turn at a host."""

    rule: Rule
    host: str
    seconds: float
    """For how long."""
    sending: int
    """How many requests are under way there."""
    before: int
    """How many have waited for longer."""

    @property
    def is_shut(self) -> bool:
        """Whether none may start."""
        return self.rule.limit.most == 0


def at_host(job: Job) -> Steps[HostWait | None]:
    """Look up where a request that runs waits for its turn; None: it does not."""
    rows = (yield Call("host_waits", {"id": job.id})) if job.state == JobState.RUNNING else []
    if not rows:
        return None
    host, us, sending, before = rows[0]
    known = yield from rules()
    rule = known.get(("host", host)) or known.get(("host", ANY_HOST))
    return None if rule is None else HostWait(rule, host, us / 1e6, sending, before)


def look(job: Job, now: datetime, *, queue_limited: bool) -> Steps[Limited | None]:
    """Look up the limits of a job; None: it is under none."""
    if job.limit_key is None and not queue_limited:
        return None
    known = yield from rules()
    ahead = dict((yield Call("limit_ahead", {"key": job.limit_key, "queue": job.queue})))
    levels = []
    if job.limit is not None and (rule := known.get(("job", job.limit))) is not None:
        levels.append((yield from _of_key(job, rule, ahead.get("job"))))
    if (rule := known.get(("queue", job.queue))) is not None:
        levels.append((yield from _of_queue(job, rule, ahead.get("queue"))))
    if not levels:
        return None
    seconds = yield from lately(job.kind, now)
    return Limited(levels=levels, job=job, now=now, seconds=seconds)


def first_of_queue(name: str, now: datetime) -> Steps[Limited | None]:
    """Look up the limits of a queue's first job in line: those of its key, and the queue's own."""
    rows = yield Call("queue_first", {"queue": name})
    if not rows:
        return None
    job_id, limited = rows[0]
    job = yield from jobs.get(job_id)
    return (yield from look(job, now, queue_limited=bool(limited)))


def _of_key(job: Job, rule: Rule, ahead_us: float | None) -> Steps[Level]:
    line = {"key": job.limit_key, "queue": job.queue, "priority": job.priority}
    live, holders = yield from _held("limit_holders", key=job.limit_key)
    [(before, units)] = yield Call("limit_before", {"id": job.id, "most": COUNTED})
    turns = (yield Call("limit_turn", line)) if rule.limit.ordered else []
    return Level(
        rule=rule,
        key=job.limit_value or "",
        live=live,
        holders=holders,
        before=before,
        units=job.units or 1.0,
        units_before=float(units),
        ahead_us=ahead_us,
        turn=_turn(turns[0]) if turns else None,
    )


def _turn(row: Sequence[Any]) -> Turn:
    job_id, tenant, kind, version, state, left_us = row
    left = None if left_us is None else left_us / 1e6
    return Turn(job_id, tenant, kind, version, state, left)


def _of_queue(job: Job, rule: Rule, ahead_us: float | None) -> Steps[Level]:
    live, holders = yield from _held("queue_holders", queue=job.queue)
    [(before,)] = yield Call("queue_before", {"id": job.id, "most": COUNTED})
    return Level(
        rule=rule,
        live=live,
        holders=holders,
        before=before,
        units_before=float(before),
        ahead_us=ahead_us,
    )


def _held(query: str, **named: str | None) -> Steps[tuple[int, list[Holder]]]:
    rows = yield Call(query, {**named, "shown": HOLDERS, "most": COUNTED})
    found = [
        Holder(job_id, tenant, worker_id, max(0.0, (us or 0) / 1e6))
        for job_id, tenant, worker_id, us, _ in rows
    ]
    return (rows[0][-1] if rows else 0), sorted(found, key=lambda one: -one.seconds)


def lately(kind: str, now: datetime) -> Steps[float | None]:
    """Tell how long attempts of a kind ran, on average, in the last hour that had some."""
    since = now - timedelta(seconds=DAY_SECONDS)
    found = yield from tally.durations(since, now, of="run", kind=kind, step_seconds=tally.HOUR)
    counted = [one for one in found if sum(one.buckets)]
    if not counted:
        return None
    newest = max(counted, key=lambda one: one.at)
    return newest.sum_seconds / sum(newest.buckets)


# Saying it

Knows = Callable[[str, int], bool]


def kept_by(found: Limited, knows: Knows) -> Why[LimitReason]:
    """Say which limits keep a job in line; `knows` tells whether a live worker knows a kind."""
    if found.job.state not in (JobState.QUEUED, JobState.READY):
        return
    for level in found.levels:
        of_queue = level.rule.scope == "queue"
        if level.limit.ordered:
            yield from _in_order(found, level, knows)
        elif level.is_full:
            full = LimitReason.QUEUE_LIMIT if of_queue else LimitReason.LIMIT
            yield full, _full(found, level)
        if level.slowed > 0:
            yield LimitReason.QUEUE_RATE if of_queue else LimitReason.RATE, _slowed(found, level)


def waits_at_host(found: HostWait) -> str:
    """Say at which host a request waits for its turn, and after how many."""
    line = f"{found.before:,} before this one"
    if found.is_shut:
        return f"host {found.host} lets none start{_by(found.rule)}; {line}"
    words = found.rule.limit.words("host")
    terms = words if found.rule.name == found.host else f"limit {found.rule.name}: {words}"
    under_way = some(found.sending, "request is", "requests are")
    return (
        f"it waits for its turn at host {found.host} ({terms}){_by(found.rule)} for "
        f"{span(found.seconds)}: {under_way} under way there; {line}"
    )


def turn_kept(found: Limited) -> str | None:
    """Say that a job between two attempts keeps others of its ordered key waiting."""
    if found.job.state not in SLEEPING or not found.job.fence:
        return None
    for level in found.levels:
        if level.limit.ordered:
            behind = some(level.before, "job waits", "jobs wait")
            whose = f" of {level.key}" if level.key else ""
            return f"it keeps the turn{whose} ({level.name}): {behind} for it"
    return None


def opening_command(found: Limited, *scopes: str) -> str | None:
    """Give the command that raises a limit of 0 in these scopes; None if there is no such limit."""
    for level in found.levels:
        rule = level.rule
        if level.limit.most == 0 and rule.scope in scopes:
            scope = " --scope queue" if rule.scope == "queue" else ""
            return f"milepost limits set {shlex.quote(rule.name)}{scope} --most N"
    return None


def opening_host(found: HostWait) -> str:
    """Give the command that raises a host's limit of 0."""
    return f"milepost limits set {shlex.quote(found.rule.name)} --scope host --most N"


def _whose(level: Level) -> str:
    return f" for {level.key}" if level.key else ""


def _by(rule: Rule) -> str:
    """Name the person who set the rule, unless it is as programs declare it."""
    if not rule.is_set:
        return ""
    return f" (set by {rule.set_by}" + (f": {rule.reason})" if rule.reason else ")")


def _full(found: Limited, level: Level) -> str:
    most = level.limit.most
    if most == 0:
        return f"{level.name} lets none start{_by(level.rule)}; {_before(level)}"
    told = f"{level.name} ({most:,}) is reached{_whose(level)}{_by(level.rule)}"
    return f"{told}: held by {_holders(found, level)}; {_before(level)}; {_start(found)}"


def _before(level: Level) -> str:
    often = f"{level.before:,} or more" if level.before >= COUNTED else f"{level.before:,}"
    return f"{often} before this one"


def _holders(found: Limited, level: Level) -> str:
    """Name some of the jobs that hold it; those of other tenants are only counted."""
    ours = [one for one in level.holders if one.tenant == found.job.tenant][:NAMED]
    named = [f"{one.id} on {one.worker_id} for {span(one.seconds)}" for one in ours]
    if rest := level.live - len(ours):
        named.append(f"{rest:,} more" if ours else f"{rest:,} of other tenants")
    count = some(level.live, "job")
    return f"{count} ({', '.join(named)})"


def _slowed(found: Limited, level: Level) -> str:
    first = level.earned_in(level.units_first)
    rate = f"{level.name} ({level.limit.rate_text})"
    whose = f"{_whose(level)}{_by(level.rule)}"
    if first > 0:
        told = f"{rate} has none left{whose}: the next one may start in {span(first)}"
    else:
        told = f"{rate} lets the next one start now{whose}, and this one in {span(level.slowed)}"
    told = f"{told}; {_before(level)}"
    told = f"{told}; {_start(found)}" if level.before else told
    return f"{told}; {_owed(level)}" if level.owes > OWED_LEAST else told


def _owed(level: Level) -> str:
    """Name the command that clears a bucket which owes more than its rate holds."""
    words = [level.rule.name, *([level.key] if level.key else [])]
    words += ["--scope", "queue"] if level.rule.scope == "queue" else []
    command = shlex.join(["milepost", "limits", "clear", *words])
    return f"it owes {span(level.owes)} more than it holds: `{command}` forgives that"


def _in_order(found: Limited, level: Level, knows: Knows) -> Why[LimitReason]:
    turn, job = level.turn, found.job
    whose = f"jobs of {level.key}" if level.key else "all jobs under it"
    told = f"{whose} run one at a time, in order ({level.name})"
    if level.live:
        who = _holders(found, level)
        yield LimitReason.TURN, f"{told}: held by {who}; {_before(level)}; {_start(found)}"
    elif turn is not None and turn.id != job.id:
        who = _has_turn(found, turn, knows)
        yield LimitReason.TURN, f"{told}: {who}; {_before(level)}; {_start(found)}"


def _has_turn(found: Limited, turn: Turn, knows: Knows) -> str:
    """Name the job that has the turn, and say what it waits for."""
    if turn.tenant != found.job.tenant:
        return f"a job of another tenant has the turn and is {turn.state}"
    told = f"job {turn.id} ({turn.kind}) has the turn and is {turn.state}"
    away = f"`milepost jobs cancel {turn.id}` lets the next one go"
    if turn.left is not None:
        due = found.now + timedelta(seconds=turn.left)
        return f"{told} until {moment(due)}, in {span(max(0.0, turn.left))}: {away}"
    if turn.state == JobState.QUEUED and not knows(turn.kind, turn.kind_version):
        return f"{told}, and no live worker knows its version {turn.kind_version}: {away}"
    return f"{told} until something wakes it: {away}" if turn.is_open_ended else told


def _start(found: Limited) -> str:
    left = starts_in(found)
    if left is not None:
        return f"about {span(left)} until it starts"
    if any(level.turn and level.turn.is_open_ended for level in found.levels):
        why = "the job that has the turn waits for no set time"
    elif found.seconds is None:
        why = "no job of its kind has ended lately"
    elif shut := [level.name for level in found.levels if level.limit.most == 0]:
        why = f"{shut[0]} lets none start"
    else:
        why = f"jobs that hold it run for longer than the usual {span(found.seconds)}"
    return f"when it starts is not known: {why}"


def starts_in(found: Limited) -> float | None:
    """Guess in how many seconds it starts: by how long its kind took lately, and by its rates."""
    waits = [level.slowed for level in found.levels]
    for level in found.levels:
        if level.limit.ordered or level.is_full:
            if found.seconds is None:
                return None
            waits.append(_freed_in(level, found.seconds))
    left = max(waits, default=0.0)
    return None if left == inf else left


def _freed_in(level: Level, seconds: float) -> float:
    """Guess when enough leases have ended: those that are held, then as many as may run at once.

    When one ends that is held for longer than usual cannot be guessed: no end of it is counted on.
    """
    most = 1 if level.limit.ordered else level.limit.most or 0
    turn = level.turn
    if turn is not None and turn.is_open_ended:
        return inf
    if level.limit.ordered and not level.live and turn is not None and turn.left is not None:
        return max(0.0, turn.left) + (level.before + 1) * seconds
    ends = level.live - most + 1 + level.before
    if ends <= 0:
        return 0.0
    left = sorted(seconds - one.seconds for one in level.holders if one.seconds < seconds)
    if ends <= len(left):
        return left[ends - 1]
    lanes = most - (len(level.holders) - len(left))
    if lanes <= 0:
        return inf
    return (left[-1] if left else 0.0) + (ends - len(left)) / lanes * seconds
