"""Named queries: found in the file of their subject, and spelled for every driver.

`milepost/sql/README.md` says how such a file is written: sections, words after a section's name,
and what stands in braces. Statements say `:name` for a parameter; SQLite understands that, and for
the other drivers it is rewritten once, here. On PostgreSQL the engine's own tables, views,
sequences and functions are qualified with the store's schema, so that no statement depends on
`search_path`. One tokenizer reads all of it: literals, quoted names and comments are never touched.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from milepost.address import DEFAULT_SCHEMA, channel_of
from milepost.errors import Invalid
from milepost.lifecycle import GROUPS, group_sql
from milepost.store.columns import CONDITIONS, arrays, columns

DIALECTS = ("postgres", "sqlite")
THEN = "\n-- then\n"

# In this order: a word, white space, a literal, a quoted name, a comment, a cast, a parameter, a
# macro (others may stand in it); everything else is a mark of its own.
_TOKEN = re.compile(
    r"\w+|\s+|'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|::|:[a-z_][a-z0-9_]*"
    r"|\{(?:[^{}]|\{[^{}]*\})*\}|."
)
# A table's name follows one of these; `IS DISTINCT FROM` is followed by a value.
_BEFORE_TABLE = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "USING", "TABLE"})
_BETWEEN = frozenset({"ONLY", "IF", "NOT", "EXISTS"})
_MADE = frozenset({"TABLE", "VIEW", "SEQUENCE", "FUNCTION"})
_LISTS = {"columns": columns, "arrays": arrays}
_TEMPLATE = re.compile(r"\{(target:\w+)\}")
# Subqueries, so that a statement asks once and not once a row.
POSTGRES_NOW = "(SELECT milepost_now())"
SQLITE_NOW = (
    "(SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER) * 1000 + offset_us"
    " FROM clock)"
)


class _Written(NamedTuple):
    """A query as it is written for one database; a packed one has THEN between its statements."""

    text: str
    each: bool = False
    optimistic: bool = False
    bytes_at: int | None = None


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
    answers: bool
    texts: tuple[str, ...]
    """The statements that it consists of: the look and the move, if it is packed."""
    each: bool = False
    rows: tuple[str, ...] = ()
    optimistic: bool = False
    bytes_at: int | None = None

    @property
    def shared(self) -> tuple[str, ...]:
        """The parameters that are given by the caller and not carried by rows."""
        return tuple(name for name in self.parameters if name not in ("rows", "bytes", "picked"))

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do for it here: another statement has done it."""
        return not self.text

    @property
    def packed(self) -> bool:
        """Whether a look answers in one row, and a move follows it."""
        return len(self.texts) > 1


# Files


def _root() -> Traversable:
    return files("milepost.sql")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that no file can hold: one on a table that a user's type describes.

    It stands where the name of a query stands and carries its own text, so that two of one name
    are two. Names in it are quoted and checked by the code that makes it; values are parameters, as
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


def filled(name: str, label: str, words: Mapping[str, Mapping[str, str]]) -> Statement:
    """Make a statement of a template: in braces stand words that each database has its own for."""
    return Statement(
        f"{name}:{label}", **{dialect: _filled(name, dialect, words[dialect]) for dialect in words}
    )


def _filled(name: str, dialect: str, words: Mapping[str, str]) -> str:
    text = _source(name, dialect).text
    for word, said in words.items():
        text = text.replace(f"{{{word}}}", said)
    for other in _TEMPLATE.findall(text):
        text = text.replace(f"{{{other}}}", _filled(other, dialect, words))
    return text


def names() -> set[str]:
    """Return the name of every query; each is there for both databases."""
    return {name for name in _blocks() if ":" not in name}


@cache
def _blocks() -> dict[str, str]:
    return read(_root())


def read(root: Traversable) -> dict[str, str]:
    """Read the queries of a folder: what stands under each name."""
    found: dict[str, str] = {}
    for path in root.iterdir():
        if path.is_dir() and path.name not in ("migrations", "__pycache__"):
            raise Invalid(f"sql/{path.name}/: queries belong into the file of their subject")
        if not path.name.endswith(".sql"):
            continue
        _, *blocks = f"\n{path.read_text(encoding='utf-8')}".split("\n-- name: ")
        for block in blocks:
            name, _, body = block.partition("\n")
            if name in found:
                raise Invalid(f"sql/{path.name}: there is another query named {name!r}")
            found[name] = body
    return found


