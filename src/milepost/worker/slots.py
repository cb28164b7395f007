"""How many slots of a worker stand in each state of the slot machine."""

import msgspec

from milepost.lifecycle import SLOT, SlotState

Step = tuple[str, str]


def _step(move: str, source: SlotState, target: SlotState) -> Step:
    """Spell a declared move, checked once: it is made for every job."""
    SLOT.check(move, source, target)
    return source.value, target.value


_TAKE = _step("take", SlotState.FREE, SlotState.CLAIMING)
_START = _step("start", SlotState.CLAIMING, SlotState.PROCESSING)
_MISS = _step("miss", SlotState.CLAIMING, SlotState.FREE)
_REPORT = {
    True: _step("success", SlotState.PROCESSING, SlotState.REPORTING_SUCCESS),
    False: _step("failure", SlotState.PROCESSING, SlotState.REPORTING_FAILURE),
}
_REPORTED = {
    True: _step("reported", SlotState.REPORTING_SUCCESS, SlotState.FREE),
    False: _step("reported", SlotState.REPORTING_FAILURE, SlotState.FREE),
}
_DROP = {
    None: _step("drop", SlotState.PROCESSING, SlotState.FREE),
    True: _step("drop", SlotState.REPORTING_SUCCESS, SlotState.FREE),
    False: _step("drop", SlotState.REPORTING_FAILURE, SlotState.FREE),
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
        """Note that so many are to be filled by the claim under way."""
        self._move(_TAKE, count)

    def start(self, count: int, *, taken: int) -> None:
        """Fill as many of the slots taken as jobs were claimed; the others are free again."""
        self._move(_START, count)
        self._move(_MISS, taken - count)

    def report(self, *, good: bool) -> None:
        """Note that a handler has ended."""
        self._move(_REPORT[good], 1)

    def reported(self, count: int, *, good: bool) -> None:
        """Note that outcomes are settled."""
        self._move(_REPORTED[good], count)

    def drop(self, *, good: bool | None) -> None:
        """Note that a job was released, or that its lease was lost before its outcome was written.

        `good` says which outcome was reported; None that none was.
        """
        self._move(_DROP[good], 1)

    def _move(self, step: Step, count: int) -> None:
        source, target = step
        self._counts[source] -= count
        self._counts[target] += count

    def text(self) -> str:
        """Render the counts for the worker's row."""
        return msgspec.json.encode({state: n for state, n in self._counts.items() if n}).decode()
