"""Every row of every table arrives as it was; what cannot, or is not the same, stops the move."""

import json
import random
import re
import time
from collections.abc import Iterable
from typing import Any

import pytest
from contents import MOVED_BEFORE, content, line, types

import milepost as mp
from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.lifecycle import JOB
from milepost.machine import CREATION
from milepost.observe.doctor import diagnose
from milepost.records import NewJob, Template
from milepost.store import binary, creation, workers
from milepost.store import move as moving
from milepost.store.catalog import FIRST_PLACE, own_tables
from milepost.store.driver import Call
from milepost.store.held import HeldTransaction
from tests.support import evening
from tests.support.databases import Backends, Database, Raw
from tests.support.fuzz import agree
from tests.support.prove import PROVING
from tests.support.suite.store import new_id

STORES = 200 if PROVING else 4

pytestmark = pytest.mark.every_version


def columns(database: Database) -> list[Any]:
    with database.driver() as driver:
        return list(driver.run(lambda: (yield Call("move_columns"))))


def forget_leases(raw: Raw) -> None:
    """Let every worker have died: its lease is over."""
    raw.execute("UPDATE worker SET lease_until = heartbeat_at - 1 WHERE state <> 'STOPPED'")


def compare(file: Database, server: Database, *, but: set[str] = MOVED_BEFORE) -> None:
    known = {table: columns for table, columns in types(server).items() if table not in but}
    with file.raw() as here, server.raw() as there:
        assert content(there, known) == content(here, known)
        assert line(there) == line(here)


def problems(database: Database) -> list[str]:
    with database.driver() as driver:
        found = diagnose(driver, StoreUrl.parse(database.url))
    return [str(one) for one in found.findings if one.breaks_promise]


# Which tables


def test_every_table_and_column_is_carried_or_known_to_stay(file, backends, newest):
    """A table that a migration adds to both databases is carried; to one, and somebody decides."""
    there = columns(backends.fresh(newest.backend))
    carried = moving.carried_tables(columns(file), there)
    assert {table.name for table in carried} | moving.LOCAL.keys() == (
        own_tables("sqlite") | own_tables("postgres")
    ) - {"journal_default"}
    for table in carried:
        assert {column.kind for column in table.columns} <= binary.PACK.keys(), table.name


@pytest.mark.parametrize(
    "added",
    [("newer", "id", "TEXT", None), ("job", "newer", "TEXT", None)],
    ids=["table", "column"],
)
def test_whatever_is_added_to_one_side_alone_is_noticed(file, backends, newest, added, monkeypatch):
    known = own_tables("sqlite") | {"newer"}
    monkeypatch.setattr(moving, "own_tables", lambda _dialect: known)
    there = columns(backends.fresh(newest.backend))
    with pytest.raises(AssertionError, match="newer"):
        moving.carried_tables([*columns(file), added], there)


# All that can stand in a column


WORDS = [
    "",
    "plain",
    "it's",
    'a "b"',
    "tab\tnew\nline\r\v\f\b",
    "\\N",
    "\\.",
    "ü—漢😀",
    "\x01\x1f",
    "%s",
]
NUMBERS = {"int2": 2**15, "int4": 2**31, "int8": 2**63}
KEYS = {"id", "n", "seq", "number", "ordinal"}
SINGLE = {"clock", "retention", "server_key", "store_name"}
"""Tables that have one row."""


