"""Limit: how many jobs of a kind, or of a key, run at once or start per second; in which order."""

import hashlib
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID
from zlib import crc32

from milepost.codec import check_text, shorten
from milepost.errors import Invalid

TENANT = "tenant"
"""The key that is the caller's tenant, unless the function has a parameter of that name."""
STRIPES = 16
"""Over so many locks the keys of a rule are spread."""
KEY_BYTES = 1_000
"""The longest key that `options(limit_key=)` takes."""
PLAIN_BYTES = 200
"""A longer key is stored by its hash."""
_RATE = re.compile(
    r"\s*([0-9]+(?:\.[0-9]+)?)"
    r"\s*(?:/\s*(s(?:ec(?:ond)?)?|m(?:in(?:ute)?)?|h(?:our)?|d(?:ay)?)\s*)?"
)
_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
MOST = 2**31 - 1
"""The largest number that a column holds."""
LONGEST_US = 36_525 * 86_400 * 1_000_000
"""An empty bucket is full again after a hundred years at most: an instant that stores can hold."""
SCOPES = ("job", "queue", "host", "source")
"""What a rule counts: jobs by key, those of a queue, requests to a host, calls of a source."""
EVENLY = ("host", "source")
"""The scopes whose rates start one at a time, evenly apart, unless a burst is given."""
UNITS_MOST = 10**15
"""No rate, burst or reservation is larger: floats count every unit up to there."""


class Rate(NamedTuple):
    """A number of units in a number of microseconds."""

    amount: float
    per_us: int

    @property
    def per_second(self) -> float:
        """The same in units per second."""
        return self.amount * 1_000_000 / self.per_us

    def burst(self, scope: str = "job") -> float:
        """Give the default burst: how many units may start at once after a rest.

        For jobs and queues it is one second's worth. Hosts and sources belong to others and are
        called evenly: one at a time.
        """
        return 1.0 if scope in EVENLY else max(1.0, self.per_second)


def number_text(number: float) -> str:
    """Write a number in full, as `read_rate` reads it: 1000000, not 1e+06."""
    text = format(Decimal(repr(float(number))), "f")
    return text.removesuffix(".0")


def read_rate(rate: Any) -> Rate:
    """Read "25/s", "100/m", "5/h" or "1000/d"; a number alone is per second."""
    amount: float = 0
    seconds = 1
    if isinstance(rate, str) and (found := _RATE.fullmatch(rate)):
        amount, seconds = float(found[1]), _SECONDS[(found[2] or "s")[0]]
    elif isinstance(rate, int | float) and not isinstance(rate, bool):
        amount = rate
    if not amount > 0:
        raise Invalid(
            f"rate={shorten(rate)} must be a number per s, m, h or d, such as 25/s or 1000/d; a "
            "number alone is per second"
        )
    if amount > UNITS_MOST:
        raise Invalid(f"rate={shorten(rate)} is more than {UNITS_MOST:,}")
    pace = Rate(float(amount), seconds * 1_000_000)
    if pace.per_us / amount > LONGEST_US:
        raise Invalid(f"rate={shorten(rate)} is less than one in a hundred years")
    return pace


def check_burst(burst: Any, pace: Rate) -> float:
    """Give how many may start at once after a rest, or raise `Invalid` saying what is wrong."""
    is_number = isinstance(burst, int | float) and not isinstance(burst, bool)
    if not is_number or not 1 <= burst <= UNITS_MOST:
        raise Invalid(
            f"burst={shorten(burst)} must be a number from 1 to {UNITS_MOST:,}: that many start "
            "at once"
        )
    if burst * pace.per_us / pace.amount > LONGEST_US:
        text = number_text(burst)
        raise Invalid(f"burst={text} takes the rate more than a hundred years to earn")
    return float(burst)