def _source(name: str | Statement, dialect: str) -> _Written:
    if isinstance(name, Statement):
        return _Written(name.postgres if dialect == "postgres" else name.sqlite)
    if name not in _blocks():
        raise Invalid(f"no query named {name!r}")
    return _sections_of(name)[dialect]


@cache
def _sections_of(name: str) -> dict[str, _Written]:
    return sections(name, _blocks()[name])


def sections(name: str, block: str) -> dict[str, _Written]:
    """Take a query's block apart: one statement for both databases, or a section for each."""
    lines: dict[str, list[str]] = {"": []}
    words: dict[str, str] = {}
    section = ""
    for line in block.splitlines():
        heading, _, told = line.removeprefix("-- ").partition(": ")
        if line.startswith("-- ") and heading in DIALECTS:
            section = heading
            words[section], lines[section] = told, []
        else:
            lines[section].append(line)
    common = _statement(lines.pop(""))
    if not lines and common:
        return dict.fromkeys(DIALECTS, _Written(common))
    said = {dialect for dialect in lines if any(lines[dialect])}
    if said != set(DIALECTS) or common:
        raise Invalid(f"query {name!r}: it needs one statement for both databases, or one for each")
    return {
        dialect: _described(name, _statement(lines[dialect]), words[dialect]) for dialect in lines
    }


def _statement(lines: list[str]) -> str:
    """Leave out the comments before a statement: they are for readers of the file."""
    start = 0
    while start < len(lines) and (not lines[start] or lines[start].startswith("--")):
        start += 1
    return "\n".join(lines[start:]).strip()


def _described(name: str, text: str, words: str) -> _Written:
    """Take the words after a section's name: `each`, `optimistic`, `bytes 4`."""
    found = _Written(text)
    for word in filter(None, words.split(", ")):
        match word.split():
            case ["each"]:
                found = found._replace(each=True)
            case ["optimistic"]:
                found = found._replace(optimistic=True)
            case ["bytes", place] if place.isdigit():
                found = found._replace(bytes_at=int(place))
            case _:
                raise Invalid(f"query {name!r}: no such word after a section's name: {word!r}")
    return found


# Spelling


@cache
def query(name: str | Statement, dialect: str, schema: str = DEFAULT_SCHEMA) -> Query:
    """Return a named or a given statement, ready for every driver of the dialect."""
    source = _source(name, dialect)
    text = _expanded(source.text, dialect, schema)
    if dialect == "postgres":
        text = _qualified(text, schema)
    return replace(
        spelled(text, str(name)),
        each=source.each,
        rows=tuple(dict.fromkeys(column for row in _rows_in(source.text) for column in row)),
        optimistic=source.optimistic,
        bytes_at=source.bytes_at,
    )


@cache
def with_same(name: str | Statement, same: frozenset[str]) -> Query:
    """Spell a SQLite statement whose rows have the same in these columns: plain parameters."""
    source = _source(name, "sqlite").text
    if only_column(query(name, "sqlite").rows, same):
        # Nothing is taken apart more than once: a table of it would only cost.
        source = source.replace(" AS MATERIALIZED {rows:", " AS NOT MATERIALIZED {rows:")
    text = _expanded(source, "sqlite", same=same)
    return replace(query(name, "sqlite"), text=text, texts=tuple(text.split(THEN)))


def spelled(text: str, name: str = "") -> Query:
    """Spell a statement with `:name` parameters for every driver."""
    parts = _TOKEN.findall(text)
    said = {place: part[1:] for place, part in enumerate(parts) if _is_parameter(part)}
    numbers = {word: place for place, word in enumerate(dict.fromkeys(said.values()), start=1)}
    dollars = {place: f"${numbers[word]}" for place, word in said.items()}
    lists = _lists(parts)
    casts = {place: f"{dollars[place]}::text" for place in lists if parts[place + 1] == "::"}
    doubled = [part.replace("%", "%%") for part in parts]
    return Query(
        name=name,
        text=text,
        parameters=tuple(numbers),
        format=_joined(doubled, {place: f"%({word})s" for place, word in said.items()}),
        numbered=_joined(parts, dollars),
        written=_joined(parts, dollars | casts),
        lists=frozenset(said[place] for place in lists),
        placed=_joined(parts, {place: f"?{numbers[word]}" for place, word in said.items()}),
        answers="RETURNING" in parts or {"INSERT", "UPDATE", "DELETE"}.isdisjoint(parts),
        texts=tuple(text.split(THEN)),
    )


