"""A queue may say how many jobs wait in it: one more submit is refused, and nothing is stored."""

import sqlite3
from contextlib import closing

import httpx2
import psycopg
import pytest

import milepost as mp
from milepost.address import StoreUrl
from milepost.web.api import create_api


def declared(app: mp.App, most: int | None = 2) -> mp.Job:
    """Declare a job in a queue of its own, perhaps with a bound."""

    @app.job(name="note", queue="slow")
    def note(text: str = "") -> str:
        return text

    if most is not None:
        app.queue("slow", max_waiting=most)
    return note


def waiting(app: mp.App) -> int:
    return {queue.name: queue.counts for queue in app.queues.list()}.get("slow", {}).get(
        "QUEUED", 0
    )


def test_a_submit_into_a_full_queue_is_refused_and_fits_again_later(app):
    note = declared(app)
    note.submit("a")
    note.submit("b")
    with pytest.raises(mp.QueueFull, match="'slow' has 2 jobs waiting, of max") as refused:
        note.submit("c")
    assert refused.value.retry_after > 0
    assert waiting(app) == 2
    note.options(queue="other").submit("elsewhere")
    app.drain()
    assert note.submit("c").state == mp.JobState.QUEUED


def test_many_fit_together_or_none_does(app):
    note = declared(app, 3)
    note.submit("a")
    with pytest.raises(mp.QueueFull, match="3 more do not fit"):
        note.submit_many([("b",), ("c",), ("d",)])
    assert waiting(app) == 1
    note.submit_many([("b",), ("c",)])
    assert waiting(app) == 3


async def test_a_submit_is_refused_in_an_event_loop_too(app):
    note = declared(app, 1)
    await note.submit_async("a")
    with pytest.raises(mp.QueueFull):
        await note.submit_async("b")
    await app.close_async()


def test_the_bound_holds_for_programs_that_do_not_declare_it(app, database):
    declared(app, 1)
    app.drain()  # a worker of the program that declares it has started
    with closing(mp.App(database.url)) as other:
        note = declared(other, None)
        note.submit("a")
        with pytest.raises(mp.QueueFull):
            note.submit("b")
        assert [queue.max_waiting for queue in other.queues.list()] == [1]


def test_a_unique_key_that_is_taken_gives_its_live_job_though_the_queue_is_full(app):
    """Who submits again after a lost answer is told of the job, and not that it was refused."""
    note = declared(app, 1).options(unique="order-7")
    first = note.submit("a")
    assert note.submit("a").id == first.id
    assert [job.id for job in note.submit_many([("a",), ("a",)])] == [first.id] * 2
    with pytest.raises(mp.QueueFull, match="1 more"):
        note.options(unique="order-8").submit_many([("b",), ("b",)])
    assert waiting(app) == 1


def test_a_key_that_stays_taken_gives_its_job_though_the_queue_is_full(app, advance):
    note = declared(app, 1)
    once = note.options(unique="order-7", unique_for=60)
    first = once.submit("a")
    app.drain()
    note.submit("b")
    assert once.submit("a").id == first.id
    advance(61)
    with pytest.raises(mp.QueueFull):
        once.submit("a")


def test_what_replaces_a_job_fits_where_that_one_stood(app):
    note = declared(app, 1)
    first = note.options(unique="k").submit("a")
    second = note.options(unique="k", on_conflict="replace").submit("b")
    assert (first.refresh().state, second.state, waiting(app)) == ("CANCELLED", "QUEUED", 1)
    later = note.options(unique="l", start_in=60).submit("a")
    other = note.options(unique="l", on_conflict="replace").submit("b")  # it waits for its time
    assert (later.refresh().state, other.state, waiting(app)) == ("CANCELLED", "WAITING", 1)


@pytest.mark.parametrize(
    ("stood", "new"),
    [
        ({"queue": "other"}, {}),
        ({"queue": "other"}, {"start_in": 60}),  # it starts at the other's time, which is now
        ({"queue": "slow", "hold": True}, {}),
        ({"queue": "other", "start_in": 60}, {"on_conflict": "debounce", "start_in": 0}),
    ],
)
def test_what_replaces_a_job_that_did_not_wait_there_is_refused_by_a_full_queue(app, stood, new):
    note = declared(app, 1)
    note.submit("a")
    there = note.options(unique="k", **stood).submit("a")
    with pytest.raises(mp.QueueFull):
        note.options(**{"unique": "k", "on_conflict": "replace", **new}).submit("b")
    assert there.refresh().state != "CANCELLED"
    assert waiting(app) == 1


def test_one_that_would_be_kept_is_given_though_the_queue_is_full(app):
    note = declared(app, 1)
    held = note.options(unique="k", hold=True).submit("a")
    note.submit("a")
    assert note.options(unique="k").submit("b").id == held.id
    replaced = note.options(unique="k", hold=True, on_conflict="replace").submit("b")
    assert (replaced.state, waiting(app)) == ("CREATED", 1)


def test_a_queue_on_a_broker_is_full_alike(app):
    """Most of its jobs are READY: they wait to be handed to the broker."""
    app.queue("slow", max_waiting=2, transport="nats")
    note = declared(app, None)
    unique = note.options(unique="k")
    first = unique.submit("a")
    note.submit("b")
    assert first.refresh().state == "READY"
    with pytest.raises(mp.QueueFull, match="has 2 jobs waiting, of max_waiting=2"):
        note.submit("c")
    assert unique.submit("d").id == first.id
    assert unique.options(on_conflict="replace").submit("e").state == "READY"
    assert len(app.jobs.list(queue="slow", state="READY")) == 2


