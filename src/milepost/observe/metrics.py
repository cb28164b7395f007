"""Metrics of Prometheus: what a worker counts, what the store holds, and the place to read both.

A worker counts in batches, when it claims and when it settles, and only where it is asked to. Units
are base units, and no label grows with what callers send.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import Invalid, MilepostError
from milepost.lifecycle import JobState
from milepost.outcome import Outcome, micros
from milepost.records import Claim
from milepost.store import (
    brokers,
    chains,
    jobs,
    limit_looks,
    outbox,
    queues,
    retention,
    watermarks,
    workers,
)
from milepost.store.brokers import BrokerReport, HintStand
from milepost.store.driver import AsyncDriver, Steps
from milepost.store.limit_looks import LimitStand
from milepost.store.limits import Look
from milepost.store.tally import (
    BOUNDS,
    LABEL_OF,
    LABELS_MOST,
    OTHERS,
    Histogram,
    by_label,
    waits,
)

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

NAMES_MOST = LABELS_MOST
LABELS = ("queue", "kind")
ALL_OTHERS = (OTHERS, OTHERS)
ENDED = {
    state: state.lower() for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
}
Ended = tuple[Claim, Outcome, float | None]
"""An attempt whose outcome was written, and the seconds that it took."""
NEEDED = "metrics need an extra: pip install 'milepost[metrics]'"
Counts = Mapping[str, Mapping[str, int]]
HINTED = (
    *("told", "again", "unroutable", "unreached", "claimed", "duplicate", "left", "held"),
    *("refused", "newer", "foreign", "unknown", "unfit", "busy"),
)
"""What becomes of hints, as a worker counts it."""
DELIVERED = ("arrived", "refused", "unreached")
"""What becomes of final messages."""


def _sample(family: "HistogramMetricFamily", labels: Sequence[str], found: Histogram) -> None:
    """Write a histogram as a sample of a family."""
    bounds = [*(str(bound) for bound in BOUNDS), "+Inf"]
    buckets = list(zip(bounds, accumulate(found.counts), strict=True))
    family.add_metric(labels, buckets, sum_value=found.sum_us / 1e6)


class KindMetrics:
    """The counts of one kind in one queue."""

    __slots__ = ("ended", "retried", "seconds", "started", "waited")

    def __init__(self) -> None:
        self.started = 0
        self.ended = dict.fromkeys(ENDED.values(), 0)
        self.retried = 0
        self.seconds = Histogram()
        self.waited = Histogram()


class WorkerMetrics:
    """What one process counts of its own work; Prometheus' library calls `collect`."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str], KindMetrics] = {}
        self._settling = Histogram()
        self._losses = {"settle": 0, "sweep": 0}
        self._looks = dict.fromkeys(("claimed", "blocked", "empty"), 0)
        self._blocked = 0
        self.hints: dict[str, Mapping[str, int]] = {}
        """What became of the hints of each queue that is on a broker; others count in it."""
        self.messages: Mapping[str, Mapping[str, int]] = {}
        """What became of the final messages of each channel; likewise."""
        self.driver: AsyncDriver | None = None
        """The way to the store whose connections are counted."""

    def _kind(self, label: tuple[str, str]) -> KindMetrics:
        found = self._kinds.get(label)
        if found is not None:
            return found
        full = len(self._kinds) >= NAMES_MOST - 1
        return self._kinds.setdefault(ALL_OTHERS if full else label, KindMetrics())

    def started(self, claims: Sequence[Claim]) -> None:
        """Count the jobs of a claim, and how long each of them waited."""
        for label, found in by_label(claims, map(LABEL_OF, claims)):
            kind = self._kind(label)
            kind.started += len(found)
            if waited := waits(found):
                kind.waited.observe_all(waited)

    def settled(self, ended: Sequence[Ended]) -> None:
        """Count outcomes that were written: each with the seconds that its attempt took."""
        labels = [(claim.queue, claim.kind, outcome.move) for claim, outcome, _ in ended]
        for (queue, name, move), found in by_label(ended, labels):
            kind = self._kind((queue, name))
            if (word := ENDED.get(found[0][1].state)) is not None:
                kind.ended[word] += len(found)
            elif move == "retry":
                kind.retried += len(found)
            if took := [micros(seconds) for _, _, seconds in found if seconds is not None]:
                kind.seconds.observe_all(took)

    def wrote(self, seconds: float) -> None:
        """Count a settlement of a batch."""
        self._settling.observe(micros(seconds))

    def lost(self, count: int, *, found: str) -> None:
        """Count leases that were lost: found when a result came too late, or by a sweep."""
        self._losses[found] += count

    def looked(self, look: Look, *, taken: int) -> None:
        """Count a look for jobs under limits, and the jobs that it met and that may not start."""
        self._looks["claimed" if taken else "blocked" if look.blocked else "empty"] += 1
        self._blocked += look.blocked

    def collect(self) -> "Iterator[Metric]":
        """Give each family."""
        from prometheus_client import core  # noqa: PLC0415 - an extra

        kinds = list(self._kinds.items())
        started = core.CounterMetricFamily(
            "milepost_jobs_started", "Attempts that this process began.", labels=LABELS
        )
        ended = core.CounterMetricFamily(
            "milepost_jobs_ended", "Jobs that ended in this process.", labels=(*LABELS, "outcome")
        )
        retried = core.CounterMetricFamily(
            "milepost_job_retries",
            "Attempts that failed and are followed by another one.",
            labels=LABELS,
        )
        took = core.HistogramMetricFamily(
            "milepost_job_duration_seconds", "How long attempts took.", labels=LABELS
        )
        waited = core.HistogramMetricFamily(
            "milepost_job_wait_seconds",
            "How long jobs that were due waited for a worker.",
            labels=LABELS,
        )
        for labels, kind in kinds:
            started.add_metric(labels, kind.started)
            retried.add_metric(labels, kind.retried)
            for word, count in kind.ended.items():
                ended.add_metric((*labels, word), count)
            _sample(took, labels, kind.seconds)
            _sample(waited, labels, kind.waited)
        yield from (started, ended, retried, took, waited)
        yield from self._of_process()

    def _of_process(self) -> "Iterator[Metric]":
        from prometheus_client import core  # noqa: PLC0415 - an extra

        settling = core.HistogramMetricFamily(
            "milepost_settle_seconds", "How long it took to write a batch of outcomes.", labels=()
        )
        _sample(settling, (), self._settling)
        lost = core.CounterMetricFamily(
            "milepost_lease_losses",
            "Attempts whose lease was lost: found by settling too late, or by a sweep.",
            labels=("found",),
        )
        for found, count in self._losses.items():
            lost.add_metric((found,), count)
        looks = core.CounterMetricFamily(
            "milepost_limit_looks",
            "Looks of this process for jobs under limits, by what they found.",
            labels=("outcome",),
        )
        for outcome, count in self._looks.items():
            looks.add_metric((outcome,), count)
        blocked = core.CounterMetricFamily(
            "milepost_limit_blocked_jobs",
            "Jobs that these looks met and a limit kept; one that waits is met again and again.",
        )
        blocked.add_metric((), self._blocked)
        yield from (settling, lost, looks, blocked)
        told = "Hints of queues on a broker, by what became of them in this process."
        yield _counter("milepost_hints_followed", told, "queue", self.hints, HINTED)
        told = "Final messages, by what became of them in this process."
        yield _counter("milepost_messages_sent", told, "channel", self.messages, DELIVERED)
        told = "Connections of a worker's pool."
        used = {} if self.driver is None else self.driver.use()
        yield _family("milepost_pool_connections", told, "state", used)


