"""What the database holds against every writer, as SQL conditions over OLD and NEW.

Each rule has a sentence for the person who broke it. The two renderings beside this file turn the
rules into triggers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from milepost.lifecycle import WORKER
from milepost.machine import Machine, Member, among, listed, spelled_out

Rule = tuple[str, str]
"""(SQL condition that is true for a bad row, what to tell whoever wrote it)."""

ERASE = "'erase'"


@dataclass(frozen=True)
class Guard:
    """What the database holds against every writer of one machine's table."""

    machine: Machine
    columns: tuple[str, ...]
    immutable: tuple[str, ...]
    erasable: tuple[str, ...] = ()
    counters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    leased: bool = False
    unique: tuple[Rule, ...] = ()
    frequent: tuple[str, ...] = ()
    """Changes ("move FROM TO") that PostgreSQL lets pass without calling a function."""

    @property
    def table(self) -> str:
        """The table has the machine's name."""
        return self.machine.name

    @property
    def fixed(self) -> tuple[str, ...]:
        """The columns that no move but `erase` may touch."""
        return (*self.immutable, "payload")

    def insert_rules(self, dialect: str) -> list[Rule]:
        """List what a new row must not be."""
        legal = self.machine.creation_sql(
            move="NEW.move", target="NEW.state", member=_member(dialect)
        )
        rules: list[Rule] = [
            (differs(dialect, "NEW.version", "1"), "a new row has version 1"),
            (f"({legal}) IS NOT TRUE", "the lifecycle declares no such creation"),
            (differs(dialect, "NEW.fence", "0"), "a new row has fence 0"),
        ]
        if self.leased:
            rules.append(("NEW.worker_id IS NOT NULL", "a new row has no worker"))
            rules.append(("NEW.ordinal < 0", "ordinals count from 0"))
        else:
            rules.append(("NEW.report IS NOT NULL", "a new row has no report"))
        if self.counters:
            wrong = any_of(differs(dialect, f"NEW.{name}", "0") for name in self.counters)
            rules.append((wrong, "a new row has counted nothing"))
        return rules

    def change_rules(self, dialect: str) -> list[Rule]:
        """List what a changed row must not be. Every UPDATE is a move."""
        legal = self.machine.legal_sql(
            move="NEW.move", source="OLD.state", target="NEW.state", member=_member(dialect)
        )
        return [
            (
                differs(dialect, "NEW.version", "OLD.version + 1"),
                "every change is a move: SET move = ..., version = version + 1",
            ),
            (f"({legal}) IS NOT TRUE", "this move is not declared from this state to that one"),
            *self._lease_rules(dialect),
            *self.counter_rules(dialect),
            *self._erase_rules(dialect),
        ]

    def quick_rules(self) -> list[Rule]:
        """List, for PostgreSQL, the fewest words that are true for every changed row that is bad.

        A WHEN is read anew by every statement: its length is a toll on a move of one row. So only
        the changes that engines make by the thousand stand in it; a function looks at the others.
        """
        usual = ", ".join(self.frequent)
        words = "NEW.move || ' ' || OLD.state || ' ' || NEW.state"
        unusual = f"({words} = ANY ('{{{usual}}}'::text[])) IS NOT TRUE"
        version, _, *rest = self.change_rules("postgres")
        apart = (*self.counter_rules("postgres"), *self._erase_rules("postgres"))
        return [version, (unusual, ""), *(rule for rule in rest if rule not in apart)]

    def fixed_rules(self, dialect: str) -> list[Rule]:
        """List what must not change; looked at only when a statement names one of the columns.

        Comparing a payload with itself would read it twice from disk on every move.
        """
        never = f"these never change: {', '.join(self.immutable)}"
        kept = f"({differs(dialect, 'NEW.move', ERASE)} AND {changed(dialect, ['payload'])})"
        return [(changed(dialect, self.immutable), never), (kept, "the payload is fixed")]

    def _erase_rules(self, dialect: str) -> list[Rule]:
        if not self.erasable:
            return []
        may_change = {"version", "move", "actor", "detail", *self.erasable}
        kept = [name for name in self.columns if name not in may_change]
        if lite(dialect):
            touched = self.unlike_stored(kept, emptied=self.erasable)
        else:
            filled = any_of(
                f"(NEW.{name} IS NOT NULL AND {changed(dialect, [name])})" for name in self.erasable
            )
            touched = f"({filled} OR {changed(dialect, kept)})"
        return [
            (
                f"(NEW.move = 'erase' AND {touched})",
                f"erase sets {', '.join(self.erasable)} to NULL and touches nothing else",
            ),
        ]

    def unlike_stored(self, names: Iterable[str], *, emptied: Iterable[str] = ()) -> str:
        """Render, for SQLite, whether any of these changes, or is not `emptied`, by the row itself.

        Every column of OLD that a trigger names is read at every move, needed or not, and so are
        most of NEW; this is for what is seldom asked. What never changes has its own guard.
        """
        same = [f"NEW.{name} IS was.{name}" for name in names if name not in self.immutable]
        same += [f"(NEW.{name} IS NULL OR NEW.{name} IS was.{name})" for name in emptied]
        row = "\n        AND ".join(["was.rowid = OLD.rowid", *same])
        return f"NOT EXISTS (SELECT 1 FROM {self.table} AS was\n      WHERE {row})"

    def _lease_rules(self, dialect: str) -> list[Rule]:
        if not self.leased:
            return [(differs(dialect, "NEW.fence", "OLD.fence"), "only jobs are leased")]
        step = "CASE WHEN NEW.move = 'claim' THEN 1 ELSE 0 END"
        return [
            (
                (
                    "CASE WHEN NEW.state = 'RUNNING' THEN coalesce(NEW.worker_id, '') = ''"
                    " ELSE NEW.worker_id IS NOT NULL END"
                ),
                "RUNNING needs a worker_id and no other state may have one",
            ),
            (
                "NEW.worker_id <> OLD.worker_id",
                "a running job keeps its worker",
            ),
            (
                differs(dialect, "NEW.fence", f"OLD.fence + {step}"),
                "the fence grows by one with every claim and by nothing else",
            ),
        ]

    def counter_rules(self, dialect: str) -> list[Rule]:
        """List how a counter must not change: only by one, and only with its own moves."""
        if not self.counters:
            return []
        wrong = any_of(
            f"({changed(dialect, [name])}"
            f" AND {differs(dialect, f'NEW.{name}', self.counted(name))})"
            for name in self.counters
        )
        return [(wrong, f"{', '.join(self.counters)} are counted by the moves alone")]

    def counted(self, name: str) -> str:
        """Render what a counter must be after the move."""
        return f"OLD.{name} + CASE WHEN NEW.move {among(self.counters[name])} THEN 1 ELSE 0 END"

    @property
    def left_behind(self) -> str:
        """Render the condition under which a move by hand forgot to count itself."""
        return any_of(
            f"(NEW.move {among(moves)} AND NEW.{name} = OLD.{name})"
            for name, moves in self.counters.items()
        )

    def recount(self, dialect: str, name: str) -> str:
        """Render what the journal says of a counter; a snapshot has what came before it."""
        summed = (
            f"json_extract(detail, '$.{name}')"
            if lite(dialect)
            else f"(detail::json ->> '{name}')::integer"
        )
        return (
            f"(SELECT coalesce(sum(CASE WHEN move {among(self.counters[name])} THEN 1"
            f" WHEN move = 'snapshot' THEN {summed} ELSE 0 END), 0)"
            f" FROM journal WHERE machine = '{self.table}' AND subject_id = NEW.id)"
        )


