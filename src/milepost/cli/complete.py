"""Words that a shell completes from a store or an app: ids, queues, kinds and other names.

Nothing is created and nothing is printed: where neither can be read there is nothing to offer.
"""

import io
import os
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from milepost.cli.command import Session

MOST = 50
RECENT = 500
"""How many of the newest jobs are looked at for their kinds."""
Words = Iterable[tuple[str, str]]
Completion = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def _completion(look: "Callable[[Session, click.Context, str], Words]") -> Completion:
    """Complete by words of the store that the command is about; each has a meaning to show."""

    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from milepost.cli.command import open_session
        from milepost.config import store_url

        silence = io.StringIO()
        try:
            store = ctx.params.get("store") or store_url(None, os.environ)
            with redirect_stdout(silence), redirect_stderr(silence), open_session(store) as at:
                words = [each for each in look(at, ctx, typed) if each[0].startswith(typed)]
        except Exception:  # noqa: BLE001 - a prompt must not be filled with errors while one types
            return []
        return [CompletionItem(word, help=means or None) for word, means in words[:MOST]]

    return complete


def _group(ctx: click.Context) -> str:
    """Name the group that the command is in; its own name if it is in none."""
    path = ctx.command_path.split()
    return path[1] if len(path) > 1 else ""


def _ids(at: "Session", ctx: click.Context, typed: str) -> Words:
    from milepost.store import chains, jobs
    from milepost.subjects import between

    are_runs = _group(ctx) in {"runs", "pipelines"}
    if typed:
        low, high = between(typed)
        within = chains.within if are_runs else jobs.within
        return ((found, "") for found in at.client.run(within, low, high, most=MOST))
    newest = at.runs.list(limit=MOST) if are_runs else at.jobs.list(limit=MOST)
    return ((each.id, f"{each.kind} {each.state}") for each in newest)


def _queues(at: "Session", *_: object) -> Words:
    from milepost.queues import Queues

    return ((each.name, "paused" if each.paused else "") for each in Queues(at.client).list())


def _schedules(at: "Session") -> Words:
    from milepost.store import schedules

    return ((each.name, f"{each.kind} {each.cron}") for each in at.client.run(schedules.listing))


def _channels(at: "Session") -> Words:
    from milepost.relay.pull import Channels

    return ((each.name, each.state) for each in Channels(at.client).list())


def _pipelines(at: "Session") -> Words:
    from milepost.store import watermarks

    return ((each.name, "") for each in at.client.run(watermarks.listing))


def _limits(at: "Session") -> Words:
    from milepost.store import rules

    known = at.client.run(rules.rules).items()
    return ((name, rule.limit.words(scope)) for (scope, name), rule in known)


_NAMES: "dict[str, Callable[[Session], Words]]" = {
    "queues": _queues,
    "schedules": _schedules,
    "channels": _channels,
    "pipelines": _pipelines,
}


def _names(at: "Session", ctx: click.Context, _: str) -> Words:
    known = {**_NAMES, "limits": _limits}.get(_group(ctx))
    return () if known is None else known(at)


def _subjects(at: "Session", ctx: click.Context, typed: str) -> Words:
    """Offer ids and nouns first, then the names of things that the noun stands for."""
    if before := ctx.params.get("words"):
        known = _NAMES.get(f"{before[-1]}s")
        return _ids(at, ctx, typed) if known is None else known(at)
    named = ["queues"] if _group(ctx) == "at" else _NAMES
    nouns = [(each.removesuffix("s"), "by its name") for each in named]
    begun = typed and any(noun.startswith(typed) for noun, _ in nouns)
    return nouns if begun else [*nouns, *_ids(at, ctx, typed)]


def _kinds(at: "Session", ctx: click.Context, _: str) -> Words:
    """Offer the kinds of the app that was typed before, else those of the newest jobs."""
    if (target := ctx.params.get("target")) is not None:
        from milepost.cli.values import kinds, load_app

        return ((name, "") for name in kinds(load_app(target)))
    return ((kind, "") for kind in sorted({job.kind for job in at.jobs.list(limit=RECENT)}))


ids = _completion(_ids)
queues = _completion(_queues)
kinds = _completion(_kinds)
names = _completion(_names)
subjects = _completion(_subjects)
