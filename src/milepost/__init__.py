"""Durable jobs for Python. Every job passes its mileposts in order, once, on the record."""

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

__all__ = [
    "IllegalMove",
    "Invalid",
    "JobFailed",
    "JobState",
    "LeaseLost",
    "MilepostError",
    "NotFinished",
    "NotFound",
    "RunState",
    "SchemaMismatch",
    "Unavailable",
    "WaitTimeout",
]
