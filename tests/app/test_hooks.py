"""Hooks see and time; they never change an outcome, and a failing one is logged once."""

import asyncio
import threading
import time
from asyncio import CancelledError
from contextlib import aclosing

import httpx2
import pytest

import milepost as mp

pytestmark = pytest.mark.in_turn


def watch(app, *points, seen):
    """Enter every event of these points, with its outcome, in `seen`."""
    for point in points:

        @app.hook(point)
        def note(event):
            seen.append((event.point, None))
            done = yield
            seen.append((done.point, done.outcome))


def test_each_point_is_seen_with_its_outcome_and_how_long_it_took(app):
    seen, timed = [], []
    watch(app, "submit", "attempt", "step", "settle", "sweep", seen=seen)

    @app.hook("attempt")
    async def measure(event: mp.HookEvent):
        await asyncio.sleep(0)
        begun = time.perf_counter()
        done = yield
        timed.append((event, done, time.perf_counter() - begun))

    @app.job(retries=1, retry_delay=0)
    def convert(ctx: mp.Context, document: str) -> str:
        ctx.step("read", str.upper, document)
        if ctx.attempt == 1:
            raise ValueError("once")
        return document

    @app.job
    async def later(ctx: mp.Context) -> None:
        await ctx.step_async("one", asyncio.sleep, 0)
        if not ctx.claim.polls:
            raise mp.Later(0)

    job = convert.submit("a")
    later.submit_many([()])
    app.drain(5)
    assert job.refresh().result == "a"
    assert seen[:4] == [("submit", None), ("submit", "done")] * 2
    outcomes = {point: [o for p, o in seen if p == point and o] for point in ("attempt", "step")}
    assert sorted(outcomes["attempt"]) == ["later", "retry", "succeed", "succeed"]
    assert sorted(outcomes["step"]) == ["done", "done", "recalled", "recalled"]
    assert ("settle", "done") in seen
    assert ("sweep", "done") in seen
    begun, done, around = next(each for each in timed if each[1].outcome == "retry")
    assert (begun.job_id, begun.kind, begun.attempt) == (job.id, "convert", 1)
    assert begun.outcome is begun.error is begun.seconds is None
    assert isinstance(done.error, ValueError)
    assert 0 < done.seconds <= around
    with pytest.raises(AttributeError):
        done.outcome = "succeed"


async def broken_async(how):
    if how == "async hangs":
        await asyncio.sleep(60)
    yield
    while how == "async stays":
        try:
            yield
        finally:
            raise ValueError("it cannot even be closed")
    raise RuntimeError("broken")


def broken(how):
    if raised := {"before": RuntimeError, "exit": SystemExit, "cancel": CancelledError}.get(how):
        raise raised
    yield
    if how == "after":
        raise mp.Later(60)
    try:
        yield
    finally:
        if how == "stays":
            raise ValueError("it cannot even be closed")


PLAIN = ("before", "after", "exit", "cancel", "second", "stays")


@pytest.mark.parametrize("how", [*PLAIN, "async", "async stays", "async hangs"])
def test_a_failing_hook_is_logged_once_and_changes_nothing(app, capsys, monkeypatch, how):
    monkeypatch.setattr("milepost.hooks.HOOK_SECONDS", 0.05)

    def plain(event):
        yield from broken(how)

    async def awaited(event):
        async with aclosing(broken_async(how)) as hook:
            await anext(hook)
            yield
            await hook.asend(event)
            yield

    for point in ("submit", "attempt", "step", "settle", "sweep"):
        app.hook(point)(plain if how in PLAIN else awaited)

    @app.job
    def convert(ctx: mp.Context) -> int:
        return ctx.step("one", int)

    @app.job
    async def read(ctx: mp.Context) -> int:
        return await ctx.step_async("one", int)

    found = [job.submit() for job in (convert, read, convert, read)]
    app.drain()
    assert [job.refresh().result for job in found] == [0] * 4
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("  ")]
    assert len(told) == 5  # once for each of the declared ones
    assert all("a hook failed; this is logged once" in line for line in told)


