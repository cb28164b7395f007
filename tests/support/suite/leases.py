"""Leases belong to workers, fences to jobs."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from milepost import outcome
from milepost.errors import LeaseLost
from milepost.store import jobs, journal, limits, queues, rules, runs, timers, workers
from milepost.store.limits import limit_key
from milepost.store.rules import Limit
from tests.support.suite.store import PROBLEM, Store

__all__ = ["LeaseSuite"]


class LeaseSuite:
    """A dead worker's jobs go on, once; a live one keeps them."""

    def test_a_worker_that_renews_keeps_its_jobs_h29(self, store: Store) -> None:
        store.worker(lease=10)
        claim = store.running()
        for _ in range(4):
            store.advance(8)
            store.run(workers.renew, "w1", lease_seconds=10)
            assert store.run(workers.bury, most=9) == []
        assert store.run(timers.lose, actor="m", most=9) == []
        assert store.settle((claim, outcome.succeeded())) == {claim.id}

    def test_a_clock_that_goes_back_delays_recovery_by_one_lease_and_costs_nobody_a_job_h98(
        self, store: Store
    ) -> None:
        """F6: a lease further ahead than its own length is cut to now and its length."""
        dead, living = store.worker("dead", lease=30), store.worker("living", lease=30)
        [lost, kept] = [store.running(worker=name) for name in (dead, living)]
        assert store.run(workers.hold_election, "chores", holder=dead, lease_seconds=3)
        store.advance(-3600)
        assert not store.run(workers.hold_election, "chores", holder=living, lease_seconds=3)
        store.advance(4)
        assert store.run(workers.hold_election, "chores", holder=living, lease_seconds=3)
        assert store.run(workers.bury, most=9) == []
        for _ in range(3):
            store.advance(9)
            store.run(workers.renew, living, lease_seconds=30)
            assert store.run(workers.bury, most=9) == []
        store.advance(4)
        assert store.run(workers.bury, most=9) == [dead]
        assert store.run(timers.lose, actor="m", most=9) == [(lost.id, "RETRYING")]
        assert store.settle((kept, outcome.succeeded())) == {kept.id}

    def test_a_dead_workers_jobs_are_lost_and_run_again_h28(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        assert store.run(timers.lose, actor="m", most=9) == []
        assert store.lose_all() == [(claim.id, "RETRYING")]
        job = store.run(jobs.get, claim.id)
        assert (job.losses, job.errors, job.fence, job.worker_id) == (1, 0, 1, None)
        assert store.run(journal.history, claim.id)[-1].detail == "w1", (
            "H-42: who died is on record"
        )
        store.worker("w2")
        store.run(timers.wake, actor="m", most=9)
        [again] = store.claim(worker="w2", queues=[claim.queue])
        assert (again.fence, again.attempt) == (2, 2)

    def test_a_job_of_an_unknown_worker_is_lost_i15(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.advance(100)
        store.run(workers.bury, most=9)
        store.run(workers.prune, keep_seconds=0)
        assert store.rows("SELECT 1 FROM worker") != [], "it still holds a job"
        with store.raw() as hand:
            hand.execute("DELETE FROM worker WHERE state = 'STOPPED'")
        assert store.run(timers.lose, actor="m", most=9) == [(claim.id, "RETRYING")]

    def test_as_many_losses_as_the_limit_poison_a_job_h22(self, store: Store) -> None:
        [job_id] = store.create(poison_limit=2, retries=9)
        for turn, state in enumerate(["RETRYING", "FAILED"]):
            store.worker(f"w{turn}")
            store.claim(worker=f"w{turn}")
            assert store.lose_all() == [(job_id, state)]
            store.run(timers.wake, actor="m", most=9)
        job = store.run(jobs.get, job_id)
        assert (job.cause, job.losses, job.move) == ("poisoned", 2, "lose")
        assert job.finished_at is not None

    def test_a_loss_in_company_ends_nobody_who_was_lost_before_h22(self, store: Store) -> None:
        ids = store.create(6)
        for turn in range(2):
            store.worker(f"old {turn}")
            assert len(store.claim(6, worker=f"old {turn}")) == 6
            assert {state for _, state in store.lose_all()} == {"RETRYING"}
            store.run(timers.wake, actor="m", most=9)
        store.worker()
        [claim] = store.claim(6)
        assert store.claim(6) == [], "nothing is taken beside it"
        assert store.run(journal.history, claim.id)[-1].detail == "alone"
        store.settle((claim, outcome.succeeded()))
        [killer] = store.claim(6)
        assert store.lose_all() == [(killer.id, "FAILED")]
        job = store.run(jobs.get, killer.id)
        assert (job.cause, job.losses) == ("poisoned", 3)
        store.worker("w9")
        for _ in range(4):
            [claim] = store.claim(6, worker="w9")
            store.settle((claim, outcome.succeeded()), actor="w9")
        states = [store.state(job_id) for job_id in ids]
        assert sorted(states) == ["FAILED", *["SUCCEEDED"] * 5]

    def test_a_job_that_one_more_loss_would_exhaust_runs_alone(self, store: Store) -> None:
        ids = store.create(2, retries=1, poison_limit=9)
        store.worker()
        store.claim(2)
        assert {state for _, state in store.lose_all()} == {"RETRYING"}
        store.run(timers.wake, actor="m", most=9)
        store.worker("w2")
        [claim] = store.claim(2, worker="w2")
        assert store.lose_all() == [(claim.id, "FAILED")]
        assert store.run(jobs.get, claim.id).cause == "attempts_exhausted"
        store.worker("w3")
        [other] = store.claim(2, worker="w3")
        assert {claim.id, other.id} == set(ids)

    def test_losses_have_a_budget_of_their_own_where_recoveries_says_so_h19_h20(
        self, store: Store
    ) -> None:
        """E: an exception is final, a crash is retried. Neither budget is spent by the other."""
        [job_id] = store.create(retries=0, recoveries=2, poison_limit=9)
        for turn, state in enumerate(["RETRYING", "RETRYING", "FAILED"]):
            store.worker(f"w{turn}")
            assert [claim.id for claim in store.claim(worker=f"w{turn}")] == [job_id]
            assert store.lose_all() == [(job_id, state)]
            store.run(timers.wake, actor="m", most=9)
        job = store.run(jobs.get, job_id)
        assert (job.cause, job.errors, job.losses) == ("attempts_exhausted", 0, 3)

        [flaky] = store.create(retries=2, recoveries=0, poison_limit=9)
        store.worker("w9")
        for _ in range(2):
            [claim] = store.claim(worker="w9")
            store.settle((claim, outcome.retry(PROBLEM, after=0)), actor="w9")
            store.run(timers.wake, actor="m", most=9)
        assert [claim.id for claim in store.claim(worker="w9")] == [flaky]
        assert store.lose_all() == [(flaky, "FAILED")]
        assert store.run(jobs.get, flaky).cause == "attempts_exhausted"

    def test_a_job_whose_next_loss_is_its_last_runs_alone_whatever_its_errors(
        self, store: Store
    ) -> None:
        store.create(2, retries=9, recoveries=1, poison_limit=9)
        store.worker()
        store.claim(2)
        assert {state for _, state in store.lose_all()} == {"RETRYING"}
        store.run(timers.wake, actor="m", most=9)
        store.worker("w2")
        [claim] = store.claim(2, worker="w2")
        assert store.run(jobs.get, claim.id).is_suspect
        assert store.run(journal.history, claim.id)[-1].detail == "alone"

    def test_a_job_that_waits_with_more_losses_than_recoveries_is_ended_h21(
        self, store: Store
    ) -> None:
        [job_id] = store.create(retries=0, recoveries=1, poison_limit=9)
        for turn in range(2):
            store.worker(f"w{turn}")
            store.claim(worker=f"w{turn}")
            with store.raw() as hand:  # not by maintenance, which would end it
                hand.execute(
                    "UPDATE job SET state = 'RETRYING', move = 'lose', version = version + 1,"
                    f" losses = losses + 1, worker_id = NULL WHERE id = '{job_id}'"
                )
            store.run(timers.wake, actor="m", most=9)
        store.worker("w9")
        assert store.run(jobs.get, job_id).is_spent
        assert store.claim(worker="w9") == []
        assert store.run(timers.reject_spent, actor="m", most=9) == 1
        assert store.run(jobs.get, job_id).cause == "attempts_exhausted"

    def test_one_crash_does_not_serialise_healthy_work(self, store: Store) -> None:
        store.create(6)
        for name in ("w1", "w2"):
            store.worker(name)
            assert len(store.claim(6, worker=name)) == 6
            store.lose_all()
            store.run(timers.wake, actor="m", most=9)

    def test_a_suspect_that_was_not_alone_after_all_is_not_accused(self, store: Store) -> None:
        [job_id] = store.create(poison_limit=2, retries=9)
        store.worker()
        store.claim()
        store.lose_all()
        store.run(timers.wake, actor="m", most=9)
        store.worker("w2")
        store.claim(worker="w2")
        [other] = store.create()
        store.claim(worker="w2")  # as if the reply to the first claim had been lost
        assert sorted(store.lose_all()) == sorted([(job_id, "RETRYING"), (other, "RETRYING")])

    def test_a_suspect_waits_until_its_worker_holds_nothing(self, store: Store) -> None:
        [job_id] = store.create(poison_limit=1)
        store.worker()
        other = store.running()
        assert store.run(jobs.suspects, most=9)
        assert store.claim() == []
        store.settle((other, outcome.succeeded()))
        assert [claim.id for claim in store.claim()] == [job_id]
        assert store.run(jobs.suspects, most=9) == []

    def test_suspects_are_looked_for_as_jobs_are_claimed(self, store: Store) -> None:
        store.create(poison_limit=1, queue="mail", kind="send")
        assert store.run(jobs.suspects, most=9, queues=["mail"], kinds=["send 1"])
        assert not store.run(jobs.suspects, most=9, queues=["default"], kinds=["send 1"])
        assert not store.run(jobs.suspects, most=9, queues=None, kinds=["send 2"])
        store.run(queues.pause, "mail", paused=True, actor="me")
        assert store.run(jobs.suspects, most=9) == []

    def test_suspects_are_found_in_order_from_any_place_on(self, store: Store) -> None:
        for priority in (0, 3, 0, 3):
            store.create(3, poison_limit=1, priority=priority)
        line = store.run(jobs.suspects, most=99)
        assert len({one.id for one in line}) == 12
        assert [one.line.priority for one in line] == [3] * 6 + [0] * 6
        assert line == sorted(line, key=lambda one: (-one.line.priority, one.line.floor, one.id))
        for place, one in enumerate(line, 1):
            found = store.run(jobs.suspects, most=5, after=one)
            assert found == [*line[place:], *line[:place]][:5]

    def test_of_several_suspects_the_first_is_claimed_that_no_limit_blocks(
        self, store: Store
    ) -> None:
        store.run(rules.declare, {("job", "r"): Limit(most=1)})
        store.worker()
        store.create(limit_key=limit_key("r", "busy"))
        reach = limits.Reach(front=1)
        line = jobs.lines(["default"])
        assert store.run(limits.claim, worker_id="w1", line=line, most=1, reach=reach)[0]
        store.create(3, poison_limit=1, limit_key=limit_key("r", "busy"))
        [free] = store.create(poison_limit=1, limit_key=limit_key("r", "free"))
        store.create(poison_limit=1, limit_key=limit_key("r", "later"))
        store.worker("w2")
        found = store.run(jobs.suspects, most=9)
        assert len(found) == 5
        claims = store.run(limits.claim_alone, found, worker_id="w2")
        assert [claim.id for claim in claims] == [free]
        assert store.run(limits.claim_alone, found, worker_id="w2") == [], "it holds one"

    def test_a_job_without_retries_is_never_run_twice(self, store: Store) -> None:
        store.create(2, retries=0)
        store.worker()
        store.claim(2)
        assert {state for _, state in store.lose_all()} == {"FAILED"}

    def test_a_loss_that_spends_the_budget_ends_the_job_h18(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create(retries=1)
        [claim] = store.claim()
        store.settle((claim, outcome.retry(PROBLEM, after=0)))
        store.run(timers.wake, actor="m", most=9)
        store.claim()
        assert store.lose_all() == [(job_id, "FAILED")]
        assert store.run(jobs.get, job_id).cause == "attempts_exhausted"

    def test_a_lost_job_that_was_asked_to_stop_is_cancelled_h106(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.run(jobs.cancel, claim.id, reason="enough", actor="me")
        assert store.lose_all() == [(claim.id, "CANCELLED")]
        job = store.run(jobs.get, claim.id)
        assert (job.losses, job.move, job.cause) == (0, "cancel", None)

    def test_a_lost_job_of_a_stopping_run_is_cancelled_and_ends_it_h60(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1])
        store.claim()
        store.run(runs.cancel, run_id, reason="r", actor="me")
        [(_, state)] = store.lose_all()
        assert (state, store.run_state(run_id)) == ("CANCELLED", "CANCELLED")

    def test_a_lost_job_past_its_deadline_expires_h109(self, store: Store) -> None:
        store.worker()
        claim = store.running(deadline_us=5_000_000)
        assert store.lose_all() == [(claim.id, "FAILED")]
        job = store.run(jobs.get, claim.id)
        assert (job.move, job.cause, job.losses) == ("expire", "deadline", 0)

    def test_losing_is_bounded_per_pass_h100(self, store: Store) -> None:
        store.worker()
        store.create(5)
        store.claim(5)
        store.advance(60)
        store.run(workers.bury, most=9)
        assert [len(store.run(timers.lose, actor="m", most=2)) for _ in range(4)] == [2, 2, 1, 0]

    def test_a_heartbeat_that_came_first_wins_over_the_burial(self, store: Store) -> None:
        store.worker(lease=1)
        store.advance(5)
        store.run(workers.renew, "w1", lease_seconds=10)
        assert store.run(workers.bury, most=9) == []

    def test_a_burial_that_came_first_wins_over_the_heartbeat(self, store: Store) -> None:
        store.worker(lease=1)
        store.advance(5)
        assert store.run(workers.bury, most=9) == ["w1"]
        with pytest.raises(LeaseLost):
            store.run(workers.renew, "w1", lease_seconds=10)
        assert store.run(workers.bury, most=9) == []

    def test_bury_and_heartbeat_at_once_agree_on_one_winner(self, store: Store) -> None:
        for turn in range(10):
            name = store.worker(f"w{turn}", lease=1)
            store.advance(5)
            with ThreadPoolExecutor(2) as threads:
                burial = threads.submit(store.run, workers.bury, most=9)
                renewal = threads.submit(self._renews, store, name)
                buried, renewed = name in burial.result(), renewal.result()
            assert buried != renewed
            state = store.rows(f"SELECT state FROM worker WHERE id = '{name}'")[0][0]
            assert (state == "STOPPED") == buried

    @staticmethod
    def _renews(store: Store, name: str) -> bool:
        try:
            store.run(workers.renew, name, lease_seconds=100)
        except LeaseLost:
            return False
        return True

    def test_a_claim_whose_reply_was_lost_is_released_unspent(self, store: Store) -> None:
        store.worker()
        known, forgotten = store.running(), store.running()
        released = store.run(jobs.reconcile, worker_id="w1", known={known.id: known.fence})
        assert released == [forgotten.id]
        job = store.run(jobs.get, forgotten.id)
        assert (job.state, job.releases, job.errors, job.losses) == ("RETRYING", 1, 0, 0)
        assert store.state(known.id) == "RUNNING"
        assert store.run(jobs.reconcile, worker_id="w1", known={known.id: known.fence}) == []

    def test_a_lost_claim_that_was_asked_to_stop_is_cancelled_by_reconcile(
        self, store: Store
    ) -> None:
        store.worker()
        run_id = store.start([1])
        [claim] = store.claim()
        store.run(runs.cancel, run_id, reason="r", actor="me")
        assert store.run(jobs.reconcile, worker_id="w1", known={}) == [claim.id]
        assert (store.state(claim.id), store.run_state(run_id)) == ("CANCELLED", "CANCELLED")

    def test_reconcile_compares_the_fence_too(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        assert store.run(jobs.reconcile, worker_id="w1", known={claim.id: 0}) == [claim.id]

    def test_a_worker_hears_what_it_was_asked_to_stop(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1])
        [child] = store.claim()
        asked, spared = store.running(), store.running()
        store.run(jobs.cancel, asked.id, reason="enough", actor="me")
        store.run(runs.cancel, run_id, reason="r", actor="me")
        heard = dict((i, (f, why)) for i, f, why in store.run(jobs.ask_to_stop, worker_id="w1"))  # noqa: C402
        assert heard == {child.id: (1, "the run is stopping"), asked.id: (1, "enough")}
        assert spared.id not in heard
