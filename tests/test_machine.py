"""The machines are the design's tables, and nothing else passes."""

import sqlite3
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from milepost.errors import IllegalMove, Invalid
from milepost.lifecycle import (
    JOB,
    MACHINES,
    RUN,
    WORKER,
    JobState,
    RunState,
    SlotState,
    WorkerState,
)
from milepost.machine import CREATION, Machine, Move
from milepost.specs import JOB_VIEWS, RUN_VIEWS, VIEWS, Facts
from tests.support.machines import first_states, illegal_triples, rules, walks

# The design's tables (section 2), copied by hand: move, from, to. A dash is before the creation,
# "same" stays where it is.

JOB_TABLE = """
create | - | CREATED GATED WAITING READY QUEUED
submit | CREATED | GATED WAITING READY QUEUED
open | GATED | WAITING READY QUEUED
wake | WAITING | READY QUEUED
due | RETRYING | READY QUEUED
dispatch | READY | QUEUED
undispatch | QUEUED | READY
claim | QUEUED | RUNNING
note | RUNNING | RUNNING
succeed | RUNNING | SUCCEEDED
fail | RUNNING | FAILED
retry | RUNNING | RETRYING
later | RUNNING | WAITING
release | RUNNING | RETRYING WAITING
lose | RUNNING | RETRYING FAILED
expire | CREATED GATED WAITING READY QUEUED RUNNING RETRYING | FAILED
reject | WAITING READY QUEUED RETRYING | FAILED
erase | SUCCEEDED FAILED CANCELLED | same
cancel | CREATED GATED WAITING READY QUEUED RUNNING RETRYING | CANCELLED
"""

RUN_TABLE = """
create | - | CREATED QUEUED
seal | CREATED | QUEUED
begin | QUEUED | RUNNING
advance | RUNNING | RUNNING
finalize | QUEUED RUNNING | FINALIZING
finish | QUEUED RUNNING FINALIZING | SUCCEEDED
stop | CREATED QUEUED RUNNING FINALIZING | STOPPING
fail | CREATED QUEUED RUNNING FINALIZING STOPPING | FAILED
cancel | CREATED QUEUED RUNNING FINALIZING STOPPING | CANCELLED
"""

WORKER_TABLE = """
boot | - | STARTUP
connect | STARTUP IDLE ERROR_WAIT | CONNECTING
recover | CONNECTING POLLING | RECOVERY
poll | RECOVERY | POLLING
back_off | POLLING | BACKOFF
rest | BACKOFF | IDLE
error | STARTUP CONNECTING RECOVERY POLLING BACKOFF IDLE | ERROR_WAIT
drain | STARTUP CONNECTING RECOVERY POLLING BACKOFF IDLE ERROR_WAIT | DRAINING
stop | DRAINING | STOPPED
bury | STARTUP CONNECTING RECOVERY POLLING BACKOFF IDLE ERROR_WAIT DRAINING | STOPPED
"""

SLOT_TABLE = """
take | FREE | CLAIMING
start | CLAIMING | PROCESSING
miss | CLAIMING | FREE
success | PROCESSING | REPORTING_SUCCESS
failure | PROCESSING | REPORTING_FAILURE
reported | REPORTING_SUCCESS REPORTING_FAILURE | FREE
drop | CLAIMING PROCESSING REPORTING_SUCCESS REPORTING_FAILURE | FREE
"""

STATES = {
    "job": "CREATED GATED WAITING READY QUEUED RUNNING RETRYING SUCCEEDED FAILED CANCELLED",
    "run": "CREATED QUEUED RUNNING STOPPING FINALIZING SUCCEEDED FAILED CANCELLED",
    "worker": "STARTUP CONNECTING RECOVERY POLLING BACKOFF IDLE ERROR_WAIT DRAINING STOPPED",
    "slot": "FREE CLAIMING PROCESSING REPORTING_SUCCESS REPORTING_FAILURE",
}
TERMINAL = {
    "job": "SUCCEEDED FAILED CANCELLED",
    "run": "SUCCEEDED FAILED CANCELLED",
    "worker": "STOPPED",
    "slot": "",
}
INSERTS = {
    "job": "CREATED GATED WAITING READY QUEUED",
    "run": "CREATED QUEUED",
    "worker": "STARTUP",
    "slot": "",
}


