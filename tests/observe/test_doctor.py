"""doctor finds what should be impossible, repairs it by legal moves, and is quiet otherwise."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from milepost import outcome
from milepost.address import StoreUrl
from milepost.cli import main
from milepost.observe import doctor
from milepost.observe.doctor import Finding, diagnose
from milepost.store import jobs, tally, workers
from tests.support.databases import Backends, Database, Raw, backend_names
from tests.support.fuzz import agree
from tests.support.prove import PROVING, size
from tests.support.suite import opened
from tests.support.suite.store import GOOD, PROBLEM, Store, new_id

STORES = size(1_000) if PROVING else 5
HOUR = 3_600.0
COLUMNS = "subject_id, machine, seq, at, fence, move, from_state, to_state"
ENTRY = (
    f"INSERT INTO journal ({COLUMNS}, actor)"
    " SELECT id, '{0}', version, {{now}}, fence, '{1}', '{2}', '{3}', actor FROM {0}"
    " WHERE id = '{{id}}'"
)


@contextmanager
def unguarded(raw: Raw) -> Iterator[None]:
    """Take every trigger out of the way for a moment, as only the tables' owner can."""
    if raw.dialect == "postgres":
        raw.execute("SET session_replication_role = replica")
        yield
        raw.execute("SET session_replication_role = origin")
        return
    dropped = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    for name, _ in dropped:
        raw.execute(f"DROP TRIGGER {name}")
    yield
    for _, text in dropped:
        raw.execute(text)


def queued(store: Store) -> str:
    return store.create()[0]


def running(store: Store) -> str:
    return store.running().id


def settled(store: Store, **options: Any) -> str:
    claim = store.running(**options)
    store.settle((claim, GOOD))
    return claim.id


def told(store: Store) -> str:
    return settled(store, channel="news")


def retrying(store: Store) -> str:
    claim = store.running()
    store.settle((claim, outcome.retry(PROBLEM, after=HOUR)))
    return claim.id


def run(store: Store) -> str:
    return store.start((1,), queue=f"run-{new_id()}")


def gated(store: Store) -> str:
    return store.start((1, 1), queue=f"run-{new_id()}")


def reduced(store: Store) -> str:
    return store.start((1,), reduce=True, queue=f"run-{new_id()}")


def nothing(_store: Store) -> str:
    return new_id()


MOVED = "UPDATE {0} SET state = '{3}', move = '{1}', version = version + 1"


def moved(machine: str, move: str, source: str, target: str, where: str = "id = '{id}'") -> str:
    return MOVED.format(machine, move, source, target) + f" WHERE {where}"


