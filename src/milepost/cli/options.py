"""Options and arguments that several commands share, and the way to a store without an app."""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeVar

import click

from milepost.config import Settings, StoreUrl, command_for, store_url
from milepost.errors import NotFound

F = TypeVar("F", bound=Callable[..., Any])


class Seconds(click.FloatRange):
    """A number of seconds; what is no number passes every comparison, and would be found late."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it, or refuse it before anything is stored."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return number


SECONDS = Seconds(0)


def _parse(_context: click.Context, _parameter: click.Parameter, value: str | None) -> StoreUrl:
    return store_url(value, os.environ)


def store_option(command: F) -> F:
    """Add `--store`, which falls back to the environment and then to ./milepost.db."""
    return click.option(
        "--store",
        metavar="URL",
        callback=_parse,
        help="sqlite:///file.db or postgresql://…  [default: MILEPOST_DATABASE_URL, "
        "DATABASE_URL, milepost.toml, then ./milepost.db]",
    )(command)


def json_option(command: F) -> F:
    """Add `--json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON document instead of a table."
    )(command)


def decision_reason(command: F) -> F:
    """Add `--reason` to what an operator decides."""
    return click.option(
        "--reason", default="decided by hand", show_default=True, help="Kept on the record."
    )(command)


def id_argument(command: F) -> F:
    """Add the id of a job or a run, or the beginning of one."""
    return click.argument("subject_id", metavar="ID")(command)


def page_options(command: F) -> F:
    """Add what a list of jobs or runs is cut into pages by."""
    return _all(
        command,
        limit_option(50),
        click.option(
            "--before",
            metavar="ID",
            callback=_whole_id,
            help="Go on after the last one of the page before.",
        ),
    )


def _whole_id(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse what is no id under the name that was typed."""
    from milepost.subjects import checked_id

    try:
        return None if value is None else checked_id(value)
    except NotFound as error:
        raise click.BadParameter(
            f"{value!r} is not the whole id of a job or a run; a page ends with the one to give"
        ) from error


def limit_option(default: int) -> Callable[[F], F]:
    """Add how long a list may be."""
    return click.option(
        "--limit",
        type=click.IntRange(1),
        metavar="N",
        default=default,
        show_default=True,
        help="At most so many.",
    )


def reason_option(command: F) -> F:
    """Add why something is cancelled."""
    return click.option(
        "--reason", default="cancelled", show_default=True, help="Kept on the record."
    )(command)


def creation_options(command: F) -> F:
    """Add what a job and a run alike can be given, and whether to wait for their end."""
    return _all(
        command,
        click.option(
            "--priority", type=click.IntRange(0, 9), metavar="0-9", help="Larger is sooner."
        ),
        click.option("--deadline", type=SECONDS, metavar="SECONDS", help="Failed after then."),
        click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="May be repeated."),
        click.option(
            "--wait", is_flag=True, help="Wait for its end; exit code 3 unless it succeeded."
        ),
        click.option(
            "--timeout", type=SECONDS, metavar="SECONDS", help="With --wait: give up then."
        ),
        json_option,
    )


def _all(command: F, *options: Callable[[F], F]) -> F:
    # The last one first, as if they stood above the function.
    return reduce(lambda made, option: option(made), reversed(options), command)


def typed(words: str, store: StoreUrl) -> str:
    """Write a command in backquotes, to be copied: it names the store where that is needed."""
    return f"`{command_for('milepost ' + words, store, os.environ)}`"


class Lookup:
    """A store that is looked at without an app: what it holds is shown as it was stored."""

    def __init__(self, store: StoreUrl, *, look: bool) -> None:
        from milepost.batch.lookup import Runs
        from milepost.client import Client
        from milepost.encrypt import chosen_codec
        from milepost.handles import Jobs
        from milepost.queues import Queues
        from milepost.relay.pull import Channels
        from milepost.schedules import Schedules
        from milepost.workers import Workers

        settings = Settings.load(os.environ)
        self.client = Client(
            store, codec=chosen_codec(os.environ), settings=settings, create=False, look=look
        )
        self.jobs = Jobs(self.client, lambda _kind, _version: Any)
        self.runs = Runs(self.client, lambda _kind, _version: Any)
        self.queues = Queues(self.client)
        self.schedules = Schedules(self.client, {})
        self.channels = Channels(self.client)
        self.workers = Workers(self.client)


@contextmanager
def looking(store: StoreUrl) -> Iterator[Lookup]:
    """Open a store that must be there, change nothing, and close it afterwards."""
    with _opened(Lookup(store, look=True)) as lookup:
        yield lookup


@contextmanager
def acting(store: StoreUrl) -> Iterator[Lookup]:
    """Open a store that must be there, to change what is in it, and close it afterwards."""
    with _opened(Lookup(store, look=False)) as lookup:
        yield lookup


@contextmanager
def _opened(lookup: Lookup) -> Iterator[Lookup]:
    try:
        yield lookup
    finally:
        lookup.client.close()
