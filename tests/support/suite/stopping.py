"""Runs stop: cancelled, or failed while jobs are open."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from milepost import outcome
from milepost.records import NewJob, Template
from milepost.store import creation, fanin, jobs, runs
from tests.support.suite.store import BAD, GOOD, PROBLEM, Store, new_id, only

__all__ = ["StopSuite"]


class StopSuite:
    """Stopping is O(1), waits for what runs, and ends as it said (H-60)."""

    def test_cancel_answers_what_really_happened_h106(self, store: Store) -> None:
        store.worker()
        waiting, held, done = store.start([1]), store.start([0], hold=True), store.start([0])
        cancel = {"reason": "r", "actor": "me"}
        assert store.run(runs.cancel, held, **cancel) == "CANCELLED"
        assert store.run(runs.cancel, done, **cancel) == "SUCCEEDED"
        assert store.run(runs.cancel, waiting, **cancel) == "STOPPING"
        assert store.run(runs.cancel, waiting, **cancel) == "STOPPING"
        store.run(runs.cancel_rest, waiting, actor="m", most=9)
        assert store.run(runs.cancel, waiting, **cancel) == "CANCELLED"
        assert store.moves(waiting, "run") == ["create", "stop", "cancel"]

    @pytest.mark.parametrize("state", ["CREATED", "QUEUED", "RUNNING", "FINALIZING"])
    def test_a_run_can_be_cancelled_in_every_state_h4(self, store: Store, state: str) -> None:
        store.worker()
        run_id = store.start([1, 1], hold=state == "CREATED", reduce=True)
        if state == "RUNNING":
            store.claim()
        if state == "FINALIZING":
            for _ in range(2):
                store.settle((only(store.claim()), GOOD))
        assert store.run_state(run_id) == state
        assert store.run(runs.cancel, run_id, reason="r", actor="me") == "STOPPING"
        store.run(runs.cancel_rest, run_id, actor="m", most=9)
        store.run(jobs.reconcile, worker_id="w1", known={})
        run = store.run(runs.get, run_id)
        assert (run.state, run.ending) == ("CANCELLED", "CANCELLED")
        assert store.claim(9) == []

    def test_the_rest_is_cancelled_in_batches_from_every_waiting_state(self, store: Store) -> None:
        store.worker(lease=900)
        run_id = store.start([4, 2])
        a, b, c = store.claim(3)
        store.settle((a, outcome.later(60)), (b, outcome.retry(PROBLEM, after=60)))
        store.run(runs.cancel, run_id, reason="r", actor="me")
        sizes = [store.run(runs.cancel_rest, run_id, actor="m", most=2) for _ in range(4)]
        assert sizes == [2, 2, 1, 0]
        assert store.run_state(run_id) == "STOPPING"
        store.settle((c, GOOD))
        assert store.run_state(run_id) == "CANCELLED"
        assert store.run(runs.cancel_rest, run_id, actor="m", most=2) == 0

    def test_a_failing_run_that_is_cancelled_still_ends_failed(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2])
        a, b = store.claim(9)
        store.settle((a, BAD))
        assert store.run(runs.cancel, run_id, reason="r", actor="me") == "STOPPING"
        store.settle((b, GOOD))
        assert store.run_state(run_id) == "FAILED"

    def test_a_final_run_stays_final_i3(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1])
        store.finish(run_id)
        before = store.run(runs.get, run_id)
        store.run(runs.cancel, run_id, reason="r", actor="me")
        store.run(fanin.advance_one, run_id, actor="m")
        store.run(runs.cancel_rest, run_id, actor="m", most=9)
        assert store.run(runs.get, run_id) == before

    def test_cancel_and_the_last_end_at_once_agree_h106(self, store: Store) -> None:
        store.worker(lease=9000)
        for _ in range(10):
            run_id = store.start([1])
            claim = only(store.claim())
            with ThreadPoolExecutor(2) as threads:
                settled = threads.submit(store.settle, (claim, GOOD))
                answer = threads.submit(store.run, runs.cancel, run_id, reason="r", actor="me")
                assert settled.result() == {claim.id}
            final = store.run_state(run_id)
            assert (answer.result(), final) in [
                ("SUCCEEDED", "SUCCEEDED"),
                ("STOPPING", "CANCELLED"),
            ]

    def test_cancelling_a_child_counts_as_its_end(self, store: Store) -> None:
        run_id = store.start([1])
        [child] = store.run(jobs.listing, run_id=run_id)
        store.run(jobs.cancel, child.id, reason="r", actor="me")
        assert store.count(run_id) == (0, 0, 0, 1)
        assert store.run_state(run_id) == "FAILED"

    def test_a_submit_into_no_run_is_counted_nowhere(self, store: Store) -> None:
        store.run(creation.create, [NewJob(new_id(), b"", Template(kind="k"))])
        assert store.rows("SELECT 1 FROM step_count") == []