class Anything:
    """Makes values for every column, as extreme as its type and its constraints allow."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.run, self.pipeline = new_id(), self._chance.randint(1, 2**31 - 1)
        made: dict[str, Any] = {"run_id": self.run, "pipeline_id": self.pipeline, "step": 0}
        made |= {"scope": "host", "priority": 9, "slots": 16, "least_us": 2**62, "max_waiting": 1}
        made |= {"missed": "all", "decision": "dismissed", "side": "inbound"}
        made |= {"lease_until": -1, "offset_us": 5}
        # An index adds these up.
        made |= dict.fromkeys(("errors", "losses", "retries", "recoveries", "poison_limit"), 3)
        self._always = made

    def row(self, table: str, columns: dict[str, str]) -> dict[str, Any]:
        row = {name: self._value(name, kind) for name, kind in columns.items()}
        chance = self._chance
        if table == "journal":
            moved = chance.choice(JOB.moves)
            source, target = chance.choice(list(moved.pairs))
            row |= {"machine": "job", "move": moved.name, "to_state": str(target)}
            row["from_state"] = None if source == CREATION else str(source)
        if table == "limit_rule":
            row |= {"most": 0, "rate": 0.1, "per_us": 1, "burst": 1e300}
        if table == "run":
            row["id"] = self.run
        if table == "pipeline":
            row |= {"id": self.pipeline, "move": "override", "measure": "sequence"}
        if table == "watermark_entry":
            row["move"] = "override"
        if table == "step":
            row["number"] = 0
        if table in SINGLE:
            row["id"] = 1
        return row

    def _value(self, name: str, kind: str) -> Any:  # noqa: PLR0911 - a table
        if name in self._always:
            return self._always[name]
        chance = self._chance
        match kind:
            case "int2" | "int4" | "int8":
                some = chance.randrange(1, NUMBERS[kind])
                return some if name in KEYS else chance.choice([0, 1, NUMBERS[kind] - 1, some])
            case "timestamptz":
                # Before 1970, before 2000, with microseconds, and the last of Python's calendar.
                return chance.choice(
                    [-1, 946_684_799_999_999, 1_763_473_267_123_457, 253_402_300_799_999_999]
                )
            case "float8":
                return chance.choice(
                    [0.1, 1e-300, 1.7976931348623157e308, 1e15, 123456789.123456789]
                )
            case "bool":
                return chance.choice([0, 1])
            case "uuid":
                return new_id()
            case "bytea":
                return chance.randbytes(chance.choice([0, 1, 300]))
            case "jsonb":
                return json.dumps({chance.choice(WORDS) or "k": chance.choice(WORDS)})
            case _:
                return chance.choice(WORDS) + chance.randbytes(6).hex()


def fill(raw: Raw, known: dict[str, dict[str, str]], seed: int) -> None:
    """Put rows of anything into every table; nothing stands in the way."""
    raw.disarm()
    raw.execute("PRAGMA foreign_keys = OFF")
    anything = Anything(seed)
    for table, columns in known.items():
        raw.execute(f"DELETE FROM {table}")
        alone = table in {*SINGLE, "run", "pipeline", "pipeline_run", "step", "step_count"}
        for number in range(1 if alone else 7):
            row = anything.row(table, columns)
            if number == 6:  # and once without all that may be missing
                optional = {c[1] for c in raw.execute(f"PRAGMA table_info({table})") if not c[3]}
                row = {name: None if name in optional else v for name, v in row.items()}
            names = ", ".join(f'"{name}"' for name in row)
            marks = ", ".join(f":{name}" for name in row)
            raw.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)


@pytest.mark.parametrize("seed", range(20 if PROVING else 3))
def test_any_value_of_any_column_arrives_as_it_was(seed, file, server, backends):
    known = types(backends.fresh(server.backend))
    with file.raw() as raw:
        fill(raw, known, seed)
    carry(file, server)
    with file.raw() as here, server.raw() as there:
        found, wanted = content(there, known), content(here, known)
        for table in known:
            assert found[table] == wanted[table], table
            if table not in MOVED_BEFORE:
                assert wanted[table], table
        assert line(there) == line(here)


def carry(file: Database, server: Database, *, verify: Any = lambda _: None) -> moving.Moved:
    """Move without the look at what it means: rows of anything make no sense."""
    from milepost.ingest.target import type_on_server

    return moving.move(
        StoreUrl.parse(file.url),
        StoreUrl.parse(server.url),
        actor="a test",
        limits=Timeouts(),
        verify=verify,
        type_of=type_on_server,
        tell=lambda *_: None,
    )


# Whole stores


def test_an_evening_of_a_shop_arrives_as_it_was(file, server, move):
    """Jobs in every state, runs, a pipeline, messages, views, a limit that somebody set (L-23)."""
    app = mp.App(file.url)
    evening.declare(app)
    evening.fill(app)
    app.close()
    with file.raw() as raw:
        forget_leases(raw)
    ended = move(file, server)
    assert (ended.code, ended["resumed"]) == (0, False), ended.said
    compare(file, server)
    assert problems(server) == []
    with server.raw() as there:
        assert there.value("SELECT count(*) FROM orders") == ended["tables"]["orders"] == 29
        counted = "SELECT queue, count(*)::int FROM job GROUP BY 1 ORDER BY 1"
        assert there.execute(counted) == there.execute("TABLE queue_total ORDER BY 1")
        assert {user for (user,) in there.execute("SELECT DISTINCT db_user FROM journal")} == {""}


@pytest.mark.parametrize("seed", range(STORES))
def test_what_a_fuzzer_made_arrives_as_it_was(seed, file, newest, move, backends: Backends):
    with file.raw() as raw:
        agree([raw], seed=seed, statements=150)
    target = backends.fresh(newest.backend) if seed % 2 else newest
    ended = move(file, target)
    assert ended.code == 0, ended.said
    compare(file, target)
    assert problems(target) == []
    with target.raw() as there:  # and the database goes on to hold everybody to the lifecycle
        agree([there], seed=seed + 1_000, statements=30)
    assert problems(target) == []


def test_jobs_that_came_at_once_stand_in_line_as_before(file, server, move):
    """SQLite tells them apart by their rowids; on PostgreSQL a place in line is one job's own."""
    app = mp.App(file.url)
    work = app.job(name="work")(lambda n: n)
    first = work.submit_many([(n,) for n in range(50)])
    app.client.run(workers.advance_clock, -3600.0)
    earlier = work.submit_many([(n,) for n in range(5)])
    app.close()
    assert move(file, server).code == 0
    wanted = [job.id for job in (*earlier, *first)]
    with server.raw() as raw:
        assert line(raw) == wanted
        assert raw.value("SELECT count(DISTINCT queued_seq) FROM job") == len(wanted)
    there = mp.App(server.url)
    last = there.job(name="work")(lambda n: n).submit(99)
    with server.raw() as raw:
        assert line(raw) == [*wanted, last.id]
    there.close()


