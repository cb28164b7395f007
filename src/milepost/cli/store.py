"""Commands on a store as a whole: `milepost migrate`, `verify`, `grants` and `retention`."""

import sys
from pathlib import Path
from typing import Any

import click

from milepost.cli.bars import bar
from milepost.cli.command import Session, StoreCommand, StoreGroup
from milepost.cli.noted import is_in_use, note_check
from milepost.cli.output import document, say, show_json
from milepost.config import seconds
from milepost.observe.verify import Findings, verify_archive
from milepost.observe.verify import verify as compare
from milepost.store import migrate as schema
from milepost.store import retention as age
from milepost.store import roles as rights
from milepost.store.connect import open_driver

PROBLEMS_SHOWN = 20
ENTRIES_PER_UPDATE = 2_000


@click.command(cls=StoreCommand)
@click.option("--sql", is_flag=True, help="Print the SQL that is missing, and change nothing.")
@click.option(
    "--dialect",
    type=click.Choice(["postgres", "sqlite"]),
    help="With --sql: print every migration of this database, without connecting.",
)
def migrate(at: Session, *, sql: bool, dialect: str | None) -> None:
    """Bring a store's schema to this version.

    Numbered migrations are applied in order, all in one transaction; two runners wait for each
    other, and running it again changes nothing. On PostgreSQL a store is in the schema milepost, or
    in the one that its address names (?schema=NAME).
    """
    if dialect and not sql:
        raise click.UsageError("--dialect goes with --sql")
    if sql and at.as_json:
        raise click.UsageError("--sql prints SQL, and --json JSON: choose one")
    if sql:
        _print_missing(at, dialect)
        return
    driver = open_driver(at.store)
    try:
        applied = [migration.name for migration in schema.migrate(driver)]
    finally:
        driver.close()
    for name in applied:
        click.echo(f"applied {name}", err=True)
    if at.as_json:
        show_json({"store": str(at.store), "applied": applied})
        return
    click.echo(f"{at.store}: {len(applied)} applied" if applied else f"{at.store} is up to date")


def _print_missing(at: Session, dialect: str | None) -> None:
    store = at.store
    if dialect is None and store.can.file and not Path(store.target).exists():
        dialect = store.dialect
    if dialect is not None:
        missing = list(schema.migrations(dialect))
    else:
        driver = open_driver(store, look=True)
        try:
            missing, dialect = schema.pending(driver), driver.dialect
        finally:
            driver.close()
    click.echo(schema.script(dialect, missing, schema=store.schema), nl=False)
    if not missing:
        say(f"{store} is up to date: nothing is missing")


@click.command(cls=StoreCommand)
@click.option(
    "--archive",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Check this folder of archived entries instead of a store.",
)
def verify(at: Session, archive: Path | None) -> None:
    """Fold the journal from empty and compare it with the live rows; then compare the guards.

    The triggers, functions, constraints and unique indexes that stand in the database are compared
    with those that this program renders, so one that was disabled, dropped or altered is named. On
    PostgreSQL that takes the right to create a schema, which is rolled back; a role without it is
    told, and only finds the disabled ones.

    Exit code 0: they agree. 1: they do not, and each difference is named. Not
    checked: times (a clock may have been set), and of a history that was summed up its first time
    and its last worker, because those entries are gone.

    With --archive the files of an archive are checked: each by its checksum, those that are listed
    and missing, and every history in it from its first entry on. No store is opened.
    """
    if archive is not None:
        _verify_archive(at, archive)
        return
    noted = is_in_use(at)
    driver = open_driver(at.store, look=True)
    try:
        schema.check(driver, at.store)
        with bar("verifying") as update:

            def advance(done: int, total: int) -> None:
                if done % ENTRIES_PER_UPDATE == 0 or done == total:
                    update(completed=done, total=total)

            verdict = compare(driver, progress=advance)
    finally:
        driver.close()
    if at.as_json:
        show_json(_verdict(verdict))
    else:
        _print_verdict(verdict)
    if noted:
        note_check(at, "verify", clean=verdict.clean, summary=_compared(verdict))
    sys.exit(0 if verdict.clean else 1)


