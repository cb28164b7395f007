"""Views in the specs' own table and column names, and `jobs` and `runs` for people at a prompt.

The words come from `lifecycle`, so a view and `job.as_spec()` cannot disagree. The rendered text
stands in a numbered migration between `begin rendered` and `end rendered` lines. A move typed by
hand sets no timestamps: what the row does not know is looked up in the journal, by its key.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from milepost.lifecycle import JOB, RUN, Cause, JobState, group_sql
from milepost.machine import Machine, among
from milepost.records import Limits
from milepost.specs import CANCELLED, EXPIRED, JOB_VIEWS, LOST, RUN_VIEWS, View, Word, job_word_sql

Columns = Mapping[str, str]
"""A view's columns in order: name to SQL expression."""

NAMES = (
    "audit_logs",
    "tasks",
    "job_lifecycle",
    "run_metadata",
    "worker_runs",
    "partition_progress",
    "jobs",
    "runs",
)
"""Every view, in the order created."""

WORKER_RUN = View(
    "B",
    JOB,
    (
        Word("completed", (JobState.SUCCEEDED,)),
        Word("failed", (JobState.FAILED, JobState.CANCELLED)),
        Word("running", tuple(state for state in JobState if state.value in JOB.live)),
    ),
)
"""B's three words for a worker run: coarser than its words for the partition."""

CAUSES = {
    "fail": Cause.ERROR,
    "expire": Cause.DEADLINE,
    "reject": Cause.REJECTED,
    "lose": Cause.ATTEMPTS_EXHAUSTED,
}
"""What a move to FAILED means when whoever made it gave no cause."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A journalled table in one dialect: what its row and its journal say together."""

    machine: Machine
    dialect: str

    def own(self, name: str) -> str:
        """Render one of the row's own columns."""
        return f"{self.machine.name}.{name}"

    def entry(self, column: str, condition: str, *, last: bool = False) -> str:
        """Render a look-up of the first or last journal entry that fits; the key drives it."""
        order = "seq DESC" if last else "seq"
        return (
            f"(SELECT {column} FROM journal WHERE subject_id = {self.own('id')}"
            f" AND machine = '{self.machine.name}'\n"
            f"      AND {condition} ORDER BY {order} LIMIT 1)"
        )

    def summed(self, name: str) -> str:
        """Render what a snapshot says of what it sums up."""
        if self.dialect == "postgres":
            return f"detail::json ->> '{name}'"
        return f"json_extract(detail, '$.{name}')"

    def in_any_state(self, source: str, word: str) -> str:
        """Say of jobs what is always true: one index has those that run, another the rest."""
        if self.dialect != "postgres":
            return source
        return f"{source}\n {word} (job.state = 'RUNNING' OR job.state <> 'RUNNING')"

    @property
    def updated(self) -> str:
        """Render when it last moved."""
        return (
            f"(SELECT at FROM journal WHERE subject_id = {self.own('id')}"
            f" AND machine = '{self.machine.name}' AND seq = {self.own('version')})"
        )

    def started(self, *otherwise: str) -> str:
        """Render when it first started: a retry does not move it (H-26)."""
        busy = [s.value for s in self.machine.states if s.value in ("RUNNING", "FINALIZING")]
        first = self.entry("at", f"to_state {among(busy)}")
        return f"coalesce({', '.join([self.own('started_at'), first, *otherwise])})"

    def finished(self, states: Iterable[str]) -> str:
        """Render when it reached its final state, for these final states; NULL for others."""
        end = self.entry("at", self._ended, last=True)
        return (
            f"CASE WHEN {self.own('state')} {among(states)}\n"
            f"    THEN coalesce({self.own('finished_at')}, {end}) END"
        )

    @property
    def final(self) -> list[str]:
        """The machine's final states, in the order declared."""
        return [state.value for state in self.machine.states if state in self.machine.terminal]

    @property
    def ending(self) -> str:
        """Render the move that ended it. `erase` may have come after."""
        move, end = self.own("move"), self.entry("move", self._ended, last=True)
        return f"CASE WHEN {move} = 'erase'\n    THEN {end} ELSE {move} END"

    @property
    def _ended(self) -> str:
        return f"to_state {among(self.final)} AND move <> 'erase'"

    def json(self, column: str) -> str:
        """Render opaque bytes as JSON; NULL when they are something else."""
        codec, content = self.own("codec"), self.own(column)
        if self.dialect == "postgres":
            return f"milepost_json({codec}, {content})"
        text = f"CAST({content} AS TEXT)"
        return f"CASE WHEN {codec} = 'json' AND json_valid({text}) THEN {text} END"

    @property
    def message(self) -> str:
        """Render the error's message, or the whole text when it is not what the engine writes."""
        error = self.own("error")
        if self.dialect == "postgres":
            found = f"milepost_json('json', convert_to({error}, 'UTF8')) ->> 'message'"
        else:
            found = f"CASE WHEN json_valid({error}) THEN"
            found += f" CAST(json_extract({error}, '$.message') AS TEXT) END"
        return f"coalesce({found}, {error})"

    def readable(self, instant: str) -> str:
        """Render an instant for people: microseconds become ISO 8601 in UTC."""
        if self.dialect == "postgres":
            return instant
        # The remainder of a negative number is negative: before 1970 too, round down.
        micros = "(us % 1000000 + 1000000) % 1000000"
        return (
            f"(SELECT strftime('%Y-%m-%dT%H:%M:%S', (us - {micros}) / 1000000, 'unixepoch')\n"
            f"      || printf('.%06dZ', {micros}) FROM (SELECT {instant} AS us))"
        )


