"""A row reads the same to a program (`as_spec`) and at a SQL prompt, wherever moves have led it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import milepost as mp
from milepost.client import new_id
from milepost.lifecycle import JOB, RUN
from milepost.machine import Machine
from milepost.specs import JOB_VIEWS, RUN_VIEWS
from tests.support.databases import Backends, Raw, alike

pytestmark = pytest.mark.both_stores

PHASES = (None, "page 3", "REQUESTING", "RESPONSE", "work", "consolidate", "reduce")
PHASES += ("ValidatingRun", "MarkingConsolidated", "AdvancingWatermark")
ROLES = ("work", "plan", "partition", "consolidate", "reduce")


def literal(value: object) -> str:
    return "NULL" if value is None else f"'{value}'"


def created(raw: Raw, machine: Machine, chance: random.Random, **more: str) -> str:
    """Create a row as anybody may; give its id."""
    columns = {"id": new_id(), "kind": "k", "state": chance.choice(machine.initial), **more}
    columns |= {"move": "create", "queue": chance.choice(["plain", "brokered", "unheard of"])}
    names, values = ", ".join(columns), ", ".join(map(literal, columns.values()))
    raw.execute(f"INSERT INTO {machine.name} ({names}) VALUES ({values})")
    return columns["id"]


def lead(raw: Raw, machine: Machine, row_id: str, chance: random.Random) -> None:
    """Lead a row along random legal moves; what it says of its phase is anybody's word."""
    for _ in range(chance.randrange(6)):
        [(state,)] = raw.execute(f"SELECT state FROM {machine.name} WHERE id = '{row_id}'")
        choices = sorted(
            (move, to)
            for move, source, to in machine.triples
            if source == state and move != "erase"  # which changes no word
        )
        if not choices:
            return
        move, to = chance.choice(choices)
        changes = {"state": literal(to), "move": literal(move), "version": "version + 1"}
        changes["phase"] = literal(chance.choice(PHASES))
        if machine is JOB:
            changes["worker_id"] = literal("w" if to == "RUNNING" else None)
            changes |= {"fence": "fence + 1"} if move == "claim" else {}
        listed = ", ".join(f"{name} = {value}" for name, value in changes.items())
        raw.execute(f"UPDATE {machine.name} SET {listed} WHERE id = '{row_id}'")


@pytest.fixture(scope="module", params=alike())
def shared(request, backends: Backends):
    """One store for every example: rows do not meet."""
    database = backends.fresh(request.param)
    with database.raw() as raw:
        raw.execute("INSERT INTO queue (name, transport) VALUES ('brokered', 'nats')")
        raw.execute("INSERT INTO queue (name) VALUES ('plain')")
        app = mp.App(database.url)
        yield raw, app
        app.close()
    backends.drop(database)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_as_spec_and_the_views_never_disagree(shared, seed):
    raw, app = shared
    chance = random.Random(seed)
    run_id = created(raw, RUN, chance)
    raw.execute(
        "INSERT INTO step (run_id, number, name, kind, role) VALUES"
        f" ('{run_id}', 0, 'k', 'k', '{chance.choice(ROLES)}')"
    )
    slots = f"('{run_id}', 0, -1), ('{run_id}', 0, 0)"  # for jobs created, and for jobs ended
    raw.execute(f"INSERT INTO step_count (run_id, step, slot) VALUES {slots}")
    job_id = created(raw, JOB, chance, run_id=run_id, step="0")
    lead(raw, JOB, job_id, chance)
    lead(raw, RUN, run_id, chance)

    told = ", ".join(f"spec_{spec.lower()}" for spec in JOB_VIEWS)
    [words] = raw.execute(f"SELECT {told} FROM jobs WHERE id = '{job_id}'")
    job = app.jobs.get(job_id)
    assert tuple(words) == tuple(job.as_spec(spec) for spec in JOB_VIEWS)

    told = ", ".join(f"spec_{spec.lower()}" for spec in RUN_VIEWS)
    [words] = raw.execute(f"SELECT {told} FROM runs WHERE id = '{run_id}'")
    run = app.runs.get(run_id)
    assert tuple(words) == tuple(run.as_spec(spec) for spec in RUN_VIEWS)
