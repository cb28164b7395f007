"""Named queries: one file each, looked up by dialect first and then in common.

Files say `:name` for a parameter; SQLite understands that, and for the other drivers it is
rewritten once, here. `{now}`, `{micros}` and `{text:column}` stand for what the dialects spell
differently in otherwise equal statements. On PostgreSQL the engine's own tables, views, sequences
and functions are qualified with the store's schema, so that no statement depends on `search_path`;
`{schema}` and `{channel}` are that schema and its channel for notifications.

SQLite has no arrays: there `{rows:id fence payload*}` is a table of what those list parameters hold
(a star says bytes), and a file that opens with `-- each`
is run once per row of its list parameters. One that opens with `-- packed` answers with a single
row, so that a thread fetches it at once and not row by row, each time in need of the interpreter's
lock: the rows as JSON, the bytes of one of their columns (`-- packed 4`) in one piece, and their
rowids, which the statement after `-- then` reads as `:picked`. After `-- packed, hopefully` that
one is run first, with NULL for `:picked`; if it moves as many rows as were given, their first
column is the answer.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from milepost.config import DEFAULT_SCHEMA, channel_of
from milepost.errors import Invalid

__all__ = ["DIALECTS", "Query", "Statement", "names", "only_column", "query", "spelled"]

DIALECTS = ("postgres", "sqlite")

# Literals, quoted names and comments are stepped over; `::cast` is not a parameter.
_MACRO = re.compile(r"\{(now|micros|schema|channel|text:[\w.]+|rows:[\w* ]+)\}")
_ARRAY = re.compile(r"(\$\d+)::([\w ]+\[\])")
_UNNEST = re.compile(r"\bunnest\([^()]*\)")
_PACKED = re.compile(r"-- packed(?: (\d+))?(, hopefully)?\n")
_THEN = "\n-- then\n"
_ROWS = re.compile(r"\{rows:([\w* ]+)\}")
_MADE = re.compile(
    r"^\s*CREATE (?:OR REPLACE )?(?:TABLE|VIEW|SEQUENCE|FUNCTION) (?:IF NOT EXISTS )?(\w+)",
    re.MULTILINE,
)
_CTE = re.compile(r"\b(\w+)\s*(?:\([^()]*\)\s*)?\bAS (?:NOT )?(?:MATERIALIZED )?\(")
# Where a statement names a table or a function. `IS DISTINCT FROM` is followed by a value, and a
# name before a dot is that of a row; literals, quoted names and comments are stepped over.
_NAMED = re.compile(
    r"\b(?:nextval|to_regclass)\('(\w+)'\)"
    r"|'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*"
    r"|(?<!DISTINCT )\b(?:FROM|JOIN|INTO|UPDATE|USING|TABLE)\s+"
    r"(?:ONLY |IF NOT EXISTS )?(\w+)\b(?!\.)"
    r"|\b(milepost_\w+)(?=\()"
)
# Subqueries, so that a statement asks once and not once a row.
POSTGRES_NOW = "(SELECT milepost_now())"
SQLITE_NOW = (
    "(SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + offset_us"
    " FROM clock)"
)
_TOKEN = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::|:([a-z_][a-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Query:
    """One named statement in each driver's spelling; `written` takes its `lists` as text."""

    name: str
    text: str
    parameters: tuple[str, ...]
    format: str
    numbered: str
    written: str
    lists: frozenset[str]
    placed: str
    each: bool = False
    idle: bool = False
    """Whether there is nothing to do for it here: another statement has done it."""
    rows: tuple[str, ...] = ()
    answers: bool = True
    packed: bool = False
    hopeful: bool = False
    bytes_at: int | None = None

    @property
    def shared(self) -> tuple[str, ...]:
        """The parameters that are given by the caller and not carried by rows."""
        return tuple(name for name in self.parameters if name not in ("rows", "bytes", "picked"))

    @property
    def texts(self) -> tuple[str, ...]:
        """The statements that a packed one consists of."""
        return tuple(self.text.split(_THEN))


