"""Spec B as its reader would try it: a feed of diamonds, its partitions, runs and watermark."""

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx2
import msgspec
import pytest

import milepost as mp
from tests.support.databases import everyday_names
from tests.support.serving import served
from tests.support.spec_pages import SPECS

T0 = datetime(2024, 1, 16, tzinfo=UTC)
PAGE = 30
MINUTE = 60
NEWEST = next((name for name in everyday_names() if name.startswith("postgres")), None)
PHASES = [
    "ValidatingRun",
    "LoadingPricingRules",
    "FetchingRawBatch",
    "ProcessingBatch",
    "MappingDiamonds",
    "ApplyingPricing",
    "UpsertingBatch",
    "MarkingConsolidated",
    "UpdatingRunMetadata",
    "AdvancingWatermark",
]


class Diamond(msgspec.Struct):
    id: int
    price: float
    updated_at: datetime


class Nivoda(mp.Source):
    """A supplier of diamonds that are read in the order of (price, id), a page at a time.

    `broken` are errors by the lowest price of a partition and how many pages were read before.
    """

    def __init__(self, count):
        self.stock = {}
        self.probes, self.pages, self.broken = 0, Counter(), {}
        self.meanwhile, self.planning = lambda place: None, lambda: None
        for number in range(count):
            self.put(number, at=T0 + timedelta(seconds=number))

    def put(self, number, *, at):
        self.stock[number] = {"id": number, "price": number * 10, "updated_at": at.isoformat()}

    def _rows(self, window, low, high):
        found = [d for d in self.stock.values() if low <= d["price"] < high]
        moved = [d for d in found if window.covers(datetime.fromisoformat(d["updated_at"]))]
        return sorted(moved, key=lambda d: (d["price"], d["id"]))

    def count(self, window, low, high):
        self.probes += 1
        self.planning()
        return len(self._rows(window, low, high))

    def fetch(self, window, partition, cursor):
        at = cursor or 0
        self.meanwhile("fetch")
        errors = self.broken.get((partition.ordinal, at))
        if errors:
            raise errors.pop(0)
        self.pages[partition.ordinal, at] += 1
        rows = self._rows(window, partition.low, partition.high)
        after = at + partition.page
        return mp.Page(rows[at:after], after if after < len(rows) else None)

    def map(self, raw) -> Diamond:
        self.meanwhile("map")
        return msgspec.convert(raw, Diamond)

    def enrich(self, records, rules):
        return [msgspec.structs.replace(one, price=one.price * rules["factor"]) for one in records]

    def rules(self):
        return {"factor": 2}


@pytest.fixture
def nivoda():
    return Nivoda(180)


@pytest.fixture
def diamonds(app, nivoda, tmp_path):
    """Three partitions of sixty diamonds, two pages each."""
    return app.pipeline(
        "diamonds",
        nivoda,
        key="id",
        version="updated_at",
        partition_by="price",
        partitions=3,
        page=PAGE,
        overlap=0,
        retries=1,
        retry_delay=MINUTE,
        channel="ops",
        watermark_file=str(tmp_path / "watermark.json"),
    )


def go(app, run):
    app.drain(timeout=20)
    return run.refresh()


def metadata(raw, run):
    """B's row of a run, by its columns."""
    columns = (
        "run_type, expected_workers, completed_workers, failed_workers,"
        " watermark_before, watermark_after, completed_at"
    )
    [row] = raw.execute(f"SELECT {columns} FROM run_metadata WHERE run_id = '{run.id}'")
    return dict(zip(columns.replace(",", "").split(), row, strict=True))


def alerts(app):
    return [event["data"].get("alert") for event in app.channels.pull("ops").messages]


def test_the_first_run_is_full_and_completes_with_its_watermark(app, diamonds, nivoda, raw):
    """Completed: N workers, 0 failed, completed_at, watermark_after; all diamonds in the table."""
    assert (diamonds.watermark, diamonds.watermark_state) == (None, "NoWatermark")
    run = diamonds.start()
    assert run.as_spec("B") == "Created"
    created = metadata(raw, run)
    assert (created["run_type"], created["completed_workers"], created["failed_workers"]) == (
        "full",
        0,
        0,
    )
    assert (created["watermark_before"], created["completed_at"]) == (None, None)

    assert go(app, run).as_spec("B") == "Completed"

    ended = metadata(raw, run)
    assert (ended["expected_workers"], ended["completed_workers"]) == (3, 3)
    assert ended["failed_workers"] == 0
    assert ended["completed_at"] is not None
    assert ended["watermark_after"] is not None
    assert {one.id: one.price for one in diamonds.records()} == {n: n * 20 for n in range(180)}
    assert diamonds.watermark_state == "WatermarkAdvanced"
    assert all(count == 1 for count in nivoda.pages.values())


