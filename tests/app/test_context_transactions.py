"""Transactions of a handler commit under the job's fence, with the step or the cursor in them."""

import asyncio
import sqlite3
import threading

import psycopg
import pytest
from attempts import claimed, lose, overtaken

import milepost as mp
from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.context import Context
from milepost.observe.verify import verify
from milepost.store import durable, lend


@pytest.fixture
def job(app, raw):
    raw.execute("CREATE TABLE effect (name text NOT NULL)")

    @app.job(name="work")
    def work() -> None: ...

    return work.submit()


def write(connection, name="x"):
    connection.execute(f"INSERT INTO effect VALUES ('{name}')")


def give_up(*_):
    raise ZeroDivisionError


def each(*calls):
    """Do one after the other."""
    for call in calls:
        call()


def effects(raw):
    return [name for (name,) in raw.execute("SELECT name FROM effect ORDER BY name")]


def steps(raw):
    return [name for (name,) in raw.execute("SELECT name FROM durable_step ORDER BY name")]


WITHIN = {"transaction": True}


async def write_async(connection, name="x"):
    done = connection.execute(f"INSERT INTO effect VALUES ('{name}')")
    if asyncio.iscoroutine(done):  # asyncpg; sqlite3 has it done already
        await done


# A block


def test_a_block_commits_what_it_wrote(app, job, raw, database):
    with claimed(app).transaction() as connection:
        assert isinstance(
            connection, sqlite3.Connection if database.dialect == "sqlite" else psycopg.Connection
        )
        write(connection)
    assert effects(raw) == ["x"]


def test_a_block_that_raises_leaves_nothing(app, job, raw):
    with pytest.raises(ZeroDivisionError), claimed(app).transaction() as connection:
        give_up(write(connection))
    assert effects(raw) == []


def test_an_attempt_that_lost_its_lease_cannot_commit(app, job, raw, advance):
    """I2, H-30: the late writer is refused, whatever it has done since."""
    late, holder = overtaken(app, advance)
    with pytest.raises(mp.LeaseLost, match="nothing was written"), late.transaction() as connection:
        write(connection, "late")
    with holder.transaction() as connection:
        write(connection, "holder")
    assert effects(raw) == ["holder"]


def test_a_lease_lost_inside_the_block_undoes_it(app, job, raw, advance, database):
    if database.dialect == "sqlite":
        pytest.skip("nobody else can write meanwhile, so the lease cannot be taken away")
    late = claimed(app)
    with pytest.raises(mp.LeaseLost), late.transaction() as connection:
        each(lambda: write(connection), lambda: lose(app, advance))
    assert effects(raw) == []


def test_the_job_can_be_cancelled_and_lost_while_a_block_is_open(app, job, advance, database):
    """H-35: no row of the engine is held while the handler is at work."""
    if database.dialect == "sqlite":
        pytest.skip("SQLite has one writer")
    with claimed(app).transaction() as connection:
        write(connection)
        assert job.cancel("not needed") == "RUNNING"


@pytest.mark.parametrize(
    "written",
    [
        lambda lent, claim: lent.run(durable.hold, claim),
        lambda lent, claim: lent.run(durable.record, claim, "a", b"1"),
        lambda lent, claim: lent.run(durable.save, claim, b"1", after=durable.SavedCursor(0, None)),
        lambda lent, claim: lent.run(
            durable.write_progress, [durable.AttemptProgress(claim, 0.5, None)]
        ),
    ],
    ids=["hold", "record", "save", "tell"],
)
def test_a_job_cannot_be_taken_between_a_write_under_its_fence_and_the_commit(
    app, job, advance, database, written
):
    """I2: otherwise the next attempt would begin without seeing what this one did."""
    if database.dialect == "sqlite":
        pytest.skip("nobody else can write meanwhile, so the lease cannot be taken away")
    context = claimed(app)
    with app.client.lend() as lent:
        written(lent, context.claim)
        lose(app, advance)
        assert job.refresh().state == "RUNNING"
    lose(app, advance)
    assert job.refresh().state == "QUEUED"


def test_jobs_submitted_within_the_block_commit_with_it(app, job, raw):
    @app.job(name="next")
    def following() -> None: ...

    context = claimed(app)
    with context.transaction() as connection:
        made = following.within(connection).submit()
    assert made.refresh().state == "QUEUED"
    undone = []
    with pytest.raises(ZeroDivisionError), context.transaction() as connection:
        give_up(undone.append(following.within(connection).submit()))
    with pytest.raises(mp.NotFound):
        undone[0].refresh()


def test_a_transaction_that_was_ended_inside_its_block_is_refused(app, job, database):
    context = claimed(app)
    with pytest.raises(mp.Invalid, match="in no transaction"), context.transaction() as connection:
        each(lambda: write(connection), lambda: connection.execute("ROLLBACK"))
    if database.dialect == "postgres":
        with (
            pytest.raises(psycopg.ProgrammingError, match="forbidden"),
            context.transaction() as connection,
        ):
            connection.commit()


