"""Both databases accept exactly the declared moves: every (move, from, to) is tried."""

from dataclasses import dataclass
from itertools import product

import pytest
from hands import Walk, created, moved, put, refusal, subject, walks

from milepost.lifecycle import JOB, RUN, WORKER
from milepost.machine import CREATION, Machine
from tests.support.databases import Raw

Entry = tuple[int, str, str | None, str]


@dataclass(frozen=True)
class Try:
    """One triple, tried on a row of its own."""

    id: str
    move: str
    source: str
    target: str
    walk: Walk

    @property
    def unchanged(self) -> bool:
        """Whether neither move nor state would change: on a worker's row that is a heartbeat."""
        return self.walk[-1:] == ((self.move, self.target),)

    def statement(self, machine: Machine) -> str:
        write = created if self.source == CREATION else moved
        return write(machine, [":id"], self.move, self.target)

    def entries(self, *, passed: bool) -> list[Entry]:
        steps = (*self.walk, (self.move, self.target)) if passed else self.walk
        origins = [None, *(state for _, state in steps)]
        return [(n + 1, move, origins[n], to) for n, (move, to) in enumerate(steps)]


def every_triple(machine: Machine) -> list[Try]:
    states = [state.value for state in machine.states]
    ways = {CREATION: (), **walks(machine)}
    # The from-state changes fastest, so that SQLite compiles each statement once.
    triples = product(machine.move_names, states, (CREATION, *states))
    return [
        Try(subject(number), move, source, target, ways[source])
        for number, (move, target, source) in enumerate(triples)
    ]


def prepare(raw: Raw, machine: Machine, tries: list[Try]) -> None:
    """Lead every row into the state from which it will be tried."""
    for source, walk in walks(machine).items():
        put(raw, machine, [one.id for one in tries if one.source == source], walk)


def outcomes(raw: Raw, machine: Machine, tries: list[Try]) -> dict[Try, str | None]:
    prepare(raw, machine, tries)
    return {one: refusal(raw, one.statement(machine), {"id": one.id}) for one in tries}


def journal(raw: Raw, machine: Machine) -> dict[str, list[Entry]]:
    written: dict[str, list[Entry]] = {}
    for name, *entry in raw.execute(
        "SELECT subject_id, seq, move, from_state, to_state FROM journal"
        f" WHERE machine = '{machine.name}' ORDER BY subject_id, seq"
    ):
        written.setdefault(str(name), []).append(tuple(entry))
    return written


def test_every_state_can_be_reached_by_declared_moves():
    for machine in (JOB, RUN, WORKER):
        assert set(walks(machine)) == {state.value for state in machine.states}


@pytest.mark.parametrize("machine", [JOB, RUN], ids=lambda machine: machine.name)
def test_exactly_the_declared_triples_pass_and_each_writes_one_entry(machine: Machine, raw: Raw):
    tries = every_triple(machine)
    assert len(tries) == len(machine.moves) * (len(machine.states) + 1) * len(machine.states)

    said = outcomes(raw, machine, tries)

    passed = {(one.move, one.source, one.target) for one in tries if said[one] is None}
    assert passed == machine.triples
    assert all("milepost:" in words for words in said.values() if words is not None)
    expected = {one.id: one.entries(passed=said[one] is None) for one in tries}
    assert journal(raw, machine) == {name: told for name, told in expected.items() if told}
    for name, state, version, move in raw.execute(
        f"SELECT id, state, version, move FROM {machine.name}"
    ):
        assert (version, move, state) == (
            expected[str(name)][-1][0],
            *expected[str(name)][-1][1::2],
        )


def test_exactly_the_declared_triples_pass_for_a_worker_and_heartbeats_are_no_moves(raw: Raw):
    tries = every_triple(WORKER)

    said = outcomes(raw, WORKER, tries)

    passed = {(one.move, one.source, one.target) for one in tries if said[one] is None}
    heartbeats = {(one.move, one.source, one.target) for one in tries if one.unchanged}
    assert passed - heartbeats == WORKER.triples - heartbeats
    assert heartbeats <= passed
    assert all("milepost:" in words for words in said.values() if words is not None)
    rows = {
        name: (move, state)
        for name, move, state in raw.execute("SELECT id, move, state FROM worker")
    }
    for one in tries:
        last = (one.move, one.target) if said[one] is None else one.walk[-1] if one.walk else None
        assert rows.get(one.id) == last
    assert journal(raw, WORKER) == {}
