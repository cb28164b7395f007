"""With the documented roles no run ends before its work, and what a worker keeps is not forged."""

from collections.abc import Iterator
from typing import Any

import pytest
from roles import Company
from test_roles import Numbers
from test_roles_attack import picture, refused, staff

import milepost as mp

__all__ = ["staff"]

CLIENTS = ("submit", "admin")
MOVED = "version = version + 1 WHERE id = '{going}'"
ATTACKS = [
    # A run that ends over its work.
    "INSERT INTO step_count (run_id, step, slot, open) VALUES ('{going}', 0, 99, -1000)",
    "INSERT INTO step_count (run_id, step, slot, failed) VALUES ('{going}', 0, 99, 1000)",
    "INSERT INTO step (run_id, number, name, role, kind) VALUES ('{going}', 7, 'x', 'reduce', 'k')",
    "INSERT INTO step (run_id, number, name, role, kind) VALUES ('{over}', 7, 'x', 'reduce', 'k')",
    "UPDATE run SET state = 'RUNNING', move = 'begin', current_step = 1, " + MOVED,
    "UPDATE run SET state = 'FINALIZING', move = 'finalize', " + MOVED,
    (
        "BEGIN; UPDATE run SET state = 'QUEUED', move = 'seal', version = 2 WHERE id = '{empty}'; "
        "UPDATE run SET state = 'SUCCEEDED', move = 'finish', version = 3 WHERE id = '{empty}'"
    ),
    "UPDATE publication SET withdrawn = true WHERE run_id = '{filled}'",
    "UPDATE publication SET run_id = '{going}', withdrawn = false",
    "UPDATE publication SET run_id = '{going}'",
    (
        "INSERT INTO run (id, kind, state, move, report)"
        " VALUES (gen_random_uuid(), 'all', 'QUEUED', 'create', 'forged')"
    ),
    # A gate that is opened early, or closed again.
    "UPDATE step SET opened = true WHERE run_id = '{going}' AND number = 1",
    "UPDATE step SET opened = false WHERE run_id = '{going}' AND number = 0",
    # More work for a run that has begun, or is over.
    (
        "INSERT INTO job (id, kind, state, move, run_id, step, ordinal)"
        " VALUES (gen_random_uuid(), 'all.first', 'QUEUED', 'create', '{going}', 0, 99)"
    ),
    (
        "INSERT INTO job (id, kind, state, move, run_id, step, ordinal)"
        " VALUES (gen_random_uuid(), 'all.first', 'QUEUED', 'create', '{over}', 0, 99)"
    ),
    (
        "BEGIN; INSERT INTO step_count (run_id, step, slot) VALUES ('{going}', 0, -2); "
        "INSERT INTO run (id, kind, state, move, parent_id, depth)"
        " VALUES (gen_random_uuid(), 'all', 'QUEUED', 'create', '{going}', 1)"
    ),
    # A cursor that no attempt saved.
    "INSERT INTO progress (job_id, fence, position) VALUES ('{queued}', 0, 'forged')",
    "INSERT INTO progress (job_id, fence, next_offset) VALUES ('{queued}', 0, 99)",
    "UPDATE progress SET position = 'forged'",
    "UPDATE progress SET next_offset = 99",
]


def batch_of(app: mp.App) -> Any:
    batch = app.batch("all", params=int)

    @batch.step(retries=0)
    def first(number: int) -> Iterator[int]:
        if number < 0:
            raise mp.Fail("negative")
        yield from range(number)

    @batch.step(gated=True)
    def second(number: int) -> int:
        return number

    @batch.reduce
    def last(numbers: list[int]) -> int:
        return len(list(numbers))

    return batch


@pytest.fixture
def scene(staff: Company) -> dict[str, str]:
    """Runs that begin, that are over, without jobs, and with outputs that are not jobs yet."""
    app = mp.App(staff.home.url)
    batch = batch_of(app)

    @app.job
    def saves(ctx: mp.Context) -> None:
        ctx.save(5)

    saves.submit()
    over = batch.start(-1)
    app.drain()
    filled, empty = (batch.start(1, hold=True) for _ in range(2))
    going, queued = batch.start(1), saves.submit()
    ids = {"over": over, "going": going, "filled": filled, "empty": empty, "queued": queued}
    found = {name: str(thing.id) for name, thing in ids.items()}
    staff.owner.execute(
        "UPDATE job SET state = 'CANCELLED', move = 'cancel', version = 2"
        f" WHERE run_id = '{found['empty']}'"
    )
    staff.owner.execute(
        "INSERT INTO publication (producer_id, fence, run_id, total)"
        f" VALUES (gen_random_uuid(), 1, '{found['filled']}', 3)"
    )
    app.close()
    return found