def test_the_next_run_is_incremental_from_the_watermark(app, diamonds, nivoda, raw):
    """watermarkBefore = lastUpdatedAt; runType = 'incremental'; only updated diamonds."""
    first = go(app, diamonds.start())
    nivoda.put(7, at=first.window.end + timedelta(microseconds=1))
    second = go(app, diamonds.start())
    told = metadata(raw, second)
    assert told["run_type"] == "incremental"
    assert told["watermark_before"] == metadata(raw, first)["watermark_after"]
    assert (second.counts.fetched, second.counts.changed) == (1, 1)
    assert second.window.start == first.window.end


def test_the_states_of_a_run_and_of_its_partitions_are_bs(app, diamonds, nivoda):
    """Created → WorkersRunning → Consolidating → Completed; PartitionPending → … → Completed."""
    seen = {"fetch": set(), "map": set()}
    partitions = set()

    def look(place):
        if place == "map" and seen["map"]:
            return
        seen[place].add(app.runs.get(run.id).as_spec("B"))
        if place == "fetch":
            partitions.update(words())

    def words():
        return {app.jobs.get(one.job_id).as_spec("B") for one in run.partitions}

    run = diamonds.start()
    nivoda.planning = lambda: app.queues.pause("default")
    app.drain()
    assert words() == {"PartitionPending"}
    nivoda.meanwhile = look
    app.queues.resume("default")
    assert go(app, run).as_spec("B") == "Completed"
    assert seen == {"fetch": {"WorkersRunning"}, "map": {"Consolidating"}}
    assert {"PartitionInProgress", "PartitionFetchingPages"} <= partitions
    assert words() == {"PartitionCompleted"}


def test_the_ten_phases_of_consolidating_are_on_the_record(app, nivoda):
    """ValidatingRun → … → MarkingConsolidated → FetchingRawBatch: More records exist → …."""
    options = {"key": "id", "partition_by": "price", "partitions": 3, "page": PAGE}
    stones = app.pipeline("stones", nivoda, **options, batch=100, consolidators=1)
    assert go(app, stones.start()).as_spec("B") == "Completed"
    jobs = sorted(app.jobs.list(limit=1000), key=lambda job: job.created_at)
    notes = [entry.detail for job in jobs for entry in job.history if entry.move == "note"]
    told = [phase for phase in notes if phase in PHASES]
    assert list(dict.fromkeys(told)) == PHASES
    assert told.count("ProcessingBatch") >= 2, "a hundred records at most in each"


def test_a_partition_goes_on_at_its_next_page_after_an_error(app, diamonds, nivoda, raw, advance):
    """Worker can restart mid-partition; Idempotency via nextOffset CAS."""
    nivoda.broken[1, PAGE] = [ConnectionError("away")]
    run = diamonds.start()
    app.drain()
    assert run.refresh().as_spec("B") == "WorkersRunning", "who ended first waits for the others"
    assert metadata(raw, run)["completed_workers"] == 2
    query = f"SELECT next_offset, completed FROM partition_progress WHERE run_id = '{run.id}'"
    assert [bool(done) for _, done in raw.execute(f"{query} ORDER BY partition_id")] == [
        True,
        False,
        True,
    ]
    advance(MINUTE)
    assert go(app, run).as_spec("B") == "Completed"
    assert all(count == 1 for count in nivoda.pages.values()), "no page was read twice"
    assert metadata(raw, run)["completed_workers"] == 3
    workers = raw.execute(
        "SELECT status, records_processed FROM worker_runs"
        f" WHERE run_id = '{run.id}' ORDER BY partition_id"
    )
    assert [status for status, _ in workers] == ["completed"] * 3, "one worker_run per partition"
    assert sum(records for _, records in workers) == 180


@pytest.fixture
def failed(app, diamonds, nivoda, advance):
    """A run whose second partition fails, as the last of all, after its first page."""
    nivoda.broken[1, PAGE] = [ConnectionError("away"), ConnectionError("Nivoda is closed")]
    run = diamonds.start()
    app.drain()
    advance(MINUTE)
    return go(app, run)


