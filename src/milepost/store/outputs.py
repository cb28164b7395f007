"""Outputs of a run's jobs: invisible while their producer runs, jobs of later steps once it ended.

A few small ones become jobs in the transaction that ends their producer. Many are staged before,
in pieces; that transaction then writes one publication, and they become jobs in batches. Nobody
waits for a publication's row: publishers skip rows that others hold, look at the run once they
hold it too, and withdraw instead when it is not live any more.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import uuid_utils

from milepost.errors import LeaseLost
from milepost.outcome import Output
from milepost.records import Claim, Settlement
from milepost.store import creation, fanin
from milepost.store.columns import lists
from milepost.store.driver import Call, Rows, Steps
from milepost.store.fanin import LockedRun

DROPPED = 1_000
"""How many results of attempts that came to nothing go with each piece of a new one."""


class PublishedOutputs(msgspec.Struct, frozen=True):
    """How many outputs became jobs, and the runs that have more jobs to let through a gate."""

    count: int
    left: frozenset[str] = frozenset()


# While the producer runs


def stage(claim: Claim, outputs: Sequence[tuple[int, Output]]) -> Steps[None]:
    """Store outputs, each with its place, of a running attempt, or raise `LeaseLost`."""
    own = {"producer_id": claim.id, "fence": claim.fence, "codec": claim.codec}
    ids = {"job_id": [str(uuid_utils.uuid7()) for _ in outputs]}
    given = lists("seq step payload limit_key", [(seq, *output) for seq, output in outputs])
    rows = yield Call("staged_add", {**own, **ids, **given})
    _check_held(claim, rows, outputs)


def _check_held(claim: Claim, stored: Rows, given: Sequence[Any]) -> None:
    if len(stored) != len(given):
        raise LeaseLost(f"job {claim.id} is no longer held with fence {claim.fence}")


def sweep_staged(*, most: int) -> Steps[None]:
    """Throw away outputs that no attempt will publish."""
    yield Call("staged_sweep", {"most": most})


def keep(claim: Claim, results: Sequence[tuple[int, Output]]) -> Steps[None]:
    """Store results, each with its place, of a running attempt, or raise `LeaseLost`.

    So a job of the last step gives several: they count once it succeeds. Those of attempts before
    it are removed piece by piece.
    """
    if claim.fence > 1:
        yield Call("output_drop", {"id": claim.id, "fence": claim.fence, "most": DROPPED})
    given = lists("seq payload", [(seq, output.payload) for seq, output in results])
    rows = yield Call("output_add", {"id": claim.id, "fence": claim.fence, **given})
    _check_held(claim, rows, results)


# With its end


def put_kept(ended: Sequence[Settlement]) -> Steps[None]:
    """Store the results that came along with the ends of jobs."""
    along = [
        (s.claim.id, s.claim.fence, seq, data)
        for s in ended
        for seq, data in enumerate(s.outcome.kept)
    ]
    yield Call("output_put", lists("id fence seq payload", along))


def announce(ended: Sequence[Settlement]) -> Steps[set[str]]:
    """Publish the staged outputs of ended jobs; answer with their runs."""
    staged = [s for s in ended if s.outcome.staged and not s.outcome.outputs]
    if staged:
        yield from _announce(staged)
    return _runs_of(staged)


def _runs_of(settlements: Sequence[Settlement]) -> set[str]:
    return {s.claim.run_id for s in settlements if s.claim.run_id is not None}


def put(
    ended: Sequence[Settlement], locked: Mapping[str, LockedRun], *, actor: str | None
) -> Steps[set[str]]:
    """Make jobs of outputs that came along with the ends of jobs; tell the runs with too many.

    Too many for one transaction wait as a publication, and so do those that a stopping run does not
    take any more: one that resumes it does.
    """
    at_once, staged = _divided([s for s in ended if s.outcome.outputs], locked)
    if at_once:
        yield from creation.in_steps([c for s in at_once for c in _children(s)], actor=actor)
    if staged:
        yield from _announce(staged)
    return _runs_of(staged)


def _divided(
    ended: Sequence[Settlement], locked: Mapping[str, LockedRun]
) -> tuple[list[Settlement], list[Settlement]]:
    at_once: list[Settlement] = []
    rest: list[Settlement] = []
    room = fanin.AT_ONCE
    live = {run_id for run_id, run in locked.items() if run.live}
    for s in ended:
        count = len(s.outcome.outputs)
        if count <= room and s.claim.run_id in live:
            room -= count
            at_once.append(s)
        else:
            rest.append(s)
    return at_once, rest


def _children(settlement: Settlement) -> Iterator[creation.Child]:
    claim = settlement.claim
    for seq, (step, payload, key) in enumerate(settlement.outcome.outputs):
        yield creation.Child(claim.run_id or "", step, claim.id, seq, claim.codec, payload, key)


def _announce(ended: Sequence[Settlement]) -> Steps[None]:
    """Publish staged outputs; stage those that came along."""
    along = [
        (s.claim.id, s.claim.fence, s.claim.codec, seq, str(uuid_utils.uuid7()), *output)
        for s in ended
        for seq, output in enumerate(s.outcome.outputs)
    ]
    if along:
        names = "producer_id fence codec seq job_id step payload limit_key"
        yield Call("staged_put", lists(names, along))
    totals = [(s.claim.id, s.claim.fence, s.claim.run_id, s.outcome.staged) for s in ended]
    yield Call("publication_add", lists("id fence run_id total", totals))


# After it


def kept(job_id: str, *, after: int, most: int) -> Steps[list[tuple[int, bytes]]]:
    """Read a page of the results of a job that gave several, in their order."""
    rows = yield Call("output_list", {"id": job_id, "after": after, "most": most})
    return [(seq, bytes(payload)) for seq, payload in rows]


def publish(run_ids: Sequence[str] | None = None, *, actor: str, most: int) -> Steps[int]:
    """Turn up to `most` published outputs, of any run or of these, into jobs; tell how many."""
    return (yield from publish_some(run_ids, actor=actor, most=most)).count


def publish_some(
    run_ids: Sequence[str] | None = None, *, actor: str, most: int
) -> Steps[PublishedOutputs]:
    """Turn up to `most` published outputs into jobs; tell also which gates have more to open."""
    chosen = None if run_ids is None else list(run_ids)
    taken = yield Call("publication_take", {"run_id": chosen, "most": most})
    locked = (yield from fanin.lock(row[2] for row in taken)) if taken else {}
    wanted = {run_id: run for run_id, run in locked.items() if run.live}
    if unwanted := sorted(locked.keys() - wanted):
        # Runs that take no more jobs.
        yield Call("publication_withdraw", {"run_id": unwanted})
    slices = list(_slices([row for row in taken if row[2] in wanted], most))
    if not slices:
        return PublishedOutputs(0)
    columns = lists("producer_id fence run_id low high", slices)
    yield Call("publication_publish", {**columns, "actor": actor})
    yield Call("publication_done", columns)
    yield Call("staged_remove", columns)
    progress = yield from fanin.advance(
        {run_id: wanted[run_id] for run_id in {piece[2] for piece in slices}}, actor=actor
    )
    yield Call("worker_hint")
    return PublishedOutputs(
        sum(high - low for *_, low, high in slices), frozenset(progress.unfinished)
    )


def _slices(taken: Rows, most: int) -> Iterator[tuple[str, int, str, int, int]]:
    left = most
    for producer_id, fence, run_id, total, published in taken:
        if left == 0:
            return
        high = min(total, published + left)
        left -= high - published
        yield producer_id, fence, run_id, published, high
