"""One budget of calls for each source, shared by every worker (H-89)."""

from milepost.store.driver import Call, Steps

__all__ = ["block", "blocked", "take"]


def take(name: str, *, every: float) -> Steps[float]:
    """Take the next slot of a source that may be called every so many seconds; say in how many."""
    parameters = {"name": name, "every_us": round(every * 1_000_000)}
    [(wait,)] = yield Call("budget_take", parameters, alone=True)
    return max(0.0, float(wait) / 1_000_000)


def block(name: str, *, seconds: float) -> Steps[None]:
    """Keep everybody from calling a source that asked for a pause."""
    yield Call("budget_block", {"name": name, "wait_us": round(seconds * 1_000_000)}, alone=True)


def blocked(name: str) -> Steps[float]:
    """Tell for how many seconds a source does not want to be called."""
    rows = yield Call("budget_blocked", {"name": name}, alone=True)
    return float(rows[0][0]) / 1_000_000 if rows else 0.0