def fresh(dialect: str) -> str:
    """Render every view for one dialect."""
    job, run = Subject(JOB, dialect), Subject(RUN, dialect)
    views = [
        _audit_logs(),
        _tasks(job),
        _job_lifecycle(job),
        _run_metadata(run),
        _worker_runs(job),
        _partition_progress(job),
        _jobs(job),
        _runs(run),
    ]
    return "\n\n".join(
        [_POSTGRES_JSON, *views, _POSTGRES_GUARDS] if dialect == "postgres" else views
    )


def _view(name: str, columns: Columns, source: str, note: str) -> str:
    listed = ",\n  ".join(f"{shown} AS {column}" for column, shown in columns.items())
    return f"-- {note}\nCREATE VIEW {name} AS\nSELECT\n  {listed}\n  FROM {source};"


def _worded(view: View, state: str) -> str:
    # Only for words without a condition: those name columns of the machine's own table.
    return re.sub(r"\bstate\b", state, view.sql())


# E


def _audit_logs() -> str:
    columns = {
        "id": "journal.subject_id || ':' || journal.seq",
        "task_id": "journal.subject_id",
        "event": "journal.move",
        "from_status": _worded(JOB_VIEWS["E"], "journal.from_state"),
        "to_status": _worded(JOB_VIEWS["E"], "journal.to_state"),
        "from_state": "journal.from_state",
        "to_state": "journal.to_state",
        "worker_id": "journal.actor",
        "fence": "journal.fence",
        "created_at": "journal.at",
        "detail": "journal.detail",
    }
    note = "E: one row for every move of a task, written by the move itself (H-54)."
    moves = "journal\n WHERE journal.machine = 'job' AND journal.move <> 'snapshot'"
    return _view("audit_logs", columns, moves, note)


ATTEMPT = (
    "job.errors + job.losses"
    f" + CASE WHEN job.state {among(('RUNNING', 'SUCCEEDED'))} THEN 1 ELSE 0 END"
)


def _tasks(job: Subject) -> str:
    columns = {
        "id": "job.id",
        "status": _worded(JOB_VIEWS["E"], "job.state"),
        "try_count": ATTEMPT,
        "max_tries": "coalesce(job.recoveries, job.retries) + 1",
        "lease_timeout": "(SELECT lease_until FROM worker WHERE worker.id = job.worker_id)",
        "worker_id": "job.worker_id",
        "kind": "job.kind",
        "queue": "job.queue",
        "created_at": "job.created_at",
        "updated_at": job.updated,
        "error": "job.error",
    }
    return _view("tasks", columns, "job", "E: the lease belongs to the worker and shows here.")


# D