def test_a_hook_that_raises_keyboard_interrupt_in_a_thread_does_not_keep_its_job_forever(app):
    @app.hook("attempt")
    def broken(event):
        raise KeyboardInterrupt
        yield

    @app.job
    def convert() -> int:
        return 1

    jobs = [convert.submit() for _ in range(3)]
    drain = threading.Thread(target=app.drain, args=(5,), daemon=True)
    drain.start()
    drain.join(30)
    assert [job.refresh().state for job in jobs] == ["SUCCEEDED"] * 3


def test_the_log_says_where_a_hook_failed_and_shows_no_secret(app, capsys):
    secret = "2retnuh"[::-1]  # not as it stands in the source, whose lines are shown

    @app.hook("attempt")
    def broken(event):
        yield
        raise ValueError(f"token={secret}")

    @app.job
    def convert() -> None: ...

    convert.submit()
    app.drain()
    told = capsys.readouterr().err
    assert "ValueError: token=[redacted]" in told
    assert "in broken" in told
    assert secret not in told


@pytest.mark.parametrize("plain_hook", [True, False])
@pytest.mark.parametrize("plain_job", [True, False])
def test_a_hook_that_outlasts_the_timeout_leaves_the_outcome_of_the_handler(
    app, plain_hook, plain_job
):
    ran = []

    @app.hook("attempt")
    def slow(event):
        yield
        if plain_hook:
            time.sleep(0.6)

    @app.hook("attempt")
    async def slow_async(event):
        yield
        if not plain_hook:
            await asyncio.sleep(0.6)

    def convert() -> str:
        ran.append(1)
        return "done"

    async def convert_async() -> str:
        return convert()

    job = app.job(timeout=0.3)(convert if plain_job else convert_async).submit()
    app.drain(5)
    assert (job.refresh().state, job.result, len(ran)) == ("SUCCEEDED", "done", 1)


def test_an_attempt_that_is_ended_from_outside_ends_as_the_store_has_it(app):
    ends = []

    @app.hook("attempt")
    def note(event):
        ends.append((yield))

    @app.job(timeout=0.05, retries=0)
    def stuck() -> None:
        time.sleep(0.2)

    @app.job(timeout=0.05, retries=0)
    async def waits() -> None:
        await asyncio.sleep(60)

    jobs = stuck.submit(), waits.submit()
    app.drain()
    assert {job.refresh().state for job in jobs} == {mp.JobState.FAILED}
    end = time.monotonic() + 10
    while len(ends) < 2 and time.monotonic() < end:
        time.sleep(0.01)  # the thread of the first one ends later than its job
    assert [(done.outcome, type(done.error).__name__) for done in ends] == [
        ("fail", "TimedOut")
    ] * 2


def test_a_submit_that_is_refused_and_one_over_http_are_seen_too(app):
    seen = []

    @app.hook("submit")
    def note(event):
        done = yield
        seen.append((done.kind, done.outcome, done.job_id, done.run_id))

    @app.job
    def convert(document: str) -> None: ...

    batch = app.batch("nightly")

    @batch.step
    def only() -> None: ...

    with pytest.raises(mp.Invalid):
        convert.submit(1, 2, 3)
    run = batch.start()

    async def post() -> str:
        transport = httpx2.ASGITransport(app.asgi(access="open"))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post("/v1/jobs", json={"kind": "convert", "args": ["a"]})
        await app.close_async()
        return str(answer.json()["id"])

    job_id = asyncio.run(post())
    assert seen == [
        ("convert", "raised", None, None),
        ("nightly", "done", None, run.id),
        ("convert", "done", job_id, None),
    ]


def test_a_hook_is_a_generator_function_at_a_point_that_exists(app):
    with pytest.raises(mp.Invalid, match="points are submit, attempt, step"):
        app.hook("start")

    with pytest.raises(mp.Invalid, match="generator function"):
        app.hook("attempt")(lambda event: None)


def none():
    yield


def several(event, job):
    yield


async def by_name(*, event):
    yield


@pytest.mark.parametrize("function", [none, several, by_name])
def test_a_hook_that_cannot_be_given_its_event_is_refused_where_it_is_declared(app, function):
    """It would fail at its first event, be logged once, and never see anything."""
    with pytest.raises(mp.Invalid, match=rf"hook {function.__name__}\(\) takes one argument"):
        app.hook("attempt")(function)
