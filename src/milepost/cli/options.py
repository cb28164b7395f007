"""Options that several commands share."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from milepost.config import StoreUrl, store_url

__all__ = ["store_option"]

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
        "DATABASE_URL, then ./milepost.db]",
    )(command)
