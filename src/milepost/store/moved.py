"""What a store that was moved away says of itself, to whoever opens it."""

from datetime import datetime

import msgspec

from milepost.store.driver import Call, Steps
from milepost.store.instants import instant


class StoreMove(msgspec.Struct, frozen=True):
    """The move of a whole store, noted on both sides. Addresses have no passwords."""

    id: str
    source: str
    target: str
    place: str
    """Which database the target is, by whatever address."""
    actor: str
    begun_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def told(self) -> str:
        """What became of the store."""
        when = "" if self.begun_at is None else f" at {self.begun_at:%Y-%m-%d %H:%M} UTC"
        told = f"moved to {self.target} by {self.actor}{when} (move {self.id})"
        if self.finished_at is None:
            return (
                f"is being {told}. If that was interrupted, run the same `milepost move` again: it "
                "finishes the move, or makes this store usable again"
            )
        return f"was {told}: it is not used any more, set MILEPOST_DATABASE_URL to the new one"


def moved() -> Steps[StoreMove | None]:
    """Read whether this store was moved away, or is about to be."""
    for row in (yield Call("move_away")):
        id_, source, target, place, actor, begun_at, finished_at = row
        ended = None if finished_at is None else instant(finished_at)
        return StoreMove(id_, source, target, place, actor, instant(begun_at), ended)
    return None


def note(made: StoreMove) -> Steps[None]:
    """Note a move that is about to be finished."""
    told = msgspec.structs.asdict(made)
    yield Call(
        "move_note", {name: told[name] for name in ("id", "source", "target", "place", "actor")}
    )
