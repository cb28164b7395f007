"""/v1/pipelines: starting, looking, and B's three fields."""

import asyncio

import pytest

import milepost as mp
from milepost.store import tables


class Stones(mp.Source):
    def count(self, window, low, high):
        return len([n for n in range(12) if low <= n < high])

    def fetch(self, window, partition, cursor):
        rows = [n for n in range(12) if partition.low <= n < partition.high]
        return mp.Page([{"id": n, "price": n} for n in rows])

    def map(self, raw):
        if raw["id"] == 5:
            raise mp.Reject("no fives")
        return raw


@pytest.fixture
def pipeline(app):
    return app.pipeline("stones", Stones(), key="id", partition_by="price", partitions=2)


async def test_a_pipeline_over_http(app, pipeline, api):
    [fresh] = (await api.get("/v1/pipelines")).json()["items"]
    assert (fresh["name"], fresh["watermark"], fresh["partitions"]) == ("stones", None, 2)
    answer = await api.post("/v1/pipelines/stones/runs", json={})
    assert answer.status_code == 202
    run_id = answer.json()["id"]
    again = await api.post("/v1/pipelines/stones/runs", json={"full": True})
    assert again.json()["id"] == run_id  # one at a time
    await app.drain_async(timeout=20)
    shown = (await api.get("/v1/pipelines/stones")).json()
    assert shown["watermark"]["lastRunId"] == run_id
    assert shown["watermark_state"] == "WatermarkAdvanced"
    assert (shown["quarantined"], shown["dataset_version"], shown["gaps"]) == (1, 1, 0)
    found = (await api.get(f"/v1/runs/{run_id}/partitions")).json()
    assert (found["mode"], found["counts"]["fetched"]) == ("full", 12)
    assert [part["records"] for part in found["partitions"]] == [6, 6]
    [listed] = (await api.get("/v1/pipelines/stones/runs")).json()["items"]
    assert listed["id"] == run_id
    [kept] = (await api.get("/v1/pipelines/stones/quarantine")).json()["items"]
    assert (kept["key"], kept["reason"]) == ("5", "no fives")
    backfill = {"since": "2024-01-01T00:00:00Z", "until": "2024-01-02T00:00:00Z"}
    answer = await api.post("/v1/pipelines/stones/runs", json=backfill)
    assert answer.status_code == 202
    await app.drain_async(timeout=20)
    mixed = await api.post("/v1/pipelines/stones/runs", json={**backfill, "full": True})
    assert mixed.status_code == 422
    assert (await api.get("/v1/pipelines/nothing")).status_code == 404


class Leaky(Stones):
    broken = True
    fives = False

    def fetch(self, window, partition, cursor):
        if self.broken and partition.ordinal == 1:
            raise mp.Fail("away")
        return super().fetch(window, partition, cursor)

    def map(self, raw):
        return raw if self.fives else super().map(raw)


async def test_h_76_a_failed_run_is_resumed_over_http(app, api):
    source = Leaky()
    pipeline = app.pipeline("leaky", source, key="id", partition_by="price", partitions=2)
    run_id = (await api.post("/v1/pipelines/leaky/runs", json={})).json()["id"]
    here = f"/v1/pipelines/leaky/runs/{run_id}"
    early = await api.post(f"{here}:resume")
    assert (early.status_code, "is under way" in early.text) == (409, True)
    await app.drain_async(timeout=20)
    assert await pipeline.watermark_async() is None

    source.broken = False
    elsewhere = await api.post(f"/v1/runs/{run_id}:resume")
    assert (elsewhere.status_code, "/v1/pipelines/" in elsewhere.text) == (409, True)
    once = {"Idempotency-Key": "go on"}
    resumed = await api.post(f"{here}:resume", headers=once)
    again = await api.post(f"{here}:resume", headers=once)
    assert (resumed.status_code, resumed.content) == (202, again.content), resumed.text
    await app.drain_async(timeout=20)
    new = await pipeline.run_async(resumed.json()["id"])
    assert (await new.refresh_async()).state == mp.RunState.SUCCEEDED
    windows = [
        {name: (await api.get(f"/v1/runs/{one}/partitions")).json()[name] for name in BOUNDS}
        for one in (run_id, new.id)
    ]
    assert windows[0] == windows[1]
    assert (await pipeline.watermark_async()).isoformat() == _spelled(windows[0]["until"])
    assert await pipeline.count_async() == 11
    late = await api.post(f"{here}:resume")
    assert (late.status_code, new.id in late.text) == (409, True)


BOUNDS = ("since", "until")
WAIT, AT_ONCE = {"Prefer": "wait=20"}, {"Prefer": "respond-async"}


