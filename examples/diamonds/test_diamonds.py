"""The example does what its page says, in small."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_the_demo_reads_what_is_there_and_what_changed():
    done = subprocess.run(
        [sys.executable, str(HERE / "demo.py"), "--count", "600"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    full, following, same = done.stdout.splitlines()
    assert full.startswith("full         SUCCEEDED: 600 fetched")
    assert following.startswith("incremental  SUCCEEDED")
    assert same == "the target equals the source: 600 diamonds"


def test_prices_are_set_by_the_first_rule_that_fits(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    sys.modules.pop("app", None)
    import app as example  # noqa: PLC0415 - found by the path above

    source = example.Supplier("http://nowhere")
    raw = {"carat": 1.0, "certificate": "x", "updated_at": "2024-01-01T00:00:00Z"}
    given = [
        {**raw, "id": "a", "shape": "round", "price": 2_000_000},
        {**raw, "id": "b", "shape": "round", "price": 90_000},
        {**raw, "id": "c", "shape": "oval", "price": 90_000},
        {**raw, "id": "d", "shape": "oval", "price": 100_000},
    ]
    priced = source.enrich([source.map(one) for one in given], source.rules())
    assert [one.sale_price for one in priced] == [2_240_000, 108_000, 121_500, 125_000]
    sys.modules.pop("app", None)