class StoreMetrics(msgspec.Struct, frozen=True, eq=False):
    """What stands where in the store; a registry knows it by its identity."""

    jobs: Counts
    runs: Counts
    workers: Mapping[str, int]
    weeks_full: bool
    oldest: Mapping[str, float]
    messages: Sequence[tuple[str, int, float]]
    watermarks: Mapping[str, float]
    hints: Mapping[str, HintStand] = {}
    reports: Sequence[BrokerReport] = ()
    limits: Sequence[LimitStand] = ()

    def collect(self) -> "Iterator[Metric]":
        """Give each family; Prometheus' library calls this."""
        yield _by_state("milepost_jobs", "Jobs by queue and state.", "queue", bounded(self.jobs))
        yield _by_state("milepost_runs", "Runs by batch and state.", "batch", bounded(self.runs))
        yield _family("milepost_workers", "Workers by state.", "state", self.workers)
        full = _gauge(
            "milepost_journal_partition_full",
            "1 while the journal gets no more weeks, its default partition being too large.",
        )
        full.add_metric((), int(self.weeks_full))
        yield full
        ages = {**dict.fromkeys(self.jobs, 0.0), **self.oldest}
        told = "How long the oldest job of a queue has been due, paused queues included."
        yield _family("milepost_queue_oldest_seconds", told, "queue", ages)
        counts = {channel: float(count) for channel, count, _ in self.messages}
        waits = {channel: seconds for channel, _, seconds in self.messages}
        told = "Messages that wait to be delivered, or pulled."
        yield _family("milepost_outbox_messages", told, "channel", counts, rest=sum)
        told = "How long the oldest of them has waited."
        yield _family("milepost_outbox_oldest_seconds", told, "channel", waits)
        told = "How far a pipeline's watermark is behind; of a sequence, since it last moved."
        yield _family("milepost_watermark_lag_seconds", told, "pipeline", self.watermarks)
        yield from self._of_limits()
        yield from self._of_brokers()

    def _of_limits(self) -> "Iterator[Metric]":
        """Tell how limits stand: of the busiest, and of the rest together; keys are no labels."""
        labels = ("scope", "limit")
        most = _gauge("milepost_limit_most", "How many may run at once, of each key.", labels)
        for one in _busiest(self.limits)[: NAMES_MOST - 1]:
            if one.most is not None:
                most.add_metric((one.scope, one.name), one.most)
        yield most
        told = "Live leases under a limit, over all keys, counted up to a bound."
        yield _of_each("milepost_limit_running", told, self.limits, lambda one: one.running)
        told = "Jobs in line under a limit, over all keys, counted up to a bound."
        yield _of_each("milepost_limit_waiting", told, self.limits, lambda one: one.waiting)

    def _of_brokers(self) -> "Iterator[Metric]":
        states = {q: {"told": one.told, "untold": one.untold} for q, one in self.hints.items()}
        told = "Jobs that were handed to a broker and not claimed: told, or not confirmed yet."
        yield _by_state("milepost_hints", told, "queue", bounded(states))
        told = "How long the oldest of them has been there."
        ages = {queue: one.oldest for queue, one in self.hints.items()}
        yield _family("milepost_hint_oldest_seconds", told, "queue", ages)
        told = "1 while the broker of a queue or an inbound answers, else 0."
        up = _gauge("milepost_broker_up", told, ("side", "name"))
        told = "Messages on a broker as it counts them: waiting, in flight, redelivered, dead."
        there = _gauge("milepost_broker_messages", told, ("side", "name", "state"))
        for report in self.reports[:NAMES_MOST]:
            up.add_metric((report.side, report.name), int(report.up))
            for state, count in report.figures.items():
                there.add_metric((report.side, report.name, state), count)
        yield from (up, there)