def test_a_bound_is_lifted_by_a_declaration_without_it(app, database):
    declared(app, 1)
    app.drain()
    with closing(mp.App(database.url)) as newer:
        note = declared(newer, None)
        newer.queue("slow")
        newer.drain()
        note.submit_many([("a",), ("b",)])
        assert [queue.max_waiting for queue in newer.queues.list()] == [None]


def test_the_program_that_started_last_has_the_last_word(app, database):
    declared(app, 1)
    app.drain()
    with closing(mp.App(database.url)) as newer:
        note = declared(newer, 2)
        newer.drain()
        note.submit_many([("a",), ("b",)])
        with pytest.raises(mp.QueueFull, match="max_waiting=2"):
            note.submit("c")


def test_a_submit_within_the_callers_transaction_is_refused_alike(app, database):
    declared(app, 1).submit("a")
    app.maintain_once()
    other = mp.App(database.url)
    note = declared(other, None)  # it has never read the bound
    url = StoreUrl.parse(database.url)
    connect = sqlite3.connect if url.can.file else psycopg.connect
    connection = connect(url.target if url.can.file else database.url)
    try:
        with pytest.raises(mp.QueueFull):
            note.within(connection).submit("b")
    finally:
        connection.close()
        other.close()
    assert waiting(app) == 1


def test_what_the_engine_creates_by_itself_is_not_refused(app, advance):
    note = declared(app, 1)
    note.submit("a")
    later = note.options(start_in=60).submit("later")  # it waits for its time, not in the queue
    advance(61)
    app.maintain_once()
    assert later.refresh().state == mp.JobState.QUEUED
    assert waiting(app) == 2


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k1"}], ids=["plain", "keyed"])
async def test_the_api_answers_429_and_says_when_to_come_again(app, headers):
    note = declared(app, 1)
    await note.submit_async("a")
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as api:
        options = {"queue": "slow"}
        asked = {"kind": "note", "args": ["b"], "options": options}
        reply = await api.post("/v1/jobs", json=asked, headers=headers)
        assert (reply.status_code, reply.headers["Retry-After"]) == (429, "5")
        assert "'slow' has 1 job waiting" in reply.json()["detail"]
        shown = (await api.get("/v1/queues/slow")).json()
    assert (shown["counts"], shown["max_waiting"]) == ({"QUEUED": 1}, None)
    await app.close_async()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "many", True])
def test_a_bound_is_a_whole_number(app, wrong):
    with pytest.raises(mp.Invalid, match="max_waiting"):
        app.queue("slow", max_waiting=wrong)
    with pytest.raises(mp.Invalid, match="queue"):
        app.queue("", max_waiting=1)


def slow_batch(app: mp.App) -> mp.Batch:
    """Declare a batch whose jobs stand in the queue with a bound."""
    batch = app.batch("many", params=dict[str, int])

    @batch.step(queue="slow")
    def find(params: dict[str, int]):
        yield from range(params["count"])

    @batch.step(queue="slow")
    def load(number: int) -> int:
        return number

    return batch


def test_a_run_is_not_started_into_a_full_queue_and_nothing_is_stored(app):
    batch, note = slow_batch(app), declared(app, 1)
    note.submit("a")
    with pytest.raises(mp.QueueFull, match="'slow' has 1 job waiting, of max_waiting=1"):
        batch.start({"count": 1})
    assert app.runs.list() == []
    app.drain()
    assert batch.start({"count": 1}).state == mp.RunState.QUEUED


def test_what_a_step_gives_is_never_refused(app):
    batch = slow_batch(app)
    declared(app, 1)
    run = batch.start({"count": 9})
    app.drain()
    assert run.refresh().state == mp.RunState.SUCCEEDED
    assert len(app.jobs.list(kind="many.load")) == 9


def test_a_live_run_is_reused_though_the_queue_is_full(app):
    batch = slow_batch(app)
    declared(app, 1)
    first = batch.start({"count": 9}, reuse=True)
    assert batch.start({"count": 9}, reuse=True).id == first.id
    with pytest.raises(mp.QueueFull):
        batch.start({"count": 8}, reuse=True)


@pytest.mark.parametrize("count", [3, 600])
def test_a_batch_of_requests_fits_as_a_whole_or_is_refused(app, count):
    app.queue("slow", max_waiting=count)
    items = [("GET", "https://partner.example/")] * count
    app.request_batch(items, queue="slow").cancel("it is a test")
    app.maintain_once()
    for much in ([*items, items[0]], [{"batch": items}, items[0]]):
        with pytest.raises(mp.QueueFull, match=f"{count + 1} more do not fit"):
            app.request_batch(much, queue="slow")
    assert waiting(app) == 0
    assert {run.state for run in app.runs.list()} == {mp.RunState.CANCELLED}


@pytest.mark.parametrize("count", [3, 600])
def test_requests_that_start_later_fit_into_a_full_queue(app, count):
    app.queue("slow", max_waiting=1)
    later = ("GET", "https://partner.example/", {"start_in": 60})
    app.request_batch([later] * count + [("GET", "https://partner.example/")], queue="slow")
    assert waiting(app) == 1


async def test_a_run_over_http_is_refused_with_429_and_when_to_come_again(app):
    batch, note = slow_batch(app), declared(app, 1)
    await note.submit_async("a")
    assert batch.name == "many"
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as api:
        said = await api.post("/v1/batches/many/runs", json={"params": {"count": 1}})
        assert (said.status_code, said.headers["retry-after"]) == (429, "5")
        items = [{"method": "GET", "url": "https://partner.example/"}] * 2
        said = await api.post("/v1/requests:batch", json={"requests": items, "queue": "slow"})
        assert said.status_code == 429
    await app.close_async()
