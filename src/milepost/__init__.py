"""Durable jobs for Python. Every job passes its mileposts in order, once, on the record.

The public names, and nothing else. Each is loaded from its module when it is first used, so that
`import milepost` and `milepost --help` stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from milepost import testing as testing
    from milepost.app import App
    from milepost.batch.declaration import Collect, FailFast, Tolerate
    from milepost.batch.handles import RunHandle
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
        SchemaMismatch,
        Unavailable,
        WaitTimeout,
    )
    from milepost.handles import JobHandle
    from milepost.ingest.source import Gone, OffsetSource, Page, Partition, Reject, Source, Window
    from milepost.lifecycle import JobState, RunState
    from milepost.policy import Cancelled, Fail, Later
    from milepost.request.declaration import Poll, Reply

__all__ = [
    "AccessRefused",
    "App",
    "Cancelled",
    "Collect",
    "Context",
    "EncryptingCodec",
    "Fail",
    "FailFast",
    "Gone",
    "IllegalMove",
    "Invalid",
    "JobFailed",
    "JobHandle",
    "JobState",
    "Later",
    "LeaseLost",
    "MilepostError",
    "NotFinished",
    "NotFound",
    "OffsetSource",
    "Page",
    "Partition",
    "Poll",
    "Reject",
    "Reply",
    "RunHandle",
    "RunState",
    "SchemaMismatch",
    "Source",
    "Tolerate",
    "Unavailable",
    "WaitTimeout",
    "Window",
    "current",
    "to",
]

_HOMES = {
    "AccessRefused": "milepost.errors",
    "App": "milepost.app",
    "Cancelled": "milepost.policy",
    "Collect": "milepost.batch.declaration",
    "Context": "milepost.context",
    "EncryptingCodec": "milepost.encrypt",
    "Fail": "milepost.policy",
    "FailFast": "milepost.batch.declaration",
    "Gone": "milepost.ingest.source",
    "IllegalMove": "milepost.errors",
    "Invalid": "milepost.errors",
    "JobFailed": "milepost.errors",
    "JobHandle": "milepost.handles",
    "JobState": "milepost.lifecycle",
    "Later": "milepost.policy",
    "LeaseLost": "milepost.errors",
    "MilepostError": "milepost.errors",
    "NotFinished": "milepost.errors",
    "NotFound": "milepost.errors",
    "OffsetSource": "milepost.ingest.source",
    "Page": "milepost.ingest.source",
    "Partition": "milepost.ingest.source",
    "Poll": "milepost.request.declaration",
    "Reject": "milepost.ingest.source",
    "Reply": "milepost.request.declaration",
    "RunHandle": "milepost.batch.handles",
    "RunState": "milepost.lifecycle",
    "SchemaMismatch": "milepost.errors",
    "Source": "milepost.ingest.source",
    "Tolerate": "milepost.batch.declaration",
    "Unavailable": "milepost.errors",
    "WaitTimeout": "milepost.errors",
    "Window": "milepost.ingest.source",
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
