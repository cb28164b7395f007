"""Queues: listed with what stands in them, paused, resumed; and jobs found by how ids begin."""

import pytest

import milepost as mp

pytestmark = pytest.mark.in_turn


@pytest.fixture
def noted(app):
    @app.job
    def note(text: str = "") -> str:
        return text

    return note


def test_queues_are_listed_with_their_jobs_by_state(app, noted):
    noted.submit_many([("a",), ("b",)])
    app.drain()
    noted.options(queue="slow").submit("c")
    app.queues.pause("unused")
    found = {queue.name: queue for queue in app.queues.list()}
    assert list(found) == ["default", "slow", "unused"]
    assert found["default"].counts == {"SUCCEEDED": 2}
    assert found["slow"].counts == {"QUEUED": 1}
    assert (found["slow"].paused, found["slow"].paused_by) == (False, None)
    assert (found["unused"].paused, found["unused"].counts) == (True, {})
    assert found["unused"].paused_by == "client"
    assert found["unused"].paused_at is not None


def test_a_paused_queue_is_not_claimed_from_until_it_is_resumed(app, noted):
    job = noted.submit("x")
    assert app.queues.pause("default") is True
    assert app.queues.pause("default") is False
    assert app.drain() == 0
    assert app.queues.resume("default") is True
    assert app.queues.resume("default") is False
    assert app.queues.resume("never-heard-of") is False
    assert app.drain() == 1
    assert job.refresh().result == "x"
    assert [queue.paused for queue in app.queues.list()] == [False]


async def test_the_async_twins_do_the_same(app, noted):
    await noted.submit_async("x")
    assert await app.queues.pause_async("default") is True
    assert [(q.name, q.paused) for q in await app.queues.list_async()] == [("default", True)]
    assert await app.queues.resume_async("default") is True
    assert (await app.queues.list_async())[0].counts == {"QUEUED": 1}
    await app.close_async()


@pytest.mark.parametrize("wrong", [{"max_waiting": 0}, {"transport": "pigeon"}, {"rate": "fast"}])
def test_a_queue_that_is_refused_is_not_declared_in_part(app, noted, wrong):
    """Its limit was in force all the same, where a program went on."""
    with pytest.raises(mp.Invalid):
        app.queue("slow", **{"most": 1, "max_waiting": 5, **wrong})
    noted.submit("a")
    app.drain()
    assert app.limits.list() == []
    assert {queue.name: queue.max_waiting for queue in app.queues.list()} == {"default": None}


def test_a_queue_needs_a_name(app):
    with pytest.raises(mp.Invalid):
        app.queues.pause("")
    for wrong in ("default", [], [""], [None]):
        with pytest.raises(mp.Invalid, match="queue"):
            app.drain(queues=wrong)


def test_the_beginning_of_an_id_is_enough_where_it_fits_one_job(app, noted):
    first, second = noted.submit_many([("a",), ("b",)])
    assert app.jobs.find(first.id).id == first.id
    assert app.jobs.find(first.id.upper().replace("-", "")).id == first.id
    told_apart = next(n for n in range(36) if first.id[n] != second.id[n]) + 1
    assert app.jobs.find(second.id[:told_apart]).id == second.id
    with pytest.raises(mp.Invalid, match=f"begins several ids: {first.id}, {second.id}; give more"):
        app.jobs.find(first.id[:8])


@pytest.mark.parametrize("beginning", ["", "-", "f", "xyz", "0" * 33, "' OR 1=1"])
def test_a_beginning_that_fits_none_is_not_found(app, noted, beginning):
    noted.submit("a")
    with pytest.raises(mp.NotFound, match="there is no job"):
        app.jobs.find(beginning)


async def test_the_async_twin_finds_it_too(app, noted):
    job = await noted.submit_async("a")
    assert (await app.jobs.find_async(job.id[:30])).id == job.id
    await app.close_async()
