"""`milepost channels`: final messages that wait, were delivered or are dead, and what came in."""

import click

from milepost.cli.groups import HelpfulGroup
from milepost.cli.options import (
    Lookup,
    acting,
    json_option,
    limit_option,
    looking,
    store_option,
)
from milepost.cli.output import say, show_json, show_table
from milepost.config import StoreUrl
from milepost.errors import Invalid, NotFound
from milepost.store.inbox import RefusedMessage
from milepost.store.outbox import Channel, Message

COLUMNS = ("name", "kind", "target", "tenant", "state", "waiting", "dead", "reason")
MESSAGE_COLUMNS = ("id", "kind", "state", "stands", "attempts", "created_at", "error")
DEAD_COLUMNS = ("channel", "id", "kind", "state", "attempts", "dead_at", "error")
REFUSED_COLUMNS = ("inbound", "message", "at", "error")


@click.group(cls=HelpfulGroup)
def channels() -> None:
    """Look at final messages, acknowledge them, try dead ones again. No app is needed."""


@channels.command("ls")
@store_option
@json_option
def ls(store: StoreUrl, *, as_json: bool) -> None:
    """List the channels.

    One that no running worker declares any more is `vanished`; one that its receiver or an operator
    ended is `stopped`. The messages of both wait.
    """
    with looking(store) as lookup:
        found = [_document(channel) for channel in lookup.channels.list()]
    if as_json:
        show_json(found)
    elif found:
        show_table(COLUMNS, [[document[name] for name in COLUMNS] for document in found])
    else:
        say("there is no channel; name one by options(channel=...) or app.channel(...)")


def _document(channel: Channel) -> dict[str, object]:
    return {
        "name": channel.name,
        "kind": channel.kind,
        "target": channel.target,
        "tenant": channel.tenant,
        "state": channel.state,
        "waiting": channel.waiting,
        "dead": channel.dead,
        "reason": channel.reason,
        "stopped_by": channel.stopped_by,
        "stopped_at": channel.stopped_at,
    }


def _message(message: Message) -> dict[str, object]:
    return {
        "id": message.id,
        "channel": message.channel,
        "machine": message.machine,
        "subject": message.subject_id,
        "kind": message.kind,
        "tenant": message.tenant or None,
        "state": message.state,
        "stands": message.stands,
        "attempts": message.attempts,
        "created_at": message.created_at,
        "due_at": message.due_at if message.stands == "waiting" else None,
        "delivered_at": message.delivered_at,
        "dead_at": message.dead_at,
        "error": message.error,
    }


@channels.command()
@store_option
@click.argument("name", metavar="CHANNEL|MESSAGE")
@json_option
def show(store: StoreUrl, name: str, *, as_json: bool) -> None:
    """Show how a channel stands, or what a message says: its event, as JSON."""
    with looking(store) as lookup:
        if name.startswith(("job_", "run_")):
            show_json(lookup.channels.event(name))
            return
        document = _document(_known(lookup, name))
    if as_json:
        show_json(document)
    else:
        show_table(("what", "value"), list(document.items()))


def _known(lookup: Lookup, name: str) -> Channel:
    known = {channel.name: channel for channel in lookup.channels.list()}
    if name not in known:
        raise NotFound(f"there is no channel {name!r}; there are: {', '.join(known) or 'none'}")
    return known[name]


@channels.command()
@store_option
@click.argument("name")
@click.option(
    "--state",
    type=click.Choice(["waiting", "delivered", "dead"], case_sensitive=False),
    help="Only those.  [default: all]",
)
@limit_option(50)
@json_option
def messages(store: StoreUrl, name: str, state: str | None, limit: int, *, as_json: bool) -> None:
    """List a channel's messages, newest first."""
    with looking(store) as lookup:
        found = [_message(m) for m in lookup.channels.messages(name, state=state, limit=limit)]
        if not found:
            _known(lookup, name)
    if as_json:
        show_json(found)
    elif found:
        show_table(MESSAGE_COLUMNS, [[line[c] for c in MESSAGE_COLUMNS] for line in found])
    else:
        say(f"channel {name} has no such message")


