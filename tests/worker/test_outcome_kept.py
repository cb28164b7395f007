"""An outcome is refused by the store's judgement of its row alone; other errors delay it."""

import asyncio

import pytest

import milepost as mp
from milepost.errors import Invalid, Unavailable
from milepost.records import Settlement
from milepost.store import jobs
from milepost.worker import settler

LOCK_TIMEOUT = "ALTER DATABASE {} SET lock_timeout = '300ms'"
STATEMENT_TIMEOUT = "ALTER DATABASE {} SET statement_timeout = '300ms'"


@pytest.mark.parametrize(
    "limit",
    [(LOCK_TIMEOUT, 0.45), (LOCK_TIMEOUT, 0.9), (STATEMENT_TIMEOUT, 0.9)],
    ids=["lock", "long-lock", "statement"],
)
async def test_a_row_that_is_locked_too_long_delays_its_outcome_and_nothing_else_h39(
    app, database, working, until, limit
):
    setting, held_seconds = limit
    if database.dialect == "sqlite":
        pytest.skip("one writer at a time: there are no row locks")
    psycopg = pytest.importorskip("psycopg")
    with database.raw() as raw:
        [(name,)] = raw.execute("SELECT current_database()")
        raw.execute(setting.format(name))
    begun, let_go = [], asyncio.Event()

    @app.job(retries=3)
    async def slow(number: int) -> int:
        begun.append(number)
        await let_go.wait()
        return number

    held, *others = await slow.submit_many_async([(number,) for number in range(8)])
    async with working():
        await until(lambda: len(begun) == 8)
        with psycopg.connect(database.url) as holder:
            holder.execute("SET lock_timeout = 0; SET statement_timeout = 0")
            holder.execute("SELECT 1 FROM milepost.job WHERE id = %s FOR UPDATE", (held.id,))
            let_go.set()
            if held_seconds > 0.5:
                for other in others:  # the others do not wait for the one that is locked
                    assert (await other.wait_async(20)).state == mp.JobState.SUCCEEDED
            await asyncio.sleep(held_seconds)
        ended = await held.wait_async(20)
    assert (ended.state, ended.result) == (mp.JobState.SUCCEEDED, 0)
    assert [entry.move for entry in await held.history_async()] == ["create", "claim", "succeed"]
    assert sorted(begun) == list(range(8)), "every handler ran once"


class OddError(Exception):
    """An error that no store is known to raise: a driver's mistake."""


@pytest.mark.parametrize("error", [OddError("protocol"), Unavailable("away"), ValueError("a bug")])
async def test_an_error_that_is_no_judgement_of_the_row_never_fails_a_job(
    app, working, monkeypatch, error
):
    failures = 3

    @app.job(retries=3)
    async def quick(number: int) -> int:
        return number

    original = jobs.settle_some

    def broken(settlements, *, actor):
        nonlocal failures
        if failures and any(s.outcome.result == b"3" for s in settlements):
            failures -= 1
            raise error
        return (yield from original(settlements, actor=actor))

    monkeypatch.setattr(jobs, "settle_some", broken)
    made = await quick.submit_many_async([(number,) for number in range(8)])
    async with working():
        ended = [await job.wait_async(20) for job in made]
    assert [job.result for job in ended] == list(range(8))
    assert {tuple(e.move for e in await job.history_async()) for job in made} == {
        ("create", "claim", "succeed")
    }


async def test_what_the_store_itself_refuses_of_one_row_ends_that_job_alone(
    app, working, monkeypatch
):
    @app.job(retries=3)
    async def quick(number: int) -> int:
        return number

    original = jobs.settle_some

    def refusing(settlements: list[Settlement], *, actor):
        if any(s.outcome.result == b"3" for s in settlements):
            raise Invalid("a value that cannot be stored")
        return (yield from original(settlements, actor=actor))

    monkeypatch.setattr(jobs, "settle_some", refusing)
    made = await quick.submit_many_async([(number,) for number in range(8)])
    async with working():
        ended = [await job.wait_async(20) for job in made]
    states = [job.state for job in ended]
    assert states.count(mp.JobState.FAILED) == 1
    assert (ended[3].state, ended[3].error.type) == (mp.JobState.FAILED, "Unstorable")


SQLITE_TRIGGER = """
CREATE TRIGGER obstacle AFTER UPDATE ON job WHEN NEW.state = 'SUCCEEDED' AND {when}
  BEGIN {does}; END
"""
POSTGRES_FUNCTION = """
CREATE FUNCTION milepost.obstacle() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN {does}; RETURN NULL; END $$
"""
POSTGRES_TRIGGER = """
CREATE TRIGGER obstacle AFTER UPDATE ON milepost.job FOR EACH ROW
  WHEN (NEW.state = 'SUCCEEDED' AND {when}) EXECUTE FUNCTION milepost.obstacle()
"""


