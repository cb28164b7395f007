"""`milepost pipelines`, from a prompt."""

import json
import os
import sys

import pytest

from milepost.cli import main
from milepost.config import store_url
from milepost.store import retention, workers
from milepost.store.connect import open_driver

PROGRAM = """
import bisect
from datetime import datetime, UTC
import msgspec
import milepost as mp

app = mp.App(sweep=0.05)
T0 = datetime(2024, 1, 1, tzinfo=UTC)

class Stone(msgspec.Struct):
    id: int
    price: int

class Stones(mp.Source):
    broken = {broken}
    def count(self, window, low, high):
        return len([n for n in range({stones}) if low <= n < high])
    def fetch(self, window, partition, cursor):
        rows = [n for n in range({stones}) if partition.low <= n < partition.high]
        if self.broken and partition.ordinal == 1:
            raise mp.Fail("no such range")
        return mp.Page([dict(id=n, price=n, updated_at=T0) for n in rows])
    def map(self, raw) -> Stone:
        if raw["id"] == 7 and {picky}:
            raise mp.Reject("no sevens")
        return Stone(raw["id"], raw["price"] * {mapping})

stones = app.pipeline("stones", Stones(), key="id", version="updated_at", partition_by="price",
                      partitions=2, mapping_version={mapping})
"""


