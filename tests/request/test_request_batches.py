"""Batches of requests (spec C): counted in by each request's own transaction, one end for all."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from remote import Says

import milepost as mp
from milepost.request import batch as batches

WORKING, DONE = Says(json={"status": "working"}), Says(json={"status": "done"})
RULES = mp.Reply(state="$.status", complete=["done"], pending=["working"], failed=["error"])


def by_path(table):
    """Answer by what was asked for."""
    return lambda asked: table[asked.path] if asked.path in table else Says(json=asked.path)


def ended(app, batch):
    app.drain()
    return batch.refresh()


def test_c_two_requests_one_after_the_other(app, remote):
    """C's second diagram: revalidated with each request, and complete with the last."""
    remote.answers = [by_path({})]
    batch = app.request_batch([("GET", f"{remote.url}/a"), ("GET", f"{remote.url}/b")])
    assert batch.as_spec("C") == "IDLE"

    assert ended(app, batch).state == "SUCCEEDED"
    assert batch.as_spec("C") == "COMPLETE"
    assert [(r.ordinal, r.state, r.result) for r in batch.responses()] == [
        (0, "COMPLETE", "/a"),
        (1, "COMPLETE", "/b"),
    ]
    assert [entry.move for entry in batch.history] == ["create", "begin", "finish"]


def test_h61_an_empty_batch_is_all_done(app, remote):
    batch = ended(app, app.request_batch([], channel="orders"))
    assert batch.state == "SUCCEEDED"
    assert batch.record.channel == "orders"
    assert list(batch.responses()) == []


def test_h59_the_first_failure_stops_the_rest(app, remote):
    remote.answers = [by_path({"/bad": Says(404), "/slow": WORKING})]
    batch = app.request_batch(
        [
            {"method": "GET", "url": f"{remote.url}/bad"},
            {"method": "GET", "url": f"{remote.url}/slow", "reply": RULES, "poll": 3600},
        ]
    )
    app.drain(timeout=5)
    assert (batch.refresh().state, batch.as_spec("C")) == ("FAILED", "FAIL")
    states = {r.ordinal: (r.state, r.error.type) for r in batch.responses()}
    assert states[0] == ("FAIL", "RequestFailed")
    assert states[1][0] == "FAIL"


def test_h59_collect_hears_everyone_first(app, remote):
    remote.answers = [by_path({"/bad": Says(404)})]
    urls = [("GET", f"{remote.url}/{name}") for name in ("bad", "a", "b")]
    batch = ended(app, app.request_batch(urls, policy=mp.Collect()))
    assert batch.state == "FAILED"
    assert [r.state for r in batch.responses()] == ["FAIL", "COMPLETE", "COMPLETE"]
    assert next(batch.responses()).error.code == "http_404"


def test_tolerate_bears_a_share(app, remote):
    remote.answers = [by_path({"/bad": Says(404)})]
    urls = [("GET", f"{remote.url}/{name}") for name in ("bad", "a", "b", "c")]
    assert ended(app, app.request_batch(urls, policy=mp.Tolerate(0.25))).state == "SUCCEEDED"
    assert ended(app, app.request_batch(urls, policy=mp.Tolerate(0.2))).state == "FAILED"


def test_h68_the_batchs_own_call_comes_last_and_is_its_report(app, remote):
    remote.answers = [by_path({"/final": Says(json={"invoice": 7})})]
    batch = app.request_batch(
        [("GET", f"{remote.url}/a"), ("GET", f"{remote.url}/b")],
        final={"method": "POST", "url": f"{remote.url}/final"},
    )
    assert ended(app, batch).report == {"invoice": 7}
    assert [asked.path for asked in remote.asked][-1] == "/final"
    told = {"batch": batch.id, "requests": 2, "complete": 2, "failed": 0}
    assert remote.asked[-1].json() == told
    moves = [entry.move for entry in batch.history]
    assert moves == ["create", "begin", "finalize", "finish"]


