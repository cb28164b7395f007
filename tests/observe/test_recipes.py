"""The recipes of the page on telemetry, run as they stand there, with the real SDKs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.collectors import collecting

PAGE = Path(__file__).parents[2] / "docs/how-to/telemetry.md"


@pytest.fixture
def collector():
    with collecting() as made:
        yield made


def run(name, folder, **environment):
    """Run the example of that name."""
    [text] = re.findall(rf"```python\n(# {name}\n.*?)```", PAGE.read_text(), re.DOTALL)
    (folder / name).write_text(text)
    known = {n: v for n, v in os.environ.items() if not n.startswith(("MILEPOST", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env={**known, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_sentry_is_told_once_of_a_job_that_failed_for_good(collector, tmp_path):
    dsn = collector.url.replace("http://", "http://key@") + "/1"
    run("sentry_app.py", tmp_path, SENTRY_DSN=dsn)
    lines = [
        json.loads(line) for body in collector.bodies("/api/1/envelope/") for line in _lines(body)
    ]
    [event] = [line for line in lines if "exception" in line]
    assert event["exception"]["values"][-1]["value"] == "report cannot be read"
    assert event["tags"]["queue"] == "default"
    assert (event["contexts"]["job"]["kind"], event["contexts"]["job"]["attempt"]) == ("convert", 2)
    attempts = [line for line in lines if line.get("type") == "transaction" and "spans" in line]
    assert [(one["transaction"], one["contexts"]["trace"]["op"]) for one in attempts] == [
        ("convert", "queue.process")
    ] * 2


def _lines(envelope):
    return [line for line in envelope.split(b"\n") if line.startswith(b"{")]


def test_logfire_has_the_jobs_in_its_trace(collector, tmp_path):
    run("logfire_app.py", tmp_path, LOGFIRE_TOKEN="test", LOGFIRE_BASE_URL=collector.url)
    spans = {span.name: span for span in collector.spans}
    submit, process = spans["submit convert"], spans["process convert"]
    own = spans["counting {document}"]
    assert process.parent_span_id == submit.span_id
    assert own.parent_span_id == process.span_id
    assert len({span.trace_id for span in spans.values()}) == 1
    assert "milepost_jobs_started_total" in collector.metrics