REDUCER = (
    "INSERT INTO job (id, kind, state, move, run_id, step)"
    " VALUES ('{other}', 'k', 'QUEUED', 'create', '{id}', 1)"
)
CORRUPTIONS: dict[str, tuple[Callable[[Store], str], list[str], str, str]] = {
    # name: how it is made, what is done to it, its promise, what is said of it
    "state": (queued, ["UPDATE job SET state = 'SUCCEEDED' WHERE id = '{id}'"], "I8", "row says"),
    "fence": (queued, ["UPDATE job SET fence = 7 WHERE id = '{id}'"], "I5", "claimed 7 times"),
    "counter": (queued, ["UPDATE job SET errors = 2 WHERE id = '{id}'"], "I8", "says errors 2"),
    "budget": (queued, ["UPDATE job SET errors = 9 WHERE id = '{id}'"], "I5", "failed 9 times"),
    "row gone": (queued, ["DELETE FROM job WHERE id = '{id}'"], "I8", "has no row"),
    "journal gone": (
        queued,
        ["DELETE FROM journal WHERE subject_id = '{id}'"],
        "I8",
        "a row but no journal",
    ),
    "entry gone": (
        running,
        ["DELETE FROM journal WHERE subject_id = '{id}' AND seq = 1"],
        "I9",
        "entry 2 follows entry 0",
    ),
    "entry forged": (
        running,
        ["UPDATE journal SET move = 'wake' WHERE subject_id = '{id}' AND seq = 2"],
        "I9",
        "cannot 'wake'",
    ),
    "fence forged": (
        running,
        ["UPDATE journal SET fence = 5 WHERE subject_id = '{id}' AND seq = 2"],
        "I9",
        "has fence 5",
    ),
    "after the end": (
        settled,
        [
            moved("job", "wake", "SUCCEEDED", "QUEUED"),
            ENTRY.format("job", "wake", "SUCCEEDED", "QUEUED"),
        ],
        "I9",
        "its journal is broken",
    ),
    "step of no attempt": (
        queued,
        [
            "INSERT INTO durable_step (job_id, name, fence, at) VALUES ('{id}', 's', 9, {now})",
        ],
        "I2",
        "a step of an attempt",
    ),
    "failure of no attempt": (
        queued,
        [
            (
                "INSERT INTO failure (job_id, fence, at, error, fingerprint)"
                " VALUES ('{id}', 9, {now}, 'x', 'x')"
            ),
        ],
        "I2",
        "a failure of an attempt",
    ),
    "counters of a step": (
        run,
        ["UPDATE step_count SET open = open + 1 WHERE run_id = '{id}' AND slot = 0"],
        "I13",
        "counts 2 open jobs, but has 1",
    ),
    "two reducers": (
        reduced,
        [REDUCER, REDUCER.replace("{other}", "{another}")],
        "I11",
        "it has 2 reducers",
    ),
    "orphan": (
        nothing,
        [REDUCER.replace("'{id}', 1", "'{another}', 0").replace("{other}", "{id}")],
        "I15",
        "is not there",
    ),
    "message gone": (
        told,
        ["DELETE FROM outbox WHERE subject_id = '{id}'"],
        "I16",
        "a channel but no message",
    ),
    "watermark": (
        nothing,
        [
            "INSERT INTO pipeline (id, name, target, mark) VALUES (7, '{id}', 't', 5)",
            (
                "INSERT INTO watermark_entry (pipeline_id, move, from_mark, to_mark, at)"
                " VALUES (7, 'advance', 9, 5, {now})"
            ),
        ],
        "I14",
        "moves it back",
    ),
    # These a legal move repairs.
    "lease of nobody": (
        running,
        ["UPDATE job SET worker_id = 'ghost' WHERE id = '{id}'"],
        "I15",
        "its worker ghost is gone",
    ),
    "spent": (
        retrying,
        ["UPDATE job SET retries = 0 WHERE id = '{id}'"],
        "I5",
        "its attempts are spent and it is RETRYING",
    ),
    "cancelled": (
        queued,
        ["UPDATE job SET cancel_reason = 'stop' WHERE id = '{id}'"],
        "I18",
        "it was cancelled (stop) while it ran",
    ),
    "fan-in lost": (
        run,
        [
            (
                f"INSERT INTO journal ({COLUMNS})"
                " SELECT id, 'job', 2, {now}, 0, 'cancel', 'QUEUED', 'CANCELLED' FROM job"
                " WHERE run_id = '{id}'"
            ),
            moved("job", "cancel", "QUEUED", "CANCELLED", "run_id = '{id}'"),
            (
                "UPDATE step_count SET open = 0, cancelled = CASE slot WHEN 0 THEN 1 ELSE 0 END"
                " WHERE run_id = '{id}'"
            ),
        ],
        "I15",
        "it has no open job, and its next move was not made",
    ),
}
OF_JOBS: dict[str, tuple[Callable[[Store], str], list[str], str, str]] = {
    # The same, where what is found is the job of a run that was made.
    "gate passed": (
        gated,
        [
            (
                f"INSERT INTO journal ({COLUMNS})"
                " SELECT id, 'job', 2, {now}, 0, 'open', 'GATED', 'QUEUED' FROM job"
                " WHERE run_id = '{id}' AND step = 1"
            ),
            moved("job", "open", "GATED", "QUEUED", "run_id = '{id}' AND step = 1"),
        ],
        "I12",
        "past the closed gate of step step 1",
    ),
    "stranded": (
        gated,
        ["UPDATE step SET opened = {true} WHERE run_id = '{id}' AND number = 1"],
        "I12",
        "it waits at the gate of step step 1, which is open",
    ),
    "left open": (
        run,
        [moved("run", "fail", "QUEUED", "FAILED"), ENTRY.format("run", "fail", "QUEUED", "FAILED")],
        "I15",
        "it is open and its run",
    ),
}
REPAIRED = {"lease of nobody", "spent", "cancelled", "fan-in lost", "stranded", "left open"}