@pytest.mark.parametrize("role", CLIENTS)
def test_no_client_ends_a_run_early_or_forges_a_cursor(
    staff: Company, scene: dict[str, str], role: str
):
    before = picture(staff)
    tables = ("step", "publication", "progress")
    stood = [staff.owner.execute(f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables]
    through = [
        told
        for told in (attack.format(**scene) for attack in ATTACKS)
        if not refused(staff, role, told)
    ]
    assert through == []
    assert picture(staff) == before
    assert [staff.owner.execute(f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables] == stood


@pytest.mark.parametrize("role", CLIENTS)
def test_a_client_resumes_a_run_with_what_was_not_published(staff: Company, role: str):
    client, machine = mp.App(staff.url(role)), mp.App(staff.url("worker"))
    batch, _ = batch_of(client), batch_of(machine)
    run = batch.start(-1)
    machine.drain(timeout=5)
    assert run.refresh().state == "FAILED"
    staff.owner.execute(
        "INSERT INTO publication (producer_id, fence, run_id, total, published, withdrawn)"
        f" VALUES (gen_random_uuid(), 1, '{run.id}', 1, 0, true)"
    )
    again = run.resume()
    moved = staff.owner.execute("SELECT run_id::text, withdrawn FROM publication")
    assert moved == [(str(again.id), False)]
    for app in (client, machine):
        app.close()


RUN = "00000000-0000-7000-8000-000000000001"
NEW_RUN = f"INSERT INTO run (id, kind, state, move) VALUES ('{RUN}', 'p', 'CREATED', 'create'); "
WINDOW = (
    "INSERT INTO pipeline_run (run_id, root_id, pipeline_id, number, mode, before_mark, start_mark,"
    " end_mark, planned_at) SELECT '{run}', '{root}', id, 9, {values} FROM pipeline"
)


@pytest.mark.parametrize("role", CLIENTS)
def test_no_client_forges_the_window_that_a_watermark_is_moved_by(staff: Company, role: str):
    staff.owner.execute("INSERT INTO pipeline (name, target, mark) VALUES ('p', 't', 5)")
    app = mp.App(staff.home.url)
    old = str(batch_of(app).start(1, hold=True).id)
    app.close()
    honest = "'incremental', 5, 3, NULL, NULL"
    through = []
    for run, root, values in (
        (RUN, RUN, "'incremental', 5, 0, 99, NULL"),
        (RUN, RUN, "'incremental', 5, 99, NULL, NULL"),
        (RUN, RUN, "'incremental', 9, 5, NULL, NULL"),
        (RUN, RUN, "'incremental', 5, 3, NULL, now()"),
        (RUN, RUN, "'full', 5, 4, NULL, NULL"),
        (RUN, old, honest),
        (old, old, honest),
    ):
        told = "BEGIN; " + NEW_RUN + WINDOW.format(run=run, root=root, values=values)
        if not refused(staff, role, told):
            through.append(values)
    if not refused(staff, role, "INSERT INTO pipeline (name, target, mark) VALUES ('q', 't', 9)"):
        through.append("mark")
    assert through == []
    with staff.hand(role) as hand, hand.connection.transaction():
        hand.execute(NEW_RUN)
        hand.execute(WINDOW.format(run=RUN, root=RUN, values=honest))


def test_a_submitter_resumes_a_pipeline_where_it_stopped(staff: Company):
    """Each partition goes on from its last page, and the watermark moves as if nothing happened."""
    for role in ("submit", "worker"):  # the target is the application's own table
        staff.owner.execute(f'GRANT CREATE ON SCHEMA public TO "{staff.names[role]}"')
    client, machine = mp.App(staff.url("submit")), mp.App(staff.url("worker"))
    source = Breaking()
    declared = {"key": "id", "version": "updated_at", "partition_by": "id", "partitions": 1}
    pipeline, _ = (
        app.pipeline("numbers", source, retries=0, **declared) for app in (client, machine)
    )
    run = pipeline.start()
    machine.drain(timeout=20)
    assert run.refresh().state == "FAILED"
    source.broken = False
    again = run.resume()
    machine.drain(timeout=20)
    assert again.refresh().state == "SUCCEEDED", again.errors
    assert source.read == [0, 1, 1, 2]
    for app in (client, machine):
        app.close()


class Breaking(Numbers):
    """Three pages; the second cannot be read until it is repaired."""

    def __init__(self) -> None:
        self.broken, self.read = True, []

    def fetch(self, window, partition, cursor) -> mp.Page:
        page = cursor or 0
        self.read.append(page)
        if page == 1 and self.broken:
            raise mp.Fail("away")
        stamp = "2024-01-01T00:00:00+00:00"
        found = [{"id": n, "updated_at": stamp} for n in range(page * 10, page * 10 + 10)]
        return mp.Page(found, page + 1 if page < 2 else None)


def test_no_worker_changes_what_a_job_gave_once_it_ended(staff: Company):
    app = mp.App(staff.home.url)
    batch = app.batch("several")

    @batch.step
    def give() -> Iterator[int]:
        yield from (1, 2, 3)

    @batch.reduce
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    run = batch.start()
    app.drain()
    assert run.refresh().report == 6
    app.close()
    before = staff.owner.execute("SELECT * FROM job_output ORDER BY seq")
    assert len(before) == 3
    (job_id, fence, *_) = before[0]
    for attack in (
        f"INSERT INTO job_output (job_id, fence, seq, payload) VALUES ('{job_id}', {fence}, 9, '')",
        "UPDATE job_output SET payload = '4'",
        "UPDATE job_output SET job_id = gen_random_uuid()",
        "DELETE FROM job_output",
    ):
        assert refused(staff, "worker", attack), attack
    assert staff.owner.execute("SELECT * FROM job_output ORDER BY seq") == before


def test_a_tree_of_batches_is_started_stopped_and_resumed_by_a_client(staff: Company) -> None:
    """And ended by a worker: its rights suffice to count a batch in its parent (H-68)."""
    client, worker = mp.App(staff.url("submit")), mp.App(staff.url("worker"))
    item = {"url": "http://127.0.0.1:9", "retries": 0}
    batch = client.request_batch([{"batch": [{"batch": [item]}]}])
    assert batch.cancel() == "CANCELLED"
    again = batch.resume()
    worker.drain()
    assert (again.refresh().state, again.failed) == ("FAILED", 1)
    client.close()
    worker.close()
