"""Jobs whose stored arguments do not fit their function: they wait, and nothing of them is spent.

Each remembers the signatures that it was tried with. A worker that has another one sends it on.
"""

from collections.abc import Mapping, Sequence

import msgspec

from milepost.errors import IllegalMove, NotFound
from milepost.records import Settlement
from milepost.store.driver import Call, Steps

Kind = tuple[str, int]


def wait(settlements: Sequence[Settlement], *, actor: str) -> Steps[set[str]]:
    """Let claimed jobs wait for another signature; answer with the ids that were held."""
    rows = yield Call(
        "unfit_wait",
        {
            "actor": actor,
            "id": [s.claim.id for s in settlements],
            "fence": [s.claim.fence for s in settlements],
            "signature": [s.outcome.signature for s in settlements],
            "detail": [s.outcome.detail for s in settlements],
        },
    )
    return {row[0] for row in rows}


def kinds() -> Steps[list[Kind]]:
    """List the kinds, by name and version, of which jobs wait for another signature."""
    rows = yield Call("unfit_kinds", alone=True)
    return [(row[0], row[1]) for row in rows]


def wake(
    signatures: Mapping[Kind, str], *, queues: Sequence[str] | None, actor: str, most: int
) -> Steps[int]:
    """Send on what was never tried with these signatures; answer with how many.

    None takes any queue.
    """
    rows = yield Call(
        "unfit_wake",
        {
            "actor": actor,
            "kind": [name for name, _ in signatures],
            "kind_version": [version for _, version in signatures],
            "signature": list(signatures.values()),
            "queues": None if queues is None else msgspec.json.encode(list(queues)).decode(),
            "most": most,
        },
    )
    if rows:
        yield Call("worker_hint")
    return len(rows)


def release(job_id: str, *, actor: str | None) -> Steps[None]:
    """Let a job that waits for another signature be tried again, or raise `IllegalMove`."""
    if (yield Call("unfit_release", {"id": job_id, "actor": actor})):
        yield Call("worker_hint")
        return
    found = yield Call("job_lock", {"id": job_id})
    if not found:
        raise NotFound(f"there is no job {job_id}")
    raise IllegalMove(
        f"job {job_id} is {found[0][0]}: only one that waits because its arguments do not fit "
        "(phase unfit) is released"
    )