def findings(database: Database) -> list[Finding]:
    with database.driver() as driver:
        return diagnose(driver, StoreUrl.parse(database.url)).findings


def seed(store: Store, raw: Raw) -> dict[str, tuple[str, str, str]]:
    """Corrupt one subject in each way; answer with (promise, id, text) of what is to be found."""
    expected: dict[str, tuple[str, str, str]] = {}
    made = {name: (way[0](store), *way[1:]) for name, way in {**CORRUPTIONS, **OF_JOBS}.items()}
    fills = {"now": raw.now, "true": "true" if raw.dialect == "postgres" else "1"}
    with unguarded(raw):
        for name, (subject_id, statements, promise, text) in made.items():
            others = {"other": new_id(), "another": new_id()}
            for statement in statements:
                raw.execute(statement.format(id=subject_id, **others, **fills))
            expected[name] = (promise, subject_id, text)
    for name in OF_JOBS:
        promise, run_id, text = expected[name]
        step = "max" if name != "left open" else "min"
        found = raw.execute(
            f"SELECT id FROM job WHERE run_id = '{run_id}' AND step ="
            f" (SELECT {step}(step) FROM job WHERE run_id = '{run_id}')"
        )
        expected[name] = (promise, str(found[0][0]), text)
    return expected


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *words])
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def test_each_corruption_is_found_and_those_that_a_legal_move_repairs_are_repaired(
    database, raw, capsys
):
    """I1 to I18: what came past the guards is named, with what to do about it."""
    with opened(database, "sync") as store:
        store.worker(lease=24 * HOUR)
        expected = seed(store, raw)
        assert len(expected) > 20
        store.advance(120.0)

        code, out, _ = command(capsys, "--store", database.url, "--json")

        assert code == 1
        found = json.loads(out)["findings"]
        for name, (promise, subject_id, text) in expected.items():
            mine = [f for f in found if f["id"] == subject_id and text in f["text"]]
            assert mine, (name, [f for f in found if f["id"] == subject_id], found)
            assert mine[0]["code"] == promise, name
            assert mine[0]["advice"], name
            assert mine[0]["repairable"] == (name in REPAIRED), name
        code, out, err = command(capsys, "--store", database.url, "--repair")
        assert code == 1
        assert "repaired" in err
        assert "do: " in out
        left = {(f.id, f.text) for f in findings(database)}
        for name, (_, subject_id, text) in expected.items():
            stays = any(one == subject_id and text in said for one, said in left)
            assert stays == (name not in REPAIRED), name
        assert store.state(expected["lease of nobody"][1]) in ("RETRYING", "QUEUED")
        assert store.moves(expected["lease of nobody"][1])[2] == "lose"
        assert store.moves(expected["cancelled"][1]) == ["create", "cancel"]
        assert store.moves(expected["left open"][1]) == ["create", "cancel"]
        assert store.moves(expected["fan-in lost"][1], "run")[-1] == "fail"


