"""With an encrypting codec the database holds nothing of what users wrote, but what they search by.

Everything a user can hand to the engine holds a canary; then every table, and every byte of a
SQLite file, is searched for it (H-105).
"""

import base64
import hashlib
import json
import logging
import sqlite3
import string
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import msgspec
import pytest
from remote import Says

import milepost as mp
from milepost.store import inbox, workers
from milepost.store.catalog import names, query
from milepost.store.seal import COLUMNS, SEALED
from tests.support.serving import served

pytestmark = pytest.mark.both_stores

CANARY = "canary-in-a-coal-mine"
READABLE = "asked-to-be-searched"
KEY = mp.EncryptingCodec.new_key()


class Rot:
    """A codec as a user writes one: values to bytes, and back."""

    name = "rot"

    def encode(self, value):
        return bytes(255 - byte for byte in msgspec.json.encode(value))

    def decode(self, data, type_=object):
        return msgspec.json.decode(bytes(255 - byte for byte in data), type=type_)


CODECS = {"aes": lambda: mp.EncryptingCodec({"k1": KEY}), "own": Rot}


@pytest.fixture
def app(database, remote, codec):
    made = mp.App(
        database.url, codec=CODECS[codec](), request_allow="127.0.0.1", lease=5, heartbeat=1
    )
    yield made
    made.close()


@pytest.fixture(params=CODECS)
def codec(request):
    return request.param


def stored(database) -> bytes:
    """Everything that the store holds, as bytes."""
    if database.dialect == "sqlite":
        path = Path(database.url.removeprefix("sqlite:///"))
        files = [path, *path.parent.glob(f"{path.name}-*")]
        return b"".join(file.read_bytes() for file in files if not file.name.endswith("-shm"))
    with database.raw() as raw:
        tables = raw.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        rows = [raw.execute(f"SELECT t::text FROM {name} AS t") for (name,) in tables]
    text = "\n".join(row for found in rows for (row,) in found)
    # What stands there as bytes is shown as hexadecimal digits.
    pieces = text.replace("\\\\x", "\\x").split("\\x")
    binary = [bytes.fromhex(_digits(piece)) for piece in pieces[1:]]
    return text.encode() + b"\n".join(binary)


def _digits(piece: str) -> str:
    count = next((i for i, c in enumerate(piece) if c not in string.hexdigits), len(piece))
    return piece[: count - count % 2]