@pytest.fixture
def program(tmp_path, monkeypatch, database):
    """Write an app into this folder; `run` drains it in between."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_DATABASE_URL", database.url)

    def write(*, broken=False, picky=False, stones=20, mapping=1):
        text = PROGRAM
        told = {"broken": broken, "picky": picky, "stones": stones, "mapping": mapping}
        for name, value in told.items():
            text = text.replace(f"{{{name}}}", str(value))
        (tmp_path / "stones.py").write_text(text)

    write()
    return write


def drain():
    import runpy

    space = runpy.run_path("stones.py")
    space["app"].drain(timeout=20)
    space["app"].close()


def sum_up():
    """Let all that happened become old history."""
    driver = open_driver(store_url(None, os.environ))
    driver.run(workers.advance_clock, 91 * 86_400)
    while driver.run(retention.sum_up, retention.Keep(1, 1), after=retention.FIRST, most=99).left:
        pass
    driver.close()


def milepost(capsys, *words, code=0):
    sys.modules.pop("stones", None)
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in ("pipelines", *words)])
    told = capsys.readouterr()
    assert (ended.value.code or 0) == code, told.err
    return told.out


def test_a_pipeline_from_its_plan_to_its_watermark(program, capsys, tmp_path):
    plan = json.loads(milepost(capsys, "plan", "stones.py", "stones", "--json"))
    assert (plan["counted"], len(plan["partitions"])) == (20, 2)
    assert sum(count for *_, count in plan["histogram"]) == 20
    assert "█" in milepost(capsys, "plan", "stones.py", "stones")
    run_id = milepost(capsys, "start", "stones.py", "stones").strip()
    drain()
    [listed] = json.loads(milepost(capsys, "ls", "--json"))
    assert (listed["pipeline"], listed["state"], listed["last_run"]) == (
        "stones",
        "SUCCEEDED",
        run_id,
    )
    shown = json.loads(milepost(capsys, "show", run_id, "--json"))
    assert (shown["B"], shown["counts"]["fetched"], len(shown["partitions"])) == (
        "Completed",
        20,
        2,
    )
    assert shown["watermark_state"] == listed["watermark_state"] == "WatermarkAdvanced"
    assert "partition" in milepost(capsys, "show", run_id)
    told = json.loads(milepost(capsys, "show", run_id, "--timeline", "--json"))
    states = [event["state"].split(" (")[0] for event in told]
    assert states[0] == "Created"
    assert states[-1] == "Completed"
    assert {
        "Heatmap Scanning",
        "WorkersRunning",
        "PartitionInProgress",
        "PartitionCompleted",
        "ConsolidationTriggered",
    } < set(states)
    assert "Consolidating" in milepost(capsys, "show", run_id, "--timeline")
    sum_up()
    summed = json.loads(milepost(capsys, "show", run_id, "--timeline", "--json"))
    ends = [event for event in told if "PartitionCompleted" in event["state"]]
    assert [event for event in summed if "PartitionCompleted" in event["state"]] == ends
    mark = json.loads(milepost(capsys, "watermark", "stones", "--json"))
    assert list(mark) == ["lastUpdatedAt", "lastRunId", "lastRunCompletedAt"]
    assert mark["lastRunId"] == run_id
    assert mark["lastUpdatedAt"].endswith("Z")
    milepost(capsys, "watermark", "stones", "--out", "watermark.json")
    assert json.loads((tmp_path / "watermark.json").read_text()) == mark


def test_a_watermark_is_set_by_hand_with_a_reason(program, capsys):
    milepost(capsys, "start", "stones.py", "stones", "--full")
    drain()
    milepost(capsys, "watermark", "stones", "--set", "2024-01-01T00:00:00Z", code=2)
    milepost(capsys, "watermark", "stones", "--set", "soon", "--reason", "x", code=2)
    given = ("--set", "2024-01-01T00:00:00Z", "--reason", "a year again", "--json")
    mark = json.loads(milepost(capsys, "watermark", "stones", *given))
    assert mark["lastUpdatedAt"] == "2024-01-01T00:00:00Z"
    moves = json.loads(milepost(capsys, "watermark", "stones", "--history", "--json"))
    assert [(move["move"], move["reason"]) for move in moves] == [
        ("advance", None),
        ("override", "a year again"),
    ]
    milepost(capsys, "watermark", "nothing", code=4)


def test_a_failed_run_is_forced_retried_and_resumed(program, capsys):
    program(broken=True)
    failed = milepost(capsys, "start", "stones.py", "stones").strip()
    drain()
    assert json.loads(milepost(capsys, "show", failed, "--json"))["cause"] == "incomplete"
    milepost(capsys, "start", "stones.py", "stones", "--force")
    drain()
    assert json.loads(milepost(capsys, "ls", "--json"))[0]["gaps"] == 1
    program()
    milepost(capsys, "retry", "stones.py", failed, 0, code=5)
    milepost(capsys, "retry", "stones.py", failed, 1)
    drain()
    [listed] = json.loads(milepost(capsys, "ls", "--json"))
    assert (listed["gaps"], listed["mode"]) == (0, "retry")
    program(broken=True)
    failed = milepost(capsys, "start", "stones.py", "stones", "--full").strip()
    drain()
    again = json.loads(milepost(capsys, "resume", failed, "--json"))
    assert again["resumes"] == failed
    milepost(capsys, "resume", failed, code=5)
    with pytest.raises(SystemExit) as ended:
        main(["runs", "resume", failed])
    assert ended.value.code == 5
    assert "pipelines resume" in capsys.readouterr().err


def test_the_quarantine_is_listed_and_replayed(program, capsys):
    program(picky=True)
    milepost(capsys, "start", "stones.py", "stones")
    drain()
    [kept] = json.loads(milepost(capsys, "quarantine", "ls", "stones", "--json"))
    assert (kept["key"], kept["reason"]) == ("7", "no sevens")
    assert json.loads(kept["payload"])["id"] == 7
    program()
    milepost(capsys, "quarantine", "replay", "stones.py", "stones")
    drain()
    assert json.loads(milepost(capsys, "quarantine", "ls", "stones", "--json")) == []
    milepost(capsys, "quarantine", "replay", "stones.py", "stones", code=5)


def test_records_behind_the_mapping_are_told_of_and_made_anew(program, capsys):
    milepost(capsys, "remap", "stones.py", "stones", code=5)  # nothing is landed
    milepost(capsys, "start", "stones.py", "stones")
    drain()
    program(mapping=2, stones=0)
    milepost(capsys, "start", "stones.py", "stones")
    drain()
    [listed] = json.loads(milepost(capsys, "ls", "--json"))
    assert (listed["mode"], listed["behind"]) == ("incremental", 20)
    with pytest.raises(SystemExit):
        main(["pipelines", "ls"])
    assert "20 records of stones are behind" in capsys.readouterr().err
    run = json.loads(milepost(capsys, "remap", "stones.py", "stones", "--json"))
    assert run["mode"] == "remap"
    drain()
    shown = json.loads(milepost(capsys, "show", run["id"], "--json"))
    assert (shown["state"], shown["counts"]["fetched"]) == ("SUCCEEDED", 20)
    told = json.loads(milepost(capsys, "show", run["id"], "--timeline", "--json"))
    assert told[-1]["detail"] == "watermark left alone"
    [listed] = json.loads(milepost(capsys, "ls", "--json"))
    assert (listed["mode"], listed["behind"]) == ("remap", 0)


def lose(program, capsys):
    """Let a full run miss more records than its limit allows; answer with its id."""
    program()
    milepost(capsys, "start", "stones.py", "stones", "--full")
    drain()
    program(stones=8)
    refused = milepost(capsys, "start", "stones.py", "stones", "--full").strip()
    drain()
    shown = json.loads(milepost(capsys, "show", refused, "--json"))
    assert (shown["state"], shown["cause"]) == ("FAILED", "finalizer")
    return refused


def waiting(capsys, *words):
    listed = json.loads(milepost(capsys, "removals", "ls", "stones", "--json", *words))
    return [row["key"] for row in listed]


def test_removals_are_listed_and_confirmed(program, capsys):
    """H-84: an operator decides at a prompt, and the next run does it."""
    assert milepost(capsys, "removals", "ls", "stones", code=4) == ""
    lose(program, capsys)
    keys = sorted(str(number) for number in range(8, 20))
    assert waiting(capsys) == keys
    assert waiting(capsys, "--limit", 2, "--after", keys[0]) == keys[1:3]
    assert keys[0] in milepost(capsys, "removals", "ls", "stones")
    told = ("confirm", "stones", "--reason", "a branch closed", "--json")
    decided = json.loads(milepost(capsys, "removals", *told))
    assert decided == {"pipeline": "stones", "decision": "confirmed", "records": 12}
    milepost(capsys, "removals", "confirm", "stones", code=5)
    run_id = milepost(capsys, "start", "stones.py", "stones").strip()
    drain()
    shown = json.loads(milepost(capsys, "show", run_id, "--json"))
    assert (shown["state"], shown["counts"]["removed"]) == ("SUCCEEDED", 12)
    assert waiting(capsys) == []


def test_removals_are_dismissed_until_a_full_run_misses_them_again(program, capsys):
    refused = lose(program, capsys)
    milepost(capsys, "removals", "dismiss", "stones", "--reason", "their page was broken")
    assert waiting(capsys) == []
    milepost(capsys, "removals", "dismiss", "stones", code=5)
    resumed = json.loads(milepost(capsys, "resume", refused, "--json"))["id"]
    drain()
    shown = json.loads(milepost(capsys, "show", resumed, "--json"))
    assert (shown["state"], shown["counts"]["removed"]) == ("SUCCEEDED", 0)
    milepost(capsys, "start", "stones.py", "stones", "--full")
    drain()
    assert len(waiting(capsys)) == 12
    for decision in ("confirm", "dismiss"):
        milepost(capsys, "removals", decision, "nothing", code=4)
        milepost(capsys, "removals", decision, "stones", "--reason", "", code=2)


def test_a_table_is_released_at_a_prompt_on_the_record(program, capsys):
    milepost(capsys, "release", "stones", code=4)
    program()
    milepost(capsys, "start", "stones.py", "stones")
    drain()
    milepost(capsys, "start", "stones.py", "stones")
    milepost(capsys, "release", "stones", code=5)  # a run writes to it
    drain()
    milepost(capsys, "release", "stones", "--reason", "", code=2)
    told = ("release", "STONES", "--reason", "it is called gems now", "--json")
    assert json.loads(milepost(capsys, *told)) == {"table": "STONES", "pipeline": "stones"}
    milepost(capsys, "release", "stones", code=5)
    [row] = json.loads(milepost(capsys, "tables", "--json"))
    assert (row["table"], row["pipeline"], row["reason"]) == (
        "stones",
        "stones",
        "it is called gems now",
    )
    assert row["actor"]
    assert "gems" in milepost(capsys, "tables")