def read(table):
    triples = set()
    for line in table.strip().splitlines():
        move, sources, targets = line.split(" | ")
        for source in sources.split():
            before = CREATION if source == "-" else source
            for target in targets.split():
                triples.add((move, before, before if target == "same" else target))
    return frozenset(triples)


DESIGN = {
    "job": read(JOB_TABLE),
    "run": read(RUN_TABLE),
    "worker": read(WORKER_TABLE),
    "slot": read(SLOT_TABLE),
}

every_machine = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
quietly = settings(
    deadline=None, database=None, max_examples=60, suppress_health_check=list(HealthCheck)
)


def product_of(machine):
    states = [state.value for state in machine.states]
    return product(machine.move_names, [CREATION, *states], states)


@every_machine
def test_a_machine_is_the_designs_table(machine):
    assert machine.triples == DESIGN[machine.name]
    assert [state.value for state in machine.states] == STATES[machine.name].split()


@every_machine
def test_exactly_the_declared_triples_pass(machine):
    passed, refused = set(), 0
    for move, source, target in product_of(machine):
        try:
            machine.check(move, source or None, target)
        except IllegalMove:
            refused += 1
        else:
            passed.add((move, source, target))
    assert passed == DESIGN[machine.name]
    assert refused == len(list(product_of(machine))) - len(passed)


@every_machine
def test_a_creation_may_be_spelled_as_nothing_or_as_an_empty_word(machine):
    for move, source, target in DESIGN[machine.name]:
        if source == CREATION:
            machine.check(move, None, target)
            machine.check(move, "", target)


@every_machine
def test_terminal_states_initial_and_live_states(machine):
    assert machine.terminal == set(TERMINAL[machine.name].split())
    assert machine.initial == tuple(INSERTS[machine.name].split())
    assert machine.live == set(STATES[machine.name].split()) - machine.terminal


@every_machine
def test_h_9_nothing_leaves_a_final_state(machine):
    left = [t for t in machine.triples if t[1] in machine.terminal and t[1] != t[2]]
    assert left == []


def test_h_9_only_erase_follows_a_final_entry_of_a_job():
    after = {move for move, source, _ in JOB.triples if source in JOB.terminal}
    assert after == {"erase"}
    assert not [triple for triple in RUN.triples if triple[1] in RUN.terminal]


def test_h_28_running_never_goes_back_to_queued():
    assert not [t for t in JOB.triples if t[1:] == ("RUNNING", "QUEUED")]


def test_h_8_a_claim_is_the_only_way_to_run():
    into = {move for move, source, target in JOB.triples if target == "RUNNING" != source}
    assert into == {"claim"}


@pytest.mark.parametrize("machine", [JOB, RUN], ids=["job", "run"])
def test_h_4_h_10_every_state_that_is_not_final_can_be_cancelled_and_failed(machine):
    for state in machine.live:
        assert machine.targets("cancel", state) == ("CANCELLED",)
        assert any("FAILED" in machine.targets(m, state) for m in machine.moves_from(state))


@every_machine
def test_every_state_is_reached_and_none_is_a_trap(machine):
    reached = set(first_states(machine))
    for _ in machine.states:
        reached |= {target for _, source, target in machine.triples if source in reached}
    assert reached - {CREATION} == set(STATES[machine.name].split())

    ends = set(machine.terminal) or {"FREE"}
    for _ in machine.states:
        ends |= {source for _, source, target in machine.triples if target in ends}
    assert ends >= set(STATES[machine.name].split())


# What the error says.


def test_a_refusal_names_the_move_the_states_and_what_may_be_done_instead():
    with pytest.raises(IllegalMove) as refused:
        JOB.check("claim", "RUNNING", "RUNNING")
    message = str(refused.value)
    assert "job cannot 'claim' from RUNNING to RUNNING" in message
    for move in ("succeed", "fail", "retry", "later", "release", "lose", "note", "cancel"):
        assert move in message
    assert "submit" not in message


def test_a_refusal_of_an_unknown_move_lists_the_moves():
    with pytest.raises(IllegalMove, match="run has no move 'explode'; it has create, seal, begin"):
        RUN.check("explode", "QUEUED", "RUNNING")


