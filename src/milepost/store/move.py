"""Carries a whole store from a SQLite file to PostgreSQL: all of it or nothing, and once.

The order decides that no acknowledged submit is lost and no job runs on both sides:

1. One transaction on the server holds the lock of migrations; one on the file keeps writers out.
2. All rows are copied, read back and compared; the journal is folded and compared with the rows.
3. The file commits that it was moved, and triggers that refuse every change from now on.
4. The server commits. A row with the move's id stands on both sides.
5. The file notes that the move is finished.

Killed before 3, both are as before. Killed between 3 and 5 the file refuses to be used, and only
the server knows whether all has arrived: the same command, run again, looks there, and either
notes the end or makes the file usable again and begins anew.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from graphlib import TopologicalSorter
from time import monotonic, time
from typing import Any

import msgspec
import uuid_utils

from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.errors import IllegalMove, Invalid, MilepostError, Unavailable
from milepost.store import failpoint
from milepost.store.allow import check_allowed
from milepost.store.binary import Column, Packer, numbered, summed
from milepost.store.catalog import FIRST_PLACE, Statement, own_tables
from milepost.store.driver import Call, Driver, Rows, Steps
from milepost.store.held import HeldTransaction
from milepost.store.migrate import check, migrations, pending, set_up
from milepost.store.move_file import MovingFile
from milepost.store.move_targets import TypeOf, copy_targets
from milepost.store.moved import StoreMove, note

LOCAL = {
    "migration": "each store has its own",
    "store_move": "each side writes its own row",
    "feed": "PostgreSQL follows the journal itself",
    "feed_switch": "likewise",
    "tally_mark": "PostgreSQL counts new jobs by a trigger: all are counted before the move",
    "failure_delta": "SQLite counts failures by the hour at once",
}
"""Tables that are not carried, and why; every other table is."""
LOCAL_COLUMNS = {
    ("job", "delay_us"): "due_at has been stamped by the one writer: it is exact",
    ("job", "lease_seq"): "what runs has none: it is counted all the same",
    ("job", "served"): "likewise",
    ("limit_rule", "since"): "drawn there",
    ("journal", "xid"): "the transaction that brings an entry here",
    ("retention", "active"): "PostgreSQL has a setting of the session for it",
    ("retention", "keeping_entries"): "likewise",
}
"""Columns that one side alone has, and why nothing is lost."""
NOBODY = "db_user"
"""Who had logged in: nobody logs in to a file. An empty name says so."""
SEEDED = {"clock": "offset_us <> 0", "retention": "set_at IS NOT NULL"}
"""Tables that a new store has one row in, and by what that row shows that somebody set it."""
DAY_MS = 86_400_000
SPAN_MS = 1 << 28
"""How much time an id's first five digits tell."""
OLDEST_MS = 1_577_836_800_000
"""The year 2020: an id from before begins with no time."""
WEEKS_AHEAD_MS = 31 * DAY_MS

Tell = Callable[[str, int, int], None]
"""Hears what is done, and how many rows of how many."""


class Moved(msgspec.Struct, frozen=True):
    """A move that is finished."""

    id: str
    rows: dict[str, int]
    """How many rows of each table were carried: none if the move had arrived before."""
    seconds: float
    resumed: bool = False
    """Whether all had arrived before, and only the end was to be noted."""


class CarriedTable(msgspec.Struct, frozen=True):
    """A table that both sides have."""

    name: str
    columns: tuple[Column, ...]
    sequences: dict[str, str]
    """The sequence that numbers a column on PostgreSQL."""

    @property
    def names(self) -> str:
        """Its columns, as SQL takes them."""
        return ", ".join(f'"{column.name}"' for column in self.columns)

    @property
    def compared(self) -> str:
        """The columns of which what was sent comes back."""
        return ", ".join(f'"{column.name}"' for column in self.columns if column.is_compared)

    @property
    def select(self) -> str:
        """The statement that reads it from the file."""
        names = ", ".join(
            "''" if column.name == NOBODY else f'"{column.name}"' for column in self.columns
        )
        # SQLite tells jobs that came at once apart by their rowids, PostgreSQL by their numbers.
        line = " ORDER BY queued_seq, rowid" if self.name == "job" else ""
        return f'SELECT {names} FROM "{self.name}"{line}'

    def packer(self) -> Packer:
        """Spell its rows; jobs get their places in line anew, in the same order."""
        places = {"queued_seq": numbered(FIRST_PLACE)} if self.name == "job" else {}
        return Packer(self.name, self.columns, **places)


