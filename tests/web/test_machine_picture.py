"""The job machine as it is drawn: every state and every edge of the declaration has its place."""

import re

import pytest

from milepost.lifecycle import JOB, JobState
from milepost.web.dashboard import machine

LAYOUTS = pytest.mark.parametrize("layout", [machine.WIDE, machine.TALL], ids=lambda one: one.name)


@LAYOUTS
def test_every_state_has_a_place_of_its_own(layout):
    assert set(layout.places) == set(JobState)
    wide, high = layout.box
    for state, (x, y) in layout.places.items():
        assert 0 <= x <= layout.width - wide, state
        assert 0 <= y <= layout.height - high, state
    assert len(set(layout.places.values())) == len(JobState)


@LAYOUTS
def test_only_edges_of_the_machine_are_drawn_by_hand(layout):
    legal = {(source, target) for _, source, target in JOB.triples}
    assert set(layout.routes) <= legal
    assert set(machine.PAIRS) == legal


@LAYOUTS
def test_every_edge_ends_at_the_border_of_its_state(layout):
    wide, high = layout.box
    for source, target in machine.PAIRS:
        x, y = layout.places[target]
        ex, ey = layout.route((source, target)).points[-1]
        assert x - 4 <= ex <= x + wide + 4, (source, target)
        assert y - 4 <= ey <= y + high + 4, (source, target)


def test_a_path_lights_exactly_the_moves_that_were_made():
    moves = {("", "QUEUED"): {"create": 1}, ("QUEUED", "RUNNING"): {"claim": 3}}
    drawn = str(machine.path(machine.Walk(moves, "RUNNING", {"RUNNING": "3 s"}), sprite="s.svg"))
    found = re.findall(r'data-from="(\w*)" data-to="(\w+)" data-moves="([^"]+)"', drawn)
    assert found == [("", "QUEUED", "create:1"), ("QUEUED", "RUNNING", "claim:3")]
    assert "style=" not in drawn
    assert 'class="node now at-running"' in drawn


def test_a_flow_counts_and_links_every_state():
    drawn = str(
        machine.flow(
            machine.WIDE,
            {"QUEUED": 1_904},
            {"claim": 118.0},
            sprite="s.svg",
            href=lambda state: f"/jobs?q=state:{state.lower()}",
        )
    )
    assert drawn.count("<a ") == len(JobState)
    assert "1,904" in drawn
    assert "118/s" in drawn
    assert drawn.count("speed-4") == 1


@pytest.mark.parametrize(
    "move", ["create", "submit", "open", "wake", "due", "dispatch", "claim", "succeed", "fail"]
)
def test_the_usual_moves_have_an_edge_for_their_rate(move):
    assert machine.usual_edge(move) is not None
