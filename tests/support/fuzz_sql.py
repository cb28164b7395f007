"""The fuzzer's operations and how each is written for either database."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from milepost.lifecycle import JOB
from milepost.machine import Machine

__all__ = ["CONTROLS", "Changes", "Operation", "Plus", "Value", "render"]

CONTROLS = {
    "begin": "BEGIN",
    "commit": "COMMIT",
    "rollback": "ROLLBACK",
    "savepoint": "SAVEPOINT kept",
    "rollback to": "ROLLBACK TO SAVEPOINT kept",
}


@dataclass(frozen=True, slots=True)
class Plus:
    """The column's own value and something on top."""

    amount: int


Value = str | int | bytes | Plus | None
Changes = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Operation:
    """One statement, abstractly.

    `how` names a way of writing it, `guard` a state that the rows must be in to be touched.
    """

    verb: str
    machine: Machine = JOB
    how: str = "plain"
    created: tuple[Changes, ...] = ()
    changes: Mapping[str, Changes] = field(default_factory=dict)
    guard: str | None = None


class _Writer:
    """Collects parameters while a statement is written."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.parameters: dict[str, Any] = {}

    def value(self, value: Value, column: str = "", table: str = "") -> str:
        if isinstance(value, Plus):
            return f"{table}.{column} + {self.value(value.amount)}"
        name = f"v{len(self.parameters)}"
        self.parameters[name] = value
        return f":{name}"

    def id(self, name: str) -> str:
        cast = "uuid" if self.dialect == "postgres" else "text"
        return f"CAST({self.value(name)} AS {cast})"

    def ids(self, names: Iterable[str]) -> str:
        return ", ".join(self.id(name) for name in names)

    def insert(self, operation: Operation, words: str = "INSERT INTO") -> str:
        columns = list(operation.created[0])
        listed = ", ".join(
            f"({', '.join(self._created(row, name) for name in columns)})"
            for row in operation.created
        )
        return f"{words} {operation.machine.name} ({', '.join(columns)}) VALUES {listed}"

    def _created(self, row: Changes, name: str) -> str:
        value = row[name]
        return self.id(str(value)) if name == "id" else self.value(value)

    def assignments(self, operation: Operation) -> str:
        """Write the SET: plain where every row gets the same, by CASE where not."""
        table, each = operation.machine.name, operation.changes
        first = next(iter(each.values()))
        return ", ".join(
            f"{name} = {self._assigned(name, value, table)}"
            if all(changes[name] == value for changes in each.values())
            else f"{name} = CASE {table}.id {self._branches(name, each, table)} END"
            for name, value in first.items()
        )

    def _assigned(self, name: str, value: Value, table: str) -> str:
        return self.id(str(value)) if name == "id" else self.value(value, name, table)

    def _branches(self, name: str, each: Mapping[str, Changes], table: str) -> str:
        return " ".join(
            f"WHEN {self.id(row)} THEN {self._assigned(name, changes[name], table)}"
            for row, changes in each.items()
        )

    def where(self, operation: Operation) -> str:
        table = operation.machine.name
        chosen = f"{table}.id IN ({self.ids(operation.changes)})"
        if operation.guard is None:
            return chosen
        return f"{chosen} AND {table}.state = {self.value(operation.guard)}"


Rendering = tuple[str, dict[str, Any]]


def render(operation: Operation, dialect: str, *, exists: bool) -> Rendering:
    """Write the operation for a dialect. `exists` says whether its first row's id is taken."""
    writer = _Writer(dialect)
    if operation.verb in CONTROLS:
        return CONTROLS[operation.verb], {}
    if operation.verb == "tamper":
        return _tampering(operation, writer), writer.parameters
    renderers: dict[str, Callable[[Operation, _Writer], str]] = {
        "bear": _bearing,
        "move": _moving,
        "delete": lambda op, w: f"DELETE FROM {op.machine.name} WHERE {w.where(op)}",
    }
    if operation.verb == "upsert":
        return _upserting(operation, writer, exists=exists), writer.parameters
    return renderers[operation.verb](operation, writer), writer.parameters


