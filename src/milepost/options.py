"""Options of a job, each declared once: its type, bounds, default and meaning, and who takes it.

A class below is a place that takes options; an option stands in the class of all places that take
it. Its annotation holds its rule; the text under it is what an editor shows and what the reference
page says. Signatures, checks, the API's model, inbound messages and the parameters of statements
derive from here. CONTRIBUTING.md says how one is added.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

import msgspec

from milepost.codec import NAME_BYTES, check_tags, check_text, shorten
from milepost.config import size
from milepost.errors import Invalid
from milepost.limit import KEY_BYTES, UNITS_MOST, Limit
from milepost.outcome import micros

Errors = tuple[type[BaseException], ...]
OnConflict = Literal["keep", "replace", "debounce"]

MOST = 2**31 - 1
HIGHEST = 9
"""Priorities are 0 to 9, larger first."""
SECONDS_MOST = 100 * 366 * 86_400
"""A century: beyond it a duration is a mistake, and soon more than a database can add to a time."""
UNIQUE_BYTES = 1_000
UNIQUE_SECONDS = 86_400.0
"""How long `unique_for` keeps a key at most: taken keys are forgotten after a day."""
START_FIRST = datetime(1970, 1, 1, tzinfo=UTC)
START_LAST = datetime(9000, 1, 1, tzinfo=UTC)
"""Instants outside are mistakes, and databases and zones disagree on the last ones."""


# Rules


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What values an option takes; `default` is what a declaration has without it."""

    default: Any = None

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for a value that the option does not take."""

    @property
    def bounds(self) -> Mapping[str, float]:
        """Tell the bounds as JSON schemas and their like name them."""
        return {}


class Whole(Rule, frozen=True, kw_only=True):
    """A whole number."""

    least: int = 0
    most: int = MOST

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for a value that is no whole number, or out of bounds."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise Invalid(f"{name}={shorten(value)} must be a whole number")
        if not self.least <= value <= self.most:
            raise Invalid(f"{name}={shorten(value)} must be between {self.least} and {self.most}")

    @property
    def bounds(self) -> Mapping[str, float]:
        """Tell the bounds; the last number that a column holds is not worth telling."""
        return {"ge": self.least} | ({} if self.most == MOST else {"le": self.most})


class Seconds(Rule, frozen=True, kw_only=True):
    """A duration."""

    zero: bool = True

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for a value that is no duration."""
        check_seconds(name, value, zero=self.zero)

    @property
    def bounds(self) -> Mapping[str, float]:
        """Tell the bounds."""
        return {"ge" if self.zero else "gt": 0}


class Text(Rule, frozen=True, kw_only=True):
    """A text that is not blank, and takes so many bytes."""

    most: int = NAME_BYTES

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for a value that is no text, or too long."""
        check_text(value, what=name, most=self.most)

    @property
    def bounds(self) -> Mapping[str, float]:
        """Tell the bounds."""
        return {"min_length": 1}


class Flag(Rule, frozen=True, kw_only=True):
    """True or False."""

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for anything else."""
        if not isinstance(value, bool):
            raise Invalid(f"{name}={shorten(value)} must be True or False")


class OneOf(Rule, frozen=True, kw_only=True):
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for another."""
        if value not in self.words:
            raise Invalid(f"{name}={shorten(value)} must be one of {', '.join(self.words)}")


class Size(Rule, frozen=True, kw_only=True):
    """A number of bytes, or a text with a unit."""

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for a value that is no size."""
        size(value, name)


class Tags(Rule, frozen=True, kw_only=True):
    """A few texts by name."""

    def check(self, name: str, value: Any) -> None:  # noqa: ARG002 - the texts are named one by one
        """Raise `Invalid` for anything else."""
        check_tags(value)


class Amount(Rule, frozen=True, kw_only=True):
    """A number of units."""

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for a value that is no number, or not more than zero."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < value <= UNITS_MOST:
            raise Invalid(
                f"{name}={shorten(value)} must be a number of more than zero, and at most "
                f"{UNITS_MOST:,}"
            )

    @property
    def bounds(self) -> Mapping[str, float]:
        """Tell the bounds."""
        return {"gt": 0}


