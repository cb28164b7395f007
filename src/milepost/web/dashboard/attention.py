"""What needs somebody: sentences that name the trouble, the worst first, each with one action."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

import msgspec

from milepost.records import ErrorGroup, Queue, Worker
from milepost.store.dashboard import Checked
from milepost.store.job_facts import is_live, takes
from milepost.web.dashboard import words
from milepost.web.dashboard.facts import STUCK_SECONDS, Facts

RECENT = timedelta(minutes=15)
FAILING_LEAST = 5
"""An error that came less often in this hour and the last is among the errors, not here."""
UNSERVED_SECONDS = 30.0
BURIED_SECONDS = 30.0
"""By then another worker has noticed one whose lease expired, if another is alive."""


class Sentence(msgspec.Struct, frozen=True):
    """One trouble: its glyph, who and what in words, and where to go or what to do."""

    glyph: str
    subject: str
    """The trouble alone, without numbers that pass: it is also read out."""
    said: str
    more: str
    label: str
    path: str
    query: str = ""
    asks: bool = False
    """Whether the action asks for confirmation."""


def sentences(
    queues: Sequence[Queue],
    oldest: Mapping[str, float],
    facts: Facts,
    checks: Mapping[str, Checked],
    now: datetime,
) -> list[Sentence]:
    """Name all troubles: the worst of each kind first, since few are seen at first sight."""
    kinds = [
        list(_errors(facts.errors, now)),
        list(_unserved(queues, oldest, facts.live)),
        list(_paused(queues, oldest, now)),
        list(_lost(facts.workers, now)),
        list(_behind(facts)),
        list(_late(facts)),
    ]
    worst = [kind[0] for kind in kinds if kind]
    return [*_checks(checks), *worst, *(one for kind in kinds for one in kind[1:])]


def _checks(checks: Mapping[str, Checked]) -> Iterator[Sentence]:
    for name, check in checks.items():
        if not check.clean:
            yield Sentence(
                *("failed", f"{name} found something"),
                f"at {words.clock(check.at, seconds=False)}: {check.summary}",
                f"milepost {name} says more",
                *("Jobs", "/jobs"),
            )


def _errors(groups: Sequence[ErrorGroup], now: datetime) -> Iterator[Sentence]:
    recent = [
        group
        for group in groups
        if now - group.last_at < RECENT
        and sum(group.hours[-2:]) >= FAILING_LEAST
        and (group.failed or group.open)
    ]
    for group in sorted(recent, key=lambda one: -(one.failed + one.open)):
        told = [f"{words.plural(group.failed, 'job')} failed"] if group.failed else []
        told += [f"{words.count(group.open)} will be tried again"] if group.open else []
        yield Sentence(
            *("failed", f"{group.kind or 'A job'} fails"),
            f"since {words.clock(group.first_at, seconds=False)}: "
            f"{words.cut(f'{group.type}: {group.message}', 90)}",
            ", ".join(told),
            *("Show error", f"/errors/{quote(group.fingerprint)}"),
        )


def _unserved(
    queues: Sequence[Queue], oldest: Mapping[str, float], live: Sequence[Worker]
) -> Iterator[Sentence]:
    for queue in queues:
        waited = oldest.get(queue.name, 0.0)
        if queue.paused or waited < UNSERVED_SECONDS:
            continue
        waiting = words.plural(queue.counts.get("QUEUED", 0), "job")
        if not any(takes(worker, queue.name) for worker in live):
            yield Sentence(
                *("retrying", f"No worker serves queue {queue.name}"),
                "" if live else "and none is alive",
                f"{waiting} waiting, the oldest {words.duration(waited)}",
                *("Show queue", "/queues", urlencode({"name": queue.name})),
            )
        elif waited > STUCK_SECONDS:
            yield Sentence(
                *("retrying", f"Queue {queue.name} waits"),
                f"for {words.duration(waited)}",
                f"{waiting} waiting, {words.count(queue.counts.get('RUNNING', 0))} running",
                *("Why?", "/queues", urlencode({"name": queue.name})),
            )


def _paused(
    queues: Sequence[Queue], oldest: Mapping[str, float], now: datetime
) -> Iterator[Sentence]:
    for queue in queues:
        if not queue.paused:
            continue
        since = words.duration((now - queue.paused_at).total_seconds()) if queue.paused_at else ""
        reason = f": “{words.cut(queue.reason, 60)}”" if queue.reason else ""
        waited = oldest.get(queue.name)
        old = f", oldest {words.duration(waited)}" if waited else ""
        yield Sentence(
            *("paused", f"Queue {queue.name} is paused"),
            f"for {since} by {queue.paused_by or 'somebody'}{reason}",
            f"{words.count(queue.counts.get('QUEUED', 0))} waiting{old}",
            *("Resume", f"/queues/{quote(queue.name, safe='')}/resume"),
            asks=True,
        )


def _lost(workers: Sequence[Worker], now: datetime) -> Iterator[Sentence]:
    lost = [worker for worker in workers if _is_lost(worker, now)]
    if lost:
        elsewhere = "their jobs go on elsewhere"
        if not any(is_live(worker) for worker in workers):
            elsewhere = "no worker is alive to take over their jobs"
        latest = max(lost, key=lambda worker: worker.lease_until)
        ago = words.ago((now - latest.lease_until).total_seconds())
        told = f"{words.plural(len(lost), 'worker')} {'was' if len(lost) == 1 else 'were'} lost"
        yield Sentence(
            *("retrying", told),
            f"the latest {ago}: {latest.id}",
            elsewhere,
            *("Show workers", "/queues"),
        )


def _is_lost(worker: Worker, now: datetime) -> bool:
    """Tell whether a worker died lately, or died and no other worker was there to notice."""
    if worker.state == "STOPPED":
        return worker.move == "bury" and now - worker.lease_until < RECENT
    return worker.lease_seconds < -BURIED_SECONDS


def _behind(facts: Facts) -> Iterator[Sentence]:
    late = [
        (behind, within, name)
        for name, (behind, within) in facts.lags.items()
        if within is not None and behind > within
    ]
    for behind, within, name in sorted(late, reverse=True):
        yield Sentence(
            *("retrying", f"Pipeline {name} is behind"),
            f"by {words.duration(behind)}: fresh within {words.span(within)} was asked for",
            "",
            *("Open", f"/pipelines/{quote(name, safe='')}"),
        )


def _late(facts: Facts) -> Iterator[Sentence]:
    for name, (count, age) in facts.undelivered.items():
        if age > STUCK_SECONDS:
            yield Sentence(
                *("retrying", f"Channel {name} is late"),
                f"by {words.duration(age)}",
                f"{words.plural(count, 'message')} waiting",
                *("Show channel", "/channels", urlencode({"name": name})),
            )
