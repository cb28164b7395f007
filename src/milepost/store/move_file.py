"""The SQLite file of a store that is moved: read under its lock, then refused to everybody."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, TypeVar

from milepost.address import StoreUrl
from milepost.errors import IllegalMove
from milepost.lifecycle import WorkerState
from milepost.store import failpoint, tally, workers
from milepost.store.catalog import own_tables
from milepost.store.connect import open_driver
from milepost.store.driver import Call, Rows, Steps, drive
from milepost.store.migrate import check_version
from milepost.store.moved import StoreMove, moved, note
from milepost.store.sqlite import MOVED, connect, translated
from milepost.store.sqlite_calls import execute

T = TypeVar("T")
FREE = ("migration", "store_move")
"""Tables of a frozen store that may still be written."""
FOLDED = 100_000
NAMED = 5


class MovingFile:
    """A connection to the file, with nobody else writing between `begin` and `freeze`."""

    def __init__(self, url: StoreUrl) -> None:
        self.url = url
        with closing(open_driver(url, look=True)) as looking:  # what is no store is not touched
            check_version(looking, url)
            self._refuse_moved(looking.run(moved))
        self._connection = connect(url.target)

    def begin(self) -> None:
        """Keep writers out from now on."""
        with translated():
            self._connection.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Let go of the file; what was not committed is undone."""
        self._connection.close()

    def _ask(self, name: str, **asked: Any) -> Rows:
        with translated():
            return execute(self._connection, Call(name, asked))

    def _run(self, steps: Steps[T]) -> T:
        with translated():
            return drive(steps, partial(execute, self._connection))

    # Looking

    def mark(self) -> StoreMove | None:
        """Read whether a move away was begun; refuse if it is finished."""
        return self._refuse_moved(self._run(moved()))

    def _refuse_moved(self, found: StoreMove | None) -> StoreMove | None:
        if found is not None and found.finished_at is not None:
            raise IllegalMove(f"{self.url} {found.told}")
        return found

    def refuse_live(self) -> None:
        """Refuse while a worker may be at work: it would go on with jobs that are elsewhere."""
        live = [
            worker
            for worker in self._run(workers.listing())
            if worker.state != WorkerState.STOPPED and worker.lease_seconds > 0
        ]
        if not live:
            return
        named = [f"{one.id} (process {one.pid} on {one.host})" for one in live[:NAMED]]
        more = f" and {len(live) - NAMED} more" if len(live) > NAMED else ""
        wait = max(worker.lease_seconds for worker in live)
        raise IllegalMove(
            f"{self.url} is in use by {', '.join(named)}{more}: stop these workers first, by "
            f"SIGTERM or Ctrl-C. One that was killed counts until its lease is over: {wait:.0f} s"
        )

    def columns(self) -> Rows:
        """Read the columns of every table."""
        return self._ask("move_columns")

    def spans(self) -> list[str]:
        """Read the first digits that ids in the journal have."""
        return [digits for (digits,) in self._ask("move_spans")]

    def holdings(self) -> list[str]:
        """Name the tables that pipelines hold."""
        return [row[0] for row in self._ask("table_holdings") if row[3] is None]

    def target(self, table: str) -> Rows:
        """Read the columns of a pipeline's table: name, type, and whether it is the key."""
        return self._ask("move_target", table=table)

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        with self.rows(f'SELECT count(*) FROM "{table}"') as found:
            return int(next(found)[0])

    def given(self, table: str) -> int | None:
        """Tell the largest number that a table ever gave to a row, where it remembers that."""
        with self.rows(f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'") as found:
            return next((int(number) for (number,) in found), None)

    @contextmanager
    def rows(self, select: str) -> Iterator[Iterator[Any]]:
        """Read rows one by one; a text comes as the bytes that it is stored as."""
        self._connection.text_factory = bytes
        try:
            with translated(), closing(self._connection.execute(select)) as cursor:
                yield cursor
        finally:
            self._connection.text_factory = str

    def count_jobs(self) -> None:
        """Count new jobs, as maintenance does: only this side knows which are not counted yet."""
        while self._run(tally.fold(most=FOLDED)) >= FOLDED:
            pass

    # The end

    def freeze(self, made: StoreMove) -> None:
        """Commit that the store was moved away; from now on every change of it is refused."""
        self._run(note(made))
        said = f"milepost: {MOVED}, to {made.target} (move {made.id})".replace("'", "''")
        for table in sorted(own_tables("sqlite") - {*FREE}):
            for verb in ("INSERT", "UPDATE", "DELETE"):
                self._write(
                    f"CREATE TRIGGER moved_away_{table}_{verb.lower()} BEFORE {verb} ON {table}"
                    f" BEGIN SELECT RAISE(ABORT, '{said}'); END"
                )
        failpoint.reach("before:move_freeze")
        self._write("COMMIT")
        failpoint.reach("after:move_freeze")

    def thaw(self, move_id: str) -> None:
        """Make the store usable again: the move has not arrived."""
        if not self._connection.in_transaction:
            self.begin()
        for (name,) in self._ask("move_triggers"):
            self._write(f"DROP TRIGGER {name}")
        self._ask("move_forget", id=move_id)
        self._write("COMMIT")

    def finish(self, move_id: str) -> None:
        """Note that the move has arrived."""
        failpoint.reach("before:move_end")
        self._ask("move_finish", id=move_id)
        if self._connection.in_transaction:
            self._write("COMMIT")

    def _write(self, statement: str) -> None:
        with translated():
            self._connection.execute(statement)
