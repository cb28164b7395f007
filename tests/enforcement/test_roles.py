"""The four roles: what each may do with every table, and that each can do its work with it."""

import re
from collections.abc import Iterable, Iterator
from datetime import datetime

import httpx2
import msgspec
import psycopg
import pytest
from roles import Company, company

import milepost as mp
from milepost.address import StoreUrl
from milepost.cli import main
from milepost.observe.verify import verify
from milepost.store.catalog import names, query
from milepost.store.connect import open_driver
from milepost.store.roles import FUNCTIONS, RIGHTS, ROLES, SEQUENCES, VERBS, columns
from tests.support.databases import Backends, backend_names
from tests.support.serving import served

POSTGRES = [name for name in backend_names() if name.startswith("postgres1")]


@pytest.fixture(params=POSTGRES)
def staff(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Company]:
    with company(backends.fresh(request.param)) as made:
        yield made


def tables(staff: Company) -> set[str]:
    found = staff.owner.execute(
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p', 'v', 'm', 'f')"
        f" AND NOT relispartition AND relnamespace = '{staff.schema}'::regnamespace"
    )
    return {name for (name,) in found}


# The matrix


def test_every_table_and_view_has_a_decision(staff: Company):
    undecided, gone = tables(staff) - set(RIGHTS), set(RIGHTS) - tables(staff)
    assert (undecided, gone) == (set(), set()), "decide in milepost.store.roles who may do what"
    for table, rights in RIGHTS.items():
        assert set(rights) <= set(ROLES), table


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_with_each_table_what_was_decided_and_nothing_else(staff: Company, role: str):
    for table in sorted(tables(staff)):
        decided = RIGHTS.get(table, {}).get(role, "")
        allowed = {VERBS[verb] for verb in decided if verb in VERBS}
        for verb in (*VERBS.values(), "TRUNCATE", "REFERENCES", "TRIGGER"):
            has = staff.owner.value(
                f"SELECT has_table_privilege('{staff.names[role]}', '{staff.schema}.{table}',"
                f" '{verb}')"
            )
            assert has == (verb in allowed), (role, table, verb)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_update_the_columns_that_were_decided(staff: Company, role: str):
    for table in sorted(tables(staff)):
        if "U" in RIGHTS.get(table, {}).get(role, ""):
            continue
        found = staff.owner.execute(
            f"SELECT attname FROM pg_attribute WHERE attrelid = '{staff.schema}.{table}'::regclass"
            " AND attnum > 0 AND NOT attisdropped"
            f" AND has_column_privilege('{staff.names[role]}', attrelid, attnum, 'UPDATE')"
        )
        decided = columns(table, role) if table in RIGHTS and role in RIGHTS[table] else None
        assert {name for (name,) in found} == set(decided or ()), (role, table)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_nothing_else_in_the_schema(staff: Company, role: str):
    name, schema = staff.names[role], f"'{staff.schema}'::regnamespace"
    assert not staff.owner.value(f"SELECT has_schema_privilege('{name}', {schema}::oid, 'CREATE')")
    parts = staff.owner.execute(
        f"SELECT relname FROM pg_class WHERE relispartition AND relnamespace = {schema}"
        f" AND has_table_privilege('{name}', oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')"
    )
    assert parts == []
    used = staff.owner.execute(
        f"SELECT relname FROM pg_class WHERE relnamespace = {schema} AND CASE WHEN relkind = 'S'"
        f" THEN has_sequence_privilege('{name}', oid, 'USAGE, SELECT, UPDATE') END"
    )
    assert {found for (found,) in used} == {s for s, whose in SEQUENCES.items() if role in whose}
    # A trigger's function is called by its trigger alone, whoever may.
    called = staff.owner.execute(
        "SELECT proname || '(' || oidvectortypes(proargtypes) || ')', prosecdef"
        f" FROM pg_proc WHERE pronamespace = {schema}"
        f" AND has_function_privilege('{name}', oid, 'EXECUTE')"
        " AND (prosecdef OR prorettype <> 'trigger'::regtype)"
    )
    assert {found for found, _ in called} <= set(FUNCTIONS)
    assert not any(definer for _, definer in called)


