"""What requests ask of the store: a durable note before anything is sent, and what was recorded."""

from collections.abc import Mapping, Sequence

import msgspec

from milepost.records import Claim
from milepost.store import jobs
from milepost.store.driver import Call, Steps
from milepost.store.jobs import Noted


class Begin(msgspec.Struct, frozen=True):
    """An attempt that is about to send: what it says of the request, and of its sending."""

    claim: Claim
    request: str
    requesting: str
    listens: bool = False


class Begun(msgspec.Struct, frozen=True):
    """Which attempts hold their lease, and what signals came for those that listen."""

    held: set[str]
    signals: Mapping[str, Sequence[bytes | None]]


def begin(begins: Sequence[Begin], *, actor: str | None) -> Steps[Begun]:
    """Note REQUEST and REQUESTING of many attempts before they send, each under its fence (H-91).

    An attempt that listens and was sent signals is not noted: it reads them first.
    """
    listening = {one.claim.id: one.claim for one in begins if one.listens}
    signals = (yield from _signals(listening)) if listening else {}
    going = [one for one in begins if one.claim.id not in signals]
    held: set[str] = set()
    if going:
        first = [Noted(one.claim, "REQUEST", one.request) for one in going]
        yield from jobs.note_many(first, actor=actor)
        second = [Noted(one.claim, "REQUESTING", one.requesting) for one in going]
        held = yield from jobs.note_many(second, actor=actor)
    return Begun(held, signals)


def _signals(listening: Mapping[str, Claim]) -> Steps[dict[str, list[bytes | None]]]:
    rows = yield Call("signal_waiting", {"id": sorted(listening)})
    found: dict[str, list[bytes | None]] = {}
    for job_id in sorted(row[0] for row in rows):
        if taken := (yield from jobs.signals(listening[job_id])):
            found[job_id] = taken
    return found


class Row(msgspec.Struct, frozen=True):
    """What became of one request of a batch, as it is stored."""

    id: str
    ordinal: int | None
    state: str
    fence: int
    phase: str | None
    result: bytes | None
    error: str | None
    cause: str | None


def responses(
    run_id: str, *, after: str | None, most: int, ended: bool = False
) -> Steps[list[Row]]:
    """Read a page of what became of a batch's requests; only successes if they `ended` before."""
    parameters = {"run_id": run_id, "after": after, "most": most, "ended": int(ended)}
    return [Row(*row) for row in (yield Call("run_responses", parameters))]
