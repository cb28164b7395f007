"""`milepost dev --reload` runs the code that is in the files now, whatever they held in between."""

import os
import subprocess
import sys

import pytest

import milepost as mp

PROGRAM = """
import milepost as mp

app = mp.App("sqlite:///reload.db")


@app.job
def tell() -> str:
    return {!r}
"""


# It says that a worker runs before that has entered its row, which may take a while.
@pytest.mark.filterwarnings("ignore:.* no live worker could take it:RuntimeWarning")
def test_a_change_is_run_and_a_broken_file_is_waited_for(tmp_path):
    (tmp_path / "own.py").write_text(PROGRAM.format("first"))
    process = subprocess.Popen(
        [sys.executable, "-m", "milepost", "dev", "own.py", "--reload", "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    app = mp.App(f"sqlite:///{tmp_path}/reload.db")
    tell = app.job(name="tell")(lambda: "")

    def said(words):
        for line in process.stderr:
            if words in line:
                return line
        raise AssertionError(f"it ended without saying {words!r}")

    try:
        said("a worker is running")
        assert tell.submit().wait(60).result == "first"
        (tmp_path / "own.py").write_text(PROGRAM.format("the second"))
        said("starting again")
        said("a worker is running")
        assert tell.submit().wait(60).result == "the second"
        (tmp_path / "own.py").write_text("def broken(:")
        assert "own cannot be imported: SyntaxError" in said("cannot be imported")
        said("waiting until a file is changed")
        (tmp_path / "own.py").write_text(PROGRAM.format("and the third"))
        said("a worker is running")
        assert tell.submit().wait(60).result == "and the third"
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
        app.close()
