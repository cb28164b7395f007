"""A prompt: commands run in this process on each store, and what they print and exit with."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import milepost as mp
from milepost.cli import main

APP = """
import milepost as mp

app = mp.App()


@app.job(retries=2, retry_delay=0)
def convert(document: str, *, format: str = "pdf") -> str:
    return f"{document}.{format}"


@app.job(retries=0)
def refuse(ctx: mp.Context, size: int) -> None:
    raise mp.Fail(f"{size} is too large")
"""


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def prompt(capsys):
    """Run a command; its exit code, data and messages come back."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()  # what a worker said before
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        code = ended.value.code
        return Answer(0 if code is None else code, captured.out, captured.err)

    return run


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """A newcomer's folder, with an app in it and no store yet."""
    (tmp_path / "newcomer.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("MILEPOST_DATABASE_URL", raising=False)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def here(folder, monkeypatch, database) -> Path:
    """The same, with each store in turn named in the environment."""
    monkeypatch.setenv("MILEPOST_DATABASE_URL", database.url)
    return folder


@pytest.fixture
def app(here, database):
    """The same app, loaded the way commands load it."""
    from milepost.cli.values import load_app

    loaded: mp.App = load_app("newcomer:app")
    yield loaded
    loaded.close()
