"""With the documented roles there is no way to a forged end or a changed history.

Each attack is tried at a prompt, as the role that the page gives to a program; afterwards nothing
is different, and verify finds nothing.
"""

from collections.abc import Iterator

import psycopg
import pytest
from hands import everything
from roles import Company, company

import milepost as mp
from milepost.address import StoreUrl
from milepost.observe.verify import verify
from milepost.store import jobs, workers
from milepost.store.connect import open_driver
from tests.support.databases import Backends, backend_names

POSTGRES = [name for name in backend_names() if name.startswith("postgres1")]
TABLES = ("token", "clock", "retention", "durable_step", "step_count", "pipeline", "outbox")


@pytest.fixture(params=POSTGRES)
def staff(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Company]:
    with company(backends.fresh(request.param)) as made:
        made.owner.execute(f"SET search_path = {made.schema}, public")
        yield made


@pytest.fixture
def scene(staff: Company) -> dict[str, str]:
    """A job that runs with a step done, one that ended, one that waits, a run, a pipeline."""
    app = mp.App(staff.home.url)

    @app.job
    def pay(ctx: mp.Context) -> int:
        return ctx.step("charge", lambda: 1)

    @app.job(name="running")
    def running() -> None: ...

    batch = app.batch("all")

    @batch.step
    def first() -> int:
        return 1

    @batch.reduce
    def last(_numbers: list[int]) -> int:
        return 7

    ended = pay.submit()
    app.drain()
    runs = running.submit()
    app.client.run(workers.register, workers.NewWorker(id="w", lease_us=3_600_000_000))
    app.client.run(jobs.claim, worker_id="w", line=jobs.lines(["default"]), most=1)
    queued = pay.options(start_in=3600, channel="news").submit()
    run = batch.start()
    staff.owner.execute("INSERT INTO pipeline (name, target, mark) VALUES ('p', 't', 5)")
    app.close()
    return {
        "ended": str(ended.id),
        "running": str(runs.id),
        "queued": str(queued.id),
        "run": str(run.id),
        "week": staff.owner.value(
            "SELECT 'journal_' || to_char(date_trunc('week', now()), 'yyyymmdd')"
        ),
    }


