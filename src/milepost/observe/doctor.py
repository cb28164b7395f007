"""Finds what should be impossible in a store, and what is wrong around it.

`verify` compares the journal with the rows; here come the promises that other tables show, the
moves that have been due for too long, and the environment. A repair is a legal move, made by the
operation that the engine has for it and journalled like any other.
"""

import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from milepost.address import SQLITE_SHARED, StoreUrl
from milepost.errors import IllegalMove, MilepostError, NotFound, SchemaMismatch, Unavailable
from milepost.observe.verify import Findings, verify
from milepost.outcome import micros
from milepost.store import (
    brokers,
    fanin,
    jobs,
    limit_faults,
    migrate,
    outbox,
    schedules,
    tally,
    workers,
)
from milepost.store.brokers import BrokerReport
from milepost.store.driver import AsyncDriver, Call, Driver, Reader, Rows, Steps
from milepost.store.job_facts import is_live, takes
from milepost.store.phrases import moment, none_of, some

BATCH = 5_000
KEPT = 1_000
"""How many findings that are alike are kept; all are counted."""
GRACE_SECONDS = 60.0
"""So long a move may be due: two sweeps of maintenance, and a minute of a busy store."""
LAGGING_SECONDS = 300.0
LONG_SECONDS = 600.0
SKEW_SECONDS = 30.0

RESTORE = "compare it with a backup; `milepost jobs history ID` has every move that was journalled"
RESTORE_RUN = "compare it with a backup; `milepost runs show ID` has how it stands"
MAINTENANCE = "any worker's maintenance does it: start one, or `milepost doctor --repair`"


class Check(msgspec.Struct, frozen=True):
    """One query whose every row, an id and the values of a text, is a finding."""

    code: str
    subject: str
    text: str
    advice: str
    repair: str = ""


PROMISES = {
    "doctor_claims": Check(
        "I5", "job", "it was claimed {} times, and {} of its claims ended", RESTORE
    ),
    "doctor_budgets": Check("I5", "job", "it failed {} times and may {}", RESTORE),
    "doctor_kept": Check(
        "I2", "job", "it has a {} of an attempt that it never had", "delete that row: see its fence"
    ),
    "doctor_advances": Check(
        "I11", "run", "it advanced {} times and has {} steps", "`milepost runs show ID`; resume it"
    ),
    "doctor_reducers": Check(
        "I11", "run", "it has {} reducers", "cancel those that did not begin; keep one result"
    ),
    "doctor_gates": Check(
        "I12",
        "job",
        "it is past the closed gate of step {}",
        "cancel its run and resume it: `milepost runs cancel ID`, `milepost runs resume ID`",
    ),
    "doctor_pages": Check(
        "I13", "run", "it has {} pages of partition {}, from {} to {}", "start a full run"
    ),
    "doctor_marks": Check(
        "I14",
        "pipeline",
        "its watermark: {}",
        "set it by hand to a point that was read: `milepost pipelines watermark`",
    ),
    "doctor_messages": Check(
        "I16", "message", "its id is not that of its subject's move (channel {})", RESTORE
    ),
    "doctor_unique": Check(
        "I17", "job", "another live job has its unique key {!r}", "`milepost jobs cancel ID`"
    ),
    "doctor_cancelled": Check(
        "I18",
        "job",
        "it was cancelled ({}) while it ran, and did not end",
        "`milepost jobs cancel ID`, or `milepost doctor --repair`",
        repair="cancel",
    ),
    "doctor_left_open": Check(
        "I15",
        "job",
        "it is open and its run {} has ended",
        "`milepost jobs cancel ID`, or `milepost doctor --repair`",
        repair="cancel",
    ),
}
DUE = {
    "doctor_leases": Check(
        "I15", "job", "its worker {} is gone", MAINTENANCE, repair="maintenance"
    ),
    "doctor_due": Check("due", "job", "its time has come and it is {}", MAINTENANCE, "maintenance"),
    "doctor_late": Check(
        "due", "job", "its deadline has passed and it is {}", MAINTENANCE, "maintenance"
    ),
    "doctor_spent": Check(
        "I5", "job", "its attempts are spent and it is {}", MAINTENANCE, "maintenance"
    ),
    "doctor_stranded": Check(
        "I12", "job", "it waits at the gate of step {}, which is open", MAINTENANCE, "maintenance"
    ),
}
"""Moves that have been due for longer than the grace."""
AROUND = {
    "doctor_workers": Check(
        "worker",
        "worker",
        "it stopped beating and holds {} jobs",
        MAINTENANCE,
        repair="maintenance",
    ),
    "doctor_leads": Check(
        "clock",
        "worker",
        "its lease reaches too far ahead: the clock went back",
        MAINTENANCE,
        "maintenance",
    ),
    "doctor_totals": Check(
        "totals",
        "queue",
        "{} jobs are counted in it, and it holds {}",
        "`milepost doctor --repair` counts them again; pages and metrics show what is counted",
        repair="recount",
    ),
    "doctor_stale": Check("pipeline", "pipeline", "{}", "`milepost explain pipeline NAME`"),
    "doctor_offset": Check(
        "clock", "store", "its clock was moved by {} s", "only tests do that: UPDATE clock"
    ),
}
ADVICE = {
    "transaction": "end it: nothing that died since then can be removed",
    "bloat": "VACUUM it; look for old transactions first",
    "rights": "`milepost grants` prints the rights that each role needs; revoke the rest",
    "wal": "PRAGMA journal_mode = wal; without it readers and writers wait for each other",
    "index": "REINDEX it",
    "checksums": "restore a backup on other disks",
    "file": "restore a backup: `milepost verify --store COPY` first",
    "guard": "restore the schema's guards: `milepost migrate --sql --dialect …` prints them",
}
ATTENTION = frozenset(
    (
        "due",
        "worker",
        "clock",
        "pipeline",
        "queue",
        "limit",
        "channel",
        "broker",
        "schedule",
        "sqlite",
    )
) | frozenset(("transaction", "bloat", "rights", "wal", "totals", "limit"))
"""Codes of findings that break no promise: somebody should look, and nothing is wrong yet."""


