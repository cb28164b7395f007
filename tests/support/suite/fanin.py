"""Runs move on: fan-in, gates, the reducer and what a failure means."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from milepost import outcome
from milepost.store import fanin, jobs, runs, timers
from tests.support.suite.store import BAD, GOOD, Store, only

__all__ = ["FanInSuite"]


class FanInSuite:
    """The transaction that ends the last job of a step moves the run, once (H-57, H-58)."""

    def test_zero_children_are_done_at_once_h61(self, store: Store) -> None:
        for counts in ([], [0], [0, 0]):
            run_id = store.start(counts)
            run = store.run(runs.get, run_id)
            assert (run.state, store.moves(run_id, "run")) == ("SUCCEEDED", ["create", "finish"])
            assert run.finished_at is not None

    def test_zero_children_are_reduced_to_nothing_h61(self, store: Store) -> None:
        store.worker()
        run_id = store.start([0, 0], reduce=True)
        assert store.run_state(run_id) == "FINALIZING"
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.moves(run_id, "run") == ["create", "finalize", "finish"]

    def test_one_child_is_enough(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1])
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.moves(run_id, "run") == ["create", "begin", "finish"]

    def test_a_gate_opens_when_the_step_before_has_no_open_job_i12(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2, 3])
        first, second = store.claim(9)
        store.settle((first, GOOD))
        assert store.jobs_of(run_id, 1) == ["GATED"] * 3
        store.settle((second, outcome.later(1)))
        assert store.jobs_of(run_id, 1) == ["GATED"] * 3, "H-64: a sleeper is open"
        store.advance(2)
        store.run(timers.wake, actor="m", most=9)
        store.settle((only(store.claim(9)), GOOD))
        run = store.run(runs.get, run_id)
        assert (run.state, run.current_step) == ("RUNNING", 1)
        assert store.jobs_of(run_id, 1) == ["QUEUED"] * 3
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.moves(run_id, "run") == ["create", "begin", "advance", "finish"]

    def test_all_last_children_in_one_batch_advance_once_i11(self, store: Store) -> None:
        store.worker()
        run_id = store.start([4, 4, 0, 2], reduce=True)
        assert store.finish(run_id) == "SUCCEEDED"
        moves = store.moves(run_id, "run")
        assert moves == ["create", "begin", *["advance"] * 3, "finalize", "finish"]

    def test_an_ungated_step_runs_beside_the_one_before(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1, 1], gated=False, child={"state": "QUEUED"})
        later = next(claim for claim in store.claim(9) if claim.step == 1)
        store.settle((later, GOOD))
        assert store.run(runs.get, run_id).current_step == 0
        store.run(jobs.reconcile, worker_id="w1", known={})
        assert store.finish(run_id) == "SUCCEEDED"

    def test_an_empty_first_step_lets_the_next_through_h61(self, store: Store) -> None:
        store.worker()
        run_id = store.start([0, 2])
        assert store.jobs_of(run_id) == ["QUEUED"] * 2
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.moves(run_id, "run") == ["create", "begin", "advance", "finish"]

    def test_a_gate_on_the_first_step_is_open(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1], gated=True, hold=True)
        store.run(runs.seal, run_id, actor="me")
        assert store.finish(run_id) == "SUCCEEDED"

    def test_what_does_not_fit_through_the_gate_follows(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1, 5])
        at_once, fanin.AT_ONCE = fanin.AT_ONCE, 2
        try:
            store.settle((only(store.claim()), GOOD))
        finally:
            fanin.AT_ONCE = at_once
        assert store.jobs_of(run_id, 1) == ["QUEUED"] * 2 + ["GATED"] * 3
        assert [store.run(runs.open_gates, [run_id], actor="m", most=2) for _ in "abc"] == [2, 1, 0]
        assert store.finish(run_id) == "SUCCEEDED"

    def test_a_polling_steps_jobs_sleep_when_the_gate_opens(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1, 1], poll_us=5_000_000)
        store.settle((only(store.claim()), GOOD))
        assert store.jobs_of(run_id, 1) == ["WAITING"]
        store.advance(6)
        assert store.finish(run_id) == "SUCCEEDED"

    def test_the_reducer_is_a_leased_job_of_its_own_h34(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2], reduce=True)
        store.settle(*[(claim, GOOD) for claim in store.claim(9)])
        assert store.run_state(run_id) == "FINALIZING"
        reducer = only(store.claim(9))
        assert (reducer.kind, reducer.step, reducer.run_id) == ("reduce", 1, run_id)
        store.lose_all()
        assert store.run_state(run_id) == "FINALIZING"
        store.worker("w2")
        assert store.finish(run_id, worker="w2") == "SUCCEEDED"
        assert store.moves(run_id, "run").count("finalize") == 1

    def test_a_failed_reducer_fails_the_run(self, store: Store) -> None:
        store.worker()
        run_id = store.start([0], reduce=True)
        store.settle((only(store.claim()), BAD))
        run = store.run(runs.get, run_id)
        assert (run.state, run.cause) == ("FAILED", "finalizer")

    def test_fail_fast_stops_at_the_first_failure_and_waits_for_the_running_h59_h60(
        self, store: Store
    ) -> None:
        store.worker()
        run_id = store.start([3, 1])
        first, second = store.claim(2)
        store.settle((first, BAD))
        assert store.run_state(run_id) == "STOPPING"
        assert store.claim(9) == []
        assert store.run(runs.cancel_rest, run_id, actor="m", most=9) == 2
        assert store.run_state(run_id) == "STOPPING"
        store.settle((second, GOOD))
        run = store.run(runs.get, run_id)
        assert (run.state, run.cause) == ("FAILED", "policy")
        assert store.jobs_of(run_id) == ["FAILED", "SUCCEEDED", "CANCELLED", "CANCELLED"]

    def test_fail_fast_with_nothing_else_open_fails_at_once_h16(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2])
        a, b = store.claim(9)
        store.settle((a, GOOD), (b, BAD))
        assert store.moves(run_id, "run") == ["create", "begin", "fail"]

    def test_collecting_waits_for_all_and_then_fails_h59(self, store: Store) -> None:
        store.worker()
        run_id = store.start([3, 1], fail_fast=False)
        a, b, c = store.claim(9)
        store.settle((a, BAD), (b, GOOD))
        assert store.run_state(run_id) == "RUNNING"
        store.settle((c, GOOD))
        assert store.run_state(run_id) == "STOPPING", "the gated job is still open"
        store.run(runs.cancel_rest, run_id, actor="m", most=9)
        assert store.run_state(run_id) == "FAILED"

    @pytest.mark.parametrize(("bad", "state"), [(1, "SUCCEEDED"), (2, "FAILED")])
    def test_a_tolerated_share_of_failures_passes_the_gate(
        self, store: Store, bad: int, state: str
    ) -> None:
        store.worker()
        run_id = store.start([4, 0], fail_fast=False, tolerance=0.25)
        claims = store.claim(9)
        store.settle(*[(c, BAD if n < bad else GOOD) for n, c in enumerate(claims)])
        assert store.run_state(run_id) == state

    def test_a_move_by_hand_is_counted_once_and_seen_by_the_next_look(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2], fail_fast=False, tolerance=1.0)
        by_hand, other = store.claim(2)
        with store.raw() as hand:
            hand.execute(
                "UPDATE job SET state = 'FAILED', move = 'fail', version = version + 1,"
                f" worker_id = NULL WHERE id = '{by_hand.id}'"
            )
        assert store.count(run_id) == (1, 0, 1, 0)
        with store.raw() as hand:
            hand.execute(
                "UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1,"
                f" worker_id = NULL WHERE id = '{other.id}'"
            )
        assert store.run_state(run_id) == "RUNNING"
        assert store.run(fanin.advance_one, run_id, actor="m") == ["finish"]
        assert store.run(fanin.advance_one, run_id, actor="m") == [], "H-101"

    def test_spread_counters_add_up(self, store: Store) -> None:
        store.worker()
        run_id = store.start([40, 17], slots=16)
        assert store.count(run_id) == (40, 0, 0, 0)
        claims = store.claim(40)
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda c: store.settle((c, GOOD)), claims))
        assert (store.count(run_id), store.count(run_id, 1)[0]) == ((0, 40, 0, 0), 17)
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.moves(run_id, "run").count("advance") == 1

    def test_two_last_children_at_once_end_the_run_once_h58(self, store: Store) -> None:
        store.worker(lease=9000)
        for _ in range(12):
            run_id = store.start([2, 1], slots=2)
            claims = store.claim(2)
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(lambda c: store.settle((c, GOOD)), claims))
            assert store.moves(run_id, "run") == ["create", "begin", "advance"]
            assert store.finish(run_id) == "SUCCEEDED"

    def test_one_batch_may_end_many_runs(self, store: Store) -> None:
        store.worker()
        ids = [store.start([1]) for _ in range(5)]
        store.settle(*[(claim, GOOD) for claim in store.claim(9)])
        assert [store.run_state(run_id) for run_id in ids] == ["SUCCEEDED"] * 5