def test_nothing_is_repaired_while_a_guard_is_missing(database, raw, capsys):
    """A move would be neither checked nor journalled; live jobs of one key are found, too (I17)."""
    with opened(database, "sync") as store:
        [job_id, other] = store.create(2)
    raw.execute("DROP INDEX job_unique")
    with unguarded(raw):
        raw.execute(f"UPDATE job SET cancel_reason = 'stop' WHERE id = '{job_id}'")
        raw.execute("UPDATE job SET unique_key = 'one'")
    code, out, err = command(capsys, "--store", database.url, "--repair")
    assert code == 1
    assert "nothing was repaired: a guard is missing" in err
    assert "index job_unique on job: it is missing" in out
    assert f"job {other}: another live job has its unique key 'one'" in out
    assert "milepost migrate --sql" in out
    with opened(database, "sync") as store:
        assert store.state(job_id) == "QUEUED"


def test_a_missing_guard_is_seen_beyond_any_number_of_other_findings(
    database, raw, capsys, monkeypatch
):
    """With a thousand before it, it was counted and not kept: jobs were moved past no guard."""
    monkeypatch.setattr("milepost.observe.doctor.KEPT", 5)
    monkeypatch.setattr("milepost.observe.verify.PROBLEMS_KEPT", 5)
    with opened(database, "sync") as store:
        ids = store.create(30)
    raw.execute("DROP INDEX job_unique")
    with unguarded(raw):
        raw.execute("UPDATE job SET fence = 9, cancel_reason = 'stop'")
    code, out, err = command(capsys, "--store", database.url, "--repair")
    assert code == 1
    assert "nothing was repaired: a guard is missing" in err
    assert "index job_unique on job: it is missing" in out
    with opened(database, "sync") as store:
        assert {store.state(job_id) for job_id in ids} == {"QUEUED"}


def test_findings_alike_are_told_what_to_do_once(database, raw, capsys, monkeypatch):
    """A thousand jobs had a thousand times the same advice; one of them hid another code."""
    monkeypatch.setattr("milepost.observe.doctor.KEPT", 25)
    with opened(database, "sync") as store:
        store.worker(lease=24 * HOUR)
        store.create(30, state="WAITING", delay_us=1_000_000)
        [spent] = store.create(1)
        store.advance(120.0)
    with unguarded(raw):
        raw.execute("UPDATE job SET cancel_reason = 'stop' WHERE state = 'WAITING'")
        raw.execute(f"UPDATE job SET errors = 9, fence = 9 WHERE id = '{spent}'")
    code, out, _ = command(capsys, "--store", database.url)
    assert code == 1
    assert out.count("and did not end") == 20
    assert out.count("do: `milepost jobs cancel ID`, or") == 1
    assert "… and 10 more (--json lists up to " in out
    assert f"job {spent}: its attempts are spent" in out
    listed = json.loads(command(capsys, "--store", database.url, "--json")[1])["findings"]
    cancelled = [one for one in listed if one["code"] == "I18"]
    assert len(cancelled) == 25
    assert all(f"`milepost jobs cancel {one['id']}`" in one["advice"] for one in cancelled)


def test_a_count_of_jobs_that_is_wrong_is_found_and_counted_again(database, raw, capsys):
    with opened(database, "sync") as store:
        store.create(3, queue="mail")
        while store.run(tally.fold, most=1_000) >= 1_000:
            pass
        store.create(2, queue="mail")
        assert [f for f in findings(database) if f.code == "totals"] == []
        raw.execute("UPDATE queue_total SET count = count + 7")
        raw.execute("INSERT INTO queue_total (queue, count) VALUES ('gone', 2)")
        found = {f.id: f.text for f in findings(database) if f.code == "totals"}
        assert found == {
            "mail": "12 jobs are counted in it, and it holds 5",
            "gone": "2 jobs are counted in it, and it holds 0",
        }
        code, _, err = command(capsys, "--store", database.url, "--repair")
        assert (code, "repaired" in err) == (0, True)
        assert [f for f in findings(database) if f.code == "totals"] == []
        assert store.run(jobs.counts) == {"mail": {"QUEUED": 5}}


