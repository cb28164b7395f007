"""Operations on messages that come in: each becomes a job or run once, or is refused and kept."""

from collections.abc import Callable, Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from milepost.outcome import micros
from milepost.records import NewJob
from milepost.store import creation
from milepost.store.columns import reader
from milepost.store.driver import Call, Steps

ID_BYTES = 1_000
"""The longest id that is stored as it is: an index of PostgreSQL holds 2,700 bytes."""
ID_SHOWN = 100


class RefusedMessage(msgspec.Struct, frozen=True):
    """A message that became neither a job nor a run, and why."""

    source: str
    message_id: str
    at: datetime
    error: str
    content: bytes | None


Create = Callable[[Sequence[NewJob]], Steps[list[str]]]


def accept(
    source: str,
    message_id: str,
    new: NewJob | Callable[[], Steps[str]],
    *,
    create: Create = creation.create,
) -> Steps[str | None]:
    """Create the job of a message, or start its run by the operation that is given.

    Answer with the id; with the first one's if the message came before (H-53).
    """
    message = {"source": source, "message_id": _known_by(message_id)}
    if not (yield Call("inbox_add", {**message, "error": None, "content": None})):
        [(made,)] = yield Call("inbox_get", message)
        return None if made is None else str(made)
    job_id = run_id = None
    if isinstance(new, NewJob):
        [job_id] = yield from create([new])
    else:
        run_id = yield from new()
    yield Call("inbox_became", {**message, "job_id": job_id, "run_id": run_id})
    return job_id or run_id


def refuse(source: str, message_id: str, *, error: str, content: bytes) -> Steps[None]:
    """Keep a message that can never be a job, with the reason."""
    message = {"source": source, "message_id": _known_by(message_id)}
    yield Call("inbox_add", {**message, "error": error.replace("\0", "\ufffd"), "content": content})


def _known_by(message_id: str) -> str:
    """Give what a message is known by: its id, or its hash where no store could hold the id."""
    written = message_id.encode(errors="surrogatepass")
    shown = written.decode(errors="replace").replace("\0", "\ufffd")
    if shown == message_id and len(written) <= ID_BYTES:
        return message_id
    return f"{shown[:ID_SHOWN]}… sha256:{sha256(written).hexdigest()}"


_refused = reader(RefusedMessage)


def refused(source: str | None = None, *, most: int = 100) -> Steps[Sequence[RefusedMessage]]:
    """Read refused messages, the newest first."""
    rows = yield Call("inbox_refused", {"source": source, "most": most})
    return [_refused(row) for row in rows]


def forget(*, keep_seconds: float, most: int) -> Steps[int]:
    """Forget messages that came in that long ago; answer with how many."""
    return len((yield Call("inbox_forget", {"keep_us": micros(keep_seconds), "most": most})))
