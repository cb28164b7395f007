"""Every diagram of the five specs, edge by edge, beside what the engine's own machines make."""

import pytest
import test_a_batch_states
import test_b_run_lifecycle
import test_c_async_requests
import test_d_job_lifecycle
import test_e_worker_loop

from milepost.testing.machines import edge_cases

DIAGRAMS = (
    *test_a_batch_states.DIAGRAMS,
    *test_b_run_lifecycle.DIAGRAMS,
    *test_c_async_requests.DIAGRAMS,
    *test_d_job_lifecycle.DIAGRAMS,
    *test_e_worker_loop.DIAGRAMS,
)


@pytest.mark.parametrize(("diagram", "edge"), edge_cases(DIAGRAMS, "walkable"))
def test_an_edge_that_a_spec_draws_can_be_walked(diagram, edge):
    assert edge in diagram.made


@pytest.mark.parametrize(("diagram", "edge"), edge_cases(DIAGRAMS, "left_out"))
def test_an_edge_that_the_design_left_out_cannot(diagram, edge):
    assert edge in diagram.drawn
    assert edge not in diagram.made


@pytest.mark.parametrize(("diagram", "edge"), edge_cases(DIAGRAMS, "added"))
def test_an_edge_that_the_design_added_can(diagram, edge):
    assert edge in diagram.made
    assert edge not in diagram.drawn


@pytest.mark.parametrize(("diagram", "edge"), edge_cases(DIAGRAMS, "forbidden"))
def test_an_edge_that_nobody_drew_cannot_be_walked(diagram, edge):
    assert edge not in diagram.made


@pytest.mark.parametrize("diagram", DIAGRAMS, ids=lambda diagram: diagram.name)
def test_the_engine_makes_what_is_drawn_and_the_named_deviations(diagram):
    assert diagram.changes == diagram.expected
