"""The import of FHIR patients: what it prints, what a run leaves, and a crash at every commit."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from demo import is_complete

import milepost as mp
from fhir_import import (
    Import,
    Patient,
    Report,
    SearchIndex,
    importer,
    is_sound,
    make_patients,
    parsed,
)

EXAMPLE = Path(__file__).parent


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "patients"


@pytest.fixture
def app(milepost_app):
    return milepost_app


def moves_of(job):
    return [entry.move for entry in job.history]


def test_the_example_runs_as_it_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("MILEPOST_DATABASE_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "app.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = (EXAMPLE / "README.md").read_text().split("```text\n")[1].split("```")[0]
    assert done.stdout == told


def test_every_sound_file_is_imported_once(app, folder):
    make_patients(folder, 60)
    run = importer(app).start(Import(folder=str(folder)))
    app.drain(timeout=60)
    assert run.refresh().state == mp.RunState.SUCCEEDED
    sound = [f"patient-{number:04}" for number in range(1, 61) if is_sound(number)]
    assert SearchIndex(str(folder)).names() == sound
    assert run.report == Report(57, {"female": 28, "male": 28, "unknown": 1}, 1931)
    assert [error.message.split()[0] for error in run.errors] == [
        *("patient-0029.json", "patient-0041.json", "patient-0058.json"),
    ]
    jobs = {kind: app.jobs.list(kind=f"import-patients.{kind}") for kind in ("parse", "indexed")}
    assert sum("retry" in moves_of(job) for job in jobs["parse"]) == 4  # files 13, 26, 39, 52
    assert (
        sum("later" in moves_of(job) for job in jobs["indexed"]) == 57 - 20
    )  # all but every third
    assert all("wake" in moves_of(job) for job in jobs["indexed"])  # created waiting


def test_a_folder_with_too_many_broken_files_is_refused(app, folder):
    make_patients(folder, 4)
    (folder / "patient-0002.json").write_text("{")
    run = importer(app).start(Import(folder=str(folder)))
    app.drain(timeout=60)
    assert (run.refresh().state, run.record.cause) == (mp.RunState.FAILED, "policy")
    assert not (folder / "index.db").exists()  # the gate stayed shut


def test_an_empty_folder_is_reported_too(app, folder):
    run = importer(app).start(Import(folder=str(folder)))
    app.drain(timeout=60)
    assert run.refresh().report == Report(0, {}, None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"resourceType": "Pati', "is broken: JSONDecodeError"),
        ("[]", "is broken: TypeError"),
        ('{"resourceType": "Observation"}', "holds no Patient: Observation"),
        ('{"resourceType": "Patient", "id": "x", "name": []}', "is broken: IndexError"),
    ],
)
def test_a_broken_file_is_refused_with_a_reason(tmp_path, text, told):
    path = tmp_path / "patient-0001.json"
    path.write_text(text)
    with pytest.raises(mp.Fail, match=told):
        parsed(path)


def test_putting_a_patient_again_changes_nothing(tmp_path):
    index = SearchIndex(str(tmp_path))
    patient = Patient("patient-0002", "Levin", "female", 1932, str(tmp_path))
    index.put(patient)
    assert [index.can_find(patient.id) for _ in range(2)] == [False, False]
    index.put(patient)
    assert index.can_find(patient.id)


def test_the_demonstration_imports_what_can_be_imported(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "demo.py"), "--patients", "60"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCEEDED 100%: find 1/1, parse 60/60 (3 failed), index 57/57" in done.stderr
    assert "57 patients: 28 female, 28 male, 1 unknown; 3 files were refused" in done.stdout
    assert "Of 60 files 57 can be imported; the search index holds 57." in done.stdout
    assert "clean" in done.stdout
    assert list(tmp_path.iterdir()) == []  # it leaves nothing behind


def test_the_demonstration_sees_what_was_not_imported(app, folder):
    make_patients(folder, 3)
    run = importer(app).start(Import(folder=str(folder)))
    app.drain(timeout=60)
    assert is_complete(run.refresh(), folder, 3)
    assert not is_complete(run, folder, 4)
    with closing(sqlite3.connect(folder / "index.db", isolation_level=None)) as index:
        index.execute("DELETE FROM document WHERE id = 'patient-0002'")
    assert not is_complete(run, folder, 3)


def test_a_crash_at_any_commit_loses_no_patient_and_imports_none_twice(folder):
    """H-56, H-65: outputs appear with the end of their producer, the report is about all."""
    app = mp.App()
    batch = importer(app)

    def start():
        shutil.rmtree(folder, ignore_errors=True)
        make_patients(folder, 1)
        batch.start(Import(folder=str(folder)))

    def check():
        [run] = app.runs.list()
        assert run.report == Report(1, {"male": 1}, 1931)
        assert SearchIndex(str(folder)).names() == ["patient-0001"]

    assert mp.testing.crash_everywhere(app, start, check) > 10
