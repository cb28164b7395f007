"""Columns of the records: lists of them for statements, and rows read back in the same order."""

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from milepost.errors import Invalid
from milepost.lifecycle import ORDINARY
from milepost.records import Claim, Job, JobLine, NewStep, Pinned, Run, Situation, Sql
from milepost.store.instants import instant

R = TypeVar("R", bound=msgspec.Struct)

RECORDS: Mapping[str, type[msgspec.Struct]] = {
    "claim": Claim,
    "job": Job,
    "line": JobLine,
    "pinned": Pinned,
    "run": Run,
    "situation": Situation,
    "step": NewStep,
}
"""The records that statements name in `{columns:...}`."""

_OVER = "losses - coalesce(recoveries, retries - errors)"
CONDITIONS = {
    "unusual": " AND ".join(f"state <> '{state.value}'" for state in ORDINARY),
    "over": _OVER,
    "spent": f"({_OVER} > 0 OR errors - retries > 0)",
    "suspect": f"(losses - poison_limit >= -1 OR (losses > 0 AND {_OVER} >= 0))",
    "at_limit": (
        f"(losses - poison_limit >= -1 OR {_OVER} > 0 OR errors - retries > 0"
        f" OR (losses > 0 AND {_OVER} = 0))"
    ),
}
"""A job's budget, as `Job.is_spent` and `is_suspect` have it; the index `job_spent` says the last.

A comparison has no column on its right: SQLite would turn it around, and then miss the index.
"""

_UNIONS = (Union, types.UnionType)
_ARRAYS = {str: "text[]", int: "bigint[]", bool: "boolean[]", float: "double precision[]"}


def columns(given: str) -> str:
    """List a record's columns in the order of its fields: `claim`, `pinned s.`, `pinned :`.

    A prefix is for plain columns and parameters. After a bar stands what gives a field here:
    `claim | fence + 1 AS fence`.
    """
    head, *others = given.split(" | ")
    name, _, prefix = head.strip().partition(" ")
    instead = dict(_aliased(other) for other in others)
    fields = _record(name).__struct_fields__
    if unknown := set(instead) - set(fields):
        raise Invalid(f"{{columns:{name}}}: no such field: {', '.join(sorted(unknown))}")
    told = {} if prefix else _spelled(name)
    return ", ".join(instead.get(field) or told.get(field) or prefix + field for field in fields)


def arrays(name: str) -> str:
    """Give a list parameter for each column of a record, as PostgreSQL takes lists."""
    record = _record(name)
    hints = get_type_hints(record)
    kinds = {field: _ARRAYS[_plain(hints[field])] for field in record.__struct_fields__}
    return ", ".join(f":{field}::{kind}" for field, kind in kinds.items())


def reader(record: type[R]) -> Callable[[Sequence[Any]], R]:
    """Derive what makes a record of a row whose columns stand in the order of its fields."""
    hints = get_type_hints(record)
    places = [
        (place, made)
        for place, field in enumerate(record.__struct_fields__)
        if (made := _made(_plain(hints[field]))) is not None
    ]

    def read(row: Sequence[Any]) -> R:
        values = list(row)
        for place, made in places:
            if values[place] is not None:
                values[place] = made(values[place])
        return record(*values)

    return read


def lists(names: str, rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Turn rows into list parameters: `lists("id fence", pairs)` gives a list of each."""
    named = names.split()
    columns_ = list(zip(*rows, strict=True)) or [()] * len(named)
    return {name: list(column) for name, column in zip(named, columns_, strict=True)}


def _record(name: str) -> type[msgspec.Struct]:
    if name not in RECORDS:
        raise Invalid(f"{{columns:{name}}}: expected one of {', '.join(RECORDS)}")
    return RECORDS[name]


def _aliased(text: str) -> tuple[str, str]:
    expression, _, field = text.strip().rpartition(" AS ")
    return field, expression


@cache
def _spelled(name: str) -> Mapping[str, str]:
    """Give the SQL of those fields that are no plain columns."""
    hints = get_type_hints(_record(name), include_extras=True)
    return {
        field: told.text.replace("$", field)
        for field, hint in hints.items()
        for told in _annotations(hint)
        if isinstance(told, Sql)
    }


def _annotations(hint: Any) -> list[Any]:
    """Find what a type is annotated with, or the part of it that may be None."""
    parts = (hint, *get_args(hint)) if get_origin(hint) in _UNIONS else (hint,)
    return [told for part in parts for told in getattr(part, "__metadata__", ())]


def _plain(hint: Any) -> Any:
    """Take the type of a value that is there: `int` of `int | None`."""
    if get_origin(hint) not in _UNIONS:
        return hint
    return next(part for part in get_args(hint) if part is not types.NoneType)


def _made(type_: Any) -> Callable[[Any], Any] | None:
    if type_ is datetime:
        return instant
    if isinstance(type_, type) and issubclass(type_, bool | float | Enum):
        return type_
    return None