def test_a_refusal_after_the_end_says_that_it_is_final():
    with pytest.raises(IllegalMove, match="nothing: it is final"):
        RUN.check("finish", "FAILED", "SUCCEEDED")


def test_a_refused_creation_says_so():
    with pytest.raises(IllegalMove, match=r"creation.*it may: create"):
        JOB.check("create", None, "RUNNING")


def test_a_move_declared_twice_is_refused_at_import():
    move = Move("go", RunState.QUEUED, RunState.RUNNING)
    with pytest.raises(Invalid, match="declared twice"):
        Machine(name="twice", states=RunState, moves=(move, move))


# Look-ups derived from the moves.


@every_machine
def test_targets_and_moves_from_agree_with_the_table(machine):
    for state in [CREATION, *(state.value for state in machine.states)]:
        legal = {(m, t) for m, s, t in DESIGN[machine.name] if s == state}
        assert {(m, t) for m in machine.move_names for t in machine.targets(m, state)} == legal
        assert set(machine.moves_from(state)) == {move for move, _ in legal}


def test_the_states_are_their_own_words():
    for states in (JobState, RunState, WorkerState, SlotState):
        assert all(state.value == state.name for state in states)


@every_machine
def test_the_diagram_draws_every_pair_and_every_end(machine):
    lines = machine.mermaid().splitlines()
    assert lines[0] == "stateDiagram-v2"
    drawn = {tuple(line.split(" : ")[0].split(" --> ")) for line in map(str.strip, lines[1:])}
    pairs = {(source or "[*]", target) for _, source, target in DESIGN[machine.name]}
    assert drawn == pairs | {(state, "[*]") for state in TERMINAL[machine.name].split()}


@every_machine
def test_the_table_has_a_row_per_move(machine):
    rows = machine.table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(machine.move_names)


@pytest.mark.parametrize("machine", [JOB, RUN, WORKER], ids=["job", "run", "worker"])
def test_the_rendered_sql_accepts_exactly_the_table(machine):
    legal = machine.legal_sql(move=":move", source=":source", target=":target")
    creation = machine.creation_sql(move=":move", target=":target")
    final = machine.terminal_sql(":target")
    with sqlite3.connect(":memory:") as connection:
        for move, source, target in product_of(machine):
            row = {"move": move, "source": source, "target": target}
            [accepted] = connection.execute(
                f"SELECT {legal if source else creation}", row
            ).fetchone()
            assert bool(accepted) is ((move, source, target) in DESIGN[machine.name]), row
            [ended] = connection.execute(f"SELECT {final}", row).fetchone()
            assert bool(ended) is (target in TERMINAL[machine.name].split())
    connection.close()


# Walks, drawn from the declaration and judged by the design's table.


@every_machine
@quietly
@given(data=st.data())
def test_a_walk_is_legal_joined_and_ends_at_the_first_end(machine, data):
    walk = data.draw(walks(machine))
    assert walk
    assert set(walk) <= DESIGN[machine.name]
    [at] = first_states(machine)
    for move, source, target in walk:
        assert source == at
        machine.check(move, source, target)
        at = target
    final = [target for _, _, target in walk if target in machine.terminal]
    assert len(set(final)) <= 1


@every_machine
def test_illegal_triples_are_all_the_others(machine):
    illegal = set(illegal_triples(machine))
    assert illegal == set(product_of(machine)) - DESIGN[machine.name]
    for move, source, target in illegal:
        with pytest.raises(IllegalMove):
            machine.check(move, source, target)


class Model:
    """A subject that asks the machine first and lets the design's table judge the answer."""

    def __init__(self, machine):
        self.machine = machine
        [self.state] = first_states(machine)

    def make(self, move, target):
        declared = (move, self.state, target) in DESIGN[self.machine.name]
        try:
            self.machine.check(move, self.state or None, target)
        except IllegalMove:
            assert not declared
            raise
        assert declared
        assert self.state not in self.machine.terminal or target == self.state
        self.state = target


@every_machine
def test_a_rule_per_move_walks_the_machine(machine):
    walker = rules(machine, lambda: Model(machine))
    named = {name.removeprefix("move_") for name in vars(walker) if name.startswith("move_")}
    assert named == {move for move, _, _ in DESIGN[machine.name]}
    run_state_machine_as_test(
        walker, settings=settings(quietly, max_examples=40, stateful_step_count=25)
    )


