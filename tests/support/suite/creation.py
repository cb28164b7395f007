"""How jobs come into being."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event

import pytest

from milepost import outcome
from milepost.errors import IllegalMove, Invalid
from milepost.records import NewJob, Template
from milepost.store import creation, jobs, timers, workers
from tests.support.suite.store import Store, new_id

__all__ = ["CreationSuite"]


def unique(key: str = "x", **options: object) -> NewJob:
    """Describe a job of which one may live."""
    return NewJob(new_id(), b"", Template(kind="k", **options), unique_key=key)  # type: ignore[arg-type]


class CreationSuite:
    """A submit that returned is there, exactly once."""

    def test_a_created_job_is_queued_with_what_it_was_given(self, store: Store) -> None:
        [job_id] = store.create(queue="slow", priority=7, tags='{"user": "42"}', tenant="t")
        job = store.run(jobs.get, job_id)
        assert (job.state, job.queue, job.priority, job.tenant) == ("QUEUED", "slow", 7, "t")
        assert (job.payload, job.tags, job.version, job.fence, job.attempt) == (
            *(b"0", '{"user": "42"}'),
            *(1, 0, 0),
        )
        assert store.moves(job_id) == ["create"]

    def test_many_are_created_in_one_call_in_their_order(self, store: Store) -> None:
        store.worker()
        ids = store.create(250)
        assert len(set(ids)) == 250
        assert [claim.id for claim in store.claim(250)] == ids

    def test_bytes_of_any_kind_are_kept(self, store: Store) -> None:
        for payload in (None, b"", b"\x00\xff'\\", bytes(range(256)) * 64):
            [job_id] = store.run(creation.create, [NewJob(new_id(), payload, Template(kind="k"))])
            assert store.run(jobs.get, job_id).payload == payload

    def test_a_batch_of_different_kinds_keeps_the_order_of_its_answer(self, store: Store) -> None:
        new = [NewJob(new_id(), b"", Template(kind=kind)) for kind in "abacab"]
        ids = store.run(creation.create, new)
        assert ids == [job.id for job in new]
        assert [store.run(jobs.get, job_id).kind for job_id in ids] == list("abacab")

    def test_a_held_job_waits_until_it_is_submitted_h108(self, store: Store) -> None:
        store.worker()
        [held] = store.create(state="CREATED")
        assert store.claim() == []
        assert store.run(creation.submit, [held, new_id()], actor="me") == {held}
        assert store.run(creation.submit, [held], actor="me") == set()
        assert [claim.id for claim in store.claim()] == [held]
        assert store.moves(held) == ["create", "submit", "claim"]

    def test_a_held_job_that_nobody_submits_expires_h108(self, store: Store) -> None:
        run_id = store.start([1], hold=True)  # its jobs wait for their run
        [held] = store.create(state="CREATED")
        store.create()
        hour = 3_600_000_000
        store.advance(3599)
        assert store.run(timers.expire_held, actor="m", hold_us=hour, most=9) == 0
        store.advance(2)
        assert store.run(timers.expire_held, actor="m", hold_us=hour, most=9) == 1
        job = store.run(jobs.get, held)
        assert (job.state, job.cause, store.moves(held)) == (
            *("FAILED", "deadline"),
            ["create", "expire"],
        )
        assert job.finished_at is not None
        assert store.jobs_of(run_id) == ["CREATED"]
        with pytest.raises(IllegalMove, match=rf"{held} is FAILED.*hold_limit"):
            store.run(creation.submit, [held], actor="me")

    def test_a_cancelled_job_is_not_submitted(self, store: Store) -> None:
        held, other = store.create(2, state="CREATED")
        store.run(jobs.cancel, held, reason="no", actor="me")
        with pytest.raises(IllegalMove, match=rf"{held} is CANCELLED"):
            store.run(creation.submit, [held, other], actor="me")
        assert store.state(other) == "CREATED", "all or nothing"

    def test_a_held_job_that_is_due_later_waits_after_submit(self, store: Store) -> None:
        [held] = store.create(state="CREATED", delay_us=60_000_000)
        store.run(creation.submit, [held], actor="me")
        assert store.state(held) == "WAITING"

    def test_a_job_for_later_waits_for_its_time_h5(self, store: Store) -> None:
        store.worker()
        [delayed] = store.create(state="WAITING", delay_us=60_000_000)
        at = store.run(workers.now) + timedelta(seconds=90)
        [dated] = store.create(state="WAITING", due_at=at)
        assert store.run(jobs.get, dated).due_at == at
        assert (store.run(timers.wake, actor="m", most=9), store.claim()) == (0, [])
        store.advance(61)
        assert (store.run(timers.wake, actor="m", most=9), store.state(delayed)) == (1, "QUEUED")
        store.advance(30)
        assert (store.run(timers.wake, actor="m", most=9), store.state(dated)) == (1, "QUEUED")

    def test_what_cannot_be_stored_is_invalid_and_stores_nothing_h113(self, store: Store) -> None:
        good = NewJob(new_id(), b"", Template(kind="k"))
        bad = NewJob(new_id(), b"", Template(kind="k", priority=10))
        with pytest.raises(Invalid):
            store.run(creation.create, [good, bad])
        assert store.run(jobs.counts) == {}

    def test_the_same_id_cannot_be_created_twice_h113(self, store: Store) -> None:
        job = NewJob(new_id(), b"", Template(kind="k"))
        store.run(creation.create, [job])
        with pytest.raises(IllegalMove):
            store.run(creation.create, [job])
        assert store.run(jobs.counts) == {"default": {"QUEUED": 1}}

    def test_the_loser_of_a_unique_key_gets_the_winners_job(self, store: Store) -> None:
        first, second = unique(), unique()
        assert store.run(creation.create, [first]) == [first.id]
        assert store.run(creation.create, [second]) == [first.id]
        assert store.run(creation.create, [unique("y"), unique("y"), second])[2] == first.id
        assert store.run(jobs.counts) == {"default": {"QUEUED": 2}}

    def test_a_unique_key_is_per_tenant_and_kind(self, store: Store) -> None:
        keyed = [unique(), unique(tenant="t"), NewJob(new_id(), b"", Template(kind="z"))]
        keyed[2] = NewJob(new_id(), b"", Template(kind="z"), unique_key="x")
        assert store.run(creation.create, keyed) == [job.id for job in keyed]

    def test_a_unique_key_is_free_again_after_the_end(self, store: Store) -> None:
        store.worker()
        first, second = unique(), unique()
        store.run(creation.create, [first])
        [claim] = store.claim()
        assert store.run(creation.create, [second]) == [first.id]
        store.settle((claim, outcome.succeeded()))
        assert store.run(creation.create, [second]) == [second.id]

    def test_concurrent_submits_of_one_key_make_one_job(self, store: Store) -> None:
        with ThreadPoolExecutor(8) as threads:
            ids = list(threads.map(lambda _: store.run(creation.create, [unique()])[0], range(24)))
        assert len(set(ids)) == 1
        assert store.run(jobs.counts) == {"default": {"QUEUED": 1}}

    def test_concurrent_bulk_submits_of_the_same_keys_do_not_collide(self, store: Store) -> None:
        def submit(turn: int) -> list[str]:
            keys = [f"k{number}" for number in range(12)]
            wanted = keys if turn % 2 else keys[::-1]
            ids = store.run(creation.create, [unique(key) for key in wanted])
            return ids if turn % 2 else ids[::-1]

        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(submit, range(12)))
        assert all(answer == answers[0] for answer in answers)
        assert store.run(jobs.counts) == {"default": {"QUEUED": 12}}

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_a_loser_waits_for_the_winners_transaction_f9(self, store: Store, end: str) -> None:
        winner, loser = new_id(), unique()
        begin = "BEGIN IMMEDIATE" if store.dialect == "sqlite" else "BEGIN"
        asked = Event()

        def submit() -> list[str]:
            asked.set()
            return store.run(creation.create, [loser])

        with ThreadPoolExecutor(1) as threads, store.raw() as hand:
            hand.execute(begin)
            hand.execute(
                "INSERT INTO job (id, kind, state, move, unique_key)"
                f" VALUES ('{winner}', 'k', 'QUEUED', 'create', 'x')"
            )
            answer = threads.submit(submit)
            assert asked.wait(10)
            with pytest.raises(TimeoutError):
                answer.result(timeout=0.1)
            hand.execute(end)
            assert answer.result(timeout=20) == [winner if end == "COMMIT" else loser.id]
        assert store.run(jobs.counts) == {"default": {"QUEUED": 1}}