def test_the_command_prints_what_was_tried_here(staff: Company, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["grants", "--role", "worker", "--to", 'o"dd', "--store", staff.home.url])
    printed = capsys.readouterr().out
    assert 'TO "o""dd";' in printed
    assert f'SCHEMA "{staff.schema}"' in printed
    staff.owner.execute('CREATE ROLE "o""dd"')
    staff.owner.execute(printed)
    staff.owner.execute('DROP OWNED BY "o""dd"')
    staff.owner.execute('DROP ROLE "o""dd"')
    with pytest.raises(SystemExit, match="2"):
        main(["grants", "--to", "x", "--store", staff.home.url])


# Each can do its work


def jobs_of(app: mp.App) -> dict[str, object]:
    @app.job(retries=0, limit=mp.Limit(50, key="number", rate="9000/s", units="tokens"))
    def double(number: int) -> int:
        if number < 0:
            raise mp.Fail("negative")
        return 2 * number

    @app.job
    def waits(ctx: mp.Context) -> object:
        ctx.step("once", lambda: 1)
        ctx.save(1)
        ctx.progress(0.5, "half")
        ctx.count("tokens", 3)
        return ctx.signals() or mp.Later(60)

    batch = app.batch("double-all", params=int, policy=mp.Collect())

    @batch.step
    def split(params: int) -> Iterator[int]:
        yield from range(params)

    @batch.step(gated=True)
    def work(number: int) -> int:
        return 2 * number

    @batch.reduce
    def add(numbers: Iterable[int]) -> int:
        return sum(numbers)

    app.schedule(double, "0 2 * * *", args=(1,))
    return {"double": double, "waits": waits, "batch": batch}


def clean(staff: Company) -> bool:
    driver = open_driver(StoreUrl.parse(staff.home.url))
    found = verify(driver)
    driver.close()
    assert found.problems == []
    return found.clean


def test_a_submitter_submits_a_worker_works_and_a_reader_reads(staff: Company):
    client, machine = mp.App(staff.url("submit")), mp.App(staff.url("worker"))
    reader = mp.App(staff.url("read"))
    kinds, _ = jobs_of(client), jobs_of(machine)
    jobs_of(reader)
    job = kinds["double"].submit(21)
    kinds["double"].submit_many([(n,) for n in range(5)])
    kinds["double"].options(unique="one").submit(1)
    kinds["double"].options(unique="one").submit(1)
    held = kinds["double"].options(hold=True).submit(3)
    held.submit()
    gone = kinds["double"].options(start_in=60).submit(4)
    gone.cancel("no need")
    polling = kinds["waits"].submit()
    bad = kinds["double"].submit(-1)
    run = kinds["batch"].start(3)
    stopped = kinds["batch"].start(2)
    stopped.cancel("wrong")
    empty = kinds["batch"].start(0)

    machine.drain()
    polling.signal({"go": True})
    again = bad.refresh().rerun()
    machine.drain()

    assert job.refresh().result == 42
    # Nobody but a worker may say which limits there are; a submit needs no more than its key.
    assert (job.limit, job.limit_key) == ("double", "21")
    assert again.refresh().state == "FAILED"
    assert [r.refresh().state for r in (run, stopped, empty)] == [
        "SUCCEEDED",
        "CANCELLED",
        "SUCCEEDED",
    ]
    assert run.refresh().report == 6
    assert {e.db_user for e in job.history if e.move == "create"} == {staff.names["submit"][:63]}
    assert {e.db_user for e in job.history if e.move != "create"} == {staff.names["worker"][:63]}

    assert reader.jobs.get(job.id).result == 42
    assert len(reader.jobs.get(job.id).history) == 3
    assert [r.id for r in reader.runs.list()]
    assert reader.counts()
    assert reader.jobs.get(polling.id).explain()
    assert reader.workers.list() is not None
    with pytest.raises(mp.Unavailable, match="lacks a right"):
        reader.jobs.get(job.id).cancel("no")
    for app in (client, machine, reader):
        app.close()
    assert clean(staff)


