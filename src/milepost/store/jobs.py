"""Operations on jobs. Each is a generator over named queries, run in one transaction by a driver.

Lock order, here and everywhere: jobs by id, then the counters of ends in the order of their key,
then runs by id (those in trees of batches last, from the deepest up), then the counters of new
jobs; after that only inserts, or SKIP LOCKED.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from operator import itemgetter
from typing import Any

import msgspec

from milepost.codec import PROSE_BYTES, check_text
from milepost.errors import IllegalMove, LeaseLost, NotFound
from milepost.lifecycle import JOB, JobState
from milepost.limit import LONGEST_US
from milepost.options import HIGHEST
from milepost.records import Claim, Job, Listed, Settlement
from milepost.store import followups, logs, outputs, reruns, runs, successes, unfit
from milepost.store.columns import reader
from milepost.store.driver import Call, Rows, Steps
from milepost.store.failures import ERROR_WORDS, error_words
from milepost.store.logs import AttemptLines

SIGNALS_MOST = 1_000
"""How many signals a job keeps that it has not read."""

SOFT_MOVES = frozenset({"retry", "later", "release"})
_BY_AGE = itemgetter(*(Claim.__struct_fields__.index(name) for name in ("queued_seq", "id")))
_BY_PRIORITY = itemgetter(Claim.__struct_fields__.index("priority"))


class Line(msgspec.Struct, frozen=True):
    """Where a claimer looks: one priority of one queue, from a floor."""

    queue: str
    priority: int = 0
    floor: int = 0
    past: int = 0
    """Of the jobs at the floor, those up to this rowid are left out, where numbers are shared."""


def lines(queues: Iterable[str]) -> list[Line]:
    """Look everywhere in these queues: high priorities first, from the bottom."""
    return [Line(queue, priority) for queue in queues for priority in range(HIGHEST, -1, -1)]


# Claiming and settling


def claim(
    *,
    worker_id: str,
    line: Sequence[Line],
    most: int,
    kinds: Sequence[str] | None = None,
    alone: bool = False,
    ahead: bool = False,
    timed: bool = False,
) -> Steps[list[Claim]]:
    """Take up to `most` jobs, first come first served within a priority.

    `kinds` are "name version" words; None takes any. A run whose first job this is begins. Suspects
    are taken `alone` only, one at a time, and while the worker holds nothing. `ahead` takes none
    whose loss would end it: it may wait in the worker, and never begin. With `timed` each says how
    long it waited.
    """
    if alone and (yield Call("job_held", {"worker_id": worker_id}, alone=True)):
        return []
    rows = yield Call(
        "job_claim",
        {
            "worker_id": worker_id,
            "queue": [place.queue for place in line],
            "priority": [place.priority for place in line],
            "floor": [place.floor for place in line],
            "most": 1 if alone else most,
            "kinds": None if kinds is None else list(kinds),
            "alone": alone,
            "ahead": ahead,
            "timed": timed,
        },
        alone=True,
    )
    return (yield from claimed(rows, worker_id=worker_id))


def claimed(rows: Rows, *, worker_id: str) -> Steps[list[Claim]]:
    """Read claims in the order of their line, and begin their runs."""
    rows.sort(key=_BY_AGE)
    rows.sort(key=_BY_PRIORITY, reverse=True)
    claims = [Claim(*row) for row in rows]
    if run_ids := sorted({c.run_id for c in claims if c.run_id is not None}):
        yield Call("run_begin", {"id": run_ids, "actor": worker_id}, alone=True)
    return claims


class Suspect(msgspec.Struct, frozen=True):
    """A job whose loss would end it, and where it stands in line."""

    line: Line
    id: str
    limited: bool
    """Whether it, or its queue, is under a limit."""


def claim_alone(
    found: Sequence[Suspect], *, worker_id: str, kinds: Sequence[str] | None = None
) -> Steps[list[Claim]]:
    """Take the first suspect from the first of these on, while the worker holds nothing."""
    line = [found[0].line]
    return (yield from claim(worker_id=worker_id, line=line, most=1, kinds=kinds, alone=True))


def suspects(
    *,
    most: int,
    after: Suspect | None = None,
    queues: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> Steps[list[Suspect]]:
    """Find the first jobs in line whose loss would end them: they are to be claimed alone.

    Those in line `after` one come first, then it goes on from the top.
    """
    rows = yield Call(
        "job_suspects",
        {
            "most": most,
            "after_priority": after and after.line.priority,
            "after_seq": after and after.line.floor,
            "after_id": after and after.id,
            "queues": None if queues is None else list(queues),
            "kinds": None if kinds is None else list(kinds),
        },
        alone=True,
    )
    return [Suspect(Line(*place), job_id, bool(limited)) for *place, job_id, limited in rows]


class Settled(msgspec.Struct, frozen=True):
    """The jobs that were held, and the runs that have more to publish or to let through a gate.

    `moves` are those that runs made meanwhile.
    """

    held: set[str]
    left: set[str]
    moves: Mapping[str, Sequence[str]] = {}
    cancelled: frozenset[str] = frozenset()
    """Those of the held ones that were asked to stop, and were cancelled instead."""


def settle(settlements: Sequence[Settlement], *, actor: str) -> Steps[set[str]]:
    """Move leased jobs to their outcomes, with every effect; answer with the ids that were held.

    Whatever is missing from the answer had lost its lease: nothing of it was written. A job that
    was asked to stop and whose outcome is not an end is cancelled instead.
    """
    return (yield from settle_some(settlements, actor=actor)).held


def settle_some(settlements: Sequence[Settlement], *, actor: str) -> Steps[Settled]:
    """Settle, and tell also what is left to do."""
    ordered = sorted(settlements, key=lambda s: s.claim.id)
    if all(map(successes.is_plain, ordered)):
        return Settled((yield from successes.settle(ordered, actor=actor)), set())
    soft = [s.claim.id for s in ordered if s.outcome.move in SOFT_MOVES]
    if soft and (misfits := [s for s in ordered if s.outcome.signature is not None]):
        waiting = yield from unfit.wait(misfits, actor=actor)
        if waiting:
            rest = [s for s in ordered if s.claim.id not in waiting]
            others = (yield from settle_some(rest, actor=actor)) if rest else Settled(set(), set())
            return Settled(others.held | waiting, others.left, others.moves, others.cancelled)
    columns = {"actor": actor, **_columns(ordered)}
    # What may take more than one statement must not be committed by its first.
    alone = (s.claim.run_id is None and not successes.has_effects(s) for s in ordered)
    plain = not soft and all(alone)
    if noted := [s for s in ordered if s.outcome.note is not None]:
        phased = [Noted(s.claim, s.outcome.phase, s.outcome.note) for s in noted]
        yield from note_many(phased, actor=actor)
    rows = yield from _settle_rows(columns, soft, alone=plain)
    settled = {row[0] for row in rows}
    if plain:
        return Settled(settled, set())
    held = [s for s in ordered if s.claim.id in settled]
    yield from _effects(held)
    yield from _wake_signalled(held, actor=actor)
    touched = {s.claim.run_id for s in held if s.claim.run_id is not None}
    progress = yield from runs.after_ends(touched, actor=actor, ended=held)
    failed = [s.claim.id for s in held if s.outcome.state == JobState.FAILED]
    yield from followups.create(failed, actor=actor)
    cancelled = frozenset(row[0] for row in rows if len(row) > 1)
    return Settled(settled, progress.unfinished, progress.moves, cancelled)


def _settle_rows(
    columns: dict[str, Any], soft: Iterable[str], *, alone: bool = False
) -> Steps[Rows]:
    """Move what is held; of the `soft` ones, those that were asked to stop are cancelled."""
    rows: Rows = yield Call("job_settle", columns, alone=alone)
    missing = set(soft) - {row[0] for row in rows}
    if missing:
        halted = [job_id in missing for job_id in columns["id"]]
        chosen = {name: list(compress(columns[name], halted)) for name in ("id", "fence", "error")}
        stopped = yield Call("job_settle_stopped", {"actor": columns["actor"], **chosen})
        rows = [*rows, *stopped]
    return rows


def _wake_signalled(settled: Sequence[Settlement], *, actor: str) -> Steps[None]:
    """Wake what went to sleep although a signal had come; what the attempt took is used up."""
    asleep = [s.claim for s in settled if s.outcome.move == "later"]
    if asleep:
        ids = [claim.id for claim in asleep]
        yield Call("signal_use", {"id": ids, "fence": [claim.fence for claim in asleep]})
        yield Call("job_settle_signalled", {"id": ids, "actor": actor})


def _columns(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    claims = [s.claim for s in settlements]
    outcomes = [s.outcome for s in settlements]
    return {
        "id": [claim.id for claim in claims],
        "fence": [claim.fence for claim in claims],
        "move": [outcome.move for outcome in outcomes],
        "state": [outcome.state.value for outcome in outcomes],
        "delay_us": [outcome.delay_us for outcome in outcomes],
        "result": [outcome.result for outcome in outcomes],
        "error": [o.problem.brief() if o.problem else None for o in outcomes],
        "cause": [o.cause.value if o.cause else None for o in outcomes],
        "detail": [outcome.detail for outcome in outcomes],
        **error_words(settlements),
    }


def _failure_columns(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    columns = _columns(settlements)
    whole = [s.outcome.problem.text() for s in settlements if s.outcome.problem is not None]
    return {**{name: columns[name] for name in ("id", "fence", "fingerprint")}, "error": whole}


def _effects(settled: Sequence[Settlement]) -> Steps[None]:
    failed = [s for s in settled if s.outcome.problem is not None]
    if failed:
        yield Call("failure_add", _failure_columns(failed))
    if several := [s for s in settled if s.outcome.kept]:
        yield from outputs.put_kept(several)
    if logged := [AttemptLines(s.claim, s.outcome.lines) for s in settled if s.outcome.lines]:
        yield from logs.write(logged)
    if used := [s for s in settled if s.outcome.usage]:
        amounts = [(s.claim, name, value) for s in used for name, value in _usage(s)]
        columns = {
            "id": [claim.id for claim, _, _ in amounts],
            "fence": [claim.fence for claim, _, _ in amounts],
            "name": [name for _, name, _ in amounts],
            "amount": [float(value) for _, _, value in amounts],
        }
        yield Call("usage_add", columns)
        if any(claim.limit_key for claim, _, _ in amounts):
            yield Call("bucket_settle", {**columns, "longest_us": LONGEST_US})


def _usage(settlement: Settlement) -> Iterable[tuple[str, float]]:
    usage: Mapping[str, float] = settlement.outcome.usage or {}
    return usage.items()


def note(
    claim: Claim,
    *,
    phase: str | None,
    detail: str | None = None,
    actor: str | None = None,
    alone: bool = False,
) -> Steps[int]:
    """Record a phase of a running attempt, or raise `LeaseLost`; `alone` if nothing follows.

    The journal has no phase of its own: without another `detail` the entry holds it.
    """
    rows = yield Call(
        "job_note",
        {
            "id": claim.id,
            "fence": claim.fence,
            "phase": phase,
            "detail": phase if detail is None else detail,
            "actor": actor,
        },
        alone=alone,
    )
    if not rows:
        raise LeaseLost(f"job {claim.id} is no longer held with fence {claim.fence}")
    return int(rows[0][0])


class Noted(msgspec.Struct, frozen=True):
    """A phase of one attempt, and what is to be said of it."""

    claim: Claim
    phase: str | None
    detail: str | None


def note_many(noted: Sequence[Noted], *, actor: str | None) -> Steps[set[str]]:
    """Record a phase of many attempts; answer with the ids that were held."""
    ordered = sorted(noted, key=lambda one: one.claim.id)
    rows = yield Call(
        "job_note_many",
        {
            "actor": actor,
            "id": [one.claim.id for one in ordered],
            "fence": [one.claim.fence for one in ordered],
            "phase": [one.phase for one in ordered],
            "detail": [one.detail for one in ordered],
        },
    )
    return {row[0] for row in rows}


def reconcile(*, worker_id: str, known: Mapping[str, int]) -> Steps[list[str]]:
    """Release what the store says this worker holds and it does not remember (a lost reply)."""
    held = yield Call("job_held", {"worker_id": worker_id})
    unknown = [(job_id, fence) for job_id, fence in held if known.get(job_id) != fence]
    if not unknown:
        return []
    count = len(unknown)
    ids = [job_id for job_id, _ in unknown]
    rows = yield from _settle_rows(
        {
            "actor": worker_id,
            "id": ids,
            "fence": [fence for _, fence in unknown],
            "move": ["release"] * count,
            "state": [JobState.RETRYING.value] * count,
            "delay_us": [0] * count,
            "detail": ["the claim's reply was lost"] * count,
            **{name: [None] * count for name in ("result", "error", "cause", *ERROR_WORDS)},
        },
        ids,
    )
    # What was released has not ended; it answers with its id alone.
    stopped = [row for row in rows if len(row) > 1]
    yield from runs.after_ends(runs.touched(stopped), actor=worker_id)
    return [row[0] for row in rows]


def ask_to_stop(*, worker_id: str) -> Steps[list[tuple[str, int, str]]]:
    """List what this worker holds and was asked to stop: id, fence, reason."""
    rows = yield Call("job_asked_to_stop", {"worker_id": worker_id})
    return [(row[0], row[1], row[2]) for row in rows]


def reject(job_id: str, *, reason: str, actor: str) -> Steps[bool]:
    """End a waiting job that no definition will ever run; False when it was not waiting."""
    rows = yield Call("job_reject", {"id": job_id, "reason": reason, "actor": actor})
    if rows:
        told = "no worker could take it; its history says why"
        yield Call("failure_ended", {"id": [job_id], "text": told})
    yield from runs.after_ends(runs.touched(rows), actor=actor)
    yield from followups.create([row[0] for row in rows], actor=actor)
    return bool(rows)


# What people do to jobs


def cancel(job_id: str, *, reason: str, actor: str | None) -> Steps[tuple[JobState, bool]]:
    """Cancel, or ask the worker that runs it; answer with (state now, whether it was asked)."""
    check_text(reason, what="reason", most=PROSE_BYTES, blank=True)
    found = yield Call("job_lock", {"id": job_id})
    if not found:
        raise NotFound(f"there is no job {job_id}")
    state = JobState(found[0][0])
    parameters = {"id": job_id, "reason": reason, "actor": actor}
    if state == JobState.RUNNING:
        yield Call("job_ask_to_stop", parameters)
        return state, True
    if state in JOB.terminal:
        return state, False
    rows = yield Call("job_cancel", parameters)
    yield from runs.after_ends(runs.touched(rows), actor=actor)
    return JobState.CANCELLED, False


def erase(job_id: str, *, actor: str | None) -> Steps[bool]:
    """Empty a finished job of all that the user put into it; False when it is not finished.

    Raise `IllegalMove` while an open job goes on with its steps.
    """
    rows = yield Call("job_erase", {"id": job_id, "actor": actor})
    if rows:
        yield from reruns.refuse_needed(job_id)
        for kept in ("failure", "signal", "durable", "progress", "output", "log"):
            yield Call(f"{kept}_erase", {"id": job_id})
    return bool(rows)


def signal(
    job_id: str,
    *,
    signal_id: str,
    data: bytes | None,
    actor: str | None,
    most: int | None = None,
) -> Steps[bool]:
    """Remember a signal and wake the job if it waits; False when it is final.

    A job keeps so many that it has not read, `SIGNALS_MOST` unless told; `IllegalMove` says so.
    """
    found = yield Call("job_lock", {"id": job_id})
    if not found:
        raise NotFound(f"there is no job {job_id}")
    if found[0][0] in JOB.terminal:
        return False
    most = SIGNALS_MOST if most is None else most
    [(kept,)] = yield Call("signal_count", {"job_id": job_id, "most": most})
    if kept >= most:
        raise IllegalMove(f"job {job_id} has not read {most:,} signals; signal it again later")
    yield Call("signal_add", {"id": signal_id, "job_id": job_id, "data": data})
    yield Call("job_signal", {"id": job_id, "actor": actor})
    return True


def signals(claim: Claim) -> Steps[list[bytes | None]]:
    """Take the signals that no attempt has used: one that sleeps or ends uses what it took."""
    rows = yield Call("signal_take", {"id": claim.id, "fence": claim.fence})
    return [row[1] for row in sorted(rows)]


# Reading


def get(job_id: str) -> Steps[Job]:
    """Read one job, or raise `NotFound`."""
    rows = yield Call("job_get", {"id": job_id})
    if not rows:
        raise NotFound(f"there is no job {job_id}")
    return _job(rows[0])


def find(job_ids: Sequence[str]) -> Steps[dict[str, Job]]:
    """Read those of the jobs that are there."""
    rows = yield Call("job_get_many", {"id": list(job_ids)})
    return {row[0]: _job(row) for row in rows}


def standing(job_ids: Sequence[str]) -> Steps[list[tuple[str, str]]]:
    """Tell where those of the jobs stand that are there, and nothing else of them."""
    rows = yield Call("job_standing", {"id": list(job_ids)}, alone=True)
    return [(row[0], row[1]) for row in rows]


def within(low: str, high: str, *, most: int) -> Steps[list[str]]:
    """Name the first jobs whose ids stand between these two."""
    rows = yield Call("job_within", {"low": low, "high": high, "most": most})
    return [row[0] for row in rows]


def listing(
    *,
    state: str | None = None,
    kind: str | None = None,
    queue: str | None = None,
    tenant: str | None = None,
    run_id: str | None = None,
    states: str | None = None,
    queues: str | None = None,
    superseded: bool | None = None,
    before: str | None = None,
    most: int = 100,
    most_bytes: int | None = None,
) -> Steps[Listed[Job]]:
    """Read a page, newest first; the next page is what stands `before` its last id.

    `states` and `queues` are JSON lists: any of them will do. A job is superseded once it was run
    again. A page ends early once its content has reached `most_bytes`; it holds one row at least.
    """
    rows = yield Call(
        "job_list",
        {
            "state": state,
            "kind": kind,
            "queue": queue,
            "tenant": tenant,
            "run_id": run_id,
            "states": states,
            "queues": queues,
            "superseded": superseded,
            "before": before,
            "most": most,
            "most_bytes": most_bytes,
        },
    )
    return Listed.of([_job(row[:-1]) for row in rows], rows, most=most)


def counts() -> Steps[dict[str, dict[str, int]]]:
    """Count jobs by queue and state; only those that are open, failed or cancelled are read."""
    found: dict[str, dict[str | None, int]] = {}
    for queue, state, count in (yield Call("job_counts")):
        found.setdefault(queue, {})[state] = count
    told = ((queue, _with_successes(found[queue])) for queue in sorted(found))
    return {queue: states for queue, states in told if states}


def state_counts() -> Steps[dict[str, int]]:
    """Count jobs by state."""
    return _with_successes(dict(map(tuple, (yield Call("job_state_counts")))))


def _with_successes(counted: dict[str | None, int]) -> dict[str, int]:
    """Count those that succeeded, of which no index knows: all, less all others."""
    others = {state: count for state, count in counted.items() if state is not None and count}
    others[JobState.SUCCEEDED.value] = counted.get(None, 0) - sum(others.values())
    return {state: count for state, count in sorted(others.items()) if count > 0}


def any_open() -> Steps[bool]:
    """Tell whether anything is left that a worker or the clock could still move."""
    [(count,)] = yield Call("job_open_count", alone=True)
    return bool(count)


def used(job_id: str) -> Steps[dict[str, float]]:
    """Read the usage that the attempts of a job recorded, added up by name."""
    return dict((yield Call("usage_sum", {"id": job_id}, alone=True)))


_job = reader(Job)