def _root() -> Traversable:
    return files("milepost.sql")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that no file can hold: one on a table that a user's type describes.

    It stands where the name of a query stands and carries its own text, so that two of one name
    are two. Names in it are quoted and checked by whoever makes it; values are parameters, as
    everywhere. `name` is shown in errors and fail points, and no file can have it.
    """

    name: str
    postgres: str
    sqlite: str

    def __post_init__(self) -> None:
        """Refuse a name that a file could have."""
        if ":" not in self.name:
            raise Invalid(f"a statement that is made here has a colon in its name: {self.name!r}")

    def __str__(self) -> str:
        return self.name


def _source(name: str | Statement, dialect: str) -> str:
    if isinstance(name, Statement):
        return name.postgres if dialect == "postgres" else name.sqlite
    for folder in (dialect, "common"):
        path = _root() / folder / f"{name}.sql"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise Invalid(f"no query named {name!r} for {dialect}")


def _rewrite(text: str, spell: Callable[[str], str]) -> str:
    def spelled(match: re.Match[str]) -> str:
        return spell(match.group(1)) if match.group(1) else match.group(0)

    return _TOKEN.sub(spelled, text)


@cache
def query(name: str | Statement, dialect: str, schema: str = DEFAULT_SCHEMA) -> Query:
    """Return a named or a given statement, ready for every driver of the dialect."""
    source = _source(name, dialect).strip()
    text = _MACRO.sub(lambda match: _expanded(match.group(1), dialect, schema), source)
    if dialect == "postgres":
        text = _qualified(text, schema)
    packed = _PACKED.match(source)
    return replace(
        spelled(text, str(name)),
        each=source.startswith("-- each"),
        idle=source.startswith("-- idle"),
        rows=tuple(dict.fromkeys(n for listed in _ROWS.findall(source) for n in listed.split())),
        packed=packed is not None,
        hopeful=bool(packed and packed[2]),
        bytes_at=int(packed[1]) if packed and packed[1] else None,
        answers=bool(re.search(r"^(SELECT|RETURNING)\b", _bare(text), re.MULTILINE))
        and not (_bare(text).startswith("INSERT") and "RETURNING" not in text),
    )


@cache
def _own() -> frozenset[str]:
    """Name the tables, views, sequences and functions of a PostgreSQL store: what is created."""
    folder = _root() / "migrations" / "postgres"
    texts = [path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file()]
    texts.append(_source("migration_table", "postgres"))
    return frozenset(name for text in texts for name in _MADE.findall(text))


def _qualified(text: str, schema: str) -> str:
    """Name the schema of everything that is the engine's own; a CTE's name is the statement's."""
    own = _own() - set(_CTE.findall(text))

    def placed(found: re.Match[str]) -> str:
        group = found.lastindex
        if group is None or found[group] not in own:
            return found[0]
        start = found.start(group) - found.start()
        return f'{found[0][:start]}"{schema}".{found[0][start:]}'

    return _NAMED.sub(placed, text)


def _bare(text: str) -> str:
    return re.sub(r"^--[^\n]*\n", "", text, flags=re.MULTILINE).strip()


def _expanded(macro: str, dialect: str, schema: str = DEFAULT_SCHEMA) -> str:
    if macro == "schema":
        return f'"{schema}"'
    if macro == "channel":
        return f"'{channel_of(schema)}'"
    if macro.startswith("text:"):
        column = macro.removeprefix("text:")
        return f"{column}::text" if dialect == "postgres" else column
    if macro.startswith("rows:"):
        return _unpacked(macro.removeprefix("rows:").split())
    if macro == "now":
        return POSTGRES_NOW if dialect == "postgres" else SQLITE_NOW
    return " * interval '1 microsecond'" if dialect == "postgres" else ""


@cache
def with_same(name: str | Statement, same: frozenset[str]) -> Query:
    """Spell a SQLite statement whose rows have the same in these columns: plain parameters."""
    source = _source(name, "sqlite").strip()
    if only_column(query(name, "sqlite").rows, same):
        # Nothing is taken apart more than once: a table of it would only cost.
        source = source.replace(" AS MATERIALIZED {rows:", " AS NOT MATERIALIZED {rows:")
    source = _ROWS.sub(lambda match: _unpacked(match.group(1).split(), same), source)
    text = _MACRO.sub(lambda match: _expanded(match.group(1), "sqlite"), source)
    return replace(query(name, "sqlite"), text=text)


def only_column(names: Iterable[str], same: frozenset[str]) -> bool:
    """Tell whether rows differ in one plain column alone: JSON then lists its values as such."""
    left = [name for name in names if name not in same]
    return len(left) == 1 and not left[0].endswith("*")


def _unpacked(names: list[str], same: frozenset[str] = frozenset()) -> str:
    """Read rows from one JSON list; bytes have no place in it: it says where they stand."""
    columns, place = [], 0
    alone = only_column(names, same)
    for name in names:
        if name in same:
            columns.append(f":{name.removesuffix('*')} AS {name.removesuffix('*')}")
        elif name.endswith("*"):
            start, size = (f"json_extract(value, '$[{place + offset}]')" for offset in (0, 1))
            # SQLite takes an empty piece of something for NULL.
            found = f"CASE {size} WHEN 0 THEN x'' ELSE substr(:bytes, {start}, {size}) END"
            columns.append(f"{found} AS {name.removesuffix('*')}")
            place += 2
        else:
            found = "value" if alone else f"json_extract(value, '$[{place}]')"
            columns.append(f"{found} AS {name}")
            place += 1
    return f"(SELECT {', '.join(columns)} FROM json_each(:rows))"


def spelled(text: str, name: str = "") -> Query:
    """Spell a statement with `:name` parameters for every driver."""
    parameters = tuple(dict.fromkeys(m.group(1) for m in _TOKEN.finditer(text) if m.group(1)))
    numbered = _rewrite(text, lambda word: f"${parameters.index(word) + 1}")
    return Query(
        name=name,
        text=text,
        parameters=parameters,
        format=_rewrite(text.replace("%", "%%"), lambda word: f"%({word})s"),
        numbered=numbered,
        written=_UNNEST.sub(lambda match: _ARRAY.sub(r"\1::text::\2", match[0]), numbered),
        lists=frozenset(
            word for match in _UNNEST.finditer(text) for word in _TOKEN.findall(match[0]) if word
        ),
        placed=_rewrite(text, lambda word: f"?{parameters.index(word) + 1}"),
    )


def names(dialect: str) -> set[str]:
    """Return the name of every query that the dialect resolves."""
    return {
        path.name.removesuffix(".sql")
        for folder in (dialect, "common")
        if (_root() / folder).is_dir()
        for path in (_root() / folder).iterdir()
        if path.name.endswith(".sql")
    }