def _spelled(text):
    return text.replace("Z", "+00:00")


async def test_force_retry_and_replay_over_http(app, api):
    source = Leaky()
    pipeline = app.pipeline("leaky", source, key="id", partition_by="price", partitions=2)
    run_id = (await api.post("/v1/pipelines/leaky/runs", json={})).json()["id"]
    await app.drain_async(timeout=20)
    here = f"/v1/pipelines/leaky/runs/{run_id}"

    once = {"Idempotency-Key": "now"}
    forced = await api.post(f"{here}:force", headers=once)
    again = await api.post(f"{here}:force", headers=once)
    assert (forced.status_code, forced.content) == (202, again.content)
    assert forced.headers["location"] == f"/v1/runs/{forced.json()['id']}"
    assert (await api.post(f"{here}:force")).status_code == 409  # one at a time
    # The same key, waited for: how it ended.
    _, ended = await asyncio.gather(
        app.drain_async(timeout=20), api.post(f"{here}:force", headers={**once, **WAIT})
    )
    assert (ended.status_code, ended.json()["done"]) == (200, True)
    assert ended.headers["preference-applied"] == "wait=20"
    assert (await pipeline.count_async(), await pipeline.watermark_async()) == (5, None)

    refused = await api.post(f"{here}:retry", json={"partition": 0})
    assert (refused.status_code, "only a failed one" in refused.text) == (409, True)
    assert (await api.post(f"{here}:retry", json={"partition": 7})).status_code == 404
    assert (await api.post(f"{here}:retry", json={"partition": -1})).status_code == 422
    source.broken = False
    retried = await api.post(f"{here}:retry", json={"partition": 1}, headers=AT_ONCE)
    assert (retried.status_code, retried.headers["preference-applied"]) == (202, "respond-async")
    await app.drain_async(timeout=20)
    assert await pipeline.count_async() == 11
    assert await pipeline.watermark_async() is not None

    source.fives = True
    told = {"json": {"keys": ["5"]}, "headers": AT_ONCE}
    replayed = await api.post("/v1/pipelines/leaky/quarantine:replay", **told)
    assert (replayed.status_code, replayed.headers["preference-applied"]) == (202, "respond-async")
    await app.drain_async(timeout=20)
    assert await pipeline.count_async() == 12
    empty = await api.post("/v1/pipelines/leaky/quarantine:replay")
    assert (empty.status_code, "is empty" in empty.text) == (409, True)


async def test_remap_over_http(app, api):
    class Shelf(Leaky):
        broken, fives, more = False, True, 0

        def map(self, raw):
            return {**super().map(raw), "more": self.more}

    source = Shelf()
    pipeline = app.pipeline("shelf", source, key="id", partition_by="price", partitions=2)
    early = await api.post("/v1/pipelines/shelf:remap")
    assert (early.status_code, "landed nothing" in early.text) == (409, True)
    await api.post("/v1/pipelines/shelf/runs", json={})
    await app.drain_async(timeout=20)
    source.more, source.broken = 7, True
    once = {"Idempotency-Key": "anew"}
    answers = [await api.post("/v1/pipelines/shelf:remap", headers=once) for _ in range(2)]
    assert (answers[0].status_code, answers[0].content) == (202, answers[1].content)
    assert (await api.post("/v1/pipelines/shelf/runs", json={})).status_code == 409
    await app.drain_async(timeout=20)
    run = (await api.get(answers[0].headers["location"])).json()
    assert (run["state"], run["done"]) == ("COMPLETE", True)
    assert {one["more"] async for one in pipeline.records_async()} == {7}
    assert (await api.get("/v1/pipelines/shelf")).json()["behind"] == 0


async def test_a_run_of_another_pipeline_is_not_found(app, api, pipeline):
    app.pipeline("others", Stones(), key="id", partition_by="price", table="other_stones")
    run_id = (await api.post("/v1/pipelines/stones/runs", json={})).json()["id"]
    assert (await api.post(f"/v1/pipelines/others/runs/{run_id}:force")).status_code == 404
    assert (await api.post(f"/v1/pipelines/stones/runs/{run_id}:force")).status_code == 409


class Shrinking(Stones):
    gone = 0

    def fetch(self, window, partition, cursor):
        rows = [n for n in range(self.gone, 12) if partition.covers(n)]
        return mp.Page([{"id": n, "price": n} for n in rows])

    def map(self, raw):
        return raw


