"""StoreSuite: the definition of a store, one class per theme.

A store keeps every promise here or is none. The classes want one fixture, `store`, a fresh
`milepost.testing.suite.store.Store` for each test; subclass `StoreSuite`, or the themes one by one.
"""

from milepost.testing.suite.births import BirthSuite
from milepost.testing.suite.claims import ClaimSuite
from milepost.testing.suite.failpoints import FailpointSuite
from milepost.testing.suite.fanin import FanInSuite
from milepost.testing.suite.filling import FillSuite
from milepost.testing.suite.histories import HistorySuite
from milepost.testing.suite.leases import LeaseSuite
from milepost.testing.suite.outputs import OutputSuite
from milepost.testing.suite.people import CancelSuite, EraseSuite, ReadSuite, SignalSuite
from milepost.testing.suite.settling import SettleSuite
from milepost.testing.suite.stopping import StopSuite
from milepost.testing.suite.store import COLOURS, Store, opened
from milepost.testing.suite.timers import ClockSuite, TimerSuite
from milepost.testing.suite.workers import WorkerSuite

__all__ = [
    "COLOURS",
    "BirthSuite",
    "CancelSuite",
    "ClaimSuite",
    "ClockSuite",
    "EraseSuite",
    "FailpointSuite",
    "FanInSuite",
    "FillSuite",
    "HistorySuite",
    "LeaseSuite",
    "OutputSuite",
    "ReadSuite",
    "SettleSuite",
    "SignalSuite",
    "StopSuite",
    "Store",
    "StoreSuite",
    "TimerSuite",
    "WorkerSuite",
    "opened",
]


class StoreSuite(
    BirthSuite,
    ClaimSuite,
    SettleSuite,
    LeaseSuite,
    TimerSuite,
    ClockSuite,
    CancelSuite,
    EraseSuite,
    SignalSuite,
    ReadSuite,
    FillSuite,
    FanInSuite,
    OutputSuite,
    StopSuite,
    WorkerSuite,
    HistorySuite,
    FailpointSuite,
):
    """Every theme at once."""
