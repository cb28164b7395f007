"""The examples' own tests, on PostgreSQL too; `make test` runs them on SQLite."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("example", "chosen"),
    [("fastapi_app", ""), ("fhir_import", "sound_file or too_many_broken or empty_folder")],
)
def test_an_example_works_on_a_server(example, chosen, server):
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:schemathesis"]
    command += [f"--milepost-store={server}", f"-k={chosen}"]
    done = subprocess.run(
        [*command, str(EXAMPLES / example)],
        cwd=EXAMPLES.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
