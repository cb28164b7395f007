"""Errors as a page lists them: of a time, in bars, and one of them closely."""

import re

import pytest

import milepost as mp
from milepost.client import acting
from milepost.store import errorlist, workers
from milepost.store.catalog import query

DAY = 86_400


@pytest.fixture
def shop(app):
    """Jobs that fail in two ways."""

    @app.job(retries=1, retry_delay=3600)
    def sell(price: int, *, to: str = "Ada") -> None:
        raise ValueError(f"no customer pays {price}")

    @app.job(retries=0)
    def ship(to: str) -> None:
        raise mp.Fail(f"{to} is too far", code="far")

    return sell, ship


def lines(app, seconds=DAY, most=50, chosen=None):
    return app.client.run(errorlist.lines, seconds=seconds, most=most, chosen=chosen)


def test_errors_of_a_time_come_with_what_their_jobs_are_now(app, shop):
    sell, ship = shop
    ship.submit("Pluto")
    app.drain()
    app.client.run(workers.advance_clock, 3 * 3600)
    sell.submit(1)
    sell.submit(2)
    app.drain()

    found = lines(app)
    sold, shipped = found.lines
    assert (sold.last.type, sold.kind, sold.failed, sold.open) == ("ValueError", "sell", 0, 2)
    assert (shipped.last.type, shipped.last.code, shipped.failed) == ("Fail", "far", 1)
    assert (found.since, found.week) == (2, 2)
    assert sold.first_at <= sold.last.at <= found.now

    recent = lines(app, 7200, chosen=shipped.fingerprint)
    assert [(one.fingerprint, one.listed) for one in recent.lines] == [
        (sold.fingerprint, True),
        (shipped.fingerprint, False),
    ]
    assert (recent.since, recent.week) == (1, 2)
    assert lines(app, 60, chosen="nothing like it").lines == lines(app, 60).lines
    assert [one.fingerprint for one in lines(app, most=1).lines] == [sold.fingerprint]

    bars = app.client.run(errorlist.slots, [sold.fingerprint, shipped.fingerprint], seconds=DAY)
    assert {len(one) for one in bars.values()} == {24}  # one for each hour
    assert bars[sold.fingerprint][-1] == 2
    assert sum(bars[shipped.fingerprint][-5:-2]) == 1


def test_one_error_is_looked_at_closely(app, shop):
    sell, ship = shop
    with acting("ana", tenant="acme"):
        jobs = sell.submit_many([(1,), (2,)])
    ship.submit("Pluto")
    app.drain()
    app.client.run(workers.advance_clock, 3601)
    app.drain()
    jobs[0].rerun()
    [one] = [line for line in lines(app).lines if line.last.type == "ValueError"]
    found = app.client.run(errorlist.closer, one.fingerprint)
    assert len(found.examples) == 4
    assert {example.job_id for example in found.examples} == {job.id for job in jobs}
    assert b"price" in found.examples[0].payload
    assert "no customer pays" in found.examples[0].attempt.traceback
    assert found.shared == {
        "kind": {"sell": 2},
        "version": {"1": 2},
        "queue": {"default": 2},
        "tenant": {"acme": 2},
    }
    assert (found.states, found.again, found.jobs) == ({"FAILED": 2}, 1, 2)


def test_an_empty_store_has_none(app):
    app.drain()
    found = lines(app)
    assert (list(found.lines), found.since, found.week) == ([], 0, 0)
    assert app.client.run(errorlist.slots, [], seconds=DAY) == {}


FILL = """
INSERT INTO failure (job_id, fence, at, error, fingerprint)
SELECT gen_random_uuid(), 1, now() - n * interval '1 second', '{"message": "m"}', 'f' || n % 30
  FROM generate_series(1, 60000) AS n
"""
FAILED = """
INSERT INTO job (id, kind, state, move, fingerprint)
SELECT gen_random_uuid(), 'k', 'FAILED', 'fail', 'f' || n % 30
  FROM generate_series(1, 60000) AS n
"""
GIVEN = {
    "span_us": "86400000000",
    "week_us": "604800000000",
    "slot_us": "1800000000",
    "most": "50",
    "groups": "1000",
    "look": "1000",
    "wide": "1000000",
    "slots": "48",
    "chosen": "'f3'",
    "bytes": "4096",
}


def test_the_list_walks_along_indexes(app, database):
    app.errors.list()
    listed = "ARRAY['f1', 'f2']" if database.dialect != "sqlite" else """'["f1", "f2"]'"""
    plan = ""
    with database.raw() as raw:
        if database.dialect != "sqlite":
            raw.execute("ALTER TABLE job DISABLE TRIGGER USER")
            for statement in (FILL, FAILED, "ANALYZE failure", "ANALYZE job"):
                raw.execute(statement)
        for name in ("error_list", "error_slots", "error_closer"):
            asked = query(name, database.dialect).text
            given = {**GIVEN, "fingerprint": listed if name == "error_slots" else "'f1'"}
            for parameter, value in given.items():
                asked = re.sub(rf"(?<!:):{parameter}\b", value, asked)
            explain = "EXPLAIN QUERY PLAN" if database.dialect == "sqlite" else "EXPLAIN"
            plan += "\n".join(row[-1] for row in raw.execute(f"{explain} {asked}"))
    assert not re.search(r"SCAN (failure|job)\b|Seq Scan on|job_pkey on job  .*Filter", plan), plan
    assert "job_fingerprint" in plan
