"""Phrases of explanations: how many, when, for how long."""

from datetime import UTC, datetime


def some(number: int, one: str, many: str | None = None) -> str:
    """Count something: 1 job, 1,021 jobs."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def none_of(number: int, verb: str, what: str, *, of: str = "") -> str:
    """Say of so many live workers that none serves, or knows, something."""
    if not number:
        return "no worker is alive"
    if number == 1:
        return f"the only live worker{of} does not {verb} {what}"
    return f"none of {number:,} live workers{of} {verb}s {what}"


def moment(at: datetime) -> str:
    """Say when, to the second."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """Say how long, as a person would."""
    for size, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {name}".replace(".0 ", " ")
    return f"{seconds:.1f} seconds".replace(".0 ", " ")