MOVE = "version = version + 1 WHERE id = '{running}'"
EVERYBODY = [
    # The record.
    "INSERT INTO journal SELECT * FROM journal",
    "UPDATE journal SET at = '2001-01-01'",
    "DELETE FROM journal",
    "TRUNCATE journal",
    "DELETE FROM journal_default",
    "DELETE FROM {week}",
    "DROP TABLE {week}",
    "SET milepost.retaining = 'on'; DELETE FROM journal",
    "SET milepost.journalling = 'on'; UPDATE journal SET actor = 'nobody'",
    "DELETE FROM watermark_entry",
    "INSERT INTO watermark_entry (pipeline_id, at, move) VALUES (1, now(), 'override')",
    # Who decides.
    "UPDATE clock SET offset_us = 86400000000",
    "DELETE FROM clock",
    "UPDATE migration SET checksum = 'x'",
    "DELETE FROM migration",
    "UPDATE step_count SET open = 0",
    # The guards.
    "ALTER TABLE job DISABLE TRIGGER USER",
    "DROP TRIGGER job_journal_move ON job",
    "SET session_replication_role = replica",
    "CREATE TRIGGER mine BEFORE UPDATE ON job EXECUTE FUNCTION milepost_refuse_hand()",
    "CREATE RULE nothing AS ON UPDATE TO job DO INSTEAD NOTHING",
    "CREATE TABLE {schema}.mine (n int)",
    (
        "CREATE OR REPLACE FUNCTION {schema}.milepost_now() RETURNS timestamptz LANGUAGE sql"
        " AS 'SELECT now()'"
    ),
    "ALTER FUNCTION {schema}.milepost_journal_move() SECURITY INVOKER",
    "SELECT milepost_sum_up('{ended}', now() + interval '1 day', 99)",
    "SELECT milepost_drop_week(now() + interval '1 day', 1000000)",
    "SET ROLE postgres",
    "SET SESSION AUTHORIZATION postgres",
    # Ends.
    "DELETE FROM job WHERE id = '{ended}'",
    "SET milepost.retaining = 'on'; DELETE FROM job WHERE id = '{ended}'",
    "UPDATE job SET result = 'x' WHERE id = '{ended}'",
    "UPDATE job SET finished_at = '2001-01-01' WHERE id = '{ended}'",
    "UPDATE job SET state = 'QUEUED', move = 'due', " + MOVE.replace("running", "ended"),
    "DELETE FROM run",
    (
        "INSERT INTO outbox (id, machine, subject_id, seq, line, channel, tenant, queue, kind,"
        " state, created_at, due_at) VALUES ('job_{queued}_2', 'job', '{queued}', 2, '{queued}',"
        " 'news', '', 'default', 'pay', 'SUCCEEDED', now(), now())"
    ),
    # Steps.
    "INSERT INTO durable_step (job_id, name, fence, at) VALUES ('{queued}', 'charge', 0, now())",
    "INSERT INTO durable_step (job_id, name, fence, at) VALUES ('{ended}', 'more', 1, now())",
    "INSERT INTO durable_step (job_id, name, fence, at) VALUES ('{running}', 'charge', 2, now())",
    "UPDATE durable_step SET result = NULL",
]
NOT_ADMIN = [
    "INSERT INTO token (id, name, hash, scopes, created_at) VALUES ('a', 'a', 'a', 'admin', now())",
    "UPDATE token SET scopes = 'admin'",
    "DELETE FROM token",
    "UPDATE retention SET least_us = 0",
    "DELETE FROM durable_step",
    "UPDATE job SET move = 'erase', result = NULL, " + MOVE.replace("running", "ended"),
    "UPDATE job SET move = 'erase', " + MOVE.replace("running", "ended"),
    "UPDATE pipeline SET mark = 1, move = 'override', reason = 'r', version = version + 1",
    "INSERT INTO queue (name, paused) VALUES ('default', true)",
]
NOT_WORKER = [
    # Where a final message goes, and to whom.
    "UPDATE job SET move = 'note', channel = 'mine', " + MOVE,
    "UPDATE job SET move = 'note', tenant = 'mine', " + MOVE,
    "UPDATE channel SET target = 'http://mine'",
    "UPDATE outbox SET channel = 'mine'",
    "UPDATE run SET state = 'SUCCEEDED', move = 'finish', version = version + 1",
    "UPDATE run SET state = 'RUNNING', move = 'begin', report = 'x', version = version + 1",
    "UPDATE job SET state = 'SUCCEEDED', move = 'succeed', worker_id = NULL, " + MOVE,
    "UPDATE job SET state = 'SUCCEEDED', move = 'succeed', " + MOVE,
    "UPDATE job SET state = 'FAILED', move = 'fail', worker_id = NULL, " + MOVE,
    "UPDATE job SET state = 'CANCELLED', move = 'cancel', worker_id = NULL, " + MOVE,
    "UPDATE job SET state = 'RUNNING', move = 'claim', worker_id = 'me', fence = fence + 1, "
    + MOVE.replace("running", "queued"),
    "UPDATE job SET state = 'FAILED', move = 'expire', " + MOVE.replace("running", "queued"),
    "UPDATE job SET state = 'FAILED', move = 'reject', " + MOVE.replace("running", "queued"),
    "INSERT INTO durable_step (job_id, name, fence, at) VALUES ('{running}', 'charge', 1, now())",
    "UPDATE pipeline SET mark = 99, move = 'advance', version = version + 1",
    "UPDATE worker SET lease_until = '2001-01-01'",
    "INSERT INTO worker (id, state, move) VALUES ('me', 'STARTUP', 'boot')",
    (
        "INSERT INTO journal_upkeep (task, subject_id, before, most)"
        " VALUES ('sum up', '{ended}', now(), 99)"
    ),
    "DELETE FROM staged",
    "SELECT session FROM source_budget",
]
READER = [
    "SELECT hash FROM token",
    "SELECT answer FROM idempotency",
    "INSERT INTO job (id, kind, state, move) VALUES (gen_random_uuid(), 'k', 'QUEUED', 'create')",
    "UPDATE job SET state = 'CANCELLED', move = 'cancel', " + MOVE.replace("running", "queued"),
    "SELECT nextval('queued_seq')",
    "SELECT 1 FROM job FOR UPDATE",
]
ADMINS = ("UPDATE pipeline", "UPDATE channel", "UPDATE outbox")
ATTACKS = {
    "worker": [*EVERYBODY, *NOT_ADMIN],
    "submit": [*EVERYBODY, *NOT_ADMIN, *NOT_WORKER],
    "read": [*EVERYBODY, *NOT_ADMIN, *NOT_WORKER, *READER],
    # Watermarks, channels and messages are an admin's to set.
    "admin": [*EVERYBODY, *(told for told in NOT_WORKER if not told.startswith(ADMINS))],
}


