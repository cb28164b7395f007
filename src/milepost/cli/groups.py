"""Groups of commands that import late, and suggest names for a mistyped one."""

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def did_you_mean(word: str, known: Iterable[str], *, ending: str = "") -> str:
    """Say which of the known words it is close to, or nothing; all of them end so."""
    from difflib import get_close_matches

    close = get_close_matches(word, list(known), n=3)
    return f" Did you mean {' or '.join(name + ending for name in close)}?" if close else ""


class HelpfulGroup(click.Group):
    """A group that suggests commands for a mistyped one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which ones have a name like it."""
        word = args[0]
        known = self.list_commands(ctx)
        if word not in known and not word.startswith("-") and not ctx.resilient_parsing:
            guess = did_you_mean(word, known) or f" Try '{ctx.command_path} --help'."
            raise click.UsageError(f"No such command {word!r}.{guess}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(HelpfulGroup):
    """Imports a command when it runs: `--help` and completion read only the table of them."""

    table: Mapping[str, tuple[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name every command."""
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one command."""
        if cmd_name not in self.table:
            return None
        command: click.Command = getattr(import_module(self.table[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Offer the commands without importing them, then the options."""
        from click.shell_completion import CompletionItem

        named = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        offered = [CompletionItem(name, help=self.table[name][1]) for name in named]
        return [*offered, *click.Command.shell_complete(self, ctx, incomplete)]
