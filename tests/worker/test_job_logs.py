"""Lines that handlers log name their job, and the last ones are kept with it."""

import asyncio
import logging
import threading

import msgspec
import pytest
from click.testing import CliRunner

import milepost as mp
from milepost.cli import cli
from milepost.observe.verify import verify
from milepost.store import jobs, logs, workers
from milepost.store.logs import BYTES_MOST, LINES_MOST

pytestmark = pytest.mark.in_turn

logger = logging.getLogger("shop.tasks")


@pytest.fixture(autouse=True)
def info():
    """Let the handlers' logger pass INFO, as a program's own configuration would."""
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(logging.NOTSET)


def texts(job):
    return [line.text for line in job.logs]


def test_lines_of_plain_and_asynchronous_handlers_are_kept_with_their_jobs(app, caplog):
    @app.job(retries=1, retry_delay=0)
    def plain(name: str) -> None:
        logger.info("plain %s", name)
        mp.current().log.info("bound", size=3)
        if mp.current().attempt == 1:
            logger.warning("again")
            raise ConnectionError("away")

    @app.job
    async def awaited(name: str) -> None:
        logger.info("awaited %s", name)
        await asyncio.sleep(0)
        await asyncio.to_thread(logger.info, "in a thread of its own")
        logger.debug("below the level")

    first, second, third = plain.submit("a"), awaited.submit("b"), awaited.submit("c")
    app.drain(timeout=20)
    assert texts(first) == ["plain a", "bound size=3", "again", "plain a", "bound size=3"]
    assert [line.n for line in first.logs] == [1, 2, 3, 4, 5]
    assert [(line.attempt, line.level) for line in first.logs[1:4]] == [
        (1, "info"),
        (1, "warning"),
        (2, "info"),
    ]
    assert (texts(second), texts(third)) == (
        ["awaited b", "in a thread of its own"],
        ["awaited c", "in a thread of its own"],
    )
    told = [
        (r.milepost_job_id, r.milepost_attempt) for r in caplog.records if r.name == logger.name
    ]
    assert {(first.id, 1), (first.id, 2), (second.id, 1), (third.id, 1)} == set(told)
    logging.getLogger("shop").warning("outside a job")
    assert caplog.records[-1].milepost_job_id is None


def test_what_is_kept_is_bounded_and_has_no_secrets(app):
    @app.job
    def chatty() -> None:
        for number in range(3 * LINES_MOST):
            logger.info("line %d", number)

    @app.job
    def long() -> None:
        for number in range(20):
            logger.info("%d %s", number, "é" * 6_000)

    @app.job
    def careless() -> None:
        logger.info("login with password=hunter2 at postgres://me:hunter2@host/db\0")
        logger.info("%d", "no number")
        logger.info("own fields", extra={"job_id": 7, "attempt": 9})
        try:
            int("token=hunter2")
        except ValueError:
            logger.exception("caught")

    many, wide, open_ = chatty.submit(), long.submit(), careless.submit()
    logging.raiseExceptions = False
    try:
        app.drain(timeout=20)
    finally:
        logging.raiseExceptions = True
    assert [line.n for line in many.logs] == [*range(2 * LINES_MOST + 1, 3 * LINES_MOST + 1)]
    assert texts(many) == [f"line {number}" for number in range(2 * LINES_MOST, 3 * LINES_MOST)]
    assert texts(wide)[-1].startswith("19 é")
    assert 3 < len(texts(wide)) < 20
    assert sum(len(text.encode()) for text in texts(wide)) <= BYTES_MOST
    assert open_.refresh().state == mp.JobState.SUCCEEDED
    assert "hunter2" not in str(open_.logs)
    assert "own fields" in texts(open_)
    assert "Traceback" in texts(open_)[-1]
    app.client.run(jobs.erase, open_.id, actor="test")
    assert open_.logs == []


def test_lines_are_written_while_a_job_runs_and_not_after_its_lease_is_lost(app, database):
    seen, go_on, claims = threading.Event(), threading.Event(), []

    @app.job
    def slow() -> None:
        logger.info("begun")
        claims.append(mp.current().claim)
        seen.set()
        assert go_on.wait(20)
        logger.info("over")

    job = slow.submit()
    drain = threading.Thread(target=app.drain, kwargs={"timeout": 20})
    drain.start()
    assert seen.wait(20)
    while not job.logs:
        threading.Event().wait(0.05)
    assert (texts(job), job.refresh().state) == (["begun"], mp.JobState.RUNNING)
    go_on.set()
    drain.join()
    assert texts(job) == ["begun", "over"]
    # An attempt whose lease was lost writes nothing more.
    claim = msgspec.structs.replace(claims[0], fence=claims[0].fence - 1)
    with database.driver() as driver:
        driver.run(logs.write, [logs.AttemptLines(claim, tuple(job.logs))])
        assert verify(driver).problems == []
    assert texts(job) == ["begun", "over"]


def test_a_handler_that_logs_nothing_writes_nothing_and_lines_leave_with_their_job(app, raw):
    @app.job
    def quiet() -> None: ...

    @app.job
    def chatty() -> None:
        logger.info("hello")

    quiet.submit()
    job = chatty.submit()
    app.drain()
    assert raw.execute("SELECT CAST(job_id AS text) FROM job_log") == [(job.id,)]
    app.client.run(workers.advance_clock, 8 * 86_400.0)
    app.maintain_once()
    assert raw.value("SELECT count(*) FROM job_log") == 0


def test_lines_that_were_not_kept_are_counted_also_when_a_write_fails():
    context = mp.testing.context()

    def logged(first, last):
        for number in range(first, last):
            context.keep_line(0.0, "INFO", "shop", f"line {number}")

    logged(0, 2 * LINES_MOST)
    taken = context.take_lines()
    assert [line.n for line in taken] == [LINES_MOST + 1] + [1] * (LINES_MOST - 1)
    context.put_back(taken)
    assert context.take_lines() == taken
    logged(2 * LINES_MOST, 2 * LINES_MOST + 10)
    context.put_back(taken)
    lines = context.take_lines()
    assert sum(line.n for line in lines) == 2 * LINES_MOST + 10
    assert [line.text for line in lines] == [
        f"line {number}" for number in range(LINES_MOST + 10, 2 * LINES_MOST + 10)
    ]
    logged(0, 3 * LINES_MOST)
    context.put_back(lines)
    assert sum(line.n for line in context.take_lines()) == 5 * LINES_MOST + 10


def test_the_command_says_how_many_lines_were_not_kept(app, database):
    @app.job
    def chatty() -> None:
        for number in range(LINES_MOST + 3):
            logger.info("line %d", number)

    job = chatty.submit()
    app.drain()
    found = CliRunner().invoke(cli, ["jobs", "logs", job.id, "--store", database.url])
    first, second, *_ = found.output.splitlines()
    assert first == "… 3 lines were not kept"
    assert second.endswith(" info     1 line 3")
