"""`on_failure=job` and `channel=`: what follows on an end, declared with the job."""

import pytest

import milepost as mp
from milepost.store import jobs, workers
from milepost.store.jobs import lines

pytestmark = pytest.mark.in_turn


def declared(app, **options):
    seen = []

    @app.job(queue="care", retries=2, retry_delay=0)
    def clean_up(ctx: mp.Context, failed: str) -> str:
        seen.append(failed)
        if ctx.attempt == 1:
            raise ValueError("a failure of its own changes nothing")
        return failed

    @app.job(retries=0, on_failure=clean_up, **options)
    def convert(*, fail: bool = True) -> None:
        if fail:
            raise ValueError("broken")

    return convert, seen


def test_a_job_that_fails_is_followed_by_one_with_its_id_and_nothing_else_is(app):
    convert, seen = declared(app)
    good, bad = convert.submit(fail=False), convert.submit()
    app.drain(5)
    assert seen == [bad.id, bad.id]
    [job] = app.jobs.list(kind="clean_up")
    assert (job.result, job.queue, job.attempt) == (bad.id, "care", 2)
    assert (good.refresh().state, bad.refresh().state) == ("SUCCEEDED", "FAILED")


def test_it_follows_whichever_way_the_job_fails(database, advance):
    """By deadline, held too long, rejected, lost with its worker; encrypted throughout (H-55)."""
    keys = {"k1": mp.EncryptingCodec.new_key()}
    app = mp.App(database.url, codec=mp.EncryptingCodec(keys))
    convert, seen = declared(app, recoveries=0)
    app.maintain_once()  # other programs maintain, too: they know it from here on
    late = convert.options(deadline=10, start_in=3000).submit()
    held = convert.options(hold=True).submit()
    rejected = convert.options(start_in=9000).submit()
    lost = convert.submit()
    app.client.run(workers.register, workers.NewWorker(id="w", lease_us=1_000_000))
    app.client.run(jobs.claim, worker_id="w", line=lines(["default"]), most=1)
    assert app.client.run(jobs.reject, rejected.id, reason="no more", actor="test")
    advance(3700)
    app.close()
    other = mp.App(database.url, codec=mp.EncryptingCodec(keys))
    other.maintain_once()
    other.close()
    failed = {late.id, held.id, rejected.id, lost.id}
    assert {job.id for job in app.jobs.list(state="FAILED")} == failed
    app.drain(5)
    assert set(seen) == failed
    assert {job.result for job in app.jobs.list(kind="clean_up")} == failed
    app.close()


def test_the_failure_and_the_job_that_follows_are_one_commit(database):
    app = mp.App(database.url)
    convert, _ = declared(app)

    def check():
        failed = [job.id for job in app.jobs.list(kind="convert", state="FAILED")]
        following = app.jobs.list(kind="clean_up")
        assert len(following) == len(failed) == 1
        assert [job.result for job in following] == failed

    assert mp.testing.crash_everywhere(app, convert.submit, check) > 4


def test_a_program_without_it_takes_it_back(database):
    first = mp.App(database.url)
    declared(first)
    first.drain()
    first.close()
    app = mp.App(database.url)

    @app.job(retries=0)
    def convert() -> None:
        raise ValueError("broken")

    convert.submit()
    app.drain()
    assert [job.kind for job in app.jobs.list()] == ["convert"]
    app.close()


def test_what_cannot_follow_is_refused_when_it_is_declared(app):
    @app.job
    def nothing() -> None: ...

    @app.job
    def number(failed: int) -> None: ...

    batch = app.batch("nightly")
    for wrong in (nothing, number, str, nothing.options(unique="a")):
        with pytest.raises(mp.Invalid):
            app.job(on_failure=wrong)(lambda: None)
    with pytest.raises(mp.Invalid, match="takes no channel, on_failure"):
        batch.step(on_failure=nothing, channel="news")(lambda: None)


def channels(app):
    return {record.id: record.channel for record in (job.record for job in app.jobs.list())}


def test_a_channel_is_the_apps_the_declarations_or_the_submits(database):
    app = mp.App(database.url, channel="ops")

    @app.job
    def plain() -> None: ...

    @app.job(channel="news")
    def loud() -> None: ...

    @app.job(channel=None)
    def silent() -> None: ...

    batch = app.batch("nightly")

    @batch.step
    def only() -> None: ...

    found = [plain.submit(), loud.submit(), loud.options(channel="one").submit(), silent.submit()]
    told = channels(app)
    assert [told[job.id] for job in found] == ["ops", "news", "one", None]
    run = batch.start()
    app.drain()
    assert {m.subject_id for m in app.channels.messages("ops")} == {found[0].id, run.id}
    app.close()
