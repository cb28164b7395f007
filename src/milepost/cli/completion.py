"""`milepost completion`: the script that makes a shell complete our commands."""

import click

VARIABLE = "_MILEPOST_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    Put `eval "$(milepost completion bash)"`, or the same with zsh, where your shell starts; for
    fish it is `milepost completion fish | source`.
    """
    from click.shell_completion import get_completion_class

    from milepost.cli import cli

    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"click has no completion for {shell}")
    click.echo(script(cli, {}, "milepost", VARIABLE).source())
