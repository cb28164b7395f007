"""StoreSuite: the definition of a store, one class per theme.

A store keeps every promise here or is none. The classes want one fixture, `store`, a fresh
`tests.support.suite.store.Store` for each test; subclass `StoreSuite`, or the themes one by one.
"""

from tests.support.suite.claims import ClaimSuite
from tests.support.suite.creation import CreationSuite
from tests.support.suite.failpoints import FailpointSuite
from tests.support.suite.fanin import FanInSuite
from tests.support.suite.filling import FillSuite
from tests.support.suite.histories import HistorySuite
from tests.support.suite.hosts import HostSuite
from tests.support.suite.leases import LeaseSuite
from tests.support.suite.limits import LimitSuite
from tests.support.suite.outputs import OutputSuite
from tests.support.suite.people import CancelSuite, EraseSuite, ReadSuite, SignalSuite
from tests.support.suite.settling import SettleSuite
from tests.support.suite.stopping import StopSuite
from tests.support.suite.store import COLOURS, Store, opened
from tests.support.suite.tally import TallySuite
from tests.support.suite.timers import ClockSuite, TimerSuite
from tests.support.suite.workers import WorkerSuite

__all__ = [
    "COLOURS",
    "CancelSuite",
    "ClaimSuite",
    "ClockSuite",
    "CreationSuite",
    "EraseSuite",
    "FailpointSuite",
    "FanInSuite",
    "FillSuite",
    "HistorySuite",
    "HostSuite",
    "LeaseSuite",
    "LimitSuite",
    "OutputSuite",
    "ReadSuite",
    "SettleSuite",
    "SignalSuite",
    "StopSuite",
    "Store",
    "StoreSuite",
    "TallySuite",
    "TimerSuite",
    "WorkerSuite",
    "opened",
]


class StoreSuite(
    CreationSuite,
    ClaimSuite,
    SettleSuite,
    LeaseSuite,
    LimitSuite,
    HostSuite,
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
    TallySuite,
):
    """Every theme at once."""
