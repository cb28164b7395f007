"""Options and arguments that several commands share, and the way to a store without an app."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from milepost.config import Settings, StoreUrl, store_url

__all__ = ["Lookup", "job_argument", "json_option", "looking", "store_option"]

F = TypeVar("F", bound=Callable[..., Any])


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


def job_argument(command: F) -> F:
    """Add the id of a job."""
    return click.argument("job_id", metavar="ID")(command)


class Lookup:
    """A store that is looked at without an app: what it holds is shown as it was stored."""

    def __init__(self, store: StoreUrl) -> None:
        from milepost.batch.lookup import Runs
        from milepost.client import Client
        from milepost.codec import JsonCodec
        from milepost.handles import Jobs
        from milepost.queues import Queues
        from milepost.schedules import Schedules
        from milepost.workers import Workers

        settings = Settings.load(os.environ)
        self.client = Client(store, codec=JsonCodec(), settings=settings, create=False)
        self.jobs = Jobs(self.client, lambda _kind, _version: Any)
        self.runs = Runs(self.client, lambda _kind, _version: Any)
        self.queues = Queues(self.client)
        self.schedules = Schedules(self.client, {})
        self.workers = Workers(self.client)


@contextmanager
def looking(store: StoreUrl) -> Iterator[Lookup]:
    """Open a store that must be there, and close it afterwards."""
    lookup = Lookup(store)
    try:
        yield lookup
    finally:
        lookup.client.close()