def test_what_only_wants_attention_has_a_code_of_its_own(database, raw, capsys):
    with opened(database, "sync") as store:
        store.worker("dead", lease=1.0)
        [claim] = store.create(1, channel="news") and store.claim(worker="dead")
        store.settle((claim, GOOD))
        store.create(1, kind="nobodys")
        store.create(1, state="WAITING", delay_us=1_000_000)
        store.advance(400.0)
        code, out, _ = command(capsys, "--store", database.url)
        assert code == 6
        assert "worker dead: it stopped beating and holds 0 jobs" in out
        assert "queue default: 1 job waits in it, and no worker is alive" in out
        assert "its time has come and it is WAITING" in out
        assert "channel news: 1 message waits, the oldest for 40" in out
        assert "clock: its clock was moved by 400 s" in out
        code, out, err = command(capsys, "--store", database.url, "--repair")
        assert (code, "repaired 2 of 5 findings" in err) == (6, True), err
        assert "dead: it stopped" not in out


def test_a_store_of_another_schema_and_a_file_that_is_damaged_are_named(backends, capsys):
    empty = backends.fresh("sqlite", empty=True)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--store", empty.url])
    assert ended.value.code == 75  # there is nothing to look at
    database = backends.fresh("sqlite")
    with database.raw() as raw:
        raw.execute("DELETE FROM migration WHERE number = 13")
    capsys.readouterr()
    code, out, _ = command(capsys, "--store", database.url)
    assert (code, "schema" in out) == (1, True)
    database = backends.fresh("sqlite")
    with database.raw() as raw:
        assert raw.value("PRAGMA journal_mode = delete") == "delete"
    code, out, _ = command(capsys, "--store", database.url)
    assert (code, "journal_mode: it is delete" in out) == (6, True)
    with database.raw() as raw:
        bytes_each = raw.value("PRAGMA page_size")
        page = raw.value("SELECT rootpage FROM sqlite_master WHERE name = 'job_claim'")
    path = Path(StoreUrl.parse(database.url).target)
    content = bytearray(path.read_bytes())
    content[(page - 1) * bytes_each : (page - 1) * bytes_each + 100] = b"x" * 100
    path.write_bytes(content)
    code, out, _ = command(capsys, "--store", database.url)
    assert (code, "I22" in out) == (1, True), out


def test_a_servers_old_transactions_and_rights_beyond_a_role_are_named(database, raw, monkeypatch):
    if raw.dialect == "sqlite":
        pytest.skip("a file has neither")
    monkeypatch.setattr(doctor, "LONG_SECONDS", 0.0)
    with database.raw() as other:
        raw.execute("GRANT UPDATE, DELETE ON journal TO pg_monitor")
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM job")
        told = [str(finding) for finding in findings(database)]
        other.execute("ROLLBACK")
    raw.execute("REVOKE UPDATE, DELETE ON journal FROM pg_monitor")
    assert "rights: store pg_monitor: may DELETE, UPDATE on journal" in told
    assert any("transaction: store pid" in text and "idle in transaction" in text for text in told)


def test_a_file_that_several_processes_share_through_an_old_sqlite_is_named(backends, monkeypatch):
    made = backends.fresh("sqlite")
    monkeypatch.setattr(doctor, "SQLITE_SHARED", (99, 0, 0))
    with made.driver() as driver:
        for pid in (1, 2):
            new = workers.NewWorker(id=f"w{pid}", lease_us=30_000_000, host="box", pid=pid)
            driver.run(workers.register, new)
    assert [finding.code for finding in findings(made)] == ["sqlite"]
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "SQLITE_SHARED", (3, 0, 0))
    assert findings(made) == []


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_nothing_is_found_in_healthy_stores_that_the_fuzzer_made(backends: Backends):
    names = [name for name in backend_names() if PROVING or name in ("sqlite", backend_names()[-1])]
    for seed_ in range(STORES):
        backend = names[-1 - seed_ // 5 % len(names)] if seed_ % 5 == 0 else "sqlite"
        made = backends.take(backend)
        with made.raw() as raw:
            agree([raw], seed=seed_, statements=150)
        assert [str(finding) for finding in findings(made)] == [], seed_
        backends.give_back(made)
