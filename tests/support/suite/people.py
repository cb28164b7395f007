"""What people do to jobs, and what they can read of them."""

from datetime import timedelta
from threading import Barrier, Thread

import pytest

from milepost import outcome
from milepost.errors import NotFound
from milepost.lifecycle import JOB
from milepost.store import failures, fanin, jobs, journal, runs, timers, workers
from tests.support.suite.store import PROBLEM, Store, new_id, only

__all__ = ["CancelSuite", "EraseSuite", "ReadSuite", "SignalSuite"]


class CancelSuite:
    """Cancel answers what really happened (H-106)."""

    @pytest.mark.parametrize("state", ["CREATED", "GATED", "WAITING", "READY", "QUEUED"])
    def test_what_is_not_running_is_cancelled_at_once_h4(self, store: Store, state: str) -> None:
        [job_id] = store.create(state=state)
        assert store.run(jobs.cancel, job_id, reason="no", actor="me") == ("CANCELLED", False)
        job = store.run(jobs.get, job_id)
        assert (job.state, job.cancel_reason) == ("CANCELLED", "no")
        assert job.finished_at is not None
        entry = store.run(journal.history, job_id)[-1]
        assert (entry.move, entry.actor, entry.detail) == ("cancel", "me", "no")

    def test_a_retry_wait_is_cancelled_at_once_h10(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.settle((claim, outcome.retry(PROBLEM, after=60)))
        assert store.run(jobs.cancel, claim.id, reason="no", actor="me") == ("CANCELLED", False)

    def test_a_running_job_is_asked_once(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        for reason in ("first", "second"):
            assert store.run(jobs.cancel, claim.id, reason=reason, actor="me") == ("RUNNING", True)
        assert store.run(jobs.get, claim.id).cancel_reason == "first"
        assert store.moves(claim.id) == ["create", "claim", "note"]

    @pytest.mark.parametrize("end", ["succeed", "fail", "cancel"])
    def test_a_finished_job_stays_as_it_ended_h9(self, store: Store, end: str) -> None:
        store.worker()
        claim = store.running()
        ends = {"succeed": outcome.succeeded(), "fail": outcome.failed(PROBLEM)}
        store.settle((claim, ends.get(end, outcome.cancelled())))
        before = store.run(jobs.get, claim.id)
        answer = store.run(jobs.cancel, claim.id, reason="no", actor="me")
        assert answer == (before.state, False)
        assert store.run(jobs.get, claim.id) == before

    def test_cancelling_nothing_is_not_found(self, store: Store) -> None:
        for operation in (jobs.cancel, runs.cancel):
            with pytest.raises(NotFound):
                store.run(operation, new_id(), reason="no", actor="me")

    def test_no_claim_after_a_cancel_takes_the_job_i18(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create()
        store.run(jobs.cancel, job_id, reason="no", actor="me")
        assert store.claim() == []


class EraseSuite:
    """Erasing empties a finished job and is the only entry after a final one (I3)."""

    def test_a_finished_jobs_texts_are_emptied(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.run(jobs.signal, claim.id, signal_id=new_id(), data=b"secret", actor=None)
        assert store.run(jobs.erase, claim.id, actor="op") is False
        store.settle((claim, outcome.failed(PROBLEM)))
        assert store.run(jobs.erase, claim.id, actor="op") is True
        job = store.run(jobs.get, claim.id)
        assert (job.state, job.payload, job.result, job.error) == ("FAILED", None, None, None)
        assert store.run(failures.attempts, claim.id) == []
        assert store.rows("SELECT 1 FROM signal") == []
        assert store.moves(claim.id) == ["create", "claim", "fail", "erase"]

    def test_erasing_a_child_does_not_end_it_twice(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2])
        first, _ = store.claim(2)
        store.settle((first, outcome.succeeded()))
        store.run(jobs.erase, first.id, actor="op")
        assert store.count(run_id) == (1, 1, 0, 0)

    def test_there_is_nothing_to_erase_of_nothing(self, store: Store) -> None:
        assert store.run(jobs.erase, new_id(), actor="op") is False


class SignalSuite:
    """A signal wakes, is remembered when it comes early, and is never lost (H-93)."""

    def send(self, store: Store, job_id: str, data: bytes | None = b"x") -> bool:
        """Send a signal."""
        return store.run(jobs.signal, job_id, signal_id=new_id(), data=data, actor="me")

    @pytest.mark.parametrize("after", [60, None])
    def test_a_signal_wakes_a_sleeper(self, store: Store, after: float | None) -> None:
        store.worker()
        claim = store.running()
        store.settle((claim, outcome.later(after)))
        assert self.send(store, claim.id) is True
        assert (store.state(claim.id), store.moves(claim.id)[-1]) == ("QUEUED", "wake")
        [again] = store.claim(queues=[claim.queue])
        # Asked again, the same attempt is given the same again: the answer may have been lost.
        assert store.run(jobs.signals, again) == [b"x"]
        assert store.run(jobs.signals, again) == [b"x"]

    @pytest.mark.parametrize("after", [60, None])
    def test_a_signal_before_the_wait_is_remembered(
        self, store: Store, after: float | None
    ) -> None:
        store.worker()
        claim = store.running()
        assert self.send(store, claim.id) is True
        assert store.state(claim.id) == "RUNNING"
        store.settle((claim, outcome.later(after)))
        assert (store.state(claim.id), store.moves(claim.id)[-2:]) == ("QUEUED", ["later", "wake"])
        [again] = store.claim(queues=[claim.queue])
        assert store.run(jobs.signals, again) == [b"x"]

    def test_a_signal_that_the_attempt_took_does_not_wake_it_again(self, store: Store) -> None:
        store.worker(lease=900)
        claim = store.running()
        self.send(store, claim.id)
        assert store.run(jobs.signals, claim) == [b"x"]
        store.settle((claim, outcome.later(60)))
        assert store.state(claim.id) == "WAITING"
        store.advance(61)
        store.run(timers.wake, actor="m", most=9)
        [again] = store.claim(queues=[claim.queue])
        assert store.run(jobs.signals, again) == []

    @pytest.mark.parametrize("end", ["later", "retry", "lose"])
    def test_a_signal_older_than_the_claim_wakes_nobody(self, store: Store, end: str) -> None:
        worker = store.worker()
        [job_id] = store.create()
        self.send(store, job_id)
        [claim] = store.claim()
        if end == "retry":
            store.settle((claim, outcome.retry(PROBLEM, after=0)))
        elif end == "lose":
            store.lose_all()
            worker = store.worker("w2")
        store.run(timers.wake, actor="m", most=9)
        claim = claim if end == "later" else only(store.claim(worker=worker))
        store.settle((claim, outcome.later(1)))
        assert (store.state(job_id), store.moves(job_id)[-1]) == ("WAITING", "later")
        # It is still there for an attempt that asks.
        store.advance(1)
        store.run(timers.wake, actor="m", most=9)
        assert store.run(jobs.signals, only(store.claim(worker=worker))) == [b"x"]

    def test_a_signal_that_no_attempt_reads_wakes_one_attempt(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        self.send(store, claim.id)
        store.settle((claim, outcome.later(60)))
        [again] = store.claim(queues=[claim.queue])
        store.settle((again, outcome.later(60)))
        assert store.state(claim.id) == "WAITING"

    def test_signals_come_in_their_order(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create()
        for data in (b"1", None, b"3"):
            self.send(store, job_id, data)
        [claim] = store.claim()
        assert store.run(jobs.signals, claim) == [b"1", None, b"3"]

    @pytest.mark.parametrize("end", ["lose", "retry", "release"])
    def test_what_a_failed_attempt_took_is_given_to_the_next(self, store: Store, end: str) -> None:
        store.worker()
        claim = store.running()
        self.send(store, claim.id)
        assert store.run(jobs.signals, claim) == [b"x"]
        ends = {"retry": outcome.retry(PROBLEM, after=0), "release": outcome.released()}
        if end == "lose":
            store.lose_all()
            store.worker("w2")
        else:
            store.settle((claim, ends[end]))
        store.run(timers.wake, actor="m", most=9)
        [again] = store.claim(worker="w2" if end == "lose" else "w1", queues=[claim.queue])
        assert store.run(jobs.signals, again) == [b"x"]

    def test_a_signal_to_a_finished_job_is_refused(self, store: Store) -> None:
        store.worker()
        claim = store.running()
        store.settle((claim, outcome.succeeded()))
        assert self.send(store, claim.id) is False
        with pytest.raises(NotFound):
            self.send(store, new_id())

    def test_a_signal_and_the_wait_at_once_never_miss_each_other(self, store: Store) -> None:
        store.worker(lease=9000)
        for _ in range(15):
            claim = store.running()
            barrier = Barrier(2)

            def signal(job_id: str = claim.id, barrier: Barrier = barrier) -> None:
                barrier.wait()
                self.send(store, job_id)

            thread = Thread(target=signal)
            thread.start()
            barrier.wait()
            store.settle((claim, outcome.later(None)))
            thread.join()
            assert store.state(claim.id) == "QUEUED"


class ReadSuite:
    """What is read is what was written, in pages that miss nothing."""

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        for operation in (jobs.get, runs.get, fanin.advance_one):
            options = {"actor": None} if operation is fanin.advance_one else {}
            with pytest.raises(NotFound):
                store.run(operation, new_id(), **options)  # type: ignore[arg-type]
        assert store.run(jobs.find, [new_id()]) == {}
        assert store.run(journal.history, new_id()) == []

    def test_those_that_are_there_are_found(self, store: Store) -> None:
        ids = store.create(3)
        found = store.run(jobs.find, [*ids, new_id()])
        assert found == {job_id: store.run(jobs.get, job_id) for job_id in ids}

    def test_pages_by_key_show_everything_once_newest_first_h99(self, store: Store) -> None:
        ids = store.create(7)
        seen: list[str] = []
        while page := store.run(jobs.listing, before=seen[-1] if seen else None, most=3):
            seen += [job.id for job in page]
            store.create()
        assert seen == ids[::-1]

    def test_a_listing_filters_by_every_column_together(self, store: Store) -> None:
        run_id = store.start([1], child={"queue": "q", "tenant": "t"})
        store.create(queue="q")
        store.create(tenant="t")
        [child] = store.run(jobs.listing, run_id=run_id)
        by = {"state": "QUEUED", "kind": "k0", "queue": "q", "tenant": "t", "run_id": run_id}
        assert store.run(jobs.listing, **by) == [child]  # type: ignore[arg-type]
        assert store.run(jobs.listing, **{**by, "state": "RUNNING"}) == []  # type: ignore[arg-type]
        sizes = [len(store.run(jobs.listing, **{k: v})) for k, v in by.items()]  # type: ignore[arg-type]
        assert sizes == [3, 1, 2, 2, 1]

    def test_runs_are_listed_in_pages_and_by_state(self, store: Store) -> None:
        ids = [store.start([number % 2]) for number in range(5)]
        pages = store.run(runs.listing, most=2), store.run(runs.listing, before=ids[3], most=9)
        assert [run.id for page in pages for run in page] == ids[::-1]
        done = store.run(runs.listing, state="SUCCEEDED", kind="batch", tenant="")
        assert [run.id for run in done] == [ids[4], ids[2], ids[0]]
        live = store.run(runs.live, after=None, most=9)
        assert live == [(ids[1], "QUEUED"), (ids[3], "QUEUED")]
        assert store.run(runs.live, after=ids[1], most=9) == live[1:]

    def test_counts_are_by_queue_and_state(self, store: Store) -> None:
        store.worker()
        store.create(3, queue="a")
        store.create(2, queue="b", state="CREATED")
        store.claim(queues=["a"])
        expected = {"a": {"QUEUED": 2, "RUNNING": 1}, "b": {"CREATED": 2}}
        assert store.run(jobs.counts) == expected

    def test_history_tells_every_move_with_actor_attempt_and_fence_h54(self, store: Store) -> None:
        store.worker()
        [job_id] = store.create(actor="me")
        [claim] = store.claim()
        store.settle((claim, outcome.retry(PROBLEM, after=0)))
        store.run(timers.wake, actor="m", most=9)
        [claim] = store.claim()
        store.settle((claim, outcome.succeeded()))
        told = [
            (e.seq, e.move, e.from_state, e.to_state, e.fence, e.actor, e.attempt)
            for e in store.run(journal.history, job_id)
        ]
        assert told == [
            (1, "create", None, "QUEUED", 0, "me", 0),
            (2, "claim", "QUEUED", "RUNNING", 1, "w1", 1),
            (3, "retry", "RUNNING", "RETRYING", 1, "w1", 1),
            (4, "due", "RETRYING", "QUEUED", 1, "m", 1),
            (5, "claim", "QUEUED", "RUNNING", 2, "w1", 2),
            (6, "succeed", "RUNNING", "SUCCEEDED", 2, "w1", 2),
        ]

    def test_a_row_stands_at_a_time_as_it_stood_then(self, store: Store) -> None:
        store.worker(lease=9000)
        before = store.run(workers.now)
        store.advance(10)
        [job_id] = store.create()
        store.advance(10)
        moments = [store.run(workers.now)]
        store.advance(10)
        [claim] = store.claim()
        store.advance(10)
        moments.append(store.run(workers.now))
        store.advance(10)
        store.settle((claim, outcome.later(None)))
        moments.append(store.run(workers.now))
        standings = [store.run(journal.standing_at, job_id, moment) for moment in moments]
        assert [s.state for s in standings] == ["QUEUED", "RUNNING", "WAITING"]
        assert [(s.attempt, s.polls, s.fence) for s in standings] == [
            (0, 0, 0),
            (1, 0, 1),
            (0, 1, 1),
        ]
        with pytest.raises(NotFound):
            store.run(journal.standing_at, job_id, before + timedelta(seconds=1))

    def test_a_final_state_is_final_i3(self, store: Store) -> None:
        assert JOB.terminal == {"SUCCEEDED", "FAILED", "CANCELLED"}
        store.worker()
        claim = store.running()
        store.settle((claim, outcome.succeeded()))
        before = store.run(jobs.get, claim.id)
        store.run(timers.wake, actor="m", most=9)
        store.run(timers.expire, actor="m", most=9)
        store.lose_all()
        store.run(jobs.reconcile, worker_id="w1", known={})
        assert store.run(jobs.get, claim.id) == before
