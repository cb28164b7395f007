"""Batches within batches (H-68): a child run is an item of its parent, counted in as it ends."""

from collections.abc import Iterator

import httpx2
import pytest
from remote import Says

import milepost as mp
from milepost.observe.verify import verify
from milepost.request import batch as batches
from tests.support.serving import served

WORKING = Says(json={"status": "working"})
RULES = mp.Reply(state="$.status", complete=["done"], pending=["working"], failed=["error"])


@pytest.fixture
def http(app) -> Iterator[httpx2.Client]:
    with served(app) as where, httpx2.Client(base_url=where, trust_env=False, timeout=60) as client:
        yield client


def by_path(table):
    """Answer by what was asked for."""
    return lambda asked: table[asked.path] if asked.path in table else Says(json=asked.path)


def get(remote, *names):
    return [("GET", f"{remote.url}/{name}") for name in names]


def moves(run):
    return [entry.move for entry in run.history]


def test_h68_a_batch_within_a_batch_is_an_item_of_it(app, remote):
    """The parent is revalidated with each end; its message follows those of its children."""
    remote.answers = [by_path({"/final": Says(json={"invoice": 7})})]
    inner = {"batch": get(remote, "c"), "channel": "orders"}
    middle = {
        "batch": [*get(remote, "b"), inner],
        "channel": "orders",
        "final": ("POST", f"{remote.url}/final"),
    }
    batch = app.request_batch([*get(remote, "a"), middle], channel="orders")
    app.drain()

    assert batch.refresh().state == "SUCCEEDED"
    one, two = batch.responses()
    assert (one.ordinal, one.state, one.result, one.batch) == (0, "COMPLETE", "/a", False)
    assert (two.ordinal, two.state, two.result, two.batch) == (1, "COMPLETE", {"invoice": 7}, True)
    [child] = batch.batches()
    [grandchild] = child.batches()
    assert (child.id, child.record.parent_id) == (two.id, batch.id)
    assert grandchild.record.parent_id == child.id
    assert [response.result for response in grandchild.responses()] == ["/c"]
    assert moves(batch) == moves(grandchild) == ["create", "begin", "finish"]
    assert moves(child) == ["create", "begin", "finalize", "finish"]

    told = [message["data"] for message in app.channels.pull("orders").messages]
    assert [one["id"] for one in told] == [grandchild.id, child.id, batch.id]
    assert [one.get("parent_run") for one in told] == [child.id, batch.id, None]
    request, within = told[-1]["jobs"]
    assert (request["job_state"], request["result"]) == ("SUCCEEDED", "/a")
    assert (within["id"], within["ordinal"], within["state"]) == (child.id, 1, "COMPLETE")
    assert (within["run_state"], within["result"]) == ("SUCCEEDED", {"invoice": 7})
    assert told[-1]["jobs_left_out"] == 0


def test_a_lost_child_fails_its_parent_and_both_say_why(app, remote):
    remote.answers = [by_path({"/bad": Says(404)})]
    inner = {"batch": get(remote, "b", "bad"), "policy": mp.Collect()}
    batch = app.request_batch([*get(remote, "a"), inner], policy=mp.Collect(), channel="orders")
    app.drain()
    assert (batch.refresh().state, batch.record.cause) == ("FAILED", "policy")
    [_, lost] = batch.responses()
    assert (lost.state, lost.error.code, lost.batch) == ("FAIL", "policy", True)
    assert "1 of 2 jobs failed: request 1 (http_404)" in lost.error.message
    [error] = batch.errors
    assert (error.job_id, error.step, error.ordinal) == (lost.id, "batch", 1)
    assert error.message == lost.error.message
    assert batch.error_count == 1
    [message] = app.channels.pull("orders").messages
    assert message["data"]["jobs"][1]["error"]["message"] == lost.error.message
    why = message["data"]["error"]["message"]
    assert "batch 1 (policy): " in why
    assert "request 1 (http_404)" in why
    tolerant = app.request_batch([*get(remote, "a"), inner], policy=mp.Tolerate(0.5))
    app.drain()
    assert tolerant.refresh().state == "SUCCEEDED"


