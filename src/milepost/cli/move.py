"""`milepost move`: carry a whole store from a SQLite file to PostgreSQL."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from milepost.address import StoreUrl
from milepost.cli.bars import bar
from milepost.cli.command import Session, StoreCommand
from milepost.cli.output import say, show_json
from milepost.config import Settings
from milepost.ingest.target import type_on_server
from milepost.observe.verify import verify
from milepost.store.driver import Driver

if TYPE_CHECKING:
    from milepost.store.move import Moved, Tell

ENTRIES_PER_UPDATE = 2_000


def _parse(_context: click.Context, _parameter: click.Parameter, value: str) -> StoreUrl:
    return StoreUrl.parse(value)


@click.command(cls=StoreCommand, access="write", also_called=("--from",))
@click.option(
    "--to",
    required=True,
    metavar="URL",
    callback=_parse,
    help="postgresql://…: an empty database or store. PGPASSWORD may hold the password.",
)
def move(at: Session, *, to: StoreUrl) -> None:
    """Move a whole store from a SQLite file to PostgreSQL: all of it, or nothing.

    Every job, run and pipeline goes on there where it stood: with its history, its place in line,
    its limits and messages. An empty database is set up. Stop all workers first, and run it as the
    role that is to own the tables. Before it commits, it reads everything back and compares, and
    folds the journal as `milepost verify` does.

    Afterwards the file refuses every change, and programs that still use it are told where the
    store is. If it is interrupted, run it again: what was begun is undone, or finished.

    Exit code 5: refused, and nothing was changed. 1: the copy was not the same, likewise.
    """
    from milepost.store.move import move as carry

    others = Path(f"{at.store.target}-shm").exists()
    with bar("moving") as update:

        def tell(doing: str, done: int, total: int) -> None:
            update(description=doing, completed=done, total=total)

        found = carry(
            at.store,
            to,
            actor=at.actor,
            limits=Settings.load(os.environ).limits,
            verify=lambda driver: _wrong(driver, tell),
            type_of=type_on_server,
            tell=tell,
        )
    _report(at, to, found)
    if others:
        say(f"another program has {at.store} open: it is refused from now on, so stop it")
    say("let programs use the new one (MILEPOST_DATABASE_URL), and keep the file until all is well")


def _wrong(driver: Driver, tell: "Tell") -> str | None:
    """Fold the journal of the copy, and name the first of what does not agree."""

    def advance(done: int, total: int) -> None:
        if done % ENTRIES_PER_UPDATE == 0 or done == total:
            tell("verifying", done, total)

    verdict = verify(driver, progress=advance)
    if verdict.clean:
        return None
    return (
        f"`milepost verify` would find {verdict.found} problems in the copy, the first: "
        f"{verdict.problems[0]}; see what it and `milepost doctor` say of the store to move"
    )


def _report(at: Session, to: StoreUrl, found: "Moved") -> None:
    rows = sum(found.rows.values())
    if at.as_json:
        show_json(
            {
                "move": found.id,
                "from": str(at.store),
                "to": str(to),
                "rows": rows,
                "tables": {name: count for name, count in found.rows.items() if count},
                "seconds": round(found.seconds, 3),
                "resumed": found.resumed,
            }
        )
    elif found.resumed:
        click.echo(f"{at.store} had arrived at {to} before: the move is finished now")
    else:
        click.echo(f"{at.store} is at {to} now: {rows:,} rows in {found.seconds:.1f} s")
