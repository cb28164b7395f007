"""SQLite: one file, one writer at a time, every commit on disk before it is answered.

Threads that write at the same time share a commit: whoever gets the connection runs everything that
waits, each operation in a savepoint of its own, and commits once.
"""

import asyncio
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate, repeat
from pathlib import Path
from threading import Lock
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

from milepost.errors import IllegalMove, Invalid, MilepostError, Unavailable
from milepost.store import failpoint
from milepost.store.catalog import Query, query, with_same
from milepost.store.driver import Call, Rows, Steps, drive

__all__ = [
    "BUSY_SECONDS",
    "AsyncSqliteDriver",
    "File",
    "SqliteDriver",
    "SqliteReader",
    "connect",
    "execute",
    "statements",
    "translated",
]

T = TypeVar("T")
P = ParamSpec("P")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BUSY_SECONDS = 30
MINIMUM = (3, 37, 0)
THREADS = 16
GROUP = 256
PORTION = 64 * 1024**2
TAKEN = (
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
)


class _Turn:
    """An operation that waits for the connection; somebody else may run it meanwhile."""

    def __init__(self, start: Callable[[], Steps[Any]]) -> None:
        self.start = start
        self.answer: Future[Any] = Future()
        self.leads = False
        self._waits = Lock()
        self._waits.acquire()

    def wait(self) -> None:
        """Wait until it has been run, or leads."""
        self._waits.acquire()

    def wake(self) -> None:
        self._waits.release()


class _Turns:
    """Whose turn it is to write: first come, first served, so that nobody starves."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._taken = False
        self._waiting: deque[_Turn] = deque()

    def take(self) -> bool:
        """Take the connection if it is free."""
        with self._mutex:
            if self._taken:
                return False
            self._taken = True
            return True

    def wait(self, turn: _Turn) -> bool:
        """Wait for one's turn; answer whether one leads, and must pass on, or was served."""
        with self._mutex:
            if not self._taken:
                self._taken = turn.leads = True
                return True
            self._waiting.append(turn)
        try:
            turn.wait()
        except BaseException:
            self._leave(turn)
            raise
        return turn.leads

    def followers(self) -> list[_Turn]:
        """Let whoever else waits share the leader's transaction."""
        with self._mutex:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP - 1))]

    def pass_on(self) -> None:
        """Hand the connection to who has waited longest."""
        with self._mutex:
            if not self._waiting:
                self._taken = False
                return
            following = self._waiting.popleft()
        following.leads = True
        following.wake()

    def _leave(self, turn: _Turn) -> None:
        with self._mutex:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
        # It was called meanwhile, to lead or with an answer: a leader must not vanish.
        turn.wait()
        if turn.leads:
            self.pass_on()