def read() -> Steps[StoreMetrics]:
    """Count what stands where."""
    counted = yield from jobs.counts()
    return StoreMetrics(
        jobs=counted,
        runs=(yield from chains.kinds()),
        workers=(yield from workers.counts()),
        weeks_full=(yield from retention.weeks_full()) is not None,
        oldest=(yield from queues.oldest()),
        messages=(yield from outbox.waiting()),
        watermarks=(yield from watermarks.lags()),
        hints=(yield from brokers.hints()),
        reports=(yield from brokers.reports()),
        limits=(yield from limit_looks.listing(counted)),
    )


def _busiest(limits: Sequence[LimitStand]) -> list[LimitStand]:
    return sorted(limits, key=lambda one: -((one.running or 0) + (one.waiting or 0)))


def _of_each(
    name: str,
    told: str,
    limits: Sequence[LimitStand],
    number: Callable[[LimitStand], int | None],
) -> Any:
    family = _gauge(name, told, ("scope", "limit"))
    counted = [(one, found) for one in _busiest(limits) if (found := number(one)) is not None]
    for one, found in counted[: NAMES_MOST - 1]:
        family.add_metric((one.scope, one.name), found)
    if rest := counted[NAMES_MOST - 1 :]:
        family.add_metric(ALL_OTHERS, sum(found for _, found in rest))
    return family