def test_a_failed_worker_skips_consolidation(app, diamonds, nivoda, failed, raw):
    """failedWorkers > 0 → ConsolidationSkipped → Failed: Alert sent, watermark NOT advanced."""
    assert failed.as_spec("B") == "Failed"
    told = metadata(raw, failed)
    assert (told["completed_workers"], told["failed_workers"]) == (2, 1)
    assert (told["completed_at"], told["watermark_after"]) == (None, None)
    assert diamonds.watermark is None
    assert diamonds.count() == 0
    assert any("ConsolidationSkipped" in (entry.detail or "") for entry in failed.history)

    [alert] = alerts(app)
    assert alert["title"] == "Consolidation Failed"
    assert alert["text"] == f"Run {failed.id} failed. Watermark NOT advanced."

    [worker] = raw.execute(
        "SELECT partition_id, records_processed, error_message FROM worker_runs"
        f" WHERE run_id = '{failed.id}' AND status = 'failed'"
    )
    assert app.jobs.get(failed.partitions[1].job_id).as_spec("B") == "PartitionFailed"
    assert worker[:2] == ("partition-1", PAGE)
    assert "Nivoda is closed" in worker[2]


def test_a_failed_run_is_resumed_without_loss(app, diamonds, nivoda, failed):
    """Failed run: Watermark unchanged, next run re-processes, no data loss, idempotent upserts."""
    again = go(app, failed.resume())
    assert again.as_spec("B") == "Completed"
    assert again.window == failed.window
    assert diamonds.count() == 180
    assert diamonds.watermark == failed.window.end
    assert all(count == 1 for count in nivoda.pages.values())
    assert failed.refresh().as_spec("B") == "Failed", "the old one stays as it ended"


def test_force_consolidates_what_there_is_and_leaves_the_watermark(app, diamonds, failed, raw):
    """IF failedWorkers > 0 AND force != true → Skip consolidation; H-15, H-74."""
    forced = go(app, diamonds.start(force=True))
    assert forced.as_spec("B") == "Completed"
    read = sum(one.records for one in failed.partitions)
    assert PAGE < diamonds.count() == read < 180, "all but the page that could not be read"
    assert diamonds.watermark is None
    assert metadata(raw, forced)["run_type"] in ("full", "incremental")
    assert go(app, diamonds.start()).as_spec("B") == "Completed"
    assert diamonds.count() == 180


def test_a_watermark_that_cannot_be_saved_is_critical(app, diamonds, nivoda, raw):
    """WatermarkUpdate → Failed: Watermark save error (CRITICAL); H-17, H-44."""
    go(app, diamonds.start())
    moved = diamonds.watermark - timedelta(days=1)

    def override(place):
        if place == "fetch":
            nivoda.meanwhile = lambda _: None
            diamonds.override_watermark(moved, reason="read again")

    nivoda.meanwhile = override
    run = go(app, diamonds.start(full=True))
    assert run.as_spec("B") == "Failed"
    assert (metadata(raw, run)["completed_at"], diamonds.watermark) == (None, moved)
    assert alerts(app)[-1]["severity"] == "critical"
    assert diamonds.watermark_state == "WatermarkNotAdvanced"

    again = go(app, diamonds.start())
    assert (again.window.start, again.as_spec("B")) == (moved, "Completed"), "it is read again"
    assert diamonds.watermark_state == "WatermarkAdvanced"


def test_the_watermark_blob_has_bs_three_fields(app, diamonds, tmp_path):
    """Watermark blob: lastUpdatedAt, lastRunId, lastRunCompletedAt."""
    run = go(app, diamonds.start())
    app.drain(timeout=10)
    blob = json.loads((tmp_path / "watermark.json").read_text())
    assert set(blob) == {"lastUpdatedAt", "lastRunId", "lastRunCompletedAt"}
    assert blob["lastRunId"] == run.id
    assert datetime.fromisoformat(blob["lastUpdatedAt"]) == diamonds.watermark
    assert datetime.fromisoformat(blob["lastRunCompletedAt"]) >= run.started_at


def test_old_diamonds_are_removed_softly_by_a_full_run_alone(app, diamonds, nivoda, raw):
    """Old diamonds soft-deleted; H-81: absence in an incremental run deletes nothing."""
    go(app, diamonds.start())
    del nivoda.stock[5]
    go(app, diamonds.start())
    assert diamonds.count() == 180
    run = go(app, diamonds.start(full=True))
    assert (run.counts.removed, diamonds.count()) == (1, 179)
    assert raw.value("SELECT count(*) FROM diamonds WHERE removed_at IS NOT NULL") == 1


def test_a_feed_without_a_record_completes_too(app, diamonds, nivoda, raw):
    """Consolidation complete with nothing to do: H-61."""
    nivoda.stock.clear()
    run = go(app, diamonds.start())
    assert run.as_spec("B") == "Completed"
    told = metadata(raw, run)
    assert told["completed_workers"] == told["expected_workers"]
    assert diamonds.watermark == run.window.end


