"""What the page on moving says is run, and the memory that it promises is kept."""

import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

import milepost as mp
from milepost.store.binary import CHUNK, Column, Packer
from tests.support.databases import Backends, Database

PAGE = Path(__file__).parents[2] / "docs/how-to/move-to-postgresql.md"


def block(name: str) -> str:
    [found] = re.findall(rf"<!-- run: {name} -->\n```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def test_the_commands_of_the_page(newest: Database, backends: Backends, tmp_path: Path):
    app = mp.App(f"sqlite:///{tmp_path}/milepost.db")
    job = app.job(name="work")(lambda n: n).submit(1)
    app.close()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "REHEARSAL_URL": backends.fresh(newest.backend, empty=True).url,
        "NEW_DATABASE_URL": newest.url,
    }
    for name in ("rehearse", "move"):
        done = subprocess.run(
            ["bash", "-e", "-u", "-c", block(name)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert " rows in " in done.stdout
        assert "clean: 1 entries folded" in done.stdout
    there = mp.App(newest.url)
    assert there.jobs.get(job.id).state == "QUEUED"
    there.close()


def test_memory_does_not_grow_with_the_store():
    """Rows are packed as they are read, and sent some at a time."""
    row = (b"0" * 100_000, 1)
    packer = Packer("job", [Column("payload", "bytea"), Column("fence", "int8")])
    tracemalloc.start()
    try:
        sent = sum(map(len, packer.chunks(row for _ in range(1_000))))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sent > 100_000_000
    assert peak < 4 * CHUNK
    assert packer.sum.rows == 1_000


@pytest.mark.parametrize("kind", ["int4", "uuid", "int2", "text"])
def test_a_value_that_does_not_fit_is_named(kind: str):
    packer = Packer("job", [Column("id", "text"), Column("value", kind)])
    value = {"uuid": b"no", "text": 7}.get(kind, 2**40)
    with pytest.raises(
        mp.Invalid, match=rf"job\.value of the row that begins with b'a'.*no {kind}"
    ):
        list(packer.chunks([(b"a", value)]))