class Limiting(Rule, frozen=True, kw_only=True):
    """A limit."""

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for anything else."""
        if not isinstance(value, Limit):
            raise Invalid(
                f'{name}={value!r} must be an mp.Limit, as in mp.Limit(5, key="customer")'
            )


class Moment(Rule, frozen=True, kw_only=True):
    """A time with its zone."""

    def check(self, name: str, value: Any) -> None:
        """Raise `Invalid` for anything else, and for times that calendars disagree on."""
        if not isinstance(value, datetime):
            raise Invalid(f"{name}={value!r} must be a datetime; start_in takes seconds")
        if value.tzinfo is None:
            raise Invalid(f"{name} needs a time zone: datetime(..., tzinfo=UTC)")
        if not START_FIRST < value < START_LAST:
            raise Invalid(f"{name}={value.isoformat()} is beyond what calendars agree on")


def check_seconds(name: str, value: Any, *, zero: bool) -> None:
    """Refuse what is no duration; None is for what was not asked."""
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Invalid(f"{name}={shorten(value)} must be a number of seconds")
    if not (value >= 0 if zero else value > 0) or not value <= SECONDS_MOST:
        within = "at least zero" if zero else "more than zero"
        raise Invalid(
            f"{name}={shorten(value)} must be {within} seconds, and at most a hundred years"
        )


# Options


class _Everywhere(TypedDict, total=False):
    """Taken by declarations and by submits; stored with each job."""

    queue: Annotated[str | None, Text(default="default")]
    """The queue that its jobs wait in."""
    priority: Annotated[int | None, Whole(most=HIGHEST, default=0)]
    """0 to 9; jobs with a larger one are claimed first."""
    retries: Annotated[int | None, Whole(default=3)]
    """How many failed or lost attempts are followed by another one."""
    recoveries: Annotated[int | None, Whole()]
    """How many lost attempts are followed by another one; None: they count among the retries."""
    deadline: Annotated[float | None, Seconds()]
    """Seconds from its submit until a job that has not ended fails; None: no deadline."""
    start_within: Annotated[float | None, Seconds()]
    """Seconds from its submit until a job that has not started fails; None: it may wait."""
    poll_limit: Annotated[int | None, Whole(default=1000)]
    """How often a handler may ask to be run later (`mp.Later`)."""


class _Handled(TypedDict, total=False):
    """Taken where a handler of this program runs; stored with each job."""

    timeout: Annotated[float | None, Seconds(zero=False, default=3600.0)]
    """Seconds that one attempt may take; None in a declaration: no limit."""
    poison_limit: Annotated[int | None, Whole(least=1, default=3)]
    """How many lost workers fail the job: it may be what kills them."""


class Retrying(TypedDict, total=False):
    """Taken by declarations and by requests: when the next attempt follows."""

    retry_delay: Annotated[float, Rule(default=1.0)]
    """Seconds before the next attempt."""
    backoff: Annotated[str, Rule(default="fixed")]
    """Whether the delay stays "fixed", or is doubled each time: "exponential"."""
    max_delay: Annotated[float, Rule(default=3600.0)]
    """The longest delay, in seconds."""
    jitter: Annotated[bool, Rule(default=False)]
    """Whether a delay is a random part of itself, so that jobs do not return all at once."""


class _Declaring(TypedDict, total=False):
    """Taken by declarations alone."""

    name: Annotated[str | None, Text()]
    """The kind's name; the function's own unless given."""
    retry_on: Annotated[Errors | None, Rule()]
    """The errors that are followed by another attempt; the app's own unless given."""
    fail_on: Annotated[Errors, Rule(default=())]
    """More errors that end the job at once, in addition to the app's."""
    isolate: Annotated[bool, Flag(default=False)]
    """Whether a worker runs it in a process of its own, which is killed at its timeout, when it is
    cancelled or when it passes a limit."""
    memory: Annotated[int | str | None, Size()]
    """With `isolate`: how much that process may hold with those it started, as in "512M"; None: no
    limit."""
    cpu_seconds: Annotated[float | None, Seconds(zero=False)]
    """With `isolate`: how much processor time an attempt may take, with the processes it started;
    None: no limit."""


class _Told(TypedDict, total=False):
    """Taken by declarations of jobs and by submits."""

    channel: Annotated[str | None, Text()]
    """The channel that is told how the job ended; the app's own unless given, None: nobody."""


class Submitting(_Everywhere, _Told, total=False):
    """Taken by submits: what one submission asks for beyond its declaration."""

    start_in: Annotated[float | None, Seconds()]
    """Seconds from now before which the job does not start."""
    start_at: Annotated[datetime | None, Moment()]
    """The time before which the job does not start; it has a zone."""
    unique: Annotated[str | None, Text(most=UNIQUE_BYTES)]
    """A key: while a job of the kind with it has not ended, a submit answers with that one."""
    on_conflict: Annotated[OnConflict | None, OneOf(words=get_args(OnConflict))]
    """With `unique`, where a job with the key has not ended: "keep" it; or, if it was never
    claimed, cancel it and create the new one: "replace" it at its time, "debounce" it to the new
    one's. One that has run or runs is kept."""
    unique_for: Annotated[float | None, Seconds(zero=False)]
    """With `unique`: the key stays taken for so many seconds after the submit, also when its job
    has ended; a day at most."""
    tags: Annotated[Mapping[str, str] | None, Tags()]
    """Texts by name, for people and programs that look at the job."""
    hold: Annotated[bool | None, Flag()]
    """Store the job without starting it; it starts once it is submitted."""


