"""Operations on requests: a durable note before anything is sent, and the responses of a batch."""

from collections.abc import Sequence

import msgspec

from milepost.lifecycle import RunState
from milepost.records import Claim, ResponseRow
from milepost.store import chains, failures, hosts, jobs
from milepost.store.driver import Call, Steps
from milepost.store.hosts import Asking, Place
from milepost.store.jobs import Noted

FEW = 16
"""How many responses, each of which may be large, are read at once."""


class Begin(msgspec.Struct, frozen=True):
    """An attempt that is about to send: its notes of the request, and of the sending."""

    claim: Claim
    request: str
    requesting: str
    host: str
    listens: bool = False
    stays: bool = True
    """Whether it waits where it is, if its host has no place for it."""


Signals = list[bytes | None]
"""Signals to be read before an attempt sends."""


def begin(
    begins: Sequence[Begin], *, actor: str | None, ended: Sequence[tuple[str, int]] = ()
) -> Steps[dict[str, Signals | Place]]:
    """Note REQUEST and REQUESTING of many attempts before they send, each under its fence (H-91).

    An attempt that listens and was sent signals is not noted: it reads them first. Nor is one whose
    host has no place for it; the places of those that `ended`, (id, fence), are free. Answers by
    the job's id; an attempt that lost its lease is left out.
    """
    listening = {one.claim.id: one.claim for one in begins if one.listens}
    begun: dict[str, Signals | Place] = {}
    if listening:
        rows = yield Call("signal_waiting", {"id": sorted(listening)})
        for job_id in sorted(row[0] for row in rows):
            if taken := (yield from jobs.signals(listening[job_id])):
                begun[job_id] = taken
    asked = [Asking(b.claim, b.host, b.stays) for b in begins if b.claim.id not in begun]
    places = yield from hosts.enter(asked, ended=ended)
    going = [one for one in begins if one.claim.id in places and places[one.claim.id].is_free]
    begun.update((job_id, place) for job_id, place in places.items() if not place.is_free)
    if going:
        first = [Noted(one.claim, "REQUEST", one.request) for one in going]
        yield from jobs.note_many(first, actor=actor)
        second = [Noted(one.claim, "REQUESTING", one.requesting) for one in going]
        noted = yield from jobs.note_many(second, actor=actor)
        begun.update((job_id, places[job_id]) for job_id in noted)
    return begun


def response_page(
    run_id: str, *, after: tuple[str, str] | None, most: int, most_bytes: int
) -> Steps[tuple[list[ResponseRow], tuple[str, str] | None]]:
    """Read a page of a batch's requests, with those that succeeded in the runs it resumes.

    It begins after a (run, job) and ends at so many or, one it holds at least, at so many bytes;
    the second value is where the next page begins, None at the end.
    """
    line = yield from chains.chain(run_id)
    begin, last = after if after and after[0] in line else (line[0], None)
    found: list[ResponseRow] = []
    ended_at: tuple[str, str] | None = None
    for one in line[line.index(begin) :]:
        while page := (yield from responses(one, after=last, most=FEW, ended=one != run_id)):
            for row in page:
                most_bytes -= len(row.result or b"") + len(row.error or "")
                if found and (len(found) == most or most_bytes < 0):
                    return found, ended_at
                found.append(row)
                ended_at = (one, last := row.id)
        last = None
    return found, None


def responses(
    run_id: str, *, after: str | None, most: int, ended: bool = False
) -> Steps[list[ResponseRow]]:
    """Read a page of a batch's requests; only successes if they `ended` before."""
    parameters = {"run_id": run_id, "after": after, "most": most, "ended": int(ended)}
    rows = sorted((yield Call("run_responses", parameters)))[:most]
    found = [ResponseRow(*row) for row in rows]
    for place, row in enumerate(found):
        if row.batch and row.state in (RunState.FAILED, RunState.CANCELLED):
            why = yield from failures.batch_failure(row.id)
            error = msgspec.json.encode(why).decode()
            found[place] = msgspec.structs.replace(row, error=error, cancel_reason=why.message)
    return found
