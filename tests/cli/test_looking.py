"""Commands that only look change nothing: not the file, not its mode, not its folder."""

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import milepost as mp

LOOKS = [
    ("jobs", "ls"),
    ("runs", "ls"),
    ("batches", "ls"),
    ("queues", "ls"),
    ("schedules", "ls"),
    ("workers",),
    ("verify",),
    ("migrate", "--sql"),
    ("config", "show"),
]
LOOKS_AT_ONE = [("jobs", "show"), ("jobs", "history"), ("jobs", "wait"), ("explain",)]
ACTS = [("jobs", "cancel", "0"), ("jobs", "rerun", "0"), ("queues", "pause", "default")]


def name_of(words) -> str:
    return " ".join(words)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def quiet_store(tmp_path, monkeypatch) -> str:
    """A store that nobody has open, with one finished job in it; its id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("MILEPOST_DATABASE_URL", raising=False)
    app = mp.App("sqlite:///milepost.db")
    job = app.job(_work).submit()
    app.drain()
    app.close()
    return job.id


def _work() -> int:
    return 1


def test_looking_at_a_store_leaves_no_trace(quiet_store, tmp_path, prompt, subtests):
    before = contents(tmp_path)
    assert sorted(before) == ["milepost.db"]
    for words in LOOKS + LOOKS_AT_ONE:
        with subtests.test(words=name_of(words)):
            answer = prompt(*words, *([quiet_store] if words in LOOKS_AT_ONE else []))
            assert answer.code == 0, answer.err
            assert contents(tmp_path) == before


def test_what_a_killed_worker_left_is_read_and_stays(quiet_store, tmp_path, prompt, subtests):
    """Commits that stand in the -wal alone are seen, and stay there."""
    app = mp.App("sqlite:///milepost.db")
    queued = app.job(name="later")(_work).submit()
    left = tmp_path / "left"
    left.mkdir()
    for ending in ("", "-wal"):
        shutil.copy(f"milepost.db{ending}", left / f"copy.db{ending}")
    app.close()
    before = contents(left)
    for words in LOOKS + LOOKS_AT_ONE:
        with subtests.test(words=name_of(words)):
            folder = tmp_path / name_of(words)
            shutil.copytree(left, folder)
            one = [queued.id, *(["--timeout", "0"] if words[-1] == "wait" else [])]
            asked = one if words in LOOKS_AT_ONE else []
            answer = prompt(*words, "--store", f"sqlite:///{folder}/copy.db", *asked)
            assert answer.code == (124 if words[-1] == "wait" else 0), answer.err
            after = contents(folder)
            assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("words", [w for w in LOOKS if w[0] != "config"] + ACTS, ids=name_of)
@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_something_else_is_named_and_not_touched(words, mode, tmp_path, prompt):
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    before = contents(tmp_path)
    answer = prompt(*words, "--store", f"sqlite:///{tmp_path}/shop.db")
    assert contents(tmp_path) == before
    if words[0] == "migrate":
        assert "CREATE TABLE job" in answer.out
        return
    assert answer.code == 75
    assert "has the tables of something else (orders)" in answer.err
    assert f"`milepost migrate --store sqlite:///{tmp_path}/shop.db`" in answer.err


@pytest.mark.parametrize("words", [("jobs", "ls"), ("verify",), ACTS[0]], ids=name_of)
@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "has no tables"), (b"a shopping list\n" * 20, "is no SQLite database")],
    ids=["empty", "text"],
)
def test_a_file_that_is_no_store_is_named_and_not_touched(words, content, told, tmp_path, prompt):
    file = tmp_path / "thing.db"
    file.write_bytes(content)
    answer = prompt(*words, "--store", f"sqlite:///{file}")
    assert answer.code == 75
    assert told in answer.err
    assert contents(tmp_path) == {"thing.db": content}


def test_a_folder_is_told_from_a_file(tmp_path, prompt):
    answer = prompt("jobs", "ls", "--store", f"sqlite:///{tmp_path}")
    assert answer.code == 75
    assert "cannot be read: Is a directory" in answer.err


LOOK_AS_NOBODY = """
import contextlib, io, os, sys
from milepost.cli import main
if os.getuid() == 0:
    # Once before the rights are gone: nobody may not be allowed to read the modules.
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([*sys.argv[2:], "--store", sys.argv[1]])
    os.setgid(65534)
    os.setuid(65534)
main(sys.argv[2:])
"""


def look_without_rights(readable: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LOOK_AS_NOBODY, f"sqlite:///{readable}", *words],
        capture_output=True,
        text=True,
        cwd="/",
        timeout=60,
        check=False,
    )


@pytest.fixture
def read_only():
    """A folder that is there to be read, whoever runs the tests."""
    # Not pytest's own: nobody else may even enter that.
    folder = Path(tempfile.mkdtemp(prefix="milepost-read-only-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_store_on_a_read_only_medium_can_be_looked_at(quiet_store, tmp_path, read_only):
    shutil.copy(tmp_path / "milepost.db", read_only)
    (read_only / "milepost.db").chmod(0o444)
    read_only.chmod(0o555)
    before = contents(read_only)
    store = f"sqlite:///{read_only}/milepost.db"
    listed = look_without_rights(tmp_path / "milepost.db", "jobs", "ls", "--store", store)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert quiet_store in listed.stdout
    verified = look_without_rights(tmp_path / "milepost.db", "verify", "--store", store)
    assert verified.stdout.startswith("clean")
    assert contents(read_only) == before


def test_commits_that_cannot_be_read_there_are_not_left_out_silently(
    quiet_store, tmp_path, read_only
):
    app = mp.App("sqlite:///milepost.db")
    app.job(name="later")(_work).submit()
    for ending in ("", "-wal"):
        shutil.copy(tmp_path / f"milepost.db{ending}", read_only)
        (read_only / f"milepost.db{ending}").chmod(0o444)
    app.close()
    read_only.chmod(0o555)
    store = f"sqlite:///{read_only}/milepost.db"
    done = look_without_rights(tmp_path / "milepost.db", "jobs", "ls", "--store", store)
    assert (done.returncode, done.stdout) == (75, "")
    assert "has commits in its -wal file that cannot be read" in done.stderr
    assert "copy both files to a folder of your own" in done.stderr
