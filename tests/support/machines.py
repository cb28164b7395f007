"""Tests from one declaration: legal walks, illegal triples, a rule per move, and specs' diagrams.

Needs hypothesis and pytest. A store's suite and the machines' own tests use the same rules.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any, Protocol

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from milepost.errors import IllegalMove
from milepost.machine import CREATION, Machine, Triple
from milepost.specs import Facts, View

__all__ = [
    "Diagram",
    "Edge",
    "Subject",
    "can_tell",
    "first_states",
    "illegal_triples",
    "rules",
    "walks",
]

Edge = tuple[str, str]
"""(word before, word after) in a spec's own words; an empty word is before the creation."""


def first_states(machine: Machine) -> tuple[str, ...]:
    """Name where a walk begins: before the creation, or in the first state where there is none."""
    return (CREATION,) if machine.initial else (next(iter(machine.states)).value,)


@st.composite
def walks(draw: st.DrawFn, machine: Machine, *, moves_max: int = 20) -> tuple[Triple, ...]:
    """Draw a legal walk: each step begins where the one before it ended."""
    [state] = first_states(machine)
    walk: list[Triple] = []
    for _ in range(draw(st.integers(1, moves_max))):
        legal = sorted(triple for triple in machine.triples if triple[1] == state)
        if not legal:
            break
        walk.append(draw(st.sampled_from(legal)))
        state = walk[-1][2]
    return tuple(walk)


def illegal_triples(machine: Machine, *, source: str | None = None) -> tuple[Triple, ...]:
    """List every (move, from, to) that is not declared, of all or of those from one state."""
    states = [state.value for state in machine.states]
    sources = [CREATION, *states] if source is None else [source]
    every = product(machine.move_names, sources, states)
    return tuple(triple for triple in every if triple not in machine.triples)


class Subject(Protocol):
    """What a machine moves: a row in a store, or a model of one. Its state is empty at first."""

    @property
    def state(self) -> str:
        """Where it stands now."""
        ...

    def make(self, move: str, target: str) -> None:
        """Make a move, or raise `IllegalMove` and change nothing."""
        ...


class Walker(RuleBasedStateMachine):
    """Moves one subject. `rules` adds a rule for every move of a machine."""

    machine: Machine
    begin: Callable[[], Subject]

    def __init__(self) -> None:
        super().__init__()
        self.subject = type(self).begin()

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        """Whatever is not declared is refused, and changes nothing."""
        before = self.subject.state
        move, _, target = data.draw(st.sampled_from(illegal_triples(self.machine, source=before)))
        with pytest.raises(IllegalMove):
            self.subject.make(move, target)
        assert self.subject.state == before


def rules(machine: Machine, begin: Callable[[], Subject]) -> type[Walker]:
    """Build hypothesis rules, one per move, and one that tries what is not declared."""
    made = {f"move_{move}": _rule_of(machine, move) for move in machine.move_names}
    body: dict[str, Any] = {"machine": machine, "begin": staticmethod(begin), **made}
    return type(f"{machine.name.title()}Walker", (Walker,), body)


def _rule_of(machine: Machine, move: str) -> Callable[..., None]:
    def legal(walker: Walker) -> bool:
        return bool(machine.targets(move, walker.subject.state))

    def make(walker: Walker, data: st.DataObject) -> None:
        targets = machine.targets(move, walker.subject.state)
        target = data.draw(st.sampled_from(targets))
        walker.subject.make(move, target)
        assert walker.subject.state == target

    make.__name__ = f"move_{move}"
    ruled: Callable[..., None] = precondition(legal)(rule(data=st.data())(make))
    return ruled


# The specs' diagrams.


@dataclass(frozen=True)
class Diagram:
    """What a spec draws, what the engine can make of it, and the hazards that explain the rest."""

    name: str
    made: frozenset[Edge]
    drawn: frozenset[Edge]
    added: Mapping[Edge, tuple[str, str]] = field(default_factory=dict)
    left_out: Mapping[Edge, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a deviation that names no hazard, or that is none."""
        deviations = [*self.added.values(), *self.left_out.values()]
        assert all(re.fullmatch(r"H-[1-9]\d*", hazard) for hazard, _ in deviations)
        assert not self.added.keys() & self.drawn
        assert self.left_out.keys() <= self.drawn

    def label(self, edge: Edge) -> str:
        """Name an edge in the spec's words, and by its hazard where it deviates."""
        hazard, _ = self.added.get(edge) or self.left_out.get(edge) or ("", "")
        return f"{self.name} {hazard}: {edge[0] or '[*]'} -> {edge[1]}".replace(" :", ":")

    def labels(self, edges: Iterable[Edge]) -> list[str]:
        """Name edges, in order."""
        return [self.label(edge) for edge in sorted(edges)]

    @property
    def walkable(self) -> frozenset[Edge]:
        """What the spec draws and the design keeps."""
        return self.drawn - self.left_out.keys()

    @property
    def words(self) -> frozenset[str]:
        """Every word that the spec or the engine uses here."""
        return frozenset(word for edge in self.drawn | self.made for word in edge)

    @property
    def forbidden(self) -> frozenset[Edge]:
        """Every change between its words that neither the spec nor the design allows."""
        every = frozenset(product(self.words, self.words - {CREATION}))
        changes = frozenset(edge for edge in every if edge[0] != edge[1])
        return changes - self.walkable - self.added.keys()

    @property
    def changes(self) -> frozenset[Edge]:
        """What the engine can make and a reader can see; a word that stays shows nothing."""
        return frozenset(edge for edge in self.made if edge[0] != edge[1])

    @property
    def expected(self) -> frozenset[Edge]:
        """The changes that the spec draws and the design keeps, and those that it adds."""
        kept = frozenset(edge for edge in self.walkable if edge[0] != edge[1])
        return kept | self.added.keys()


def can_tell(view: View, story: Sequence[str]) -> bool:
    """Tell whether one row can pass these words in order, seen by a reader of the spec.

    Steps inside a word are free: the reader does not see them. A word said twice is a step that
    comes back to the same word.
    """
    after: dict[Facts | None, set[Facts]] = {}
    for _, before, then in view.steps:
        after.setdefault(before, set()).add(then)
    creation = after.get(None) or {facts for facts in after if facts is not None}
    here = _linger(view, after, {facts for facts in creation if view.word(facts) == story[0]})
    for _, word in pairwise(story):
        reached = {
            then for facts in here for then in after.get(facts, ()) if view.word(then) == word
        }
        here = _linger(view, after, reached)
    return bool(here)


def _linger(view: View, after: Mapping[Facts | None, set[Facts]], here: set[Facts]) -> set[Facts]:
    seen: set[Facts] = set()
    while here - seen:
        seen |= here
        here = {
            then
            for facts in seen
            for then in after.get(facts, ())
            if view.word(then) == view.word(facts)
        }
    return seen
