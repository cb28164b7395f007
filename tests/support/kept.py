"""A store on a server that tests take in turn: emptied in between, dropped where a trace is left.

Tables that a test made are dropped. To make and drop a whole database costs a server more than
most tests do on it.
"""

from time import monotonic, sleep
from typing import Any

from milepost.address import StoreUrl

__all__ = ["Kept"]

USES_MOST = 200
GROWTH_MOST = 4 * 1024 * 1024
"""In bytes; rows that were deleted stay in the files, as nothing vacuums."""
WEEKS_AHEAD = 2
PATIENCE_SECONDS = 1.0

_BY_OID = (
    *("pg_trigger", "pg_event_trigger", "pg_rewrite", "pg_policy", "pg_constraint", "pg_proc"),
    *("pg_type", "pg_attrdef", "pg_default_acl", "pg_extension", "pg_operator", "pg_cast"),
    *("pg_statistic_ext", "pg_largeobject_metadata"),
)
_BY_OTHERS = {
    "pg_attribute": "attrelid",
    "pg_index": "indexrelid",
    "pg_inherits": "inhrelid",
    "pg_sequence": "seqrelid",
    "pg_statistic": "starelid",
    "pg_description": "objoid",
    "pg_db_role_setting": "setdatabase",
}
"""Catalogues in which a server says of what a database consists, by the column that tells ours."""
_STAYING = ("clock", "migration", "retention")
"""Tables that are not empty in a new store."""
_OURS = 16384
"""The first number that a server gives to anything that is not its own."""


def _part(name: str, condition: str, row: str = "ctid, xmin") -> str:
    hashes = f"sum(hash_record_extended(ROW({row}), 0))"
    return f"SELECT '{name}', count(*), {hashes} FROM {name} WHERE {condition}"


def _trace() -> str:
    """Spell a query of everything that must be the same for the next test, as few numbers.

    A statement that changes a catalogue writes a row anew, so its transaction tells. ANALYZE does
    not: it writes its figures into the row.
    """
    columns = {**dict.fromkeys(_BY_OID, "oid"), **_BY_OTHERS}
    parts = [_part(name, f"{column} >= {_OURS}") for name, column in columns.items()]
    parts += [_part(name, "true", row=f"{name}.*") for name in _STAYING]
    parts.append(_part("pg_class", f"oid >= {_OURS}", row="ctid, xmin, reltuples, relpages"))
    parts.append(_part("pg_namespace", "true"))
    parts.append(_part("pg_database", "datname = current_database()"))
    return " UNION ALL ".join(parts)


_TRACE = _trace()
_TABLES = """
    SELECT oid::regclass::text FROM pg_class
     WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'milepost'::regnamespace
       AND NOT relname = ANY (%s)
     ORDER BY 1
"""
_MADE = f"""
    SELECT 'DROP TABLE ' || string_agg(oid::regclass::text, ', ') FROM pg_class
     WHERE oid >= {_OURS} AND relkind IN ('r', 'p') AND NOT relispartition AND NOT oid = ANY (%s)
"""
"""Tables of pipelines, most of all. Those that something else needs stay, and tell."""
_OTHERS = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_SIZE = f"""
    SELECT sum(pg_relation_size(oid)) FROM pg_class
     WHERE oid >= {_OURS} AND relkind IN ('r', 'i')
"""
_RESTART = "SELECT setval(seqrelid::regclass, seqstart, false) FROM pg_sequence"


class Kept:
    """One such store, and the connection by which it is emptied."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._connection: Any = psycopg.connect(
            StoreUrl.parse(url).target, autocommit=True, prepare_threshold=0
        )
        # Neither triggers nor foreign keys; and no test waits long for what another left open.
        self._run("SET session_replication_role = replica")
        self._run("SET lock_timeout = '1s'")
        self._run("SET search_path = milepost")
        # As in every store after its first hour; a test's own worker need not.
        self._run("SELECT milepost_make_weeks(%s)", (WEEKS_AHEAD,))
        tables = [name for (name,) in self._run(_TABLES, (list(_STAYING),))]
        deleted = (f"d{n} AS (DELETE FROM {name})" for n, name in enumerate(tables))
        self._empty = f"WITH {', '.join(deleted)} UPDATE clock SET offset_us = 0 RETURNING 1"
        self._uses = 0
        self._tables = [
            oid for (oid,) in self._run("SELECT oid FROM pg_class WHERE relkind <> 'i'")
        ]
        self._trace = self._run(_TRACE)
        self._size = self._run(_SIZE)[0][0]

    def emptied(self) -> bool:
        """Empty the store; False where the next test could tell that there was one before."""
        import psycopg

        self._uses += 1
        try:
            return self._uses < USES_MOST and self._is_alone() and self._is_as_new()
        except psycopg.Error:
            return False

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _is_alone(self) -> bool:
        """A server notices a moment later that a program hung up."""
        until = monotonic() + PATIENCE_SECONDS
        while self._run(_OTHERS)[0][0]:
            if monotonic() > until:
                return False
            sleep(0.01)
        return True

    def _is_as_new(self) -> bool:
        made = self._run(_MADE, (self._tables,))[0][0]
        if made is not None:
            self._run(made)
        self._run(self._empty)
        self._run(_RESTART)
        grown = self._run(_SIZE)[0][0] - self._size
        return bool(grown < GROWTH_MOST and self._run(_TRACE) == self._trace)

    def _run(self, statement: str, parameters: tuple[Any, ...] | None = None) -> list[Any]:
        cursor = self._connection.execute(statement, parameters)
        return list(cursor.fetchall()) if cursor.description else []