def _verify_archive(at: Session, folder: Path) -> None:
    verdict = verify_archive(folder)
    if at.as_json:
        counts = ("clean", "files", "histories", "entries", "found", "problems")
        show_json(document(verdict, *counts, problems=_problems(verdict)))
    else:
        _print_problems(verdict)
        click.echo(
            f"{_word(verdict)}: {verdict.files:,} files checked, {verdict.entries:,} entries of "
            f"{verdict.histories:,} histories folded"
        )
    sys.exit(0 if verdict.clean else 1)


def _word(verdict: Findings) -> str:
    return "clean" if verdict.clean else f"{verdict.found} problems"


def _print_problems(verdict: Findings) -> None:
    for problem in verdict.problems[:PROBLEMS_SHOWN]:
        click.echo(str(problem))
    if verdict.found > PROBLEMS_SHOWN:
        click.echo(f"… and {verdict.found - PROBLEMS_SHOWN} more (--json lists up to 1,000)")


def _print_verdict(verdict: Findings) -> None:
    _print_problems(verdict)
    click.echo(_compared(verdict))


def _compared(verdict: Findings) -> str:
    guards = f"{verdict.guards} guards compared"
    if verdict.guards is None:
        guards = "guards not compared: run it as the tables' owner, who may create a schema"
    return (
        f"{_word(verdict)}: {verdict.entries:,} entries folded, {verdict.rows:,} live rows "
        f"compared, {verdict.pruned:,} pruned, {guards}"
    )


def _problems(verdict: Findings) -> list[dict[str, str]]:
    return [{"machine": p.machine, "id": p.subject_id, "problem": p.text} for p in verdict.problems]


def _verdict(verdict: Findings) -> dict[str, Any]:
    problems = _problems(verdict)
    counts = ("clean", "entries", "rows", "pruned", "guards", "found")
    return document(verdict, *counts, "problems", problems=problems)


@click.command(cls=StoreCommand, has_json=False)
@click.option(
    "--role",
    "roles",
    type=click.Choice(list(rights.ROLES)),
    multiple=True,
    help="May be repeated: a login that is both.  [default: each of the four]",
)
@click.option(
    "--to",
    metavar="NAME",
    help="The PostgreSQL role that gets the rights; it must exist.  [default: milepost_ROLE]",
)
def grants(at: Session, *, roles: tuple[str, ...], to: str | None) -> None:
    """Print the SQL that gives PostgreSQL roles their rights on a store. Nothing is executed.

    Run it as the tables' owner, after `milepost migrate`, and again after an upgrade: it takes
    whatever else the role had in the schema. The schema is that of the store's address.
    """
    if to is not None and not roles:
        raise click.UsageError(
            "--to takes one role's rights, or those of several: name them, --role"
        )
    if not at.store.can.roles:
        say("a SQLite file has no roles: this is for a PostgreSQL store in the schema milepost")
    script = rights.script(roles or tuple(rights.ROLES), schema=at.store.schema, to=to)
    click.echo(script, nl=False)


@click.group(cls=StoreGroup)
def retention() -> None:
    """Show and set the minimum age of jobs and runs that retention removes. No app is needed."""


@retention.command()
def show(at: Session) -> None:
    """Show the minimum, in seconds, and the person who set it."""
    found = at.client.run(age.minimum)
    at.show(document(found, "min", "set_at", "set_by", min=found.seconds))


@retention.command("set", access="write")
@click.option(
    "--min",
    "least",
    required=True,
    metavar="DURATION",
    help="Nothing that moved within this time is removed or summed up: 1h, 7d; 0s for no minimum.",
)
def set_minimum(at: Session, least: str) -> None:
    """Set the minimum. The database holds every worker to it, whatever its settings say.

    On PostgreSQL that takes the rights of the role admin (see `milepost grants`).
    """
    asked = seconds(least, "--min")
    at.client.run(age.set_minimum, asked, actor=at.actor)
    at.report({"min": asked}, f"retention removes nothing that moved within the last {least}")
