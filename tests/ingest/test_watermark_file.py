"""`watermark_file=`: B's three fields as JSON, written after the commit, again until it is done."""

import json
import time
from threading import Thread

import fsspec
from diamond_shop import OPTIONS, go

import milepost as mp
from milepost.client import new_id


def test_each_advance_is_written_as_bs_three_fields(app, shop, tmp_path):
    path = tmp_path / "watermark.json"
    pipeline = app.pipeline("filed", shop, **OPTIONS, watermark_file=str(path))
    first = go(app, pipeline.start())
    told = json.loads(path.read_text())
    assert list(told) == ["lastUpdatedAt", "lastRunId", "lastRunCompletedAt"]
    assert (told, told["lastRunId"]) == (pipeline.row.document(), first.id)
    second = go(app, pipeline.start())
    assert json.loads(path.read_text())["lastRunId"] == second.id
    assert [one.name for one in tmp_path.iterdir() if one.suffix != ".db"].count(path.name) == 1


def test_a_file_that_could_not_be_written_is_written_by_a_later_attempt(
    app, database, shop, tmp_path
):
    path = tmp_path / "later" / "watermark.json"
    named = {"watermark_file": str(path), "retry_delay": 0.1}
    pipeline = app.pipeline("later", shop, **OPTIONS, **named)
    errors = "SELECT count(*) FROM job WHERE kind = 'later.watermark' AND errors > 0"

    def make_folder():
        with database.raw() as raw:
            while not raw.value(errors):
                time.sleep(0.05)
        path.parent.mkdir()

    maker = Thread(target=make_folder, daemon=True)
    maker.start()
    run = go(app, pipeline.start())
    maker.join()
    assert run.state == mp.RunState.SUCCEEDED
    assert json.loads(path.read_text()) == pipeline.row.document()


def test_an_address_is_written_to_by_fsspec(app, shop):
    place = f"memory://{new_id()}/watermark.json"
    pipeline = app.pipeline("far", shop, **OPTIONS, watermark_file=place)
    go(app, pipeline.start())
    with fsspec.open(place) as written:
        assert json.load(written) == pipeline.row.document()
