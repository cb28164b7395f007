"""Errors that are the same one are told as one: how often, since when, what their jobs share."""

import re

import pytest

import milepost as mp
from milepost.store import errorlist, failures, jobs, workers
from milepost.store.catalog import query


@pytest.fixture
def shop(app):
    """Jobs that fail in two ways."""

    @app.job(retries=1, retry_delay=0)
    def sell(price: int) -> None:
        raise ValueError(f"no customer pays {price}")

    @app.job(retries=0)
    def ship(to: str) -> None:
        raise mp.Fail(f"{to} is too far", code="far")

    @app.job(retries=9, retry_delay=3600)
    def ask(whom: str) -> None:
        raise TimeoutError

    return sell, ship, ask


def test_errors_are_grouped_and_counted(app, shop):
    sell, ship, ask = shop
    sold = sell.submit_many([(price,) for price in range(3)])
    app.drain(5)
    app.client.run(workers.advance_clock, 7200)
    ship.submit("Pluto")
    app.drain(5)
    app.client.run(workers.advance_clock, 60)
    ask.submit("Ada")
    app.drain()

    asked, shipped, priced = app.errors.list()
    assert [one.fingerprint for one in app.errors.list(limit=1)] == [asked.fingerprint]
    assert (priced.type, priced.code, priced.kind) == ("ValueError", "error", "sell")
    assert priced.place.endswith("in shop.<locals>.sell")
    assert (priced.count, priced.failed, priced.open, priced.more) == (6, 3, 0, False)
    assert priced.job_id in {job.id for job in sold}
    # By the clock: a minute may be the first of the next hour.
    assert 6 in priced.hours[-4:-2]
    assert sum(priced.hours) == 6
    assert (shipped.type, shipped.code, shipped.count) == ("Fail", "far", 1)
    assert sum(shipped.hours[-2:]) == 1
    assert (asked.message, asked.failed, asked.open) == ("raise TimeoutError", 0, 1)
    assert priced.first_at <= priced.last_at < shipped.first_at < asked.last_at

    found = app.errors.get(priced.fingerprint)
    assert found.group.count == 6
    assert found.shared == {
        "kind": {"sell": 3},
        "version": {"1": 3},
        "queue": {"default": 3},
        "tenant": {"": 3},
    }
    assert {job_id for job_id, _ in found.examples} == {job.id for job in sold}
    assert all("no customer pays" in one.traceback for _, one in found.examples)
    with pytest.raises(mp.NotFound, match="there is no error 'x'"):
        app.errors.get("x")


def test_an_error_is_found_by_a_beginning_of_its_fingerprint(app):
    for name in ("send", "send-all", "sell"):
        app.job(name=name)(lambda: None).options(start_in=9, deadline=5).submit()
    app.client.run(workers.advance_clock, 6)
    app.maintain_once()
    assert app.errors.find("deadline@sel").group.fingerprint == "deadline@sell"
    # A whole one is meant, whatever else begins so.
    assert app.errors.find("deadline@send").group.fingerprint == "deadline@send"
    with pytest.raises(mp.Invalid, match="'deadline' begins several fingerprints: deadline@sell, "):
        app.errors.find("deadline")
    for nothing in ("", "%", "dead_", "eadline", "deadline@sell2"):
        with pytest.raises(mp.NotFound, match="`milepost errors ls` lists them"):
            app.errors.find(nothing)


def test_what_ended_without_an_attempt_is_counted_too(app, shop):
    sell, _, ask = shop
    late = sell.options(start_in=9, deadline=5).submit(1)
    asked = ask.options(deadline=5).submit("Ada")
    app.drain()
    app.client.run(workers.advance_clock, 6)
    app.drain()
    [one] = late.failures
    assert (one.type, one.message) == ("deadline", "its deadline has passed")
    groups = {group.fingerprint: group.failed for group in app.errors.list()}
    assert groups.pop("deadline@sell") == 1
    # Whoever failed before it was too late keeps the error that it failed with.
    assert list(groups) == [asked.refresh().record.fingerprint]
    assert asked.error.cause == "deadline"


def test_an_outage_is_counted_whole_and_its_newest_jobs_are_looked_at(app, shop, monkeypatch):
    monkeypatch.setattr(failures, "LOOK", 2)
    sold = shop[0].submit_many([(price,) for price in range(3)])
    app.drain(5)
    [one] = app.errors.list()
    assert (one.count, one.more, one.failed) == (6, True, 2)
    app.maintain_once()
    app.client.run(jobs.erase, sold[0].id, actor=None)
    for _ in range(2):
        [one] = app.errors.list()
        assert (one.count, sum(one.hours)) == (4, 4)
        app.maintain_once()


FILL = """
INSERT INTO failure (job_id, fence, at, error, fingerprint)
SELECT gen_random_uuid(), 1, now() - n * interval '1 s', '{}', 'f' || n % 30
  FROM generate_series(1, 20000) AS n
"""
FAILED = """
INSERT INTO job (id, kind, state, move, fingerprint)
SELECT gen_random_uuid(), 'k', 'FAILED', 'fail', 'f' || n % 30
  FROM generate_series(1, 20000) AS n
"""


def test_a_list_of_errors_walks_along_indexes(app, database):
    app.errors.list()
    groups = query("error_groups", database.dialect).text
    given = {"most": "50", "groups": "1000", "look": "1000", "fingerprint": "NULL"}
    standing = query("error_counts", database.dialect).text
    for name, value in given.items():
        groups = re.sub(rf":{name}\b", value, groups)
        standing = re.sub(rf":{name}\b", value, standing)
    with database.raw() as raw:
        explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
        if database.dialect != "sqlite":
            raw.execute("ALTER TABLE job DISABLE TRIGGER USER")
            for statement in (FILL, FAILED, "ANALYZE failure", "ANALYZE job"):
                raw.execute(statement)
        rows = [row for text in (groups, standing) for row in raw.execute(f"{explain} {text}")]
    plan = "\n".join(row[-1] for row in rows)
    read_whole = r"(SCAN|Seq Scan on|Bitmap Heap Scan on) (failure|job)\b"
    assert not re.search(rf"{read_whole}|job_pkey on job  .*Filter", plan)
    assert "job_fingerprint" in plan


def test_the_error_that_was_seen_last_is_first_among_more_than_a_thousand(app, shop, raw):
    _, ship, _ = shop
    job = ship.submit("Pluto")
    app.drain(5)
    raw.execute(
        "WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 1200)"
        " INSERT INTO failure (job_id, fence, at, error, fingerprint)"
        " SELECT job_id, i, at, error, '!' || i FROM failure, n"
        f" WHERE job_id = '{job.id}'"
    )
    app.client.run(workers.advance_clock, 60)
    newest = ship.submit("Mars")
    app.drain(5)
    assert app.errors.list(limit=1)[0].job_id == newest.id
    assert app.client.run(errorlist.lines, seconds=3600, most=1).lines[0].job_id == newest.id