@pytest.fixture
def obstruct(database, raw):
    """Put a trigger of a user's own in the way of outcomes."""

    def obstruct(*, sqlite: str, postgres: str, result: int | None = None) -> None:
        if database.dialect == "sqlite":
            when = "true" if result is None else f"NEW.result = CAST('{result}' AS BLOB)"
            raw.execute(SQLITE_TRIGGER.format(when=when, does=sqlite))
            return
        when = "true" if result is None else f"NEW.result = '{result}'::bytea"
        raw.execute(POSTGRES_FUNCTION.format(does=postgres))
        raw.execute(POSTGRES_TRIGGER.format(when=when))

    def make_payroll() -> None:
        schema = "" if database.dialect == "sqlite" else "milepost."
        raw.execute(f"CREATE TABLE {schema}payroll (n integer)")

    obstruct.clear_away = make_payroll
    return obstruct


RAISE = "RAISE EXCEPTION 'payroll refuses it' USING ERRCODE = '{}'"
NEVER_TAKEN = {
    "a-trigger-says-no": {
        "sqlite": "SELECT RAISE(ABORT, 'payroll refuses it')",
        "postgres": RAISE.format("P0001"),
    },
    "too-large": {"sqlite": "SELECT zeroblob(2147483647)", "postgres": RAISE.format("54000")},
    "fails-for-this-value": {
        "sqlite": "SELECT json_extract('{', '$')",
        "postgres": RAISE.format("XX000"),
    },
}


@pytest.mark.parametrize("obstacle", NEVER_TAKEN.values(), ids=NEVER_TAKEN)
async def test_an_outcome_that_the_database_never_takes_fails_its_job_alone(
    app, obstruct, working, obstacle
):
    obstruct(**obstacle, result=3)

    @app.job(retries=3)
    async def quick(number: int) -> int:
        return number

    made = await quick.submit_many_async([(number,) for number in range(8)])
    async with working():
        others = [await job.wait_async(20) for job in made if job is not made[3]]
        assert {job.state for job in others} == {mp.JobState.SUCCEEDED}
        ended = await made[3].wait_async(30)
        # It holds no slot: others go on.
        assert (await (await quick.submit_async(9)).wait_async(20)).result == 9
    assert (ended.state, ended.error.type) == (mp.JobState.FAILED, "Unstorable")
    assert "its outcome could not be stored" in ended.error.message
    assert [entry.move for entry in await ended.history_async()] == ["create", "claim", "fail"]


async def test_what_the_database_lacks_is_waited_for_and_no_result_is_lost(
    app, obstruct, working, until, monkeypatch
):
    """An operator can make what is missing; a job that was failed would have to run again."""
    monkeypatch.setattr(settler, "TRIES", 2)
    begun, tries, let_go = [], [], asyncio.Event()
    original = jobs.settle_some

    async def meanwhile(change, **text):
        if app.client.url.can.file:
            change(**text)
        else:  # in a thread: it waits for locks, which the worker's loop has to let go of
            await asyncio.to_thread(change, **text)

    def counting(settlements, *, actor):
        tries.extend(settlement.claim.id for settlement in settlements)
        return original(settlements, actor=actor)

    monkeypatch.setattr(jobs, "settle_some", counting)

    @app.job(retries=3)
    async def slow(number: int) -> int:
        begun.append(number)
        await let_go.wait()
        return number

    made = await slow.submit_many_async([(number,) for number in range(3)])
    async with working():
        await until(lambda: len(begun) == 3)
        await meanwhile(
            obstruct,
            sqlite="INSERT INTO payroll VALUES (1)",
            postgres="INSERT INTO milepost.payroll VALUES (1)",
        )
        let_go.set()
        await until(lambda: all(tries.count(job.id) > 5 for job in made))
        assert [(await job.refresh_async()).state for job in made] == [mp.JobState.RUNNING] * 3
        await meanwhile(obstruct.clear_away)
        ended = [await job.wait_async(20) for job in made]
    assert [job.result for job in ended] == [0, 1, 2]
    assert sorted(begun) == [0, 1, 2], "every handler ran once"


async def test_a_right_that_is_missing_holds_up_the_outcomes_that_need_it_alone(
    app, database, obstruct, working, raw
):
    if database.dialect == "sqlite":
        pytest.skip("who may open the file has every right")
    obstruct(sqlite="", postgres=RAISE.format("42501"), result=3)

    @app.job
    async def quick(number: int) -> int:
        return number

    made = await quick.submit_many_async([(number,) for number in range(8)])
    async with working():
        for job in made:
            if job is not made[3]:
                assert (await job.wait_async(20)).state == mp.JobState.SUCCEEDED
        assert (await made[3].refresh_async()).state == mp.JobState.RUNNING
        # In a thread: it waits for the worker's own transaction, which needs this loop to end.
        await asyncio.to_thread(raw.execute, "DROP TRIGGER obstacle ON milepost.job")
        assert (await made[3].wait_async(20)).result == 3
