"""How many slots of a worker stand in each state of the slot machine."""

import msgspec

from milepost.lifecycle import SLOT, SlotState

__all__ = ["Slots"]

Step = tuple[str, str]


def _step(move: str, source: SlotState, target: SlotState) -> Step:
    """Spell a declared move, checked once: it is made for every job."""
    SLOT.check(move, source, target)
    return source.value, target.value


_TAKE = _step("take", SlotState.FREE, SlotState.CLAIMING)
_START = _step("start", SlotState.CLAIMING, SlotState.PROCESSING)
_REPORT = {
    True: _step("success", SlotState.PROCESSING, SlotState.REPORTING_SUCCESS),
    False: _step("failure", SlotState.PROCESSING, SlotState.REPORTING_FAILURE),
}
_REPORTED = {
    True: _step("reported", SlotState.REPORTING_SUCCESS, SlotState.FREE),
    False: _step("reported", SlotState.REPORTING_FAILURE, SlotState.FREE),
}
_FREE = SlotState.FREE.value


class Slots:
    """Counts slots; every change is a declared move of the slot machine."""

    def __init__(self, size: int) -> None:
        self._counts: dict[str, int] = {state.value: 0 for state in SlotState} | {_FREE: size}

    @property
    def free(self) -> int:
        """How many may be taken; an outcome that is not settled keeps its slot."""
        return self._counts[_FREE]

    def take(self, count: int) -> None:
        """Fill slots with claimed jobs."""
        self._move(_TAKE, count)
        self._move(_START, count)

    def report(self, *, good: bool) -> None:
        """Note that a handler has ended."""
        self._move(_REPORT[good], 1)

    def reported(self, count: int, *, good: bool) -> None:
        """Note that outcomes are settled."""
        self._move(_REPORTED[good], count)

    def _move(self, step: Step, count: int) -> None:
        source, target = step
        self._counts[source] -= count
        self._counts[target] += count

    def text(self) -> str:
        """Render the counts for the worker's row."""
        return msgspec.json.encode({state: n for state, n in self._counts.items() if n}).decode()