def test_thirty_workers_are_planned_by_thirty_to_sixty_calls(app, nivoda, raw):
    """Scheduler scans price ranges (30-60 API calls); expectedWorkers (from heatmap)."""
    for number in range(180, 900):
        nivoda.put(number, at=T0)
    wide = app.pipeline("wide", nivoda, key="id", partition_by="price", partitions=30, page=100)
    run = go(app, wide.start())
    assert 30 <= nivoda.probes <= 60
    assert metadata(raw, run)["expected_workers"] == len(run.partitions) == 30
    assert max(one.records for one in run.partitions) <= 3 * 900 / 30


def test_a_run_is_told_over_http_in_bs_words(app, diamonds):
    """WatermarkExists: WatermarkRead → RunCreated → Processing → WatermarkAdvanced."""
    run = diamonds.start()
    with served(app) as url, httpx2.Client(base_url=url, timeout=60) as client:
        assert client.get("/v1/pipelines/diamonds").json()["watermark_state"] == "NoWatermark"
        go(app, run)
        told = client.get("/v1/pipelines/diamonds").json()
        assert told["watermark_state"] == "WatermarkAdvanced"
        assert client.get(f"/v1/runs/{run.id}", params={"as": "B"}).json() == {
            "id": run.id,
            "state": "Completed",
        }
        diamonds.start()
        told = client.get("/v1/pipelines/diamonds").json()
        assert told["watermark_state"] == "RunCreated"


def test_a_watermark_outlives_its_runs_and_is_read_by_the_next(app, diamonds, advance):
    """[*] → WatermarkRead → RunCreated: Scheduler uses as watermarkBefore."""
    go(app, diamonds.start())
    app.channels.ack("ops", [message.id for message in app.channels.messages("ops")])
    mark = diamonds.watermark
    advance(60 * 86_400)
    while app.runs.list():
        assert app.maintain_once(), "retention must remove the run"
    assert (diamonds.watermark, diamonds.watermark_state) == (mark, "WatermarkRead")
    run = diamonds.start()
    assert diamonds.watermark_state == "RunCreated"
    assert (go(app, run).mode, run.window.start) == ("incremental", mark)


COUNTING = """
CREATE TABLE written (pid int, records int);
CREATE FUNCTION count_written() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO written SELECT pg_backend_pid(), count(*) FROM changed;
    PERFORM pg_sleep(0.02);
    RETURN NULL;
END $$;
CREATE TRIGGER counting AFTER INSERT ON diamonds REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION count_written();
"""


@pytest.mark.skipif(NEWEST is None, reason="only a server tells its statements apart")
def test_a_hundred_diamonds_are_upserted_at_once_by_five_at_a_time(backends):
    """Upsert: 100 diamonds/batch; Concurrency: 5 parallel batches."""
    database, nivoda = backends.take(NEWEST), Nivoda(0)
    app = mp.App(database.url)
    diamonds = app.pipeline(
        "diamonds", nivoda, key="id", partition_by="price", partitions=3, consolidators=1
    )
    go(app, diamonds.start())
    for number in range(950):
        nivoda.put(number, at=T0)
    with database.raw() as raw:
        raw.execute(COUNTING)
        go(app, diamonds.start(full=True))
        sizes = [size for (size,) in raw.execute("SELECT records FROM written ORDER BY 1")]
        writers = raw.value("SELECT count(DISTINCT pid) FROM written")
    app.close()
    backends.drop(database)
    assert (sum(sizes), max(sizes)) == (950, 100)
    assert 2 <= writers <= 5


DECLARED = {
    "UUID": "uuid",
    "TEXT": "text",
    "INTEGER": "bigint",  # wide enough for any of them
    "BOOLEAN": "boolean",
    "JSONB": "jsonb",
    "TIMESTAMP": "timestamp with time zone",
}


@pytest.mark.skipif(NEWEST is None, reason="B declares PostgreSQL's types")
def test_bs_tables_have_the_columns_and_types_that_b_declares(backends):
    """CREATE TABLE run_metadata ( … ); CREATE TABLE worker_runs ( … ); partition_progress."""
    page = SPECS["B"].read_text(encoding="utf-8")
    tables = dict(re.findall(r"^CREATE TABLE (\w+) \((.*?)^\);", page, re.DOTALL | re.MULTILINE))
    assert set(tables) == {"run_metadata", "worker_runs", "partition_progress"}
    database = backends.take(NEWEST)
    with database.raw() as raw:
        for table, body in tables.items():
            columns = re.findall(r"^  ([a-z_]+) ([A-Z]+)", body, re.MULTILINE)
            assert raw.execute(
                "SELECT column_name, data_type FROM information_schema.columns"
                f" WHERE table_name = '{table}' ORDER BY ordinal_position"
            ) == [(name, DECLARED[type_]) for name, type_ in columns]
    backends.give_back(database)
