"""A store in a file, a database to move it to, and the command that does it."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from milepost.cli import main
from tests.support.databases import Backends, Database, backend_names

POSTGRES = [name for name in backend_names() if name.startswith("postgres")]


@pytest.fixture
def file(backends: Backends) -> Iterator[Database]:
    """A new store in a file."""
    made = backends.fresh("sqlite")
    yield made
    backends.drop(made)


@pytest.fixture(params=POSTGRES)
def server(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Database]:
    """An empty database on each server in turn."""
    made = backends.fresh(request.param, empty=True)
    yield made
    backends.drop(made)


@pytest.fixture(params=POSTGRES[:1])
def newest(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Database]:
    """An empty database on the newest server, where all versions do alike."""
    made = backends.fresh(request.param, empty=True)
    yield made
    backends.drop(made)


class Ended(dict[str, Any]):
    """What the command printed as JSON, and what else."""

    code: int
    said: str


Move = Callable[..., Ended]


@pytest.fixture
def move(capsys: pytest.CaptureFixture[str]) -> Move:
    """Move a store by the command; its document, exit code and messages come back."""

    def run(source: Database | str, target: Database | str) -> Ended:
        from_, to = (one if isinstance(one, str) else one.url for one in (source, target))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["move", "--from", from_, "--to", to, "--json"])
        printed = capsys.readouterr()
        ended = Ended(json.loads(printed.out or "{}"))
        ended.code, ended.said = int(end.value.code or 0), printed.err
        return ended

    return run
