"""A pipeline as its users meet it: declared, started, read again, asked."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum

import msgspec
import pytest
from diamond_shop import OPTIONS, T0, Diamond, Shop, go, held, offered

import milepost as mp


def test_the_first_run_is_full_and_the_next_reads_what_changed(app, shop, pipeline):
    assert pipeline.watermark is None
    first = go(app, pipeline.start())
    assert (first.state, first.mode) == (mp.RunState.SUCCEEDED, "full")
    assert held(pipeline) == offered(shop)
    counts = first.counts
    assert (counts.counted, counts.fetched, counts.new) == (30, 30, 30)
    assert pipeline.watermark == first.window.end
    shop.put(3, price=77)
    shop.put(99, price=5)
    second = go(app, pipeline.start())
    assert (second.state, second.mode) == (mp.RunState.SUCCEEDED, "incremental")
    assert second.window.start == first.window.end - timedelta(seconds=900)
    assert (second.counts.new, second.counts.changed, second.counts.fetched) == (1, 1, 2)
    assert held(pipeline) == offered(shop)
    assert pipeline.watermark > first.window.end
    assert pipeline.dataset_version == 2


def test_counts_are_reconciled_and_read_like_a_dict(app, pipeline):
    run = go(app, pipeline.start())
    counts = run.counts
    assert counts["fetched"] == counts.new + counts.changed + counts.unchanged
    assert dict(counts)["new"] == 30
    with pytest.raises(KeyError):
        counts["nothing"]
    assert run.report["counts"]["fetched"] == 30
    assert run.report["mode"] == "full"


def test_h_61_a_source_without_records_is_read_and_recorded(app, shop):
    shop.data.clear()
    pipeline = app.pipeline("empty", shop, **OPTIONS)
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED
    assert (run.counts.fetched, len(run.partitions)) == (0, 1)
    assert pipeline.watermark == run.window.end
    assert [s.name for s in run.steps] == ["plan", "fetch", "consolidate", "finalize"]


def test_records_without_a_key_to_cut_by_have_a_partition_of_their_own(app, shop):
    shop.nullable = True
    shop.put(500, price=None, at=T0)
    pipeline = app.pipeline("nullable", shop, **OPTIONS)
    run = go(app, pipeline.start())
    assert held(pipeline) == offered(shop)
    assert [part.low for part in run.partitions][-1] is None
    assert len(run.partitions) == 4


def test_a_backfill_leaves_the_watermark_alone(app, shop, pipeline):
    go(app, pipeline.start())
    before = pipeline.watermark
    shop.data[2]["price"] = 1234  # changed without a new time: only a backfill finds it
    shop.data[20]["price"] = 4321
    run = pipeline.start(since=T0, until=T0 + timedelta(minutes=10))
    go(app, run)
    assert (run.state, run.mode, run.counts.fetched) == (mp.RunState.SUCCEEDED, "backfill", 10)
    assert held(pipeline)[2] == 1234
    assert held(pipeline)[20] == 200
    assert pipeline.watermark == before


def test_h_86_rules_are_pinned_to_the_run(app, shop):
    class Priced(Shop):
        margin = 2

        def __init__(self, count):
            super().__init__(count)
            self.given: list = []

        def rules(self):
            return {"margin": self.margin}

        def enrich(self, records, rules):
            self.given.append(rules["margin"])
            self.margin = 3  # a change in the middle of the run
            for record in records:
                record.price = record.price * rules["margin"]
            return records

    priced = Priced(30)
    pipeline = app.pipeline("priced", priced, **OPTIONS, batch=5)
    go(app, pipeline.start())
    assert len(priced.given) > 1
    assert set(priced.given) == {2}
    assert held(pipeline)[10] == 200
    # A full run with other rules prices records again that did not change.
    run = go(app, pipeline.start(full=True))
    assert (run.counts.unchanged, held(pipeline)[10]) == (30, 300)


def test_asynchronous_methods_are_awaited(app):
    class Async(Shop):
        async def count(self, window, low, high):
            return super().count(window, low, high)

        async def fetch(self, window, partition, cursor):
            return super().fetch(window, partition, cursor)

        async def map(self, raw: dict) -> Diamond:
            return super().map(raw)

        async def enrich(self, records, rules):
            return records

    shop = Async(20)
    pipeline = app.pipeline("async", shop, **OPTIONS)
    assert go(app, pipeline.start()).state == mp.RunState.SUCCEEDED
    assert held(pipeline) == offered(shop)


async def test_every_call_has_an_asynchronous_twin(app, shop, pipeline):
    run = await pipeline.start_async()
    await app.drain_async(timeout=20)
    await run.refresh_async()
    assert (await run.counts_async()).fetched == 30
    assert len(await run.partitions_async()) == 3
    assert await pipeline.watermark_async() == await pipeline.watermark_async()
    assert await pipeline.watermark_state_async() == "WatermarkAdvanced"
    assert await pipeline.count_async() == 30
    assert len([record async for record in pipeline.records_async()]) == 30
    assert await pipeline.quarantine.list_async() == []
    plan = await pipeline.plan_async(full=True)
    assert plan.counted == 30
    await pipeline.override_watermark_async(T0, reason="again")
    assert await pipeline.watermark_async() == T0
    await app.close_async()


class Cut(StrEnum):
    ROUND = "round"


class Everything(msgspec.Struct):
    id: str
    price: float
    updated_at: datetime
    is_new: bool
    weight: Decimal
    cut: Cut
    stones: list[int]
    image: bytes
    note: str | None


def test_the_target_is_made_from_the_records_type(app, raw):
    class Rich(Shop):
        def map(self, raw: dict) -> Everything:
            return Everything(
                str(raw["id"]), 1.5, T0, True, Decimal("0.10"), Cut.ROUND, [1, 2], b"\0x", None
            )

    pipeline = app.pipeline("rich-things", Rich(3), **OPTIONS)
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED, run.errors
    [first, *_] = pipeline.records()
    assert first == Everything("0", 1.5, T0, True, Decimal("0.10"), Cut.ROUND, [1, 2], b"\0x", None)
    assert raw.value("SELECT count(*) FROM rich_things") == 3


def test_columns_are_added_when_the_type_grows(database, raw):
    class Small(msgspec.Struct):
        id: int

    class Little(Shop):
        def map(self, raw: dict) -> Small:
            return Small(raw["id"])

    app = mp.App(database.url)
    go(app, app.pipeline("stones", Little(3), **OPTIONS).start())
    app.close()
    app = mp.App(database.url)
    pipeline = app.pipeline("stones", Shop(3), **OPTIONS)
    go(app, pipeline.start(full=True))
    shop = pipeline.source
    shop.put(1, price=11)
    go(app, pipeline.start())
    assert raw.execute("SELECT id, price FROM stones WHERE id = 1") == [(1, 11)]
    app.close()


def test_a_field_that_the_table_lacks_yet_is_not_read_as_its_own_name(database):
    """SQLite takes a quoted name that is no column for a text."""

    class Named(msgspec.Struct):
        id: int
        title: str | None = None

    class Titled(Shop):
        def map(self, raw: dict) -> Named:
            return Named(raw["id"], f"no. {raw['id']}")

    app = mp.App(database.url)
    go(app, app.pipeline("stones", Shop(3), **OPTIONS).start())
    app.close()
    app = mp.App(database.url)
    pipeline = app.pipeline("stones", Titled(3), **OPTIONS)
    with pytest.raises(mp.Invalid, match="no column title yet"):
        list(pipeline.records())
    assert pipeline.count() == 3
    go(app, pipeline.remap())
    assert [one.title for one in pipeline.records()] == ["no. 0", "no. 1", "no. 2"]
    app.close()


def test_a_table_of_somebody_elses_is_left_alone(app, shop, raw):
    raw.execute("CREATE TABLE theirs (id integer)")
    pipeline = app.pipeline("ours", shop, **OPTIONS, table="theirs")
    run = go(app, pipeline.start())
    assert (run.state, run.record.cause) == (mp.RunState.FAILED, "plan")
    assert "no pipeline's" in run.errors[0].message


def test_records_without_a_type_are_kept_as_documents_and_that_is_said_loudly(app, capsys):
    class Loose(Shop):
        def map(self, raw):
            return raw

    shop = Loose(4)
    pipeline = app.pipeline("loose", shop, **OPTIONS)
    said = capsys.readouterr().err
    assert "map() has no return type with fields" in said
    assert "YourRecord" in said
    go(app, pipeline.start())
    assert {r["id"]: r["price"] for r in pipeline.records()} == offered(shop)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"partitions": 0}, "partitions=0"),
        ({"overlap": -1}, "overlap"),
        ({"rate": "fast"}, "25/s"),
        ({"quarantine_limit": 2}, "share"),
        ({"table": "a b"}, "table"),
        ({"colour": "red"}, "pipeline 'wrong' takes no colour; it takes batch, "),
        ({"key": None}, "key"),
        ({"queue": None}, "queue"),
    ],
)
def test_an_invalid_option_is_refused_when_it_is_declared(app, shop, changed, said):
    with pytest.raises(mp.Invalid, match=said):
        app.pipeline("wrong", shop, **{**OPTIONS, **changed})


def test_declarations_that_collide_are_refused(app, shop, pipeline):
    with pytest.raises(mp.Invalid, match="declared twice"):
        app.pipeline("diamonds", shop, **OPTIONS)
    with pytest.raises(mp.Invalid, match=r"mp\.Source"):
        app.pipeline("other", object(), **OPTIONS)
    with pytest.raises(mp.Invalid, match="before until"):
        pipeline.start(since=T0, until=T0)
    with pytest.raises(mp.Invalid, match="time zone"):
        pipeline.start(since=datetime(2024, 1, 1))  # noqa: DTZ001
    with pytest.raises(mp.Invalid, match="leave out"):
        pipeline.start(full=True, since=T0)


def test_a_source_that_counts_by_a_sequence(app):
    class Log(Shop):
        measure = "sequence"
        top = 100

        def upper_bound(self):
            return self.top

        def put(self, number, *, price=100, at=None, **more):
            self.data[number] = {"id": number, "price": price, "seq": number, "updated_at": T0}

        def matching(self, window, low, high):
            rows = list(self.data.values())
            return sorted(
                (r["price"], r["id"])
                for r in rows
                if low <= r["price"] < high and window.covers(r["seq"])
            )

    shop = Log(50)
    pipeline = app.pipeline("log", shop, **{**OPTIONS, "version": "seq"}, overlap=10)
    run = go(app, pipeline.start())
    assert (run.window.end, pipeline.watermark) == (100, 100)
    shop.put(120)
    shop.top = 130
    run = go(app, pipeline.start())
    assert (run.window.start, run.window.end) == (90, 130)
    assert (run.counts.new, pipeline.watermark) == (1, 130)


def test_a_preview_counts_and_keeps_nothing(app, shop, pipeline):
    plan = pipeline.plan()
    assert (plan.counted, len(plan.partitions)) == (30, 3)
    assert sum(count for *_, count in plan.histogram) == 30
    assert app.runs.list() == []


def test_a_run_that_was_looked_up_is_a_run_like_any_other(app, pipeline):
    run = go(app, pipeline.start())
    same = app.runs.get(run.id)
    assert same.as_spec("B") == "Completed"
    assert pipeline.run(run.id).counts.fetched == 30
    with pytest.raises(mp.NotFound):
        pipeline.run("018f0000-0000-7000-8000-000000000001")


def test_a_cancelled_run_moves_nothing(app, shop, pipeline):
    run = pipeline.start()
    run.cancel("wrong source")
    go(app, run)
    assert run.state == mp.RunState.CANCELLED
    assert pipeline.watermark is None
    assert datetime.now(UTC) > T0
