"""Spec B on a pipeline that really runs: six rows, its queries, ten inner states."""

from datetime import timedelta

import pytest
from diamond_shop import OPTIONS, T0, Shop, go

import milepost as mp
from milepost.ingest.timeline import timeline

pytestmark = pytest.mark.in_turn

FIELDS = (
    "SELECT completed_workers, failed_workers, completed_at IS NULL, watermark_after IS NULL,"
    " expected_workers FROM run_metadata WHERE run_id = '{}'"
)


class Watched(Shop):
    """Looks at the run's row and word while it is read, and while it is consolidated."""

    def __init__(self, database):
        super().__init__(30)
        self.database = database
        self.seen = {}
        self.run = None

    def look(self, moment):
        if self.run is None or moment in self.seen:
            return
        with self.database.raw() as raw:
            [row] = raw.execute(FIELDS.format(self.run.id))
            word = raw.value(f"SELECT spec_b FROM runs WHERE id = '{self.run.id}'")
        self.seen[moment] = (word, *map(int, row))

    def fetch(self, window, partition, cursor):
        if partition.ordinal == 2:
            self.look("reading")
        return super().fetch(window, partition, cursor)

    def enrich(self, records, rules):
        self.look("consolidating")
        return records


def test_the_six_rows_of_the_field_table(app, database):
    shop = Watched(database)
    pipeline = app.pipeline("watched", shop, **OPTIONS, retries=0)
    shop.run = run = pipeline.start()
    shop.look("created")
    go(app, run)
    shop.look("completed")
    assert shop.seen["created"] == ("Created", 0, 0, True, True, 0)
    word, done, failed, *unset, expected = shop.seen["reading"]
    assert (word, failed, unset, expected) == ("WorkersRunning", 0, [True, True], 3)
    assert 0 <= done <= 3
    assert shop.seen["consolidating"] == ("Consolidating", 3, 0, True, True, 3)
    assert shop.seen["completed"] == ("Completed", 3, 0, False, False, 3)
    # ConsolidationSkipped and Failed.
    shop.before_fetch = lambda partition, _cursor: (_ for _ in ()).throw(mp.Fail("away"))
    shop.run = run = pipeline.start(full=True)
    go(app, run)
    shop.look("failed")
    assert shop.seen["failed"][0] == "Failed"
    assert shop.seen["failed"][2:] == (3, True, True, 3)
    assert run.record.cause == "incomplete"


PHASES = {
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
}
"""B's ten states within Consolidating."""


def test_bs_ten_inner_states_are_phases_of_the_record(app, shop, raw):
    pipeline = app.pipeline("phased", shop, **OPTIONS, consolidators=1)
    seen = []
    note = pipeline.note

    async def noted(ctx, phase):
        seen.append(phase)
        await note(ctx, phase)

    pipeline.note = noted
    run = go(app, pipeline.start())
    assert run.state == mp.RunState.SUCCEEDED
    assert set(seen) == PHASES - {"FetchingRawBatch", "MarkingConsolidated"}
    # Those two are noted by the transactions that take and mark.
    notes = raw.value("SELECT count(*) FROM journal WHERE move = 'note' AND machine = 'job'")
    assert notes == len(seen) + run.counts.pages + 3


def test_bs_monitoring_queries_run_on_the_views(app, shop, pipeline, raw):
    def away(partition, cursor):
        if partition.ordinal == 1 and cursor is not None:
            raise mp.Fail("page 2 is away")

    shop.before_fetch = away
    run = go(app, pipeline.start())
    failed = raw.execute(
        "SELECT wr.partition_id, wr.records_processed, wr.error_message FROM worker_runs wr"
        " JOIN run_metadata rm ON wr.run_id = rm.run_id"
        f" WHERE rm.run_id = '{run.id}' AND wr.status = 'failed' ORDER BY wr.started_at"
    )
    assert failed == [("partition-1", 5, "page 2 is away")]
    left = raw.execute(
        "SELECT partition_id, next_offset FROM partition_progress"
        f" WHERE run_id = '{run.id}' AND NOT completed"
    )
    assert left == [("partition-1", 5)]
    shop.before_fetch = lambda _partition, _cursor: None
    again = go(app, run.resume())
    done = raw.execute(
        f"SELECT partition_id, next_offset FROM partition_progress WHERE run_id = '{again.id}'"
    )
    assert done == [("partition-1", 10)]
    assert raw.value('SELECT "lastRunId" FROM watermark') is not None


class Asked(Shop):
    """Asks for the watermark's word whenever it is read from."""

    pipeline = None
    words: list[str]

    def count(self, window, low, high):
        self.words.append(self.pipeline.watermark_state)
        return super().count(window, low, high)

    def fetch(self, window, partition, cursor):
        self.words.append(self.pipeline.watermark_state)
        return super().fetch(window, partition, cursor)


def test_a_watermarks_state_reads_in_bs_words_through_its_runs(app, raw):
    shop = Asked(30)
    pipeline = shop.pipeline = app.pipeline("told", shop, **OPTIONS, retries=0)
    shop.words = [pipeline.watermark_state]
    go(app, pipeline.start())
    assert set(shop.words) == {"NoWatermark"}
    assert pipeline.watermark_state == "WatermarkAdvanced"

    shop.words = []
    shop.put(7)
    go(app, pipeline.start())
    assert list(dict.fromkeys(shop.words)) == ["RunCreated", "Processing"]
    assert pipeline.watermark_state == "WatermarkAdvanced"

    shop.before_fetch = lambda partition, _cursor: (_ for _ in ()).throw(mp.Fail("away"))
    failed = go(app, pipeline.start(full=True))
    assert pipeline.watermark_state == "WatermarkNotAdvanced"
    # Published, but the watermark stays.
    go(app, failed.force())
    assert pipeline.watermark_state == "WatermarkNotAdvanced"


