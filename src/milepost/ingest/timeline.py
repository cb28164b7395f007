"""The timeline of a pipeline's run, in B's words: time, state, details."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from milepost.history import Entry
from milepost.ingest.handles import PartitionState, PipelineRun
from milepost.specs import RUN_VIEWS, Facts
from milepost.store import journal, outbox
from milepost.store.outbox import Message

SKIPPED = "ConsolidationSkipped"
OPENING = ("Created", "WorkersRunning")
"""States of a run that come before those of its partitions; the others follow from them."""


class TimelineEvent(msgspec.Struct, frozen=True):
    """One line of it."""

    at: datetime
    state: str
    detail: str


def timeline(run: PipelineRun) -> list[TimelineEvent]:
    """Tell a run from its journal and those of its partitions, in the order of time."""
    row = run.about
    told = list(_of_run(run))
    events = [event for event in told if event.state in OPENING]
    if row.calls is not None and isinstance(row.planned_at, datetime | int):
        sealed = next((e for e in run.history if e.move == "seal"), None)
        if sealed is not None and sealed.at is not None:
            found = f"{row.calls} counts, {row.counted} records, {len(run.partitions)} partitions"
            events.append(TimelineEvent(sealed.at, "Heatmap Scanning", found))
    names = {run.id: "consolidation"}
    for part in run.partitions:
        names[part.job_id] = f"partition-{part.ordinal}"
        history = run._client.run(journal.history, part.job_id)  # noqa: SLF001 - its own family
        events += _of_partition(part, history)
    for message in run._client.run(outbox.signals, run.id):  # noqa: SLF001 - its own family
        events.append(_of_message(message, names.get(message.subject_id, "a partition")))
    # A partition's end and the move of its run that follows have one time: sorting keeps the order.
    events += [event for event in told if event.state not in OPENING]
    return sorted(events, key=lambda event: event.at)


def _of_run(run: PipelineRun) -> Iterator[TimelineEvent]:
    view = RUN_VIEWS["B"]
    details = {
        "create": f"run {run.id}",
        "begin": "workers are reading",
        "finalize": "removal, report",
        "finish": "watermark advanced"
        if run.about.after_mark is not None
        else "watermark left alone",
        "fail": f"{run.record.cause}; watermark NOT advanced",
        "cancel": "watermark NOT advanced",
    }
    phase: str | None = None
    for entry in run.history:
        if entry.move == "advance":
            phase = "consolidate" if phase == "partition" else "partition"
            if phase == "partition":
                continue
        if entry.at is not None and (entry.detail or "").startswith(SKIPPED):
            yield TimelineEvent(entry.at, SKIPPED, (entry.detail or "").partition(": ")[2])
        if entry.move in ("seal", "stop") or entry.at is None:
            continue
        if phase == "consolidate" and entry.move == "advance":
            yield TimelineEvent(entry.at, "ConsolidationTriggered", "the gate is open")
        state = view.word(Facts(entry.to_state, phase=phase))
        yield TimelineEvent(entry.at, state, details.get(entry.move, "every partition is read"))


def _of_message(message: Message, about: str) -> TimelineEvent:
    """Tell of one of B's messages; it is "sent" when its receiver has it."""
    word = "CONSOLIDATE" if message.machine == "run" else "WORK_DONE"
    stands = "sent" if message.stands == "delivered" else message.stands
    at = message.delivered_at or message.dead_at or message.created_at
    return TimelineEvent(at, f"{word} {stands}", f"{about}, channel {message.channel}")


def _of_partition(part: PartitionState, history: list[Entry]) -> Iterator[TimelineEvent]:
    name = f"partition-{part.ordinal}"
    for entry in history:
        if entry.at is None:
            continue
        # A summary ended as its last move did.
        move = entry.move if entry.summary is None else entry.summary.move
        if move == "claim":
            yield TimelineEvent(
                entry.at, f"PartitionInProgress ({name})", f"attempt by {entry.actor}"
            )
        elif entry.to_state == "SUCCEEDED":
            told = f"{part.records} records in {part.pages} pages"
            yield TimelineEvent(entry.at, f"PartitionCompleted ({name})", told)
        elif entry.to_state in ("FAILED", "CANCELLED"):
            yield TimelineEvent(entry.at, f"PartitionFailed ({name})", part.error or move)
        elif move in ("retry", "lose", "later", "release"):
            told = f"{move}: {entry.summary or entry.detail}"
            yield TimelineEvent(entry.at, f"PartitionInProgress ({name})", told)
