"""Tables of pipelines on their way from a file to a server.

They are made from a user's types, and a file keeps some of those as texts: PostgreSQL reads them
from a table of its own that holds them as they were stored.
"""

from collections.abc import Callable

from milepost.errors import IllegalMove, Invalid, MilepostError
from milepost.store.binary import Column, Packer
from milepost.store.catalog import Statement
from milepost.store.driver import Call, Rows
from milepost.store.held import HeldTransaction
from milepost.store.move_file import MovingFile

TypeOf = Callable[[str, str], str | None]
"""Gives the type on PostgreSQL of a pipeline's column, by its name and its type on SQLite."""
STAGE = "pg_temp.moved_table"


def copy_targets(here: MovingFile, there: HeldTransaction, type_of: TypeOf) -> dict[str, int]:
    """Copy the tables that pipelines hold; answer with how many rows each has."""
    found = {}
    for table in here.holdings():
        columns = here.target(table)
        if columns:  # else somebody dropped it; the next run makes it anew
            found[table] = _copied(here, there, table, _typed(table, columns, type_of))
    return found


def _typed(table: str, columns: Rows, type_of: TypeOf) -> list[tuple[str, str, str, bool]]:
    """Give each column its name, its type on both sides, and whether it is the key."""
    found = []
    for name, kind, key in columns:
        if (there := type_of(name, kind)) is None:
            raise Invalid(
                f"the column {name} of the pipeline's table {table} was not made by its pipeline: "
                f"nothing is known of the type {kind or '(none)'}; drop it first, and add it again "
                "on PostgreSQL"
            )
        found.append((name, kind, there, bool(key)))
    return found


def _copied(
    here: MovingFile, there: HeldTransaction, table: str, columns: list[tuple[str, str, str, bool]]
) -> int:
    if there.ask(Call("move_target", {"table": table})):
        raise IllegalMove(
            f"there is a table {table} already where the pipeline's table is to go; rename it"
        )
    names = ", ".join(f'"{name}"' for name, *_ in columns)
    staged = [Column(f"c{n}", _stored(kind)) for n, (_, kind, _, _) in enumerate(columns)]
    made = ", ".join(
        f'"{name}" {kind}{" PRIMARY KEY" if key else ""}' for name, _, kind, key in columns
    )
    there.script(f'CREATE TABLE "{table}" ({made})')
    stage = ", ".join(f"{column.name} {column.kind}" for column in staged)
    there.script(f"CREATE TEMP TABLE {STAGE.removeprefix('pg_temp.')} ({stage})")
    packer = Packer(table, staged)
    with here.rows(f'SELECT {names} FROM "{table}"') as rows:
        there.load(f"COPY {STAGE} FROM STDIN (FORMAT binary)", packer.chunks(rows))
    values = (_read(f"c{n}", kind, there_) for n, (_, kind, there_, _) in enumerate(columns))
    there.script(f'INSERT INTO "{table}" ({names}) SELECT {", ".join(values)} FROM {STAGE}')
    there.script(f"DROP TABLE {STAGE}")
    there.script(f'ANALYZE "{table}"')
    count = f'SELECT count(*) FROM "{table}"'
    [(rows,)] = there.ask(Call(Statement("move:count", count, count)))
    if rows != packer.sum.rows:
        raise MilepostError(f"nothing was moved: {packer.sum.rows} rows of {table} became {rows}")
    return int(rows)


def _stored(kind: str) -> str:
    """Tell what SQLite stores for a type: it goes by a word in the type's name."""
    words = {"INT": "int8", "TEXT": "text", "REAL": "float8"}
    return next((stored for word, stored in words.items() if word in kind), "bytea")


def _read(column: str, kind: str, there: str) -> str:
    """Spell how PostgreSQL reads what was stored."""
    if there == "boolean":
        return f"{column} <> 0"
    if there == "timestamptz" and _stored(kind) == "int8":
        return f"'epoch'::timestamptz + {column} * interval '1 microsecond'"
    return f"{column}::{there}"
