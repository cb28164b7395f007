"""SQLite 3.40 (Debian 12) takes a table without rowids for damaged unless its key comes first."""

import sqlite3

from milepost.store.migrate import migrations, script


def test_the_key_of_a_table_without_rowids_is_its_first_columns():
    connection = sqlite3.connect(":memory:")
    connection.executescript(script("sqlite", list(migrations("sqlite"))))
    plain = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql LIKE '%WITHOUT ROWID'"
    ).fetchall()
    assert plain
    for (name,) in plain:
        places = [row[5] for row in connection.execute(f"PRAGMA table_info({name})")]
        keys = sorted(place for place in places if place)
        assert places[: len(keys)] == keys, name
    connection.close()