def test_errors_of_the_users_statements_stay_the_users(app, job, database):
    mistake = sqlite3.OperationalError if database.dialect == "sqlite" else psycopg.errors.Error
    with pytest.raises(mistake, match="nonsense"), claimed(app).transaction() as connection:
        connection.execute("SELECT * FROM nonsense")


def test_what_a_handler_sets_on_its_connection_does_not_reach_the_next(app, job, database):
    context = claimed(app)
    with context.transaction() as connection:
        if database.dialect == "sqlite":
            connection.row_factory = sqlite3.Row
        else:
            connection.row_factory = psycopg.rows.dict_row
            connection.execute("SET application_name = 'mine'")
    with context.transaction() as connection:
        found = connection.execute("SELECT 1").fetchone()
        assert (type(found), found) == (tuple, (1,))
        if database.dialect == "postgres":
            assert connection.execute("SHOW application_name").fetchone() != ("mine",)


def test_a_connection_that_the_handler_closed_commits_nothing_and_is_replaced(app, job, raw):
    context = claimed(app)
    with pytest.raises(Exception, match="closed"), context.transaction() as connection:
        each(lambda: write(connection, "closed"), connection.close)
    with context.transaction() as connection:
        write(connection, "next")
    assert effects(raw) == ["next"]


def test_more_blocks_at_once_than_connections_are_kept(app, job, raw):
    context = claimed(app)
    for round_ in range(2):
        threads = [
            threading.Thread(target=context.step, args=(f"{round_}-{n}", write), kwargs=WITHIN)
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(effects(raw)) == 16


def test_a_block_within_a_block_and_a_step_within_one_are_refused(app, job):
    context = claimed(app)
    with context.transaction():
        with (
            pytest.raises(mp.Invalid, match="open here already: use its connection"),
            context.transaction(),
        ):
            pass
        with pytest.raises(mp.Invalid, match="step 'a' was begun inside a transaction"):
            context.step("a", lambda: 1)


async def test_blocks_of_async_handlers(app, job, raw, advance):
    context = await asyncio.to_thread(claimed, app)
    async with context.transaction_async() as connection:
        await write_async(connection, "kept")
    with pytest.raises(ZeroDivisionError):
        async with context.transaction_async() as connection:
            give_up(await write_async(connection, "undone"))
    await asyncio.to_thread(lose, app, advance)
    with pytest.raises(mp.LeaseLost):
        async with context.transaction_async() as connection:
            await write_async(connection, "late")
    assert effects(raw) == ["kept"]
    await app.close_async()


async def test_a_block_whose_task_is_cancelled_leaves_nothing(app, job, raw):
    context = await asyncio.to_thread(claimed, app)
    inside = asyncio.Event()

    async def handler():
        async with context.transaction_async() as connection:
            await write_async(connection)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(handler())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with context.transaction_async() as connection:
        await write_async(connection, "after")
    assert effects(raw) == ["after"]
    await app.close_async()


@pytest.mark.parametrize("url", ["postgresql://me:hunter2@127.0.0.1:1/x"])
async def test_a_server_that_is_away_is_named_without_its_password(url):
    lender = lend.Lender(StoreUrl.parse(url), Timeouts())
    with pytest.raises(mp.Unavailable, match=r"me@127.0.0.1:1/x cannot be reached; is the") as told:
        await asyncio.to_thread(lender.lend().__enter__)
    assert "hunter2" not in str(told.value)
    await asyncio.to_thread(lender.close)
    awaited = lend.AsyncLender(StoreUrl.parse(url), Timeouts())
    with pytest.raises(mp.Unavailable, match="is the server running"):
        await awaited.lend().__aenter__()
    await awaited.close()


def test_a_sqlite_store_that_another_writes_to_is_waited_for_and_then_named(
    app, job, raw, database, monkeypatch
):
    if database.dialect == "postgres":
        pytest.skip("PostgreSQL has many writers")
    monkeypatch.setattr("milepost.store.sqlite.BUSY_SECONDS", 0.05)
    context = claimed(app)
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(mp.Unavailable, match="cannot be written to now: database is locked"):
        context.transaction().__enter__()


# A step


def test_a_transactional_step_gets_the_connection_first(app, job, raw, advance):
    def load(connection, name: str, *, times: int) -> int:
        for _ in range(times):
            write(connection, name)
        return times

    assert claimed(app).step("load", load, "row", times=2, transaction=True) == 2
    lose(app, advance)
    assert claimed(app).step("load", load, "again", times=9, transaction=True) == 2
    assert effects(raw) == ["row", "row"]


def test_a_transactional_step_that_fails_leaves_neither_writes_nor_record(app, job, raw):
    def load(connection) -> None:
        write(connection)
        raise ValueError("no")

    context = claimed(app)
    with pytest.raises(ValueError, match="no"):
        context.step("load", load, transaction=True)
    assert (effects(raw), steps(raw)) == ([], [])
    context.step("load", write, transaction=True)
    assert (effects(raw), steps(raw)) == (["x"], ["load"])


def test_a_transactional_step_whose_result_cannot_be_kept_is_undone(app, job, raw):
    def load(connection) -> object:
        write(connection)
        return object()

    with pytest.raises(mp.Invalid, match="step 'load'"):
        claimed(app).step("load", load, transaction=True)
    assert (effects(raw), steps(raw)) == ([], [])


def test_a_transactional_step_of_an_attempt_without_a_lease_is_undone(
    app, job, raw, advance, database
):
    late = claimed(app)

    def load(connection) -> None:
        write(connection)
        if database.dialect == "postgres":
            lose(app, advance)
        else:  # nobody else can write now: the lease is taken away in the same transaction
            connection.execute(
                "UPDATE job SET state = 'RETRYING', move = 'lose', worker_id = NULL,"
                " version = version + 1"
            )

    with pytest.raises(mp.LeaseLost):
        late.step("load", load, transaction=True)
    assert (effects(raw), steps(raw)) == ([], [])


async def test_transactional_steps_of_async_handlers(app, job, raw, database):
    context = await asyncio.to_thread(claimed, app)
    await context.step_async("async", write_async, "async", transaction=True)

    def load(connection) -> str:
        write(connection, "plain")
        modules = {kind.__module__ for kind in type(connection).__mro__}
        return (modules & {"psycopg", "sqlite3"}).pop()

    # A plain function gets a connection that plain code can use.
    plain = await context.step_async("plain", load, transaction=True)
    assert plain == ("sqlite3" if database.dialect == "sqlite" else "psycopg")

    async def broken(connection) -> None:
        await write_async(connection, "broken")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await context.step_async("broken", broken, transaction=True)
    assert (effects(raw), steps(raw)) == (["async", "plain"], ["async", "plain"])
    await app.close_async()


# The cursor


def test_a_cursor_is_none_first_and_survives_the_attempt(app, job, advance):
    context = claimed(app)
    assert context.cursor is None
    context.save({"page": 3})
    context.save({"page": 4})
    assert context.cursor == {"page": 4}
    lose(app, advance)
    after = claimed(app)
    assert after.cursor == {"page": 4}
    after.save(None)
    assert after.cursor is None


def test_an_attempt_that_lost_its_lease_saves_nothing(app, job, advance):
    late = claimed(app)
    assert late.cursor is None  # known before: the save itself must be refused
    lose(app, advance)
    holder = claimed(app)
    with pytest.raises(mp.LeaseLost):
        late.save(3)
    assert holder.cursor is None
    with pytest.raises(mp.LeaseLost):
        _ = Context(late.claim, app.client).cursor


def test_a_save_never_overwrites_one_that_was_not_seen(app, job):
    """H-46, H-47: the cursor moves by compare-and-swap; an update cannot be lost."""
    here = claimed(app)
    there = Context(here.claim, app.client)
    assert (here.cursor, there.cursor) == (None, None)
    here.save(1)
    with pytest.raises(mp.IllegalMove, match="saved 1 times since it was read here"):
        there.save(2)
    assert there.cursor == 1  # read again, and now it may go on
    there.save(2)
    assert Context(here.claim, app.client).cursor == 2


def test_a_save_whose_answer_was_lost_is_known_again(app, job):
    """F3."""
    context = claimed(app)
    before = app.client.run(durable.cursor, context.claim)
    for _ in range(2):
        saved = app.client.run(durable.save, context.claim, b"5", after=before)
        assert saved.number == 1


def test_a_cursor_saved_in_a_block_moves_with_it(app, job, raw):
    """H-48: the data and how far it goes are one transaction."""
    context = claimed(app)
    with context.transaction() as connection:
        write(connection, "page-1")
        context.save(1)
    with pytest.raises(ZeroDivisionError), context.transaction() as connection:
        each(lambda: write(connection, "page-2"), lambda: context.save(2), give_up)
    assert (effects(raw), context.cursor) == (["page-1"], 1)
    with context.transaction() as connection:
        write(connection, "page-2")
        context.save(2)
    assert (effects(raw), context.cursor) == (["page-1", "page-2"], 2)


async def test_a_cursor_in_async_handlers(app, job, raw):
    context = await asyncio.to_thread(claimed, app)
    assert await context.cursor_async() is None
    await context.save_async(1)
    async with context.transaction_async() as connection:
        await write_async(connection)
        await context.save_async(2)
    assert context.cursor == 2  # known here by now: nothing to wait for
    with pytest.raises(ZeroDivisionError):
        async with context.transaction_async():
            give_up(await context.save_async(3))
    assert await context.cursor_async() == 2
    await app.close_async()


def test_a_cursor_that_cannot_be_kept_is_refused(app, job):
    context = claimed(app)
    with pytest.raises(mp.Invalid, match=f"the cursor of job {context.id}: the value cannot"):
        context.save(object())
    with pytest.raises(mp.Invalid, match="and the limit is"):
        context.save("x" * 2_000_000)


def test_a_store_with_steps_and_cursors_verifies(app, job, database):
    context = claimed(app)
    context.step("load", write, transaction=True)
    context.save(1)
    context.progress(0.5)
    with database.driver() as driver:
        assert verify(driver).clean
