"""The lines that jobs have logged: the last ones of each, written by its attempts."""

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from milepost.errors import Invalid
from milepost.outcome import LogLine
from milepost.records import Claim
from milepost.store.driver import Call, Steps

LINES_MOST = 200
BYTES_MOST = 64 * 1024
"""How many lines of a job are kept, and how long they are together: the last ones."""


class AttemptLines(msgspec.Struct, frozen=True):
    """Lines that an attempt has logged since it wrote some."""

    claim: Claim
    lines: tuple[LogLine, ...]


_decoder = msgspec.json.Decoder(LogLine)


def write(logged: Sequence[AttemptLines]) -> Steps[None]:
    """Add lines to those of their jobs; those of an attempt without a lease are discarded."""
    by_id = {one.claim.id: one for one in sorted(logged, key=lambda one: one.claim.id)}
    fences = [one.claim.fence for one in by_id.values()]
    found = yield Call("log_hold", {"id": list(by_id), "fence": fences})
    # Each on a line of its own: its end is cut off without reading the others.
    contents = [_added(content, by_id[job_id].lines) for job_id, content in found]
    if contents:
        held = [row[0] for row in found]
        fences = [by_id[job_id].claim.fence for job_id in held]
        yield Call("log_write", {"id": held, "fence": fences, "content": contents})


def _added(content: str | None, new: Sequence[LogLine]) -> str:
    old = content.split("\n") if content else []
    try:
        last = _decoder.decode(old[-1]).n if old else 0
    except msgspec.DecodeError:  # sealed with a key that is gone
        old, last = [], 0
    numbers = accumulate((line.n for line in new), initial=last)
    next(numbers)
    added = [
        msgspec.json.encode(msgspec.structs.replace(line, n=number)).decode()
        for number, line in zip(numbers, new, strict=True)
    ]
    kept: list[str] = []
    room = BYTES_MOST
    for text in reversed([*old, *added]):
        room -= len(text.encode()) + 1
        if room < 0 or len(kept) == LINES_MOST:
            break
        kept.append(text)
    return "\n".join(reversed(kept))


def read(job_id: str, *, after: int = 0) -> Steps[list[LogLine]]:
    """Read the lines of a job that are kept, in order, those after a number."""
    rows = yield Call("log_read", {"id": job_id}, alone=True)
    lines = decoded(job_id, rows[0][0]) if rows else []
    return [line for line in lines if line.n > after]


def decoded(job_id: str, content: str) -> list[LogLine]:
    """Read lines as they are stored, or raise `Invalid` if they are sealed."""
    try:
        return [_decoder.decode(text) for text in content.split("\n")]
    except msgspec.DecodeError as error:
        raise Invalid(
            f"the lines of job {job_id} are sealed: read them as job.logs in a program that has "
            "the codec"
        ) from error
