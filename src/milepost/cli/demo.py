"""`milepost demo`: one job and one run on the record, and what happens to those who cheat."""

import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from milepost.config import StoreUrl
from milepost.observe.verify import verify
from milepost.store.connect import open_driver
from milepost.store.migrate import migrate

__all__ = ["demo"]

JOB = "019a0000-0000-7000-8000-000000000001"
OTHER = "019a0000-0000-7000-8000-000000000002"
RUN = "019a0000-0000-7000-8000-0000000000aa"

BIRTH = (
    "INSERT INTO {0} (id, kind, state, move, actor) VALUES ('{1}', '{2}', '{3}', 'create', 'demo')"
)
WALK = {
    "job": (
        BIRTH.format("job", JOB, "convert", "CREATED"),
        "move = 'submit', state = 'QUEUED', actor = 'demo'",
        "move = 'claim', state = 'RUNNING', fence = fence + 1, worker_id = 'w1', actor = 'w1'",
        "move = 'retry', state = 'RETRYING', worker_id = NULL, detail = '{\"error\": \"timeout\"}'",
        "move = 'due', state = 'QUEUED', actor = 'maintenance', detail = NULL",
        "move = 'claim', state = 'RUNNING', fence = fence + 1, worker_id = 'w2', actor = 'w2'",
        "move = 'succeed', state = 'SUCCEEDED', worker_id = NULL",
    ),
    "run": (
        BIRTH.format("run", RUN, "import-patients", "CREATED"),
        "move = 'seal', state = 'QUEUED'",
        "move = 'begin', state = 'RUNNING', actor = 'w1'",
        "move = 'advance', current_step = current_step + 1",
        "move = 'finalize', state = 'FINALIZING'",
        "move = 'finish', state = 'SUCCEEDED'",
    ),
}
CHEATS = (
    (
        "reopen a finished job",
        "UPDATE job SET state = 'QUEUED', move = 'due', version = version + 1",
    ),
    ("change a row without a move", "UPDATE job SET result = x'00'"),
    ("skip the queue", f"UPDATE job SET state = 'RUNNING' WHERE id = '{OTHER}'"),
    (
        "be born finished",
        BIRTH.format("job", "019a0000-0000-7000-8000-000000000003", "convert", "SUCCEEDED"),
    ),
    (
        "replace a row in place",
        "INSERT OR REPLACE" + BIRTH.format("job", JOB, "convert", "QUEUED").removeprefix("INSERT"),
    ),
    ("step over the guard", "UPDATE OR IGNORE job SET version = version + 1, move = 'claim'"),
    ("delete unfinished work", f"DELETE FROM job WHERE id = '{OTHER}'"),
    ("rewrite history", "UPDATE journal SET actor = 'somebody else'"),
    ("forget history", "DELETE FROM journal"),
    ("invent history", "INSERT INTO journal SELECT * FROM journal"),
)


@click.command()
def demo() -> None:
    """Walk one job and one run through their machines, and try to cheat.

    Makes a fresh store, moves both by plain SQL, lets a raw connection try to cheat, and shows the
    refusals, the history and the verdict of verify.
    """
    console = Console()
    with tempfile.TemporaryDirectory(prefix="milepost-demo-") as folder:
        path = Path(folder) / "demo.db"
        driver = open_driver(StoreUrl.parse(f"sqlite:///{path}"))
        try:
            applied = migrate(driver)
            console.print(f"[bold]1. A fresh SQLite store[/]: {len(applied)} migrations applied.\n")
            with _raw(path) as raw:
                _walk(console, raw)
                refused = _cheat(console, raw)
                _history(console, raw)
            verdict = verify(driver)
        finally:
            driver.close()
    told = "clean" if verdict.clean else f"{verdict.found} problems"
    console.print(
        "[bold]5. milepost verify[/]: the journal, folded from empty, against the live rows: "
        f"[bold]{told}[/] ({verdict.entries} entries, {verdict.rows} rows)."
    )
    sys.exit(0 if verdict.clean and refused == len(CHEATS) else 1)


@contextmanager
def _raw(path: Path) -> Iterator[sqlite3.Connection]:
    """Open what a person with a SQL prompt has: no engine, only the database."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


def _walk(console: Console, raw: sqlite3.Connection) -> None:
    for table, (birth, *moves) in WALK.items():
        raw.execute(birth)
        states = [_state(raw, table)]
        for move in moves:
            raw.execute(f"UPDATE {table} SET version = version + 1, {move}")
            states.append(_state(raw, table))
        console.print(f"[bold]2. A {table}[/], moved by plain SQL: {' → '.join(states)}")
    raw.execute(BIRTH.format("job", OTHER, "convert", "QUEUED"))
    console.print()


def _state(raw: sqlite3.Connection, table: str) -> str:
    [(state,)] = raw.execute(f"SELECT state FROM {table}")
    return str(state)


def _cheat(console: Console, raw: sqlite3.Connection) -> int:
    table = Table("somebody tries to …", "the database says", title="3. Cheating", expand=False)
    refused = 0
    for wish, statement in CHEATS:
        try:
            raw.execute(statement)
            table.add_row(wish, "[red]let it pass[/]")
        except sqlite3.IntegrityError as error:
            refused += 1
            table.add_row(wish, str(error).removeprefix("milepost: "))
    console.print(table)
    console.print(f"{refused} of {len(CHEATS)} refused; nothing changed.\n")
    return refused


def _history(console: Console, raw: sqlite3.Connection) -> None:
    table = Table("seq", "move", "from", "to", "fence", "actor", title="4. The job's journal")
    entries = raw.execute(
        "SELECT seq, move, from_state, to_state, fence, actor FROM journal"
        " WHERE subject_id = ? ORDER BY seq",
        (JOB,),
    )
    for entry in entries:
        table.add_row(*(str(value) if value is not None else "-" for value in entry))
    console.print(table)
    console.print()
