"""SQLite: one file, one writer at a time, every commit on disk before it is answered.

Threads that write at the same time share a commit (`GroupCommit`): the leader runs each operation
in a savepoint of its own, and commits once.
"""

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from milepost.address import CAPABILITIES
from milepost.errors import IllegalMove, Invalid, MilepostError, SchemaMismatch, Unavailable
from milepost.store import failpoint
from milepost.store.catalog import query
from milepost.store.driver import Call, Rows, StatementFailed, Steps, drive
from milepost.store.group import GroupCommit, GroupSize, Refusal
from milepost.store.sqlite_calls import OptimisticMiss, PreparedCall, execute, prepared

T = TypeVar("T")
P = ParamSpec("P")
BUSY_SECONDS = 30
BUSY_PAUSE_SECONDS = 0.01
PRIMARY_CODE = 0xFF
"""The part of an extended error code that says what kind it is."""
MINIMUM = (3, 37, 0)
THREADS = 16
_CLASH = re.compile(r"already (exists|another)")
OWN_FILE = (
    "the file has one of its own, and a SQLite file has no schemas to keep the two apart; give "
    "Milepost a file of its own, such as sqlite:///milepost.db"
)
TAKEN = (
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
)
MOVED = "this store was moved away"
"""With these words the triggers of a store that was moved refuse every change."""
GROUP = GroupSize(256)
CHECKPOINT_PAGES = 4_000
"""16 MiB of log are copied into the file at once. Claims under limits change an index in the order
of keys, a page for each job: with a fourth of that the same pages were copied again and again."""
PRAGMAS = (
    "synchronous = FULL",
    "foreign_keys = ON",
    f"wal_autocheckpoint = {CHECKPOINT_PAGES}",
)


class _Work(NamedTuple):
    """A part of an operation that needs the connection."""

    run: Callable[..., Any]
    is_simple: bool = False
    """Whether it is one call, which can be run again."""


class StoreFile:
    """Notices that a file was deleted or replaced while it was open.

    SQLite goes on silently, and its commits from then on are in a file that cannot be opened.
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
        """Take the file that is there now for the store."""
        self._known = self._found()


class SqliteDriver:
    """A connection to a SQLite file."""

    dialect = "sqlite"
    can = CAPABILITIES[dialect]

    def __init__(self, path: str) -> None:
        if sqlite3.sqlite_version_info < MINIMUM:
            raise Unavailable(
                f"SQLite {sqlite3.sqlite_version} is too old: Milepost needs 3.37 or newer"
            )
        self._path = path
        self._connection = _writer_of(path)
        self._file = StoreFile(path)
        self._writes: GroupCommit[_Work, Any] = GroupCommit(self._commit, size=GROUP)
        self._closed = False

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction, perhaps sharing its commit with others."""
        steps = operation(*args, **kwargs)
        try:
            call = next(steps)
            while call.alone and not (failpoint.active or failpoint.watchers):
                call = steps.send(self._writes.run(_Work(_prepared(call), is_simple=True))())
        except StopIteration as end:
            return cast("T", end.value)
        return cast("T", self._writes.run(_Work(partial(_rest, steps, call, _prepared(call)))))

    def _commit(self, group: list[_Work]) -> list[Any]:
        """Do all of a group in one transaction; an operation that began is not run again."""
        try:
            return [self._one(group[0])] if len(group) == 1 else self._together(group)
        except Exception as error:  # noqa: BLE001 - told to the callers
            return [Refusal(error)] * len(group)

    def _one(self, work: _Work) -> Any:
        with suppress(OptimisticMiss), self._transaction():
            return work.run(self._connection, alone=work.is_simple)
        with self._transaction():
            return work.run(self._connection)

    def _together(self, group: list[_Work]) -> list[Any]:
        if all(work.is_simple for work in group):
            # A savepoint takes two more statements, and with each the interpreter's lock is lost.
            with suppress(_GroupMiss), self._transaction():
                return [self._simply(work) for work in group]
        with self._transaction():
            return [self._attempt(work) for work in group]

    def _simply(self, work: _Work) -> Any:
        try:
            return work.run(self._connection, alone=True)
        except Exception as error:
            raise _GroupMiss from error

    def _attempt(self, work: _Work) -> Any:
        """Run one of a group; its failure is its own."""
        self._connection.execute("SAVEPOINT operation")
        try:
            with translated():
                result = work.run(self._connection)
        except Exception as error:
            if not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO operation")
            result = Refusal(error)
        self._connection.execute("RELEASE operation")
        return result

    def _begin(self) -> None:
        if self._closed:
            raise _closed(self._path)
        if not self._file.unchanged():
            # Closing the old one leaves the companions of the new one alone: SQLite looks, too.
            former, self._connection = self._connection, _writer_of(self._file.path)
            self._file.follow()
            former.close()
            raise Unavailable(
                f"{self._file.path} was replaced by another file while this program used it. "
                "That one is open now: try again"
            )
        # A caller that was interrupted twice may have left a transaction open.
        self._roll_back()
        self._connection.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        # RAISE(ROLLBACK) and a full disk end the transaction by themselves.
        if not self._closed and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def serve(self) -> Thread:
        """Start a thread that leads every group."""
        return self._writes.serve("milepost-sqlite-writer")

    @contextmanager
    def snapshot(self) -> Iterator["SqliteReader"]:
        """Read several answers that belong together, on a connection of their own."""
        if self._closed:
            raise _closed(self._path)
        reader = SqliteReader(connect(self._path))
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
        with self._writes.exclusive():
            self._closed = True
            self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with translated():
            try:
                self._begin()
                yield
                failpoint.reach("before:commit")
                self._connection.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
        failpoint.reach("after:commit")


