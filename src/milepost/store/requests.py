"""Operations on requests: a durable note before anything is sent, and the responses of a batch."""

from collections.abc import Sequence

import msgspec

from milepost.records import Claim
from milepost.store import jobs
from milepost.store.driver import Call, Steps
from milepost.store.jobs import Noted


class Begin(msgspec.Struct, frozen=True):
    """An attempt that is about to send: its notes of the request, and of the sending."""

    claim: Claim
    request: str
    requesting: str
    listens: bool = False


Signals = list[bytes | None]
"""Signals to be read before an attempt sends."""


def begin(begins: Sequence[Begin], *, actor: str | None) -> Steps[dict[str, Signals | None]]:
    """Note REQUEST and REQUESTING of many attempts before they send, each under its fence (H-91).

    An attempt that listens and was sent signals is not noted: it reads them first. Answers with the
    signals by the job's id, None for an attempt that is noted; one that lost its lease is left out.
    """
    listening = {one.claim.id: one.claim for one in begins if one.listens}
    begun: dict[str, Signals | None] = {}
    if listening:
        rows = yield Call("signal_waiting", {"id": sorted(listening)})
        for job_id in sorted(row[0] for row in rows):
            if taken := (yield from jobs.signals(listening[job_id])):
                begun[job_id] = taken
    going = [one for one in begins if one.claim.id not in begun]
    if going:
        first = [Noted(one.claim, "REQUEST", one.request) for one in going]
        yield from jobs.note_many(first, actor=actor)
        second = [Noted(one.claim, "REQUESTING", one.requesting) for one in going]
        begun.update(dict.fromkeys((yield from jobs.note_many(second, actor=actor))))
    return begun


class ResponseRow(msgspec.Struct, frozen=True):
    """The end of one request of a batch, as it is stored."""

    id: str
    ordinal: int | None
    state: str
    fence: int
    phase: str | None
    result: bytes | None
    error: str | None
    cause: str | None
    cancel_reason: str | None


def responses(
    run_id: str, *, after: str | None, most: int, ended: bool = False
) -> Steps[list[ResponseRow]]:
    """Read a page of a batch's requests; only successes if they `ended` before."""
    parameters = {"run_id": run_id, "after": after, "most": most, "ended": int(ended)}
    return [ResponseRow(*row) for row in (yield Call("run_responses", parameters))]
