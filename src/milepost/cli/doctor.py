"""`milepost doctor`: find what should be impossible and what is wrong around a store; repair it."""

import sys
from itertools import groupby
from typing import TYPE_CHECKING

import click

from milepost.cli.bars import bar
from milepost.cli.command import Session, StoreCommand, open_session
from milepost.cli.noted import is_in_use, note_check
from milepost.cli.output import document, printable, say, show_json
from milepost.observe.doctor import KEPT, Alike, Diagnosis, Finding, diagnose, repair
from milepost.store.connect import open_driver

if TYPE_CHECKING:
    from milepost.client import Client

SHOWN = 20
"""How many findings alike are printed."""
ENTRIES_PER_UPDATE = 2_000
HEALTHY, BROKEN, ATTENTION = 0, 1, 6
"""Exit codes: nothing was found; a promise does not hold; something wants attention."""


@click.command(cls=StoreCommand)
@click.option(
    "--repair",
    "repairs",
    is_flag=True,
    help="Make the legal moves that are due, each of them journalled; then look again.",
)
def doctor(at: Session, *, repairs: bool) -> None:
    """Find what should be impossible in a store and what is wrong around it.

    Folds and compares as `milepost verify` does, checks the promises that one store can show, moves
    that have been due for over a minute, and the environment: schema, guards, rights, clocks, WAL
    and SQLite's version, old transactions, bloat, dead workers, queues that no worker serves,
    channels that lag. Each finding says what to do. It only reads, unless --repair is given;
    how it ended is kept for the dashboard.

    --repair moves jobs and runs as maintenance does, and cancels jobs that should have ended. It
    changes nothing while a guard is missing, or its role may not compare them, for its moves might
    not be checked or journalled.

    Exit code 0: nothing was found. 1: a promise does not hold, or a guard or the schema is wrong.
    6: only things that want attention, such as a queue without workers.
    """
    noted = is_in_use(at)
    found = _diagnosis(at)
    if repairs:
        repaired = _repaired(at, found)
        found, before = _diagnosis(at), found
        say(f"repaired {max(0, before.found - found.found)} of {_counted(before.found)}")
        for finding, why in repaired:
            say(f"not repaired: {finding}: {why}")
    if at.as_json:
        show_json(_document(found))
    else:
        _print(found)
    if noted:
        note_check(at, "doctor", clean=not found.found, summary=_summary(found))
    sys.exit(_code(found))


def _diagnosis(at: Session) -> Diagnosis:
    driver = open_driver(at.store, look=True)
    try:
        with bar("looking") as update:

            def advance(done: int, total: int) -> None:
                if done % ENTRIES_PER_UPDATE == 0 or done == total:
                    update(completed=done, total=total)

            return diagnose(driver, at.store, progress=advance)
    finally:
        driver.close()


def _repaired(at: Session, found: Diagnosis) -> list[tuple[Finding, str]]:
    if found.unguarded:
        say(f"nothing was repaired: {found.unguarded}")
        return []
    wanted = [finding for finding in found.findings if finding.repairable]
    if not wanted:
        return []
    with open_session(at.store, access="write") as session:
        return session.client.run_in_loop(_repair(session.client, wanted, session.actor))


async def _repair(client: "Client", wanted: list[Finding], actor: str) -> list[tuple[Finding, str]]:
    from milepost.maintain.chores import maintain

    driver = await client.async_driver()
    refused = await repair(driver, wanted, actor=actor)
    while (await maintain(driver)).total:  # what one move makes due is made too
        pass
    return refused


def _code(found: Diagnosis) -> int:
    if not found.found:
        return HEALTHY
    return BROKEN if found.breaks_promise else ATTENTION


def _counted(number: int) -> str:
    return f"{number:,} finding{'' if number == 1 else 's'}"


def _print(found: Diagnosis) -> None:
    def order(finding: Finding) -> tuple[bool, Alike]:
        return not finding.breaks_promise, finding.alike

    for (_, alike), group in groupby(sorted(found.findings, key=order), key=order):
        findings = list(group)
        for finding in findings[:SHOWN]:
            name = printable(f"{finding.subject} {finding.id}: {finding.text}")
            click.echo(f"{finding.code}\t{name}")
        if (more := found.alike[alike] - SHOWN) > 0:
            click.echo(f"\t… and {more:,} more (--json lists up to {KEPT:,} alike)")
        one = findings[0]
        click.echo(f"\tdo: {printable(one.remedy if len(findings) == 1 else one.advice)}")
    click.echo(_summary(found))


def _summary(found: Diagnosis) -> str:
    compared = found.compared
    looked = "" if compared is None else f": {compared.entries:,} entries folded, "
    rows = "" if compared is None else f"{compared.rows:,} live rows compared"
    return f"{_counted(found.found) if found.found else 'healthy'}{looked}{rows}"


def _document(found: Diagnosis) -> dict[str, object]:
    names = ("code", "subject", "id", "text", "advice", "repairable", "breaks_promise")
    listed = [
        document(one, *names, subject=one.subject, advice=one.remedy) for one in found.findings
    ]
    return {"healthy": not found.found, "found": found.found, "findings": listed}
