"""Operations on messages that come in: each becomes a job once, or is refused and kept."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from milepost.outcome import micros
from milepost.records import NewJob
from milepost.store import creation
from milepost.store.driver import Call, Steps
from milepost.store.instants import instant


class RefusedMessage(msgspec.Struct, frozen=True):
    """A message that became no job, and why."""

    source: str
    message_id: str
    at: datetime
    error: str
    content: bytes | None


def accept(source: str, message_id: str, new: NewJob) -> Steps[str | None]:
    """Create the job of a message; answer with its id, the first one's if it came before (H-53)."""
    if not (yield from _remember(source, message_id)):
        [(job_id, _)] = yield Call("inbox_get", {"source": source, "message_id": message_id})
        return None if job_id is None else str(job_id)
    [job_id] = yield from creation.create([new])
    yield Call("inbox_job", {"source": source, "message_id": message_id, "job_id": job_id})
    return job_id


def refuse(source: str, message_id: str, *, error: str, content: bytes) -> Steps[bool]:
    """Keep a message that can never be a job; False when it was kept before."""
    return (yield from _remember(source, message_id, error=error, content=content))


def _remember(
    source: str, message_id: str, *, error: str | None = None, content: bytes | None = None
) -> Steps[bool]:
    rows = yield Call(
        "inbox_add",
        {"source": source, "message_id": message_id, "error": error, "content": content},
    )
    return bool(rows)


def refused(source: str | None = None, *, most: int = 100) -> Steps[Sequence[RefusedMessage]]:
    """Read what was refused, the newest first."""
    rows = yield Call("inbox_refused", {"source": source, "most": most})
    return [RefusedMessage(row[0], row[1], instant(row[2]), row[3], row[4]) for row in rows]


def forget(*, keep_seconds: float, most: int) -> Steps[int]:
    """Forget what came in that long ago; answer with how much."""
    return len((yield Call("inbox_forget", {"keep_us": micros(keep_seconds), "most": most})))