def found(held: bytes, word: str = CANARY) -> list[bytes]:
    """Give what stands around each place where a word turns up, in the clear or in base64."""
    ways = [word.encode(), word.encode().hex().encode()]
    for before in range(3):
        raw = b"\0" * before + word.encode()
        ways.append(base64.b64encode(raw)[-(-before * 8 // 6) : len(raw) * 8 // 6])
    places = [held.find(way) for way in ways]
    return [held[max(0, at - 200) : at + 80] for at in places if at >= 0]


def assert_blind(app, database) -> None:
    app.close()
    held = stored(database)
    assert found(held) == []
    assert found(held, READABLE) != []  # the search does find what is there


def test_h105_jobs_leave_nothing_in_the_clear(app, database):
    @app.job(retries=1, retry_delay=0)
    def work(ctx: mp.Context, text: str, *, how: str = CANARY) -> str:
        ctx.progress(0.5, f"at {text}")
        logging.getLogger("shop").warning("at %s", text)
        ctx.save({"at": text})
        assert ctx.step("look", lambda: f"{text} found") == f"{text} found"
        if ctx.attempt == 1:
            raise ValueError(f"{text} is wrong")
        return f"{text} done"

    @app.job(retries=0)
    def fail(text: str) -> None:
        raise mp.Fail(f"{text} cannot be done")

    @app.job
    def wait(ctx: mp.Context) -> object:
        return ctx.signals() or mp.Later(None, detail=f"waits for {CANARY}")

    options = {"tags": {"user": READABLE}, "unique": READABLE}
    done = work.options(**options).submit(CANARY)
    failed, waiting = fail.submit(CANARY), wait.submit()
    never = work.options(start_in=3600).submit(CANARY)
    app.schedule(work, "* * * * *", args=(CANARY,), name=READABLE)
    app.drain()
    waiting.signal({"said": CANARY})
    never.cancel(reason=f"{CANARY} was enough")
    app.client.run(workers.advance_clock, 61)
    app.drain()

    assert done.refresh().result == f"{CANARY} done"
    assert failed.refresh().error.message == f"{CANARY} cannot be done"
    assert waiting.refresh().result == [{"said": CANARY}]
    assert CANARY in never.refresh().record.cancel_reason
    assert any(CANARY in (entry.detail or "") for entry in waiting.history)
    assert CANARY in repr(never.history)
    again = failed.rerun()
    app.drain()
    assert again.refresh().error.message == f"{CANARY} cannot be done"
    assert [line.text for line in done.logs] == [f"at {CANARY}"] * 2
    assert_blind(app, database)


def test_h105_what_a_running_job_is_asked_is_not_in_the_clear(app, database):
    begun = threading.Event()

    @app.job
    def run(ctx: mp.Context) -> str:
        begun.set()
        while not ctx.cancelled:
            pass
        raise mp.Cancelled

    job = run.options(tags={"user": READABLE}).submit()
    worker = threading.Thread(target=app.drain)
    worker.start()
    begun.wait(20)
    job.cancel(reason=f"because of {CANARY}")
    worker.join(20)
    assert CANARY in job.refresh().record.cancel_reason
    assert_blind(app, database)


def test_h105_batches_leave_nothing_in_the_clear(app, database):
    letters = app.batch("letters", params=dict[str, object])

    @letters.step
    def write(params):
        yield from (f"{params['text']} {n}" for n in range(params["count"]))

    @letters.step(retries=0)
    def send(text: str) -> str:
        if text.endswith(" 3"):
            raise mp.Fail(f"{text} came back")
        return text

    @letters.reduce
    def report(results) -> list[str]:
        return sorted(results)[:3]

    few = letters.start({"text": CANARY, "count": 3}, tags={"user": READABLE})
    many = letters.start({"text": CANARY, "count": 600})
    stopped = letters.start({"text": CANARY, "count": 1}, hold=True, channel="ended")
    app.drain()
    stopped.cancel(reason=f"{CANARY} was enough")
    [message] = app.channels.pull("ended").messages
    assert message["data"]["error"]["message"] == f"cancelled; {CANARY} was enough"
    assert few.refresh().report[0] == f"{CANARY} 0"
    assert many.refresh().state == "FAILED"
    assert_blind(app, database)


def test_h105_requests_leave_nothing_in_the_clear(app, database, remote):
    def echo(asked):
        status = 500 if asked.path.startswith("/broken") else 200
        pending = {"status": "working", "next": f"/{CANARY}"}
        done = {"status": "done", "said": asked.body.decode()}
        says = done if asked.path.startswith(f"/{CANARY}") else pending
        return Says(status, json=says, headers={"X-Said": CANARY})

    remote.answers = [echo]
    rules = mp.Reply(
        state="$.status",
        complete=["done"],
        pending=["working"],
        result="$.said",
        poll=mp.Poll(url="$.next", every=0),
    )
    given = {"json": {"text": CANARY}, "headers": {"X-Note": CANARY}}
    tagged = {"tags": {"user": READABLE}}
    polled = app.request("POST", remote.url, reply=rules, **given, **tagged)
    broken = app.request("POST", f"{remote.url}/broken?q={CANARY}", retries=0, **given)
    refused = app.request("GET", f"http://{CANARY}.invalid/", retries=0)
    batch = app.request_batch(
        [("POST", f"{remote.url}/{CANARY}", given)], final={"method": "GET", "url": remote.url}
    )
    app.drain(timeout=20)
    assert polled.refresh().state == "SUCCEEDED"
    assert broken.refresh().error.code == "http_500"
    assert CANARY in refused.refresh().error.message
    assert batch.refresh().state == "SUCCEEDED"
    assert any(CANARY in (entry.detail or "") for entry in polled.history)
    assert app.replay(polled.id) is not None
    app.drain()
    assert_blind(app, database)


class Stone(msgspec.Struct):
    id: int
    updated_at: datetime


def test_h105_pipelines_leave_nothing_but_their_table_in_the_clear(app, database):
    class Shelf(mp.Source):
        def count(self, window, low, high):
            return 3

        def login(self):
            return {"token": CANARY}

        def fetch(self, window, partition, cursor):
            if self.session is None:
                error = PermissionError("log in")
                error.status = 401
                raise error
            rows = [{"id": n, "note": f"{CANARY} {n}", "updated_at": AT} for n in range(3)]
            return mp.Page(rows[:2], CANARY) if cursor is None else mp.Page(rows[2:], None)

        def map(self, raw) -> Stone:
            if raw["id"] == 2:
                raise mp.Reject(f"nobody buys {raw['note']}")
            return msgspec.convert({k: raw[k] for k in ("id", "updated_at")}, Stone)

    AT = datetime(2024, 1, 1, tzinfo=UTC)  # noqa: N806
    stones = app.pipeline(
        READABLE.replace("-", "_"),
        Shelf(),
        key="id",
        version="updated_at",
        partition_by="id",
        partitions=1,
    )
    run = stones.start()
    app.drain(timeout=20)
    assert run.refresh().state == "SUCCEEDED", run.refresh()
    [rejected] = stones.quarantine
    assert CANARY in rejected.reason
    # What is the same is not read as changed, though it is sealed anew.
    again = stones.start(full=True)
    app.drain(timeout=20)
    assert (again.refresh().counts.fetched, again.counts.changed) == (3, 0)
    remap = stones.remap()
    app.drain(timeout=20)
    assert (remap.refresh().state, len(stones.quarantine)) == ("SUCCEEDED", 1)
    stones.override_watermark(AT, reason=f"{CANARY} asked")
    app.close()
    held = stored(database)
    assert found(held) == []
    assert found(held, READABLE.replace("-", "_")) != []


def test_h105_answers_and_messages_leave_nothing_in_the_clear(app, database, codec):
    @app.job(retries=0)
    def greet(name: str) -> str:
        if name.startswith("bad"):
            raise mp.Fail(f"{name} is not greeted")
        return f"hello {name}"

    app.channel("pulled")
    options = {"tags": {"user": READABLE}, "channel": "pulled"}
    told = {"kind": "greet", "args": [CANARY], "options": options}
    with served(app) as where, httpx2.Client(base_url=where, trust_env=False, timeout=60) as http:
        twice = [
            http.post("/v1/jobs", json=told, headers={"Idempotency-Key": READABLE})
            for _ in range(2)
        ]
        assert [answer.status_code for answer in twice] == [202, 202]
        assert twice[0].json() == twice[1].json()
        http.post("/v1/jobs", json={**told, "args": [f"bad {CANARY}"]})
        app.drain()
        shown = http.get(f"/v1/jobs/{twice[0].json()['id']}").json()
        assert shown["result"] == f"hello {CANARY}"
        listed = http.get("/v1/jobs?state=FAILED").json()
        assert CANARY in json.dumps(listed)
    messages = app.channels.pull("pulled").messages
    ends = [message["data"] for message in messages]
    sealed = next(end["result"] for end in ends if "result" in end)
    # Payloads are passed on sealed, for who has the key; errors are for people.
    assert CANARY not in json.dumps(sealed)
    opened = CODECS[codec]().decode(base64.b64decode(sealed["base64"]))
    assert opened == f"hello {CANARY}"
    assert any(CANARY in end["error"]["message"] for end in ends if "error" in end)
    app.channels.stop("pulled", reason=f"{CANARY} said so")
    app.client.run(inbox.refuse, "source", "m1", error=f"{CANARY}?", content=CANARY.encode())
    [refused] = app.client.run(inbox.refused)
    assert (refused.error, refused.content) == (f"{CANARY}?", CANARY.encode())
    assert_blind(app, database)


@pytest.mark.parametrize("codec", ["aes"])
def test_keys_are_changed_while_old_ones_still_open(app, database, codec):
    def declared(keys):
        made = mp.App(database.url, codec=mp.EncryptingCodec(keys))

        @made.job(retries=0)
        def greet(name: str) -> str:
            if name == "bad":
                raise mp.Fail("not greeted")
            return f"hello {name}"

        return made, greet

    newer = mp.EncryptingCodec.new_key()
    first, greet = declared({"k1": KEY})
    old, bad, waits = greet.submit("a"), greet.submit("bad"), None
    first.drain()
    waits = greet.submit("b")
    first.close()

    second, greet = declared({"k2": newer, "k1": KEY})
    new = greet.submit("c")
    second.drain()
    handles = [second.jobs.get(one.id) for one in (old, waits, new)]
    assert [one.result for one in handles] == ["hello a", "hello b", "hello c"]
    second.close()

    # Whoever lacks the old key reads what is new, and is told about the rest.
    third, greet = declared({"k2": newer})
    assert third.jobs.get(new.id).result == "hello c"
    with pytest.raises(mp.Invalid, match="sealed by the key 'k1', which is not here"):
        _ = third.jobs.get(old.id).result
    assert third.jobs.get(bad.id).error.type == "Sealed"
    third.close()

    plain = mp.App(database.url)
    assert plain.jobs.get(bad.id).error.type == "Sealed"
    assert len(plain.jobs.list()) == 4
    plain.close()


@pytest.mark.parametrize("codec", ["aes"])
def test_a_worker_without_the_key_leaves_a_job_to_one_that_has_it(app, database, codec):
    def greet(name: str) -> str:
        return f"hello {name}"

    job = app.job(greet).submit("a")
    for keys in (None, {"k2": mp.EncryptingCodec.new_key()}):
        other = mp.App(database.url, codec=keys and mp.EncryptingCodec(keys))
        other.job(greet)
        other.drain()
        assert (job.refresh().state, job.record.phase) == ("WAITING", "unfit")
        assert "MILEPOST_CODEC_KEYS" in other.jobs.get(job.id).explain().text
        other.close()
    app.drain()
    assert job.refresh().result == "hello a"


@pytest.mark.parametrize("codec", ["aes"])
def test_what_was_stored_before_there_was_a_key_is_still_read(database, codec):
    plain = mp.App(database.url)

    @plain.job
    def greet(name: str) -> str:
        return f"hello {name}"

    old, done = greet.options(start_in=60).submit("a"), greet.submit("b")
    plain.drain()
    plain.close()
    app = mp.App(database.url, codec=mp.EncryptingCodec({"k1": KEY}))
    app.job(greet.definition.function)
    assert app.jobs.get(done.id).result == "hello b"
    app.client.run(workers.advance_clock, 61)
    app.drain()
    assert app.jobs.get(old.id).result == "hello a"
    app.close()


@pytest.mark.parametrize("codec", ["aes"])
def test_a_value_that_was_moved_or_changed_is_not_opened(codec):
    made = mp.EncryptingCodec({"k1": KEY})
    sealed = made.seal(b'"text"', column="result")
    assert made.decode(sealed) == "text"
    other = made.seal(b'"text"', column="payload")
    assert other != sealed
    head = len(b"\0mp1\x02k1\x06result")
    swapped = other[: head + 1] + sealed[head:]  # another column's head before it
    renamed = sealed.replace(b"\x02k1", b"\x02k2")
    cut, flipped = sealed[:-1], sealed[:-1] + bytes([sealed[-1] ^ 1])
    for wrong in (swapped, renamed, cut, flipped, sealed[:9], b"\0mp1"):
        with pytest.raises(mp.Invalid, match=r"sealed by"):
            made.decode(wrong)
    assert KEY not in repr(made)


@pytest.mark.parametrize("codec", ["aes"])
def test_h105_a_value_that_somebody_put_into_another_column_is_not_read(app, raw, codec):
    @app.job(retries=0)
    def listen(ctx: mp.Context, text: str) -> object:
        return ctx.signals() or mp.Later(None)

    job = listen.submit("mine")
    app.drain()
    job.signal("yours")
    raw.disarm()
    raw.execute("UPDATE signal SET data = (SELECT payload FROM job)")
    app.drain()
    assert job.refresh().state == "FAILED"
    assert "was sealed for payload: somebody moved it" in job.error.message


@pytest.mark.parametrize("codec", ["aes"])
@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "needs a key"),
        ({"k": "short"}, "the key 'k' is not 32 bytes"),
        ({"k": b"short"}, "the key 'k' is not 32 bytes"),
        ({"k": "!" * 44}, "the key 'k' is not 32 bytes"),
        ({"a:b": KEY}, "no id of a key"),
        ({"": KEY}, "no id of a key"),
    ],
)
def test_keys_that_are_none_are_refused_unsaid(keys, told, codec):
    with pytest.raises(mp.Invalid, match=told) as caught:
        mp.EncryptingCodec(keys)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("codec", ["aes"])
