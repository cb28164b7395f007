"""Every diagram of the five specs, edge by edge, beside what the engine's own machines make."""

import pytest
import test_a_batch_states
import test_b_run_lifecycle
import test_c_async_requests
import test_d_job_lifecycle
import test_e_worker_loop

DIAGRAMS = (
    *test_a_batch_states.DIAGRAMS,
    *test_b_run_lifecycle.DIAGRAMS,
    *test_c_async_requests.DIAGRAMS,
    *test_d_job_lifecycle.DIAGRAMS,
    *test_e_worker_loop.DIAGRAMS,
)


each_diagram = pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)


@each_diagram
def test_an_edge_that_a_spec_draws_can_be_walked(diagram):
    assert diagram.labels(diagram.walkable - diagram.made) == []


@each_diagram
def test_an_edge_that_the_design_left_out_cannot(diagram):
    assert diagram.labels(diagram.left_out.keys() - diagram.drawn) == []
    assert diagram.labels(diagram.left_out.keys() & diagram.made) == []


@each_diagram
def test_an_edge_that_the_design_added_can(diagram):
    assert diagram.labels(diagram.added.keys() - diagram.made) == []
    assert diagram.labels(diagram.added.keys() & diagram.drawn) == []


@each_diagram
def test_an_edge_that_nobody_drew_cannot_be_walked(diagram):
    assert diagram.labels(diagram.forbidden & diagram.made) == []


@each_diagram
def test_the_engine_makes_what_is_drawn_and_the_named_deviations(diagram):
    assert diagram.changes == diagram.expected
