"""Measures of the house: `python -m tools.metrics`; with `--check` a figure over its limit fails.

How much code the wheel holds, how long its functions are, in how many files one option of a job
stands, and which files a submit passes on its way to the journal.
"""

import argparse
import ast
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles
from types import FrameType
from typing import Any

import msgspec

import milepost as mp

__all__ = ["LIMITS", "Figure", "function_lengths", "measured", "submit_path"]

PACKAGE = Path("src/milepost")
OPTION = "poison_limit"
MODULE_LINES = 500
LIMITS = {
    "lines": 31_000,
    "sql-files": 60,
    "function-p90": 16,
    "function-longest": 45,
    "long-modules": 0,
    "option-files": 12,
    "submit-files": 14,
}


class Figure(msgspec.Struct, frozen=True):
    """One measure, its limit, and the places it counts."""

    name: str
    means: str
    value: int
    limit: int
    places: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether it is more than it should be."""
        return self.value > self.limit

    def __str__(self) -> str:
        judged = "over" if self.is_over else "ok"
        return f"{self.name:<17} {self.value:>7,} {self.limit:>7,}  {judged:<4}  {self.means}"


def measured(root: Path, limits: dict[str, int]) -> list[Figure]:
    """Take every measure of the project in a folder."""
    package = root / PACKAGE
    modules = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    lines = {path: len(text.splitlines()) for path, text in modules.items()}
    queries = [p for p in package.rglob("*.sql") if "migrations" not in p.parts]
    functions = sorted(
        (length, f"{_short(path, package)}:{name}")
        for path, text in modules.items()
        for name, length in function_lengths(text)
    )
    long = [f"{_short(path, package)}: {n}" for path, n in lines.items() if n > MODULE_LINES]
    naming = [_short(path, package) for path in _naming(package, OPTION)]
    path = submit_path(package)
    taken: list[tuple[str, str, int, tuple[str, ...]]] = [
        ("lines", "physical lines of .py in the wheel", sum(lines.values()), ()),
        ("sql-files", "SQL files besides migrations", len(queries), ()),
        ("function-p90", "lines of a function, p90", round(_p90(functions)), ()),
        ("function-longest", "lines of the longest", functions[-1][0], (functions[-1][1],)),
        ("long-modules", f"modules over {MODULE_LINES} lines", len(long), tuple(long)),
        ("option-files", f"files that name {OPTION}", len(naming), tuple(naming)),
        ("submit-files", "files a submit passes to the journal", len(path), tuple(path)),
    ]
    return [Figure(name, means, value, limits[name], at) for name, means, value, at in taken]


def _short(path: Path, package: Path) -> str:
    return path.relative_to(package).as_posix()


def _p90(functions: list[tuple[int, str]]) -> float:
    return quantiles([length for length, _ in functions], n=10)[-1]


def _naming(package: Path, word: str) -> list[Path]:
    """Find the files that name a word, migrations left out."""
    files = [p for p in sorted(package.rglob("*")) if p.suffix in {".py", ".sql", ".md", ".html"}]
    return [p for p in files if "migrations" not in p.parts and word in p.read_text("utf-8")]


def function_lengths(source: str) -> Iterator[tuple[str, int]]:
    """Count the lines of each function, from `def` to its end, without its docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            said = _lines(first) if ast.get_docstring(node, clean=False) is not None else 0
            yield node.name, _lines(node) - said


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def submit_path(package: Path) -> list[str]:
    """List the files of a package that a submit on SQLite passes, in order of their first call.

    The one that is watched is the second: a first one opens the store.
    """
    seen: dict[str, None] = {}
    watching = threading.Event()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and watching.is_set():
            seen.setdefault(frame.f_code.co_filename)

    def submit_twice() -> None:
        app = mp.App("sqlite:///measured.db")
        job = app.job(name="measured")(_nothing)
        with mp.testing.fresh_store(app):
            job.submit()
            watching.set()
            job.submit()
            watching.clear()

    threading.setprofile(note)  # in every thread that begins from here on
    thread = threading.Thread(target=submit_twice)
    thread.start()
    thread.join()
    threading.setprofile(None)
    here = str(package.resolve())
    return [_short(Path(file), Path(here)) for file in seen if file.startswith(here)]


def _nothing() -> None: ...


def main() -> None:
    """Print every figure with its limit, and where it stands."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="fail if a figure is over its limit")
    parser.add_argument("--places", action="store_true", help="list the files that are counted")
    parser.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=N",
        help=f"another limit than {', '.join(f'{k}={v}' for k, v in LIMITS.items())}",
    )
    asked = parser.parse_args()
    given = dict(limit.split("=", 1) for limit in asked.limit)
    if unknown := given.keys() - LIMITS.keys():
        parser.error(f"no such figure: {', '.join(sorted(unknown))}")
    figures = measured(Path.cwd(), LIMITS | {name: int(value) for name, value in given.items()})
    for figure in figures:
        print(figure)
        if asked.places:
            print("".join(f"    {place}\n" for place in figure.places), end="")
    sys.exit(asked.check and any(figure.is_over for figure in figures))


if __name__ == "__main__":
    main()
