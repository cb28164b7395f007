"""`milepost completion`: the script that makes a shell complete our commands."""

import click

__all__ = ["completion"]

VARIABLE = "_MILEPOST_COMPLETE"
HOW = {
    "bash": 'eval "$(milepost completion bash)"',
    "zsh": 'eval "$(milepost completion zsh)"',
    "fish": "milepost completion fish | source",
}


@click.command(
    epilog="\b\nPut the line for your shell where it starts:\n"
    + "\n".join(f"  {line}" for line in HOW.values())
)
@click.argument("shell", type=click.Choice(list(HOW)))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    from click.shell_completion import get_completion_class

    from milepost.cli import cli

    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(script(cli, {}, "milepost", VARIABLE).source())