def test_every_number_that_is_given_next_is_larger(file, server, move):
    with file.raw() as raw:
        raw.disarm()
        raw.execute("INSERT INTO pipeline (id, name, target) VALUES (77, 'p', 't')")
        for seq in (500, 900):
            raw.execute(
                "INSERT INTO watermark_entry (seq, pipeline_id, move, at)"
                f" VALUES ({seq}, 77, 'advance', 1)"
            )
        raw.execute("DELETE FROM watermark_entry WHERE seq = 900")
        raw.execute("INSERT INTO limit_change (n, at, scope, name) VALUES (40, 1, 'job', 'k')")
    assert move(file, server).code == 0
    with server.raw() as raw:
        given = {
            name: raw.value(f"SELECT nextval('milepost.{name}')")
            for name in (
                "pipeline_id_seq",
                "watermark_entry_seq_seq",
                "limit_change_n_seq",
                "queued_seq",
                "outbox_n",
            )
        }
    assert list(given.values()) == [78, 901, 41, FIRST_PLACE, 1]


def test_old_entries_find_the_week_of_their_subject(file, server, move):
    """The default partition would grow too large for weeks to be made at all."""
    app = mp.App(file.url)
    ids = []
    for days in (0, 9, 800):
        passed = f"{int((time.time() - days * 86_400) * 1000):012x}"
        ids.append(f"{passed[:8]}-{passed[8:]}{new_id()[13:]}")
    ids.append("00000000-0000-4000-8000-000000000001")
    app.client.run(creation.create, [NewJob(job_id, b"x", Template(kind="k")) for job_id in ids])
    app.close()
    assert move(file, server).code == 0
    with server.raw() as raw:
        found = raw.execute("SELECT subject_id::text, tableoid::regclass::text FROM journal")
    weeks = dict(found)
    assert [bool(re.fullmatch(r"journal_\d{8}", weeks[job_id])) for job_id in ids] == [
        True,
        True,
        True,
        False,
    ]
    assert len(set(weeks.values())) == 4
    assert problems(server) == []