def _closed(path: str) -> Unavailable:
    return Unavailable(f"sqlite:///{path} was closed")


def _prepared(call: Call) -> PreparedCall:
    with translated():
        return prepared(call)


class _GroupMiss(Exception):  # noqa: N818 - no error: roll back, and run each in a savepoint
    """One of a group failed, or was no simple call after all."""


def _rest(
    steps: Steps[T],
    call: Call,
    first: PreparedCall,
    connection: sqlite3.Connection,
    *,
    alone: bool = False,
) -> T:
    """Run the rest of an operation, from a call that is prepared."""
    del alone

    def run(following: Call) -> Rows:
        return (first if following is call else prepared(following))(connection)()

    return drive(steps, run, call)


class SqliteReader:
    """Reads of one snapshot."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        # Text that is no UTF-8 was put there by hand; it is shown with escapes.
        connection.text_factory = partial(str, encoding="utf-8", errors="backslashreplace")

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
    can = CAPABILITIES[dialect]

    def __init__(self, path: str) -> None:
        self._path = path
        self._driver = SqliteDriver(path)
        self._closed = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="milepost-sqlite")
        self._writer: Thread | None = None

    def use(self) -> dict[str, int]:
        """Tell how many of its threads are busy, and how many are idle."""
        threads = self._threads
        idle: int = threads._idle_semaphore._value  # noqa: SLF001 - as for connections
        return {"busy": len(threads._threads) - idle, "idle": idle}  # noqa: SLF001 - likewise

    async def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation in one transaction, perhaps sharing its commit with others."""
        if self._closed:  # its threads would say so in words of theirs
            raise _closed(self._path)
        if self._writer is None:
            self._writer = self._driver.serve()
        call = partial(self._driver.run, operation, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def close(self) -> None:
        """Close the file."""
        self._closed = True
        self._threads.shutdown()
        self._driver.close()


def _writer_of(path: str) -> sqlite3.Connection:
    """Open the file to move things in it.

    The statement journal, a copy of every page that a statement changes, is kept in memory and not
    in a file: a twentieth less for each job. Readers may have much to sort, and keep it in files.
    """
    connection = connect(path)
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def connect(path: str) -> sqlite3.Connection:
    """Open the file as every connection to a store does; it must be in a folder that is there."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise Unavailable(f"{path}: the folder {folder} does not exist; make it first")
    _create_private(path)
    with translated():
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        _write_ahead(connection)
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
    return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Change the file to a write-ahead log, if it has none.

    While another connection writes to a new file SQLite refuses that at once, whatever its timeout.
    """
    give_up = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & PRIMARY_CODE == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() >= give_up:
                raise
        else:
            return
        time.sleep(BUSY_PAUSE_SECONDS)


def _create_private(path: str) -> None:
    """Make a file that only its owner reads; SQLite gives its companions the same mode.

    An existing file keeps its mode: it may have been shared on purpose.
    """
    # SQLite reports whatever stands in the way.
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


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
    """Raise the engine's errors in the place of SQLite's."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise _meaning(error) from error
    except sqlite3.OperationalError as error:
        if _CLASH.search(str(error)):
            raise SchemaMismatch(f"{error}: {OWN_FILE}") from error
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            raise StatementFailed(f"the SQLite store cannot be used: {error}") from error
        raise Unavailable(f"the SQLite store cannot be used: {error}") from error
    except (UnicodeEncodeError, sqlite3.DataError) as error:
        raise Invalid(f"SQLite cannot store it: {error}") from error
    except sqlite3.DatabaseError as error:
        raise Unavailable(f"the file is not a usable SQLite store: {error}") from error


def _meaning(error: sqlite3.IntegrityError) -> MilepostError:
    text = str(error)
    if MOVED in text:
        return SchemaMismatch(text.removeprefix("milepost: "))
    if "milepost:" in text:
        return IllegalMove(text.removeprefix("milepost: "))
    if error.sqlite_errorcode in TAKEN:
        return IllegalMove(f"it exists: {text}")
    return Invalid(f"SQLite cannot store it: {text}")
