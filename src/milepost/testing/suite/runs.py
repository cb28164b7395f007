"""Runs: filling, fan-in, gates, outputs and stopping."""
# ruff: noqa: D102 - a test's name states its promise

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from milepost import outcome
from milepost.errors import Invalid
from milepost.records import Claim, NewJob, NewRun, Template
from milepost.store import births, fanin, jobs, runs
from milepost.testing.suite.store import PROBLEM, Store, new_id, plan

__all__ = ["FanInSuite", "FillSuite", "OutputSuite", "StopSuite"]

GOOD = outcome.succeeded()
BAD = outcome.failed(PROBLEM)


def only(claims: Sequence[Claim]) -> Claim:
    """Take the one."""
    [claim] = claims
    return claim


class FillSuite:
    """A run comes into being whole, or not at all (H-49)."""

    def test_a_run_its_steps_and_its_jobs_are_born_together(self, store: Store) -> None:
        run_id = store.start([2, 3], reduce=True)
        run = store.run(runs.get, run_id)
        assert (run.state, run.kind, run.current_step, run.version) == ("QUEUED", "batch", 0, 1)
        assert [store.count(run_id, n)[0] for n in range(3)] == [2, 3, 0]
        assert store.jobs_of(run_id) == ["QUEUED"] * 2 + ["GATED"] * 3
        steps = store.run(runs.steps, run_id)
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

    def test_a_held_run_without_jobs_is_done_when_sealed_h61(self, store: Store) -> None:
        run_id = store.start([0], hold=True)
        assert store.run_state(run_id) == "CREATED"
        store.run(runs.seal, run_id, actor="me")
        assert store.moves(run_id, "run") == ["create", "seal", "finish"]

    def test_a_forgotten_hold_is_found_and_cancelled_h107(self, store: Store) -> None:
        held = {"hold_us": 3_600_000_000}
        forgotten, sealed = (store.start([1], hold=True, run=held) for _ in "ab")
        store.start([1], hold=True)
        store.run(runs.seal, sealed, actor="me")
        assert store.run(runs.forgotten, most=9) == []
        store.advance(3601)
        assert store.run(runs.forgotten, most=9) == [forgotten]
        assert store.run(runs.cancel, forgotten, reason="r", actor="m") == "STOPPING"
        store.run(runs.cancel_rest, forgotten, actor="m", most=9)
        assert store.run_state(forgotten) == "CANCELLED"

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
            born = Template(kind="k0", run_id=run_id, step=0, state="CREATED")
            with ThreadPoolExecutor(2) as threads:
                new = [NewJob(new_id(), b"", born, ordinal=number) for number in range(1, 9)]
                added = threads.submit(store.run, runs.add, run_id, new)
                sealed = threads.submit(store.run, runs.seal, run_id, actor="me")
                assert sealed.result() is True
            refused = isinstance(added.exception(), Invalid)
            assert store.count(run_id)[0] == (1 if refused else 9)
            assert store.finish(run_id) == "SUCCEEDED"


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
        store.run(jobs.wake, actor="m", most=9)
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
        assert (run.state, run.cause) == ("FAILED", "finaliser")

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
        assert store.run(runs.look_at, run_id, actor="m") == ["finish"]
        assert store.run(runs.look_at, run_id, actor="m") == [], "H-101"

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
        assert store.run(runs.publish, actor="m", most=9) == 3
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
        assert store.run(runs.publish, actor="m", most=9) == 2
        assert store.jobs_of(run_id, 1) == ["GATED"] * 2
        store.settle((second, store.stage(second, 1)))
        assert store.run(runs.get, run_id).current_step == 1
        assert store.jobs_of(run_id, 1) == ["QUEUED"] * 2
        assert store.run(runs.publish, actor="m", most=9) == 1
        assert store.jobs_of(run_id, 1) == ["QUEUED"] * 3, "H-62: late children go straight on"

    def test_the_run_does_not_end_before_its_outputs_are_jobs(self, store: Store) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        store.settle((claim, store.stage(claim, 2)))
        assert store.run_state(run_id) == "RUNNING"
        assert store.run(runs.look_at, run_id, actor="m") == []
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.count(run_id, 1) == (0, 2, 0, 0)

    def test_outputs_for_the_same_step_are_done_before_it_ends(self, store: Store) -> None:
        store.worker()
        run_id = store.start([1, 1])
        claim = only(store.claim())
        store.settle((claim, store.stage(claim, 2, step=0)))
        assert store.run(runs.get, run_id).current_step == 0
        store.run(runs.publish, actor="m", most=9)
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
        given = ((1, b"1"), (1, b"2"))
        together = way == "along"
        ended = outcome.succeeded(outputs=given) if together else store.stage(first, 2)
        store.settle((first, ended))
        store.run(runs.publish, actor="m", most=9)
        assert store.jobs_of(run_id, 1) == ["SUCCEEDED", "RUNNING", "QUEUED", "QUEUED"]
        store.run(jobs.reconcile, worker_id="w1", known={})
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.count(run_id, 1) == (0, 4, 0, 0)

    def test_outputs_for_a_step_already_passed_are_done_before_the_end(self, store: Store) -> None:
        store.worker()
        run_id = store.start([0, 1])
        claim = only(store.claim())
        store.settle((claim, store.stage(claim, 1, step=0)))
        store.run(runs.publish, actor="m", most=9)
        assert store.run_state(run_id) == "RUNNING"
        assert store.finish(run_id) == "SUCCEEDED"
        assert store.count(run_id) == (0, 1, 0, 0)

    def test_publication_goes_in_batches_and_misses_nothing(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2, 0])
        claims = store.claim(9)
        store.settle(*[(claim, store.stage(claim, 5)) for claim in claims])
        sizes = [store.run(runs.publish, actor="m", most=3) for _ in range(5)]
        assert sizes == [3, 3, 3, 1, 0]
        assert store.count(run_id, 1)[0] == 10

    def test_only_the_named_runs_outputs_are_published(self, store: Store) -> None:
        store.worker()
        (a, one), (b, two) = self.producer(store), self.producer(store)
        store.settle((one, store.stage(one, 1)), (two, store.stage(two, 1)))
        assert store.run(runs.publish, [b], actor="m", most=9) == 1
        assert (store.count(a, 1)[0], store.count(b, 1)[0]) == (0, 1)

    def test_concurrent_publishers_publish_once(self, store: Store) -> None:
        store.worker()
        run_id = store.start([6, 0])
        claims = store.claim(9)
        store.settle(*[(claim, store.stage(claim, 20)) for claim in claims])
        with ThreadPoolExecutor(4) as threads:
            sizes = list(
                threads.map(lambda _: store.run(runs.publish, actor="m", most=7), range(24))
            )
        assert sum(sizes) <= 120
        while store.run(runs.publish, actor="m", most=50):
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
        assert store.run(runs.publish, actor="m", most=9) == 0
        assert store.count(run_id, 1) == (0, 0, 0, 0)
        store.run(runs.sweep_staged, most=9)
        assert store.rows("SELECT 1 FROM staged") == []

    def test_a_retry_cannot_duplicate_h56(self, store: Store) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        late = store.stage(claim, 3)
        store.lose_all()
        store.worker("w2")
        store.run(jobs.wake, actor="m", most=9)
        again = only(store.claim(worker="w2"))
        store.settle((again, store.stage(again, 2)))
        assert store.settle((claim, late)) == set()
        store.run(runs.publish, actor="m", most=9)
        assert store.count(run_id, 1)[0] == 2
        store.run(runs.sweep_staged, most=9)
        assert store.rows("SELECT 1 FROM staged") == []

    def test_staging_the_same_outputs_again_is_harmless(self, store: Store) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        store.stage(claim, 3)
        store.settle((claim, store.stage(claim, 4)))
        store.run(runs.publish, actor="m", most=9)
        assert store.count(run_id, 1)[0] == 4

    def test_sweeping_leaves_what_is_still_wanted(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2, 0])
        running, ended = store.claim(9)
        store.stage(running, 1)
        store.settle((ended, store.stage(ended, 2)))
        store.run(runs.sweep_staged, most=9)
        assert store.rows("SELECT count(*) FROM staged")[0][0] == 3
        store.settle((running, outcome.succeeded(staged=1)))
        store.run(runs.publish, actor="m", most=9)
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
        store.run(jobs.wake, actor="m", most=9)
        for claim in store.claim(9):
            store.stage(claim, 2)
        left = []
        for _ in range(4):
            left.append(store.rows("SELECT count(*) FROM staged")[0][0])
            store.run(runs.sweep_staged, most=4)
        assert left == [12, 8, 6, 6]

    def test_a_run_that_stops_takes_back_what_is_not_published(self, store: Store) -> None:
        store.worker()
        run_id = store.start([2, 0])
        producer, running = store.claim(9)
        store.settle((producer, store.stage(producer, 3)))
        store.run(runs.publish, actor="m", most=1)
        assert store.run(runs.cancel, run_id, reason="r", actor="me") == "STOPPING"
        store.settle((running, store.stage(running, 2)))
        assert store.run(runs.publish, actor="m", most=9) == 0
        store.run(runs.cancel_rest, run_id, actor="m", most=9)
        assert (store.run_state(run_id), len(store.jobs_of(run_id, 1))) == ("CANCELLED", 1)
        assert store.run(runs.publish, actor="m", most=9) == 0

    def test_a_run_cancelled_with_only_outputs_on_their_way_gets_none_of_them(
        self, store: Store
    ) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        store.settle((claim, store.stage(claim, 3)))
        assert store.run(runs.cancel, run_id, reason="r", actor="me") == "CANCELLED"
        store.run(runs.sweep_staged, most=99)
        kept = store.rows("SELECT count(*) FROM staged")
        assert kept[0][0] == 3, "a run that resumes this one publishes them"
        assert store.run(runs.publish, actor="m", most=9) == 0
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
        store.run(runs.sweep_staged, most=99)
        kept = store.rows("SELECT count(*) FROM staged")
        assert kept[0][0] == 3, "a run that resumes this one publishes them"
        assert store.run(runs.publish, actor="m", most=9) == 0
        assert store.jobs_of(run_id, 1) == []

    def test_a_producer_that_ends_a_stopping_run_publishes_nothing(self, store: Store) -> None:
        store.worker()
        run_id, claim = self.producer(store)
        ended = store.stage(claim, 3)
        assert store.run(runs.cancel, run_id, reason="r", actor="me") == "STOPPING"
        store.settle((claim, ended))
        assert (store.state(claim.id), store.run_state(run_id)) == ("SUCCEEDED", "CANCELLED")
        assert store.run(runs.publish, actor="m", most=9) == 0
        assert store.jobs_of(run_id, 1) == []

    def test_publishing_and_stopping_at_once_leave_no_job_behind(self, store: Store) -> None:
        store.worker(lease=9000)
        for _ in range(8):
            run_id = store.start([1, 0])
            claim = only(store.claim(9))
            store.settle((claim, store.stage(claim, 30)))
            with ThreadPoolExecutor(3) as threads:
                work = [threads.submit(store.run, runs.publish, actor="m", most=9) for _ in "ab"]
                stop = threads.submit(store.run, runs.cancel, run_id, reason="r", actor="me")
                assert stop.result() in ("STOPPING", "CANCELLED")
                assert all(piece.result() >= 0 for piece in work)
            assert store.run(runs.publish, actor="m", most=99) == 0
            store.run(runs.cancel_rest, run_id, actor="m", most=99)
            assert store.run_state(run_id) == "CANCELLED"
            assert (
                store.rows(f"SELECT 1 FROM job WHERE run_id = '{run_id}' AND state = 'QUEUED'")
                == []
            )


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
        store.run(runs.look_at, run_id, actor="m")
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
        store.run(births.create, [NewJob(new_id(), b"", Template(kind="k"))])
        assert store.rows("SELECT 1 FROM step_count") == []