def _job_lifecycle(job: Subject) -> str:
    counted = f"job.state = 'FAILED' AND {job.ending} IN ('fail', 'lose')"
    columns = {
        '"jobId"': "job.id",
        '"state"': JOB_VIEWS["D"].sql(),
        '"createdAt"': "job.created_at",
        '"startedAt"': job.started(),
        '"completedAt"': job.finished(job.final),
        '"retryCount"': f"job.errors + job.losses\n    - CASE WHEN {counted} THEN 1 ELSE 0 END",
        '"maxRetries"': "job.retries",
        '"lastError"': (
            "CASE\n    WHEN job.state = 'SUCCEEDED' THEN NULL\n"
            f"    WHEN job.state = 'CANCELLED' THEN '{CANCELLED}'"
            " || coalesce(': ' || job.cancel_reason, '')\n"
            f"    WHEN {_cause(job)} = '{Cause.DEADLINE}' THEN '{EXPIRED}'\n"
            f"    ELSE coalesce({job.message}, {_cause(job)},\n"
            f"      CASE WHEN job.losses > 0 THEN '{LOST}' END)\n  END"
        ),
        '"errorType"': (
            f"CASE\n    WHEN job.state IN {group_sql('unsuccessful')} THEN 'TERMINAL'\n"
            "    WHEN job.state <> 'SUCCEEDED' AND job.errors + job.losses > 0 THEN 'RETRYABLE'\n"
            "  END"
        ),
    }
    note = "D: null on success as it asks; what went wrong before stays in `jobs` (H-25)."
    return _view("job_lifecycle", columns, "job", note)


# B


def _run_metadata(run: Subject) -> str:
    columns = {
        "run_id": "run.id",
        "run_type": (
            f"CASE coalesce({_origin('mode', 'forced', 'retry')},\n"
            "      CASE WHEN run.watermark_before IS NULL THEN 'full' END)\n"
            "    WHEN 'full' THEN 'full' WHEN 'remap' THEN 'full' ELSE 'incremental' END"
        ),
        "expected_workers": _partitions("open + succeeded + failed + cancelled"),
        "completed_workers": _partitions("succeeded"),
        "failed_workers": _partitions("failed + cancelled"),
        "watermark_before": "run.watermark_before",
        "watermark_after": "CASE WHEN run.state = 'SUCCEEDED' THEN run.watermark_after END",
        "started_at": run.started("run.created_at"),
        "completed_at": run.finished(["SUCCEEDED"]),
    }
    source = (
        "run\n WHERE EXISTS"
        " (SELECT 1 FROM step WHERE step.run_id = run.id AND step.role = 'partition')"
    )
    note = "B: completed_at is NULL for a failed run, as B has it; `runs` knows every end (H-14)."
    return _view("run_metadata", columns, source, note)


def _origin(column: str, *modes: str) -> str:
    """Render a look-up of the run that a run of these modes goes back to, itself if of another."""
    return (
        "(WITH RECURSIVE origin (id, mode, older) AS (\n"
        "        SELECT run.id, run.mode, coalesce(run.rerun_of, run.resumes)\n"
        "        UNION ALL\n"
        "        SELECT o.id, o.mode, coalesce(o.rerun_of, o.resumes)\n"
        "          FROM origin JOIN run AS o ON o.id = origin.older\n"
        f"         WHERE origin.mode {among(modes)})\n"
        f"      SELECT {column} FROM origin WHERE NOT coalesce(mode, '') {among(modes)})"
    )


def _partitions(counted: str) -> str:
    return (
        f"(SELECT CAST(coalesce(sum({counted}), 0) AS bigint) FROM step JOIN step_count\n"
        "      ON step_count.run_id = step.run_id AND step_count.step = step.number\n"
        # A forced run has no partition of its own: it publishes those of another.
        f"      WHERE step.run_id = {_origin('id', 'forced')}\n"
        "        AND step.role = 'partition')"
    )


_PARTITION_JOBS = """\
job
  JOIN step ON step.run_id = job.run_id AND step.number = job.step
  LEFT JOIN progress ON progress.job_id = job.id
 WHERE step.role = 'partition'"""
_PARTITION_ID = "'partition-' || job.ordinal"


def _partition_jobs(job: Subject) -> str:
    return job.in_any_state(_PARTITION_JOBS, "  AND")


def _worker_runs(job: Subject) -> str:
    claimer = job.entry(
        f"CASE move WHEN 'claim' THEN actor ELSE {job.summed('worker')} END",
        f"move {among(('claim', 'snapshot'))}",
        last=True,
    )
    columns = {
        "id": "job.id",
        "run_id": "job.run_id",
        "partition_id": _PARTITION_ID,
        "worker_id": f"coalesce(job.worker_id, {claimer}, '')",
        "status": _worded(WORKER_RUN, "job.state"),
        "records_processed": "coalesce(progress.records, 0)",
        "error_message": job.message,
        "work_item_payload": job.json("payload"),
        "started_at": job.started(),
        "completed_at": job.finished(job.final),
    }
    note = "B: partitions that a worker has claimed; the last one's name outlives its lease (H-42)."
    return _view("worker_runs", columns, f"{_partition_jobs(job)} AND job.fence > 0", note)


