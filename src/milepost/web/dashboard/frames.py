"""A traceback as people read it: own frames open, the innermost marked, those of others folded."""

import re
import sys
from functools import cache
from importlib.metadata import packages_distributions

import msgspec

OPEN = 4
"""How many own frames are open; outer ones are folded, so that the innermost is in sight."""
_FRAME = re.compile(
    r'^(?P<indent>[\s|+]*)File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)$'
)
_FOLDED = re.compile(r"^[\s|]*… (?P<told>.*)$")


class Frame(msgspec.Struct):
    """A frame, or a line that is none (`file` is empty)."""

    text: str = ""
    """A line between frames: what was raised, what it was caused by, what was left out."""
    file: str = ""
    line: int = 0
    name: str = ""
    source: str = ""
    own: bool = False
    innermost: bool = False


class Block(msgspec.Struct, frozen=True):
    """Frames next to each other that are shown alike: folded ones under a summary."""

    frames: tuple[Frame, ...]
    folded: str = ""


def blocks(traceback: str, place: str | None) -> list[Block]:
    """Read a stored traceback; `place` names the innermost frame of the user's own code."""
    frames = _frames(traceback, place)
    # A place names a method with its class, a traceback without it.
    marked = [
        frame
        for frame in frames
        if place and frame.file and place.startswith(f"{frame.file}:{frame.line} in ")
    ]
    if marked:
        marked[-1].innermost = True
    own = [frame for frame in frames if frame.own]
    last = own.index(marked[-1]) if marked and marked[-1] in own else len(own) - 1
    outer = own[: max(0, last + 1 - OPEN)]
    found: list[Block] = []
    group: list[Frame] = []
    for frame in frames:
        if frame.file and (not frame.own or any(frame is one for one in outer)):
            group.append(frame)
            continue
        _fold(group, found)
        found.append(Block((frame,)))
    _fold(group, found)
    return found


def _fold(group: list[Frame], found: list[Block]) -> None:
    if group:
        own = all(frame.own for frame in group)
        packages = "outer" if own else ", ".join(dict.fromkeys(_top(one.file) for one in group))
        count = f"{len(group)} frame{'s' if len(group) > 1 else ''}"
        told = f"{count} further out" if own else f"{count} of {packages}"
        first = f"{_placed(group[-1])} … {told}" if len(group) > 1 else _placed(group[0])
        found.append(Block(tuple(group), first))
        group.clear()


def _placed(frame: Frame) -> str:
    return f"{frame.file}:{frame.line} in {frame.name}"


def _frames(traceback: str, place: str | None) -> list[Frame]:
    home = _top(place.partition(":")[0]) if place else None
    found: list[Frame] = []
    for line in traceback.splitlines():
        frame = _FRAME.match(line)
        if frame:
            file = frame["file"]
            own = _top(file) == home or not _is_library(file)
            found.append(Frame("", file, int(frame["line"]), frame["name"], own=own))
        elif found and found[-1].file and line.startswith("    ") and _is_source(line):
            found[-1].source = f"{found[-1].source}\n{line.strip()}".strip()
        elif line.strip() and not line.startswith("Traceback (most recent"):
            folded = _FOLDED.match(line)
            found.append(Frame(f"… {folded['told']}" if folded else line))
    return found


def _is_source(line: str) -> bool:
    return not set(line.strip()) <= set("^~ |")


def _top(file: str) -> str:
    """Name the package of a file: `shop/tasks.py` is of shop."""
    return file.partition("/")[0].removesuffix(".py")


def _is_library(file: str) -> bool:
    top = _top(file)
    return top.startswith("<") or top in sys.stdlib_module_names or top in _installed()


@cache
def _installed() -> frozenset[str]:
    """Name the packages that are installed here: a server has most of those that workers have."""
    return frozenset(packages_distributions())