class Drawn:
    """Stands in for hypothesis: draws what it is told to."""

    def __init__(self, value):
        self.value = value

    def draw(self, strategy):
        return self.value


def test_a_rule_reports_a_subject_that_skips_a_move():
    class Careless(Model):
        def make(self, move, target):
            before = self.state
            super().make(move, target)
            self.state = before if move == "claim" else self.state

    # Made by hand, in order: a search for the fault would be left to chance.
    walker = rules(JOB, lambda: Careless(JOB))()
    walker.move_create(data=Drawn("QUEUED"))
    with pytest.raises(AssertionError):
        walker.move_claim(data=Drawn("RUNNING"))


def test_a_rule_reports_a_subject_that_lets_something_through():
    class Lenient(Model):
        def make(self, move, target):
            self.state = target

    walker = rules(JOB, lambda: Lenient(JOB))()
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        walker.refuse(data=Drawn(("claim", "", "RUNNING")))


# The specs' words: total, and the same in SQL as in Python.

PHASES = [None, "REQUESTING", "RESPONSE", "page 7", "consolidate"]
EVERY_FACTS = {
    name: [
        Facts(state.value, fence, phase, transport, retrying)
        for state, fence, phase, transport, retrying in product(
            machine.states, (0, 1, 7), PHASES, ("store", "nats"), (False, True)
        )
    ]
    for name, machine in MACHINES.items()
}
EVERY_VIEW = [(name, spec) for name, views in VIEWS.items() for spec in views]


@pytest.mark.parametrize(("name", "spec"), EVERY_VIEW)
def test_h_1_every_alias_maps_both_ways(name, spec):
    view = VIEWS[name][spec]
    for facts in EVERY_FACTS[name]:
        assert view.word(facts) in view.names(facts.state)
    seen = {view.word(after) for _, _, after in view.steps}
    assert seen == {word.name for word in view.words}
    assert {state for word in view.words for state in word.states} == set(MACHINES[name].states)


@pytest.mark.parametrize(("name", "spec"), EVERY_VIEW)
def test_the_diagram_of_a_spec_draws_what_its_reader_can_see(name, spec):
    view = VIEWS[name][spec]
    lines = [line.strip().split(" : ")[0] for line in view.mermaid().splitlines()[1:]]
    drawn = {tuple(line.split(" --> ")) for line in lines}
    seen = {(before or "[*]", after) for before, after in view.edges if before != after}
    ends = {(view.word(Facts(state)), "[*]") for state in view.machine.terminal}
    assert drawn == seen | ends


@pytest.mark.parametrize("spec", JOB_VIEWS)
def test_a_jobs_word_is_the_same_in_sql(spec):
    view = JOB_VIEWS[spec]
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE job (state, fence, phase, queue)")
        connection.execute("CREATE TABLE queue (name, transport)")
        connection.execute("INSERT INTO queue VALUES ('s', 'store'), ('b', 'nats')")
        for facts in EVERY_FACTS["job"]:
            queue = "s" if facts.transport == "store" else "b"
            row = (facts.state, facts.fence, facts.phase, queue)
            connection.execute("DELETE FROM job")
            connection.execute("INSERT INTO job VALUES (?, ?, ?, ?)", row)
            [said] = connection.execute(f"SELECT {view.sql()} FROM job").fetchone()
            assert said == view.word(facts), facts
    connection.close()


@pytest.mark.parametrize("spec", RUN_VIEWS)
def test_a_runs_word_is_the_same_in_sql(spec):
    view = RUN_VIEWS[spec]
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE run (id, state, phase)")
        connection.execute("CREATE TABLE job (run_id, state)")
        for facts in EVERY_FACTS["run"]:
            connection.execute("DELETE FROM run")
            connection.execute("DELETE FROM job")
            connection.execute("INSERT INTO run VALUES (1, ?, ?)", (facts.state, facts.phase))
            waits = "RETRYING" if facts.retrying else "RUNNING"
            connection.execute("INSERT INTO job VALUES (1, ?), (2, 'RETRYING')", (waits,))
            [said] = connection.execute(f"SELECT {view.sql()} FROM run").fetchone()
            assert said == view.word(facts), facts
    connection.close()
