"""The `milepost` command. Each group of commands lives in a file of its own, loaded when used."""

import sys
from importlib import import_module
from typing import Any

import click

from milepost.errors import IllegalMove, Invalid, MilepostError, NotFound, Unavailable

__all__ = ["main"]

COMMANDS = {
    "demo": ("milepost.cli.demo", "Set up a store, walk its machines, try to cheat, verify."),
    "machine": ("milepost.cli.machine", "Show a lifecycle as a diagram and a table."),
    "migrate": ("milepost.cli.migrate", "Bring a store's schema to this version."),
    "worker": ("milepost.cli.worker", "Run a worker, or several under a supervisor."),
    "verify": ("milepost.cli.verify", "Fold the journal and compare it with the live rows."),
}

EXIT_CODES: tuple[tuple[type[MilepostError], int], ...] = (
    (Invalid, 2),
    (NotFound, 4),
    (IllegalMove, 5),
    (Unavailable, 75),
)


class LazyGroup(click.Group):
    """Imports a command when it runs: `--help` reads only the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Name every command."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup,
    epilog="Exit codes: 0 done, 1 failed, 2 usage, 3 the job awaited ended FAILED or CANCELLED, "
    "4 not found, 5 refused, 75 store unreachable, 124 timed out.",
)
@click.version_option(package_name="milepost")
def cli() -> None:
    """Durable jobs: every job passes its mileposts in order, once, on the record."""


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; our own errors become a line on stderr and a documented exit code."""
    try:
        return cli.main(args=arguments, prog_name="milepost")
    except MilepostError as error:
        click.echo(f"milepost: {error}", err=True)
        sys.exit(next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1))
