"""A hand that writes anything: seeded statements, lawful and not, the same on both databases.

An operation is abstract and is rendered for each dialect. What both databases agree on is told
back to the fuzzer, which keeps a model of the rows so that enough of its statements are nearly
lawful. A seed therefore always gives the same statements.
"""

import random
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from milepost.lifecycle import JOB, RUN
from milepost.machine import CREATION, Machine
from tests.support.databases import Raw
from tests.support.fuzz_sql import CONTROLS, Changes, Operation, Plus, Value, render
from tools.triggers import GUARDS

__all__ = ["Agreement", "Operation", "agree", "fold", "journal", "rows", "shape"]

COUNTERS = GUARDS["job"].counters
LAWFUL: dict[str, int | None] = {"version": 1, "fence": 0, "worker_id": None}
LAWFUL |= dict.fromkeys(COUNTERS, 0)
"""What the columns of a creation hold when nobody meddles."""
LIVE_MAX = 60


@dataclass(frozen=True, slots=True)
class Row:
    """What the model knows of a row."""

    state: str
    version: int = 1
    fence: int = 0
    worker_id: str | None = None
    errors: int = 0
    losses: int = 0
    polls: int = 0
    releases: int = 0

    @classmethod
    def created(cls, columns: Changes) -> "Row":
        """Know a row that was just created."""
        return cls(str(columns["state"]))

    def after(self, changes: Changes, *, machine: Machine) -> "Row":
        """Know the row after a change that both databases accepted."""
        counted = {
            name: Plus(1)
            for name, moves in GUARDS[machine.name].counters.items()
            if changes.get("move") in moves
        }
        known = {
            name: getattr(self, name) + value.amount if isinstance(value, Plus) else value
            for name, value in {**changes, **counted}.items()
            if name in Row.__slots__
        }
        return replace(self, **known)  # type: ignore[arg-type]


Model = dict[tuple[str, str], Row]


# Inventing.


