"""`archive`: entries are on the disk, with checksums, before they leave the journal (E)."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
from test_retention import DAY, a_run, claimed, ended, entries, moves, settle, there

import milepost as mp
from milepost import outcome
from milepost.cli import main
from milepost.client import new_id
from milepost.observe.verify import verify, verify_archive
from milepost.records import NewJob, Settlement, Template
from milepost.store import archive, creation, failpoint, jobs, retention, timers, workers

pytestmark = pytest.mark.in_turn

KEPT = {"keep_succeeded": "1d", "keep_failed": "2d", "keep_history": "3d"}
CRASHES = [
    "archive:written",
    "archive:listed",
    "before:retention_forget_entries",
    "after:retention_forget_entries",
]
MAINTAIN = """
import sys
import milepost as mp
kept = {"keep_succeeded": "1d", "keep_failed": "2d", "keep_history": "3d"}
mp.App(sys.argv[1], archive=sys.argv[2], **kept).maintain_once()
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "archive"


@pytest.fixture
def app(database, folder):
    made = mp.App(database.url, **KEPT, archive=str(folder))
    yield made
    made.close()


def later(app, days):
    app.client.run(workers.advance_clock, days * DAY)
    return app.maintain_once()


def found(folder):
    findings = verify_archive(folder)
    assert [str(problem) for problem in findings.problems] == []
    return findings.histories, findings.entries


def archived(folder, subject_id):
    """Name the moves that the archive's files have of a subject, in any order, each once."""
    read = [entry for path in folder.glob("*/*.jsonl") for entry in archive.read(path)]
    return sorted({(e.seq, e.move) for e in read if e.subject == subject_id})


def files(folder):
    return sorted(folder.glob("*/*.jsonl"))


def problems(folder):
    return [problem.text for problem in verify_archive(folder).problems]


# Written, and then gone


def test_entries_are_in_the_archive_when_they_have_left(app, folder, raw):
    job_id, run_id = ended(app, "SUCCEEDED"), a_run(app, 2)
    later(app, 2)
    assert raw.value("SELECT count(*) FROM journal") == 0
    assert archived(folder, job_id) == [(1, "create"), (2, "claim"), (3, "succeed")]
    assert archived(folder, run_id)[0] == (1, "create")
    histories, count = found(folder)
    assert (histories, count > 9) == (4, True)
    [week] = folder.iterdir()
    assert week.name == archive.week(job_id)
    sums = (week / archive.SUMS).read_text().splitlines()
    assert sums == [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in files(folder)
    ]


def test_a_line_tells_all_that_the_journal_knew(app, folder, database):
    job_id = ended(app)
    [first, *_] = app.jobs.get(job_id).history
    later(app, 2)
    line = json.loads(files(folder)[0].read_text().splitlines()[0])
    assert (line["machine"], line["subject"], line["seq"]) == ("job", job_id, 1)
    assert (line["from_state"], line["to_state"], line["fence"]) == (None, first.to_state, 0)
    assert line["at"] == first.at.isoformat().replace("+00:00", "Z")
    assert line["db_user"] == first.db_user


def test_entries_that_are_kept_are_archived_when_they_leave(database, folder, raw):
    app = mp.App(database.url, **KEPT, archive=str(folder), keep_audit="10d")
    job_id = ended(app)
    later(app, 2)
    assert (there(app, job_id), entries(raw, job_id), folder.exists()) == ([], 3, False)
    later(app, 9)
    assert (entries(raw, job_id), found(folder)) == (0, (1, 3))
    app.close()


def test_a_history_that_is_summed_up_is_whole_in_the_archive(app, folder, database):
    """What is summed up leaves the journal as well; its summary does not take its place."""
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    for _ in range(3):
        app.client.run(jobs.settle, [Settlement(claimed(app), outcome.later(0))], actor="w")
        app.client.run(timers.wake, actor="m", most=10)
        later(app, 4)
    assert moves(app, job_id) == ["snapshot"]
    assert len(archived(folder, job_id)) >= 10
    settle(app, claimed(app), "SUCCEEDED")
    later(app, 2)
    assert there(app, job_id) == []
    assert found(folder) == (1, 12)
    with database.driver() as driver:
        assert verify(driver).problems == []


def test_no_history_is_summed_up_beyond_the_archive(app, folder, raw):
    """Another worker may have summed up, and so what comes next is not archived yet."""
    [job_id] = app.client.run(creation.create, [NewJob(new_id(), b"{}", Template(kind="k"))])
    app.client.run(jobs.settle, [Settlement(claimed(app), outcome.later(0))], actor="w")
    app.client.run(workers.advance_clock, 4 * DAY)
    keep = retention.Keep(DAY, DAY, 3 * DAY)
    look = {"after": retention.FIRST, "most": 9}
    with pytest.raises(retention.NotArchivedError):
        app.client.run(retention.sum_up, keep, **look, archived={job_id: 2})
    assert moves(app, job_id)[0] == "create"
    assert app.client.run(retention.sum_up, keep, **look, archived={}).left == 0
    assert app.client.run(retention.sum_up, keep, **look, archived={job_id: 3}).left == 1


