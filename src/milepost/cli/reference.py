"""Writes what is generated from the machines: triggers in migrations, and the reference pages."""

import re
from pathlib import Path

from milepost.lifecycle import MACHINES
from milepost.machine import Machine
from milepost.specs import VIEWS
from milepost.store import enforce, views

MIGRATIONS = Path("src/milepost/sql/migrations")
PAGE = Path("docs/reference/machines.md")

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


def fresh(name: str, dialect: str) -> str:
    """Render one region: the specs' views, or the triggers of a machine."""
    return views.fresh(dialect) if name == "views" else enforce.fresh(name, dialect)


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


def main() -> None:
    """Rewrite every generated file in place."""
    for folder in sorted(MIGRATIONS.iterdir()):
        for name, path in newest(folder).items():
            path.write_text(rendered(path.read_text(), folder.name, {name}))
    PAGE.write_text(machines_page())


if __name__ == "__main__":
    main()
