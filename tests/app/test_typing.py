"""submit and its results are typed in all four shapes of a handler; wrong calls are reported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parent / "typed_sample.py"
SOURCE = Path(__file__).parents[2] / "src"


def wrong_lines():
    lines = SAMPLE.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def run(*command):
    return subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        cwd=SAMPLE.parents[2],
        timeout=240,
        check=False,
    )


def test_mypy_in_strict_mode_reports_exactly_the_wrong_calls(tmp_path):
    """One run for the sample and the tutorial's source: most of it is spent on the package."""
    page = (SOURCE.parent / "docs" / "tutorial" / "pipelines.md").read_text()
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    for name, text in reversed(blocks):  # the first of a name is the one that is explained
        (tmp_path / name).write_text(text)
    tutorial = tmp_path / "stones.py"
    options = ("--strict", "--config-file=", f"--cache-dir={tmp_path / 'cache'}")
    done = run("mypy", *options, str(SAMPLE), str(tutorial))
    reported = {int(n) for n in re.findall(r"typed_sample\.py:(\d+): error", done.stdout)}
    assert reported == wrong_lines(), done.stdout + done.stderr
    assert "stones.py" not in done.stdout
    assert f"{len(reported)} error" in done.stdout.splitlines()[-1]


def test_pyright_reports_exactly_the_wrong_calls(tmp_path):
    (tmp_path / SAMPLE.name).write_text(SAMPLE.read_text())
    config = tmp_path / "pyrightconfig.json"
    config.write_text(
        json.dumps(
            {
                "include": [SAMPLE.name],
                "extraPaths": [str(SOURCE)],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
                "reportUnusedExpression": False,
                "reportUnusedCallResult": False,
            }
        )
    )
    done = run("pyright", "--outputjson", "-p", str(config), "--pythonpath", sys.executable)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot run here without a network: {done.stderr.strip()[-200:]}")
    found = json.loads(done.stdout)["generalDiagnostics"]
    reported = {
        item["range"]["start"]["line"] + 1
        for item in found
        if item["severity"] == "error" and Path(item["file"]).name == SAMPLE.name
    }
    assert reported == wrong_lines(), json.dumps(found, indent=1)
