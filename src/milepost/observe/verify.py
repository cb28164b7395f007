"""Folds the journal from empty and compares it with the live rows.

Both are read once, in the order of their ids, from one snapshot and side by side, so memory does
not grow with the store. The fold knows nothing of the triggers: it is the second opinion. Then the
counters of each run's steps are compared with the jobs that are there, the outputs and steps of
attempts with the fences that their jobs have had, and every end that has a channel with its
message. Before all that come the guards themselves: those that stand, with those that the lifecycle
renders.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from milepost.errors import IllegalMove
from milepost.history import SNAPSHOT, Entry, Standing
from milepost.lifecycle import JOB, RUN, JobState
from milepost.machine import Machine
from milepost.store import archive
from milepost.store.archive import ArchivedEntry
from milepost.store.driver import Call, Driver, Reader
from milepost.store.guards import guards, wrong

BATCH = 5_000
PROBLEMS_KEPT = 1_000

Row = tuple[Any, ...]
COUNTED = ("open", "succeeded", "failed", "cancelled")
CHECKS: dict[str, tuple[str, Machine, str]] = {
    "verify_runs": ("I15", RUN, "it is {} and has open jobs or batches"),
    "verify_kept": ("I2", JOB, "it has a {} of an attempt that it never had"),
    "verify_poisoned": ("I5", JOB, "it is poisoned, but was not claimed alone"),
    "verify_orphans": ("I15", JOB, "its run {} is not there"),
    "verify_orphan_batches": ("I15", RUN, "its parent {} is not there"),
}
"""Queries whose every row, an id and the values of a text, is a discrepancy; their promises."""
COMPARED = ("version", "state", "move", "fence", "errors", "losses", "polls", "releases")


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """One thing that should be impossible."""

    machine: str
    subject_id: str
    text: str
    promise: str
    """The one that does not hold, of docs/specs/promises.md."""

    def __str__(self) -> str:
        return f"{self.machine} {self.subject_id}: {self.text}"


@dataclass(slots=True)
class Findings:
    """How much was compared, and the discrepancies found."""

    entries: int = 0
    rows: int = 0
    pruned: int = 0
    guards: int | None = None
    """How many guards were compared; None where the role may not render them to compare with."""
    found: int = 0
    problems: list[Discrepancy] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Tell whether the journal and the rows agree, and their guards stand."""
        return self.found == 0

    def add(self, machine: Machine | str, subject_id: str, text: str, promise: str = "I8") -> None:
        """Count a problem, and keep it while there are not too many."""
        self.found += 1
        if len(self.problems) < PROBLEMS_KEPT:
            name = machine if isinstance(machine, str) else machine.name
            self.problems.append(Discrepancy(name, subject_id, text, promise))


def verify(driver: Driver, *, progress: Callable[[int, int], None] | None = None) -> Findings:
    """Compare the whole journal with the live rows; `progress` hears (entries done, of all)."""
    findings = Findings()
    # First of all: however much else is found, a guard that is missing is among what is kept.
    found = guards(driver)
    findings.guards = None if found.rendered is None else len(found.rendered)
    for guard, text in wrong(found):
        findings.add("guard", str(guard), text)
    with driver.snapshot() as reader:
        [(total,)] = reader.rows(Call("journal_count"))
        for machine in (JOB, RUN):
            for subject_id, replay, row in _side_by_side(reader, machine):
                _compare(findings, machine, subject_id, replay, row)
                if progress is not None:
                    progress(findings.entries, total)
        for run_id, text in _miscounted(reader):
            findings.add(RUN, run_id, text, "I13")
        for name, (promise, machine, text) in CHECKS.items():
            for subject_id, *values in reader.stream(Call(name), size=BATCH):
                findings.add(machine, subject_id, text.format(*values), promise)
        for machine_name, subject_id, text in reader.stream(Call("verify_messages"), size=BATCH):
            findings.add(machine_name, subject_id, text, "I16")
    return findings


@dataclass(slots=True)
class ArchiveFindings(Findings):
    """How much of an archive was read, and the discrepancies found."""

    files: int = 0
    histories: int = 0


def verify_archive(folder: Path) -> ArchiveFindings:
    """Check the files of an archive, and fold every history in it; a week at a time is in memory.

    A history may go on in the store: it need not come to an end here.
    """
    findings = ArchiveFindings()
    for week in archive.weeks(folder):
        histories = _archived(findings, week)
        findings.histories += len(histories)
        for (name, subject_id), entries in sorted(histories.items()):
            findings.entries += len(entries)
            replay = Replay(JOB if name == JOB.name else RUN)
            for _, entry in sorted(entries.items()):
                replay.take(_row_of(entry))
            if replay.broken is not None:
                findings.add(name, subject_id, f"its history is broken: {replay.broken}")
    return findings


Histories = dict[tuple[str, str], dict[int, ArchivedEntry]]


