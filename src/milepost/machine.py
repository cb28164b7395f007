"""What a state machine is: states, named moves, and everything that follows from them.

A machine is declared once, as data. The look-up that refuses an illegal move before any I/O, the
terminal states, the SQL that makes both databases refuse it too, the diagrams and the tables are
all derived here, so they cannot disagree.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from milepost.errors import IllegalMove, Invalid

CREATION = ""
"""The from-state of a creation. Stored as NULL; an empty string where text is compared."""

Triple = tuple[str, str, str]
"""(move, from_state, to_state)."""


def _states(states: StrEnum | Iterable[StrEnum]) -> tuple[str, ...]:
    return (states.value,) if isinstance(states, StrEnum) else tuple(s.value for s in states)


@dataclass(frozen=True, slots=True, init=False)
class Move:
    """One named change of state: from each of `sources` to each of `targets`."""

    name: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]
    when: str
    stays: bool

    def __init__(
        self,
        name: str,
        sources: StrEnum | Iterable[StrEnum] | None,
        targets: StrEnum | Iterable[StrEnum] | None,
        when: str = "",
    ) -> None:
        """Declare a move; no sources means a creation, no targets means it stays where it is."""
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "sources", (CREATION,) if sources is None else _states(sources))
        object.__setattr__(self, "targets", self.sources if targets is None else _states(targets))
        object.__setattr__(self, "when", when)
        object.__setattr__(self, "stays", targets is None)

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """Every (from, to) that this move may make."""
        if self.stays:
            return ((state, state) for state in self.sources)
        return ((source, target) for source in self.sources for target in self.targets)

    def sql(self, *, source: str, target: str, member: "Member") -> str:
        """Render whether it may be made from one SQL expression to another."""
        reached = f"{target} = {source}" if self.stays else member(target, self.targets)
        return f"{member(source, self.sources)} AND {reached}"


@dataclass(frozen=True)
class Machine:
    """A lifecycle: its states and the only moves between them."""

    name: str
    states: type[StrEnum]
    moves: tuple[Move, ...]
    title: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Refuse a name that is declared twice: the rendered SQL branches on it."""
        if len({move.name for move in self.moves}) != len(self.moves):
            raise Invalid(f"machine {self.name}: a move is declared twice")

    @cached_property
    def triples(self) -> frozenset[Triple]:
        """Every legal (move, from, to)."""
        return frozenset((move.name, *pair) for move in self.moves for pair in move.pairs)

    @cached_property
    def initial(self) -> tuple[str, ...]:
        """The states in which a row may be created, in the order declared."""
        return tuple(target for m in self.moves for source, target in m.pairs if source == CREATION)

    @cached_property
    def terminal(self) -> frozenset[str]:
        """The states that nothing leaves."""
        left = {source for _, source, target in self.triples if source != target}
        return frozenset(state.value for state in self.states if state.value not in left)

    @cached_property
    def live(self) -> frozenset[str]:
        """The states that are not terminal."""
        return frozenset(state.value for state in self.states) - self.terminal

    @cached_property
    def move_names(self) -> tuple[str, ...]:
        """The names of the moves, in the order declared."""
        return tuple(move.name for move in self.moves)

    def check(self, move: str, source: str | None, target: str) -> None:
        """Raise `IllegalMove` unless the move is declared; before any I/O."""
        if (move, source or CREATION, target) not in self.triples:
            raise IllegalMove(self._explain(move, source or CREATION, target))

    def targets(self, move: str, source: str | None) -> tuple[str, ...]:
        """Where `move` may lead from `source`, in the order declared; empty when nowhere."""
        return tuple(
            target
            for declared in self.moves
            if declared.name == move
            for origin, target in declared.pairs
            if origin == (source or CREATION)
        )

    def moves_from(self, source: str | None) -> tuple[str, ...]:
        """Name the moves that are legal from `source`."""
        return tuple(name for name in self.move_names if self.targets(name, source))

    def path(self, source: str | None, target: str | None) -> list[tuple[str, str]]:
        """Find the fewest moves from one state to another, as (move, from)s."""
        trails: dict[str | None, list[tuple[str, str]]] = {source: []}
        queue = [source]
        while target not in trails and queue:
            here = queue.pop(0)
            for name in self.moves_from(here):
                for there in self.targets(name, here):
                    if there not in trails:
                        trails[there] = [*trails[here], (name, here or CREATION)]
                        queue.append(there)
        return trails.get(target, [])

    def _explain(self, move: str, source: str, target: str) -> str:
        if move not in self.move_names:
            return f"{self.name} has no move {move!r}; it has {', '.join(self.move_names)}"
        legal = ", ".join(self.moves_from(source)) or "nothing: it is final"
        origin = source or "nothing (a creation)"
        return f"{self.name} cannot {move!r} from {origin} to {target}; from there it may: {legal}"

    # Rendered for databases.

    def legal_sql(
        self, *, move: str, source: str, target: str, member: "Member | None" = None
    ) -> str:
        """Render a boolean expression that is true for exactly the declared changes of state.

        The arguments are SQL expressions that are not NULL. It branches on the move first: a
        statement that moves a thousand rows by one move compares a few words per row, not all.
        """
        member = member or listed
        branches = "\n".join(
            f"        WHEN '{declared.name}'"
            f" THEN {declared.sql(source=source, target=target, member=member)}"
            for declared in self.moves
            if CREATION not in declared.sources
        )
        return f"CASE {move}\n{branches}\n        ELSE false END"

    def creation_sql(self, *, move: str, target: str, member: "Member | None" = None) -> str:
        """Render a boolean expression that is true for exactly the declared creations."""
        member = member or listed
        return " OR ".join(
            f"({move} = '{declared.name}' AND {member(target, declared.targets)})"
            for declared in self.moves
            if CREATION in declared.sources
        )

    def terminal_sql(self, state: str) -> str:
        """Render a boolean expression that is true for the terminal states."""
        return f"{state} {among(s.value for s in self.states if s.value in self.terminal)}"

    # Rendered for people.

    def mermaid(self) -> str:
        """Draw the machine as a mermaid state diagram."""
        edges: dict[tuple[str, str], list[str]] = {}
        for move in self.moves:
            for source, target in move.pairs:
                edges.setdefault((source, target), []).append(move.name)
        lines = [
            f"  {source or '[*]'} --> {target} : {', '.join(names)}"
            for (source, target), names in edges.items()
        ]
        ends = [f"  {state.value} --> [*]" for state in self.states if state in self.terminal]
        return "\n".join(["stateDiagram-v2", *lines, *ends])

    def table(self) -> str:
        """Write the moves as a Markdown table."""
        head = ["| move | from | to | when |", "|---|---|---|---|"]
        return "\n".join(head + [self._table_row(move) for move in self.moves])

    def _table_row(self, move: Move) -> str:
        source = ", ".join(s or "none" for s in move.sources)
        target = "the same" if move.stays else ", ".join(move.targets)
        return f"| `{move.name}` | {source} | {target} | {move.when} |"


Member = Callable[[str, Iterable[str]], str]
"""Renders whether an SQL expression is one of these words."""


def among(words: Iterable[str]) -> str:
    """Render `= 'A'` or `IN ('A', 'B')`."""
    quoted = [f"'{word}'" for word in words]
    return f"= {quoted[0]}" if len(quoted) == 1 else f"IN ({', '.join(quoted)})"


def listed(value: str, words: Iterable[str]) -> str:
    """Render membership as a list."""
    return f"{value} {among(words)}"


def spelled_out(value: str, words: Iterable[str]) -> str:
    """Render membership word by word.

    Of a list of three or more SQLite makes a table, anew each time that a trigger runs: 2 us.
    """
    alternatives = [f"{value} = '{word}'" for word in words]
    return alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(alternatives)})"