# Crashes


@pytest.mark.parametrize("point", CRASHES)
def test_a_crash_between_write_and_delete_loses_nothing(app, database, folder, raw, point):
    ids = [ended(app) for _ in range(3)]
    app.client.run(workers.advance_clock, 2 * DAY)
    killed = subprocess.run(
        [sys.executable, "-c", MAINTAIN, database.url, str(folder)],
        env={**os.environ, "MILEPOST_FAILPOINTS": f"{point}=exit"},
        check=False,
        timeout=120,
    )
    assert killed.returncode == failpoint.EXIT_CODE
    assert raw.value("SELECT count(*) FROM job") == 0
    assert [entries(raw, job_id) for job_id in ids] == [3] * 3, "nothing has left"
    assert found(folder) == (3, 9), "and all is archived"
    ids.append(ended(app))  # the next batch is another
    later(app, 2)
    assert raw.value("SELECT count(*) FROM journal") == 0
    assert found(folder) == (4, 12), "each entry is taken once"


def test_a_crash_in_the_middle_of_a_file_leaves_none(app, folder, raw, monkeypatch):
    job_id = ended(app)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(archive.os, "fsync", full)
        later(app, 2)
    assert (entries(raw, job_id), files(folder)) == (3, [])
    other = mp.App(app.client.url.address, **KEPT, archive=str(folder))
    other.maintain_once()
    assert (entries(raw, job_id), found(folder)) == (0, (1, 3))
    other.close()


def test_a_torn_line_in_the_list_of_checksums_does_no_harm(app, folder):
    ended(app)
    later(app, 2)
    [week] = folder.iterdir()
    with (week / archive.SUMS).open("a") as sums:
        sums.write("3f0a")
    ended(app)
    later(app, 2)
    assert len(archive.listed(week)) == 2
    assert found(folder) == (2, 6)


# Tampering


@pytest.fixture
def kept(app, folder):
    """An archive of three histories."""
    for _ in range(3):
        ended(app)
    later(app, 2)
    return folder


def test_a_changed_file_is_found(kept):
    [path] = files(kept)
    path.write_bytes(path.read_bytes().replace(b'"succeed"', b'"fail"', 1))
    told = problems(kept)
    assert "it was changed: its checksum is another" in told
    assert len(told) == 2, "and a history does not follow"


def test_a_removed_file_is_found(kept):
    files(kept)[0].unlink()
    assert problems(kept) == ["it is listed, and not there"]


def test_a_gap_in_a_history_is_found_though_the_checksum_fits(kept):
    [path] = files(kept)
    lines = path.read_bytes().splitlines(keepends=True)
    data = b"".join(lines[:1] + lines[2:])
    path.unlink()
    (path.parent / archive.SUMS).unlink()
    (path.parent / f"{hashlib.sha256(data).hexdigest()}.jsonl").write_bytes(data)
    assert problems(kept) == ["its history is broken: entry 3 follows entry 1"]


def test_an_entry_that_is_told_in_two_ways_is_found(kept):
    [path] = files(kept)
    data = path.read_bytes().splitlines(keepends=True)[0].replace(b'"actor":', b'"actor":"x","_":')
    (path.parent / f"{hashlib.sha256(data).hexdigest()}.jsonl").write_bytes(data)
    assert problems(kept) == ["entry 1 is told in two ways"]


def told(capsys, *words):
    with pytest.raises(SystemExit) as ended_with:
        main([*words])
    return ended_with.value.code, capsys.readouterr().out


def test_the_command_reads_an_archive_without_a_store(kept, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    code, said = told(capsys, "verify", "--archive", str(kept))
    assert (code, said) == (0, "clean: 1 files checked, 9 entries of 3 histories folded\n")
    code, said = told(capsys, "verify", "--archive", str(kept), "--json")
    assert (code, json.loads(said)["histories"]) == (0, 3)
    files(kept)[0].unlink()
    code, said = told(capsys, "verify", "--archive", str(kept))
    assert (code, "listed, and not there" in said) == (1, True)


def test_a_folder_that_is_not_there_is_no_clean_archive(folder):
    with pytest.raises(mp.Invalid, match="is not a folder"):
        verify_archive(folder)
    folder.mkdir()
    with pytest.raises(mp.Invalid, match="holds no weeks"):
        verify_archive(folder)
