"""Options and arguments that several commands have, to be used as `@options.NAME`."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from milepost.cli import complete
from milepost.config import LOG_FORMATS, LOG_LEVELS
from milepost.errors import NotFound

F = TypeVar("F", bound=Callable[..., Any])


class SecondsType(click.FloatRange):
    """A number of seconds; NaN passes every comparison, and would be found late."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it, or refuse it before anything is stored."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return number


def _whole_id(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse an invalid id under the name that was typed."""
    from milepost.subjects import checked_id

    try:
        return None if value is None else checked_id(value)
    except NotFound as error:
        raise click.BadParameter(
            f"{value!r} is not the whole id of a job or a run; a page ends with the one to give"
        ) from error


SECONDS = SecondsType(0)
before = click.option(
    "--before",
    metavar="ID",
    callback=_whole_id,
    help="Go on after the last one of the page before.",
)
after = click.option("--after", default="", metavar="KEY", help="Go on after this key.")
name = click.argument("name", shell_complete=complete.names)
subject_id = click.argument("subject_id", metavar="ID", shell_complete=complete.ids)
concurrency = click.option(
    "--concurrency", type=click.IntRange(1), metavar="N", help="How many jobs at once."
)


def chosen(command: F) -> F:
    """Add the choice of one job by its id, or of many by a filter, which are counted first."""
    one = click.argument("subject_id", metavar="[ID]", required=False, shell_complete=complete.ids)
    agreed = click.option("--yes", is_flag=True, help="With --where: do not ask.")
    rate = click.option(
        "--rate",
        type=click.FloatRange(0, 10_000, min_open=True),
        metavar="N",
        help="With --where: at most N jobs a second.",
    )
    return one(where("Instead of an ID, all jobs that fit")(agreed(rate(command))))


def logging(command: F) -> F:
    """Add how the lines of a process are logged."""
    level = click.option(
        "--log-level", type=click.Choice(LOG_LEVELS), help="The least level.  [default: info]"
    )
    written = click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        help="How lines are written.  [default: text]",
    )
    return level(written(command))


def where(text: str) -> Callable[[F], F]:
    """Add a filter of jobs."""
    return click.option(
        "--where", metavar="FILTER", help=f"{text}: 'state:failed tag.customer:42 age:>1h'."
    )


def seconds(flag: str, text: str) -> Callable[[F], F]:
    """Add a number of seconds."""
    return click.option(flag, type=SECONDS, metavar="SECONDS", help=text)


def repeated(*flags: str, text: str, metavar: str = "NAME") -> Callable[[F], F]:
    """Add an option that may be given more than once."""
    return click.option(*flags, multiple=True, metavar=metavar, help=text)


def number(flag: str, default: int, text: str, *, least: int = 1) -> Callable[[F], F]:
    """Add a number with a default."""
    kind = click.IntRange(least)
    return click.option(flag, type=kind, metavar="N", default=default, show_default=True, help=text)


def limit(default: int = 50) -> Callable[[F], F]:
    """Add how long a list may be."""
    return number("--limit", default, "List at most N.")


def reason(default: str, text: str = "Kept on the record.") -> Callable[[F], F]:
    """Add why something is decided by hand."""
    return click.option("--reason", default=default, show_default=True, help=text)


def state(*states: str, text: str = "Only those in this state.") -> Callable[[F], F]:
    """Add a filter by state."""
    return click.option("--state", type=click.Choice(states, case_sensitive=False), help=text)


def creation(command: F) -> F:
    """Add options that a job and a run have in common."""
    rank = click.IntRange(0, 9)
    priority = click.option("--priority", type=rank, metavar="0-9", help="Larger is sooner.")
    deadline = seconds("--deadline", "Failed after then.")
    tag = repeated("--tag", "tags", metavar="NAME=VALUE", text="May be repeated.")
    return priority(deadline(tag(command)))


timeout = seconds("--timeout", "Give up then.")
