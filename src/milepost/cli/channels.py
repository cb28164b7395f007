"""`milepost channels`: final messages that wait, were delivered or are dead, and refused ones."""

from typing import TYPE_CHECKING, Any

import click

from milepost.cli import options
from milepost.cli.command import Session, StoreGroup
from milepost.cli.output import document, say, show_json, show_rows, show_table
from milepost.errors import Invalid, NotFound

if TYPE_CHECKING:
    from milepost.relay.pull import Channels
    from milepost.store.inbox import RefusedMessage
    from milepost.store.outbox import Channel, Message

COLUMNS = ("name", "kind", "target", "tenant", "state", "waiting", "dead", "reason")
MESSAGE_COLUMNS = ("id", "kind", "state", "stands", "attempts", "created_at", "error")
DEAD_COLUMNS = ("channel", "id", "kind", "state", "attempts", "dead_at", "error")
REFUSED_COLUMNS = ("inbound", "message", "at", "error")


@click.group(cls=StoreGroup)
def channels() -> None:
    """Look at final messages, acknowledge them, try dead ones again. No app is needed."""


def _of(at: Session) -> "Channels":
    from milepost.relay.pull import Channels

    return Channels(at.client)


@channels.command("ls")
def ls(at: Session) -> None:
    """List the channels.

    One that no running worker declares any more is `vanished`; one that its receiver or an operator
    ended is `stopped`. The messages of both wait.
    """
    none = "there is no channel; name one by options(channel=...) or app.channel(...)"
    at.table([_channel(channel) for channel in _of(at).list()], *COLUMNS, empty=none)


def _channel(channel: "Channel") -> dict[str, Any]:
    return document(channel, *COLUMNS, "stopped_by", "stopped_at")


def _message(message: "Message") -> dict[str, Any]:
    return document(
        message,
        *("id", "channel", "machine", "subject", "kind", "tenant", "state", "stands", "attempts"),
        *("created_at", "due_at", "delivered_at", "dead_at", "error"),
        tenant=message.tenant or None,
        due_at=message.due_at if message.stands == "waiting" else None,
    )


def _refused(message: "RefusedMessage") -> dict[str, Any]:
    content = (message.content or b"").decode(errors="replace")
    given = {"inbound": message.source, "message": message.message_id, "content": content}
    return document(message, *REFUSED_COLUMNS, "content", **given)


@channels.command()
@click.argument("name", metavar="CHANNEL|MESSAGE")
def show(at: Session, name: str) -> None:
    """Show a channel, or a message: its event, as JSON."""
    if name.startswith(("job_", "run_")):
        show_json(_of(at).event(name))
        return
    told = _channel(_known(at, name))
    if at.as_json:
        show_json(told)
    else:
        show_table(("what", "value"), list(told.items()))


def _known(at: Session, name: str) -> "Channel":
    known = {channel.name: channel for channel in _of(at).list()}
    if name not in known:
        raise NotFound(f"there is no channel {name!r}; there are: {', '.join(known) or 'none'}")
    return known[name]


@channels.command()
@options.name
@options.state("waiting", "delivered", "dead", text="Only those.  [default: all]")
@options.limit()
def messages(at: Session, name: str, state: str | None, limit: int) -> None:
    """List a channel's messages, newest first."""
    rows = [_message(message) for message in _of(at).messages(name, state=state, limit=limit)]
    if not rows:
        _known(at, name)
    at.table(rows, *MESSAGE_COLUMNS, empty=f"channel {name} has no such message")


@channels.command(access="write")
@options.name
@click.argument("ids", metavar="MESSAGE...", nargs=-1, required=True)
def ack(at: Session, name: str, ids: tuple[str, ...]) -> None:
    """Acknowledge messages: they are neither delivered nor offered again."""
    count = _of(at).ack(name, list(ids))
    rest = len(ids) - count
    others = f"; {rest} are not in this channel, or were acknowledged before" if rest else ""
    told = {"channel": name, "acknowledged": count}
    at.report(told, f"{count} of {len(ids)} acknowledged{others}")


@channels.command(access="write")
@options.name
@click.argument("ids", metavar="[MESSAGE]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All that are dead.")
def retry(at: Session, name: str, ids: tuple[str, ...], *, every: bool) -> None:
    """Try dead messages again; their attempts are counted from zero."""
    if every == bool(ids):
        raise Invalid("name the messages, or say --all")
    count = _of(at).retry(name, None if every else list(ids))
    told = {"channel": name, "tried_again": count}
    at.report(told, f"{count} messages of channel {name} will be tried again")


@channels.command(access="write")
@options.name
@click.argument("ids", metavar="MESSAGE...", nargs=-1, required=True)
def redeliver(at: Session, name: str, ids: tuple[str, ...]) -> None:
    """Deliver messages once more that arrived, or are dead; each has the id it had."""
    count = _of(at).redeliver(name, list(ids))
    rest = len(ids) - count
    others = f"; {rest} are not in this channel, or still wait" if rest else ""
    told = {"channel": name, "delivered_again": count}
    at.report(told, f"{count} of {len(ids)} will be delivered once more{others}")


@channels.command()
@click.argument("name", required=False)
@options.limit()
def dead(at: Session, name: str | None, limit: int) -> None:
    """List dead final messages, and inbound messages that were refused."""
    found = _of(at)
    names = [name] if name else [channel.name for channel in found.list() if channel.dead]
    out = [
        _message(message)
        for each in names
        for message in found.messages(each, state="dead", limit=limit)
    ][:limit]
    refused = [_refused(message) for message in found.refused(name, limit=limit)]
    if at.as_json:
        show_json({"dead": out, "refused": refused})
        return
    if out:
        show_rows(out, *DEAD_COLUMNS)
    if refused:
        show_rows(refused, *REFUSED_COLUMNS)
    if not out and not refused:
        say("nothing is dead")


@channels.command(access="write")
@options.name
@options.reason("stopped", "Kept with the channel.")
def stop(at: Session, name: str, reason: str) -> None:
    """Stop deliveries through a channel; its messages wait."""
    changed = _of(at).stop(name, reason)
    text = f"channel {name} is stopped" if changed else f"channel {name} was stopped before"
    at.report({"channel": name, "state": "stopped", "changed": changed}, text)


@channels.command(access="write")
@options.name
def start(at: Session, name: str) -> None:
    """Resume deliveries, after a stop or after a receiver answered 410 Gone."""
    changed = _of(at).start(name)
    text = f"channel {name} is active" if changed else f"channel {name} was not stopped"
    at.report({"channel": name, "state": "active", "changed": changed}, text)


@channels.command(cls=click.Command)
def secret() -> None:
    """Create a secret for a webhook, and print it once: hand it to the receiver."""
    from milepost.relay.webhook import new_secret

    click.echo(new_secret())
