"""What brokers say of the messages that wait on them, and how the hints of queues stand.

Workers that reach a broker ask it, one of them at a time, and store the answer: whoever looks at
the store (pages, metrics, `explain`, `doctor`) needs no connection, and no password.
"""

from collections.abc import Iterable, Mapping

import msgspec

from milepost.outcome import micros
from milepost.records import Queue
from milepost.store.driver import Call, Steps
from milepost.store.hints import STORE

QUEUE, INBOUND = "queue", "inbound"
EVERY_SECONDS = 15.0
"""How often a broker is asked, however many workers there are."""
STALE_SECONDS = 90.0
"""So old a report tells nothing any more: no worker asks."""
FORGOTTEN_SECONDS = 86_400.0
"""So old it is not shown any more: the queue or the inbound was given up."""


class BrokerReport(msgspec.Struct, frozen=True):
    """What a broker last said of a queue or an inbound; None where it does not tell."""

    side: str
    name: str
    broker: str
    address: str
    age: float
    """How many seconds ago it was asked."""
    reached: float | None
    """How many seconds ago it last answered; None: never."""
    error: str | None
    waiting: int | None
    in_flight: int | None
    redelivered: int | None
    dead: int | None

    @property
    def stale(self) -> bool:
        """Whether nobody asks any more."""
        return self.age > STALE_SECONDS

    @property
    def up(self) -> bool:
        """Whether it answered when it was last asked, which was not long ago."""
        return self.error is None and self.reached is not None and not self.stale

    @property
    def figures(self) -> dict[str, int]:
        """What it counts, by word."""
        found = {
            "waiting": self.waiting,
            "in_flight": self.in_flight,
            "redelivered": self.redelivered,
            "dead": self.dead,
        }
        return {word: count for word, count in found.items() if count is not None}


class HintStand(msgspec.Struct, frozen=True):
    """How the hints of a queue stand: jobs that were handed to its broker and not claimed yet."""

    untold: int
    told: int
    tellings: int
    """How often the one was told that was told most often."""
    oldest: float
    """For how many seconds the oldest has been there."""
    due: float
    """In how many seconds the next is told, or told again; negative when overdue."""
    error: str | None

    @property
    def count(self) -> int:
        """How many there are."""
        return self.untold + self.told


class QueueBroker(msgspec.Struct, frozen=True):
    """How a queue stands that is on a broker."""

    kind: str
    stand: HintStand | None = None
    report: BrokerReport | None = None


class JobHint(msgspec.Struct, frozen=True):
    """The hint of one job."""

    tellings: int
    told: float | None
    """How many seconds ago the broker last confirmed it; None: never."""
    due: float
    error: str | None


def ask(side: str, name: str, *, broker: str, address: str) -> Steps[bool]:
    """Take the turn to ask a broker; False when somebody did lately."""
    given = {"side": side, "name": name, "broker": broker, "address": address}
    rows = yield Call("broker_ask", {**given, "every_us": micros(EVERY_SECONDS)})
    return bool(rows)


def answered(
    side: str,
    name: str,
    *,
    waiting: int | None,
    in_flight: int | None,
    redelivered: int | None,
    dead: int | None,
) -> Steps[None]:
    """Store what a broker said."""
    counts = {"waiting": waiting, "in_flight": in_flight, "redelivered": redelivered, "dead": dead}
    yield Call("broker_answered", {"side": side, "name": name, **counts}, alone=True)


def silent(side: str, name: str, *, error: str) -> Steps[None]:
    """Store why a broker did not answer."""
    yield Call("broker_silent", {"side": side, "name": name, "error": error}, alone=True)


def reports() -> Steps[list[BrokerReport]]:
    """Read what every broker last said."""
    rows = yield Call("broker_reports", alone=True)
    return [
        BrokerReport(side, name, broker, address, age / 1e6, _seconds(reached), error, *counts)
        for side, name, broker, address, age, reached, error, *counts in rows
        if age <= FORGOTTEN_SECONDS * 1e6
    ]


def report(side: str, name: str) -> Steps[BrokerReport | None]:
    """Read what the broker of one queue or inbound last said; None: it was never asked."""
    found = yield from reports()
    return next((each for each in found if (each.side, each.name) == (side, name)), None)


def hints() -> Steps[dict[str, HintStand]]:
    """Tell how the hints of each queue stand."""
    rows = yield Call("broker_hints", alone=True)
    return {
        queue: HintStand(untold, told, most, age / 1e6, due / 1e6, error)
        for queue, untold, told, most, age, due, error in rows
    }


def hint_of(job_id: str, *, version: int) -> Steps[JobHint | None]:
    """Read the hint of a job as it stands now; None: there is none."""
    rows = yield Call("broker_hint", {"id": job_id, "version": version}, alone=True)
    for tellings, told, due, error in rows:
        return JobHint(tellings, _seconds(told), due / 1e6, error)
    return None


def queues(listed: Iterable[Queue] | None = None) -> Steps[dict[str, QueueBroker]]:
    """Tell of the queues that are on a broker how they stand there: of these, or of all."""
    if listed is None:
        kinds: Mapping[str, str] = dict((yield Call("queue_transports", alone=True)))
    else:
        kinds = {queue.name: queue.transport for queue in listed if queue.transport != STORE}
    if not kinds:
        return {}
    stands = yield from hints()
    told = {report.name: report for report in (yield from reports()) if report.side == QUEUE}
    found = kinds.items()
    return {name: QueueBroker(kind, stands.get(name), told.get(name)) for name, kind in found}


def _seconds(found: int | None) -> float | None:
    return None if found is None else found / 1e6
