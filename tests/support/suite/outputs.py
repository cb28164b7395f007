"""What a job yields becomes jobs of the next step: staged, published, or taken back."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from milepost import outcome
from milepost.outcome import Output
from milepost.records import Claim
from milepost.store import fanin, jobs, outputs, runs, timers
from tests.support.suite.store import BAD, GOOD, PROBLEM, Store, only

__all__ = ["OutputSuite"]


class OutputSuite:
    """What a job yields is visible when it succeeds, once, or never (H-56)."""

    def producer(self, store: Store, **step: object) -> tuple[str, Claim]:
        """Start a run with a producer and claim it."""
        run_id = store.start([1, 0], **step)  # type: ignore[arg-type]
        return run_id, only(store.claim(9))

    def test_outputs_become_jobs_of_their_step_with_what_is_pinned_on_it(
        self, store: Store
    ) -> None:
        store.worker()
        run_id, claim = self.producer(store, queue="q", retries=7, priority=3)
        store.settle((claim, store.stage(claim, 3)))
        assert store.run(outputs.publish, actor="m", most=9) == 3
        found = [job for job in store.run(jobs.listing, run_id=run_id) if job.step == 1][::-1]
        assert [(job.payload, job.ordinal) for job in found] == [(b"0", 0), (b"1", 1), (b"2", 2)]
        assert {(j.kind, j.queue, j.retries, j.priority) for j in found} == {("k1", "q", 7, 3)}
        assert {job.parent_id for job in found} == {claim.id}
        assert {job.state for job in found} == {"QUEUED"}
        assert store.rows("SELECT 1 FROM staged") == []

    def test_a_gate_stays_shut_while_outputs_are_on_their_way_h63(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2, 0])
        first, second = store.claim(9)
        store.settle((first, store.stage(first, 2)))
        assert store.run(outputs.publish, actor="m", most=9) == 2
        assert store.jobs_of(run_id, 1) == ["GATED"] * 2
        store.settle((second, store.stage(second, 1)))
        assert store.run(runs.get, run_id).current_step == 1
        assert store.jobs_of(run_id, 1) == ["QUEUED"] * 2
        assert store.run(outputs.publish, actor="m", most=9) == 1
        assert store.jobs_of(run_id, 1) == ["QUEUED"] * 3, "H-62: late children go straight on"

    def test_the_run_does_not_end_before_its_outputs_are_jobs(self, store: Store) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        store.settle((claim, store.stage(claim, 2)))
        assert store.run_state(run_id) == "RUNNING"
        assert store.run(fanin.advance_one, run_id, actor="m") == []
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.count(run_id, 1) == (0, 2, 0, 0)

    def test_outputs_for_the_same_step_are_done_before_it_ends(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1, 1])
        claim = only(store.claim())
        store.settle((claim, store.stage(claim, 2, step=0)))
        assert store.run(runs.get, run_id).current_step == 0
        store.run(outputs.publish, actor="m", most=9)
        assert store.jobs_of(run_id) == ["SUCCEEDED", "GATED", "QUEUED", "QUEUED"]
        assert store.finish(run_id) == "SUCCEEDED"

    @pytest.mark.parametrize("way", ["along", "staged"])
    def test_children_that_come_after_the_gate_opened_do_not_wait_at_it_h62(
        self, store: Store, way: str
    ) -> None:
        store.worker()
        run_id = store.start([1, 2])
        store.settle((only(store.claim()), GOOD))
        first, _ = store.claim(9)
        given = (Output(1, b"1"), Output(1, b"2"))
        together = way == "along"
        ended = outcome.succeeded(outputs=given) if together else store.stage(first, 2)
        store.settle((first, ended))
        store.run(outputs.publish, actor="m", most=9)
        assert store.jobs_of(run_id, 1) == ["SUCCEEDED", "RUNNING", "QUEUED", "QUEUED"]
        store.run(jobs.reconcile, worker_id="w1", known={})
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.count(run_id, 1) == (0, 4, 0, 0)

    def test_outputs_for_a_step_already_passed_are_done_before_the_end(self, store: Store) -> None:
        store.worker()
        run_id = store.start([0, 1])
        claim = only(store.claim())
        store.settle((claim, store.stage(claim, 1, step=0)))
        store.run(outputs.publish, actor="m", most=9)
        assert store.run_state(run_id) == "RUNNING"
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.count(run_id) == (0, 1, 0, 0)

    def test_publication_goes_in_batches_and_misses_nothing(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2, 0])
        claims = store.claim(9)
        store.settle(*[(claim, store.stage(claim, 5)) for claim in claims])
        sizes = [store.run(outputs.publish, actor="m", most=3) for _ in range(5)]
        assert sizes == [3, 3, 3, 1, 0]
        assert store.count(run_id, 1)[0] == 10

    def test_only_the_named_runs_outputs_are_published(self, store: Store) -> None:
        store.worker()
        (a, one), (b, two) = self.producer(store), self.producer(store)
        store.settle((one, store.stage(one, 1)), (two, store.stage(two, 1)))
        assert store.run(outputs.publish, [b], actor="m", most=9) == 1
        assert (store.count(a, 1)[0], store.count(b, 1)[0]) == (0, 1)

    def test_concurrent_publishers_publish_once(self, store: Store) -> None:
        store.worker()
        run_id = store.start([6, 0])
        claims = store.claim(9)
        store.settle(*[(claim, store.stage(claim, 20)) for claim in claims])
        with ThreadPoolExecutor(4) as threads:
            sizes = list(
                threads.map(lambda _: store.run(outputs.publish, actor="m", most=7), range(24))
            )
        assert sum(sizes) <= 120
        while store.run(outputs.publish, actor="m", most=50):
            pass
        assert store.count(run_id, 1)[0] == 120
        assert len(store.run(jobs.listing, run_id=run_id, most=500)) == 126

    @pytest.mark.parametrize("end", ["lose", "retry", "fail"])
    def test_a_failed_attempt_leaves_nothing_visible_h56(self, store: Store, end: str) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        store.stage(claim, 3)
        if end == "lose":
            store.lose_all()
        else:
            store.settle((claim, BAD if end == "fail" else outcome.retry(PROBLEM, after=0)))
        assert store.run(outputs.publish, actor="m", most=9) == 0
        assert store.count(run_id, 1) == (0, 0, 0, 0)
        store.run(outputs.sweep_staged, most=9)
        assert store.rows("SELECT 1 FROM staged") == []

    def test_a_retry_cannot_duplicate_h56(self, store: Store) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        late = store.stage(claim, 3)
        store.lose_all()
        store.worker("w2")
        store.run(timers.wake, actor="m", most=9)
        again = only(store.claim(worker="w2"))
        store.settle((again, store.stage(again, 2)))
        assert store.settle((claim, late)) == set()
        store.run(outputs.publish, actor="m", most=9)
        assert store.count(run_id, 1)[0] == 2
        store.run(outputs.sweep_staged, most=9)
        assert store.rows("SELECT 1 FROM staged") == []

    def test_staging_the_same_outputs_again_is_harmless(self, store: Store) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        store.stage(claim, 3)
        store.settle((claim, store.stage(claim, 4)))
        store.run(outputs.publish, actor="m", most=9)
        assert store.count(run_id, 1)[0] == 4

    def test_sweeping_leaves_what_is_still_wanted(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2, 0])
        running, ended = store.claim(9)
        store.stage(running, 1)
        store.settle((ended, store.stage(ended, 2)))
        store.run(outputs.sweep_staged, most=9)
        assert store.rows("SELECT count(*) FROM staged")[0][0] == 3
        store.settle((running, outcome.succeeded(staged=1)))
        store.run(outputs.publish, actor="m", most=9)
        assert store.count(run_id, 1)[0] == 3

    def test_sweeping_finds_every_attempt_that_left_something_a_few_at_a_time(
        self, store: Store
    ) -> None:
        store.worker()
        store.start([3, 0])
        first = store.claim(9)
        for claim in first:
            store.stage(claim, 2)
        store.settle(*((claim, outcome.retry(PROBLEM, after=0)) for claim in first))
        store.run(timers.wake, actor="m", most=9)
        for claim in store.claim(9):
            store.stage(claim, 2)
        left = []
        for _ in range(4):
            left.append(store.rows("SELECT count(*) FROM staged")[0][0])
            store.run(outputs.sweep_staged, most=4)
        assert left == [12, 8, 6, 6]

    def test_a_run_that_stops_takes_back_what_is_not_published(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2, 0])
        producer, running = store.claim(9)
        store.settle((producer, store.stage(producer, 3)))
        store.run(outputs.publish, actor="m", most=1)
        assert store.run(runs.cancel, run_id, reason="r", actor="me") == "STOPPING"
        store.settle((running, store.stage(running, 2)))
        assert store.run(outputs.publish, actor="m", most=9) == 0
        store.run(runs.cancel_rest, run_id, actor="m", most=9)
        assert (store.run_state(run_id), len(store.jobs_of(run_id, 1))) == ("CANCELLED", 1)
        assert store.run(outputs.publish, actor="m", most=9) == 0

    def test_a_run_cancelled_with_only_outputs_on_their_way_gets_none_of_them(
        self, store: Store
    ) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        store.settle((claim, store.stage(claim, 3)))
        assert store.run(runs.cancel, run_id, reason="r", actor="me") == "CANCELLED"
        store.run(outputs.sweep_staged, most=99)
        kept = store.rows("SELECT count(*) FROM staged")
        assert kept[0][0] == 3, "a run that resumes this one publishes them"
        assert store.run(outputs.publish, actor="m", most=9) == 0
        assert store.jobs_of(run_id, 1) == []

    def test_a_run_that_fails_with_only_outputs_on_their_way_gets_none_of_them(
        self, store: Store
    ) -> None:
        store.worker()
        run_id = store.start([2, 0])
        producer, failing = store.claim(9)
        store.settle((producer, store.stage(producer, 3)))
        store.settle((failing, BAD))
        assert store.run_state(run_id) == "FAILED"
        store.run(outputs.sweep_staged, most=99)
        kept = store.rows("SELECT count(*) FROM staged")
        assert kept[0][0] == 3, "a run that resumes this one publishes them"
        assert store.run(outputs.publish, actor="m", most=9) == 0
        assert store.jobs_of(run_id, 1) == []

    def test_a_producer_that_ends_a_stopping_run_publishes_nothing(self, store: Store) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        ended = store.stage(claim, 3)
        assert store.run(runs.cancel, run_id, reason="r", actor="me") == "STOPPING"
        store.settle((claim, ended))
        assert (store.state(claim.id), store.run_state(run_id)) == ("SUCCEEDED", "CANCELLED")
        assert store.run(outputs.publish, actor="m", most=9) == 0
        assert store.jobs_of(run_id, 1) == []

    def test_publishing_and_stopping_at_once_leave_no_job_behind(self, store: Store) -> None:
        store.worker(lease=9000)
        for _ in range(8):
            run_id = store.start([1, 0])
            claim = only(store.claim(9))
            store.settle((claim, store.stage(claim, 30)))
            with ThreadPoolExecutor(3) as threads:
                work = [threads.submit(store.run, outputs.publish, actor="m", most=9) for _ in "ab"]
                stop = threads.submit(store.run, runs.cancel, run_id, reason="r", actor="me")
                assert stop.result() in ("STOPPING", "CANCELLED")
                assert all(piece.result() >= 0 for piece in work)
            assert store.run(outputs.publish, actor="m", most=99) == 0
            store.run(runs.cancel_rest, run_id, actor="m", most=99)
            assert store.run_state(run_id) == "CANCELLED"
            assert (
                store.rows(f"SELECT 1 FROM job WHERE run_id = '{run_id}' AND state = 'QUEUED'")
                == []
            )