def move(
    source: StoreUrl,
    target: StoreUrl,
    *,
    actor: str,
    limits: Timeouts,
    verify: Callable[[Driver], str | None],
    type_of: TypeOf,
    tell: Tell,
) -> Moved:
    """Carry a store to an empty one, or note the end of a move that was interrupted.

    `verify` looks at the copy before it is committed, and names what is wrong with it.
    """
    from milepost.store.postgres import PsycopgDriver  # noqa: PLC0415 - loaded when used

    _check_addresses(source, target)
    began = monotonic()
    with (
        closing(MovingFile(source)) as here,
        closing(PsycopgDriver(target, limits)) as driver,
        driver.held() as there,
    ):
        place = _prepared(there, target)
        here.begin()
        if (found := _interrupted(here, there, place)) is not None:
            here.finish(found)
            return Moved(found, {}, monotonic() - began, resumed=True)
        rows = _carried(here, there, type_of=type_of, tell=tell)
        made = StoreMove(str(uuid_utils.uuid7()), str(source), str(target), place, actor)
        there.run(_noted, made)
        if (wrong := verify(there)) is not None:
            raise MilepostError(f"nothing was moved: {wrong}")
        here.freeze(made)
        _commit(here, there, driver, made)
        here.finish(made.id)
    return Moved(made.id, rows, monotonic() - began)


def _check_addresses(source: StoreUrl, target: StoreUrl) -> None:
    if source == target:
        raise Invalid(
            f"{source} is both the store to move and where it is to go; name the file that is to "
            "be moved: --from sqlite:///milepost.db"
        )
    if not source.can.file or target.can.file:
        raise Invalid(
            f"a store is moved from a SQLite file to PostgreSQL, not from {source} to {target}; "
            "docs/how-to/backup-and-restore.md has other ways to copy one"
        )
    check_allowed(source)
    check_allowed(target)


def _prepared(there: HeldTransaction, target: StoreUrl) -> str:
    """Wait for others that migrate or move, set up an empty database; tell which one it is."""
    there.run(_alone)
    if len(pending(there)) == len(migrations(there.dialect)):
        there.run(set_up, there, target, asked=False)
    check(there, target)
    [(name,)] = there.ask(Call("store_identity"))
    return f"{name} {there.schema}"


def _alone() -> Steps[None]:
    yield Call("migration_lock")
    yield Call("move_calm")


def _noted(made: StoreMove) -> Steps[None]:
    yield from note(made)
    yield Call("move_finish", {"id": made.id})


# A move that was interrupted


def _interrupted(here: MovingFile, there: HeldTransaction, place: str) -> str | None:
    """Tell the move that has arrived and was not finished; make one that has not undone."""
    found = here.mark()
    if found is None:
        return None
    if found.place != place:
        raise IllegalMove(
            f"a move of {here.url} to {found.target} was interrupted: run that one again, which "
            "finishes it or makes the file usable again"
        )
    if there.ask(Call("move_arrived", {"id": found.id})):
        return found.id
    here.thaw(found.id)
    here.begin()
    return None


def _commit(here: MovingFile, there: HeldTransaction, driver: Any, made: StoreMove) -> None:
    """Commit on the server; if it failed the file is usable again, if that is unknown it is not."""
    try:
        there.commit()
    except BaseException:
        there.close()
        if not _has_arrived(here, driver, made):
            here.thaw(made.id)
            raise


def _has_arrived(here: MovingFile, driver: Any, made: StoreMove) -> bool:
    """Find out how a commit ended whose answer was lost."""
    try:
        with driver.held() as again:
            again.run(_alone)  # the transaction in question has ended now
            # Where it had set the store up, that is undone as well.
            return not pending(again) and bool(again.ask(Call("move_arrived", {"id": made.id})))
    except MilepostError as error:
        raise Unavailable(
            f"whether the move has arrived at {made.target} cannot be told now ({error}); "
            f"{here.url} cannot be used until the same command is run again, which finishes the "
            "move or makes the file usable"
        ) from error


# The copy


def _carried(
    here: MovingFile, there: HeldTransaction, *, type_of: TypeOf, tell: Tell
) -> dict[str, int]:
    here.refuse_live()
    tables = carried_tables(here.columns(), there.ask(Call("move_columns")))
    tables = _in_order(tables, there.ask(Call("move_references")))
    _refuse_filled(there)
    here.count_jobs()
    for monday in _weeks(here.spans()):
        there.ask(Call("move_week", {"day": monday}))
    there.ask(Call("move_disarm"))
    for name in SEEDED:
        there.script(f'DELETE FROM "{there.schema}"."{name}"')
    packers = _copied(here, there, tables, tell)
    _compare(there, tables, packers, tell)
    there.ask(Call("move_complete"))
    there.ask(Call("move_arm"))
    _set_sequences(here, there, tables)
    there.script(f"ANALYZE {', '.join(_named(there, table) for table in tables)}")
    there.ask(Call("move_path"))
    targets = copy_targets(here, there, type_of)
    return {table.name: packers[table.name].sum.rows for table in tables} | targets


def carried_tables(here: Rows, there: Rows) -> list[CarriedTable]:
    """List what is carried: all that both sides have, and nothing else but what is known to stay.

    Takes the columns of both, a row each: table, column, type, sequence.
    """
    from_, to = _by_table(here, "sqlite"), _by_table(there, "postgres")
    unknown = [*((from_.keys() ^ to.keys()) - LOCAL.keys())]
    for name in sorted(from_.keys() & to.keys() - LOCAL.keys()):
        alone = (from_[name].keys() ^ to[name].keys()) - {NOBODY}
        unknown += [f"{name}.{c}" for c in alone if (name, c) not in LOCAL_COLUMNS]
    if unknown:
        raise AssertionError(f"on one side alone, and not among what stays: {sorted(unknown)}")
    return [
        _carried_table(name, from_[name].keys() | {NOBODY}, to[name])
        for name in sorted(from_.keys() & to.keys() - LOCAL.keys())
    ]