def test_a_handler_submits_what_a_submitter_may(staff: Company):
    """A worker's role is that of the handlers, which submit jobs of their own."""
    machine = mp.App(staff.url("worker"))

    @machine.job
    def note(text: str) -> str:
        return text

    @machine.job(retries=0)
    def submits(text: str) -> list[str]:
        once = note.options(unique="once", unique_for=60)
        # In a minute: this process also claims what is due.
        newest = note.options(unique="newest", on_conflict="replace", start_in=60)
        made = [newest.submit(text), newest.submit(text), once.submit(text), once.submit(text)]
        return [job.id for job in made]

    note.options(unique="once", start_in=60).submit("before")
    job = submits.submit("a")
    machine.drain()
    first, second, third, fourth = job.refresh().result
    assert (first == second, third == fourth) == (False, True)
    machine.close()
    assert clean(staff)


def test_a_reader_verifies_and_is_told_what_that_leaves_out(staff: Company, capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["verify", "--store", staff.url("read")])
    assert "guards not compared" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["doctor", "--store", staff.url("read")])
    assert capsys.readouterr().out.startswith("healthy")
    # Without a look at the guards it is not known whether a repair would be journalled.
    with pytest.raises(SystemExit, match="0"):
        main(["doctor", "--repair", "--store", staff.url("worker")])
    assert "nothing was repaired: this role may not compare" in capsys.readouterr().err
    staff.owner.execute(f"ALTER TABLE {staff.schema}.job DISABLE TRIGGER job_journal_move")
    with pytest.raises(SystemExit, match="1"):
        main(["verify", "--store", staff.url("read")])
    assert "job_journal_move on job: it is disabled" in capsys.readouterr().out


def test_a_program_that_only_submits_cannot_sign_in_as_anybody(staff: Company):
    """The pages of a server with such a role work, with a key of its own."""
    import asyncio

    from milepost.web.session import Keys, Session

    server = mp.App(staff.url("submit"))

    async def signed() -> tuple[str, Session | None]:
        signer = await Keys(server.client, "").signer()
        cookie = signer.session_cookie(Session(until=2**40, token_id="a"))
        await server.client.close_async()
        return cookie, signer.session(cookie)

    cookie, session = asyncio.run(signed())
    assert session == Session(until=2**40, token_id="a")
    owner = mp.App(staff.home.url)

    async def read() -> Session | None:
        known = (await Keys(owner.client, "").signer()).session(cookie)
        await owner.client.close_async()
        return known

    assert asyncio.run(read()) is None
    for app in (server, owner):
        app.close()


def test_a_worker_keeps_the_store_in_order(staff: Company):
    machine = mp.App(staff.url("worker"))
    kinds = jobs_of(machine)
    kinds["double"].submit(1)
    machine.drain()
    staff.owner.execute(f"UPDATE {staff.schema}.clock SET offset_us = 8 * 86400000000::bigint")
    machine.maintain_once()
    assert staff.owner.value(f"SELECT count(*) FROM {staff.schema}.job WHERE kind = 'double'") <= 1
    assert clean(staff)
    machine.close()


def test_an_admin_administers(staff: Company, capsys: pytest.CaptureFixture[str]):
    owner = mp.App(staff.home.url)
    kinds = jobs_of(owner)
    job = kinds["double"].submit(21)
    owner.drain()
    store = ["--store", staff.url("admin")]
    for words in (
        ["tokens", "create", "anna", "--scope", "admin"],
        ["tokens", "ls"],
        ["tokens", "revoke", "anna"],
        ["queues", "pause", "default"],
        ["queues", "resume", "default"],
        ["schedules", "ls"],
        ["retention", "set", "--min", "2h"],
        ["retention", "show"],
        ["jobs", "rerun", str(job.id), "--fresh"],
        ["jobs", "ls"],
        ["channels", "ls"],
    ):
        with pytest.raises(SystemExit) as left:
            main([*words, *store])
        assert left.value.code == 0, (words, capsys.readouterr().err)
    from milepost.store import jobs

    admin = mp.App(staff.url("admin"))
    assert admin.client.run(jobs.erase, str(job.id), actor="cli:anna")
    admin.close()
    owner.close()
    assert clean(staff)


