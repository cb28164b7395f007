"""Attempts at a SQL prompt to break the lifecycle, and the database's answers."""

import sqlite3

OPEN = "019a0000-0000-7000-8000-000000000002"
INSERT = (
    "INSERT INTO job (id, kind, state, move, actor) VALUES ('{0}', 'convert', '{1}', 'create', 'x')"
)
CHEATS = {
    "reopen a finished job": (
        "UPDATE job SET state = 'QUEUED', move = 'due', version = version + 1"
        " WHERE state = 'SUCCEEDED'"
    ),
    "change a row without a move": "UPDATE job SET result = x'00'",
    "skip the queue": f"UPDATE job SET state = 'RUNNING' WHERE id = '{OPEN}'",
    "create it finished": INSERT.format("019a0000-0000-7000-8000-000000000003", "SUCCEEDED"),
    "replace a row in place": INSERT.format(OPEN, "QUEUED").replace("INSERT", "INSERT OR REPLACE"),
    "step over the guard": "UPDATE OR IGNORE job SET version = version + 1, move = 'claim'",
    "delete unfinished work": f"DELETE FROM job WHERE id = '{OPEN}'",
    "rewrite history": "UPDATE journal SET actor = 'somebody else'",
    "forget history": "DELETE FROM journal",
    "invent history": "INSERT INTO journal SELECT * FROM journal",
}


def try_each(raw: sqlite3.Connection) -> dict[str, str | None]:
    """Try each, and return the database's refusals; None where it let one pass."""
    raw.execute("BEGIN")
    raw.execute(INSERT.format(OPEN, "QUEUED"))  # something unfinished to cheat with
    said = {wish: _said(raw, statement) for wish, statement in CHEATS.items()}
    raw.execute("ROLLBACK")
    return said


def _said(raw: sqlite3.Connection, statement: str) -> str | None:
    try:
        raw.execute(statement)
    except sqlite3.IntegrityError as error:
        return str(error).removeprefix("milepost: ")
    return None