Alike = tuple[str, str, str]
"""A code, a kind of subject and an advice: findings that share them are told together."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, and what to do about it."""

    code: str
    """The promise that does not hold, or a word for what is wrong around the store."""
    subject: str
    id: str
    text: str
    advice: str
    """What to do, the same for all alike: `ID` and `NAME` stand for the one that is meant."""
    repair: str = ""
    """What repairs it: to `cancel` or `recount` it, or the moves that `maintenance` makes."""

    @property
    def repairable(self) -> bool:
        """Whether legal moves repair it."""
        return self.repair != ""

    @property
    def breaks_promise(self) -> bool:
        """Whether something is wrong that should be impossible."""
        return self.code not in ATTENTION

    @property
    def alike(self) -> Alike:
        """What findings share that are told together."""
        return self.code, self.subject, self.advice

    @property
    def remedy(self) -> str:
        """What to do about this one."""
        return re.sub(r"\b(ID|NAME)\b", lambda _: shlex.quote(self.id), self.advice)

    def __str__(self) -> str:
        return f"{self.code}: {self.subject} {self.id}: {self.text}"


class Diagnosis(msgspec.Struct):
    """Everything that was found in a store and around it."""

    findings: list[Finding] = []
    found: int = 0
    alike: Counter[Alike] = msgspec.field(default_factory=Counter)
    compared: Findings | None = None

    @property
    def unguarded(self) -> str:
        """Why a repair might not be checked and journalled; empty where every guard stands."""
        if any(code == "guard" for code, _, _ in self.alike):
            return "a guard is missing, so a move would not be journalled"
        if self.compared is not None and self.compared.guards is None:
            return "this role may not compare the guards: run it as the owner of the tables"
        return ""

    @property
    def breaks_promise(self) -> bool:
        """Whether one of the findings should be impossible."""
        return any(code not in ATTENTION for code, _, _ in self.alike)

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it while there are not too many alike."""
        self.found += 1
        self.alike[finding.alike] += 1
        if self.alike[finding.alike] <= KEPT:
            self.findings.append(finding)


def diagnose(
    driver: Driver, url: StoreUrl, *, progress: Callable[[int, int], None] | None = None
) -> Diagnosis:
    """Look at everything; a store of another schema, or in a damaged file, no further."""
    diagnosis = Diagnosis()
    try:
        migrate.check(driver, url)
    except SchemaMismatch as error:
        diagnosis.add(Finding("schema", "store", str(url), str(error), "`milepost migrate`"))
        return diagnosis
    for found in _structures(driver):
        diagnosis.add(found)
    if any(found.id == "file" for found in diagnosis.findings):
        return diagnosis  # what it says is not to be trusted
    diagnosis.compared = verify(driver, progress=progress)
    diagnosis.found += diagnosis.compared.found - len(diagnosis.compared.problems)
    for found in (*_compared(diagnosis.compared), *broken(driver), *_environment(driver)):
        diagnosis.add(found)
    return diagnosis


def _compared(compared: Findings) -> Iterator[Finding]:
    for problem in compared.problems:
        code = "guard" if problem.machine == "guard" else problem.promise
        yield Finding(
            code,
            problem.machine,
            problem.subject_id,
            problem.text,
            ADVICE.get(code, RESTORE_RUN if problem.machine == "run" else RESTORE),
        )


def broken(driver: Driver) -> Iterator[Finding]:
    """Find promises that the rows themselves break, beyond those that `verify` compares."""
    with driver.snapshot() as reader:
        for name, check in PROMISES.items():
            yield from _rows(reader, Call(name), check)


def _rows(reader: Reader, call: Call, check: Check) -> Iterator[Finding]:
    for subject_id, *values in reader.stream(call, size=BATCH):
        text = check.text.format(*values)
        yield Finding(check.code, check.subject, subject_id, text, check.advice, check.repair)


def _environment(driver: Driver) -> Iterator[Finding]:
    with driver.snapshot() as reader:
        for name, check in (*DUE.items(), *AROUND.items()):
            yield from _rows(reader, Call(name, _wanted(name)), check)
        for code, subject, text in reader.rows(Call("doctor_server", {"long": LONG_SECONDS})):
            yield Finding(code, "store", subject, text, ADVICE[code])
    yield from driver.run(_looked_up)


def _wanted(name: str) -> dict[str, int]:
    graceless = ("doctor_totals", "doctor_stale", "doctor_offset")
    return {} if name in graceless else {"grace_us": micros(GRACE_SECONDS)}


def _structures(driver: Driver) -> Iterator[Finding]:
    def look() -> Steps[Rows]:
        return (yield Call("doctor_amcheck", seconds=3_600))

    try:
        with driver.snapshot() as reader:
            for code, text in reader.rows(Call("doctor_integrity")):
                yield Finding("I22", "store", code, text, ADVICE[code])
    except Unavailable as error:
        if not driver.can.file:
            raise
        yield Finding("I22", "store", "file", str(error), ADVICE["file"])
        return
    try:
        driver.run(look)
    except MilepostError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the extension says of an index
        yield Finding("I22", "store", "index", str(error), ADVICE["index"])


def _looked_up() -> Steps[list[Finding]]:
    """Find what takes more than a query: idle runs, unserved queues, lagging channels, clocks."""
    found: list[Finding] = []
    looks = (_idle_runs, _unserved, _limits, _lagging, _brokers, _unfired, _clock, _shared_file)
    for look in looks:
        found += yield from look()
    return found


def _idle_runs() -> Steps[list[Finding]]:
    rows = yield Call("doctor_idle_runs", {"grace_us": micros(GRACE_SECONDS)})
    idle = [run_id for (run_id,) in rows]
    due = (yield from fanin.overdue(idle)) if idle else []
    text = "it has no open job, and its next move was not made"
    return [
        Finding("I15", "run", run_id, text, MAINTENANCE, repair="maintenance") for run_id in due
    ]


def _unserved() -> Steps[list[Finding]]:
    rows = yield Call("doctor_queued", {"grace_us": micros(GRACE_SECONDS)})
    live = [worker for worker in (yield from workers.listing()) if is_live(worker)]
    found: dict[str, Finding] = {}
    for queue, kind, version, count, job_id in rows:
        if any(takes(worker, queue, kind, version) for worker in live):
            continue
        serving = any(takes(worker, queue) for worker in live)
        word = ("know", f"{kind} version {version}") if serving else ("serve", "it")
        wait = some(count, "job waits", "jobs wait")
        text = f"{wait} in it, and {none_of(len(live), *word)}"
        do = f"`milepost explain {job_id}`; start a worker that does: `milepost worker APP`"
        found.setdefault(f"{queue} {' '.join(word)}", Finding("queue", "queue", queue, text, do))
    return list(found.values())


def _limits() -> Steps[list[Finding]]:
    live = [worker for worker in (yield from workers.listing()) if is_live(worker)]
    return [
        Finding("limit", fault.subject, fault.id, fault.text, fault.advice)
        for fault in (yield from limit_faults.faults(live))
    ]


def _lagging() -> Steps[list[Finding]]:
    oldest = {name: (count, age) for name, count, age in (yield from outbox.waiting())}
    found = []
    for channel in (yield from outbox.known()):
        count, age = oldest.get(channel.name, (0, 0.0))
        dead = some(channel.dead, "message is dead", "messages are dead")
        told = [dead] if channel.dead else []
        if age > LAGGING_SECONDS:
            wait = some(count, "message waits", "messages wait")
            told.append(f"{wait}, the oldest for {age:.0f} s; it is {channel.state}")
        do = "`milepost explain channel NAME`"
        found += [Finding("channel", "channel", channel.name, text, do) for text in told]
    return found


def _brokers() -> Steps[list[Finding]]:
    """Find brokers that do not answer, and hints that nobody takes, follows or serves."""
    found = []
    for queue, one in (yield from brokers.queues()).items():
        kind, stand, report = one.kind, one.stand, one.report
        told = []
        if report is None or report.stale:
            told.append(f"it is on {kind}, and no running program serves it there")
        if stand is not None and stand.error is not None:
            told.append(f"{kind} does not take {stand.untold} of its hints: {stand.error}")
        if stand is not None and stand.told and stand.oldest > LAGGING_SECONDS:
            often = "once" if stand.tellings == 1 else f"up to {stand.tellings} times"
            told.append(
                f"{some(stand.told, 'job was', 'jobs were')} told, {often}, and not claimed, the "
                f"oldest handed out {stand.oldest:.0f} s ago"
            )
        do = "`milepost explain queue NAME`"
        found += [Finding("broker", "queue", queue, text, do) for text in told]
    reports = yield from brokers.reports()
    return found + [each for report in reports for each in _reported(report)]


def _reported(report: BrokerReport) -> Iterator[Finding]:
    do = "see that it runs and that MILEPOST_BROKER_URL, or its program, names it"
    if report.error is not None and not report.stale:
        text = f"its broker at {report.address} does not answer: {report.error}"
        yield Finding("broker", report.side, report.name, text, do)
    if report.dead and not report.stale:
        count = some(report.dead, "message of it is", "messages of it are")
        text = f"{count} dead on {report.address}"
        do = f"look at them with the tools of {report.broker}; jobs of a queue are told again"
        yield Finding("broker", report.side, report.name, text, do)


def _unfired() -> Steps[list[Finding]]:
    return [
        Finding(
            "schedule",
            "schedule",
            schedule.name,
            f"it should have fired at {moment(schedule.next_at)}",
            "`milepost explain schedule NAME`",
        )
        for schedule in (yield from schedules.listing())
        if schedule.state == "active"
        and (schedule.read_at - schedule.next_at).total_seconds() > GRACE_SECONDS
    ]


def _clock() -> Steps[list[Finding]]:
    before = time.time()
    [(there,)] = yield Call("doctor_clock")
    skew = there - (before + time.time()) / 2
    if abs(skew) < SKEW_SECONDS:
        return []
    text = f"the database's clock is {skew:+.0f} s from that of this machine"
    return [Finding("clock", "store", "clock", text, "let NTP set both; the database's decides")]


def _shared_file() -> Steps[list[Finding]]:
    [(schema, _, version)] = yield Call("guards_schema")
    if schema or tuple(map(int, version.split("."))) >= SQLITE_SHARED:
        return []
    live = [worker for worker in (yield from workers.listing()) if is_live(worker)]
    processes = {(worker.host, worker.pid) for worker in live}
    if len(processes) < 2:  # noqa: PLR2004 - several
        return []
    text = f"{len(processes)} processes share it through SQLite {version}, which can damage it"
    do = "SQLite 3.51.3 or newer, or one worker with more --concurrency"
    return [Finding("sqlite", "store", "file", text, do)]


# Repairing


async def repair(
    driver: AsyncDriver, findings: Sequence[Finding], *, actor: str
) -> list[tuple[Finding, str]]:
    """Cancel the jobs that should have ended; answer with those that could not be, and why.

    Counts that are wrong are counted again. Moves that are merely due are left to a pass of
    maintenance, which the caller makes.
    """
    refused: list[tuple[Finding, str]] = []
    if any(finding.repair == "recount" for finding in findings):
        await driver.run(tally.recount)
    for finding in findings:
        if finding.repair != "cancel":
            continue
        try:
            await driver.run(jobs.cancel, finding.id, reason=f"doctor: {finding.text}", actor=actor)
        except (IllegalMove, NotFound) as error:
            refused.append((finding, str(error)))
    return refused
