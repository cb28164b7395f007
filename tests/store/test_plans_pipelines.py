"""The plans of what a pipeline asks by key: only those records are read, however many there are.

Explained as in test_plans.py. A landing table is filled in one go, and asked of long before its
statistics are taken: believing that few records are this pipeline's, the planner walked them all
for every batch, half a million two hundred times over.
"""

from collections.abc import Iterator

import pytest
from test_plans import POSTGRES, Scene, plans

from tests.support.databases import Backends, Raw

RECORDS = 20_000
ROOT = "00000000-0000-7000-8000-000000000001"
BY_KEY = {
    "raw_known": {"root_id": ROOT},
    "raw_read": {},
    "raw_remove": {"root_id": ROOT},
    "raw_restore": {},
    "raw_unmark": {},
}


def fill(raw: Raw) -> None:
    raw.execute("ALTER TABLE raw SET (autovacuum_enabled = false)")
    raw.execute(
        "INSERT INTO raw (pipeline_id, key, version, hash, payload, root_id, seen, ordinal,"
        " missing_in, removed_by) SELECT 1, 'k' || i, i, ''::bytea,"
        " decode(repeat('00', 150), 'hex'),"
        f" '{ROOT}', 1, 0, '{ROOT}', '{ROOT}' FROM generate_series(1, {RECORDS}) AS i"
    )


@pytest.fixture(
    scope="module",
    params=[(b, s) for b in POSTGRES for s in ("never analysed", "analysed")],
    ids="-".join,
)
def scene(request, backends: Backends) -> Iterator[Scene]:
    backend, name = request.param
    with backends.fresh(backend).raw() as raw:
        fill(raw)
        if name == "analysed":
            raw.execute("ANALYZE raw")
        yield Scene(raw, name)


@pytest.mark.parametrize("name", BY_KEY)
def test_records_asked_for_by_key_are_looked_up_by_key(scene, name):
    for size in (1, 100, 2000):
        keys = [f"k{number}" for number in range(1, RECORDS, RECORDS // size)]
        for plan in plans(scene.raw, name, {**BY_KEY[name], "pipeline_id": 1, "key": keys}):
            how = [node for node in plan.nodes if "Index Cond" in node]
            assert [node["Index Name"] for node in how] == ["raw_pkey"], (plan.of, size)
            assert "key" in how[0]["Index Cond"], (plan.of, size)