class _Fuzzer:
    """Invents operations from a seed and learns what became of them."""

    def __init__(self, seed: int) -> None:
        # Repeatable chance, no secret.
        self._chance = random.Random(seed)
        self._made = 0
        self.model: Model = {}
        self.pruned: set[tuple[str, str]] = set()
        self._kept: list[tuple[Model, set[tuple[str, str]]]] = []

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._kept)

    def exists(self, operation: Operation) -> bool:
        """Tell whether the id to be created is taken."""
        if not operation.created:
            return False
        return (operation.machine.name, str(operation.created[0]["id"])) in self.model

    def invent(self) -> Operation:
        """Think of the next statement."""
        chance = self._chance
        if chance.random() < (0.25 if self._kept else 0.03):
            return self._control()
        machine = JOB if chance.random() < 0.75 else RUN
        live = sum(row.state in machine.live for row in self._rows(machine).values())
        bear = 30 * max(0.1, 1 - live / LIVE_MAX)
        return chance.choices(
            [self._bear, self._upsert, self._move, self._delete, self._tamper],
            [bear, 5, 60, 4, 4],
        )[0](machine)

    def told(self, operation: Operation, *, accepted: bool) -> None:
        """Learn whether both databases accepted it."""
        if operation.verb in CONTROLS:
            self._controlled(operation.verb)
        elif accepted:
            self._applied(operation)

    # Learning.

    def _controlled(self, verb: str) -> None:
        if verb in ("begin", "savepoint"):
            self._kept.append((dict(self.model), set(self.pruned)))
        elif verb == "commit":
            self._kept.clear()
        elif verb == "rollback":
            self.model, self.pruned = self._kept[0]
            self._kept.clear()
        else:
            model, pruned = self._kept[-1]
            self.model, self.pruned = dict(model), set(pruned)

    def _applied(self, operation: Operation) -> None:
        machine = operation.machine.name
        upserted = operation.verb == "upsert" and self.exists(operation)
        if upserted and operation.how == "nothing":
            return
        if not upserted:
            for row in operation.created:
                self.model[machine, str(row["id"])] = Row.created(row)
        if operation.verb in ("move", "delete") or upserted:
            for name, changes in self._touched(operation):
                if operation.verb == "delete":
                    del self.model[machine, name]
                    self.pruned.add((machine, name))
                else:
                    before = self.model[machine, name]
                    self.model[machine, name] = before.after(changes, machine=operation.machine)

    def _touched(self, operation: Operation) -> list[tuple[str, Changes]]:
        return [
            (name, changes)
            for name, changes in operation.changes.items()
            if (row := self.model.get((operation.machine.name, name)))
            and operation.guard in (None, row.state)
        ]

    # Choosing.

    def _rows(self, machine: Machine) -> dict[str, Row]:
        return {name: row for (kind, name), row in self.model.items() if kind == machine.name}

    def _fresh_id(self) -> str:
        self._made += 1
        return f"018f0000-0000-7000-8000-{self._made:012x}"

    def _any_id(self, machine: Machine) -> str:
        """Choose a row: mostly a live one, now and then a final, a pruned or an unborn one."""
        known = self._rows(machine)
        live = [name for name, row in known.items() if row.state in machine.live]
        pruned = sorted(name for kind, name in self.pruned if kind == machine.name)
        pools = [live, list(known), pruned, [self._fresh_id()]]
        weights = [85 * bool(live), 12 * bool(known), 2 * bool(pruned), 1]
        return self._chance.choice(self._chance.choices(pools, weights)[0])

    def _control(self) -> Operation:
        if not self._kept:
            return Operation("begin")
        saved = len(self._kept) > 1
        verbs = ["commit", "rollback", *(["rollback to"] if saved else ["savepoint"])]
        return Operation(self._chance.choice(verbs))

    # Creation.

    def _new_row(self, machine: Machine) -> dict[str, Value]:
        created: dict[str, Value] = {"id": self._fresh_id(), "kind": "k", "move": "create"}
        created["state"] = self._chance.choice(machine.initial)
        created["unique_key"] = self._chance.choice([None, None, None, "a", "b", "c"])
        return created

    def _bear(self, machine: Machine) -> Operation:
        chance = self._chance
        rows = [self._new_row(machine) for _ in range(chance.choice([1, 1, 1, 2, 5]))]
        if chance.random() < 0.35:
            wrong, value = chance.choice(self._wrong_inserts(machine))
            rows = [{wrong: LAWFUL.get(wrong, row.get(wrong)), **row} for row in rows]
            chance.choice(rows)[wrong] = value
        how = "plain" if len(rows) > 1 else chance.choice(["plain", "ignore", "replace", "fail"])
        return Operation("bear", machine, how, created=tuple(rows))

    def _wrong_inserts(self, machine: Machine) -> list[tuple[str, Value]]:
        states = [state.value for state in machine.states if state.value not in machine.initial]
        wrong: list[tuple[str, Value]] = [
            ("id", self._any_id(machine)),
            ("state", self._chance.choice([*states, "DONE", None])),
            ("move", self._chance.choice([*machine.move_names[:4], None])),
            ("version", self._chance.choice([0, 2, None])),
            ("fence", self._chance.choice([1, -1, None])),
        ]
        if machine is JOB:
            wrong += [("worker_id", "w"), (self._chance.choice([*COUNTERS]), 1)]
        return wrong

    def _upsert(self, machine: Machine) -> Operation:
        created = self._new_row(machine)
        if self._chance.random() < 0.7:
            created["id"] = self._any_id(machine)
        # A key of its own: PostgreSQL would not look at it where the id is taken.
        created["unique_key"] = None
        name = str(created["id"])
        changes = self._perhaps_wrong(machine, self._change(machine, name))
        how = self._chance.choice(["nothing", "update", "update"])
        return Operation("upsert", machine, how, created=(created,), changes={name: changes})

    # Moves.

    def _change(self, machine: Machine, name: str) -> dict[str, Value]:
        """Think of a lawful change of this row, as far as one knows it."""
        row = self.model.get((machine.name, name))
        state = row.state if row else self._chance.choice(machine.initial)
        moves = machine.moves_from(state) or machine.move_names[-1:]
        move = self._chance.choice(moves)
        target = self._chance.choice(machine.targets(move, state) or (state,))
        return self._lawful(machine, move, target)

    def _lawful(self, machine: Machine, move: str, target: str) -> dict[str, Value]:
        chance = self._chance
        changes: dict[str, Value] = {"state": target, "move": move, "version": Plus(1)}
        if machine is JOB and move != "erase":
            changes["worker_id"] = "w" if target == "RUNNING" else None
            changes["fence"] = Plus(1 if move == "claim" else 0)
            for name, moves in COUNTERS.items():
                if chance.random() < 0.3:
                    changes[name] = Plus(1 if move in moves else 0)
        changes["detail"] = chance.choice([None, "why", "because"])
        if move == "erase":
            changes |= dict.fromkeys(("payload", "result", "error"))
        return changes

    def _perhaps_wrong(self, machine: Machine, changes: dict[str, Value]) -> dict[str, Value]:
        chance = self._chance
        if chance.random() < 0.55:
            return changes
        wrong = [self._wrong_word, self._wrong_number, self._wrong_column, self._too_little]
        return chance.choice(wrong)(machine, changes)

    def _wrong_word(self, machine: Machine, changes: dict[str, Value]) -> dict[str, Value]:
        states = [*(state.value for state in machine.states), "DONE", CREATION, None]
        words = {
            "state": self._chance.choice(states),
            "move": self._chance.choice([*machine.move_names, "grab", None]),
        }
        name = self._chance.choice(["state", "move"])
        changes[name] = words[name]
        return changes

    def _wrong_number(self, machine: Machine, changes: dict[str, Value]) -> dict[str, Value]:
        names = ["version", "fence", *(COUNTERS if machine is JOB else ())]
        name = self._chance.choice(names)
        changes[name] = self._chance.choice([Plus(-1), Plus(0), Plus(1), Plus(2), 0, 7, None])
        return changes

    def _wrong_column(self, machine: Machine, changes: dict[str, Value]) -> dict[str, Value]:
        names = ["tenant", "kind", "codec", "policy", "id", "kind_version", "payload", "queue"]
        if machine is JOB:
            names += ["worker_id", "retries", "poll_limit", "ordinal", "timeout_us", "result"]
        name = self._chance.choice(names)
        values: dict[str, Value] = {"id": self._any_id(machine), "payload": b"x", "result": b"x"}
        values |= dict.fromkeys(("kind_version", "retries", "poll_limit"), Plus(1))
        values |= {"ordinal": 7, "timeout_us": 7, "worker_id": self._chance.choice(["z", None])}
        changes[name] = values.get(name, "other")
        return changes

    def _too_little(self, _: Machine, changes: dict[str, Value]) -> dict[str, Value]:
        kept = self._chance.sample(sorted(changes), self._chance.randint(1, len(changes) - 1))
        return {name: changes[name] for name in kept}

    def _move(self, machine: Machine) -> Operation:
        chance = self._chance
        name = self._any_id(machine)
        how = chance.choice(["plain", "plain", "from", "replace", "ignore", "fail"])
        changes = self._perhaps_wrong(machine, self._change(machine, name))
        if chance.random() < 0.7:
            guard = self._guard(machine, name)
            return Operation("move", machine, how, changes={name: changes}, guard=guard)
        if chance.random() < 0.5:
            return self._each_its_own(machine, how)
        alike = self._alike(machine, name)
        return Operation("move", machine, how, changes=dict.fromkeys(alike, changes))

    def _guard(self, machine: Machine, name: str) -> str | None:
        row = self.model.get((machine.name, name))
        return row.state if row and self._chance.random() < 0.3 else None

    def _alike(self, machine: Machine, name: str) -> list[str]:
        """Choose rows in the state of this one, and perhaps a stranger in their middle."""
        known = self._rows(machine)
        state = known[name].state if name in known else None
        alike = [other for other, row in known.items() if row.state == state and other != name]
        chosen = [name, *self._chance.sample(alike, min(len(alike), self._chance.randint(1, 9)))]
        if self._chance.random() < 0.3:
            chosen.insert(len(chosen) // 2, self._any_id(machine))
        return chosen

    def _each_its_own(self, machine: Machine, how: str) -> Operation:
        """Move several rows in one statement, each by a move of its own."""
        names = {self._any_id(machine) for _ in range(3)}
        each = {name: self._change(machine, name) for name in sorted(names)}
        shared = set.intersection(*(set(changes) for changes in each.values()))
        if self._chance.random() < 0.3:
            first = min(each)
            each[first] = {**each[first], "version": Plus(self._chance.choice([0, 2]))}
        # One SET serves all rows, so it has the columns that all of them need.
        wanted = [name for name in next(iter(each.values())) if name in shared]
        cut = {row: {name: changes[name] for name in wanted} for row, changes in each.items()}
        return Operation("move", machine, how, changes=cut)

    # The rest.

    def _delete(self, machine: Machine) -> Operation:
        names = {self._any_id(machine) for _ in range(self._chance.choice([1, 1, 3]))}
        final = [n for n, row in self._rows(machine).items() if row.state in machine.terminal]
        if final and self._chance.random() < 0.5:
            names = {self._chance.choice(final)}
        guard = self._chance.choice([None, None, "SUCCEEDED", "QUEUED"])
        nothing: dict[str, Changes] = {name: {} for name in sorted(names)}
        return Operation("delete", machine, changes=nothing, guard=guard)

    def _tamper(self, machine: Machine) -> Operation:
        name = self._any_id(machine)
        seq = self._chance.randint(1, 5)
        how = self._chance.choice(["insert", "upsert", "update", "delete", "sum up"])
        return Operation("tamper", machine, how, changes={name: {"version": seq}})


# Comparing.


@dataclass(slots=True)
class Agreement:
    """What both databases said to the same statements."""

    accepted: int = 0
    refused: int = 0
    moved: dict[str, int] = field(default_factory=dict)
    model: Model = field(default_factory=dict)


def agree(sides: Sequence[Raw], *, seed: int, statements: int) -> Agreement:
    """Run the seed's statements on every side; raise where one accepts what another refuses."""
    fuzzer, outcome = _Fuzzer(seed), Agreement()
    for number in range(statements):
        operation = fuzzer.invent()
        exists, inside = fuzzer.exists(operation), fuzzer.in_transaction
        said = [_try(raw, operation, exists=exists, inside=inside) for raw in sides]
        accepted = said[0] is None
        assert all((words is None) == accepted for words in said), (
            f"seed {seed}, statement {number} divides the databases: "
            + "; ".join(
                f"{raw.dialect} answered {words!r} to"
                f" {render(operation, raw.dialect, exists=exists)}"
                for raw, words in zip(sides, said, strict=True)
            )
        )
        fuzzer.told(operation, accepted=accepted)
        outcome.accepted += accepted
        outcome.refused += not accepted
        key = f"{operation.verb} {'accepted' if accepted else 'refused'}"
        outcome.moved[key] = outcome.moved.get(key, 0) + 1
    if fuzzer.in_transaction:
        fuzzer.told(Operation("commit"), accepted=True)
        for raw in sides:
            raw.execute("COMMIT")
    outcome.model = fuzzer.model
    return outcome


def _try(raw: Raw, operation: Operation, *, exists: bool, inside: bool) -> str | None:
    statement, parameters = render(operation, raw.dialect, exists=exists)
    if operation.verb in CONTROLS:
        raw.execute(statement)
        return None
    # In PostgreSQL a refused statement spoils its transaction unless a savepoint stood before it.
    if inside:
        raw.execute("SAVEPOINT each")
    words = _words(raw, statement, parameters)
    if inside:
        raw.execute("RELEASE SAVEPOINT each" if words is None else "ROLLBACK TO SAVEPOINT each")
    return words


def _words(raw: Raw, statement: str, parameters: dict[str, Any]) -> str | None:
    import psycopg

    try:
        raw.execute(statement, parameters)
    except psycopg.errors.SyntaxErrorOrAccessRuleViolation:
        raise
    except (psycopg.Error, sqlite3.IntegrityError) as error:
        return str(error)
    return None


# Reading what came of it.

Entry = tuple[str, str, int, str, str | None, str, str | None, int, str | None]
"""(machine, subject, seq, move, from, to, actor, fence, detail)."""
Shape = tuple[str, int, int, tuple[int, ...]]
"""(state, version, fence, counters)."""


def journal(raw: Raw) -> list[Entry]:
    """Read the journal, times left out, in the order of its key."""
    return [
        (machine, str(name), *entry)
        for machine, name, *entry in raw.execute(
            "SELECT machine, subject_id, seq, move, from_state, to_state, actor, fence, detail"
            " FROM journal ORDER BY machine, subject_id, seq"
        )
    ]


def rows(raw: Raw) -> dict[tuple[str, str], Shape]:
    """Read the shape of every live row."""
    found: dict[tuple[str, str], Shape] = {}
    counters = ", ".join(COUNTERS)
    for machine, columns in (("job", counters), ("run", "0, 0, 0, 0")):
        for name, state, version, fence, *counts in raw.execute(
            f"SELECT id, state, version, fence, {columns} FROM {machine}"
        ):
            found[machine, str(name)] = (state, version, fence, tuple(counts))
    return found


def shape(row: Row) -> Shape:
    """Return the shape of a row of the model."""
    return row.state, row.version, row.fence, tuple(getattr(row, name) for name in COUNTERS)


def fold(entries: Iterable[Entry]) -> dict[tuple[str, str], Shape]:
    """Replay a journal; raise when it skips, moves illegally or goes on after the end."""
    folded: dict[tuple[str, str], Shape] = {}
    machines = {"job": JOB, "run": RUN}
    for machine, name, seq, move, source, target, _, fence, _ in entries:
        state, version, fenced, counts = folded.get(
            (machine, name), (CREATION, 0, 0, (0,) * len(COUNTERS))
        )
        machines[machine].check(move, source, target)
        assert (source or CREATION, seq) == (state, version + 1), (machine, name, seq)
        assert state not in machines[machine].terminal or move == "erase", (machine, name, seq)
        claimed = machine == "job" and move == "claim"
        assert fence == fenced + claimed, (machine, name, seq)
        folded[machine, name] = (target, seq, fence, tuple(_counted(machine, move, counts)))
    return folded


def _counted(machine: str, move: str, counts: tuple[int, ...]) -> Iterator[int]:
    for number, moves in zip(counts, COUNTERS.values(), strict=True):
        yield number + (machine == "job" and move in moves)
