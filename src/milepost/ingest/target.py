"""The table that a pipeline keeps: made from the record's type, and widened when the type is."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milepost.codec import from_builtin
from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.ingest.changes import TableColumns, TypeChange
from milepost.ingest.columns import (
    JSON,
    NAME,
    TYPES,
    Column,
    Part,
    column_of,
    key_of,
    plain,
    to_json,
)
from milepost.ingest.mapping import fields_of
from milepost.ingest.options import Field
from milepost.ingest.source import INTEGERS
from milepost.records import Claim
from milepost.store.catalog import DIALECTS, Statement, filled
from milepost.store.driver import Call, Steps

OWN = {
    "source_version": {"postgres": "bigint", "sqlite": "INTEGER"},
    "content_hash": {"postgres": "bytea", "sqlite": "BLOB"},
    "made_with": {"postgres": "bigint", "sqlite": "INTEGER"},
    "run_id": {"postgres": "uuid", "sqlite": "TEXT"},
    "removed_at": {"postgres": "timestamptz", "sqlite": "INTEGER"},
}
"""The engine's own columns: a record's version and hash, its mapping, its run, its removal."""
DOCUMENT = "document"
KEY = "key"
"""The key's column where a function reads the key."""
VERBS = (
    *("create", "lock", "insert", "upsert", "check", "remove", "restore", "vacate"),
    *("read", "count", "behind", "unlanded"),
)


def type_on_server(name: str, kind: str) -> str | None:
    """Tell the type on PostgreSQL of a target's column, by its name and its type on SQLite."""
    if name in OWN:
        return OWN[name]["postgres"]
    known = {sqlite: postgres for _, postgres, sqlite, _ in TYPES}
    return known.get(kind, JSON["postgres"] if kind == JSON["sqlite"] else None)


def _check_names(fields: Mapping[str, Any]) -> None:
    """Refuse two columns of one name; SQLite does not tell them apart by case."""
    taken = sorted(name for name in fields if name.lower() in OWN)
    if taken:
        raise Invalid(f"the record has {', '.join(taken)}: the engine keeps that itself")
    folded = [name.lower() for name in fields]
    alike = sorted(name for name in fields if folded.count(name.lower()) > 1)
    if alike:
        raise Invalid(f"the record has {' and '.join(alike)}: in SQLite they are one column")


