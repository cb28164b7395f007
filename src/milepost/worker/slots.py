"""How many slots of a worker stand in each state of the slot machine."""

from collections import Counter

import msgspec

from milepost.lifecycle import SLOT, SlotState

__all__ = ["Slots"]


class Slots:
    """Counts slots; every change is a declared move of the slot machine."""

    def __init__(self, size: int) -> None:
        self._counts: Counter[str] = Counter({SlotState.FREE.value: size})

    @property
    def free(self) -> int:
        """How many may be taken; an outcome that is not settled keeps its slot."""
        return self._counts[SlotState.FREE]

    def take(self, count: int) -> None:
        """Fill slots with claimed jobs."""
        self._move("take", SlotState.FREE, SlotState.CLAIMING, count)
        self._move("start", SlotState.CLAIMING, SlotState.PROCESSING, count)

    def report(self, *, good: bool) -> None:
        """Note that a handler has ended."""
        self._move("success" if good else "failure", SlotState.PROCESSING, _reporting(good), 1)

    def reported(self, *, good: bool) -> None:
        """Note that an outcome is settled."""
        self._move("reported", _reporting(good), SlotState.FREE, 1)

    def _move(self, name: str, source: SlotState, target: SlotState, count: int) -> None:
        SLOT.check(name, source, target)
        self._counts[source.value] -= count
        self._counts[target.value] += count

    def text(self) -> str:
        """Render the counts for the worker's row."""
        return msgspec.json.encode({state: n for state, n in self._counts.items() if n}).decode()


def _reporting(good: bool) -> SlotState:  # noqa: FBT001 - a private choice of two
    return SlotState.REPORTING_SUCCESS if good else SlotState.REPORTING_FAILURE
