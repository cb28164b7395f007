"""What is wrong with limits: declared in two ways, by nobody, exceeded, or blocked for good."""

import shlex
from collections.abc import Sequence

import msgspec

from milepost.limit import split_key
from milepost.outcome import micros
from milepost.records import Worker
from milepost.store.driver import Call, Steps
from milepost.store.job_facts import takes
from milepost.store.phrases import some
from milepost.store.rules import Limit

HOUR_SECONDS = 3_600.0
GRACE_SECONDS = 60.0
"""A program declares its limits shortly before its worker is entered."""
ROWS_MOST = 1_000


class LimitFault(msgspec.Struct, frozen=True):
    """One thing that is wrong, and what to do about it."""

    subject: str
    id: str
    text: str
    advice: str


def faults(live: Sequence[Worker]) -> Steps[list[LimitFault]]:
    """Find what is wrong with limits."""
    found = yield from _disputed()
    found += yield from _unseen()
    found += yield from _exceeded()
    found += yield from _blocked(live)
    return found


def _disputed() -> Steps[list[LimitFault]]:
    """Find rules that two versions of a program declare differently: the last wins (L-7)."""
    asked = {"age_us": micros(HOUR_SECONDS), "most": ROWS_MOST}
    found = []
    for scope, name, declared, before, changes, older in (yield Call("limit_disputed", asked)):
        if changes < 2 and not older:  # noqa: PLR2004 - once, and everybody started since then
            continue
        limits = (msgspec.json.decode(text, type=Limit) for text in (declared, before))
        newest, last = (limit.words(scope) for limit in limits)
        often = some(changes, "time")
        text = f"its declaration changed {often} within the hour, last from {last} to {newest}"
        if older:
            text += f"; {some(older, 'worker lives', 'workers live')} that started before"
        command = shlex.join(["milepost", "limits", "changes", name, "--scope", scope])
        do = f"let one version run, the last to start wins; `{command}` lists the changes"
        found.append(LimitFault("limit", name, text, do))
    return found


def _unseen() -> Steps[list[LimitFault]]:
    rows = yield Call("limit_unseen", {"grace_us": micros(GRACE_SECONDS)})
    text = "no live worker's program declares it, and it is in force"
    return [LimitFault("limit", name, text, _lift(scope, name)) for scope, name in rows]


def _lift(scope: str, name: str) -> str:
    words = ["milepost", "limits", "set", name, "--scope", scope, "--most", "none"]
    command = shlex.join([*words, "--rate", "none"])
    return f"`{command}`, or deploy the program that declares it"


def _exceeded() -> Steps[list[LimitFault]]:
    found = []
    for scope, name, key, live, most in (yield Call("limit_exceeded", {"most": ROWS_MOST})):
        whose = f"of queue {name}" if scope == "queue" else f"for {split_key(key)[1] or 'it'}"
        text = f"{some(live, 'job runs', 'jobs run')} {whose}, and {most:,} may at once"
        do = "the limit was lowered, or a job claimed by hand: none starts until enough have ended"
        found.append(LimitFault("limit", name, text, do))
    return found


def _blocked(live: Sequence[Worker]) -> Steps[list[LimitFault]]:
    """Find ordered keys whose first job is of a kind that no live worker knows (L-12)."""
    found = []
    for queue, kind, version, keys, job_id, key, behind in (yield Call("limit_heads_of_kinds")):
        if any(takes(worker, queue, kind, version) for worker in live):
            continue
        rule, name = split_key(key)
        more = f" and of {some(keys - 1, 'other key')}" if keys > 1 else ""
        wait = some(int(behind), "job waits", "jobs wait")
        text = (
            f"it has the turn of {name or rule}{more}, in order (limit {rule}), and no live worker "
            f"knows {kind} version {version}: {wait} behind it"
        )
        do = f"start a worker that does, or cancel it: `milepost jobs cancel {shlex.quote(job_id)}`"
        found.append(LimitFault("job", job_id, text, do))
    return found
