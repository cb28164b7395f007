"""Runs come into being: whole, in pieces, or not at all."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import msgspec
import pytest

from milepost.errors import IllegalMove, Invalid
from milepost.records import NewJob, NewRun, Template
from milepost.store import fanin, jobs, runs, timers
from tests.support.suite.store import Store, new_id, plan

__all__ = ["FillSuite"]


class FillSuite:
    """A run comes into being whole, or not at all (H-49)."""

    def test_a_run_its_steps_and_its_jobs_are_born_together(self, store: Store) -> None:
        run_id = store.start([2, 3], reduce=True)
        run = store.run(runs.get, run_id)
        assert (run.state, run.kind, run.current_step, run.version) == ("QUEUED", "batch", 0, 1)
        assert [store.count(run_id, n)[0] for n in range(3)] == [2, 3, 0]
        assert store.jobs_of(run_id) == ["QUEUED"] * 2 + ["GATED"] * 3
        steps = store.run(fanin.steps, run_id)
        assert [(s.name, s.role, s.gated, s.opened) for s in steps] == [
            ("step 0", "work", False, True),
            ("step 1", "work", True, False),
            ("reduce", "reduce", False, True),
        ]

    def test_a_bad_job_leaves_no_run_behind(self, store: Store) -> None:
        run_id = new_id()
        bad = NewJob(new_id(), b"", Template(kind="k", run_id=run_id, step=0, priority=11))
        with pytest.raises(Invalid):
            store.run(runs.create, NewRun(id=run_id, kind="b"), plan(1), [bad])
        assert (store.run(runs.listing), store.run(jobs.listing)) == ([], [])

    def test_a_held_run_is_filled_in_pieces_and_sealed_once(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1, 1], hold=True)
        more = [
            NewJob(new_id(), b"", Template(kind="k0", run_id=run_id, step=0, state="CREATED"), n)
            for n in (1, 2)
        ]
        store.run(runs.add, run_id, more)
        assert (store.run_state(run_id), store.claim(9)) == ("CREATED", [])
        assert store.run(runs.seal, run_id, actor="me") is True
        assert store.run(runs.seal, run_id, actor="me") is False
        assert store.jobs_of(run_id, 0) == ["QUEUED"] * 3
        assert store.jobs_of(run_id, 1) == ["GATED"]
        with pytest.raises(Invalid):
            store.run(runs.add, run_id, [NewJob(new_id(), b"", more[0].template)])
        assert store.count(run_id) == (3, 0, 0, 0)
        assert store.finish(run_id) == "SUCCEEDED"

    def test_what_does_not_fit_into_the_seal_is_released_after_it(self, store: Store) -> None:
        run_id = store.start([3], hold=True)
        at_once, fanin.AT_ONCE = fanin.AT_ONCE, 2
        try:
            store.run(runs.seal, run_id, actor="me")
        finally:
            fanin.AT_ONCE = at_once
        assert store.jobs_of(run_id) == ["QUEUED", "QUEUED", "CREATED"]
        assert [store.run(runs.release_held, [run_id], actor="m", most=9) for _ in "ab"] == [1, 0]

    def test_held_jobs_of_a_run_start_at_their_own_time(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1], hold=True)
        template = Template(kind="k0", run_id=run_id, step=0, state="CREATED")
        minute = msgspec.structs.replace(template, delay_us=60_000_000)
        dated = msgspec.structs.replace(template, due_at=datetime(2999, 1, 1, tzinfo=UTC))
        over = msgspec.structs.replace(template, due_at=datetime(1999, 1, 1, tzinfo=UTC))
        new = [NewJob(new_id(), b"", told, 1) for told in (minute, dated, over)]
        store.run(runs.add, run_id, new)
        store.advance(20)
        store.run(runs.submit, run_id, actor="me")

        assert store.jobs_of(run_id) == ["QUEUED", "WAITING", "WAITING", "QUEUED"]
        assert store.run(jobs.get, new[1].id).due_at == dated.due_at
        store.advance(39)
        assert store.run(timers.wake, actor="m", most=9) == 0
        store.advance(1)  # it counts from when the job was stored
        assert store.run(timers.wake, actor="m", most=9) == 1
        assert [store.state(job.id) for job in new] == ["QUEUED", "WAITING", "QUEUED"]

    def test_jobs_of_a_step_that_polls_sleep_from_the_submit_on(self, store: Store) -> None:
        run_id = store.start([1], hold=True, poll_us=60_000_000)
        store.advance(40)
        store.run(runs.submit, run_id, actor="me")
        store.advance(59)
        assert store.run(timers.wake, actor="m", most=9) == 0
        assert store.jobs_of(run_id) == ["WAITING"]
        store.advance(2)
        assert store.run(timers.wake, actor="m", most=9) == 1
        assert store.jobs_of(run_id) == ["QUEUED"]

    def test_a_held_run_without_jobs_is_done_when_sealed_h61(self, store: Store) -> None:
        run_id = store.start([0], hold=True)
        assert store.run_state(run_id) == "CREATED"
        store.run(runs.seal, run_id, actor="me")
        assert store.moves(run_id, "run") == ["create", "seal", "finish"]

    def test_a_forgotten_hold_is_found_and_expires_h107(self, store: Store) -> None:
        held = {"hold_us": 3_600_000_000}
        forgotten, sealed = (store.start([1], hold=True, run=held) for _ in "ab")
        store.start([1], hold=True)
        store.run(runs.seal, sealed, actor="me")
        assert store.run(runs.forgotten, most=9) == []
        store.advance(3601)
        assert store.run(runs.forgotten, most=9) == [forgotten]
        assert store.run(runs.expire_held, forgotten, actor="m") is True
        store.run(runs.cancel_rest, forgotten, actor="m", most=9)
        run = store.run(runs.get, forgotten)
        assert (run.state, run.cause) == ("FAILED", "deadline")
        assert store.run(runs.expire_held, forgotten, actor="m") is False
        with pytest.raises(IllegalMove, match=rf"{forgotten} is FAILED"):
            store.run(runs.submit, forgotten, actor="me")
        store.run(runs.submit, sealed, actor="me")  # once more does no harm

    def test_a_hold_lasts_from_the_last_add_h107(self, store: Store) -> None:
        run_id = store.start([1], hold=True, run={"hold_us": 3_600_000_000})
        created = Template(kind="k0", run_id=run_id, step=0, state="CREATED")
        store.advance(3000)
        store.run(runs.add, run_id, [NewJob(new_id(), b"", created, ordinal=1)])
        store.advance(3000)
        assert store.run(runs.forgotten, most=9) == []
        assert store.run(runs.expire_held, run_id, actor="m") is False
        store.advance(601)
        assert store.run(runs.forgotten, most=9) == [run_id]
        # What is added between the look and the end keeps it.
        store.run(runs.add, run_id, [NewJob(new_id(), b"", created, ordinal=2)])
        assert store.run(runs.expire_held, run_id, actor="m") is False
        store.advance(3601)
        assert store.run(runs.expire_held, run_id, actor="m") is True

    def test_the_loser_of_a_unique_key_gets_the_winners_run(self, store: Store) -> None:
        store.worker()
        first = store.start([1], run={"unique_key": "x"})
        assert store.start([1], run={"unique_key": "x"}) == first
        assert len(store.run(jobs.listing)) == 1
        assert store.finish(first) == "SUCCEEDED"
        assert store.start([1], run={"unique_key": "x"}) != first

    def test_concurrent_runs_of_one_key_make_one_run(self, store: Store) -> None:
        keyed = {"unique_key": "x"}
        with ThreadPoolExecutor(6) as threads:
            ids = list(threads.map(lambda _: store.start([2], run=keyed), range(18)))
        assert len(set(ids)) == 1
        assert len(store.run(jobs.listing)) == 2

    def test_adding_while_a_run_is_sealed_adds_all_or_nothing(self, store: Store) -> None:
        store.worker()
        for _ in range(6):
            run_id = store.start([1], hold=True)
            created = Template(kind="k0", run_id=run_id, step=0, state="CREATED")
            with ThreadPoolExecutor(2) as threads:
                new = [NewJob(new_id(), b"", created, ordinal=number) for number in range(1, 9)]
                added = threads.submit(store.run, runs.add, run_id, new)
                sealed = threads.submit(store.run, runs.seal, run_id, actor="me")
                assert sealed.result() is True
            refused = isinstance(added.exception(), Invalid)
            assert store.count(run_id)[0] == (1 if refused else 9)
            assert store.finish(run_id) == "SUCCEEDED"