@dataclass(frozen=True, slots=True)
class Limit:
    """How many jobs run at once or start per second, and in which order; over all workers.

    * `most`: The largest number of jobs that run at once.
    * `key`: Each of its values is limited separately. The name of a parameter; a function that is
      called with the arguments as the handler gets them; or "tenant", the tenant of the caller
      (unless a parameter has that name). A key alone shares the workers fairly among its values.
    * `rate`: How many may start: "25/s", "100/m", "5/h", "1000/d", or a number per second.
    * `burst`: How many may start at once after a rest; one second's worth unless given.
    * `units`: What the rate counts in place of jobs, such as "tokens". `options(units=1200)`
      reserves them at the start; the end of the attempt corrects that to the number that it
      counted by `ctx.count("tokens", n)`.
    * `ordered`: One at a time for each key, in the order of submits, retries included.
    * `name`: The name of the rule, by default the kind's. Jobs that name the same rule share it.
    """

    most: int | None = None
    _: KW_ONLY
    key: str | Callable[..., Any] | None = None
    rate: str | float | None = None
    burst: float | None = None
    units: str | None = None
    ordered: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        """Refuse contradictions, and a limit that limits nothing."""
        if self.most is not None:
            _check_most(self.most)
        if not isinstance(self.ordered, bool):
            raise Invalid(f"ordered={self.ordered!r} must be True or False")
        if self.ordered and self.most not in (None, 1):
            raise Invalid(f"ordered=True is one at a time: leave most={self.most} out")
        for name in ("units", "name"):
            if getattr(self, name) is not None:
                check_text(getattr(self, name), what=name)
        self._check_key()
        self._check_rate()
        if not self.ordered and (self.most, self.key, self.rate) == (None, None, None):
            raise Invalid("a limit needs most=, rate=, ordered=True or a key=: it limits nothing")

    @property
    def pace(self) -> Rate | None:
        """The rate as a number."""
        return None if self.rate is None else read_rate(self.rate)

    @property
    def room(self) -> float | None:
        """How many units may start at once; None: any number."""
        pace = self.pace
        if pace is None or self.burst is not None:
            return self.burst
        return pace.burst()

    def _check_key(self) -> None:
        if self.key is None:
            return
        if not callable(self.key):
            if not isinstance(self.key, str):
                raise Invalid(
                    f'key={shorten(self.key)} must be the name of a parameter, "tenant" or a '
                    "function of the arguments"
                )
            check_text(self.key, what="key")
        elif any(map(inspect.iscoroutinefunction, (self.key, type(self.key).__call__))):
            raise Invalid(f"key={self.key!r} must be a plain function: it is called by a submit")

    def _check_rate(self) -> None:
        pace = self.pace
        if pace is None:
            if alone := [n for n in ("burst", "units") if getattr(self, n) is not None]:
                raise Invalid(f"{' and '.join(alone)} without rate=: say how many in a time")
        elif self.burst is not None:
            check_burst(self.burst, pace)


@dataclass(frozen=True, slots=True)
class StoredLimit(Limit):
    """A limit read from the store, for a request that names it.

    It was checked when it was set, and may be one that no program could declare.
    """

    def __post_init__(self) -> None:
        """Skip the checks of a declaration."""


def _check_most(most: Any) -> None:
    if not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MOST:
        raise Invalid(
            f"most={shorten(most)} must be a whole number from 1 to {MOST:,}; to start none, "
            "pause the queue"
        )


def key_text(value: Any, *, what: str) -> str:
    """Make a key of a value; raise `Invalid` where there is none (L-9)."""
    if isinstance(value, Enum):
        value = value.value
    if value is None:
        raise Invalid(f"{what} is None: every job under a limit by key needs one")
    if isinstance(value, int | UUID):
        return str(value)
    if not isinstance(value, str):
        raise Invalid(
            f"{what} is of type {type(value).__name__}: a key is a text, a whole number or a UUID; "
            "make one of it by key=lambda …"
        )
    return check_text(value, what=what.rstrip(","), most=MOST)


def host_name(host: str) -> str:
    """Name a host as its limit does: its case, and a dot at its end, make no difference."""
    if not host.isascii():
        with suppress(UnicodeError):
            host = host.encode("idna").decode()
    return host.lower().strip("[]").removesuffix(".") or host


def limit_key(rule: str, key: str) -> str:
    """Name a key of a rule, as jobs store it: stripe/rule/key; a long key by its hash."""
    rule = rule.replace("%", "%25").replace("/", "%2F")
    if len(key) * 4 > PLAIN_BYTES and len(key.encode()) > PLAIN_BYTES:
        key = f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
    return f"{stripe_of(rule, key)}/{rule}/{key}"


def stripe_of(rule: str, key: str) -> str:
    """Give the stripe of a key: the same in every process."""
    return f"{crc32(f'{rule}/{key}'.encode()) % STRIPES:x}"


def split_key(stored: str) -> tuple[str, str]:
    """Split a stored `limit_key` into the name of its rule and the key."""
    _, rule, key = stored.split("/", 2)
    return rule.replace("%2F", "/").replace("%25", "%"), key
