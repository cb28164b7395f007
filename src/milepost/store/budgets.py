"""A pause that a source asked for, and its login, shared by every worker (H-89, H-90)."""

from typing import Any

import msgspec

from milepost.store.buckets import MICROS
from milepost.store.driver import Call, Steps
from milepost.store.rules import Limit


class Standing(msgspec.Struct, frozen=True):
    """For how many seconds a source does not want to be called, and the rate in force."""

    blocked: float
    limit: Limit | None


def standing(name: str) -> Steps[Standing]:
    """Tell whether a source may be called now."""
    [(blocked, rate, per_us, burst)] = yield Call("budget_standing", {"name": name}, alone=True)
    limit = None if rate is None else Limit(rate=rate, per_us=per_us, burst=burst)
    return Standing((blocked or 0) / MICROS, limit)


def block(name: str, *, seconds: float) -> Steps[None]:
    """Keep everybody from calling a source that asked for a pause."""
    yield Call("budget_block", {"name": name, "wait_us": round(seconds * MICROS)}, alone=True)


class Login(msgspec.Struct, frozen=True):
    """The newest login of a source: its number, its session, and whose turn it is."""

    number: int
    session: bytes | None
    until: Any = None
    """Until when it is the caller's turn to log in, by the store's clock; None if it is not."""

    @property
    def is_ours(self) -> bool:
        """Whether the caller is to log in."""
        return self.until is not None


def look_for_login(name: str, *, seen: int, lease_seconds: float) -> Steps[Login]:
    """Read a login newer than the one that was refused, or get the turn to log in."""
    yield Call("login_enter", {"name": name})
    asked = {"name": name, "seen": seen, "lease_us": round(lease_seconds * MICROS)}
    ours = yield Call("login_take", asked)
    [(number, session)] = yield Call("login_read", {"name": name})
    return Login(number, session, ours[0][0] if ours else None)


def leave_login(name: str, *, until: Any) -> Steps[None]:
    """Say that a login failed: the others need not wait until the turn is over."""
    yield Call("login_leave", {"name": name, "until": until}, alone=True)


def give_login(name: str, *, seen: int, session: bytes | None) -> Steps[int]:
    """Store the session of a login, unless a newer one is there; answer with the newest number."""
    yield Call("login_give", {"name": name, "seen": seen, "session": session})
    [(number, _)] = yield Call("login_read", {"name": name})
    return int(number)
