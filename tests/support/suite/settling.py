"""What an attempt comes to, written once, by whoever holds the lease."""

import pytest

from milepost import outcome
from milepost.errors import LeaseLost
from milepost.lifecycle import Cause
from milepost.outcome import Outcome, Output
from milepost.store import failures, jobs, journal, outputs, runs, timers, workers
from tests.support.suite.store import PROBLEM, Store, new_id

__all__ = ["SettleSuite"]

SOFT = {
    "retry": outcome.retry(PROBLEM, after=60),
    "later": outcome.later(60),
    "later for a signal": outcome.later(None),
    "release": outcome.released(),
}
HARD = {"succeed": outcome.succeeded(b"1"), "fail": outcome.failed(PROBLEM)}


class SettleSuite:
    """Every write after a claim shows its fence; a late one changes nothing (H-30)."""

    def test_all_outcomes_settle_in_one_batch_with_usage(self, store: Store) -> None:
        store.worker()
        store.create(7)
        a, b, c, d, e, f, g = claims = store.claim(9)
        settled = store.settle(
            (g, outcome.expired(PROBLEM)),
            (a, outcome.succeeded(b"1", usage={"tokens": 3, "calls": 1.5})),
            (b, outcome.failed(PROBLEM, cause=Cause.POLL_LIMIT)),
            (c, outcome.retry(PROBLEM, after=5)),
            (d, outcome.later(60)),
            (e, outcome.released("drain")),
            (f, outcome.cancelled("agreed")),
        )
        assert settled == {claim.id for claim in claims}
        found = [store.run(jobs.get, claim.id) for claim in claims]
        assert [job.state.value for job in found] == [
            *("SUCCEEDED", "FAILED", "RETRYING", "WAITING", "RETRYING", "CANCELLED", "FAILED"),
        ]
        assert [(j.errors, j.losses, j.polls, j.releases) for j in found] == [
            *((0, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)),
            *((0, 0, 0, 0), (0, 0, 0, 0)),
        ]
        assert [job.cause for job in found] == [None, "poll_limit", *[None] * 4, "deadline"]
        assert [job.finished_at is not None for job in found] == [
            *(True, True, False, False, False, True, True),
        ]
        assert (found[0].result, found[0].error) == (b"1", None)
        assert {job.worker_id for job in found} == {None}
        used = store.rows("SELECT name, amount FROM usage ORDER BY name")
        assert [tuple(row) for row in used] == [("calls", 1.5), ("tokens", 3.0)]

    def test_the_last_error_stays_and_every_attempt_keeps_its_own_h25(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.settle((claim, outcome.retry(PROBLEM, after=0)))
        store.run(timers.wake, actor="m", most=9)
        [claim] = store.claim(queues=[claim.queue])
        assert claim.attempt == 2
        store.settle((claim, outcome.succeeded(b"ok")))
        job = store.run(jobs.get, claim.id)
        assert (job.state, job.result, job.attempt) == ("SUCCEEDED", b"ok", 2)
        assert "it broke" in (job.error or "")
        assert [one.fence for one in store.run(failures.attempts, claim.id)] == [1]

    def test_polls_and_releases_spend_nothing_h19(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create(retries=0)
        for result in (outcome.later(0), outcome.released(), outcome.later(0)):
            [claim] = store.claim()
            assert claim.attempt == 1
            store.settle((claim, result))
            store.advance(1)
            store.run(timers.wake, actor="m", most=9)
        [claim] = store.claim()
        store.settle((claim, outcome.succeeded()))
        job = store.run(jobs.get, job_id)
        assert (job.state, job.attempt, job.polls, job.releases) == ("SUCCEEDED", 1, 2, 1)

    def test_results_of_any_bytes_are_kept_apart(self, store: Store) -> None:
        store.worker()
        results = [b"", None, b"\x00\xff", b"", b"ab" * 5000]
        ids = store.create(len(results))
        claims = store.claim(9)
        store.settle(*zip(claims, map(outcome.succeeded, results), strict=True))
        assert [store.run(jobs.get, job_id).result for job_id in ids] == results

    def test_settling_nothing_is_nothing(self, store: Store) -> None:
        assert store.settle() == set()

    def test_a_second_report_of_one_attempt_changes_nothing_h39(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        assert store.settle((claim, outcome.failed(PROBLEM))) == {claim.id}
        assert store.settle((claim, outcome.succeeded(b"1", usage={"n": 1}))) == set()
        job = store.run(jobs.get, claim.id)
        assert (job.state, job.version, job.result) == ("FAILED", 3, None)
        assert store.rows("SELECT 1 FROM usage") == []

    @pytest.mark.parametrize("late", [*SOFT.values(), *HARD.values()], ids=[*SOFT, *HARD])
    def test_a_paused_claimers_late_settle_changes_nothing_h30(
        self, store: Store, late: Outcome
    ) -> None:
        store.worker()
        claim = store.running()
        store.lose_all()
        before = store.run(jobs.get, claim.id)
        assert store.settle((claim, late)) == set()
        assert store.run(jobs.get, claim.id) == before
        store.worker("w2")
        store.run(timers.wake, actor="m", most=9)
        [again] = store.claim(worker="w2", queues=[claim.queue])
        assert store.settle((claim, late)) == set()
        job = store.run(jobs.get, claim.id)
        assert (job.state, job.worker_id, job.fence) == ("RUNNING", "w2", 2)
        assert store.settle((again, outcome.succeeded())) == {claim.id}
        assert store.settle((claim, late)) == set()

    def test_a_paused_claimers_late_note_renewal_stage_and_signals_change_nothing_f2(
        self, store: Store
    ) -> None:
        store.worker()
        claim = store.running()
        store.lose_all()
        store.worker("w2")
        store.run(timers.wake, actor="m", most=9)
        [again] = store.claim(worker="w2", queues=[claim.queue])
        store.run(jobs.signal, claim.id, signal_id=new_id(), data=b"s", actor=None)
        with pytest.raises(LeaseLost):
            store.run(jobs.note, claim, phase="late")
        with pytest.raises(LeaseLost):
            store.run(workers.renew, "w1", lease_seconds=30)
        with pytest.raises(LeaseLost):
            store.run(outputs.stage, claim, [(0, Output(1, b"late"))])
        assert store.run(jobs.signals, claim) == []
        assert store.run(jobs.signals, again) == [b"s"]
        assert store.rows("SELECT 1 FROM staged") == []
        assert store.run(jobs.get, claim.id).phase is None

    def test_a_lease_that_is_over_but_not_recovered_may_still_settle(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.advance(100)
        assert store.settle((claim, outcome.succeeded())) == {claim.id}

    def test_a_late_one_does_not_hold_up_the_rest_of_its_batch(self, store: Store) -> None:
        store.worker()
        lost = store.running()
        store.lose_all()
        store.worker("w2")
        held = store.running(worker="w2")
        assert store.settle((lost, outcome.succeeded()), (held, outcome.succeeded())) == {held.id}

    def test_a_note_records_a_phase_and_the_next_attempt_starts_afresh_h7(
        self, store: Store
    ) -> None:
        store.worker()
        claim = store.running()
        assert store.run(jobs.note, claim, phase="sending", detail="d", actor="w1") == 3
        job = store.run(jobs.get, claim.id)
        assert (job.phase, job.state, job.worker_id) == ("sending", "RUNNING", "w1")
        store.settle((claim, outcome.released()))
        store.run(timers.wake, actor="m", most=9)
        store.claim(queues=[claim.queue])
        assert store.run(jobs.get, claim.id).phase is None

    @pytest.mark.parametrize("soft", SOFT.values(), ids=SOFT)
    def test_a_cancel_that_was_asked_takes_the_place_of_h106(
        self, store: Store, soft: Outcome
    ) -> None:
        store.worker()
        claim = store.running()
        other = store.running()
        assert store.run(jobs.cancel, claim.id, reason="enough", actor="me") == ("RUNNING", True)
        settled = store.settle((claim, soft), (other, soft))
        assert settled == {claim.id, other.id}
        job = store.run(jobs.get, claim.id)
        assert (job.state, job.move, job.cancel_reason) == ("CANCELLED", "cancel", "enough")
        assert store.state(other.id) not in ("CANCELLED", "RUNNING")
        assert store.run(journal.history, claim.id)[-1].detail == "enough"

    @pytest.mark.parametrize("hard", HARD.values(), ids=HARD)
    def test_a_valid_end_wins_over_a_cancel_that_was_asked_i18(
        self, store: Store, hard: Outcome
    ) -> None:
        store.worker()
        claim = store.running()
        store.run(jobs.cancel, claim.id, reason="enough", actor="me")
        assert store.settle((claim, hard)) == {claim.id}
        assert store.state(claim.id) == hard.state

    @pytest.mark.parametrize("soft", SOFT.values(), ids=SOFT)
    def test_a_stopping_run_takes_the_place_of_h60(self, store: Store, soft: Outcome) -> None:
        store.worker()
        run_id = store.start([1])
        [claim] = store.claim()
        store.run(runs.cancel, run_id, reason="r", actor="me")
        assert store.settle((claim, soft)) == {claim.id}
        assert (store.state(claim.id), store.run_state(run_id)) == ("CANCELLED", "CANCELLED")