def _archived(findings: ArchiveFindings, week: Path) -> Histories:
    """Read the entries of a week, each once, by their subjects."""
    histories: Histories = {}
    paths = {path.name: path for path in sorted(week.glob("*.jsonl"))}
    for name in sorted(archive.listed(week) - set(paths)):
        findings.add("file", f"{week.name}/{name}", "it is listed, and not there")
    for name, path in paths.items():
        findings.files += 1
        if not archive.is_whole(path):
            findings.add("file", f"{week.name}/{name}", "it was changed: its checksum is another")
        for entry in archive.read(path):
            if isinstance(entry, str):
                findings.add("file", f"{week.name}/{name}", entry)
                continue
            known = histories.setdefault((entry.machine, entry.subject), {})
            if (kept := _once(known.get(entry.seq), entry)) is None:
                text = f"entry {entry.seq} is told in two ways"
                findings.add(entry.machine, entry.subject, text)
            else:
                known[entry.seq] = kept
    return histories


def _once(known: ArchivedEntry | None, entry: ArchivedEntry) -> ArchivedEntry | None:
    """Choose one of two tellings of an entry: the move itself, not its summary; None: neither."""
    if known is None or known == entry or known.move == SNAPSHOT:
        return entry
    return known if entry.move == SNAPSHOT else None


def _row_of(entry: ArchivedEntry) -> Row:
    """Give an entry as the journal's query gives it."""
    moved = (entry.seq, entry.move, entry.from_state, entry.to_state)
    return (entry.subject, *moved, entry.fence, entry.actor, entry.detail)


def _miscounted(reader: Reader) -> Iterator[tuple[str, str]]:
    """Name the steps whose counters differ from their jobs."""
    for run_id, step, *counts in reader.stream(Call("verify_steps"), size=BATCH):
        pairs = zip(counts[::2], counts[1::2], strict=True)
        for name, (counted, there) in zip(COUNTED, pairs, strict=True):
            if counted < there or (name == "open" and counted != there):
                yield run_id, f"its step {step} counts {counted} {name} jobs, but has {there}"


@dataclass(slots=True)
class Replay:
    """One subject's journal, folded entry by entry."""

    machine: Machine
    entries: int = 0
    standing: Standing = field(default_factory=Standing)
    last: Row = ()
    mute: bool = False
    """Whether it begins with a snapshot without a summary: not one of retention's."""
    broken: str | None = None

    def take(self, row: Row) -> None:
        """Fold one more entry; after the first that cannot follow, only count."""
        self.entries += 1
        self.last = row
        if self.broken is not None:
            return
        entry = _entry(row)
        try:
            self.standing = self.standing.after(entry, self.machine)
        except IllegalMove as error:
            self.broken = str(error)
        self.mute |= entry.move == SNAPSHOT and entry.summary is None


def _entry(row: Row) -> Entry:
    _, seq, move, source, target, fence, actor, detail = row
    return Entry(seq, move, source, target, fence, None, actor, detail)


def _side_by_side(reader: Reader, machine: Machine) -> Iterator[tuple[str, Replay, Row | None]]:
    """Pair each subject's folded journal with its row; either may be missing."""
    entries = reader.stream(Call("verify_entries", {"machine": machine.name}), size=BATCH)
    rows = reader.stream(Call(f"verify_{machine.name}_rows"), size=BATCH)
    row = next(rows, None)
    for subject_id, group in groupby(entries, key=itemgetter(0)):
        while row is not None and row[0] < subject_id:
            yield row[0], Replay(machine), row
            row = next(rows, None)
        replay = Replay(machine)
        for entry in group:
            replay.take(entry)
        if row is not None and row[0] == subject_id:
            yield subject_id, replay, row
            row = next(rows, None)
        else:
            yield subject_id, replay, None
    while row is not None:
        yield row[0], Replay(machine), row
        row = next(rows, None)


def _compare(
    findings: Findings, machine: Machine, subject_id: str, replay: Replay, row: Row | None
) -> None:
    findings.entries += replay.entries
    findings.rows += row is not None
    if replay.entries == 0:
        findings.add(machine, subject_id, "it has a row but no journal")
    elif replay.broken is not None:
        findings.add(machine, subject_id, f"its journal is broken: {replay.broken}", "I9")
    elif row is not None:
        for text in _differences(replay, row):
            findings.add(machine, subject_id, text)
    elif replay.standing.state in machine.terminal:
        findings.pruned += 1
    else:
        ended = replay.standing.state
        findings.add(machine, subject_id, f"its journal ends in {ended} but it has no row")


def _differences(replay: Replay, row: Row) -> Iterator[str]:
    *compared, worker, actor, detail = row[1:]
    runs = replay.machine is JOB and replay.standing.state == JobState.RUNNING
    if runs != (worker is not None):
        yield f"it is {replay.standing.state} and its worker is {worker}"
    for name, value in zip(COMPARED, compared, strict=False):
        if replay.mute and name in ("move", "errors", "losses", "polls", "releases"):
            continue
        due = getattr(replay.standing, name)
        if value != due:
            yield f"its row says {name} {value}, its journal {due}"
    last = _entry(replay.last)
    said = last.summary.detail if last.summary is not None else last.detail
    if (actor, detail) != (last.actor, said) and not replay.mute:
        yield "its row's actor or detail is not that of its last entry"
