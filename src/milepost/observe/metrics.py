"""Metrics of Prometheus: what a worker counts, what the store holds, and the place to read both.

A worker counts in batches, when it claims and when it settles, and only where it is asked to. Units
are base units, and no label grows with what callers send.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from milepost.errors import MilepostError, Unavailable
from milepost.lifecycle import JobState
from milepost.outcome import Outcome
from milepost.records import Claim
from milepost.store import chains, jobs, outbox, queues, retention, watermarks, workers
from milepost.store.driver import AsyncDriver, Steps

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

NAMES_MOST = 200
"""How many queues, kinds or batches have labels of their own; the rest share one."""
OTHERS = "(others)"
BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0),
)
LABELS = ("queue", "kind")
ENDED = {
    state: state.lower() for state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
}
NEEDED = "metrics need an extra: pip install 'milepost[metrics]'"
Counts = Mapping[str, Mapping[str, int]]


class Histogram:
    """Durations, by bucket."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def add_to(self, family: "HistogramMetricFamily", labels: Sequence[str]) -> None:
        """Write it as a sample of a family."""
        bounds = [*(str(bound) for bound in BUCKETS), "+Inf"]
        total, buckets = 0, []
        for bound, count in zip(bounds, self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(labels, buckets, sum_value=self.sum)


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
        self.driver: AsyncDriver | None = None
        """The way to the store whose connections are counted."""

    def _kind(self, claim: Claim) -> KindMetrics:
        found = self._kinds.get((claim.queue, claim.kind))
        if found is not None:
            return found
        full = len(self._kinds) >= NAMES_MOST - 1
        labels = (OTHERS, OTHERS) if full else (claim.queue, claim.kind)
        return self._kinds.setdefault(labels, KindMetrics())

    def started(self, claims: Iterable[Claim]) -> None:
        """Count the jobs of a claim, and how long each of them waited."""
        for claim in claims:
            kind = self._kind(claim)
            kind.started += 1
            if claim.waited_us is not None:
                kind.waited.observe(max(0.0, claim.waited_us / 1e6))

    def settled(self, ended: Iterable[tuple[Claim, Outcome, float | None]]) -> None:
        """Count outcomes that were written: each with the seconds that its attempt took."""
        for claim, outcome, seconds in ended:
            kind = self._kind(claim)
            if (word := ENDED.get(outcome.state)) is not None:
                kind.ended[word] += 1
            elif outcome.move == "retry":
                kind.retried += 1
            if seconds is not None:
                kind.seconds.observe(seconds)

    def wrote(self, seconds: float) -> None:
        """Count a settlement of a batch."""
        self._settling.observe(seconds)

    def lost(self, count: int, *, found: str) -> None:
        """Count leases that were lost: found when a result came too late, or by a sweep."""
        self._losses[found] += count

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
            kind.seconds.add_to(took, labels)
            kind.waited.add_to(waited, labels)
        yield from (started, ended, retried, took, waited)
        yield from self._of_process()

    def _of_process(self) -> "Iterator[Metric]":
        from prometheus_client import core  # noqa: PLC0415 - an extra

        settling = core.HistogramMetricFamily(
            "milepost_settle_seconds", "How long it took to write a batch of outcomes.", labels=()
        )
        self._settling.add_to(settling, ())
        lost = core.CounterMetricFamily(
            "milepost_lease_losses",
            "Attempts whose lease was lost: found by settling too late, or by a sweep.",
            labels=("found",),
        )
        for found, count in self._losses.items():
            lost.add_metric((found,), count)
        yield from (settling, lost)
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
        yield _family("milepost_outbox_messages", told, "channel", counts)
        told = "How long the oldest of them has waited."
        yield _family("milepost_outbox_oldest_seconds", told, "channel", waits)
        told = "How far a pipeline's watermark is behind; of a sequence, since it last moved."
        yield _family("milepost_watermark_lag_seconds", told, "pipeline", self.watermarks)


def read() -> Steps[StoreMetrics]:
    """Count what stands where."""
    return StoreMetrics(
        jobs=(yield from jobs.counts()),
        runs=(yield from chains.kinds()),
        workers=(yield from workers.counts()),
        weeks_full=(yield from retention.weeks_full()) is not None,
        oldest=(yield from queues.oldest()),
        messages=(yield from outbox.waiting()),
        watermarks=(yield from watermarks.lags()),
    )


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


def _family(name: str, told: str, label: str, values: Mapping[str, float]) -> Any:
    """Make a gauge; of names beyond the limit the largest values are told, and one for the rest."""
    family = _gauge(name, told, (label,))
    ranked = sorted(values, key=lambda each: (-values[each], each))
    for each in ranked[: NAMES_MOST - 1]:
        family.add_metric((each,), values[each])
    if rest := ranked[NAMES_MOST - 1 :]:
        family.add_metric((OTHERS,), values[rest[0]])
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
        raise Unavailable(NEEDED) from error
    registry = CollectorRegistry()
    registry.register(_Collected(own, counted))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise Unavailable(f"metrics cannot be served on {host}:{port}: {error}") from error
    try:
        yield host, server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