@pytest.mark.parametrize("bad", [(), ("bad",)])
def test_h52_h58_one_message_holds_every_response(app, remote, bad):
    remote.answers = [by_path({"/bad": Says(404)})]
    urls = [("GET", f"{remote.url}/{name}") for name in ("a", "b", *bad)]
    batch = ended(app, app.request_batch(urls, channel="orders", policy=mp.Collect()))

    [message] = app.channels.pull("orders").messages
    told = message["data"]
    assert (told["id"], told["state"]) == (batch.id, "FAIL" if bad else "COMPLETE")
    assert [child.get("result") for child in told["jobs"]][:2] == ["/a", "/b"]
    assert [child["state"] for child in told["jobs"]] == ["COMPLETE"] * 2 + ["FAIL"] * len(bad)


def test_h58_a_batch_ends_once_wherever_the_worker_dies(small, remote):
    remote.answers = [by_path({})]
    begun = []

    def start():
        urls = [("GET", f"{remote.url}/{name}") for name in "ab"]
        begun[:] = [small.request_batch(urls, channel="orders")]

    def check():
        [batch] = begun
        assert batch.refresh().state == "SUCCEEDED"
        assert [response.result for response in batch.responses()] == ["/a", "/b"]
        assert [entry.move for entry in batch.history] == ["create", "begin", "finish"]
        assert len(small.channels.pull("orders").messages) == 1

    assert mp.testing.crash_everywhere(small, start, check) >= 6


def test_a_final_call_that_fails_fails_the_batch(app, remote):
    remote.answers = [by_path({"/final": Says(400)})]
    final = ("POST", f"{remote.url}/final", {"json": {"own": "body"}})
    batch = ended(app, app.request_batch([("GET", f"{remote.url}/a")], final=final))
    assert (batch.state, batch.record.cause) == ("FAILED", "finalizer")
    assert remote.asked[-1].json() == {"own": "body"}


def test_what_is_common_holds_for_those_that_say_nothing_else(small, remote):
    remote.answers = [by_path({})]
    small.request_batch(
        [("GET", remote.url), {"url": remote.url, "headers": {"X-Own": "2"}}],
        common={"headers": {"X-Common": "1"}, "retries": 7},
    )
    small.drain()
    assert Counter(a.headers.get("x-common") for a in remote.asked) == {"1": 1, None: 1}
    assert {job.record.retries for job in small.jobs.list()} == {7}


def test_a_large_batch_is_filled_piece_by_piece(small, remote, monkeypatch):
    """Its requests are never in memory all at once: they are taken from an iterator as they fit."""
    monkeypatch.setattr(batches, "CHUNK", 10)
    waiting = []

    def items():
        for number in range(35):
            stored = sum(small.counts().get("default", {}).values())
            waiting.append(number - stored)
            yield ("GET", f"{remote.url}/{number}")

    remote.answers = [by_path({})]
    batch = ended(small, small.request_batch(items()))
    assert batch.state == "SUCCEEDED"
    assert [r.result for r in batch.responses()] == [f"/{n}" for n in range(35)]
    assert max(waiting) <= 11


@pytest.mark.both_stores
@pytest.mark.parametrize("chunk", [10, 3])
def test_requests_of_a_batch_start_at_their_time_however_large_it_is(
    app, remote, advance, monkeypatch, chunk
):
    monkeypatch.setattr(batches, "CHUNK", chunk)
    remote.answers = [by_path({})]
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    batch = app.request_batch(
        [
            ("GET", f"{remote.url}/now"),
            *(("GET", f"{remote.url}/{n}", {"start_in": 60}) for n in range(3)),
            ("GET", f"{remote.url}/tomorrow", {"start_at": tomorrow}),
        ]
    )
    app.drain()
    assert [asked.path for asked in remote.asked] == ["/now"]
    assert [job.state for job in app.jobs.list()].count("WAITING") == 4
    advance(61)
    app.drain()
    assert len(remote.asked) == 4
    advance(86_400)
    app.drain()
    assert batch.refresh().state == "SUCCEEDED"
    assert [r.result for r in batch.responses()] == ["/now", "/0", "/1", "/2", "/tomorrow"]


def stored(record):
    """All that is stored of a job or a run, but what tells it and its way from others."""
    apart = {"id", "run_id", "created_at", "move", "version"}
    told = {name: getattr(record, name) for name in record.__struct_fields__ if name not in apart}
    for name in {"due_at", "deadline_at"} & told.keys():
        told[name] = told[name] and round((told[name] - record.created_at).total_seconds())
    return told


