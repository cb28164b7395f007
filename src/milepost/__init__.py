"""Durable jobs for Python. Every job passes its mileposts in order, once, on the record."""

from milepost.app import App
from milepost.client import JobHandle
from milepost.context import Context, current
from milepost.errors import (
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
from milepost.lifecycle import JobState, RunState
from milepost.policy import Cancelled, Fail, Later

__all__ = [
    "App",
    "Cancelled",
    "Context",
    "Fail",
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
    "RunState",
    "SchemaMismatch",
    "Unavailable",
    "WaitTimeout",
    "current",
]
