"""A failed attempt as people read it: its traceback, the place where it failed, its fingerprint.

A file is told by its module, so that two machines tell it alike. The fingerprint leaves out the
line, which moves with every edit.
"""

import hashlib
import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import msgspec

from milepost.outcome import Problem
from milepost.policy import MESSAGE_LIMIT, storable

TEXT_LIMIT = 8_000
SAID_LIMIT = 2_000
"""How much of what one exception says stands in a traceback; its message is stored next to it."""
FRAMES = 40
"""How many frames of one exception are shown, the last ones; folded ones do not count."""
CHAIN = 20
"""How many exceptions of a chain, or a group, are looked at."""
ENGINE = "milepost"
CUT = "  … (its beginning was left out)\n"
HIDDEN = "[redacted]"
_OWN = f"{os.path.dirname(__file__)}/"  # noqa: PTH120 - as the interpreter writes it
_DUMPED = ("Current thread ", "Stack ")
_DUMP_LINE = re.compile(r'  File "(.*)", line ([0-9]+) in (.*)')
_LIBRARIES = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))
_NAMES = "(?:passw|pwd|secret|token|api_?-?key|access_?-?key|private_?-?key|credential)"
_SECRET_NAME = re.compile(f"(?i){_NAMES}")
_SECRETS = re.compile(
    rf"""(?ix)
    (?P<url>://[^/\s:@]*:)[^/\s@]+(?=@)
    | (?!(?<=\{{)secret:[\w.-]{{1,200}}\}})  # the name of a secret is none
      (?P<name>{_NAMES}[\w-]{{0,64}}["']?\s{{0,8}}[=:]\s{{0,8}}["']?)
      (?!{re.escape(HIDDEN)}) (?:[^\s"',;&)}}\]]+)
    | (?P<scheme>\b(?:bearer|basic)\s+) [\w.~+/=-]{{8,}}
    """
)


class Place(msgspec.Struct, frozen=True):
    """Where it failed: the innermost frame of the user's own code, if there is any."""

    file: str
    function: str
    line: int
    source: str = ""


def located(problem: Problem, error: BaseException) -> Problem:
    """Add an error's traceback, place and fingerprint; one without a text says its line."""
    try:
        place = _place(error)
        text = _text(error)
    except Exception:  # noqa: BLE001 - an error that cannot be shown fails its job, not us
        return problem
    told = hidden(problem.message) or storable(place.source if place else "")[:MESSAGE_LIMIT]
    more = {"message": told, "traceback": storable(text)}
    if place is not None:
        more["place"] = storable(f"{place.file}:{place.line} in {place.function}")
        more["fingerprint"] = _digest(problem.type, problem.code, place)
    return msgspec.structs.replace(problem, **more)


def located_by_dump(problem: Problem, dump: str) -> Problem:
    """Add the stack that an interpreter wrote which was killed or crashed, and its place."""
    blocks = [block for block in dump.split("\n\n") if block.startswith(_DUMPED)]
    if not blocks:
        return problem
    found = [line.groups() for line in _DUMP_LINE.finditer(blocks[-1])]
    found = [line for line in reversed(found) if not line[0].startswith((_OWN, "<"))]
    if not found:
        return problem
    frames = [
        traceback.FrameSummary(_from_path(file), int(line), function, line=_source(file, line))
        for file, line, function in found[-FRAMES:]
    ]
    ranks = [(_rank("", file), at) for at, (file, _, _) in enumerate(found[-FRAMES:])]
    last = frames[max(ranks)[1]]
    place = f"{last.filename}:{last.lineno} in {last.name}"
    stack = _FoldedStack(frames).format()
    shown = "".join(["Traceback (most recent call last):\n", *stack])
    text = f"{shown}{problem.type}: {_short(problem.message)}\n"
    return msgspec.structs.replace(problem, traceback=storable(text), place=storable(place))


def _from_path(file: str) -> str:
    """Tell a file by the folder that its module was imported from."""
    folders = [folder for folder in sys.path if folder and file.startswith(f"{folder}/")]
    return file[len(max(folders, key=len)) + 1 :] if folders else file.rpartition("/")[2]


def _source(file: str, line: str) -> str:
    return linecache.getline(file, int(line)).strip()


def fingerprint(problem: Problem, *, kind: str) -> str:
    """Say which errors are the same error; without a frame it is one of its kind of job."""
    return problem.fingerprint or f"{problem.type}@{kind}"


def hidden(text: str) -> str:
    """Hide values that stand under the name of a secret, and passwords in addresses."""
    return _SECRETS.sub(lambda found: f"{found[found.lastgroup or 0]}{HIDDEN}", text)