class Number(msgspec.Struct):
    """What the target holds."""

    id: int
    updated_at: datetime


class Numbers(mp.Source):
    """Thirty records."""

    def count(self, window, low, high) -> int:
        return len(self.found(low, high))

    def fetch(self, window, partition, cursor) -> mp.Page:
        stamp = "2024-01-01T00:00:00+00:00"
        found = self.found(partition.low, partition.high)
        return mp.Page([{"id": n, "updated_at": stamp} for n in found], None)

    def map(self, raw: dict[str, object]) -> Number:
        return msgspec.convert(raw, Number)

    def found(self, low, high) -> list[int]:
        return [n for n in range(30) if low is not None and low <= n < high]


def pipeline_of(app: mp.App):
    declared = {"key": "id", "version": "updated_at", "partition_by": "id", "partitions": 3}
    return app.pipeline("numbers", Numbers(), **declared)


def test_a_pipeline_is_started_by_a_submitter_read_by_a_worker_and_set_by_an_admin(staff: Company):
    for role in ("submit", "worker"):  # the target is the application's own table
        staff.owner.execute(f'GRANT CREATE ON SCHEMA public TO "{staff.names[role]}"')
    apps = {role: mp.App(staff.url(role)) for role in ("submit", "worker", "admin")}
    pipelines = {role: pipeline_of(app) for role, app in apps.items()}
    run = pipelines["submit"].start()
    apps["worker"].drain(timeout=20)
    assert run.refresh().state == "SUCCEEDED", run.errors
    assert pipelines["worker"].watermark is not None
    remap = pipelines["submit"].remap()
    apps["worker"].drain(timeout=20)
    assert remap.refresh().state == mp.RunState.SUCCEEDED
    with pytest.raises(mp.IllegalMove, match="rights of an admin"):
        pipelines["worker"].override_watermark(None, reason="again")
    with pytest.raises(mp.MilepostError, match="lacks a right"):
        pipelines["submit"].override_watermark(None, reason="again")
    pipelines["admin"].override_watermark(None, reason="again")
    told = staff.owner.execute(
        f"SELECT move, db_user FROM {staff.schema}.watermark_entry ORDER BY seq"
    )
    assert told == [("advance", staff.names["worker"]), ("override", staff.names["admin"])]
    for app in apps.values():
        app.close()
    assert clean(staff)


def test_the_api_serves_submitters_under_the_role_submit(staff: Company):
    """It reads tokens and remembers answers; what takes an operator's rights is refused."""
    from milepost.store import tokens

    admin, server = mp.App(staff.url("admin")), mp.App(staff.url("submit"))
    token_id, secret, hashed = tokens.new_secret()
    admin.client.run(
        tokens.create, token_id, name="anna", hashed=hashed, scopes=("admin", "submit", "read")
    )
    jobs_of(server)
    headers = {"Authorization": f"Bearer {secret}", "Idempotency-Key": "once"}
    with (
        served(server) as where,
        httpx2.Client(base_url=where, headers=headers, timeout=60) as client,
    ):
        made = [client.post("/v1/jobs", json={"kind": "double", "args": [4]}) for _ in range(2)]
        assert [answer.status_code for answer in made] == [202, 202]
        assert made[0].json()["id"] == made[1].json()["id"]
        job = f"/v1/jobs/{made[0].json()['id']}"
        ended = client.post(f"{job}:cancel", headers={"Idempotency-Key": "two"})
        assert ended.json()["state"] == "CANCELLED", ended.text
        erased = client.post(f"{job}:erase", headers={"Idempotency-Key": "three"})
        # No trying again helps, and whoever runs the server must be told which right it is.
        assert erased.status_code == 500, erased.text
        assert erased.json()["type"] == "urn:milepost:problem:server-lacks-a-right"
        assert "permission denied for table job" in erased.json()["detail"]
        assert "retry-after" not in erased.headers
        assert client.get(job).json()["state"] == "CANCELLED"
    for app in (admin, server):
        app.close()
    assert clean(staff)


