"""What a worker says of failures: a line on stderr, or as the program has configured structlog."""

import re

import structlog

import milepost as mp


def declared(app):
    @app.job(retries=1, retry_delay=0)
    def convert(document: str) -> str:
        raise ValueError(f"{document}\x1b[31m is broken\nand this is a second line")

    @app.job
    async def read(document: str) -> str:
        raise mp.Fail("no such format")

    return convert, read


def test_each_failed_attempt_is_told_on_stderr_and_nothing_on_stdout(app, capsys):
    convert, read = declared(app)
    first, second = convert.submit("a"), read.submit("b")
    app.drain()
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    error = r"error='ValueError: a\x1b[31m is broken'"
    # Below each stands the traceback, indented.
    whole = [line.partition("] ")[2] for line in lines if line[:1].isdigit()]
    assert all(re.search(r" at='test_worker_says\.py:\d+ in declared\S+'", line) for line in whole)
    told = [re.sub(r" at='.*?'", "", line) for line in whole]
    assert any('raise ValueError(f"{document}' in line for line in lines)
    assert sorted(told) == sorted(
        [
            f"an attempt failed kind=convert job_id={first.id} attempt=1 {error} again_in='0 s'",
            f"a job failed kind=convert job_id={first.id} attempt=2 {error}",
            f"a job failed kind=read job_id={second.id} attempt=1 error='Fail: no such format'",
        ]
    )


def test_what_ends_well_or_asks_to_be_run_later_is_not_told(app, capsys):
    @app.job
    def wait() -> None:
        raise mp.Later(60)

    wait.submit()
    app.drain()
    assert capsys.readouterr() == ("", "")


def test_a_program_that_configured_structlog_gets_it_there(app, capsys):
    _, read = declared(app)
    read.submit("b")
    with structlog.testing.capture_logs() as lines:
        app.drain()
    structlog.reset_defaults()
    assert [(line["event"], line["kind"]) for line in lines] == [("a job failed", "read")]
    assert capsys.readouterr().err == ""


def test_a_handlers_own_log_goes_to_stderr_too(app, capsys):
    @app.job
    def convert(ctx: mp.Context) -> None:
        ctx.log.info("converted", pages=4)

    job = convert.submit()
    app.drain()
    said = capsys.readouterr()
    assert said.out == ""
    assert "converted" in said.err
    assert f"job_id={job.id}" in said.err
    assert "\x1b" not in said.err
