"""Random statements by the thousand: both databases agree, and the journal is the whole truth."""

import os

import pytest

from milepost.lifecycle import JOB, RUN
from tests.support.databases import Backends, Raw, backend_names
from tests.support.fuzz import agree, fold, journal, rows, shape
from tests.support.prove import size

STATEMENTS = size(20_000)
SEEDS = [int(seed) for seed in os.environ.get("MILEPOST_SEEDS", "1").split(",")]
TERMINAL = {"job": JOB.terminal, "run": RUN.terminal}


def check_truth(raw: Raw) -> None:
    """The journal folds into exactly the live rows; what is gone had ended."""
    folded, live = fold(journal(raw)), rows(raw)
    assert {key: folded[key] for key in live} == live
    gone = {key: folded[key] for key in folded.keys() - live.keys()}
    assert all(state in TERMINAL[machine] for (machine, _), (state, *_) in gone.items())


@pytest.mark.prove
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("backend", [name for name in backend_names() if name != "sqlite"])
def test_both_databases_agree_on_every_statement_and_their_journals_are_equal(
    backends: Backends, backend: str, seed: int
):
    with backends.fresh("sqlite").raw() as sqlite, backends.fresh(backend).raw() as postgres:
        sqlite.execute("PRAGMA synchronous = OFF")

        outcome = agree([sqlite, postgres], seed=seed, statements=STATEMENTS)

        print(f"{outcome.accepted} accepted, {outcome.refused} refused: {outcome.moved}")
        assert min(outcome.accepted, outcome.refused) > STATEMENTS // 5
        for raw in (sqlite, postgres):
            check_truth(raw)
            assert rows(raw) == {key: shape(row) for key, row in outcome.model.items()}
        assert journal(sqlite) == journal(postgres)
        used = {(machine, *entry[1:4]) for machine, _, *entry in journal(sqlite)}
        declared = len(JOB.triples) + len(RUN.triples)
        assert len(used) > declared * 0.8, "the fuzzer hardly walked the machines"
