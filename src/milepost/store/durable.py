"""What a running handler keeps: steps that are done, a cursor, its progress, a fence elsewhere.

Each is written under the attempt's own fence, or not at all: no row back is `LeaseLost`.
"""

from collections.abc import Sequence

import msgspec

from milepost.errors import IllegalMove, LeaseLost
from milepost.records import Claim
from milepost.store.driver import Call, Steps


class AttemptProgress(msgspec.Struct, frozen=True):
    """How far an attempt is, in its own words."""

    claim: Claim
    share: float
    text: str | None


class SavedCursor(msgspec.Struct, frozen=True):
    """A cursor as it was saved, and by which save."""

    number: int
    data: bytes | None


def hold(claim: Claim) -> Steps[None]:
    """Keep the job from being taken until the transaction ends, or raise `LeaseLost`."""
    if not (yield Call("job_hold", _held(claim))):
        raise _lost(claim)


def look(claim: Claim, name: str) -> Steps[tuple[bool, bytes | None]]:
    """Tell whether a step is done, and its result; raise `LeaseLost` if it must not be begun."""
    query = "durable_look" if claim.origin_id is None else "durable_look_back"
    rows = yield Call(query, {**_held(claim), "name": name}, alone=True)
    if not rows:
        raise _lost(claim)
    [(done, result)] = rows
    return done is not None, result


def record(claim: Claim, name: str, result: bytes | None) -> Steps[None]:
    """Record that a step is done; doing so twice is as good as once."""
    parameters = {**_held(claim), "name": name, "result": result}
    if not (yield Call("durable_record", parameters, alone=True)):
        raise _lost(claim)


def write_progress(progress: Sequence[AttemptProgress]) -> Steps[None]:
    """Show the progress of many attempts; that of one without a lease is discarded."""
    yield Call(
        "progress_tell",
        {
            "id": [one.claim.id for one in progress],
            "fence": [one.claim.fence for one in progress],
            "fraction": [one.share for one in progress],
            "message": [one.text for one in progress],
        },
        alone=True,
    )


def cursor(claim: Claim) -> Steps[SavedCursor]:
    """Read where the attempts before this one came to."""
    rows = yield Call("cursor_get", _held(claim), alone=claim.origin_id is None)
    if not rows:
        raise _lost(claim)
    saved = SavedCursor(rows[0][0], rows[0][1])
    if saved.number == 0 and claim.origin_id is not None:
        found = yield Call("cursor_look_back", {"id": claim.id})
        return SavedCursor(0, found[0][0] if found else None)
    return saved


def save(claim: Claim, data: bytes | None, *, after: SavedCursor) -> Steps[SavedCursor]:
    """Move the cursor on from what was read, or raise: a save is never overwritten unseen."""
    parameters = {**_held(claim), "position": data, "saves": after.number}
    if (yield Call("cursor_save", parameters)):
        return SavedCursor(after.number + 1, data)
    now = yield from cursor(claim)
    # Ours, if the answer to it was lost: nobody else can have saved just that in our name.
    if now == SavedCursor(after.number + 1, data):
        return now
    raise IllegalMove(
        f"the cursor of job {claim.id} was saved {now.number - after.number} times since it was "
        "read here: save from one place, and read ctx.cursor before"
    )


def guard(claim: Claim) -> Steps[None]:
    """Refuse an older attempt on a database of the user's own, in the user's transaction."""
    [(exists,)] = yield Call("guard_exists")
    if not exists:
        yield Call("guard_lock")
        yield Call("guard_create")
    if not (yield Call("guard_fence", _held(claim))):
        raise _lost(claim)


def _held(claim: Claim) -> dict[str, object]:
    return {"id": claim.id, "fence": claim.fence}


def _lost(claim: Claim) -> LeaseLost:
    return LeaseLost(
        f"job {claim.id} is no longer held with fence {claim.fence}: another attempt has it or "
        "it has ended; nothing was written"
    )
