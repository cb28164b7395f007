"""`milepost tokens`: access to the HTTP API."""

from typing import Any

import click

from milepost.cli import options
from milepost.cli.command import Session, StoreGroup
from milepost.cli.output import document, say, show_json
from milepost.config import seconds
from milepost.errors import Invalid
from milepost.store import tokens as stored

COLUMNS = ("name", "id", "state", "scopes", "tenant", "queues", "created_at", "expires_at")


@click.group(cls=StoreGroup)
def tokens() -> None:
    """Create, list and revoke tokens of the HTTP API. No app is needed."""


@tokens.command(access="create")
@options.name
@options.repeated(
    *("--scope", "--scopes", "scopes"),
    metavar="WORD",
    text="One of submit, read, operate, admin; may be repeated. admin may do everything.  "
    "[default: submit and read]",
)
@click.option("--tenant", metavar="NAME", help="It creates and sees this tenant's jobs only.")
@options.repeated(
    *("--queue", "--queues", "queues"),
    text="It submits to and sees this queue only; may be repeated.",
)
@click.option(
    "--max-priority",
    type=click.IntRange(0, 9),
    metavar="N",
    help="The highest priority of jobs that it creates.  [default: 9]",
)
@options.repeated(
    *("--kind", "--kinds", "kinds"),
    text="A kind of job, a batch or a pipeline that it creates; may be repeated.  [default: all]",
)
@click.option(
    "--requests/--no-requests",
    default=None,
    help="Whether it sends HTTP requests.  [default: yes, unless --kind is given]",
)
@click.option(
    "--rate",
    metavar="N/s",
    help="How often it may call: 100/s, 60/m.  [default: MILEPOST_API_RATE]",
)
@click.option("--expires", metavar="DURATION", help="When it stops working: 12h, 30d.")
def create(
    at: Session,
    *,
    name: str,
    scopes: tuple[str, ...],
    tenant: str | None,
    queues: tuple[str, ...],
    max_priority: int | None,
    kinds: tuple[str, ...],
    requests: bool | None,
    rate: str | None,
    expires: str | None,
) -> None:
    """Create a token and print it, once: only its hash is kept.

    NAME is the actor in the journal. From the first token on, every request to the API needs one.
    """
    from milepost.limit import read_rate

    chosen = stored.check_scopes(_words(scopes) or ("submit", "read"))
    name = stored.check_actor(name)
    bounds = stored.Bounds(
        max_priority=max_priority,
        kinds=_words(kinds) or None,
        requests=not kinds if requests is None else requests,
        rate=read_rate(rate).per_second if rate else None,
    )
    _check_reach(tenant, queues)
    token_id, secret, hashed = stored.new_secret()
    at.client.run(
        stored.create,
        token_id,
        name=name,
        hashed=hashed,
        scopes=chosen,
        tenant=tenant,
        queues=_words(queues) or None,
        bounds=bounds,
        expires_in=None if expires is None else _span(expires),
    )
    if at.as_json:
        show_json({"token": secret, **_stored(at, token_id)})
    else:
        click.echo(secret)
    say("keep it: it is not shown again; `milepost tokens revoke` ends it")


def _check_reach(tenant: str | None, queues: tuple[str, ...]) -> None:
    from milepost.codec import check_text

    if tenant is not None:
        check_text(tenant, what="tenant")
    if queues and not _words(queues):
        raise Invalid("--queue is blank: a token that is bound to no queue would see them all")


def _words(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip() for text in given for word in text.split(",") if word.strip())


def _span(text: str) -> float:
    span = seconds(text, "--expires")
    if span <= 0:
        raise Invalid(f"--expires {text}: it would never work")
    return span


@tokens.command("ls")
def ls(at: Session) -> None:
    """List the tokens, revoked ones too; none shows its secret."""
    rows = [_document(token) for token in at.client.run(stored.listing)]
    cells = {**dict.fromkeys(COLUMNS, _cell), "expires_at": lambda at: at or "never"}
    none = "there is no token; `milepost tokens create NAME` makes one"
    at.table(rows, *COLUMNS, empty=none, **cells)


def _document(token: stored.Token) -> dict[str, Any]:
    bounds = document(token.bounds, "max_priority", "kinds", "requests", "rate")
    return document(
        token,
        *("id", "name", "state", "scopes", "tenant", "queues", *bounds),
        *("created_at", "expires_at", "revoked_at"),
        **bounds,
    )


def _cell(value: object) -> object:
    if value is None:
        return "all"
    return ", ".join(value) if isinstance(value, tuple) else value


@tokens.command(access="create")
@click.argument("token", metavar="NAME|ID")
def revoke(at: Session, token: str) -> None:
    """Revoke a token at once."""
    revoked = at.client.run(stored.revoke, token)
    at.report(_stored(at, revoked), f"token {token} is revoked")


def _stored(at: Session, token_id: str) -> dict[str, Any]:
    [found] = [each for each in at.client.run(stored.listing) if each.id == token_id]
    return _document(found)