def _partition_progress(job: Subject) -> str:
    later = "greatest" if job.dialect == "postgres" else "max"
    moved = f"coalesce({job.updated}, job.created_at)"
    columns = {
        "run_id": "job.run_id",
        "partition_id": _PARTITION_ID,
        "next_offset": "coalesce(progress.next_offset, 0)",
        "completed": "job.state = 'SUCCEEDED'",
        "created_at": "coalesce(progress.created_at, job.created_at)",
        "updated_at": f"{later}({moved},\n    coalesce(progress.updated_at, job.created_at))",
    }
    note = "B: every partition, those that nobody has claimed yet included."
    return _view("partition_progress", columns, _partition_jobs(job), note)


# People

JOB_COLUMNS = (
    "id tenant kind kind_version queue priority state phase version move actor detail fence"
    f" worker_id errors losses polls releases {' '.join(Limits.__struct_fields__)}"
    " cancel_reason error error_type error_code fingerprint tags unique_key limit_key units run_id"
    " step ordinal parent_id rerun_of origin_id trace channel policy codec"
)
RUN_COLUMNS = (
    "id tenant kind kind_version queue priority state phase version move actor detail cause"
    " current_step ending mode error tags unique_key parent_id rerun_of resumes ordinal depth"
    " trace channel policy codec"
)


def _cause(job: Subject) -> str:
    causes = " ".join(f"WHEN '{move}' THEN '{cause}'" for move, cause in CAUSES.items())
    return (
        f"coalesce(job.cause, CASE WHEN job.state = 'FAILED'"
        f" THEN CASE {job.ending}\n    {causes} END END)"
    )


def _jobs(job: Subject) -> str:
    columns = {
        **{name: job.own(name) for name in JOB_COLUMNS.split()},
        "attempt": ATTEMPT,
        "cause": _cause(job),
        "payload": job.json("payload"),
        "result": job.json("result"),
        **_instants(job, ("created_at", "due_at", "deadline_at", "start_by")),
        **{f"spec_{spec.lower()}": job_word_sql(spec) for spec in JOB_VIEWS},
    }
    note = "For people at a prompt: what there is to know of a job."
    return _view("jobs", columns, job.in_any_state("job", "WHERE"), note)


def _runs(run: Subject) -> str:
    instants = ("created_at", "due_at", "deadline_at", "watermark_before", "watermark_after")
    columns = {
        **{name: run.own(name) for name in RUN_COLUMNS.split()},
        "payload": run.json("payload"),
        "report": run.json("report"),
        **_instants(run, instants),
        **{f"spec_{spec.lower()}": view.sql() for spec, view in RUN_VIEWS.items()},
    }
    return _view("runs", columns, "run", "For people at a prompt: what there is to know of a run.")


def _instants(subject: Subject, stored: Iterable[str]) -> Columns:
    told = {name: subject.own(name) for name in stored}
    told |= {"started_at": subject.started(), "finished_at": subject.finished(subject.final)}
    told["updated_at"] = subject.updated
    return {name: subject.readable(instant) for name, instant in told.items()}


# PostgreSQL's own

_POSTGRES_JSON = """\
-- Payloads are opaque bytes: what is not JSON must not make a view fail.
CREATE FUNCTION milepost_json(codec text, payload bytea) RETURNS jsonb
  LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
  RETURN CASE WHEN codec = 'json' THEN convert_from(payload, 'UTF8')::jsonb END;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
  RETURN NULL;
END $$;"""

_REFUSALS = "\n".join(
    f"CREATE TRIGGER {name}_refuse INSTEAD OF INSERT OR UPDATE OR DELETE ON {name} FOR EACH ROW\n"
    "  EXECUTE FUNCTION milepost_refuse_view();"
    for name in NAMES
)

_POSTGRES_GUARDS = f"""\
-- A view of one table would pass writes on to it.
CREATE FUNCTION milepost_refuse_view() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'MP002',
    MESSAGE = format('milepost: %s on %s is refused: it is a view; moves are made on the tables'
                     ' job and run', TG_OP, TG_TABLE_NAME);
END $$;

{_REFUSALS}"""