def _bearing(operation: Operation, writer: _Writer) -> str:
    if operation.how == "plain":
        return writer.insert(operation)
    if writer.dialect == "sqlite":
        return writer.insert(operation, f"INSERT OR {operation.how.upper()} INTO")
    if operation.how == "replace":
        table, name = operation.machine.name, str(operation.created[0]["id"])
        gone = f"WITH gone AS (DELETE FROM {table} WHERE id = {writer.id(name)})"
        return f"{gone} {writer.insert(operation)}"
    return writer.insert(operation)


def _upserting(operation: Operation, writer: _Writer, *, exists: bool) -> str:
    """Write 'insert, or else ...'. SQLite refuses a taken id, so there one looks first."""
    nothing = operation.how == "nothing"
    if writer.dialect == "sqlite" and exists:
        table = operation.machine.name
        return (
            f"UPDATE {table} SET {writer.assignments(operation)} WHERE {writer.where(operation)}"
            f"{' AND false' if nothing else ''}"
        )
    insert = f"{writer.insert(operation)} ON CONFLICT (id)"
    return f"{insert} DO {'NOTHING' if nothing else f'UPDATE SET {writer.assignments(operation)}'}"


def _moving(operation: Operation, writer: _Writer) -> str:
    table = operation.machine.name
    if operation.how == "from":
        named = " UNION ALL ".join(
            f"SELECT {writer.id(name)} AS name" for name in operation.changes
        )
        joined = f"FROM ({named}) AS named WHERE {table}.id = named.name"
        guard = f" AND {table}.state = {writer.value(operation.guard)}" if operation.guard else ""
        return f"UPDATE {table} SET {writer.assignments(operation)} {joined}{guard}"
    if writer.dialect == "sqlite":
        words = "UPDATE" if operation.how == "plain" else f"UPDATE OR {operation.how.upper()}"
        return (
            f"{words} {table} SET {writer.assignments(operation)} WHERE {writer.where(operation)}"
        )
    return _moving_postgres(operation, writer)


def _moving_postgres(operation: Operation, writer: _Writer) -> str:
    """Write the nearest to SQLite's conflict clauses: other statements that update."""
    table, assigned = operation.machine.name, writer.assignments(operation)
    if operation.how == "replace":
        return (
            f"MERGE INTO {table} USING (SELECT 1) AS one ON {writer.where(operation)}"
            f" WHEN MATCHED THEN UPDATE SET {assigned}"
        )
    update = f"UPDATE {table} SET {assigned} WHERE {writer.where(operation)}"
    if operation.how == "ignore":
        return f"WITH made AS ({update} RETURNING 1) SELECT count(*) FROM made"
    return update


def _tampering(operation: Operation, writer: _Writer) -> str:
    [(name, changes)] = operation.changes.items()
    if operation.how == "update":
        return f"UPDATE journal SET actor = 'x' WHERE subject_id = {writer.id(name)}"
    if operation.how == "sum up":
        return (
            "UPDATE journal SET move = 'snapshot', from_state = NULL, detail = '{}'"
            f" WHERE subject_id = {writer.id(name)} AND seq = {writer.value(changes['version'])}"
        )
    if operation.how == "delete":
        return f"DELETE FROM journal WHERE subject_id = {writer.id(name)}"
    at = "now()" if writer.dialect == "postgres" else "1"
    entry = (
        "INSERT INTO journal (subject_id, machine, seq, at, fence, move, to_state)"
        f" VALUES ({writer.id(name)}, '{operation.machine.name}',"
        f" {writer.value(changes['version'])}, {at}, 0, 'create', 'QUEUED')"
    )
    tail = " ON CONFLICT (subject_id, machine, seq) DO UPDATE SET detail = 'x'"
    return entry + (tail if operation.how == "upsert" else "")
