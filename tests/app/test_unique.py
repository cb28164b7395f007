"""One job per key: what becomes of the one that has it, and how long the key stays taken."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice

import pytest

import milepost as mp
from milepost.client import acting
from milepost.store import failpoint, workers
from tests.support.databases import everyday_names


@pytest.fixture
def index(app):
    @app.job
    def index(page: str) -> str:
        return page

    return index


def test_the_live_job_is_kept_and_says_whether_it_has_the_same_arguments(app, index):
    unique = index.options(unique="k")
    first = unique.submit("a")
    same, different = unique.submit("a"), unique.submit("b")
    assert {first.id} == {same.id, different.id}
    assert (first.duplicate, same.duplicate, different.duplicate) == (None, "same", "different")
    app.drain()
    assert first.refresh().result == "a"
    assert unique.submit("b").duplicate is None


async def test_a_duplicate_is_told_in_asynchronous_code_and_of_many(app, index):
    unique = index.options(unique="k")
    first, again = await unique.submit_many_async([("a",), ("b",)])
    last = await unique.submit_async("a")
    await last.refresh_async()
    await again.refresh_async()
    assert [first.duplicate, again.duplicate, last.duplicate] == [None, "different", "same"]
    await app.close_async()


def test_one_that_was_never_claimed_is_replaced_and_says_by_which(app, index):
    unique = index.options(unique="k", on_conflict="replace")
    first, second = unique.submit("a"), unique.submit("b")
    assert first.refresh().state == "CANCELLED"
    assert first.record.cancel_reason == f"replaced by {second.id}"
    assert (second.id != first.id, second.duplicate) == (True, None)
    assert app.drain() == 1
    assert second.refresh().result == "b"


def test_one_that_is_replaced_leaves_its_time_and_one_that_is_debounced_takes_its_own(
    app, index, advance
):
    for conflict, is_due in (("replace", True), ("debounce", False)):
        unique = index.options(unique=conflict, on_conflict=conflict, start_in=60)
        unique.submit("a")
        advance(45)
        last = unique.submit("b")
        advance(30)
        app.drain()
        assert (last.refresh().state == "SUCCEEDED") is is_due, conflict
        advance(30)
        app.drain()
        assert last.refresh().result == "b"


def test_one_that_waits_is_replaced_by_one_without_a_start_at_its_time(app, index, advance):
    index.options(unique="k", start_in=60).submit("a")
    last = index.options(unique="k", on_conflict="replace").submit("b")
    assert app.drain() == 0
    advance(61)
    app.drain()
    assert last.refresh().result == "b"
    index.options(unique="l").submit("a")
    last = index.options(unique="l", on_conflict="replace", start_in=60).submit("b")
    app.drain()
    assert last.refresh().result == "b"


def test_one_whose_time_has_come_is_replaced_by_one_that_may_be_claimed_at_once(
    app, index, advance
):
    """It would wait again, with each submit, until its time is looked at once more."""
    first = index.options(unique="k", start_in=60).submit("a")
    advance(61)
    app.maintain_once()
    assert first.refresh().state == "QUEUED"
    assert index.options(unique="k", on_conflict="replace").submit("b").state == "QUEUED"


@pytest.mark.parametrize("limit", [None, mp.Limit(1)])
def test_one_that_replaces_another_has_its_place_in_line(app, limit):
    """Behind a backlog a stream of submits put it off for ever."""
    app.queue("default", most=1)
    ran = []

    @app.job(limit=limit)
    async def index(page: str) -> None:
        ran.append(page)

    newest = index.options(unique="home", on_conflict="replace")
    newest.submit("home 1")
    for n in range(5):
        time.sleep(0.002)  # numbers of SQLite are milliseconds
        index.submit(f"other {n}")
        newest.submit(f"home {n + 2}")
    app.drain(5)
    assert ran == ["home 6", *(f"other {n}" for n in range(5))]


@pytest.mark.parametrize("other", [{"queue": "q"}, {"priority": 1}])
def test_one_that_replaces_another_elsewhere_joins_the_end_of_its_line(app, other):
    app.queue(other.get("queue", "default"), most=1)
    ran = []

    @app.job
    async def index(page: str) -> None:
        ran.append(page)

    newest = index.options(unique="home", on_conflict="replace")
    newest.submit("home 1")
    time.sleep(0.002)
    index.options(**other).submit("other")
    newest.options(**other).submit("home 2")
    app.drain(5)
    assert ran == ["other", "home 2"]


def test_under_an_ordered_key_one_that_replaces_another_joins_the_end(app):
    ran = []

    @app.job(limit=mp.Limit(ordered=True))
    def index(page: str) -> None:
        ran.append(page)

    newest = index.options(unique="home", on_conflict="replace")
    newest.submit("home 1")
    index.submit("other")
    newest.submit("home 2")
    app.drain(5)
    assert ran == ["other", "home 2"]


def test_one_that_takes_the_place_of_a_held_one_starts_at_its_own_time(app, index):
    """A held job would never have started: it leaves no time to the one that replaces it."""
    index.options(unique="k", hold=True).submit("a")
    later = index.options(unique="k", on_conflict="replace", start_in=60).submit("b")
    assert later.state == "WAITING"
    index.options(unique="l", hold=True, start_in=60).submit("a")
    assert index.options(unique="l", on_conflict="replace").submit("b").state == "QUEUED"


@pytest.mark.parametrize("conflict", ["replace", "debounce"])
def test_one_that_has_run_or_runs_is_kept(app, conflict):
    again = []

    @app.job(retries=1, retry_delay=3600)
    def index(page: str) -> None:
        options = {"unique": "k", "on_conflict": conflict, "start_in": 60}
        again.append(app_index.options(**options).submit("b"))
        raise ValueError(page)

    app_index = index
    first = index.options(unique="k").submit("a")
    app.drain()
    options = {"unique": "k", "on_conflict": conflict, "start_in": 60}
    again.append(index.options(**options).submit("a"))
    assert first.refresh().state == "RETRYING"
    assert [(job.id, job.duplicate) for job in again] == [
        (first.id, "different"),
        (first.id, "same"),
    ]


def test_a_held_job_is_replaced_by_a_held_one(app, index):
    index.options(unique="k", hold=True).submit("a")
    held = index.options(unique="k", hold=True, on_conflict="replace").submit("b")
    assert held.state == "CREATED"


def test_a_key_stays_taken_for_a_while_whatever_became_of_its_job(app, index, advance):
    unique = index.options(unique="k", unique_for=60)
    first = unique.submit("a")
    app.drain()
    assert first.refresh().state == "SUCCEEDED"
    assert unique.submit("b").id == first.id
    assert unique.submit("b").duplicate == "different"
    advance(61)
    second = unique.submit("b")
    assert (second.id != first.id, second.duplicate) == (True, None)
    assert unique.submit("c").id == second.id


def test_a_key_stays_taken_though_its_job_has_left_the_store(database):
    kept = {"keep_succeeded": 60, "keep_failed": 60, "keep_history": 600}
    with closing(mp.App(database.url, **kept)) as app:

        @app.job
        def index(page: str) -> str:
            return page

        unique = index.options(unique="k", unique_for=80_000)
        first = unique.submit("a")
        app.drain()
        for _ in range(3):
            app.client.run(workers.advance_clock, 3700)
            app.maintain_once()
        assert app.jobs.list() == []
        again = unique.submit("a")
        assert (again.id, again.duplicate) == (first.id, "different")


def test_a_key_that_stays_taken_gives_its_live_job_before_one_that_has_ended(app, index):
    """Others submit with the key, too, and may have replaced the job that took it."""
    lately = index.options(unique="k", unique_for=60)
    first = lately.submit("a")
    newest = index.options(unique="k", on_conflict="replace").submit("b")
    assert first.refresh().state == "CANCELLED"
    assert lately.submit("a").id == newest.id
    app.drain()
    assert lately.submit("a").id == first.id
    again = index.options(unique="k").submit("c")
    assert (lately.submit("c").id, lately.submit("c").duplicate) == (again.id, "same")


def test_a_key_is_its_kinds_and_a_live_job_outlasts_the_while(app, index, advance):
    @app.job
    def other(page: str) -> str:
        return page

    first = index.options(unique="k").submit("a")
    lately = index.options(unique="k", unique_for=60)
    assert lately.submit("a").id == first.id
    assert other.options(unique="k", unique_for=60).submit("a").id != first.id
    app.drain()
    assert lately.submit("a").id == first.id
    advance(61)
    assert lately.submit("a").id != first.id


def test_keys_of_tenants_and_kinds_whose_names_hold_spaces_are_told_apart(app):
    @app.job(name="c")
    def plain(page: str) -> str:
        return page

    @app.job(name="b c")
    def spaced(page: str) -> str:
        return page

    with acting("it", tenant="a b"):
        first = plain.options(unique="k", unique_for=60).submit("theirs")
    with acting("it", tenant="a"):
        second = spaced.options(unique="k", unique_for=60).submit("ours")
    assert (second.id != first.id, second.duplicate) == (True, None)


def test_whoever_submits_at_once_leaves_one_job(app, index):
    unique = index.options(unique="k", on_conflict="replace")
    lately = index.options(unique="l", unique_for=60)
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(unique.submit, map(str, range(24))))
        kept = list(threads.map(lately.submit, map(str, range(24))))
    states = [job.refresh().state for job in made]
    assert (states.count("QUEUED"), states.count("CANCELLED")) == (1, 23)
    assert len({job.id for job in kept}) == 1
    assert app.drain() == 2


@pytest.mark.parametrize("database", everyday_names()[1:], indirect=True)
def test_whoever_replaces_while_another_does_is_given_a_job_of_its_own(app, index, database):
    """It was given the other's job, which had not run, and its own arguments were dropped."""
    with closing(mp.App(database.url)) as other:
        theirs = other.job(index.definition.function).options(unique="k")
        live, texts = [theirs.submit("a")], iter("bcdefghij")

        def end() -> None:
            live[-1].cancel("another replaces it")

        def create() -> None:
            live.extend(theirs.submit(text) for text in islice(texts, 1))

        with (
            failpoint.armed("before:job_replace", end),
            failpoint.armed("before:job_live_by_key", create),
        ):
            last = index.options(unique="k", on_conflict="replace").submit("z")
    assert (last.state, last.duplicate) == ("QUEUED", None)
    assert len(live) == 10, "each time another was there first"
    assert app.drain() == 1


def test_a_transaction_of_the_callers_replaces_or_nothing_does(app, index, database):
    first = index.options(unique="k").submit("a")
    with database.driver(), database.raw() as raw:
        raw.execute("BEGIN")
        index.within(raw.connection).options(unique="k", on_conflict="replace").submit("b")
        raw.execute("ROLLBACK")
    assert first.refresh().state == "QUEUED"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_conflict": "replace"}, "goes with unique="),
        ({"unique_for": 60}, "goes with unique="),
        ({"unique": "k", "on_conflict": "drop"}, "must be one of keep, replace, debounce"),
        ({"unique": "k", "on_conflict": "debounce"}, "start_in="),
        ({"unique": "k", "on_conflict": "replace", "unique_for": 60}, "keeps the first job"),
        ({"unique": "k", "unique_for": 100_000}, "86,400 seconds at most"),
        ({"unique": "k", "unique_for": 0}, "unique_for"),
    ],
)
def test_options_that_disagree_are_refused_and_nothing_is_stored(app, index, options, said):
    with pytest.raises(mp.Invalid, match=said):
        index.options(**options).submit("a")
    assert app.jobs.list() == []