def hidden_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Hide the values of fields that are named like secrets, and the secrets in the others."""
    return {name: _hidden_value(name, value) for name, value in fields.items()}


def _hidden_value(name: str, value: Any) -> Any:
    if _SECRET_NAME.search(name):
        return HIDDEN
    if value is None or isinstance(value, int | float):
        return value
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - it says nothing that could be hidden
        return value
    shown = hidden(text)
    return value if shown == text else shown


def _digest(type_: str, code: str | None, place: Place) -> str:
    words = "\0".join((type_, code or "", place.file, place.function))
    return hashlib.sha256(words.encode(errors="backslashreplace")).hexdigest()[:12]


# Frames


def _place(error: BaseException) -> Place | None:
    """Find the innermost frame of the user's; else the innermost that is not the engine's."""
    if isinstance(error, BaseExceptionGroup) and error.exceptions:
        return _place(error.exceptions[0]) or _innermost(error.__traceback__)
    return _innermost(error.__traceback__)


def _innermost(trace: TracebackType | None) -> Place | None:
    best, found = -1, None
    for frame, number in traceback.walk_tb(trace):
        code = frame.f_code
        file = relative(code.co_filename, frame.f_globals.get("__name__"))
        if (rank := _rank(file, code.co_filename)) >= best:
            best, found = rank, (code, file, number)
    if found is None:
        return None
    code, file, number = found
    source = traceback.FrameSummary(code.co_filename, number, code.co_name).line or ""
    return Place(file, getattr(code, "co_qualname", code.co_name), number, source.strip())


def relative(path: str, module: object) -> str:
    """Tell a file by its module, alike on every machine: `shop/tasks.py`."""
    parts = path.replace("\\", "/").rsplit("/")
    if isinstance(module, str) and module != "__main__":
        depth = module.count(".") + (2 if parts[-1] == "__init__.py" else 1)
        tail = "/".join(parts[-depth:])
        if tail.removesuffix(".py").removesuffix("/__init__").replace("/", ".") == module:
            return tail
    return parts[-1]


def _rank(file: str, path: str) -> int:
    """Rank a frame: the engine's 0, a library's 1, the user's own 2."""
    if file.startswith((f"{ENGINE}/demo/", f"{ENGINE}/testing/")):
        return 2
    if file.startswith(f"{ENGINE}/"):
        return 0
    return 1 if path.startswith("<frozen") or any(part in path for part in _LIBRARIES) else 2


# Text


class _FoldedStack(traceback.StackSummary):
    """A stack that shows a run of the engine's frames as one line."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary) -> str:
        if frame_summary.name == "":
            return f"  … {frame_summary.filename}\n"
        return super().format_frame_summary(frame_summary)


def _text(error: BaseException) -> str:
    shown = traceback.TracebackException.from_exception(error, compact=True)
    modules: dict[str, object] = {}
    for one in _chain(error):
        modules.update(
            (frame.f_code.co_filename, frame.f_globals.get("__name__"))
            for frame, _ in traceback.walk_tb(one.__traceback__)
        )
    for part in _parts(shown):
        part.stack = _folded(part.stack, modules)
        _quieten(part)
    text = "".join(shown.format())
    if len(text) <= TEXT_LIMIT:
        return text
    return CUT + text[len(CUT) - TEXT_LIMIT :].partition("\n")[2]


def _folded(stack: traceback.StackSummary, modules: Mapping[str, object]) -> traceback.StackSummary:
    frames: list[traceback.FrameSummary] = []
    skipped = 0

    def fold() -> None:
        nonlocal skipped
        if skipped:
            told = f"{skipped} frame{'s' if skipped > 1 else ''} of {ENGINE}"
            frames.append(traceback.FrameSummary(told, 0, "", line=""))
        skipped = 0

    for number, frame in enumerate(stack, start=1):
        file = relative(frame.filename, modules.get(frame.filename))
        # The last one says where it happened, even if that is in the engine.
        if _rank(file, frame.filename) == 0 and number < len(stack):
            skipped += 1
            continue
        fold()
        frames.append(traceback.FrameSummary(file, frame.lineno, frame.name, line=frame.line or ""))
    if (more := len(frames) - FRAMES) > 0:
        told = f"{more} more frames"
        frames[:more] = [traceback.FrameSummary(told, 0, "", line="")]
    return _FoldedStack(frames)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Walk an exception, those that led to it, and those that it groups."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < CHAIN:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        inner = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        waiting += [other for other in (one.__cause__, one.__context__, *inner) if other]


def _parts(shown: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    waiting = [shown]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += [other for other in (one.__cause__, one.__context__) if other]
        waiting += one.exceptions or []


def _quieten(part: traceback.TracebackException) -> None:
    """Hide secrets in the texts of one exception, and bound them: its frames must have room."""
    # Once they are formatted, those of a group are indented line by line, and not found any more.
    part._str = _short(part._str)  # type: ignore[attr-defined]  # noqa: SLF001 - nothing else sets it
    if part.__notes__:
        part.__notes__ = [_short(str(note)) for note in part.__notes__]


def _short(said: str) -> str:
    # All of a large one would keep the interpreter's lock for seconds.
    told = hidden(said[: 2 * SAID_LIMIT])
    shown = told[:SAID_LIMIT]
    more = len(told) - len(shown) + len(said[2 * SAID_LIMIT :])
    return f"{shown}… ({more:,} more characters)" if more > 0 else shown
