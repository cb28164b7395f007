"""What a running handler holds."""

from contextvars import ContextVar

from milepost.errors import Invalid
from milepost.policy import Cancelled
from milepost.records import Claim

__all__ = ["Context", "current", "running"]

running: ContextVar["Context | None"] = ContextVar("milepost_context", default=None)


class Context:
    """The attempt that is running: who it is, and whether it should stop."""

    __slots__ = ("claim", "reason", "usage")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.usage: dict[str, float] = {}
        self.reason: str | None = None

    @property
    def id(self) -> str:
        """The job's id."""
        return self.claim.id

    @property
    def attempt(self) -> int:
        """Which attempt this is, counted from 1."""
        return self.claim.attempt

    @property
    def fence(self) -> int:
        """The number that grows with every claim of this job."""
        return self.claim.fence

    @property
    def idempotency_key(self) -> str:
        """A key that is the same in every attempt, for effects elsewhere (F8)."""
        return self.claim.id

    @property
    def cancelled(self) -> bool:
        """Whether the job was asked to stop."""
        return self.reason is not None

    def check(self) -> None:
        """Raise `Cancelled` if the job was asked to stop."""
        if self.cancelled:
            raise Cancelled(self.reason)

    def count(self, name: str, amount: float = 1) -> None:
        """Add to what this attempt used; recorded when it succeeds."""
        self.usage[name] = self.usage.get(name, 0) + amount

    def ask_to_stop(self, reason: str) -> None:
        """Tell the handler to stop; what the worker calls."""
        self.reason = reason


def current() -> Context:
    """Return the context of the job that is running here, however deep in the call."""
    context = running.get()
    if context is None:
        raise Invalid("no job is running here: current() works inside a handler only")
    return context