def test_a_schema_of_another_name_takes_a_store_as_well(file, server, move):
    with file.raw() as raw:
        agree([raw], seed=5, statements=60)
    named = f"{server.url}&schema=Sales_2"
    ended = move(file, named)
    assert ended.code == 0, ended.said
    with server.raw() as raw:
        assert raw.value("SELECT to_regnamespace('milepost')::text") is None
        moved = raw.value('SELECT count(*) FROM "Sales_2".journal')
    with file.raw() as raw:
        assert moved == raw.value("SELECT count(*) FROM journal") > 0
    assert problems(Database(server.backend, named, server.server)) == []
    again = mp.App(named)
    job = again.job(name="work")(lambda: 1).submit()
    again.drain()
    assert job.refresh().result == 1
    again.close()


# What cannot be carried


def test_a_value_that_postgresql_cannot_store_is_named_and_nothing_moves(file, server, move):
    with file.raw() as raw:
        raw.disarm()
        raw.execute(
            "INSERT INTO job (id, kind, state, move) VALUES ('not-an-id', 'k', 'QUEUED', 'create')"
        )
    ended = move(file, server)
    assert ended.code == 2
    assert "job.id" in ended.said
    assert "not-an-id" in ended.said
    untouched(file, server)


def test_text_that_is_no_utf8_stops_the_move(file, server, move):
    with file.raw() as raw:
        raw.execute(
            "INSERT INTO job (id, kind, state, move, detail)"
            f" VALUES ('{new_id()}', 'k', 'QUEUED', 'create', CAST(x'ff' AS TEXT))"
        )
    ended = move(file, server)
    assert ended.code == 2
    assert "invalid byte sequence" in ended.said
    untouched(file, server)


def untouched(file: Database, server: Database) -> None:
    """The file is in use, and the database as empty as before."""
    mp.App(file.url).jobs.list()
    with server.raw() as raw:
        assert raw.value("SELECT to_regnamespace('milepost')::text") is None


@pytest.mark.parametrize("fault", ["a byte", "a row"])
def test_a_copy_that_is_not_the_same_is_not_committed(fault, file, server, move, monkeypatch):
    app = mp.App(file.url)
    app.job(name="work")(lambda n: n).submit_many([(n,) for n in range(20)])
    app.close()
    load = HeldTransaction.load

    def loads(self: HeldTransaction, text: str, chunks: Iterable[bytes]) -> None:
        changed = (
            (c.replace(b"default", b"defoult", 1) for c in chunks) if fault == "a byte" else chunks
        )
        load(self, text, changed)
        if fault == "a row" and '"retention"' in text:
            self.script("DELETE FROM milepost.queue_total")

    monkeypatch.setattr(HeldTransaction, "load", loads)
    ended = move(file, server)
    assert ended.code == 1
    assert "not the same" in ended.said
    untouched(file, server)


def test_a_store_that_does_not_verify_is_not_moved(file, server, move):
    with file.raw() as raw:
        raw.execute(
            "INSERT INTO job (id, kind, state, move)"
            f" VALUES ('{new_id()}', 'k', 'QUEUED', 'create')"
        )
        raw.execute("DROP TRIGGER journal_refuse_update")
        raw.execute("UPDATE journal SET fence = 7")
    ended = move(file, server)
    assert ended.code == 1
    assert "milepost verify" in ended.said
    untouched(file, server)
