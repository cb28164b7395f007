"""Statements typed at a SQL prompt: creation, lawful walks, and attempts that must fail."""

import sqlite3
from collections.abc import Iterable
from typing import Any

import psycopg

from milepost.machine import CREATION, Machine
from tests.support.databases import Raw

Walk = tuple[tuple[str, str], ...]
"""(move, to) from creation on."""


def subject(number: int) -> str:
    """Name a row: an id that is the same on every run."""
    return f"018f0000-0000-7000-8000-{number:012x}"


def walks(machine: Machine) -> dict[str, Walk]:
    """Find the shortest lawful walk into every state."""
    found: dict[str, Walk] = {}
    edge: list[tuple[str, Walk]] = [(CREATION, ())]
    while edge:
        state, walk = edge.pop(0)
        for move in machine.moves_from(state):
            for target in machine.targets(move, state):
                if target not in found:
                    found[target] = (*walk, (move, target))
                    edge.append((target, found[target]))
    return found


def assignments(machine: Machine, move: str, target: str, table: str | None = None) -> str:
    """Write the SET of a move that is lawful in everything but perhaps its name and states."""
    changes = [f"state = '{target}'", f"move = '{move}'"]
    if machine.name != "worker":
        changes.append(f"version = {table or machine.name}.version + 1")
    if machine.name == "job":
        changes.append("worker_id = 'w'" if target == "RUNNING" else "worker_id = NULL")
        if move == "claim":
            changes.append(f"fence = {table or machine.name}.fence + 1")
    return ", ".join(changes)


def quoted(name: str) -> str:
    """Write an id; a parameter stays one."""
    return name if name.startswith(":") else f"'{name}'"


def created(machine: Machine, ids: Iterable[str], move: str, state: str) -> str:
    """Write the INSERT that bears these rows."""
    if machine.name == "worker":
        rows = ", ".join(f"({quoted(name)}, '{state}', '{move}')" for name in ids)
        return f"INSERT INTO worker (id, state, move) VALUES {rows}"
    rows = ", ".join(f"({quoted(name)}, 'k', '{state}', '{move}')" for name in ids)
    return f"INSERT INTO {machine.name} (id, kind, state, move) VALUES {rows}"


def moved(machine: Machine, ids: Iterable[str], move: str, target: str) -> str:
    """Write the UPDATE that moves these rows."""
    listed = ", ".join(map(quoted, ids))
    changes = assignments(machine, move, target)
    return f"UPDATE {machine.name} SET {changes} WHERE id IN ({listed})"


def put(raw: Raw, machine: Machine, ids: Iterable[str], walk: Walk) -> None:
    """Bear rows and lead them along a walk, all at once."""
    named = list(ids)
    (creation, state), *rest = walk
    raw.execute(created(machine, named, creation, state))
    for move, target in rest:
        raw.execute(moved(machine, named, move, target))


def refusal(raw: Raw, statement: str, parameters: dict[str, Any] | None = None) -> str | None:
    """Try a statement; return what the database said when it refused."""
    try:
        raw.execute(statement, parameters)
    except (sqlite3.Error, psycopg.Error) as error:
        return str(error)
    return None


def everything(raw: Raw) -> dict[str, list[Any]]:
    """Read all that enforcement protects, in an order of its own."""
    return {
        table: sorted(map(repr, raw.execute(f"SELECT * FROM {table}")))
        for table in ("job", "run", "worker", "journal")
    }
