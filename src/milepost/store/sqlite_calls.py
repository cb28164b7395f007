"""Named queries on SQLite, in three parts: prepared, run, and decoded.

Only the second needs the connection. The others are work of the interpreter, done by threads that
wait for the connection, or have given it back, while SQLite works for another.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate, repeat
from typing import Any, Protocol

import msgspec

from milepost.errors import Invalid
from milepost.store.catalog import Query, only_column, query, with_same
from milepost.store.driver import Call, Rows, Steps, drive

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PORTION = 64 * 1024**2
NONE = "[]"

Answer = Callable[[], Rows]


class PreparedCall(Protocol):
    """A call that is spelled. One `alone` in its transaction may raise `OptimisticMiss`."""

    def __call__(self, connection: sqlite3.Connection, *, alone: bool = False) -> Answer:
        """Run it; its answer is still to be decoded."""
        ...


class OptimisticMiss(Exception):  # noqa: N818 - no error: roll back, and run it with a look first
    """Some of the rows could not be moved, the others were."""


def prepared(call: Call) -> PreparedCall:
    """Spell a named query and its values: lists become rows, or JSON where the query reads it."""
    if (steps := call.steps) is not None:
        return partial(_execute_steps, steps)
    statement = query(call.name, "sqlite")
    if statement.rows:
        return _prepared_rows(statement, call)
    if statement.each:
        return _whole_answer(partial(_execute_each, statement=statement, call=call))
    bound = _bound(call.parameters)
    return _whole_answer(lambda connection: connection.execute(statement.text, bound).fetchall())


def _execute_steps(
    steps: Callable[[], Steps[Answer]], connection: sqlite3.Connection, *, alone: bool = False
) -> Answer:
    del alone
    return drive(steps(), partial(execute, connection))


def _whole_answer(execute: Callable[[sqlite3.Connection], Rows]) -> PreparedCall:
    def run(connection: sqlite3.Connection, *, alone: bool = False) -> Answer:
        del alone
        return _known(execute(connection))

    return run


def execute(connection: sqlite3.Connection, call: Call) -> Rows:
    """Run one named query on a connection."""
    return prepared(call)(connection)()


def _known(rows: Rows) -> Answer:
    return lambda: rows


def _bound(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _spelled(value) for name, value in parameters.items()}


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, list):
        return _json(value)
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    return value


def _prepared_rows(statement: Query, call: Call) -> PreparedCall:
    """Spell one statement over a table that JSON carries; bytes are bound in one piece."""
    lists = {name: call.parameters[name.removesuffix("*")] for name in statement.rows}
    same = frozenset(name for name, values in lists.items() if _alike(values))
    shared = {name: call.parameters[name] for name in statement.shared}
    shared |= {name.removesuffix("*"): (lists.pop(name) or [None])[0] for name in same}
    if same:
        statement = with_same(call.name, same)
    keys = call.parameters[statement.rows[0].removesuffix("*")]
    bound = _bound(shared)

    def spelled(some: slice) -> tuple[dict[str, Any], list[Any]]:
        table = _packed({name: values[some] for name, values in lists.items()}, some)
        return {**bound, **table}, keys[some]

    portions = list(_portions(lists, len(keys)))
    # A table that has to be cut is large: one portion at a time is held.
    only = spelled(portions[0]) if len(portions) == 1 else None

    def run(connection: sqlite3.Connection, *, alone: bool = False) -> Answer:
        if only is not None:
            return _answered(connection, statement, *only, alone=alone)
        answers = [_answered(connection, statement, *spelled(some)) for some in portions]
        return lambda: [row for answer in answers for row in answer()]

    return run


def _answered(
    connection: sqlite3.Connection,
    statement: Query,
    given: dict[str, Any],
    keys: list[Any],
    *,
    alone: bool = False,
) -> Answer:
    if statement.optimistic:
        move = _move_all if alone else _move_all_or_undo
        if move(connection, statement.texts[1], {**given, "picked": None}, len(keys)):
            return lambda: [[key] for key in keys]
    if statement.packed or statement.bytes_at is not None:
        return _execute_packed(connection, statement, given)
    return _known(connection.execute(statement.text, given).fetchall())


def _move_all(connection: sqlite3.Connection, move: str, given: dict[str, Any], count: int) -> bool:
    """Move without a look first; the caller rolls back if not every row could be moved."""
    if connection.execute(move, given).rowcount != count:
        raise OptimisticMiss
    return True


def _move_all_or_undo(
    connection: sqlite3.Connection, move: str, given: dict[str, Any], count: int
) -> bool:
    """Move without a look first, in a transaction that holds more: that must stay."""
    connection.execute("SAVEPOINT optimistic")
    moved = connection.execute(move, given).rowcount == count
    if not moved:
        connection.execute("ROLLBACK TO optimistic")
    connection.execute("RELEASE optimistic")
    return moved


def _execute_packed(
    connection: sqlite3.Connection, statement: Query, given: dict[str, Any]
) -> Answer:
    """Run the look, then the move if there is one; the answer comes in one piece.

    Where a look without a move tells more, its rows are the first column, still to be decoded.
    """
    look, *moves = statement.texts
    try:
        [(text, pieces, *picked)] = connection.execute(look, given).fetchall()
    except sqlite3.DataError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_TOOBIG or given.get("most", 1) == 1:
            raise
        # Together they are larger than anything SQLite can answer with.
        return _execute_packed(connection, statement, {**given, "most": given["most"] // 2})
    rows = partial(_unpacked, text, pieces, statement.bytes_at)
    if picked and not moves:
        return _known([[rows, *picked]])
    if moves and picked != [NONE]:
        connection.execute(moves[0], {**given, "picked": picked[0]})
    return rows


def _unpacked(text: str, pieces: bytes | None, bytes_at: int | None) -> Rows:
    rows: Rows = msgspec.json.decode(text)
    if bytes_at is not None:
        _put_bytes(rows, pieces or b"", bytes_at)
    return rows


def _put_bytes(rows: Rows, pieces: bytes, place: int) -> None:
    """Give each row its piece, where its length stands."""
    end = 0
    for row in rows:
        if row[place] is not None:
            begin, end = end, end + row[place]
            row[place] = pieces[begin:end]


def _alike(values: list[Any]) -> bool:
    """Tell whether a column has one value in all rows: JSON, which is slow, need not carry it.

    An empty list stands for NULLs, as it does where PostgreSQL makes rows of lists.
    """
    return not values or values.count(values[0]) == len(values)


def _portions(lists: Mapping[str, list[Any]], count: int) -> Iterator[slice]:
    """Cut lists where their bytes would get too large for one statement."""
    begin = held = 0
    heavy = [values for name, values in lists.items() if name.endswith("*")]
    if heavy and sum(len(value or b"") for values in heavy for value in values) > PORTION:
        for row in range(count):
            more = sum(len(values[row] or b"") for values in heavy)
            if held and held + more > PORTION:
                yield slice(begin, row)
                begin, held = row, 0
            held += more
    yield slice(begin, count)


def _packed(lists: Mapping[str, list[Any]], rows: slice) -> dict[str, Any]:
    """Spell columns as one JSON list of rows, and the bytes in them as one piece."""
    if only_column(lists, frozenset()):
        return {"rows": _json(next(iter(lists.values()))), "bytes": b""}
    columns: list[Iterable[Any]] = []
    pieces: list[bytes] = []
    end = 1
    for name, values in lists.items():
        if not name.endswith("*"):
            columns.append(values)
            continue
        sizes = [None if value is None else len(value) for value in values]
        starts = list(accumulate((size or 0 for size in sizes), initial=end))
        end = starts.pop()
        columns += [starts, sizes]
        pieces += [value for value in values if value]
    table = list(zip(*columns, strict=True)) if columns else [()] * (rows.stop - rows.start)
    return {"rows": _json(table), "bytes": b"".join(pieces)}


def _json(value: Any) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError as error:
        raise Invalid(f"SQLite cannot store it: {error}") from error
    if "\\u0000" in text:
        _whole(_texts(value))
    return text


def _whole(text: str) -> str:
    # Many functions of SQLite end a text there; PostgreSQL refuses it.
    if "\0" in text:
        raise Invalid("SQLite cannot store it: a text holds U+0000")
    return text


def _texts(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "".join(_texts(item) for item in value)
    return value if isinstance(value, str) else ""


def _execute_each(connection: sqlite3.Connection, statement: Query, call: Call) -> Rows:
    # A tuple a row, made by zip: a dictionary a row costs as much as the row itself.
    given = {name: call.parameters[name] for name in statement.parameters}
    columns = (v if isinstance(v, list) else repeat(_spelled(v)) for v in given.values())
    rows = zip(*columns, strict=False)
    if not statement.answers:
        connection.executemany(statement.placed, rows)
        return []
    cursor = connection.cursor()
    found: Rows = []
    for row in rows:
        found += cursor.execute(statement.placed, row).fetchall()
    return found
