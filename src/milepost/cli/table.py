"""Tables on a terminal: where room is short dates of today are left out and long cells folded."""

from collections.abc import Sequence
from datetime import UTC, date, datetime

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDE, CLOSE = 3, 1
"""How far columns stand apart; close to each other where there is little room."""
NARROWEST = 6
WHOLE = ("id", "attempt", "fence", "seq", "version", "at")
"""An id is there to be copied, and a number or a time that is broken cannot be read."""


def draw(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Draw a table as wide as the terminal, or as wide as it must be."""
    room, gap = Console().width, WIDE
    heads: Sequence[str] = columns
    widths: Sequence[int] = _natural(columns, rows)
    if _total(widths, gap) > room:
        gap = CLOSE
        rows = [[_without_today(cell) for cell in row] for row in rows]
        heads = [name.removesuffix("_at") for name in columns]
        widths = _folded(columns, _natural(heads, rows), room)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap // 2))
    for name, head, width in zip(columns, heads, widths, strict=True):
        table.add_column(head, overflow="fold", width=width, no_wrap=_stays_whole(name))
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=max(room, _total(widths, gap))).print(table)


def _natural(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, (name, *cells))) for name, *cells in zip(columns, *rows, strict=True)]


def _total(widths: Sequence[int], gap: int) -> int:
    return sum(widths) + gap * (len(widths) - 1)


def _folded(columns: Sequence[str], natural: Sequence[int], room: int) -> Sequence[int]:
    """Take from the widest that may be folded, one by one, until all fit.

    On a terminal that is too narrow even then nothing is folded, and the terminal wraps the lines.
    """
    widths = list(natural)
    may_fold = [place for place, name in enumerate(columns) if not _stays_whole(name)]
    while _total(widths, CLOSE) > room:
        widest = max(may_fold, key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= NARROWEST:
            return natural
        widths[widest] -= 1
    return widths


def _stays_whole(name: str) -> bool:
    return name in WHOLE or name.endswith(("state", "_at"))


def _without_today(cell: str) -> str:
    """Leave the date out of an instant of today."""
    return cell.removeprefix(f"{today()} ") if cell.endswith("Z") else cell


def today() -> date:
    """Read the date, in UTC."""
    return datetime.now(UTC).date()
