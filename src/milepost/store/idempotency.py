"""Once per key: a request's changes and its answer are written by one transaction."""

from collections.abc import Callable, Sequence

from milepost.errors import Invalid
from milepost.outcome import micros
from milepost.store.driver import Call, Steps

KEEP_SECONDS = 24 * 3600.0
"""How long an answer is given again."""


class Reused(Invalid):
    """A key came again with another request."""


def once(
    operation: Callable[[], Steps[bytes]], *, scope: str, key: str, fingerprints: Sequence[str]
) -> Steps[bytes]:
    """Do it, or answer as the first time; rivals wait for the first one's commit (H-95).

    The first of the fingerprints is stored; a request that came before may have any of them.
    """
    asked = {"scope": scope, "key": key}
    while not (yield Call("idempotency_take", {**asked, "fingerprint": fingerprints[0]})):
        # A new statement sees the rival's commit; it may have been pruned since.
        if found := (yield Call("idempotency_get", asked)):
            first, answer = found[0]
            if first not in fingerprints:
                raise Reused("this Idempotency-Key was used for another request; choose a new one")
            return bytes(answer)
    answer = yield from operation()
    yield Call("idempotency_answer", {**asked, "answer": answer})
    return answer


def prune(*, most: int) -> Steps[int]:
    """Forget old answers, some at once; answer with how many."""
    asked = {"keep_us": micros(KEEP_SECONDS), "most": most}
    return len((yield Call("idempotency_prune", asked)))