def test_keys_are_taken_from_the_environment(tmp_path, monkeypatch, codec):
    monkeypatch.setenv("MILEPOST_CODEC_KEYS", f"k2:{mp.EncryptingCodec.new_key()}, k1:{KEY}")
    app = mp.App(f"sqlite:///{tmp_path}/a.db")
    assert repr(app.client.codec) == "EncryptingCodec(k2, k1)"
    for wrong in (KEY, f"k1:{KEY} k1:{KEY}"):
        monkeypatch.setenv("MILEPOST_CODEC_KEYS", wrong)
        with pytest.raises(mp.Invalid, match="expected id:key") as caught:
            mp.App(f"sqlite:///{tmp_path}/a.db")
        assert KEY not in str(caught.value)


NOT_CONTENT = """
actor address after before broker cause channel checksum codec covered_by cron decision declared
declared_before ending error_code
error_type fingerprint from_state gone hash high holder host key keys kind kinds limit_key line low
machine
measure missed missing_in mode move name params_key paused_by phase place plan policy program
queue queues
removed_by resumes role rules_digest scope scopes set_by side slots source state stopped_by tags
taken_by target template tenant to_state trace transport type unfit unique_key units
value
query summary zone
"""
"""Columns that people search by, that their program declares, or that the engine writes."""