def test_a_large_batch_stores_its_requests_as_a_small_one_does(small, remote, monkeypatch):
    rates = mp.Limit(2, name="two", rate="9/s", burst=9)
    options = {"start_in": 60, "deadline": 90, "priority": 3, "queue": "slow", "retries": 7}
    options |= {"poll_limit": 5, "tags": {"a": "b"}, "channel": "c", "crash": "fail_unknown"}
    options |= {"recoveries": 2, "limit": rates, "limit_key": "k", "units": 2}
    items = [("GET", remote.url, options)] * 4 + [("GET", remote.url)]
    made = []
    for chunk in (10, 3):
        monkeypatch.setattr(batches, "CHUNK", chunk)
        batch = small.request_batch(items, deadline=99, tags={"x": "y"}, channel="d", priority=2)
        found = [job.record for job in small.jobs.list() if job.record.run_id == batch.id]
        in_order = sorted(found, key=lambda record: record.ordinal)
        made.append((stored(batch.refresh().record), [stored(record) for record in in_order]))
    assert made[0] == made[1]
    _, [first, *_] = made[0]
    assert (first["state"], first["due_at"], first["deadline_at"]) == ("WAITING", 60, 90)


def test_a_batch_with_a_wrong_request_sends_nothing(small, remote, monkeypatch):
    monkeypatch.setattr(batches, "CHUNK", 10)
    for count in (3, 25):
        wrong = [("GET", remote.url)] * count + [("GET", "ftp://a.example")]
        with pytest.raises(mp.Invalid, match="http"):
            small.request_batch(wrong)
    small.drain()
    assert remote.asked == []
    assert {run.state for run in small.runs.list()} == {"CANCELLED"}


@pytest.mark.parametrize(
    ("items", "asked", "told"),
    [
        ([{"method": "GET"}], {}, "method and url"),
        (["http://a.example"], {}, "method and url"),
        ([("GET", "http://a.example", 3)], {}, "method and url"),
        ([{"url": "http://a.example", "unique": "x"}], {}, "takes no unique"),
        ([], {"policy": "hope"}, "mp.Collect"),
        ([], {"final": {"url": "gopher://a"}}, "http"),
        ([], {"deadline": -1}, "deadline"),
        ([], {"priority": 11}, "priority"),
    ],
)
def test_what_cannot_be_meant_is_refused(small, items, asked, told):
    with pytest.raises(mp.Invalid, match=told):
        small.request_batch(items, **asked)


def test_resume_sends_again_what_did_not_succeed_and_remembers_its_policy(app, remote):
    remote.answers = [by_path({"/bad": Says(404)})]
    urls = [{"url": f"{remote.url}/{n}", "crash": "fail_unknown"} for n in ("good", "bad")]
    batch = ended(app, app.request_batch(urls, policy=mp.Collect()))
    remote.asked.clear()
    remote.answers = [by_path({})]
    again = batch.resume()
    app.drain()
    assert again.refresh().state == "SUCCEEDED"
    assert [asked.path for asked in remote.asked] == ["/bad"]
    handle = batches.RequestBatch(app.client, again.id)
    assert sorted(r.result for r in handle.responses()) == ["/bad", "/good"]
    [job] = [job for job in app.jobs.list() if job.record.rerun_of is not None]
    assert job.record.policy == "fail_unknown"


def test_a_rerun_remembers_its_policy(app, remote):
    job = app.request("POST", remote.url, crash="fail_unknown")
    app.drain()
    assert job.refresh().rerun(fresh=True).record.policy == "fail_unknown"


async def test_the_asynchronous_twin_of_a_batch(small, remote, monkeypatch):
    monkeypatch.setattr(batches, "CHUNK", 2)
    remote.answers = [by_path({})]
    batch = await small.request_batch_async([("GET", f"{remote.url}/{n}") for n in range(5)])
    await small.drain_async()
    assert (await batch.refresh_async()).state == "SUCCEEDED"
    assert [r.result async for r in batch.responses_async()] == [f"/{n}" for n in range(5)]
    await small.close_async()