def test_a_cancelled_item_is_named_by_the_batch_that_fails_for_it(app, remote):
    """Nothing failed, so nothing was named: neither which item, nor why."""
    remote.answers = [by_path({"/slow": WORKING})]
    slow = {"url": f"{remote.url}/slow", "reply": RULES, "poll": 3600}
    outer = app.request_batch([*get(remote, "a"), {"batch": [slow]}], channel="orders")
    app.drain()
    [inner] = outer.batches()
    inner.cancel("not needed")
    plain = app.request_batch([*get(remote, "a"), slow], channel="orders")
    app.drain()
    [job] = app.jobs.list(state="WAITING")
    job.cancel("not needed")
    for batch in (outer, plain):
        assert batch.refresh().state == "FAILED"
        [error] = batch.errors
        assert (error.ordinal, error.type, error.code) == (1, "Cancelled", "cancelled")
        [_, lost] = batch.responses()
        assert lost.error.message == error.message
        assert error.message.endswith("not needed")
    told = [message["data"]["error"]["message"] for message in app.channels.pull("orders").messages]
    assert [text.partition("; ")[2] for text in told] == [
        "1 of 2 jobs were cancelled: batch 1 (cancelled): cancelled; not needed",
        "1 of 2 jobs were cancelled: request 1 (cancelled): not needed",
    ]


def test_cancel_and_resume_go_down(app, remote):
    """What succeeded stays where it is, at any depth; what did not is sent again."""
    remote.answers = [by_path({"/slow": WORKING})]
    slow = {"url": f"{remote.url}/slow", "reply": RULES, "poll": 3600}
    inner = {"batch": [*get(remote, "c"), slow]}
    batch = app.request_batch(
        [*get(remote, "a"), {"batch": [*get(remote, "b"), inner]}, {"batch": get(remote, "d")}]
    )
    app.drain()
    middle, right = batch.batches()
    [deep] = middle.batches()
    assert (batch.refresh().state, deep.state, right.state) == ("RUNNING", "RUNNING", "SUCCEEDED")
    assert batch.steps[0].counts == {"RUNNING": 1, "SUCCEEDED": 2}

    assert batch.cancel("enough") == "CANCELLED"
    assert [run.refresh().state for run in (middle, deep, right)] == [
        "CANCELLED",
        "CANCELLED",
        "SUCCEEDED",
    ]
    with pytest.raises(mp.IllegalMove, match=f"within run {middle.id}; resume that one"):
        deep.resume()

    remote.asked.clear()
    remote.answers = [by_path({"/slow": Says(json={"status": "done"})})]
    again = batches.RequestBatch(app.client, batch.resume().id)
    assert batch.resume().id == again.id
    app.drain()
    assert again.refresh().state == "SUCCEEDED"
    assert [asked.path for asked in remote.asked] == ["/slow"]
    assert sorted((r.ordinal, r.state, r.batch) for r in again.responses()) == [
        (0, "COMPLETE", False),
        (1, "COMPLETE", True),
        (2, "COMPLETE", True),
    ]
    kept, anew = again.batches()
    assert (kept.id, anew.record.resumes) == (right.id, middle.id)
    assert verify(app.client.driver).clean


def test_h58_a_tree_ends_once_wherever_the_worker_dies(small, remote):
    remote.answers = [by_path({})]
    begun = []

    def start():
        inner = {"batch": get(remote, "b"), "channel": "orders"}
        begun[:] = [small.request_batch([inner], channel="orders")]

    def check():
        [batch] = begun
        assert batch.refresh().state == "SUCCEEDED"
        [child] = batch.batches()
        assert moves(batch) == moves(child) == ["create", "begin", "finish"]
        told = [message["subject"] for message in small.channels.pull("orders").messages]
        assert told == [child.id, batch.id]

    assert mp.testing.crash_everywhere(small, start, check) >= 6


def nested(depth, item):
    for _ in range(depth):
        item = {"batch": [item]}
    return item


