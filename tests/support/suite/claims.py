"""Who gets which job, and who gets nothing."""

from concurrent.futures import ThreadPoolExecutor

from milepost import outcome
from milepost.lifecycle import WorkerState
from milepost.store import creation, jobs, queues, runs, timers, workers
from milepost.store.jobs import Line
from tests.support.suite.store import PROBLEM, Store

__all__ = ["ClaimSuite"]


class ClaimSuite:
    """A claim is the only way to run, and gives each job to one worker."""

    def test_a_claim_carries_all_that_the_attempt_needs(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create(
            kind_version=3, retries=5, timeout_us=9, policy="p", trace="t", channel="c", tenant="a",
            deadline_us=60_000_000,
        )  # fmt: skip
        [claim] = store.claim()
        assert (claim.id, claim.kind, claim.kind_version, claim.fence) == (job_id, "k", 3, 1)
        assert (claim.payload, claim.codec, claim.retries, claim.timeout_us) == (b"0", "json", 5, 9)
        assert (claim.policy, claim.trace, claim.channel, claim.tenant) == ("p", "t", "c", "a")
        assert 0 < (claim.remaining_us or 0) <= 60_000_000
        job = store.run(jobs.get, job_id)
        assert (job.state, job.worker_id, job.fence, job.attempt) == ("RUNNING", "w1", 1, 1)
        assert job.started_at is not None

    def test_first_in_first_out_within_a_priority_h112(self, store: Store) -> None:
        store.worker()
        ids = [store.create()[0] for _ in range(6)]
        assert [claim.id for claim in store.claim(2) + store.claim(9)] == ids

    def test_a_larger_priority_comes_first_h97(self, store: Store) -> None:
        store.worker()
        by_priority = {p: store.create(priority=p)[0] for p in (0, 9, 4, 5)}
        assert [claim.id for claim in store.claim(9)] == [by_priority[p] for p in (9, 5, 4, 0)]

    def test_a_job_that_comes_back_stands_at_the_end_of_its_line(self, store: Store) -> None:
        store.worker()
        first, second = store.create(2)
        [claim] = store.claim()
        store.settle((claim, outcome.released()))
        store.advance(1)
        store.run(timers.wake, actor="m", most=9)
        assert [claim.id for claim in store.claim(9)] == [second, first]

    def test_only_the_named_queues_and_lines_are_looked_at(self, store: Store) -> None:
        store.worker()
        [a], [b], [low] = store.create(queue="a"), store.create(queue="b"), store.create()
        line = [Line("a", 0), Line("default", 1)]
        assert [c.id for c in store.run(jobs.claim, worker_id="w1", line=line, most=9)] == [a]
        assert {claim.id for claim in store.claim(9, queues=["default", "b"])} == {low, b}

    def test_a_floor_leaves_out_what_is_below_it(self, store: Store) -> None:
        store.worker()
        store.create(2)
        [first] = store.claim()
        above = [Line("default", 0, first.queued_seq + 1_000_000_000)]
        assert store.run(jobs.claim, worker_id="w1", line=above, most=9) == []
        at = [Line("default", 0, first.queued_seq)]
        assert len(store.run(jobs.claim, worker_id="w1", line=at, most=9)) == 1

    def test_a_claim_takes_at_most_what_was_asked_over_all_lines(self, store: Store) -> None:
        store.worker()
        store.create(3, queue="a")
        store.create(3, queue="b", priority=2)
        assert len(store.claim(4, queues=["a", "b"])) == 4
        assert len(store.claim(0, queues=["a", "b"])) == 0
        assert len(store.claim(4, queues=["a", "b"])) == 2

    def test_only_kinds_and_versions_that_the_worker_knows_h114(self, store: Store) -> None:
        store.worker()
        [old], [new], [other] = (
            store.create(kind="a"), store.create(kind="a", kind_version=2), store.create(kind="b"),
        )  # fmt: skip
        assert [claim.id for claim in store.claim(9, kinds=["a 2"])] == [new]
        assert store.claim(9, kinds=[]) == []
        assert [claim.id for claim in store.claim(9, kinds=["a 1", "b 1"])] == [old, other]

    def test_a_paused_queue_gives_nothing_until_it_goes_on(self, store: Store) -> None:
        store.worker()
        store.create(2)
        store.run(queues.pause, "default", paused=True, actor="me")
        assert store.claim(9) == []
        assert store.run(queues.paused_by_name) == {"default": True}
        store.run(queues.pause, "default", paused=False, actor="me")
        assert len(store.claim(9)) == 2

    def test_jobs_of_a_stopping_run_are_skipped_i18(self, store: Store) -> None:
        store.worker()
        stopped, other = store.start([3]), store.start([1])
        assert store.run(runs.cancel, stopped, reason="r", actor="me") == "STOPPING"
        assert [claim.run_id for claim in store.claim(9)] == [other]

    def test_the_first_claim_begins_its_run_once(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2])
        assert store.run_state(run_id) == "QUEUED"
        store.claim()
        assert store.run_state(run_id) == "RUNNING"
        store.claim()
        assert store.moves(run_id, "run") == ["create", "begin"]
        assert store.run(runs.get, run_id).started_at is not None

    def test_an_unknown_a_stopped_and_a_late_worker_get_nothing(self, store: Store) -> None:
        store.create(9)
        assert store.claim(worker="nobody") == []
        store.worker("late", lease=5)
        store.worker("dead", lease=5)
        store.worker("stopped", lease=500)
        store.run(workers.move, "stopped", "drain", source=WorkerState.STARTUP)
        store.run(workers.move, "stopped", "stop", source=WorkerState.DRAINING)
        store.advance(6)
        assert store.claim(worker="late") == []
        store.run(workers.renew, "late", lease_seconds=5)
        store.run(workers.bury, most=9)
        assert store.claim(worker="dead") == store.claim(worker="stopped") == []
        assert len(store.claim(worker="late")) == 1

    def test_a_spent_budget_is_not_claimed_but_rejected_h21(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create(retries=1)
        for _ in range(2):
            [claim] = store.claim()
            store.settle((claim, outcome.retry(PROBLEM, after=0)))
            store.run(timers.wake, actor="m", most=9)
        assert (store.state(job_id), store.claim(9)) == ("QUEUED", [])
        assert store.run(timers.reject_spent, actor="m", most=9) == 1
        job = store.run(jobs.get, job_id)
        assert (job.state, job.cause, job.move) == ("FAILED", "attempts_exhausted", "reject")

    def test_concurrent_claims_never_share_a_job_h41(self, store: Store) -> None:
        store.worker()
        ids = store.create(120)
        with ThreadPoolExecutor(6) as threads:
            taken = [
                c for claims in threads.map(lambda _: store.claim(5), range(40)) for c in claims
            ]
        missed = store.claim(200)
        assert sorted(claim.id for claim in [*taken, *missed]) == sorted(ids)
        assert {claim.fence for claim in taken} == {1}

    def test_a_fence_grows_with_every_claim_and_by_nothing_else(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create(state="CREATED")
        store.run(creation.submit, [job_id], actor=None)
        for fence in (1, 2, 3):
            [claim] = store.claim()
            assert claim.fence == fence
            store.run(jobs.note, claim, phase="p")
            store.settle((claim, outcome.released()))
            store.run(timers.wake, actor="m", most=9)
        assert store.run(jobs.get, job_id).fence == 3
