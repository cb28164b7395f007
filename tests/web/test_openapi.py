"""OpenAPI: what is committed is what is served, and what is served does as it says."""

import json
import re
from collections import Counter
from itertools import count, product
from pathlib import Path
from unittest import SkipTest

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from milepost.web.api import describe
from tests.support.prove import PROVING
from tools import reference

pytestmark = pytest.mark.both_stores

ROOT = Path(__file__).parents[2]
REQUESTS = 5000 if PROVING else 30
PER_ROUND = 20 if PROVING else 1
ENDLESS = {"/v1/events"}
"""What ends only when it is asked to."""


def checks():
    """Make the list of what every answer must be; it takes long to load, and one test needs it."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as openapi

    return [
        not_a_server_error,
        openapi.content_type_conformance,
        openapi.response_headers_conformance,
        openapi.response_schema_conformance,
        openapi.status_code_conformance,
    ]


def test_the_committed_description_is_fresh():
    assert (ROOT / reference.OPENAPI).read_text() == reference.openapi(), "run `make docs`"
    assert json.loads((ROOT / reference.OPENAPI).read_text())["openapi"].startswith("3.1")


def test_every_operation_says_what_it_is_and_how_it_fails():
    for path, methods in describe().openapi()["paths"].items():
        for method, operation in methods.items():
            assert operation["description"], path
            if path not in ("/livez", "/readyz"):
                assert {"401", "403", "429", "503"} <= set(operation["responses"]), path
            if method == "post" and "requestBody" in operation:
                assert {"413", "415", "422"} <= set(operation["responses"]), path


async def test_a_browser_is_answered_and_reads_every_operation(api):
    page = await api.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "//" not in page.text.replace("http://", "")  # nothing is loaded from elsewhere
    for path, methods in describe().openapi()["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in page.text
    assert "<td>unique</td><td>body</td><td>string | null</td>" in page.text


def test_every_schema_that_is_referred_to_is_there():
    """A generated client follows each reference; problems pointed at a schema that was missing."""
    described = describe().openapi()
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(described)))
    assert "ProblemDocument" in named
    assert named <= set(described["components"]["schemas"])


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_sent_is_answered_as_documented(app, database, address):
    """5,000 requests under proof: no 5xx, and nothing that the description does not name.

    Every day one store is sent what fits and the other what does not: making it up takes long.
    """
    import schemathesis
    from schemathesis import GenerationMode

    usual = GenerationMode.POSITIVE if database.dialect == "sqlite" else GenerationMode.NEGATIVE
    modes = list(GenerationMode) if PROVING else [usual]
    app.client.create([app.new_job("convert", ["a"], {}, {})])
    app.batches[0].start({"count": 2})
    app.drain(1)
    app.client.create([app.new_job("convert", ["a"], {}, {})])
    known = {
        "job_id": [handle.id for handle in app.jobs.list()],
        "run_id": [handle.id for handle in app.runs.list()],
        "name": ["letters", "nightly", "default"],
    }
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    asking = [pair for pair in product(operations, modes) if PROVING or _may_ask(*pair)]
    sent: Counter[GenerationMode] = Counter()
    # What takes no parameters has one thing to say; further rounds are for what can be varied.
    for round_ in count():
        if sent.total() >= REQUESTS:
            break
        asked = [_asked(operation, mode, known, seed_=round_) for operation, mode in asking]
        for (_, mode), times in zip(asking, asked, strict=True):
            sent[mode] += times
        # That nothing wrong can be made up is found out slowly, and once is enough.
        asking = [pair for pair, times in zip(asking, asked, strict=True) if times]
    assert min(sent[mode] for mode in modes) > REQUESTS / 4, sent
    print(f"{sent.total()} requests: {dict(sent)}")


def _may_ask(operation, mode):
    """Leave out of an everyday's wrong requests what takes no body that could be wrong."""
    return not mode.is_negative or (bool(operation.body) and "/callback/" not in operation.path)


def _asked(operation, mode, known, *, seed_):
    """Send what fits the description, or does not; every other time to what is there."""
    asked = 0

    @seed(seed_)
    @settings(
        max_examples=PER_ROUND,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case):
        nonlocal asked
        asked += 1
        for name, values in known.items():
            if case.path_parameters and name in case.path_parameters and asked % 2:
                case.path_parameters[name] = values[asked % len(values)]
        if case.path in ENDLESS:
            case.query = {**(case.query or {}), "seconds": 0}
        # Nobody wants to wait for a minute here.
        for name in [name for name in case.headers or {} if name.lower() == "prefer"]:
            del case.headers[name]
        case.call_and_validate(checks=checks(), timeout=30)

    try:
        send()
    except (Unsatisfiable, SkipTest):
        assert mode.is_negative  # what takes nothing cannot be given the wrong thing
    return asked