class File:
    """Notices that a file was deleted or replaced while it was open.

    SQLite goes on without a word, and what it commits from then on nobody can open any more.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)  # noqa: PTH100 - the program may change its folder
        self._known = self._found()

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - before every transaction
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def unchanged(self) -> bool:
        """Tell whether it is the same; raise `Unavailable` where none is there."""
        found = self._found()
        if found == self._known:
            return True
        if found is None:
            raise Unavailable(
                f"{self.path} was deleted while this program used it. Put a copy of the store "
                "there, or make an empty one with `milepost migrate`"
            )
        return False

    def follow(self) -> None:
        """Take what is there now for the file."""
        self._known = self._found()


class SqliteDriver:
    """A connection to a SQLite file."""

    dialect = "sqlite"

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < MINIMUM:
            raise Unavailable(
                f"SQLite {sqlite3.sqlite_version} is too old: Milepost needs 3.37 or newer"
            )
        self._path = path
        self._connection = connect(path)
        self._file = File(path)
        self._turns = _Turns()

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction, perhaps sharing its commit with others."""
        if self._turns.take():
            try:
                return self._commit_alone(operation(*args, **kwargs))
            finally:
                self._turns.pass_on()
        turn = _Turn(partial(operation, *args, **kwargs))
        if self._turns.wait(turn):
            try:
                self._commit_group([turn, *self._turns.followers()])
            finally:
                self._turns.pass_on()
        return cast("T", turn.answer.result())

    def _commit_alone(self, steps: Steps[T]) -> T:
        with translated():
            self._begin("IMMEDIATE")
            try:
                result = drive(steps, partial(execute, self._connection))
                failpoint.reach("before:commit")
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        failpoint.reach("after:commit")
        return result

    def _begin(self, kind: str) -> None:
        if not self._file.unchanged():
            # Closing the old one leaves what belongs to the new one alone: SQLite looks, too.
            former, self._connection = self._connection, connect(self._file.path)
            self._file.follow()
            former.close()
            raise Unavailable(
                f"{self._file.path} was replaced by another file while this program used it. "
                "That one is open now: try again"
            )
        self._connection.execute(f"BEGIN {kind}")

    def _roll_back(self) -> None:
        # RAISE(ROLLBACK) and a full disk end the transaction by themselves.
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _commit_group(self, group: list[_Turn]) -> None:
        done: list[tuple[_Turn, Any, BaseException | None]] = []
        try:
            with self._transaction("IMMEDIATE"):
                alone = len(group) == 1
                done += [(turn, *self._attempt(turn.start, alone=alone)) for turn in group]
        except BaseException as error:  # noqa: BLE001 - whoever waits must hear of it
            done = [(turn, None, error) for turn in group]
        for turn, result, problem in done:
            if problem is None:
                turn.answer.set_result(result)
            else:
                turn.answer.set_exception(problem)
            turn.wake()

    def _attempt(
        self, start: Callable[[], Steps[Any]], *, alone: bool
    ) -> tuple[Any, BaseException | None]:
        """Run one operation of a group; its failure is its own."""
        if alone:
            return drive(start(), self.rows), None
        self._connection.execute("SAVEPOINT operation")
        try:
            result = drive(start(), self.rows)
        except BaseException as error:
            if not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO operation")
            self._connection.execute("RELEASE operation")
            return None, error
        self._connection.execute("RELEASE operation")
        return result, None

    @contextmanager
    def snapshot(self) -> Iterator["SqliteReader"]:
        """Read several answers that belong together, beside the writer."""
        reader = SqliteReader(connect(self._path))
        # What is no UTF-8 was put there by hand; it is shown, not stumbled over.
        reader.connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")
        try:
            with translated():
                reader.connection.execute("BEGIN")
                yield reader
        finally:
            reader.connection.close()

    def script(self, text: str) -> None:
        """Run many statements as they stand, inside the caller's transaction."""
        with translated():
            for statement in statements(text):
                self._connection.execute(statement)

    def close(self) -> None:
        """Close the file."""
        while not self._turns.wait(_Turn(_nothing)):
            pass
        self._connection.close()
        self._turns.pass_on()

    def rows(self, call: Call) -> Rows:
        """Run one named query."""
        with translated():
            return execute(self._connection, call)

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[None]:
        with translated():
            self._begin(kind)
        try:
            yield
            failpoint.reach("before:commit")
            with translated():
                self._connection.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        failpoint.reach("after:commit")