class Target:
    """The table of one pipeline: its columns, and the statements on it."""

    def __init__(self, name: str, *, key: Field, record: Any) -> None:
        if not NAME.fullmatch(name):
            raise Invalid(
                f"{name!r} cannot be the name of a table: letters, digits and _; give the pipeline "
                'a table="..." of its own'
            )
        self.name = name
        self.record = record
        fields = fields_of(record)
        self.is_document = fields is None
        key_name = key if isinstance(key, str) else KEY
        self._has_key = isinstance(key, str) or (fields is not None and KEY in fields)
        told = {key_name: str, DOCUMENT: dict} if fields is None else dict(fields)
        _check_names(told)
        own = told.pop(key_name, str)
        # Whole numbers stay numbers; every other key is told apart by its text.
        self._is_whole = isinstance(own, type) and issubclass(own, int)
        self.key = key_of(key_name, is_whole=self._is_whole)
        self.columns = [self.key, *(column_of(column, hint) for column, hint in told.items())]
        words = {dialect: self._words(dialect) for dialect in DIALECTS}
        self._statements = {verb: filled(f"target:{verb}", name, words) for verb in VERBS}

    def _words(self, dialect: str) -> dict[str, str]:
        """Spell the words in braces of `sql/target.sql`."""
        columns, table, key = self.columns, f'"{self.name}"', self.key.quoted
        kinds = [f"{column.quoted} {getattr(column, dialect)}" for column in columns]
        own = [f'"{name}" {kind[dialect]}' for name, kind in OWN.items()]
        names = [f"c{place}" for place, _ in enumerate(columns)]
        both = list(zip(names, columns, strict=True))
        lists = {
            "postgres": ", ".join(f":{name}::{column.postgres}[]" for name, column in both),
            "sqlite": " ".join(f"{name}*" if column.is_bytes else name for name, column in both),
        }
        replaced = [column.quoted for column in columns[1:]] + [*OWN][:-1]
        words = {
            "definition": ", ".join([f"{kinds[0]} PRIMARY KEY", *kinds[1:], *own]),
            "columns": ", ".join(column.quoted for column in columns),
            "values": ", ".join(f"i.{name}" for name in names),
            "names": ", ".join(names),
            "lists": lists[dialect],
            "replaced": ", ".join(f"{name} = excluded.{name}" for name in replaced),
            "shown": ", ".join(column.shown for column in columns),
            "oldest": str(INTEGERS.start),
            "key_type": getattr(self.key, dialect),
            "own_key": "{target:number}" if self._is_whole else "i.key",
        }
        return words | {"table": table, "key": key}

    def statement(self, verb: str) -> Statement:
        """Give a statement on this table, in each dialect."""
        return self._statements[verb]

    # Values

    def rows(self, keys: list[str], records: Sequence[Any]) -> list[list[Any]]:
        """Take records apart, column by column, or raise if any of them does not fit."""
        if self.is_document:
            return [keys, list(map(to_json, records))]
        [kind] = set(map(type, records))
        names = [column.name for column in self.columns]
        if issubclass(kind, Mapping):
            values = [[one.get(name) for one in records] for name in names]
        else:
            values = [[getattr(one, name, None) for one in records] for name in names]
        if not self._has_key:
            values[0] = keys
        if list(map(str, values[0])) != keys:
            self._check_keys(keys, values[0])
        return [column.converted(all_) for column, all_ in zip(self.columns, values, strict=True)]

    def _check_keys(self, keys: list[str], mapped: Sequence[Any]) -> None:
        for key, value in zip(keys, mapped, strict=True):
            if str(plain(value)) != key:
                raise ValueError(f"map made {self.key.name}={value!r} of the record with {key!r}")

    def shown(self, row: Sequence[Any]) -> Any:
        """Put a row together again as a record."""
        values = {
            column.name: msgspec.json.decode(value)
            if column.is_json and isinstance(value, str | bytes)
            else value
            for column, value in zip(self.columns, row, strict=True)
        }
        if self.is_document:
            return values[DOCUMENT]
        try:
            return msgspec.convert(values, self.record, strict=False, dec_hook=from_builtin)
        except msgspec.ValidationError as error:
            raise Invalid(
                f"table {self.name!r}: the record with {self.key.name}={row[0]!r} was made with "
                f"another mapping and does not fit its type ({error}); make it anew by remap() or "
                "a full run"
            ) from error

    # Operations

    def known(self) -> Steps[TableColumns]:
        """Read the columns of the table: none if it is not there. Refuse another's."""
        rows = yield Call("table_columns", {"table": self.name})
        found = (
            TableColumns(rows[0][2], {name: kind for name, kind, _ in rows})
            if rows
            else TableColumns()
        )
        if found and not all(map(found.type_of, OWN)):
            raise Invalid(
                f"there is a table {self.name!r} that is no pipeline's; give the pipeline a "
                'table="..." of its own'
            )
        return found

    def prepare(self, *, create: bool = True) -> Steps[None]:
        """Make the table, or the columns that it lacks, and change types that keep every value.

        Any other change is refused, with the statements that make it; so is, without `create`, a
        table that is not there.
        """
        known = yield from self.known()
        if not known and not create:
            raise IllegalMove(
                f"table {self.name!r} is not there any more: it was dropped or renamed after this "
                "run had begun. Rename it back, or fill a new one with start(full=True) or remap()"
            )
        if not known:
            yield Call(self.statement("create"))
        elif self._missing(known) or self._changes(known):
            # One program at a time: a column that another one changed is not changed again.
            yield Call(self.statement("lock"))
            known = yield from self.known()
            yield from self._widen(self._changes(known))
            for column in self._missing(known):
                words = {
                    dialect: {
                        "table": f'"{self.name}"',
                        "column": f"{column.quoted} {getattr(column, dialect)}",
                    }
                    for dialect in DIALECTS
                }
                yield Call(filled("target:add", self.name, words))

    def _missing(self, known: TableColumns) -> list[Column]:
        return [column for column in self.columns if known.type_of(column.name) is None]

    def _changes(self, known: TableColumns) -> list[TypeChange]:
        """List columns with another type than they need; refuse changes of their values."""
        found = [
            TypeChange(self.name, column, kind, known.dialect, is_key=column is self.key)
            for column in self.columns
            if (kind := known.type_of(column.name)) is not None
        ]
        changes = [change for change in found if change.is_real]
        for change in changes:
            if not change.widens:
                raise Invalid(change.refusal("its values would not stay the same"))
        return changes

    def _widen(self, changes: Sequence[TypeChange]) -> Steps[None]:
        for change in changes:
            for (value,) in (yield Call(change.lossy)):
                why = f"{value!r} is among its values, and would be another one"
                raise Invalid(change.refusal(why))
            told = {"table": self.name, "column": change.column.name}
            if users := [row[0] for row in (yield Call("table_users", told))]:
                why = f"{', '.join(users)} must be dropped first, and made again after"
                raise Invalid(change.refusal(why))
        for change in changes:
            for statement in change.statements():
                yield Call(statement)

    def write(
        self, claim: Claim, run_id: str, part: Part, *, made_with: int, fresh: bool = False
    ) -> Steps[None]:
        """Write records that are not older than those in the table, if the job is still held.

        With `fresh` none is expected to be there, which is quicker; one that is refuses them all
        by `IllegalMove`.
        """
        yield Call(
            self.statement("insert" if fresh else "upsert"),
            {
                "job_id": claim.id,
                "fence": claim.fence,
                "run_id": run_id,
                "made_with": made_with,
                "version": part.versions,
                "hash": part.hashes,
                **{f"c{place}": column for place, column in enumerate(part.columns)},
            },
            alone=True,
        )

    def read(self, *, after: Any, most: int) -> Steps[list[Any]]:
        """Read a page of records that are not removed, in the order of the keys."""
        if after is None:
            lacking = self._missing((yield from self._present()))
            # SQLite would read the name of a column that no run has added yet as a text.
            if lacking:
                raise Invalid(
                    f"table {self.name!r} has no column {', '.join(one.name for one in lacking)} "
                    "yet: the next run adds it, and remap() or a full run fills it"
                )
        return (yield Call(self.statement("read"), {"after": after, "most": most}))

    def _present(self) -> Steps[TableColumns]:
        """Read the columns of a table that is there."""
        found = yield from self.known()
        if not found:
            raise NotFound(
                f"table {self.name!r} is not there: the pipeline's first run makes it; start() one"
            )
        return found

    def behind(self, pipeline_id: int, made_with: int) -> Steps[int]:
        """Count records that are there, could be made anew, and were made with anything else."""
        told = {"pipeline_id": pipeline_id, "made_with": made_with}
        [(count,)] = yield Call(self.statement("behind"), told)
        return int(count)

    def unlanded(self, pipeline_id: int) -> Steps[int]:
        """Count records that are there and of which nothing is landed: only the source has them."""
        [(count,)] = yield Call(self.statement("unlanded"), {"pipeline_id": pipeline_id})
        return int(count)

    def count(self) -> Steps[int]:
        """Count the records that are not removed."""
        yield from self._present()
        [(count,)] = yield Call(self.statement("count"))
        return int(count)