URL = "http://a.example"


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"batch": []}, r"items\[1\]\.batch: .* one request at least"),
        (nested(9, ("GET", URL)), r"^items\[1\](\.batch\[0\]){8}: batches stand at most 8"),
        ({"batch": [("GET", URL), {"batch": [{"url": "ftp://a"}]}]}, r"\.batch\[1\]\.batch\[0\]: "),
        (
            {"batch": [("GET", URL)], "queue": "q"},
            r"items\[1\]: .* channel, policy, final, not queue",
        ),
        ({"batch": "GET"}, r"items\[1\]: batch: a list"),
        ({"batch": [("GET", URL)], "policy": "hope"}, r"items\[1\]: .*mp.Collect"),
        ({"batch": [("GET", URL)], "final": {"url": "ftp://a"}}, r"items\[1\]: .*http"),
        ({"method": "GET"}, r"items\[1\]: .*method and url"),
        ({"batch": [("GET", URL)] * 10_001}, "10,000 requests in all, not 10,002"),
    ],
)
def test_an_invalid_item_is_named_by_its_path_and_nothing_is_stored(small, item, told):
    with pytest.raises(mp.Invalid, match=told):
        small.request_batch([("GET", URL), item])
    assert small.runs.list() == []


def test_a_tree_is_stored_by_one_transaction(small, remote, monkeypatch):
    """Of an iterator, batches stand among the first items: the others may be streamed by then."""
    monkeypatch.setattr(batches, "CHUNK", 3)
    remote.answers = [by_path({})]
    items = [*get(remote, *"abcde"), nested(8, get(remote, "f")[0])]
    batch = small.request_batch(items)
    assert {entry.move for run in small.runs.list() for entry in run.history} == {"create"}
    small.drain()
    assert batch.refresh().state == "SUCCEEDED"
    assert small.request_batch(iter(items[::-1])).state == "QUEUED"
    with pytest.raises(mp.Invalid, match="give them as a list"):
        small.request_batch(iter(items))


def test_a_tree_over_http(app, http, remote):
    remote.answers = [by_path({"/bad": Says(404)})]
    one, bad = ({"url": f"{remote.url}/{name}"} for name in ("a", "bad"))
    inner = {"batch": [one, bad], "policy": 0.5, "channel": "orders", "final": one}
    new = {"requests": [one, {"batch": [inner]}]}
    headers = {"Idempotency-Key": "once"}
    posted = [http.post("/v1/batches", json=new, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in posted] == [202, 202]
    assert len(app.runs.list()) == 3
    where = posted[1].headers["location"]
    shown = http.get(where).json()
    assert [(r["ordinal"], r["state"]) for r in shown["responses"]] == [
        (0, "PENDING"),
        (1, "PENDING"),
    ]

    app.drain()
    shown = http.get(where).json()
    assert (shown["state"], shown["next"]) == ("COMPLETE", None)
    [request, child] = shown["responses"]
    assert (request["job_state"], child["run_state"], child["state"]) == (
        "SUCCEEDED",
        "SUCCEEDED",
        "COMPLETE",
    )
    found = http.get(f"/v1/requests/{child['id']}").json()
    assert (found["parent_run"], found["responses"][0]["run_state"]) == (shown["id"], "SUCCEEDED")
    [message] = app.channels.pull("orders").messages
    assert message["data"]["parent_run"] == child["id"]


def test_over_http_an_invalid_item_is_a_422_that_names_its_path(small):
    deepest = "requests[1]" + ".batch[0]" * 8
    refused = [
        ({"batch": []}, "requests.1.batch.batch"),
        ({"batch": [{"url": URL}], "queue": "q"}, "requests.1.batch.queue"),
        ({"batch": [{"url": URL, "odd": 1}]}, "requests.1.batch.batch.0.request.odd"),
        (nested(9, {"url": URL}), f"{deepest}: batches stand at most 8"),
        ({"batch": [{"batch": [{"url": URL}] * 500}] * 2}, "1,001 in all"),
        ("GET", "requests.1"),
        (7, "requests.1"),
        ({"batch": {"batch": [{"url": URL}]}}, "requests.1.batch.batch"),
    ]
    with served(small) as where, httpx2.Client(base_url=where, trust_env=False, timeout=60) as http:
        for item, told in refused:
            answer = http.post("/v1/requests:batch", json={"requests": [{"url": URL}, item]})
            assert answer.status_code == 422, answer.text
            assert told in answer.json()["detail"]
    assert small.runs.list() == []
