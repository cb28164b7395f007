"""Who may do what in a PostgreSQL store: four roles, and a decision for every table and view.

The owner migrates; nobody else changes the schema, moves the clock or writes the journal. What the
engine does for everybody (journal, counters, final messages) its triggers do with the owner's
rights, so no role has them. Grants are per table and, where a role may only make some moves, per
column: to end a running job is to set its `worker_id`, so a role that may not write that column
cannot.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

ROLES = {
    "submit": "creates, signals, cancels and reruns jobs and runs; for applications and the API",
    "worker": "runs jobs, maintenance and the relay; may end any job, and remove what is old",
    "read": "looks, and changes nothing",
    "admin": "tokens, queues, schedules, channels, watermarks, erasing, the minimum of retention",
}
VERBS = {"S": "SELECT", "I": "INSERT", "U": "UPDATE", "D": "DELETE"}

_READ = dict.fromkeys(("submit", "worker", "read", "admin"), "S")


def _open(**more: str) -> dict[str, str]:
    """Let everybody read it, and some do more."""
    return {**_READ, **{role: f"S{verbs}" for role, verbs in more.items()}}


RIGHTS: Mapping[str, Mapping[str, str]] = {
    # Jobs and runs. `u` is an UPDATE of some columns, `i` an INSERT of some: see `columns`.
    "job": _open(submit="Iu", worker="IUD", admin="Iu"),
    "run": _open(submit="Iu", worker="IUD", admin="Iu"),
    "step": _open(submit="Iu", worker="IU", admin="Iu"),
    "step_count": _open(submit="I", worker="I", admin="I"),
    "signal": _open(submit="I", worker="IUD", admin="ID"),
    "publication": _open(submit="u", worker="IU", admin="u"),
    "staged": _open(worker="IUD"),
    "job_output": _open(worker="IUD", admin="D"),
    # What an attempt leaves behind.
    "durable_step": _open(worker="IU", admin="D"),
    "failure": _open(worker="I", admin="D"),
    "failure_delta": _open(worker="IUD", admin="I"),
    "failure_hour": _open(worker="IUD"),
    "job_log": _open(worker="IU", admin="D"),
    "progress": _open(worker="IU", admin="u"),
    "progress_carried": {"submit": "SI", "worker": "SI", "admin": "SI"},
    "usage": _open(worker="I"),
    # The record: written by triggers alone.
    "journal": _open(),
    "watermark_entry": _open(),
    "job_tag": _open(),
    # Who decides, and who is at work.
    "clock": _open(),
    "migration": _open(),
    "store_move": _open(),
    "retention": _open(admin="U"),
    "journal_upkeep": {"worker": "SI"},
    "election": _open(worker="IU"),
    "worker": _open(worker="IUD"),
    "queue": _open(worker="iu", admin="IU"),
    "hint": _open(worker="IUD", admin="IU"),
    "store_name": _open(worker="I", admin="I"),
    "broker_report": _open(worker="IU"),
    "queue_total": _open(worker="IUD"),
    "tally": _open(worker="IUD"),
    "tally_delta": _open(worker="IUD"),
    "tally_label": _open(worker="ID"),
    "queue_bound": _open(worker="IU", admin="IU"),
    # Limits: workers declare them, admins set them. What is taken from a rate is taken by workers.
    "limit_rule": _open(worker="IUD", admin="IUD"),
    "limit_change": _open(worker="I", admin="I"),
    "bucket": _open(worker="IUD", admin="UD"),
    "host_place": _open(worker="IUD"),
    "followup": _open(worker="IUD", admin="IUD"),
    "schedule": _open(worker="IU", admin="U"),
    # The API. Answers and hashes are nobody's business who only looks at jobs.
    "token": {"submit": "S", "admin": "SIU"},
    # Here is also which unique keys stay taken: handlers submit, too.
    "idempotency": {"submit": "SIU", "worker": "SIUD", "admin": "SIU"},
    # Whoever reads it can sign in as anybody.
    "server_key": {"admin": "SI"},
    "saved_view": _open(submit="IUD", admin="IUD"),
    "checked": _open(submit="IU", worker="IU", admin="IU"),
    # Messages.
    "channel": _open(worker="IU", admin="IU"),
    "outbox": _open(worker="U", admin="U"),
    "inbox": _open(worker="IUD"),
    # Pipelines. A source's session is a secret of those who log in.
    "pipeline": _open(submit="Iu", worker="IU", admin="IU"),
    "pipeline_run": _open(submit="I", worker="IU", admin="I"),
    "pipeline_table": _open(worker="Iu", admin="IU"),
    "reading": _open(worker="IU"),
    "page": _open(worker="IU"),
    "raw": _open(worker="IU", admin="U"),
    "quarantine": _open(worker="IU", admin="U"),
    "removal_decision": _open(admin="I"),
    "source_budget": {"worker": "SIU"},
    # Views, in the words of the specs and for people.
    "audit_logs": _open(),
    "job_lifecycle": _open(),
    "jobs": _open(),
    "partition_progress": _open(),
    "run_metadata": _open(),
    "runs": _open(),
    "tasks": _open(),
    "watermark": _open(),
    "worker_runs": _open(),
}
"""What each role may do with each table and view: what is not here, nobody may."""

SEQUENCES = {"queued_seq": ("submit", "worker", "admin")}
FUNCTIONS = {
    "milepost_now()": tuple(ROLES),
    "milepost_json(text, bytea)": tuple(ROLES),
    "milepost_rule_of(text)": tuple(ROLES),
    "milepost_default_most()": ("worker",),
    "milepost_default_size()": ("worker",),
    "milepost_choose_limited(integer, integer, text[], smallint[], bigint[], bigint[], text[],"
    " boolean, bigint, bigint, text, bigint, bigint, json, json, uuid[], bigint)": ("worker",),
    "milepost_lock_stripes(integer, integer)": ("worker",),
    "milepost_lock_queue(text)": ("worker",),
    "milepost_us_since(timestamp with time zone)": ("worker",),
    "milepost_first_limited(text, smallint, bigint)": ("worker",),
    "milepost_lock_hosts(text[])": ("worker",),
    "milepost_find_limited(text[], text[], smallint[], bigint[], bigint[], text[], boolean, bigint,"
    " bigint, text, bigint, bigint, json)": ("worker",),
}

_MOVE = ("state", "version", "move", "actor", "detail", "phase", "finished_at")
_SOME = {
    "job": (*_MOVE, "due_at", "delay_us", "queued_seq", "cancel_reason", "unfit"),
    "run": (
        *_MOVE,
        "cause",
        "ending",
        "current_step",
        "started_at",
        "watermark_after",
        "report",
        "error",
    ),
    "queue": ("transport",),
    "step": ("opened", "filled_at"),
    "publication": ("run_id", "withdrawn"),
    "progress": ("message", "position"),
    "pipeline_table": ("filled",),
    "pipeline": ("queue", "channel", "target", "fresh_us", "runs"),
}
"""What a client writes when it moves a job, or starts, fills or stops a run.

