"""A caller's own SQLite connection to a file that is no store yet: it becomes one, or says why."""

import sqlite3
from contextlib import closing

import pytest

import milepost as mp


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders.db"


def declared(path, **options):
    app = mp.App(f"sqlite:///{path}", **options)

    @app.job
    def convert(number: int) -> int:
        return number

    return app, convert


@pytest.mark.parametrize("level", ["", None])
def test_a_submit_on_an_empty_file_sets_it_up(path, level):
    app, convert = declared(path)
    with closing(sqlite3.connect(path, isolation_level=level)) as connection:
        job = convert.within(connection).submit(1)
        connection.commit()
    app.drain()
    assert job.refresh().result == 1
    app.close()


def test_inside_the_callers_transaction_it_is_undone_with_it(path):
    app, convert = declared(path, migrate=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE orders (number INTEGER)")
        convert.within(connection).submit(1)
        assert connection.in_transaction, "the caller's transaction is the caller's to end"
        connection.execute("ROLLBACK")
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE orders (number INTEGER)")
        job = convert.within(connection).submit(2)
        connection.execute("COMMIT")
    app.drain()
    assert [one.id for one in app.jobs.list()] == [job.id]
    assert job.refresh().result == 2
    app.close()


def test_beside_the_callers_tables_it_is_set_up_only_when_asked_for(path):
    app, convert = declared(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (number INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(mp.SchemaMismatch, match=r"orders.*App\(migrate=True\)"):
            convert.within(connection).submit(1)
        connection.commit()
    app.close()