def bounded(counts: Counts) -> Counts:
    """Keep the names that hold the most, and count the rest as one."""
    if len(counts) <= NAMES_MOST:
        return counts
    ranked = sorted(counts, key=lambda name: (-sum(counts[name].values()), name))
    kept = {name: counts[name] for name in ranked[: NAMES_MOST - 1]}
    rest: dict[str, int] = {}
    for name in ranked[NAMES_MOST - 1 :]:
        for state, count in counts[name].items():
            rest[state] = rest.get(state, 0) + count
    return {**kept, OTHERS: rest}


def _by_state(name: str, told: str, label: str, counts: Counts) -> Any:
    family = _gauge(name, told, (label, "state"))
    for each, by_state in counts.items():
        for state, count in by_state.items():
            family.add_metric((each, state), count)
    return family


def _counter(
    name: str, told: str, label: str, counts: Counts, outcomes: Sequence[str]
) -> "CounterMetricFamily":
    """Make a counter of known outcomes; whatever else was counted is told as `left`."""
    from prometheus_client import core  # noqa: PLC0415 - an extra

    family = core.CounterMetricFamily(name, told, labels=(label, "outcome"))
    for each, by_outcome in bounded({each: dict(found) for each, found in counts.items()}).items():
        for outcome in outcomes:
            family.add_metric((each, outcome), by_outcome.get(outcome, 0))
    return family


def _family(
    name: str,
    told: str,
    label: str,
    values: Mapping[str, float],
    *,
    rest: Callable[[Iterable[float]], float] = max,
) -> Any:
    """Make a gauge; of names beyond the limit the largest values are told, and one for the rest."""
    family = _gauge(name, told, (label,))
    ranked = sorted(values, key=lambda each: (-values[each], each))
    for each in ranked[: NAMES_MOST - 1]:
        family.add_metric((each,), values[each])
    if others := ranked[NAMES_MOST - 1 :]:
        family.add_metric((OTHERS,), rest(values[each] for each in others))
    return family


def _gauge(name: str, told: str, labels: Sequence[str] = ()) -> Any:
    from prometheus_client import core  # noqa: PLC0415 - an extra

    return core.GaugeMetricFamily(name, told, labels=labels)


# The place to read them


class _Collected:
    """Collects a worker's families, and those of the store if that is there."""

    def __init__(self, own: WorkerMetrics, counted: Callable[[], StoreMetrics]) -> None:
        self._own = own
        self._counted = counted

    def collect(self) -> "Iterator[Metric]":
        yield from self._own.collect()
        try:
            found: Iterable[Any] = list(self._counted().collect())
        except MilepostError:
            found = ()
        up = _gauge("milepost_store_up", "1 while the store answers, else 0.")
        up.add_metric((), int(bool(found)))
        yield from (up, *found)


@contextmanager
def serving(
    host: str, port: int, own: WorkerMetrics, counted: Callable[[], StoreMetrics]
) -> Iterator[tuple[str, int]]:
    """Serve a worker's metrics from a thread; gives the address, with the port that was free."""
    try:
        from prometheus_client import (  # noqa: PLC0415 - an extra
            CollectorRegistry,
            ProcessCollector,
            start_http_server,
        )
    except ImportError as error:
        raise Invalid(NEEDED) from error
    registry = CollectorRegistry()
    registry.register(_Collected(own, counted))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        told = f"metrics cannot be served on {host}:{port}: {error}"
        raise Invalid(f"{told}; choose another address: --metrics [HOST:]PORT") from error
    try:
        yield host, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