_OF_IDS = ["::", "uuid", "[", "]"]


def _joined(parts: list[str], instead: Mapping[int, str]) -> str:
    changed = list(parts)
    for place, part in instead.items():
        changed[place] = part
    return "".join(changed)


def _is_parameter(part: str) -> bool:
    return part[0] == ":" and part not in (":", "::")


def _lists(parts: list[str]) -> set[int]:
    """Find the parameters that are lists: an array each, of which `unnest` makes rows; or of ids.

    asyncpg asks the server about the type of an array of ids once on every connection, by a query
    that takes longer than most of ours.
    """
    found, inside = set(), False
    for place, part in enumerate(parts):
        if part in ("unnest", ")"):
            inside = part == "unnest"
        elif _is_parameter(part) and (inside or parts[place + 1 : place + 5] == _OF_IDS):
            found.add(place)
    return found


# Macros


_RULE_OF = {
    "postgres": "milepost_rule_of({key})",
    "sqlite": "replace(replace(substr({key}, 3, instr(substr({key}, 3), '/') - 1), '%2F', '/'),"
    " '%25', '%')",
}
_WORDS: Mapping[str, Mapping[str, str]] = {
    "now": {"postgres": POSTGRES_NOW, "sqlite": SQLITE_NOW},
    "micros": {"postgres": " * interval '1 microsecond'", "sqlite": ""},
    "db_user": {"postgres": "db_user", "sqlite": "NULL"},
    "rule": {dialect: text.format(key="job.limit_key") for dialect, text in _RULE_OF.items()},
}
FIRST_PLACE = 2**50
"""Jobs join a line at larger numbers: PostgreSQL's begin here, SQLite's are times. A job of an
ordered key that comes back stands below all of them, also those that join later."""
# In SQLite it is the time, to the millisecond, of a clock that may be set back. Under an ordered
# key it is greater than the number of the job before it all the same. Whether any rule is ordered
# is asked once for a statement, not for each job.
_NUMBER = {
    "postgres": "nextval('queued_seq')",
    "sqlite": """CASE WHEN {key} IS NOT NULL
          AND EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'job' AND ordered) AND {ordered}
     THEN max({{now}},
              coalesce((SELECT last.queued_seq + 1 FROM job AS last INDEXED BY job_claim
                         WHERE last.queue = {queue} AND last.priority = {priority}
                           AND last.state = 'QUEUED' AND last.limit_key = {key}
                         ORDER BY last.queued_seq DESC LIMIT 1), 0),
              coalesce((SELECT last.queued_seq + 1 FROM job AS last INDEXED BY job_ready
                         WHERE last.queue = {queue} AND last.priority = {priority}
                           AND last.state = 'READY'
                         ORDER BY last.queued_seq DESC LIMIT 1), 0))
     ELSE {{now}} END""",
}


def _macro(name: str, given: str, *, dialect: str, schema: str, same: frozenset[str]) -> str:
    if name in _WORDS:
        return _WORDS[name][dialect]
    match name:
        case "text":
            return f"{given}::text" if dialect == "postgres" else given
        case "rows":
            return _unpacked(given.split(), same)
        case "schema":
            return f'"{schema}"'
        case "channel":
            return f"'{channel_of(schema)}'"
        case "number" | "ordered" | "requeued":
            return _expanded(_PLACES[name](given, dialect), dialect, schema)
        case _:
            raise Invalid(f"nothing is known of {{{name}}} in a statement")


def _number(given: str, dialect: str) -> str:
    """Give the number of a job that joins a line: behind all that are there."""
    key, queue, priority = given.split()
    ordered = _ordered(key, dialect)
    return _NUMBER[dialect].format(key=key, ordered=ordered, queue=queue, priority=priority)