def picture(staff: Company) -> object:
    return everything(staff.owner), [
        staff.owner.execute(f"SELECT to_jsonb(t) FROM {table} t ORDER BY 1") for table in TABLES
    ]


def refused(staff: Company, role: str, attack: str) -> bool:
    with staff.hand(role) as hand:
        try:
            for statement in attack.split("; "):
                hand.execute(statement)
        except psycopg.errors.InsufficientPrivilege:
            return True
        except psycopg.Error as error:
            # Only a refusal of ours is one; a mistake in the attack is none.
            return "milepost:" in str(error)
    return False


@pytest.mark.parametrize("role", ATTACKS)
def test_no_attack_of_a_role_succeeds(staff: Company, scene: dict[str, str], role: str):
    before = picture(staff)
    for attack in ATTACKS[role]:
        told = attack.format(schema=staff.schema, **scene)
        assert refused(staff, role, told), (role, told)
    assert picture(staff) == before
    driver = open_driver(StoreUrl.parse(staff.home.url))
    assert verify(driver).problems == []
    driver.close()


def test_a_worker_sums_up_no_history_that_is_young(staff: Company, scene: dict[str, str]):
    before = picture(staff)
    with staff.hand("worker") as hand:
        hand.execute("SET milepost.retaining = 'on'")
        for task in ("sum up", "forget", "drop a week"):
            hand.execute(
                "INSERT INTO journal_upkeep (task, subject_id, before, most)"
                f" VALUES ('{task}', '{scene['ended']}', now() + interval '1 year', 1000000)"
            )
    assert picture(staff) == before


def test_a_worker_cannot_back_date_an_end_to_remove_it(staff: Company, scene: dict[str, str]):
    with staff.hand("worker") as hand:
        hand.execute(
            "UPDATE job SET state = 'SUCCEEDED', move = 'succeed', worker_id = NULL,"
            " finished_at = '2001-01-01', started_at = '2001-01-01',"
            f" version = version + 1 WHERE id = '{scene['running']}'"
        )
        before = picture(staff)
        hand.execute("SET milepost.retaining = 'on'")
        with pytest.raises(psycopg.Error, match="too young"):
            hand.execute(f"DELETE FROM job WHERE id = '{scene['running']}'")
    assert picture(staff) == before
    told = staff.owner.execute(
        f"SELECT db_user FROM journal WHERE subject_id = '{scene['running']}' AND move = 'succeed'"
    )
    assert told == [(staff.names["worker"],)]


def test_an_actor_may_lie_and_the_database_user_cannot(staff: Company, scene: dict[str, str]):
    with staff.hand("submit") as hand:
        hand.execute(
            "UPDATE job SET state = 'CANCELLED', move = 'cancel', actor = 'postgres',"
            f" version = version + 1 WHERE id = '{scene['queued']}'"
        )
    [told] = staff.owner.execute(
        f"SELECT actor, db_user FROM journal WHERE subject_id = '{scene['queued']}'"
        " AND move = 'cancel'"
    )
    assert told == ("postgres", staff.names["submit"])