def lite(dialect: str) -> bool:
    """Tell SQLite's spelling from PostgreSQL's."""
    return dialect == "sqlite"


def differs(dialect: str, left: str, right: str) -> str:
    """Render a comparison that NULL cannot slip through."""
    return f"{left} IS NOT {right}" if lite(dialect) else f"{left} IS DISTINCT FROM {right}"


def changed(dialect: str, names: Iterable[str]) -> str:
    """Render whether any of these columns changes."""
    return any_of(differs(dialect, f"NEW.{name}", f"OLD.{name}") for name in names)


def any_of(conditions: Iterable[str]) -> str:
    """Render an OR over many conditions, one a line."""
    return "(" + "\n      OR ".join(conditions) + ")"


def bad(rules: list[Rule]) -> str:
    """Render a condition that is true when any rule is broken."""
    return any_of(condition for condition, _ in rules)


def reason(rules: list[Rule], render: str, *, indent: str) -> str:
    """Render a CASE that says which rule was broken first."""
    cases = "\n".join(
        f"{indent}  WHEN {condition}\n{indent}    THEN {render.format(text)}"
        for condition, text in rules
    )
    return f"{indent}CASE\n{cases}\n{indent}END"


def _member(dialect: str) -> Member:
    return spelled_out if lite(dialect) else listed


def worker_rules(dialect: str) -> tuple[list[Rule], list[Rule]]:
    """List what a new and a changed worker must not be; a heartbeat is not a move."""
    legal = WORKER.creation_sql(move="NEW.move", target="NEW.state")
    moved = WORKER.legal_sql(move="NEW.move", source="OLD.state", target="NEW.state")
    stirred, renewed = changed(dialect, ["state", "move"]), changed(dialect, ["lease_until"])
    over = WORKER.terminal_sql("OLD.state")
    return [(f"({legal}) IS NOT TRUE", "a worker is created by boot, in STARTUP")], [
        (differs(dialect, "NEW.id", "OLD.id"), "these never change: id"),
        (
            f"({stirred} AND ({moved}) IS NOT TRUE)",
            "this move is not declared from this state to that one",
        ),
        (f"({over} AND {renewed})", "a stopped worker cannot renew its lease"),
    ]