def test_runs_that_leave_the_watermark_alone_do_not_change_its_word(app, shop, pipeline):
    assert go(app, pipeline.start(until=T0 + timedelta(minutes=5))).state == "SUCCEEDED"
    assert pipeline.watermark_state == "NoWatermark"
    go(app, pipeline.start())
    shop.before_fetch = lambda partition, _cursor: (_ for _ in ()).throw(mp.Fail("away"))
    assert go(app, pipeline.start(until=T0 + timedelta(minutes=5))).state == "FAILED"
    assert pipeline.watermark_state == "WatermarkAdvanced"


COUNTED = (
    "SELECT run_type, expected_workers, completed_workers, failed_workers FROM run_metadata"
    " WHERE run_id = '{}'"
)


def test_a_forced_run_has_bs_counters_and_the_type_of_the_run_that_it_publishes(app, shop, raw):
    pipeline = app.pipeline("counted", shop, **OPTIONS, retries=0)
    go(app, pipeline.start())

    def away(partition, _cursor):
        if partition.ordinal == 1:
            raise mp.Fail("away")

    shop.before_fetch = away
    failed = go(app, pipeline.start(full=True))
    forced = go(app, failed.force())
    assert raw.execute(COUNTED.format(failed.id)) == [("full", 3, 2, 1)]
    assert raw.execute(COUNTED.format(forced.id)) == [("full", 3, 2, 1)]
    before = "SELECT watermark_before FROM run_metadata WHERE run_id = '{}'"
    assert raw.value(before.format(forced.id)) == raw.value(before.format(failed.id)) is not None
    shop.before_fetch = lambda _partition, _cursor: None
    retried = go(app, failed.retry(1))
    assert raw.execute(COUNTED.format(retried.id)) == [("full", 1, 1, 0)]


class WordsOfJobs(Shop):
    """Reads every job's word, from the handle and from the view, while records are consolidated."""

    app = database = run = None
    words: dict

    def look(self):
        with self.database.raw() as raw:
            chosen = f"SELECT id, kind, spec_b FROM jobs WHERE run_id = '{self.run.id}'"
            for job_id, kind, told in raw.execute(chosen):
                if kind == "worded.consolidate":  # partitions move on meanwhile
                    assert told == self.app.jobs.get(str(job_id)).as_spec("B")
                self.words.setdefault(kind.removeprefix("worded."), []).append(told)

    def fetch(self, window, partition, cursor):
        self.look()
        return super().fetch(window, partition, cursor)

    def enrich(self, records, rules):
        self.look()
        return records


def test_consolidators_read_bs_words_for_consolidation_and_never_those_for_partitions(
    app, database
):
    shop = WordsOfJobs(30)
    shop.app, shop.database, shop.words = app, database, {}
    pipeline = app.pipeline("worded", shop, **OPTIONS, consolidators=1, retries=0)
    shop.run = pipeline.start()
    go(app, shop.run)
    shop.look()
    assert set(shop.words["fetch"]) <= {
        "PartitionPending",
        "PartitionInProgress",
        "PartitionFetchingPages",
        "PartitionCompleted",
    }
    words = list(dict.fromkeys(shop.words["consolidate"]))
    assert words == ["WorkersRunning", "ApplyingPricing", "Completed"]
    assert set(shop.words["finalize"]) == {"Completed"}


def test_bs_ten_inner_states_stay_in_the_journal(app, shop, raw):
    pipeline = app.pipeline("kept", shop, **OPTIONS, consolidators=1)
    run = go(app, pipeline.start())
    kinds = "('kept.consolidate', 'kept.finalize')"
    chosen = f"SELECT id FROM jobs WHERE run_id = '{run.id}' AND kind IN {kinds}"
    jobs = [app.jobs.get(str(job_id)) for (job_id,) in raw.execute(chosen)]
    notes = {entry.detail for job in jobs for entry in job.history if entry.move == "note"}
    assert (len(jobs), notes) == (2, PHASES)


def test_a_skipped_consolidation_is_a_word_on_the_record_and_a_line_in_the_log(app, shop, capsys):
    pipeline = app.pipeline("skipped", shop, **OPTIONS, retries=0)

    def away(partition, _cursor):
        if partition.ordinal == 1:
            raise mp.Fail("away")

    shop.before_fetch = away
    run = go(app, pipeline.start())
    [entry] = [entry for entry in run.history if entry.detail]
    assert entry.detail == "ConsolidationSkipped: 1 of 3 partitions did not succeed"
    words = [event.state for event in timeline(run)]
    assert words[-2:] == ["ConsolidationSkipped", "Failed"]
    logged = [
        line for line in capsys.readouterr().err.splitlines() if "ConsolidationSkipped" in line
    ]
    assert len(logged) == 1
    assert f"run_id={run.id}" in logged[0]
    assert "completed_workers=2 failed_workers=1 expected_workers=3" in logged[0]
