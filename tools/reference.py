"""Writes what is generated: triggers in migrations, pages on machines, commands and names."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from milepost.cli import EXITS, cli
from milepost.lifecycle import MACHINES
from milepost.machine import Machine
from milepost.specs import VIEWS
from milepost.store.reasons import (
    ChannelReason,
    JobReason,
    LimitReason,
    PipelineReason,
    QueueReason,
    Reason,
    RunReason,
    ScheduleReason,
)
from milepost.web.api import describe
from tools import triggers, views
from tools.api_reference import api_page
from tools.options_reference import APP, described

MIGRATIONS = Path("src/milepost/sql/migrations")
PAGE = Path("docs/reference/machines.md")
COMMANDS_PAGE = Path("docs/reference/cli.md")
API_PAGE = Path("docs/reference/api.md")
REASONS_PAGE = Path("docs/reference/reasons.md")
OPENAPI = Path("docs/reference/openapi.json")

REGION = re.compile(r"-- begin rendered: (\w+)\n.*?-- end rendered: \1\n", flags=re.DOTALL)

SPECS = {
    "A": "gated batch jobs",
    "B": "a partitioned ingestion run",
    "C": "asynchronous requests",
    "D": "a strict job lifecycle",
    "E": "a worker loop",
}

INTRODUCTION = """\
# The machines

This page is written by `make docs` from `milepost.lifecycle` and `milepost.specs`; change those,
not this. The same declaration gives the triggers that make both databases refuse any other change
of state, and `milepost machine` prints it at a prompt.

Each machine also has the words that five specifications use for its states. A specification's
diagram shows what its reader can see: an edge is there when the engine can make it.
"""

REASONS_INTRODUCTION = """\
# The reasons of explain

This page is written by `make docs` from `milepost.store.reasons`; change that, not this.

`milepost explain`, `job.explain()`, `GET /v1/explain/{subject}/{name}` and the pages of the
dashboard say why something stands where it does: `reasons` are words for programs, the nearest
first, `details` the same in sentences, `ruled_out` what one might suspect and is not the cause,
and `next` what happens next.
"""

REASON_LISTS: Mapping[str, type[Reason]] = {
    "Jobs": JobReason,
    "Limits, of jobs and queues": LimitReason,
    "Runs": RunReason,
    "Queues": QueueReason,
    "Schedules": ScheduleReason,
    "Channels": ChannelReason,
    "Pipelines": PipelineReason,
}

COMMANDS_INTRODUCTION = """\
# The command line

This page is written by `make docs` from the commands themselves; change those, not this.

Data goes to stdout, messages to stderr. On a terminal data is a table; elsewhere it is lines with
tabs between, and with `--json` one JSON document. A command that only reads needs no app, and
never creates or changes a store. Jobs and runs are named by their id; an unambiguous prefix is
enough.

The store is `--store URL`, else `MILEPOST_DATABASE_URL`, `DATABASE_URL`, `database_url` in
`milepost.toml`, `./milepost.db`. An app is `MODULE:APP`, as in `app:app`, or a file, as in
`app.py`.

| exit code | means |
|---|---|
"""


def fresh(name: str, dialect: str) -> str:
    """Render one region: the specs' views, or the triggers of a machine."""
    return views.fresh(dialect) if name == "views" else triggers.fresh(name, dialect)


def rendered(text: str, dialect: str, names: set[str] | None = None) -> str:
    """Fill the rendered regions of a migration, or those named, with a fresh rendering."""

    def filled(match: re.Match[str]) -> str:
        name = match.group(1)
        if names is not None and name not in names:
            return match.group(0)
        return f"-- begin rendered: {name}\n{fresh(name, dialect)}\n-- end rendered: {name}\n"

    return REGION.sub(filled, text)


def newest(folder: Path) -> dict[str, Path]:
    """Find, for each rendered region, the last migration that holds it; older ones are history."""
    return {
        name: path
        for path in sorted(folder.glob("*.sql"))
        for name in REGION.findall(path.read_text())
    }


def machines_page() -> str:
    """Write every machine's diagram, moves and words as one Markdown page."""
    return "\n".join([INTRODUCTION, *(_section(machine) for machine in MACHINES.values())])


def _section(machine: Machine) -> str:
    final = [f"`{state.value}`" for state in machine.states if state.value in machine.terminal]
    parts = [
        f"## {machine.title}",
        _diagram(machine.mermaid()),
        machine.table(),
        f"Terminal states: {', '.join(final) or 'none; it goes round'}.",
    ]
    for spec, view in VIEWS[machine.name].items():
        title = f"### The {machine.name} machine in the words of {spec}, {SPECS[spec]}"
        parts += [title, view.table(), _diagram(view.mermaid())]
    return "\n\n".join(parts) + "\n"


def _diagram(mermaid: str) -> str:
    return f"```mermaid\n{mermaid}\n```"


def commands_page() -> str:
    """Write every command, its arguments and its options as one Markdown page."""
    codes = "".join(f"| {code} | {means} |\n" for code, means in EXITS.items())
    root = click.Context(cli, info_name="milepost")
    parts = [COMMANDS_INTRODUCTION + codes, *map(_described, _commands(root))]
    return "\n".join(parts)


def _commands(context: click.Context) -> Iterator[click.Context]:
    """Walk through the commands; a group is told by its members."""
    group = context.command
    if not isinstance(group, click.Group):
        yield context
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            yield from _commands(click.Context(command, info_name=name, parent=context))


def _described(context: click.Context) -> str:
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [
        f"## {context.command_path}",
        inspect.cleandoc(command.help or ""),
        f"```sh\n{usage}\n```",
    ]
    options = [
        parameter.get_help_record(context)
        for parameter in command.params
        if isinstance(parameter, click.Option)
    ]
    rows = [_row(*option) for option in options if option is not None]
    if rows:
        parts.append("\n".join(["| option | means |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _row(name: str, means: str) -> str:
    bar = "\\|"  # within a table even code must not hold a bare one
    return f"| `{name.replace('|', bar)}` | {means.replace('|', bar)} |"


def openapi() -> str:
    """Write what the HTTP API is, as OpenAPI 3.1."""
    return json.dumps(describe().openapi(), indent=2, ensure_ascii=False) + "\n"


def reasons_page() -> str:
    """Render the page on the reasons of `explain`."""
    lines = [REASONS_INTRODUCTION]
    for title, reasons in REASON_LISTS.items():
        lines += [
            f"## {title}",
            "",
            f"{inspect.getdoc(reasons)}",
            "",
            "| reason | means |",
            "|---|---|",
        ]
        lines += [f"| `{reason}` | {reason.meaning} |" for reason in reasons]
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Rewrite every generated file in place."""
    for folder in sorted(MIGRATIONS.iterdir()):
        for name, path in newest(folder).items():
            path.write_text(rendered(path.read_text(), folder.name, {name}))
    APP.write_text(described(APP.read_text()))
    PAGE.write_text(machines_page())
    COMMANDS_PAGE.write_text(commands_page())
    API_PAGE.write_text(api_page())
    REASONS_PAGE.write_text(reasons_page())
    OPENAPI.write_text(openapi())


if __name__ == "__main__":
    main()