def _requeued(_: str, dialect: str) -> str:
    """Give that of a job that comes back: the last, but under an ordered key it is the next."""
    ordered = _ordered("job.limit_key", dialect)
    its_turn = f"job.limit_key IS NOT NULL AND job.fence > 0 AND {ordered}"
    number = _number("job.limit_key job.queue job.priority", dialect)
    return f"CASE WHEN {its_turn} THEN job.queued_seq % {FIRST_PLACE} ELSE {number} END"


def _ordered(key: str, dialect: str) -> str:
    """Tell whether the rule that a key names is ordered."""
    rule = _RULE_OF[dialect].format(key=key)
    return f"EXISTS (SELECT 1 FROM limit_rule WHERE scope = 'job' AND name = {rule} AND ordered)"


_PLACES = {"number": _number, "ordered": _ordered, "requeued": _requeued}


def _expanded(
    source: str, dialect: str, schema: str = DEFAULT_SCHEMA, *, same: frozenset[str] = frozenset()
) -> str:
    def expand(part: str) -> str:
        if part[0] == "{" and part != "{":
            name, _, given = part[1:-1].partition(":")
            if name in GROUPS:
                return group_sql(name)
            if name in CONDITIONS:
                return CONDITIONS[name]
            if name in _LISTS:
                return _expanded(_LISTS[name](given), dialect, schema)
            return _macro(name, given, dialect=dialect, schema=schema, same=same)
        return part.replace("{schema}", f'"{schema}"') if part[0] == "'" else part

    return "".join(map(expand, _TOKEN.findall(source)))


def _rows_in(source: str) -> list[list[str]]:
    """List the columns of every `{rows:...}`."""
    found = (part for part in _TOKEN.findall(source) if part.startswith("{rows:"))
    return [part[len("{rows:") : -1].split() for part in found]


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


# The store's schema


@cache
def _own() -> frozenset[str]:
    """Name the tables, views, sequences and functions of a PostgreSQL store: what is created."""
    return frozenset(name for kind, name in _created("postgres") if kind in _MADE)


@cache
def own_tables(dialect: str) -> frozenset[str]:
    """Name the tables that migrations create; what else is in a database is not the store's."""
    return frozenset(name for kind, name in _created(dialect) if kind == "TABLE")


def _created(dialect: str) -> Iterator[tuple[str, str]]:
    folder = _root() / "migrations" / dialect
    texts = [path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file()]
    texts.append(_source("migration_table", dialect).text)
    for line in (line.strip() for text in texts for line in text.splitlines()):
        if line.startswith("CREATE "):
            plain = line.replace(" OR REPLACE", "").replace(" IF NOT EXISTS", "")
            _, kind, name, *_ = (part for part in _TOKEN.findall(plain) if not part.isspace())
            yield kind, name


def _qualified(text: str, schema: str) -> str:
    """Name the schema of everything that is the engine's own; a CTE's name is the statement's."""
    parts = _TOKEN.findall(text)
    places = [place for place, part in enumerate(parts) if _is_said(part)]
    said = ["", "", *(parts[place] for place in places), "", ""]
    own = _own() - _ctes(said)
    for near, place in enumerate(places, start=2):
        word = parts[place]
        if word.strip("'") in own and _is_named(said, near):
            quote = "'" if word[0] == "'" else ""
            parts[place] = f'{quote}"{schema}".{word.removeprefix(quote)}'
    return "".join(parts)


def _is_said(part: str) -> bool:
    return not part.isspace() and part[:2] != "--"


def _ctes(said: list[str]) -> set[str]:
    found = set()
    for place, word in enumerate(said):
        if word == "AS" and said[place + 1] in ("(", "NOT", "MATERIALIZED"):
            before = place - 1
            if said[before] == ")":
                before -= said[before::-1].index("(") + 1
            found.add(said[before])
    return found


def _is_named(said: list[str], place: int) -> bool:
    """Tell whether a table, a sequence or a function is named here, and not a row or a column."""
    if said[place].startswith("'"):
        return said[place - 1] == "(" and said[place - 2] in ("nextval", "to_regclass")
    if said[place].startswith("milepost_") and said[place + 1] == "(":
        return True
    before = place - 1
    while said[before] in _BETWEEN:
        before -= 1
    named = said[before] in _BEFORE_TABLE and said[before - 1] != "DISTINCT"
    return named and said[place + 1] != "."
