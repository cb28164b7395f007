"""Writes what is generated from the machines: triggers in migrations, views, diagrams, pages."""

import re
from pathlib import Path

from milepost.store.enforce import fresh

MIGRATIONS = Path("src/milepost/sql/migrations")


def rendered(text: str, dialect: str) -> str:
    """Fill every rendered region of a migration with a fresh rendering."""

    def filled(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"-- begin rendered: {name}\n{fresh(name, dialect)}\n-- end rendered: {name}\n"

    return re.sub(
        r"-- begin rendered: (\w+)\n.*?-- end rendered: \1\n", filled, text, flags=re.DOTALL
    )


def main() -> None:
    """Rewrite every generated file in place."""
    for path in sorted(MIGRATIONS.glob("*/*.sql")):
        path.write_text(rendered(path.read_text(), path.parent.name))


if __name__ == "__main__":
    main()
