"""The four roles: what each may do with every table, and that each can do its work with it."""

from collections.abc import Iterable, Iterator

import pytest
from roles import Company, company

import milepost as mp
from milepost.cli import main
from milepost.config import StoreUrl
from milepost.observe.verify import verify
from milepost.store import workers
from milepost.store.connect import open_driver
from milepost.store.enforce import GUARDS
from milepost.store.roles import _OWN, FUNCTIONS, RIGHTS, ROLES, SEQUENCES, VERBS, columns
from milepost.testing.databases import Backends, backend_names

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
    assert tables(staff) == set(RIGHTS)
    for table, rights in RIGHTS.items():
        assert set(rights) <= set(ROLES), table


@pytest.mark.parametrize("table", GUARDS)
def test_the_guards_know_every_column(staff: Company, table: str):
    found = staff.owner.execute(
        "SELECT attname FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped"
        f" AND attrelid = '{staff.schema}.{table}'::regclass"
    )
    known = {*GUARDS[table].columns, *_OWN[table]}
    assert {name for (name,) in found} == known


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_do_with_each_table_what_was_decided_and_nothing_else(staff: Company, role: str):
    for table in sorted(tables(staff)):
        allowed = {VERBS[verb] for verb in RIGHTS[table].get(role, "") if verb in VERBS}
        for verb in (*VERBS.values(), "TRUNCATE", "REFERENCES", "TRIGGER"):
            has = staff.owner.value(
                f"SELECT has_table_privilege('{staff.names[role]}', '{staff.schema}.{table}',"
                f" '{verb}')"
            )
            assert has == (verb in allowed), (role, table, verb)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_update_the_columns_that_were_decided(staff: Company, role: str):
    for table in sorted(tables(staff)):
        if "U" in RIGHTS[table].get(role, ""):
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
    @app.job(retries=0)
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

    machine.drain(timeout=5)
    polling.signal({"go": True})
    again = bad.refresh().rerun()
    machine.drain(timeout=5)

    assert job.refresh().result == 42
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
    machine.client.run(workers.now)
    for app in (client, machine, reader):
        app.close()
    assert clean(staff)


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