class SqliteReader:
    """Reads of one snapshot."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def rows(self, call: Call) -> Rows:
        """Read a small answer whole."""
        return execute(self.connection, call)

    def stream(self, call: Call, *, size: int) -> Iterator[Any]:
        """Read a large answer row by row; SQLite needs no batches."""
        del size
        yield from self.connection.execute(query(call.name, "sqlite").text, call.parameters)


class AsyncSqliteDriver:
    """The same connection for asynchronous callers: its work is done in threads."""

    dialect = "sqlite"

    def __init__(self, path: str) -> None:
        self._driver = SqliteDriver(path)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="milepost-sqlite")

    async def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction, perhaps sharing its commit with others."""
        call = partial(self._driver.run, operation, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def close(self) -> None:
        """Close the file."""
        self._threads.shutdown()
        self._driver.close()


def _nothing() -> Steps[None]:
    yield from ()


def execute(connection: sqlite3.Connection, call: Call) -> Rows:
    """Run one named query on a connection; lists become rows, or JSON where the query reads it."""
    statement = query(call.name, "sqlite")
    if statement.rows:
        return _execute_rows(connection, statement, call)
    if statement.each:
        return _execute_each(connection, statement, call)
    return connection.execute(statement.text, _bound(call.parameters)).fetchall()


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


def _execute_rows(connection: sqlite3.Connection, statement: Query, call: Call) -> Rows:
    """Run one statement over a table that JSON carries; bytes stand beside it, in one piece."""
    lists = {name: call.parameters[name.removesuffix("*")] for name in statement.rows}
    same = frozenset(name for name, values in lists.items() if _alike(values))
    shared = {name: call.parameters[name] for name in statement.shared}
    shared |= {name.removesuffix("*"): lists.pop(name)[0] for name in same}
    if same:
        statement = with_same(call.name, same)
    found: Rows = []
    for some in _portions(lists, len(call.parameters[statement.rows[0].removesuffix("*")])):
        table = _packed({name: values[some] for name, values in lists.items()}, some)
        given = {**_bound(shared), **table}
        keys = call.parameters[statement.rows[0]][some]
        if statement.hopeful and _moved_all(connection, statement.texts[1], given, len(keys)):
            found += [[key] for key in keys]
        elif statement.packed:
            found += _execute_packed(connection, statement, given)
        else:
            found += connection.execute(statement.text, given).fetchall()
    return found


def _moved_all(
    connection: sqlite3.Connection, move: str, given: dict[str, Any], count: int
) -> bool:
    """Move without a look first; where that is not possible for every row, move none."""
    connection.execute("SAVEPOINT hope")
    connection.execute(move, {**given, "picked": None})
    [(moved,)] = connection.execute("SELECT changes()").fetchall()
    if moved != count:
        connection.execute("ROLLBACK TO hope")
    connection.execute("RELEASE hope")
    return bool(moved == count)


def _execute_packed(
    connection: sqlite3.Connection, statement: Query, given: dict[str, Any]
) -> Rows:
    """Run the look, then the move; the answer comes in one piece."""
    look, move = statement.texts
    try:
        [(text, pieces, picked)] = connection.execute(look, given).fetchall()
    except sqlite3.DataError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_TOOBIG or given.get("most", 1) == 1:
            raise
        # Together they are larger than anything SQLite can answer with.
        return _execute_packed(connection, statement, {**given, "most": given["most"] // 2})
    rows: Rows = msgspec.json.decode(text)
    if rows:
        connection.execute(move, {**given, "picked": picked})
    if statement.bytes_at is not None:
        _put_bytes(rows, pieces or b"", statement.bytes_at)
    return rows


def _put_bytes(rows: Rows, pieces: bytes, place: int) -> None:
    """Give each row its piece, where its length stands."""
    end = 0
    for row in rows:
        if row[place] is not None:
            begin, end = end, end + row[place]
            row[place] = pieces[begin:end]


def _alike(values: list[Any]) -> bool:
    """Tell whether a column says the same in every row: reading JSON is what costs."""
    return bool(values) and values.count(values[0]) == len(values)


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


def connect(path: str) -> sqlite3.Connection:
    """Open the file as every connection to a store does; it must be in a folder that is there."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise Unavailable(f"{path}: the folder {folder} does not exist; make it first")
    with translated():
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
    return connection


def statements(text: str) -> Iterator[str]:
    """Split a script where its statements end; a trigger's body is one statement."""
    pending = ""
    for line in text.splitlines(keepends=True):
        pending += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending


@contextmanager
def translated() -> Iterator[None]:
    """Raise what SQLite's errors mean."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise _meaning(error) from error
    except sqlite3.OperationalError as error:
        raise Unavailable(f"the SQLite store cannot be used: {error}") from error
    except UnicodeEncodeError as error:
        raise Invalid(f"SQLite cannot store it: {error}") from error
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"the file is not a usable SQLite store: {error}") from error


def _meaning(error: sqlite3.IntegrityError) -> MilepostError:
    text = str(error)
    if "milepost:" in text:
        return IllegalMove(text.removeprefix("milepost: "))
    if error.sqlite_errorcode in TAKEN:
        return IllegalMove(f"it exists: {text}")
    return Invalid(f"SQLite cannot store it: {text}")
