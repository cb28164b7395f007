"""Histories that are too old are summed up: what is left folds to the same, and goes on."""

from typing import Any

import pytest

from milepost import outcome
from milepost.errors import NotFound
from milepost.history import Entry
from milepost.store import events, jobs, journal, retention, runs, timers
from tests.support.suite.store import PROBLEM, Store, new_id

__all__ = ["HistorySuite"]

DAY = 86_400
KEEP = retention.Keep(7 * DAY, 30 * DAY, 90 * DAY)
ROUND = ["claim", "later", "wake"]


def poll(store: Store, job_id: str, *, times: int = 1, rest: float = 0) -> None:
    """Let a job be claimed and ask to be called later, as something that polls does."""
    queue = store.run(jobs.get, job_id).queue
    for _ in range(times):
        store.advance(rest)
        worker = store.worker(new_id(), lease=DAY)
        [claim] = store.claim(worker=worker, queues=[queue])
        store.settle((claim, outcome.later(0)), actor=worker)
        store.run(timers.wake, actor="m", most=100)


def sum_up(store: Store, keep: retention.Keep = KEEP, *, most: int = 100) -> int:
    """Sum up all that is too old; answer with how often anything was."""
    after: str | None = retention.FIRST
    done = 0
    while after is not None:
        page = store.run(retention.sum_up, keep, after=after, most=most)
        done += page.left
        after = page.after
    return done


def polling(store: Store, **options: Any) -> str:
    [job_id] = store.create(queue=new_id(), **options)
    return job_id


def entries(store: Store, job_id: str) -> list[Entry]:
    return store.run(journal.history, job_id)


