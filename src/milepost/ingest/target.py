"""The table that a pipeline keeps: made from the record's type, and widened when the type is."""

import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import msgspec

from milepost.codec import from_builtin
from milepost.errors import IllegalMove, Invalid, NotFound
from milepost.ingest.changes import Change, Found
from milepost.ingest.columns import NAME, Part, column_of, key_of, plain, to_json
from milepost.ingest.source import INTEGERS, Field, Source
from milepost.lifecycle import JobState
from milepost.records import Claim
from milepost.store.catalog import Statement
from milepost.store.driver import Call, Steps

OWN = {
    "source_version": ("bigint", "INTEGER"),
    "content_hash": ("bytea", "BLOB"),
    "made_with": ("bigint", "INTEGER"),
    "run_id": ("uuid", "TEXT"),
    "removed_at": ("timestamptz", "INTEGER"),
}
"""What the engine keeps beside a record: its version, from where, made with what, if it is gone."""
DOCUMENT = "document"
KEY = "key"
"""The key's column where a function says what the key is."""


def _bare(hint: Any) -> Any:
    """Take away what says that a value may be missing, and what is said beside a type."""
    if typing.get_origin(hint) is typing.Annotated:
        return _bare(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        known = [one for one in typing.get_args(hint) if one is not types.NoneType]
        return _bare(known[0]) if len(known) == 1 else hint
    return hint


def fields_of(type_: Any) -> Mapping[str, Any] | None:
    """Name the fields of a type with their own types; None for what has none."""
    if not isinstance(type_, type):
        return None
    known = (
        issubclass(type_, msgspec.Struct)
        or is_dataclass(type_)
        or typing.is_typeddict(type_)
        or hasattr(type_, "model_fields")
    )
    if not known:
        return None
    names = getattr(type_, "__struct_fields__", None) or getattr(type_, "model_fields", None)
    told = typing.get_type_hints(type_, include_extras=True)
    return {name: _bare(told[name]) for name in (names or told) if name in told}


def record_type(source: Source[Any, Any, Any]) -> Any:
    """Find what records are: what `map` says it returns, or what `Source[...]` was given."""
    for method, place in ((source.map, 1), (None, 1)):
        found = _returned(method) if method is not None else _given(type(source), place)
        if fields_of(found) is not None:
            return found
    return Any


def raw_type(source: Source[Any, Any, Any]) -> Any:
    """Find what the source gives: what `map` says it takes, or what `Source[...]` was given."""
    told = _hints(source.map)
    taken = [hint for name, hint in told.items() if name != "return"]
    if taken and not isinstance(taken[0], typing.TypeVar):
        return taken[0]
    found = _given(type(source), 0)
    return Any if found is None or isinstance(found, typing.TypeVar) else found


def _returned(method: Callable[..., Any]) -> Any:
    return _bare(_hints(method).get("return"))


def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(method, include_extras=True)
    except (NameError, TypeError):
        return {}


def _given(class_: type, place: int) -> Any:
    for base in class_.__mro__:
        for origin in getattr(base, "__orig_bases__", ()):
            args = typing.get_args(origin)
            if len(args) > place and issubclass(typing.get_origin(origin) or object, Source):
                return args[place]
    return None


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
        whole = isinstance(own, type) and issubclass(own, int)
        self.key = key_of(key_name, is_whole=whole)
        self.is_whole = whole
        self.columns = [self.key, *(column_of(column, hint) for column, hint in told.items())]
        both = zip(self._statements(postgres=True), self._statements(postgres=False), strict=True)
        self._made = {
            verb: Statement(f"target:{name}:{verb}", postgres, sqlite)
            for (verb, postgres), (_, sqlite) in both
        }

    def statement(self, verb: str) -> Statement:
        """Give a statement on this table, in each dialect."""
        return self._made[verb]

    # Values

    def rows(self, keys: list[str], records: Sequence[Any]) -> list[list[Any]]:
        """Take records apart, column by column, or raise if any of them does not fit.

        Which of them, and why, is for `row` to say.
        """
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
            raise ValueError("map made another key of a record")
        return [column.converted(all_) for column, all_ in zip(self.columns, values, strict=True)]

    def row(self, key: str, record: Any) -> list[Any]:
        """Take a record apart, or raise what says how it does not fit."""
        if self.is_document:
            return [key, to_json(record)]
        if isinstance(record, Mapping):
            values = [record.get(column.name) for column in self.columns]
        else:
            values = [getattr(record, column.name, None) for column in self.columns]
        if not self._has_key:
            values[0] = key
        if str(plain(values[0])) != key:
            raise ValueError(f"map made {self.key.name}={values[0]!r} of the record with {key!r}")
        return [
            None if value is None else column.convert(value)
            for column, value in zip(self.columns, values, strict=True)
        ]

    def shown(self, row: Sequence[Any]) -> Any:
        """Put a row together again as a record."""
        values = {
            column.name: msgspec.json.decode(value) if column.is_json and _text(value) else value
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

    # Statements

    def _statements(self, *, postgres: bool) -> Iterator[tuple[str, str]]:
        insert = self._insert(postgres=postgres)
        yield "insert", insert
        yield "upsert", insert + self._if_there()
        yield "create", self._create(postgres=postgres)
        # On SQLite whoever writes is alone.
        yield "lock", f'LOCK TABLE "{self.name}" IN ACCESS EXCLUSIVE MODE' if postgres else ""
        for column in self.columns:
            kind = column.postgres if postgres else column.sqlite
            yield (
                f"add {column.name}",
                f'ALTER TABLE "{self.name}" ADD COLUMN {column.quoted} {kind}',
            )
        among = self._among(postgres=postgres)
        yield "check", self._check(postgres=postgres)
        yield (
            "remove",
            (
                f'UPDATE "{self.name}" SET removed_at = {{now}}\n'
                f" WHERE removed_at IS NULL AND {self.key.quoted} IN ({among})\n"
                f"RETURNING {self.key.quoted}"
            ),
        )
        yield (
            "restore",
            (f'UPDATE "{self.name}" SET removed_at = NULL WHERE {self.key.quoted} IN ({among})'),
        )
        # What another pipeline left here is not this one's: it is back once it is read again.
        yield (
            "vacate",
            (
                f'UPDATE "{self.name}" SET removed_at = coalesce(removed_at, {{now}}),\n'
                f"       source_version = {INTEGERS.start}, content_hash = NULL"
            ),
        )
        yield "read", self._read(postgres=postgres)
        yield "count", f'SELECT count(*) FROM "{self.name}" WHERE removed_at IS NULL'
        yield "behind", self._behind(postgres=postgres)
        yield "unlanded", self._lacking("raw", "true")

    def _kinds(self, *, postgres: bool) -> list[tuple[str, str]]:
        own = [(name, kinds[0] if postgres else kinds[1]) for name, kinds in OWN.items()]
        columns = [(c.name, c.postgres if postgres else c.sqlite) for c in self.columns]
        return [*columns, *own]

    def _create(self, *, postgres: bool) -> str:
        lines = [f'  "{name}" {kind}' for name, kind in self._kinds(postgres=postgres)]
        lines[0] += " PRIMARY KEY"
        return f'CREATE TABLE IF NOT EXISTS "{self.name}" (\n' + ",\n".join(lines) + "\n)"

    def _insert(self, *, postgres: bool) -> str:
        """Write records, if the job is held: others have done the work of one that is not."""
        names = [column.quoted for column in self.columns]
        given = [f"c{place}" for place in range(len(names))]
        if postgres:
            kinds = [column.postgres for column in self.columns]
            arrays = ", ".join(
                f":{name}::{kind}[]"
                for name, kind in zip(
                    [*given, "version", "hash"], [*kinds, "bigint", "bytea"], strict=True
                )
            )
            # Its commit need not wait for the disk: the one that marks these pages as consolidated
            # comes after it in the log, and does. Until then they are written again.
            lazy = "(SELECT set_config('synchronous_commit', 'off', true)) AS lazy"
            rows = f"{lazy}, unnest({arrays}) AS i ({', '.join(given)}, version, hash)"
            run, job = ":made_with::bigint, :run_id::uuid", ":job_id::uuid"
        else:
            stars = [
                f"{name}*" if column.sqlite == "BLOB" else name
                for name, column in zip(given, self.columns, strict=True)
            ]
            rows = f"{{rows:{' '.join(stars)} version hash*}} AS i"
            run, job = ":made_with, :run_id", ":job_id"
        return (
            f'INSERT INTO "{self.name}"\n'
            f"  ({', '.join(names)}, source_version, content_hash, made_with, run_id)\n"
            f"SELECT {', '.join(f'i.{name}' for name in given)}, i.version, i.hash, {run}\n"
            f"  FROM {rows}\n"
            f" WHERE EXISTS (SELECT 1 FROM job WHERE job.id = {job} AND job.fence = :fence"
            f" AND job.state = '{JobState.RUNNING}')"
        )

    def _if_there(self) -> str:
        """Replace a record by one that is not older (H-83); what was gone is back."""
        kept = [column.quoted for column in self.columns[1:]]
        kept += ["source_version", "content_hash", "made_with", "run_id"]
        return (
            f"\nON CONFLICT ({self.key.quoted}) DO UPDATE\n"
            f"  SET {', '.join(f'{name} = excluded.{name}' for name in kept)}, removed_at = NULL\n"
            f' WHERE "{self.name}".source_version <= excluded.source_version'
        )

    def _own_key(self, key: str, *, postgres: bool) -> str:
        """Turn a key's text into what the table has; a text that is no number is nobody's key."""
        if not self.is_whole:
            return key
        if postgres:
            # Only what is a number may be compared as one: an AND promises no order. As it is
            # spelled: 007 is another record's key than 7.
            return (
                f"CASE WHEN {key} ~ '^(0|-?[1-9][0-9]{{0,18}})$'"
                f" THEN CASE WHEN {key}::numeric BETWEEN"
                f" {INTEGERS.start} AND {INTEGERS.stop - 1} THEN {key}::bigint END END"
            )
        number = f"CAST({key} AS INTEGER)"
        return f"CASE WHEN CAST({number} AS TEXT) = {key} THEN {number} END"

    def _among(self, *, postgres: bool) -> str:
        if postgres:
            own = self._own_key("k.key", postgres=True)
            return f"SELECT {own} FROM unnest(:key::text[]) AS k (key)"
        return f"SELECT {self._own_key('value', postgres=False)} FROM json_each(:key)"

    def _check(self, *, postgres: bool) -> str:
        """Tell which keys stand here with the landing table's content, made as it is made now."""
        rows = (
            "unnest(:key::text[], :hash::bytea[]) AS i (key, hash)"
            if postgres
            else "{rows:key hash*} AS i"
        )
        own = self._own_key("i.key", postgres=postgres)
        made = ":made_with::bigint" if postgres else ":made_with"
        return (
            f'SELECT i.key FROM {rows}\n  JOIN "{self.name}" AS t\n'
            f"    ON t.{self.key.quoted} = {own} AND t.content_hash = i.hash\n"
            f" WHERE t.removed_at IS NULL AND t.made_with = {made}"
        )

    def _read(self, *, postgres: bool) -> str:
        kind = self.key.postgres if postgres else self.key.sqlite
        shown = [
            f"{c.quoted}::text" if postgres and c.postgres in ("jsonb", "uuid") else c.quoted
            for c in self.columns
        ]
        return (
            f'SELECT {", ".join(shown)} FROM "{self.name}"\n'
            f" WHERE removed_at IS NULL\n"
            f"   AND (CAST(:after AS {kind}) IS NULL\n"
            f"        OR {self.key.quoted} > CAST(:after AS {kind}))\n"
            f" ORDER BY {self.key.quoted}\n LIMIT :most"
        )

    def _behind(self, *, postgres: bool) -> str:
        """Count records made with anything else; those in quarantine cannot be made anew."""
        other = "IS DISTINCT FROM :made_with::bigint" if postgres else "IS NOT :made_with"
        return f"{self._lacking('quarantine', 'q.resolved_at IS NULL')}\n   AND t.made_with {other}"

    def _lacking(self, table: str, where: str) -> str:
        """Count records that are not in a table of the engine's."""
        return (
            f'SELECT count(*) FROM "{self.name}" AS t\n'
            f" WHERE t.removed_at IS NULL\n"
            f"   AND NOT EXISTS (SELECT 1 FROM {table} AS q\n"
            f"                    WHERE q.pipeline_id = :pipeline_id AND {where}\n"
            f"                      AND q.key = CAST(t.{self.key.quoted} AS text))"
        )

    # Operations

    def known(self) -> Steps[Found]:
        """Read the columns of the table: none if it is not there. Refuse one of somebody else."""
        rows = yield Call("table_columns", {"table": self.name})
        found = Found(rows[0][2], {name: kind for name, kind, _ in rows}) if rows else Found()
        if found and not all(map(found.type_of, OWN)):
            raise Invalid(
                f"there is a table {self.name!r} that is no pipeline's; give the pipeline a "
                'table="..." of its own'
            )
        return found

    def prepare(self, *, create: bool = True) -> Steps[list[str]]:
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
            return [column.name for column in self.columns]
        if not self._missing(known) and not self._changes(known):
            return []
        # One program at a time: what another one has changed by then is not changed again.
        yield Call(self.statement("lock"))
        known = yield from self.known()
        yield from self._widen(self._changes(known))
        missing = self._missing(known)
        for name in missing:
            yield Call(self.statement(f"add {name}"))
        return missing

    def _missing(self, known: Found) -> list[str]:
        return [column.name for column in self.columns if known.type_of(column.name) is None]

    def _changes(self, known: Found) -> list[Change]:
        """List columns with another type than they need; refuse what changes their values."""
        found = [
            Change(self.name, column, kind, known.dialect, is_key=column is self.key)
            for column in self.columns
            if (kind := known.type_of(column.name)) is not None
        ]
        changes = [change for change in found if change.is_real]
        for change in changes:
            if not change.widens:
                raise Invalid(change.refusal("its values would not stay what they are"))
        return changes

    def _widen(self, changes: Sequence[Change]) -> Steps[None]:
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
        """Write records that are not older than what is there, if the job is still held.

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
        """Read a page of what is there and not removed, in the order of the keys."""
        if after is None:
            yield from self._check_columns()
        return (yield Call(self.statement("read"), {"after": after, "most": most}))

    def _check_columns(self) -> Steps[None]:
        """Refuse to read a field that no run has added yet: SQLite would read its name."""
        found = yield from self._present()
        if lacking := self._missing(found):
            raise Invalid(
                f"table {self.name!r} has no column {', '.join(lacking)} yet: the next run adds "
                "it, and remap() or a full run fills it"
            )

    def _present(self) -> Steps[Found]:
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
        """Count what is there and not removed."""
        yield from self._present()
        [(count,)] = yield Call(self.statement("count"))
        return int(count)


def _text(value: Any) -> bool:
    return isinstance(value, str | bytes)