PAGES = (
    *("/", "/jobs?q=state:cancelled", "/errors", "/runs", "/runs/new", "/pipelines", "/queues"),
    *("/schedules", "/channels", "/tokens", "/jobs/bulk?action=rerun&all=1&q=kind:double"),
)


@pytest.mark.parametrize("role", ["submit", "admin"])
def test_the_dashboard_is_served_under_the_roles_submit_and_admin(staff: Company, role: str):
    from milepost.store import tokens

    admin, server = mp.App(staff.url("admin")), mp.App(staff.url(role))
    token_id, secret, hashed = tokens.new_secret()
    admin.client.run(tokens.create, token_id, name="anna", hashed=hashed, scopes=("admin",))
    job = jobs_of(server)["double"].submit(4)
    with served(server) as where, httpx2.Client(base_url=where, timeout=60) as browser:
        browser.headers["Accept"] = "text/html"
        assert browser.post("/login", data={"token": secret}).status_code == 303
        for path in (*PAGES, f"/jobs/{job.id}", f"/jobs/{job.id}/cancel"):
            answer = browser.get(path)
            assert answer.status_code == 200, (path, answer.text)
        form_token = re.findall(r'name="form_token" value="([^"]+)"', answer.text)[-1]
        for path, fields in (
            (f"/jobs/{job.id}/cancel", {}),
            (f"/jobs/{job.id}/rerun", {}),
            ("/views", {"name": "doubles", "q": "kind:double"}),
            ("/views/drop", {"name": "doubles"}),
        ):
            done = browser.post(path, data={"form_token": form_token, **fields})
            assert done.status_code == 303, (path, done.text)
    for app in (admin, server):
        app.close()
    assert clean(staff)


OWNERS = {
    *("clock_advance", "migration_add"),
    *("move_finish", "move_forget", "move_note", "move_week"),
}
"""Statements of those who migrate, move a store or test."""
THEIRS = {"guard_create", "guard_exists", "guard_fence", "guard_lock"}
"""Statements on a database of the user's own."""
CLIENTS = {
    "job_ask_to_stop",
    "job_cancel",
    "job_cancel_stopped",
    "job_create",
    "job_create_in_steps",
    "job_create_unique",
    "job_open",
    "job_release_held",
    "job_replace",
    "job_rerun",
    "job_run_now",
    "job_signal",
    "job_submit",
    "run_create",
    "run_move",
    "signal_add",
    "step_create",
    "step_filled",
    "step_open",
    "unfit_release",
    "unique_held",
    "unique_keep",
    "unique_take",
}


def statements(schema: str) -> Iterator[tuple[str, str]]:
    """Every statement that reads or writes rows, with NULL for what it is given."""
    for name in sorted(names() - THEIRS):
        text = query(name, "postgres", schema).text
        bare = re.sub(r"--[^\n]*", "", text).strip()
        if bare.startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
            yield name, re.sub(r"(?<![:\w]):([a-z_]+)", "NULL", bare)


def test_every_statement_is_within_the_rights_of_a_role(staff: Company):
    """EXPLAIN checks rights and changes nothing."""
    denied: dict[str, set[str]] = {}
    for role in ROLES:
        with staff.hand(role) as hand:
            for name, text in statements(staff.schema):
                try:
                    hand.execute(f"EXPLAIN {text}")
                except psycopg.errors.InsufficientPrivilege:
                    denied.setdefault(name, set()).add(role)
    nobodys = {name for name, roles in denied.items() if roles >= {"worker", "admin"}}
    assert nobodys == OWNERS
    assert {name for name in CLIENTS if denied.get(name, set()) & {"submit", "admin"}} == set()