@pytest.fixture
async def refused(app, api):
    """A source whose full run found five of twelve records gone: more than its limit."""
    source = Shrinking()
    app.pipeline("shrinking", source, key="id", partition_by="price", partitions=2, retries=0)
    await api.post("/v1/pipelines/shrinking/runs", json={})
    await app.drain_async(timeout=20)
    source.gone = 5
    run_id = (await api.post("/v1/pipelines/shrinking/runs", json={"full": True})).json()["id"]
    await app.drain_async(timeout=20)
    run = (await api.get(f"/v1/runs/{run_id}")).json()
    assert (run["state"], run["cause"]) == ("FAILED", "finalizer")
    return run_id


async def test_removals_are_listed_and_confirmed_over_http(app, api, refused):
    """H-84: who decided and why stays on the record; the next run removes them."""
    pipeline, here = app.pipelines["shrinking"], "/v1/pipelines/shrinking/removals"
    page = (await api.get(here, params={"limit": 3})).json()
    assert (page["keys"], page["next"], page["decisions"]) == (["0", "1", "2"], "2", [])
    page = (await api.get(here, params={"limit": 3, "after": "2"})).json()
    assert (page["keys"], page["next"]) == (["3", "4"], None)
    once = {"json": {"reason": "a branch closed"}, "headers": {"Idempotency-Key": "yes"}}
    confirmed = await api.post(f"{here}:confirm", **once)
    again = await api.post(f"{here}:confirm", **once)
    assert (confirmed.status_code, confirmed.content) == (200, again.content), confirmed.text
    assert confirmed.json() == {"decision": "confirmed", "records": 5}
    late = await api.post(f"{here}:confirm")
    assert (late.status_code, "no removal" in late.text) == (409, True)
    [decision] = (await api.get(here)).json()["decisions"]
    assert (decision["run_id"], decision["records"]) == (refused, 5)
    assert (decision["reason"], bool(decision["actor"])) == ("a branch closed", True)
    await api.post("/v1/pipelines/shrinking/runs", json={})
    await app.drain_async(timeout=20)
    assert await pipeline.count_async() == 7
    assert (await api.get(here)).json()["keys"] == []


async def test_removals_are_dismissed_over_http(app, api, refused):
    pipeline, here = app.pipelines["shrinking"], "/v1/pipelines/shrinking/removals"
    dismissed = await api.post(f"{here}:dismiss", json={"reason": "their page was broken"})
    assert (dismissed.status_code, dismissed.json()["records"]) == (200, 5)
    assert (await api.get(here)).json()["keys"] == []
    assert (await api.post(f"{here}:dismiss")).status_code == 409
    await api.post(f"/v1/pipelines/shrinking/runs/{refused}:resume")
    await app.drain_async(timeout=20)
    assert await pipeline.count_async() == 12
    assert await pipeline.watermark_async() is not None


async def test_a_decision_on_removals_that_cannot_be_meant_is_refused(api, pipeline):
    for decision in ("confirm", "dismiss"):
        for name, status in (("nothing", 404), ("stones", 404)):
            answer = await api.post(f"/v1/pipelines/{name}/removals:{decision}")
            assert answer.status_code == status, answer.text
        for wrong in ({"reason": ""}, {"reason": 7}, {"why": "x"}):
            answer = await api.post(f"/v1/pipelines/stones/removals:{decision}", json=wrong)
            assert answer.status_code == 422, answer.text
    assert (await api.get("/v1/pipelines/stones/removals")).json()["keys"] == []


async def test_a_table_is_released_over_http(app, api, pipeline):
    """Which pipeline has the table is known by the store; the one that wants it is declared."""
    await pipeline.start_async()
    busy = await api.post("/v1/pipelines/stones/table:release")
    assert busy.status_code == 404  # nothing has claimed it yet
    await app.drain_async(timeout=20)
    app.pipeline("gems", Stones(), key="id", partition_by="price", table="stones")
    refused = await api.post("/v1/pipelines/gems/runs", json={})
    assert (refused.status_code, "pipelines release stones" in refused.text) == (409, True)
    answer = await api.post("/v1/pipelines/gems/table:release", json={"reason": "a new name"})
    assert answer.json() == {"table": "stones", "pipeline": "stones"}
    late = await api.post("/v1/pipelines/gems/table:release")
    assert (late.status_code, "is free" in late.text) == (409, True)
    assert (await api.post("/v1/pipelines/gems/runs", json={})).status_code == 202
    await app.drain_async(timeout=20)
    [first, second] = await app.client.run_async(tables.holdings)
    assert (first.pipeline, first.reason, second.pipeline) == ("stones", "a new name", "gems")
    assert (await api.post("/v1/pipelines/no/table:release")).status_code == 404
    wrong = await api.post("/v1/pipelines/gems/table:release", json={"reason": ""})
    assert wrong.status_code == 422
