"""`milepost tokens`: who may call the HTTP API."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.options import json_option, looking, store_option
from milepost.cli.output import say, show_json, show_table
from milepost.config import Settings, StoreUrl, seconds
from milepost.errors import Invalid

if TYPE_CHECKING:
    from milepost.client import Client
    from milepost.store.tokens import Token

COLUMNS = ("name", "id", "state", "scopes", "tenant", "queues", "created_at", "expires_at")


@click.group(cls=HelpfulGroup)
def tokens() -> None:
    """Create, list and revoke tokens of the HTTP API. No app is needed."""


@tokens.command()
@store_option
@click.argument("name")
@click.option(
    "--scope",
    "--scopes",
    "scopes",
    multiple=True,
    metavar="WORD",
    help="One of submit, read, operate, admin; may be repeated. admin may do everything.  "
    "[default: submit and read]",
)
@click.option("--tenant", metavar="NAME", help="It creates and sees this tenant's jobs only.")
@click.option(
    "--queue",
    "--queues",
    "queues",
    multiple=True,
    metavar="NAME",
    help="It submits to and sees this queue only; may be repeated.",
)
@click.option(
    "--max-priority",
    type=click.IntRange(0, 9),
    metavar="N",
    help="The highest priority of what it creates.  [default: 9]",
)
@click.option(
    "--kind",
    "--kinds",
    "kinds",
    multiple=True,
    metavar="NAME",
    help="A kind of job, a batch or a pipeline that it creates; may be repeated.  [default: all]",
)
@click.option(
    "--requests/--no-requests",
    default=None,
    help="Whether it sends HTTP requests.  [default: yes, unless --kind says what it creates]",
)
@click.option(
    "--rate",
    metavar="N/s",
    help="How often it may call: 100/s, 60/m.  [default: MILEPOST_API_RATE]",
)
@click.option("--expires", metavar="DURATION", help="When it stops working: 12h, 30d.")
@json_option
def create(
    *,
    store: StoreUrl,
    name: str,
    scopes: tuple[str, ...],
    tenant: str | None,
    queues: tuple[str, ...],
    max_priority: int | None,
    kinds: tuple[str, ...],
    requests: bool | None,
    rate: str | None,
    expires: str | None,
    as_json: bool,
) -> None:
    """Create a token and print it, once: only its hash is kept.

    NAME is what the journal calls whoever uses it. From the first token on, every request to the
    API needs one.
    """
    from milepost.request.hosts import read_rate
    from milepost.store import tokens as store_tokens

    chosen = store_tokens.check_scopes(_words(scopes) or ("submit", "read"))
    name = store_tokens.check_actor(name)
    bounds = store_tokens.Bounds(
        max_priority=max_priority,
        kinds=_words(kinds) or None,
        requests=not kinds if requests is None else requests,
        rate=read_rate(rate),
    )
    _check_reach(tenant, queues)
    token_id, secret, hashed = store_tokens.new_secret()
    with _opened(store) as client:
        client.run(
            store_tokens.create,
            token_id,
            name=name,
            hashed=hashed,
            scopes=chosen,
            tenant=tenant,
            queues=_words(queues) or None,
            bounds=bounds,
            expires_in=None if expires is None else _span(expires),
        )
        [made] = [each for each in client.run(store_tokens.listing) if each.id == token_id]
    if as_json:
        show_json({"token": secret, **_document(made)})
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


@contextmanager
def _opened(store: StoreUrl) -> Iterator["Client"]:
    """Open a store, and set an empty one up: a token may come before the first job."""
    from milepost.client import Client
    from milepost.encrypt import chosen_codec

    client = Client(store, codec=chosen_codec(os.environ), settings=Settings.load(os.environ))
    try:
        yield client
    finally:
        client.close()


@tokens.command("ls")
@store_option
@json_option
def ls(store: StoreUrl, *, as_json: bool) -> None:
    """List the tokens, revoked ones too; none shows its secret."""
    from milepost.store import tokens as store_tokens

    with looking(store) as lookup:
        found = lookup.client.run(store_tokens.listing)
    if as_json:
        show_json([_document(token) for token in found])
        return
    if not found:
        say("there is no token; `milepost tokens create NAME` makes one")
        return
    rows = [_document(token) for token in found]
    show_table(COLUMNS, [[_cell(name, row[name]) for name in COLUMNS] for row in rows])


def _document(token: "Token") -> dict[str, object]:
    return {
        "id": token.id,
        "name": token.name,
        "state": token.state,
        "scopes": list(token.scopes),
        "tenant": token.tenant,
        "queues": None if token.queues is None else list(token.queues),
        "max_priority": token.bounds.max_priority,
        "kinds": None if token.bounds.kinds is None else list(token.bounds.kinds),
        "requests": token.bounds.requests,
        "rate": token.bounds.rate,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "revoked_at": token.revoked_at,
    }


def _cell(name: str, value: object) -> object:
    if value is None:
        return "never" if name == "expires_at" else "all"
    return ", ".join(value) if isinstance(value, list) else value


@tokens.command()
@store_option
@click.argument("token", metavar="NAME|ID")
@json_option
def revoke(store: StoreUrl, token: str, *, as_json: bool) -> None:
    """Revoke a token at once."""
    from milepost.store import tokens as store_tokens

    with _opened(store) as client:
        revoked = client.run(store_tokens.revoke, token)
        [after] = [each for each in client.run(store_tokens.listing) if each.id == revoked]
    if as_json:
        show_json(_document(after))
    say(f"token {token} is revoked")