@channels.command()
@store_option
@click.argument("name")
@click.argument("ids", metavar="MESSAGE...", nargs=-1, required=True)
@json_option
def ack(store: StoreUrl, name: str, ids: tuple[str, ...], *, as_json: bool) -> None:
    """Say that messages arrived: they are neither delivered nor offered again."""
    with acting(store) as lookup:
        count = lookup.channels.ack(name, list(ids))
    if as_json:
        show_json({"channel": name, "acknowledged": count})
    say(f"{count} of {len(ids)} acknowledged" + _rest(len(ids) - count))


def _rest(count: int) -> str:
    return f"; {count} are not in this channel, or were acknowledged before" if count else ""


@channels.command()
@store_option
@click.argument("name")
@click.argument("ids", metavar="[MESSAGE]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All that are dead.")
@json_option
def retry(store: StoreUrl, name: str, ids: tuple[str, ...], *, every: bool, as_json: bool) -> None:
    """Try dead messages again, with their attempts counted anew."""
    if every == bool(ids):
        raise Invalid("name the messages, or say --all")
    with acting(store) as lookup:
        count = lookup.channels.retry(name, None if every else list(ids))
    if as_json:
        show_json({"channel": name, "tried_again": count})
    say(f"{count} messages of channel {name} will be tried again")


@channels.command()
@store_option
@click.argument("name", required=False)
@limit_option(50)
@json_option
def dead(store: StoreUrl, name: str | None, limit: int, *, as_json: bool) -> None:
    """List what did not get through: dead final messages, and refused ones that came in."""
    with looking(store) as lookup:
        names = [name] if name else [c.name for c in lookup.channels.list() if c.dead]
        out = [
            _message(message)
            for each in names
            for message in lookup.channels.messages(each, state="dead", limit=limit)
        ][:limit]
        refused = [_refused(message) for message in lookup.channels.refused(name, limit=limit)]
    if as_json:
        show_json({"dead": out, "refused": refused})
        return
    if out:
        show_table(DEAD_COLUMNS, [[line[c] for c in DEAD_COLUMNS] for line in out])
    if refused:
        show_table(REFUSED_COLUMNS, [[line[c] for c in REFUSED_COLUMNS] for line in refused])
    if not out and not refused:
        say("nothing is dead")


def _refused(message: RefusedMessage) -> dict[str, object]:
    content = (message.content or b"").decode(errors="replace")
    return {
        "inbound": message.source,
        "message": message.message_id,
        "at": message.at,
        "error": message.error,
        "content": content,
    }


@channels.command()
@store_option
@click.argument("name")
@click.option("--reason", default="stopped", show_default=True, help="Kept with the channel.")
@json_option
def stop(store: StoreUrl, name: str, reason: str, *, as_json: bool) -> None:
    """Let nothing leave through a channel; its messages wait."""
    with acting(store) as lookup:
        changed = lookup.channels.stop(name, reason)
    if as_json:
        show_json({"channel": name, "state": "stopped", "changed": changed})
    say(f"channel {name} is stopped" if changed else f"channel {name} was stopped before")


@channels.command()
@store_option
@click.argument("name")
@json_option
def start(store: StoreUrl, name: str, *, as_json: bool) -> None:
    """Let messages leave again, after a stop or after a receiver answered 410 Gone."""
    with acting(store) as lookup:
        changed = lookup.channels.start(name)
    if as_json:
        show_json({"channel": name, "state": "active", "changed": changed})
    say(f"channel {name} is active" if changed else f"channel {name} was not stopped")


@channels.command()
def secret() -> None:
    """Make a secret for a webhook, and print it once: keep it where its receiver finds it."""
    from milepost.relay.webhook import new_secret

    click.echo(new_secret())