class HistorySuite:
    """What is still there keeps `keep_history` of its past; the rest is one entry (I9)."""

    def test_what_is_old_is_one_entry_that_says_what_it_stands_for_i9(self, store: Store) -> None:
        job_id = polling(store)
        poll(store, job_id, times=3)
        before = entries(store, job_id)
        store.advance(91 * DAY)
        assert sum_up(store) == 1
        [entry] = entries(store, job_id)
        last, summary = before[-1], entry.summary
        assert summary is not None
        assert (entry.seq, entry.to_state, entry.fence) == (10, "QUEUED", 3)
        assert (entry.at, entry.actor, entry.from_state) == (last.at, last.actor, None)
        assert (summary.moves, summary.polls, summary.errors) == (10, 3, 0)
        assert (summary.move, summary.detail, summary.worker) == (
            *("wake", last.detail), before[-3].actor,
        )  # fmt: skip
        assert before[0].at is not None
        assert summary.since == round(before[0].at.timestamp() * 1e6)
        assert "earlier history was summed up: 10 moves since" in str(summary)
        assert store.problems() == []

    def test_a_history_goes_on_after_it_and_counts_on_i8_i9(self, store: Store) -> None:
        job_id = polling(store, retries=9)
        store.settle((store.claim(worker=store.worker(), queues=[_queue(store, job_id)])[0],
                      outcome.retry(PROBLEM, after=0)))  # fmt: skip
        store.run(timers.wake, actor="m", most=9)
        poll(store, job_id, times=2)
        attempt = entries(store, job_id)[-1].attempt
        store.advance(91 * DAY)
        assert sum_up(store) == 1
        assert [entry.attempt for entry in entries(store, job_id)] == [attempt]
        poll(store, job_id, times=2)
        assert store.moves(job_id) == ["snapshot", *ROUND, *ROUND]
        assert [entry.seq for entry in entries(store, job_id)] == list(range(10, 17))
        job = store.run(jobs.get, job_id)
        assert (job.errors, job.polls, job.version) == (1, 4, 16)
        standing = store.run(journal.standing_at, job_id, job.created_at.replace(year=2999))
        assert (standing.errors, standing.polls) == (1, 4)
        assert store.problems() == []

    def test_a_lone_snapshot_is_left_alone_and_younger_entries_too(self, store: Store) -> None:
        job_id = polling(store)
        poll(store, job_id)
        store.advance(91 * DAY)
        poll(store, job_id)
        assert sum_up(store) == 1
        assert store.moves(job_id) == ["snapshot", *ROUND]
        assert sum_up(store) == 0
        store.advance(89 * DAY)
        assert sum_up(store) == 0
        store.advance(2 * DAY)
        assert sum_up(store) == 1
        [entry] = entries(store, job_id)
        assert entry.summary is not None
        assert (entry.seq, entry.summary.moves, entry.summary.polls) == (7, 7, 2)
        assert sum_up(store) == 0

    def test_a_job_that_polls_for_a_year_has_a_bounded_journal(self, store: Store) -> None:
        job_id = polling(store)
        longest = 0
        for _ in range(26):
            poll(store, job_id, rest=14 * DAY)
            sum_up(store)
            longest = max(longest, len(entries(store, job_id)))
        assert longest <= 1 + (90 // 14 + 1) * len(ROUND)
        job = store.run(jobs.get, job_id)
        assert (job.polls, job.version) == (26, 1 + 26 * len(ROUND))
        assert store.problems() == []

    def test_a_long_history_is_summed_up_in_pieces(self, store: Store, monkeypatch: Any) -> None:
        monkeypatch.setattr(retention, "ENTRIES", 4)
        monkeypatch.setattr(retention, "SUMMED", 2)
        ids = [polling(store) for _ in range(3)]
        for job_id in ids:
            poll(store, job_id, times=3)
        store.advance(91 * DAY)
        page = store.run(retention.sum_up, KEEP, after=retention.FIRST, most=100)
        assert (page.left, page.after) == (2, retention.FIRST)
        assert [len(entries(store, job_id)) for job_id in ids] == [6, 6, 10]
        assert store.problems() == []
        sum_up(store, most=2)
        assert [store.moves(job_id) for job_id in ids] == [["snapshot"]] * 3

    def test_a_move_by_hand_that_does_not_count_itself_is_counted_after_one(
        self, store: Store
    ) -> None:
        job_id = polling(store)
        poll(store, job_id, times=2)
        store.advance(91 * DAY)
        sum_up(store)
        store.claim(worker=store.worker(), queues=[_queue(store, job_id)])
        store.rows(
            "UPDATE job SET state = 'WAITING', move = 'later', version = version + 1,"
            f" worker_id = NULL WHERE id = '{job_id}'"
        )
        assert store.run(jobs.get, job_id).polls == 3
        assert store.problems() == []

    def test_a_counter_that_does_not_follow_from_it_is_refused(self, store: Store) -> None:
        job_id = polling(store)
        poll(store, job_id, times=2)
        store.advance(91 * DAY)
        sum_up(store)
        with pytest.raises(Exception, match="every change is a move"):
            store.rows(f"UPDATE job SET polls = 1 WHERE id = '{job_id}'")

    def test_what_ended_by_hand_or_was_erased_keeps_its_whole_history(self, store: Store) -> None:
        """Only the journal knows when a job that a hand moved began and ended (decision 2)."""
        by_hand, erased = polling(store), polling(store)
        poll(store, by_hand)
        store.rows(
            "UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1"
            f" WHERE id = '{by_hand}'"
        )
        poll(store, erased)
        store.run(jobs.cancel, erased, reason="r", actor=None)
        store.run(jobs.erase, erased, actor=None)
        store.advance(91 * DAY)
        assert sum_up(store) == 0

    def test_the_jobs_of_a_run_that_goes_on_are_summed_up_the_run_is_not(
        self, store: Store
    ) -> None:
        """A run has an entry for each step; only jobs go round and round."""
        queue = new_id()
        run_id = store.start([2, 1], child={"queue": queue}, role="partition")
        [claim] = store.claim(worker=store.worker(lease=DAY), queues=[queue])
        store.settle((claim, outcome.succeeded()), actor="somebody else")
        store.advance(91 * DAY)
        seen = store.rows("SELECT worker_id, status, started_at, completed_at FROM worker_runs")
        assert seen[0][0] == "w1"
        assert sum_up(store) == 1
        assert store.moves(claim.id) == ["snapshot"]
        assert store.moves(run_id, "run") == ["create", "begin"]
        after = store.rows("SELECT worker_id, status, started_at, completed_at FROM worker_runs")
        assert after == seen
        store.run(runs.cancel, run_id, reason="r", actor=None)
        assert store.problems() == []

    def test_a_snapshot_is_no_move_to_those_who_follow(self, store: Store) -> None:
        place = store.run(events.here)
        job_id = polling(store)
        poll(store, job_id)
        store.advance(91 * DAY)
        sum_up(store)
        poll(store, job_id)
        told, _, lost = store.run(events.follow, place, most=100)
        assert ([event.move for event in told], lost) == (ROUND, False)

    def test_what_those_who_follow_may_still_ask_for_is_not_summed_up(self, store: Store) -> None:
        job_id = polling(store)
        poll(store, job_id)
        place = store.run(events.here)
        poll(store, job_id)
        store.advance(events.KEEP_SECONDS - 60)
        brief = retention.Keep(60, 60, history=60)
        assert sum_up(store, brief) == 0
        told, _, _ = store.run(events.follow, place, most=100)
        assert [event.move for event in told] == ROUND
        store.advance(120)
        assert sum_up(store, brief) == 1

    def test_views_say_what_they_said(self, store: Store) -> None:
        job_id = polling(store)
        poll(store, job_id)
        asked = (
            f"SELECT attempt, started_at, finished_at, updated_at FROM jobs WHERE id = '{job_id}'"
        )
        before = store.rows(asked)
        store.advance(91 * DAY)
        assert len(store.rows(f"SELECT 1 FROM audit_logs WHERE task_id = '{job_id}'")) == 4
        sum_up(store)
        assert store.rows(asked) == before
        assert store.rows(f"SELECT 1 FROM audit_logs WHERE task_id = '{job_id}'") == []

    def test_a_time_before_it_is_not_known_any_more(self, store: Store) -> None:
        job_id = polling(store)
        created = entries(store, job_id)[0].at
        assert created is not None
        store.advance(1)
        poll(store, job_id)
        store.advance(91 * DAY)
        sum_up(store)
        with pytest.raises(NotFound, match="keep_history"):
            store.run(journal.standing_at, job_id, created)

    @pytest.mark.parametrize(
        "attempt",
        [
            "UPDATE journal SET move = 'snapshot', from_state = NULL, detail = '{}'",
            "UPDATE journal SET move = 'snapshot', from_state = NULL, detail = '{}' WHERE seq = 4",
            "DELETE FROM journal WHERE seq = 1",
            (
                "INSERT INTO journal (subject_id, machine, seq, at, fence, move, to_state)"
                " SELECT subject_id, machine, 9, at, fence, 'snapshot', to_state FROM journal"
                " WHERE seq = 1"
            ),
        ],
    )
    @pytest.mark.parametrize("retaining", [False, True])
    def test_a_hand_cannot_sum_up_even_while_retention_is_at_work(
        self, store: Store, attempt: str, *, retaining: bool
    ) -> None:
        job_id = polling(store)
        poll(store, job_id)
        before = entries(store, job_id)
        with store.raw() as hand:
            hand.execute("BEGIN")
            if retaining and store.dialect == "postgres":
                hand.execute("SET LOCAL milepost.retaining = 'on'")
            elif retaining:
                hand.execute("UPDATE retention SET active = 1")
            with pytest.raises(Exception, match="milepost:"):
                hand.execute(attempt)
            hand.execute("ROLLBACK")
        assert entries(store, job_id) == before


def _queue(store: Store, job_id: str) -> str:
    return store.run(jobs.get, job_id).queue
