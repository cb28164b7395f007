"""Triggers from the machines: both databases refuse an illegal move and journal a legal one.

The rules are written once (`rules`) and rendered for each dialect. The rendered text stands in the
numbered migrations between `begin rendered` and `end rendered` lines; a test compares it with a
fresh rendering.
"""

from milepost.lifecycle import JOB, RUN, group_sql
from milepost.machine import among
from milepost.records import Limits
from tools.triggers import postgres, sqlite
from tools.triggers.rules import Guard, Rule, lite

__all__ = ["GUARDS", "Guard", "fresh"]

_COMMON = [
    "id",
    "tenant",
    "kind",
    "kind_version",
    "queue",
    "priority",
    "state",
    "version",
    "move",
    "actor",
    "detail",
    "fence",
    "due_at",
    "created_at",
    "started_at",
    "finished_at",
    "deadline_at",
    "phase",
    "cause",
    "policy",
    "codec",
    "payload",
    "error",
    "tags",
    "unique_key",
    "trace",
    "channel",
    "parent_id",
    "rerun_of",
]
_LIVE_JOB = "state " + among(state.value for state in JOB.states if state.value in JOB.live)
_LIVE_RUN = "state " + among(state.value for state in RUN.states if state.value in RUN.live)


def _taken(table: str, live: str) -> Rule:
    # Under OR REPLACE a tenant of NULL becomes the default, and then finds its double.
    return (
        (
            f"NEW.unique_key IS NOT NULL AND EXISTS (SELECT 1 FROM {table}"
            f" WHERE tenant = coalesce(NEW.tenant, '') AND kind = NEW.kind"
            f" AND unique_key = NEW.unique_key AND {live})"
        ),
        "a live one has this unique key; look it up first",
    )


_RUN_AGAIN: Rule = (
    (
        "NEW.rerun_of IS NOT NULL AND EXISTS (SELECT 1 FROM job"
        " WHERE rerun_of = NEW.rerun_of AND coalesce(run_id, '') = coalesce(NEW.run_id, ''))"
    ),
    "it was run again already; run the newest of its chain again",
)

_RESUMED: Rule = (
    (
        "NEW.resumes IS NOT NULL AND EXISTS (SELECT 1 FROM run"
        f" WHERE resumes = NEW.resumes AND state NOT IN {group_sql('unsuccessful')})"
    ),
    "another run resumes that one already; look it up first",
)

GUARDS = {
    "job": Guard(
        machine=JOB,
        columns=(
            *_COMMON,
            "worker_id",
            "queued_seq",
            "start_by",
            "errors",
            "losses",
            "polls",
            "releases",
            *Limits.__struct_fields__,
            "cancel_reason",
            "unfit",
            "error_type",
            "error_code",
            "fingerprint",
            "result",
            "limit_key",
            "origin_id",
            "run_id",
            "step",
            "ordinal",
        ),
        immutable=(
            "id",
            "tenant",
            "kind",
            "kind_version",
            "queue",
            "created_at",
            "codec",
            *Limits.__struct_fields__,
            "deadline_at",
            "start_by",
            "policy",
            "unique_key",
            "limit_key",
            "units",
            "tags",
            "parent_id",
            "rerun_of",
            "origin_id",
            "run_id",
            "step",
            "ordinal",
        ),
        erasable=("payload", "result", "error"),
        counters={
            "errors": ("retry", "fail"),
            "losses": ("lose",),
            "polls": ("later",),
            "releases": ("release",),
        },
        leased=True,
        unique=(_taken("job", _LIVE_JOB), _RUN_AGAIN),
        frequent=(
            "claim QUEUED RUNNING",
            "succeed RUNNING SUCCEEDED",
            "open GATED QUEUED",
            "wake WAITING QUEUED",
            "due RETRYING QUEUED",
            "dispatch READY QUEUED",
            "undispatch QUEUED READY",
            "note RUNNING RUNNING",
        ),
    ),
    "run": Guard(
        machine=RUN,
        columns=(
            *_COMMON,
            "current_step",
            "ending",
            "report",
            "mode",
            "watermark_before",
            "watermark_after",
            "params_key",
            "resumes",
            "ordinal",
            "depth",
        ),
        immutable=(
            "id",
            "tenant",
            "kind",
            "kind_version",
            "created_at",
            "codec",
            "policy",
            "deadline_at",
            "unique_key",
            "params_key",
            "parent_id",
            "rerun_of",
            "resumes",
            "ordinal",
            "depth",
        ),
        unique=(_taken("run", _LIVE_RUN), _RESUMED),
    ),
}


def fresh(name: str, dialect: str) -> str:
    """Render the triggers of one machine for one dialect."""
    if lite(dialect):
        return sqlite.worker_triggers() if name == "worker" else sqlite.triggers(GUARDS[name])
    return postgres.worker_triggers() if name == "worker" else postgres.triggers(GUARDS[name])
