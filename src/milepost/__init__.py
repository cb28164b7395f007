"""Durable jobs for Python. Every job passes its mileposts in order, once, on the record.

The public names, and nothing else. Each is loaded from its module when it is first used, so that
`import milepost` and `milepost --help` stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost import testing as testing
    from milepost.app import App
    from milepost.batch.declaration import Batch, Collect, FailFast, Tolerate
    from milepost.batch.handles import RunHandle, StepState
    from milepost.batch.outputs import to
    from milepost.context import Context, current
    from milepost.encrypt import EncryptingCodec
    from milepost.errors import (
        AccessRefused,
        IllegalMove,
        Invalid,
        JobFailed,
        LeaseLost,
        MilepostError,
        NotFinished,
        NotFound,
        QueueFull,
        SchemaMismatch,
        Unavailable,
        WaitTimeout,
    )
    from milepost.handles import JobHandle
    from milepost.history import Entry
    from milepost.hooks import HookEvent
    from milepost.ingest.handles import PartitionState, PipelineRun
    from milepost.ingest.pipeline import Pipeline
    from milepost.ingest.source import Gone, OffsetSource, Page, Partition, Reject, Source, Window
    from milepost.job import Job
    from milepost.lifecycle import JobState, RunState
    from milepost.limit import Limit
    from milepost.policy import TRANSIENT, Cancelled, Fail, Later
    from milepost.records import JobError, Queue, RunError, Worker
    from milepost.relay.broker import Broker, Delivery, Incoming, Outgoing, Undelivered
    from milepost.request.batch import RequestBatch, Response
    from milepost.request.declaration import Poll, Reply
    from milepost.store.explain import Explanation
    from milepost.store.pages import Counts
    from milepost.store.schedules import Schedule

__all__ = [
    "TRANSIENT",
    "AccessRefused",
    "App",
    "Batch",
    "Broker",
    "Cancelled",
    "Collect",
    "Context",
    "Counts",
    "Delivery",
    "EncryptingCodec",
    "Entry",
    "Explanation",
    "Fail",
    "FailFast",
    "Gone",
    "HookEvent",
    "IllegalMove",
    "Incoming",
    "Invalid",
    "Job",
    "JobError",
    "JobFailed",
    "JobHandle",
    "JobState",
    "Later",
    "LeaseLost",
    "Limit",
    "MilepostError",
    "NotFinished",
    "NotFound",
    "OffsetSource",
    "Outgoing",
    "Page",
    "Partition",
    "PartitionState",
    "Pipeline",
    "PipelineRun",
    "Poll",
    "Queue",
    "QueueFull",
    "Reject",
    "Reply",
    "RequestBatch",
    "Response",
    "RunError",
    "RunHandle",
    "RunState",
    "Schedule",
    "SchemaMismatch",
    "Source",
    "StepState",
    "Tolerate",
    "Unavailable",
    "Undelivered",
    "WaitTimeout",
    "Window",
    "Worker",
    "current",
    "to",
]

_HOMES = {
    "AccessRefused": "milepost.errors",
    "App": "milepost.app",
    "Batch": "milepost.batch.declaration",
    "Broker": "milepost.relay.broker",
    "Cancelled": "milepost.policy",
    "Collect": "milepost.batch.declaration",
    "Context": "milepost.context",
    "Counts": "milepost.store.pages",
    "Delivery": "milepost.relay.broker",
    "EncryptingCodec": "milepost.encrypt",
    "Entry": "milepost.history",
    "Explanation": "milepost.store.explain",
    "Fail": "milepost.policy",
    "FailFast": "milepost.batch.declaration",
    "Gone": "milepost.ingest.source",
    "HookEvent": "milepost.hooks",
    "IllegalMove": "milepost.errors",
    "Incoming": "milepost.relay.broker",
    "Invalid": "milepost.errors",
    "Job": "milepost.job",
    "JobError": "milepost.records",
    "JobFailed": "milepost.errors",
    "JobHandle": "milepost.handles",
    "JobState": "milepost.lifecycle",
    "Later": "milepost.policy",
    "LeaseLost": "milepost.errors",
    "Limit": "milepost.limit",
    "MilepostError": "milepost.errors",
    "NotFinished": "milepost.errors",
    "NotFound": "milepost.errors",
    "OffsetSource": "milepost.ingest.source",
    "Outgoing": "milepost.relay.broker",
    "Page": "milepost.ingest.source",
    "Partition": "milepost.ingest.source",
    "PartitionState": "milepost.ingest.handles",
    "Pipeline": "milepost.ingest.pipeline",
    "PipelineRun": "milepost.ingest.handles",
    "Poll": "milepost.request.declaration",
    "Queue": "milepost.records",
    "QueueFull": "milepost.errors",
    "Reject": "milepost.ingest.source",
    "Reply": "milepost.request.declaration",
    "RequestBatch": "milepost.request.batch",
    "Response": "milepost.request.batch",
    "RunError": "milepost.records",
    "RunHandle": "milepost.batch.handles",
    "RunState": "milepost.lifecycle",
    "Schedule": "milepost.store.schedules",
    "SchemaMismatch": "milepost.errors",
    "Source": "milepost.ingest.source",
    "StepState": "milepost.batch.handles",
    "TRANSIENT": "milepost.policy",
    "Tolerate": "milepost.batch.declaration",
    "Unavailable": "milepost.errors",
    "Undelivered": "milepost.relay.broker",
    "WaitTimeout": "milepost.errors",
    "Window": "milepost.ingest.source",
    "Worker": "milepost.records",
    "current": "milepost.context",
    "to": "milepost.batch.outputs",
}


def __getattr__(name: str) -> Any:
    if name == "testing":
        return import_module("milepost.testing")
    if name not in _HOMES:
        raise AttributeError(f"module 'milepost' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
