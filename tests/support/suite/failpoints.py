"""A crash at every point of every operation: nothing half done, and doing it again converges."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from milepost import outcome
from milepost.cron import CronLine, MissedPolicy
from milepost.errors import IllegalMove, Unavailable
from milepost.records import NewJob, NewRun, Template
from milepost.store import (
    creation,
    failpoint,
    failures,
    jobs,
    outputs,
    retention,
    runs,
    schedules,
    timers,
    workers,
)
from milepost.store.driver import Steps
from tests.support.suite.store import PROBLEM, Store, new_id, plan

__all__ = ["FailpointSuite"]

DAY = 86_400
KEEP = retention.Keep(30 * DAY, 30 * DAY)


class Tripwire(dict[str, Callable[[], None]]):
    """Stands in for the fail points: notes every one that is reached, fails at one of them."""

    def __init__(self, turn: int) -> None:
        super().__init__({"": failpoint.cut})
        self.turn = turn
        self.reached: list[str] = []

    def get(self, point: str, default: Any = None) -> Any:
        """Look a point up as the drivers do."""
        self.reached.append(point)
        return failpoint.cut if len(self.reached) == self.turn else default


@contextmanager
def tripped(turn: int) -> Iterator[Tripwire]:
    """Fail at the turn-th point that is reached."""
    before, wire = failpoint.active, Tripwire(turn)
    failpoint.active = wire
    try:
        yield wire
    finally:
        failpoint.active = before


@dataclass(frozen=True)
class Story:
    """Something that may be interrupted anywhere: what comes before, the act, what is true after.

    `act` is done again after the crash, so it is also what a caller would do who heard nothing.
    """

    before: Callable[[Store], Any]
    act: Callable[[Store, Any], Any]
    after: Callable[[Store, Any], bool]


def _jobs(count: int = 3, **options: Any) -> list[NewJob]:
    shared = Template(kind="k", queue=new_id(), **options)
    return [NewJob(new_id(), b"x", shared, ordinal=number) for number in range(count)]


def _create(store: Store, new: list[NewJob]) -> None:
    with suppress(IllegalMove):
        store.run(creation.create, new)


def _all_there(store: Store, new: list[NewJob]) -> bool:
    return {job.id for job in new} == set(store.run(jobs.find, [job.id for job in new]))


def _create_run(store: Store, run_id: str) -> None:
    child = Template(kind="k0", queue=run_id, run_id=run_id, step=0)
    new = [NewJob(new_id(), b"x", child, ordinal=number) for number in range(2)]
    with suppress(IllegalMove):
        store.run(runs.create, NewRun(id=run_id, kind="b"), plan(2), new)


def _queued(store: Store) -> str:
    return store.create(queue=new_id())[0]


def _queue_of(store: Store, job_id: str) -> str:
    return store.run(jobs.get, job_id).queue


def _worker(store: Store) -> str:
    return store.worker(new_id(), lease=9000)


def _unclaimed(store: Store) -> tuple[str, str]:
    run_id = store.start([1], child={"queue": new_id()})
    return _worker(store), store.run(jobs.listing, run_id=run_id)[0].id


def _claim_again(store: Store, before: tuple[str, str]) -> None:
    worker, job_id = before
    store.run(jobs.reconcile, worker_id=worker, known={})
    store.run(timers.wake, actor="m", most=99)
    assert store.claim(9, worker=worker, queues=[_queue_of(store, job_id)])


def _running(store: Store, counts: tuple[int, ...] = (2, 1), **step: Any) -> Any:
    worker, queue = _worker(store), new_id()
    run_id = store.start(counts, child={"queue": queue}, **step)
    return run_id, store.claim(counts[0], worker=worker, queues=[queue])


def _settle_last(store: Store, before: Any) -> None:
    _, (a, b) = before
    store.settle((a, outcome.succeeded(b"1", usage={"n": 1})), (b, outcome.succeeded(b"2")))


def _settle_mixed(store: Store, before: Any) -> None:
    _, (a, b, c, d) = before
    store.settle(
        (a, outcome.succeeded(usage={"n": 1})), (b, outcome.failed(PROBLEM)),
        (c, outcome.retry(PROBLEM, after=9)), (d, outcome.later(None)),
    )  # fmt: skip


def _settled_mixed(store: Store, before: Any) -> bool:
    run_id, claims = before
    store.run(runs.get, run_id)
    states = [store.state(claim.id) for claim in claims]
    noted = [len(store.run(failures.attempts, claim.id)) for claim in claims]
    used = store.rows(f"SELECT count(*) FROM usage WHERE job_id = '{claims[0].id}'")[0][0]
    return (states, noted, used) == (
        ["SUCCEEDED", "FAILED", "RETRYING", "QUEUED"], [0, 1, 1, 0], 1,
    )  # fmt: skip


def _signalled(store: Store) -> Any:
    before = _running(store, (4, 0), fail_fast=False)
    store.run(jobs.signal, before[1][3].id, signal_id=new_id(), data=b"s", actor=None)
    return before


def _produce(store: Store, before: Any) -> None:
    run_id, [claim] = before
    if store.state(claim.id) == "RUNNING":
        store.settle((claim, store.stage(claim, 3)))
    store.run(outputs.publish, [run_id], actor="m", most=2)
    store.run(outputs.publish, [run_id], actor="m", most=9)


def _stopping(store: Store) -> Any:
    run_id, [claim] = _running(store, (1, 3))
    store.settle((claim, outcome.later(60)))
    return run_id


def _cancel_run(store: Store, run_id: str) -> None:
    store.run(runs.cancel, run_id, reason="r", actor="me")
    store.run(runs.cancel_rest, run_id, actor="m", most=3)
    store.run(runs.cancel_rest, run_id, actor="m", most=9)


def _held(store: Store) -> str:
    return store.start([2, 1], hold=True, child={"queue": new_id()})


def _orphaned(store: Store) -> Any:
    queue, worker = new_id(), store.worker(new_id(), lease=5)
    run_id = store.start([1], child={"queue": queue, "poison_limit": 1})
    store.claim(worker=worker, queues=[queue])
    store.advance(6)
    return run_id


def _recover(store: Store, _: Any) -> None:
    store.run(workers.bury, most=99)
    store.run(timers.lose, actor="m", most=99)


def _late(store: Store) -> str:
    run_id = store.start([1], child={"queue": new_id(), "deadline_us": 1_000_000})
    store.advance(2)
    return run_id


def _signal(store: Store, before: tuple[str, str]) -> None:
    job_id, signal_id = before
    store.run(jobs.signal, job_id, signal_id=signal_id, data=b"s", actor=None)


def _sleeper(store: Store) -> tuple[str, str]:
    [job_id] = store.create(queue=new_id(), state="WAITING")
    return job_id, new_id()


def _finished(store: Store) -> str:
    job_id = _queued(store)
    store.run(jobs.cancel, job_id, reason="r", actor=None)
    return job_id


def _due(store: Store) -> str:
    """Declare a schedule of a kind of its own, whose slot has come."""
    name = new_id()
    store.run(
        schedules.declare,
        [
            schedules.NewSchedule(
                name=name,
                line=CronLine("0 0 1 1 *"),
                missed=MissedPolicy.LAST,
                template=Template(kind=name),
                payload=b"x",
            )
        ],
    )
    store.advance(366 * DAY)
    return name


def _fired_once(store: Store, name: str) -> bool:
    fired = [s.fired for s in store.run(schedules.listing) if s.name == name]
    return (fired, len(store.run(jobs.listing, kind=name))) == ([1], 1)


def _old_job(store: Store) -> str:
    job_id = _finished(store)
    store.advance(31 * DAY)
    return job_id


def _old_run(store: Store) -> str:
    run_id = store.start([2, 1], child={"queue": new_id()})
    _cancel_run(store, run_id)
    store.advance(31 * DAY)
    return run_id


def _forget_jobs(store: Store, _: Any) -> None:
    _walk(store, retention.forget_jobs)


def _walk(store: Store, look: Callable[..., Steps[retention.RetentionPage]]) -> None:
    after: str | None = retention.FIRST
    while after is not None:
        after = store.run(look, KEEP, after=after, most=99).after


def _old_history(store: Store) -> str:
    worker, job_id = _worker(store), _queued(store)
    [claim] = store.claim(worker=worker, queues=[_queue_of(store, job_id)])
    store.settle((claim, outcome.later(0)))
    store.advance(91 * DAY)
    return job_id


def _sum_up(store: Store, _: Any) -> None:
    _walk(store, retention.sum_up)


def _turn_weeks(store: Store, _: Any) -> None:
    store.run(retention.make_weeks)
    while store.run(retention.drop_week, KEEP):
        pass


def _forget_run(store: Store, run_id: str) -> None:
    while store.run(retention.forget_chain, run_id, KEEP, most=2):
        pass


def _gone(store: Store, subject_id: str, *, table: str) -> bool:
    left = [
        *store.rows(f"SELECT 1 FROM {table} WHERE id = '{subject_id}'"),
        *store.rows(f"SELECT 1 FROM job WHERE run_id = '{subject_id}'"),
        *store.rows(f"SELECT 1 FROM journal WHERE subject_id = '{subject_id}'"),
    ]
    return left == []


def _run_is(store: Store, before: Any, *, state: str, moves: list[str]) -> bool:
    run_id = before if isinstance(before, str) else before[0]
    return store.run_state(run_id) == state and store.moves(run_id, "run") == moves


def _job_is(store: Store, before: Any, *, state: str) -> bool:
    return store.state(before if isinstance(before, str) else before[0]) == state


STORIES = {
    "create": Story(lambda _: _jobs(), _create, _all_there),
    "create unique": Story(
        lambda _: [NewJob(new_id(), b"", Template(kind=new_id()), unique_key="x")],
        lambda store, new: store.run(creation.create, new),
        _all_there,
    ),
    "submit": Story(
        lambda store: store.create(state="CREATED")[0],
        lambda store, job_id: store.run(creation.submit, [job_id], actor=None),
        partial(_job_is, state="QUEUED"),
    ),
    "create run": Story(
        lambda _: new_id(), _create_run, partial(_run_is, state="QUEUED", moves=["create"])
    ),
    "seal": Story(
        _held,
        lambda store, run_id: store.run(runs.seal, run_id, actor=None),
        lambda store, run_id: store.jobs_of(run_id) == ["QUEUED", "QUEUED", "GATED"],
    ),
    "claim": Story(
        _unclaimed, _claim_again, lambda store, before: store.state(before[1]) == "RUNNING"
    ),
    "settle the last": Story(
        _running, _settle_last,
        partial(_run_is, state="RUNNING", moves=["create", "begin", "advance"]),
    ),
    "settle mixed": Story(_signalled, _settle_mixed, _settled_mixed),
    "stage and publish": Story(
        lambda store: _running(store, (1, 0)), _produce,
        lambda store, before: store.count(before[0], 1) == (3, 0, 0, 0),
    ),
    "cancel run": Story(
        _stopping, _cancel_run,
        partial(_run_is, state="CANCELLED", moves=["create", "begin", "stop", "cancel"]),
    ),
    "cancel": Story(
        _queued,
        lambda store, job_id: store.run(jobs.cancel, job_id, reason="r", actor=None),
        partial(_job_is, state="CANCELLED"),
    ),
    "ask to stop": Story(
        _running,
        lambda store, before: store.run(jobs.cancel, before[1][0].id, reason="r", actor=None),
        lambda store, before: store.moves(before[1][0].id) == ["create", "claim", "note"],
    ),
    "recover": Story(
        _orphaned, _recover, partial(_run_is, state="FAILED", moves=["create", "begin", "fail"])
    ),
    "expire": Story(
        _late, lambda store, _: store.run(timers.expire, actor="m", most=99),
        partial(_run_is, state="FAILED", moves=["create", "fail"]),
    ),
    "signal": Story(_sleeper, _signal, partial(_job_is, state="QUEUED")),
    "erase": Story(
        _finished,
        lambda store, job_id: store.run(jobs.erase, job_id, actor=None),
        lambda store, job_id: store.run(jobs.get, job_id).payload is None,
    ),
    "reject": Story(
        _queued,
        lambda store, job_id: store.run(jobs.reject, job_id, reason="r", actor="m"),
        partial(_job_is, state="FAILED"),
    ),
    "fire": Story(_due, lambda store, name: store.run(schedules.fire, name), _fired_once),
    "let a job leave": Story(_old_job, _forget_jobs, partial(_gone, table="job")),
    "let a run leave": Story(_old_run, _forget_run, partial(_gone, table="run")),
    "sum up": Story(
        _old_history, _sum_up, lambda store, job_id: store.moves(job_id) == ["snapshot"]
    ),
    "turn weeks": Story(
        _old_history, _turn_weeks,
        lambda store, job_id: store.moves(job_id) == ["create", "claim", "later"],
    ),
}  # fmt: skip


class FailpointSuite:
    """Fail points stand before and after each statement, and between the commit and the reply."""

    def test_every_operation_reaches_its_points_in_order(self, store: Store) -> None:
        with tripped(0) as wire:
            store.create()
        assert wire.reached == [
            *("before:job_create", "after:job_create", "before:commit", "after:commit"),
        ]

    def test_a_point_is_switched_by_name_and_off_again(self, store: Store) -> None:
        with failpoint.armed("before:commit", failpoint.cut), pytest.raises(Unavailable):
            store.start([1])
        assert (store.run(runs.listing), store.run(jobs.listing)) == ([], [])
        with failpoint.armed("after:commit", failpoint.cut), pytest.raises(Unavailable):
            store.start([1])
        assert len(store.run(runs.listing)) == len(store.run(jobs.listing)) == 1
        store.start([1])
        assert len(store.run(runs.listing)) == 2

    @pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
    def test_a_crash_at_any_point_leaves_nothing_half_done_and_again_converges_i7_i8(
        self, store: Store, story: Story
    ) -> None:
        turn, reached = 0, [""]
        while turn <= len(reached):
            context = story.before(store)
            with tripped(turn) as wire, suppress(Unavailable):
                story.act(store, context)
            reached = wire.reached if turn == 0 else reached
            assert len(wire.reached) >= turn, "every point is tried"
            assert store.problems() == []
            story.act(store, context)
            assert story.after(store, context), f"after a crash at {wire.reached[-1]}"
            turn += 1
        assert turn > 4