@pytest.mark.parametrize("codec", ["aes"])
def test_every_column_is_sealed_or_said_to_be_readable(tmp_path, codec):
    """Whatever is added later has its line: `COLUMNS` if it holds content, else here."""
    app = mp.App(f"sqlite:///{tmp_path}/a.db")
    app.jobs.list()
    app.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as file:
        tables = file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = {
            column
            for (table,) in tables
            for _, column, kind, *_ in file.execute(f"PRAGMA table_info({table})")
            if kind in ("TEXT", "BLOB") and not (column == "id" or column.endswith(("_id", "_of")))
        }
    assert columns - set(NOT_CONTENT.split()) - COLUMNS.keys() == set()
    assert COLUMNS.keys() - columns == set()


@pytest.mark.parametrize("codec", ["aes"])
def test_every_statement_that_writes_content_seals_it(codec):
    """A parameter is called as its column is, or as `SEALED` says."""
    written = {name: query(name, "postgres").parameters for name in names()}
    taken = {parameter for parameters in written.values() for parameter in parameters}
    assert SEALED.keys() <= taken
    assert taken & (COLUMNS.keys() - SEALED.keys()) == set()


@pytest.mark.parametrize("codec", ["aes"])
def test_no_stored_hash_tells_whether_a_guess_is_right(app, database, codec):
    """Parameters and bodies that can be guessed: whoever has the tables has no key to try with."""

    def declared(keys):
        made = mp.App(database.url, codec=mp.EncryptingCodec(keys))
        batch = made.batch("birthdays", params=dict)

        @batch.step
        def work(params: dict) -> None: ...

        @made.job
        def greet(day: str) -> None: ...

        return made, batch

    def asked(made):
        told = {"kind": "greet", "args": ["1815-12-10"]}
        with (
            served(made) as where,
            httpx2.Client(base_url=where, trust_env=False, timeout=60) as http,
        ):
            return http.post("/v1/jobs", json=told, headers={"Idempotency-Key": "k"})

    params, newer = {"born": "1815-12-10"}, mp.EncryptingCodec.new_key()
    first, batch = declared({"k1": KEY})
    run, answer = batch.start(params), asked(first)
    first.close()
    guesses = [b'{"born":"1815-12-10"}', b'POST /v1/jobs?\n{"args":["1815-12-10"],"kind":"greet"}']
    held = stored(database)
    assert [guess for guess in guesses if found(held, hashlib.sha256(guess).hexdigest())] == []

    # Whoever holds the key still knows the same again, and after it was changed.
    for keys in ({"k1": KEY}, {"k2": newer, "k1": KEY}, {"k1": KEY, "k2": newer}):
        second, batch = declared(keys)
        assert batch.start(params, reuse=True).id == run.id
        assert asked(second).text == answer.text
        second.close()