def _by_table(rows: Rows, dialect: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for table, column, kind, sequence in rows:
        if table in own_tables(dialect):
            found.setdefault(table, {})[column] = (kind, sequence)
    return found


def _carried_table(name: str, given: Iterable[str], columns: dict[str, Any]) -> CarriedTable:
    known = [Column(one, kind) for one, (kind, _) in columns.items() if one in set(given)]
    known.sort(key=lambda column: not column.is_compared)
    sequences = {one: sequence for one, (_, sequence) in columns.items() if sequence is not None}
    return CarriedTable(name, tuple(known), sequences)


def _in_order(tables: list[CarriedTable], references: Rows) -> list[CarriedTable]:
    """Sort tables so that none comes before one that it refers to."""
    order = TopologicalSorter({table.name: set[str]() for table in tables})
    for table, other in references:
        order.add(table, other)
    by_name = {table.name: table for table in tables}
    return [by_name[name] for name in order.static_order()]


def _refuse_filled(there: HeldTransaction) -> None:
    """Keep everybody else out of the target, then make sure that nothing is in it."""
    names = sorted(own_tables("postgres") - {"migration"})
    places = ", ".join(f'"{there.schema}"."{name}"' for name in names)
    there.script(f"LOCK TABLE {places} IN SHARE ROW EXCLUSIVE MODE")
    looks = [
        f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name} WHERE {SEEDED.get(name, 'true')})"
        for name in names
    ]
    text = " UNION ALL ".join(looks)
    filled = [name for (name,) in there.ask(Call(Statement("move:filled", text, text)))]
    if filled:
        raise IllegalMove(
            f"the store to move to is not empty: it has rows in {', '.join(filled)}. Name an empty "
            "one: another database, or another schema of this one (?schema=NAME)"
        )


def _weeks(spans: Iterable[str]) -> list[int]:
    """List the Mondays, in days from 1970 on, of the weeks in which these ids may begin."""
    found = set()
    for digits in spans:
        first = int(digits, 16) * SPAN_MS
        if OLDEST_MS <= first <= time() * 1000 + WEEKS_AHEAD_MS:
            for day in (first // DAY_MS, (first + SPAN_MS - 1) // DAY_MS):
                found.add(day - (day + 3) % 7)  # 1970 began on a Thursday
    return sorted(found)


def _named(there: HeldTransaction, table: CarriedTable) -> str:
    return f'"{there.schema}"."{table.name}"'


def _copied(
    here: MovingFile, there: HeldTransaction, tables: list[CarriedTable], tell: Tell
) -> dict[str, Packer]:
    total = sum(here.count(table.name) for table in tables)
    packers = {table.name: table.packer() for table in tables}
    done = 0
    for table in tables:
        packer = packers[table.name]

        def told(chunks: Iterator[bytes], packer: Packer = packer, done: int = done) -> Any:
            for chunk in chunks:
                yield chunk
                tell("copying", done + packer.sum.rows, total)

        text = f"COPY {_named(there, table)} ({table.names}) FROM STDIN (FORMAT binary)"
        failpoint.reach(f"before:copy_{table.name}")
        with here.rows(table.select) as rows:
            there.load(text, told(packer.chunks(rows)))
        done += packer.sum.rows
    return packers


def _set_sequences(here: MovingFile, there: HeldTransaction, tables: list[CarriedTable]) -> None:
    """Have every number that is given from now on be larger than those that were given.

    A sequence may number several columns.
    """
    for table in tables:
        for column, sequence in table.sequences.items():
            text = (
                f"SELECT setval('{sequence}', nullif("
                f"greatest(:given::bigint, (SELECT max({column}) FROM {table.name}), "
                f"pg_sequence_last_value('{sequence}'::regclass), (SELECT seqstart - 1 "
                f"FROM pg_sequence WHERE seqrelid = '{sequence}'::regclass)), 0))"
            )
            asked = {"given": here.given(table.name)}
            there.ask(Call(Statement("move:setval", text, ""), asked))


def _compare(
    there: HeldTransaction, tables: list[CarriedTable], packers: dict[str, Packer], tell: Tell
) -> None:
    """Read all of it back: every row that was sent stands there, byte by byte, and no other."""
    total, done = sum(packer.sum.rows for packer in packers.values()), 0
    for table in tables:
        text = (
            f"COPY (SELECT {table.compared} FROM {_named(there, table)}) TO STDOUT (FORMAT binary)"
        )
        stands, sent = summed(there.unload(text)), packers[table.name].sum
        if stands != sent:
            raise MilepostError(
                f"nothing was moved: of {sent.rows} rows of {table.name} that were sent, "
                f"{stands.rows} stand in the copy, and they are not the same"
            )
        done += sent.rows
        tell("comparing", done, total)