class Counted(TypedDict, total=False):
    """Taken by submits of kinds with a limit, and by requests with one."""

    limit_key: Annotated[str | None, Text(most=KEY_BYTES)]
    """The key that the job is counted under by its `limit`, in place of the one of the limit."""
    units: Annotated[float | None, Amount()]
    """How many units of its limit's rate the job reserves when it starts; 1 unless given."""


class HandlerOptions(_Everywhere, _Handled, Retrying, _Declaring, total=False):
    """What reducers and hooks of a batch take: a run has one of each."""


class StepOptions(HandlerOptions, total=False):
    """What steps of a batch take."""

    limit: Annotated[Limit | None, Limiting()]
    """How many run at once, start in a time, or in which order, over all workers."""


class JobOptions(StepOptions, _Told, total=False):
    """What `@app.job` takes."""

    on_failure: Annotated[Any, Rule()]
    """A job that is created, with the failed one's id, by the transaction that makes it FAILED."""
    version: Annotated[int, Whole(least=1, default=1)]
    """Counted up when waiting jobs must go on with the old code; versions stand side by side."""


class SubmitOptions(Submitting, _Handled, Counted, total=False):
    """What `job.options(...)` takes, and the options of a submission by API or message."""


def rules(place: type) -> dict[str, Rule]:
    """Give the rule of every option that a place takes."""
    hints = get_type_hints(place, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


_RULES = {**rules(JobOptions), **rules(SubmitOptions)}
_STORED = {**rules(_Everywhere), **rules(_Handled)}
_SECONDS = {name: f"{name}_us" for name, rule in _STORED.items() if isinstance(rule, Seconds)}
_PLAIN = tuple(name for name in _STORED if name not in _SECONDS)
DEFAULTS: Mapping[str, Any] = MappingProxyType({n: rule.default for n, rule in _STORED.items()})
"""The options that are stored with a job, as a declaration has them that names none."""


def default(name: str) -> Any:
    """Give what a declaration has without that option."""
    return _RULES[name].default


def check_names(place: type, asked: Mapping[str, Any], *, what: str) -> None:
    """Raise `Invalid` naming the options that a place does not take."""
    known = names(place)
    if not known.issuperset(asked):
        unknown = ", ".join(sorted(set(asked) - known))
        raise Invalid(f"{what} takes no {unknown}; it takes {', '.join(sorted(known))}")


@cache
def names(place: type) -> frozenset[str]:
    """Name the options that a place takes."""
    return frozenset(place.__annotations__)


def read(place: type, asked: Mapping[str, Any], *, what: str) -> dict[str, Any]:
    """Read options from JSON's values, or raise `Invalid` saying what does not fit.

    A program is told by its type checker; what comes over a wire is not.
    """
    try:
        return dict(msgspec.convert(asked, place, strict=True))
    except msgspec.ValidationError as error:
        raise Invalid(f"{what}: {error}") from None


def stored(asked: Mapping[str, Any], otherwise: Mapping[str, Any] = DEFAULTS) -> dict[str, Any]:
    """Choose the options that are stored with a job: those asked for, else the others."""
    given = {name: v for name, v in asked.items() if v is not None and name in _STORED}
    return {**otherwise, **given}


def declared(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Choose what a declaration stores with its jobs; of a duration None says that none is set."""
    unlimited = {name: None for name in _SECONDS if name in asked and asked[name] is None}
    return stored(asked) | unlimited


def check(asked: Mapping[str, Any]) -> None:
    """Raise `Invalid` for values that an option does not take; None is for what was not asked."""
    for name, value in asked.items():
        if value is not None and name in _RULES:
            _RULES[name].check(name, value)
    if asked.get("start_in") is not None and asked.get("start_at") is not None:
        raise Invalid("start_in and start_at exclude each other")


def pinned(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Give the options that are stored as the columns of a row: durations in microseconds."""
    row = {name: chosen[name] for name in _PLAIN}
    for name, column in _SECONDS.items():
        seconds = chosen[name]
        row[column] = None if seconds is None else micros(seconds)
    return row
