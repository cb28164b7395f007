"""`milepost limits`: list limits, change them, and show who changed them and why."""

from typing import TYPE_CHECKING, Any

import click
import msgspec

from milepost.cli import options
from milepost.cli.command import Session, StoreGroup
from milepost.cli.output import document, show_rows
from milepost.limit import SCOPES

if TYPE_CHECKING:
    from milepost.rules import Limits
    from milepost.store.limit_looks import LimitStand
    from milepost.store.rules import RuleChange

FIELDS = ("most", "rate", "burst", "ordered", "units")
COLUMNS = ("scope", "name", "allows", "running", "waiting", "set_by", "reason")
CHANGE_COLUMNS = ("at", "scope", "name", "before", "after", "actor", "reason")
scope = click.option(
    "--scope", type=click.Choice(SCOPES), help="What it limits, if several have that name."
)


@click.group(cls=StoreGroup)
def limits() -> None:
    """List limits, change them, and show who did so and why. No app is needed."""


def _of(at: Session) -> "Limits":
    from milepost.rules import Limits

    return Limits(at.client)


@limits.command("ls")
def list_limits(at: Session) -> None:
    """List the limits: what each allows, how many jobs run and how many wait."""
    found = _of(at).list()
    none = "there is no limit; declare one with @app.job(limit=mp.Limit(...)), or set one"
    counted = {one.counted_to for one in found}
    rows = [_limit(one) for one in found]
    at.table(rows, *COLUMNS, empty=none, running=_upto(counted), waiting=_upto(counted))


def _upto(counted: "set[int | None]") -> Any:
    """Format a count: with a + where counting stopped."""
    return lambda number: f"{number}+" if number is not None and number in counted else number


def _limit(stand: "LimitStand") -> dict[str, Any]:
    declared = stand.declared
    return document(
        stand,
        *("scope", "name", "allows", *FIELDS, "declared", "set_by", "set_at", "reason"),
        *("running", "waiting", "counted_to"),
        allows=stand.words,
        declared=None if declared is None else msgspec.structs.asdict(declared),
    )


@limits.command()
@options.name
@scope
def show(at: Session, name: str, scope: str | None) -> None:
    """Show one limit, and what programs declare it as."""
    at.show(_limit(_of(at).get(name, scope=scope)))


@limits.command("set", access="write")
@options.name
@click.option("--most", metavar="N", help="How many of each key run at once; `none`: any number.")
@click.option(
    "--rate", metavar="N/s", help="How many start per s, m, h or d, as 25/s; `none`: any number."
)
@click.option(
    "--burst",
    metavar="N",
    help="How many may start at once after a rest; `none`: the rate's default.",
)
@click.option("--reason", metavar="TEXT", help="Why; kept with the change.")
@scope
def set_limit(
    at: Session,
    name: str,
    *,
    most: str | None,
    rate: str | None,
    burst: str | None,
    reason: str | None,
    scope: str | None,
) -> None:
    """Set what a limit allows, from the next claim on. Jobs that run are not stopped.

    An option that is left out stays as it was. --scope queue, host or source also makes the first
    limit of one.
    """
    from milepost.store.rules import read_burst, read_most

    given = (("most", most, read_most), ("rate", rate, str), ("burst", burst, read_burst))
    wanted: dict[str, Any] = {
        field: None if text.lower() == "none" else read(text)
        for field, text, read in given
        if text is not None
    }
    found = _of(at).set(name, **wanted, reason=reason, scope=scope)
    at.report(_limit(found), f"{_called(found)} is set: {found.words}; it acts at the next claim")


def _called(stand: "LimitStand") -> str:
    """Name a limit: that of a queue may have the name of one of jobs."""
    return f"limit {stand.name}" if stand.scope == "job" else f"limit of {stand.scope} {stand.name}"


@limits.command(access="write")
@options.name
@click.option("--reason", metavar="TEXT", help="Why; kept with the change.")
@scope
def reset(at: Session, name: str, reason: str | None, scope: str | None) -> None:
    """Put back what programs declare; a limit that none declares is removed."""
    found = _of(at).reset(name, reason=reason, scope=scope)
    gone = f"{_called(found)} is removed: no program declared it"
    back = f"{_called(found)} is as it was declared: {found.words}"
    at.report(_limit(found), gone if found.declared is None else back)


@limits.command(access="write")
@options.name
@click.argument("key", required=False)
@click.option("--reason", metavar="TEXT", help="Why; kept with the change.")
@scope
def clear(at: Session, name: str, key: str | None, reason: str | None, scope: str | None) -> None:
    """Refill the bucket of a rate, or of one KEY of it: the next job may start at once.

    For a key that is closed because too much was counted. Of the limit `*` of hosts, KEY is the
    host.
    """
    found = _of(at).clear(name, key, reason=reason, scope=scope)
    whose = "" if key is None else f" for {key}"
    at.report(_limit(found), f"the rate of {name} begins anew{whose}: {found.words}")


@limits.command()
@click.argument("name", required=False)
@scope
@options.limit()
def changes(at: Session, name: str | None, scope: str | None, limit: int) -> None:
    """List who changed or cleared limits, to what and why, newest first."""
    found = _of(at).changes(name, scope=scope, limit=limit)
    if at.as_json or not found:
        which = "no limit" if name is None else f"no limit {name!r}"
        empty = f"{which} was ever declared or changed"
        at.table([_change(one) for one in found], empty=empty)
        return
    rows = [
        {
            **_change(one),
            "before": "" if one.before is None else one.before.words(one.scope),
            "after": one.words,
        }
        for one in found
    ]
    show_rows(rows, *CHANGE_COLUMNS)


def _change(change: "RuleChange") -> dict[str, Any]:
    from milepost.store.limit_looks import Terms

    ends = {
        side: None if limit is None else msgspec.structs.asdict(Terms.of(limit, change.scope))
        for side, limit in (("before", change.before), ("after", change.after))
    }
    return document(change, *CHANGE_COLUMNS, "key", "free_at", **ends)