Never a lease, an outcome, where a final message goes, a watermark or a policy.
"""
_NEW = {"queue": ("name", "transport")}
"""What a worker writes of a queue that it declares: never that it is paused."""
_CONTENT = ("payload", "result", "error")


def columns(table: str, role: str) -> tuple[str, ...] | None:
    """List the columns that a role may update; None where that is not limited."""
    if "u" not in RIGHTS[table].get(role, ""):
        return None
    erased = _CONTENT if (table, role) == ("job", "admin") else ()
    return (*_SOME[table], *erased)


def script(roles: Sequence[str], *, schema: str, to: str | None = None) -> str:
    """Write the SQL that gives roles their rights, and takes whatever else they had."""
    holders = {to: list(roles)} if to else {f"milepost_{role}": [role] for role in roles}
    parts = [_holder(name, held, schema) for name, held in holders.items()]
    return "\n".join(["BEGIN;", *parts, "COMMIT;", ""])


def _holder(name: str, roles: Iterable[str], schema: str) -> str:
    held = sorted(roles)
    lines = [
        *(f"-- {role}: {ROLES[role]}" for role in held),
        *(
            f"REVOKE ALL ON ALL {kind} IN SCHEMA {_quoted(schema)} FROM {_quoted(name)};"
            for kind in ("TABLES", "SEQUENCES", "FUNCTIONS")
        ),
        f"GRANT USAGE ON SCHEMA {_quoted(schema)} TO {_quoted(name)};",
        *_granted(held, schema, name),
    ]
    return "\n".join(["", *lines])


def _granted(roles: Sequence[str], schema: str, name: str) -> Iterator[str]:
    def grant(rights: str, kind: str, names: Iterable[str]) -> str:
        places = ", ".join(f"{_quoted(schema)}.{thing}" for thing in names)
        return f"GRANT {rights} ON {kind}{places} TO {_quoted(name)};"

    alike: dict[str, list[str]] = {}
    for table in RIGHTS:
        if rights := _rights(table, roles):
            alike.setdefault(rights, []).append(table)
    for rights, tables in alike.items():
        yield grant(rights, "", tables)
    for kind, word, things in (
        ("SEQUENCE ", "USAGE", SEQUENCES),
        ("FUNCTION ", "EXECUTE", FUNCTIONS),
    ):
        if mine := [thing for thing, whose in things.items() if set(whose) & set(roles)]:
            yield grant(word, kind, mine)


def _rights(table: str, roles: Sequence[str]) -> str:
    """Say what several roles may do with a table together."""
    verbs = {verb for role in roles for verb in RIGHTS[table].get(role, "")}
    words = [word for verb, word in VERBS.items() if verb in verbs]
    if "i" in verbs and "I" not in verbs:
        words.append(f"INSERT ({', '.join(_NEW[table])})")
    if "u" in verbs and "U" not in verbs:
        named = {name: None for role in roles for name in columns(table, role) or ()}
        words.append(f"UPDATE ({', '.join(named)})")
    return ", ".join(words)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
