"""The specifications taken apart, row by row, and the tests that a page of the docs names."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPECS = {path.name[0]: path for path in sorted((ROOT / "docs" / "specs").glob("[A-E]-*.md"))}

_BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
_STATE_EDGE = re.compile(r"^(?P<source>\S+)\s*-->\s*(?P<target>[^\s:]+)\s*(?::\s*(?P<when>.*))?$")
_FLOW_EDGE = re.compile(
    r"^(?P<source>\w+)\s*-->\s*(?:\|\s*(?P<when>.*?)\s*\|)?\s*(?P<target>\w+)(?:\{.*\})?$"
)
_MESSAGE = re.compile(r"^(\w+)->>\+?-?(\w+): (.*)$")
_STATE = re.compile(r'^state (?:"[^"]+" as )?(\w+)')
_BULLET = re.compile(r"^( *)(?:[-*]|\d+\.) +(.*)$")


@dataclass(frozen=True)
class Row:
    """One thing that a specification says, under the heading where it says so."""

    spec: str
    heading: str
    text: str


@cache
def rows(spec: str) -> tuple[Row, ...]:
    """Read every row of a specification, in its order."""
    text = SPECS[spec].read_text(encoding="utf-8")
    found = [Row(spec, heading, _plain(line)) for heading, line in _said(text)]
    return tuple(dict.fromkeys(row for row in found if row.text))


def queries(spec: str) -> dict[str, str]:
    """Read every query of a specification literally, by the comment above it."""
    text = SPECS[spec].read_text(encoding="utf-8")
    blocks = "\n".join(body for language, body in _BLOCK.findall(text) if language == "sql")
    return dict(re.findall(r"^-- ([^\n]+)\n(SELECT\n.*?;)$", blocks, re.DOTALL | re.MULTILINE))


def _plain(text: str) -> str:
    """Write it so that it fits into a cell of a table."""
    words = re.sub(r"\*\*|`|\*(?=Any)|(?<=Any)\*", "", text).replace("\\n", " ")
    return " ".join(words.replace("|", "/").split())


def _said(text: str) -> Iterator[tuple[str, str]]:
    heading = ""
    for part in re.split(r"(^```.*?^```$|^#+ [^\n]*$)", text, flags=re.DOTALL | re.MULTILINE):
        if part.startswith("#"):
            heading = part.lstrip("# ").replace("`", "")
        elif block := _BLOCK.match(part):
            language, body = block.groups()
            title = re.search(r"^title: (.*)$", body, re.MULTILINE)
            heading = title[1] if title else heading
            yield from ((heading, line) for line in _BLOCKS.get(language, _sketch)(body))
        else:
            yield from ((heading, line) for line in _prose(part))


def _prose(text: str) -> Iterator[str]:
    """Read the rows of tables, the innermost bullets with those above them, and paragraphs."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.strip("\n").splitlines()
        if any(line.startswith("|") for line in lines):
            yield from (_cells(line) for line in lines[2:])
        else:
            yield from _bullets(lines)


def _cells(line: str) -> str:
    return " · ".join(cell.strip() for cell in line.strip("|").split("|"))


def _bullets(lines: list[str]) -> Iterator[str]:
    above: list[tuple[int, str]] = []
    for at, line in enumerate(items := list(_joined(lines))):
        bullet = _BULLET.match(line)
        depth, said = (len(bullet[1]), bullet[2]) if bullet else (0, line)
        above = [(d, text) for d, text in above if d < depth]
        inner = _BULLET.match(items[at + 1]) if at + 1 < len(items) else None
        if bullet and inner and len(inner[1]) > depth:
            above.append((depth, said))
        elif bullet or _tells(said):
            yield " ".join([*(text for _, text in above), said])


def _joined(lines: list[str]) -> Iterator[str]:
    """Put a line that goes on where the one before ended."""
    whole = ""
    for line in lines:
        if whole and not _BULLET.match(line):
            whole += " " + line.strip()
        else:
            if whole:
                yield whole
            whole = line
    if whole:
        yield whole


def _tells(paragraph: str) -> bool:
    return len(paragraph) > 50 and not paragraph.rstrip("*").endswith(":")


def _mermaid(body: str) -> Iterator[str]:
    """Read the edges, states, messages and notes of a diagram, and its comments in sentences."""
    note = ""
    states: list[str] = []
    for number, raw in enumerate(body.splitlines()):
        line = raw.strip()
        if begin := re.match(r"note (?:left|right) of (\w+)", line):
            note = begin[1]
        elif line == "end note":
            note = ""
        elif note and line.strip("{}") and not line.endswith(":"):
            yield f"note on {note}: {line.removeprefix('- ')}"
        elif sent := _MESSAGE.match(line):
            yield f"step {number}: {sent[1]} to {sent[2]}: {sent[3]}"
        elif edge := _FLOW_EDGE.match(line) or _STATE_EDGE.match(line):
            states += [edge["source"], edge["target"]]
            yield f"{edge['source']} → {edge['target']}: {edge['when'] or ''}".rstrip(": ")
        elif state := _STATE.match(line):
            states.append(state[1])
        elif line.startswith("%%") and line.endswith("."):
            yield line.lstrip("% ")
    yield from (f"state {state}" for state in dict.fromkeys(states) if state != "[*]")


def _sql(body: str) -> Iterator[str]:
    """Read each column of a table, and each statement by its comment and first words."""
    for statement in filter(str.strip, body.split(";\n")):
        lines = [line.strip() for line in statement.strip().splitlines()]
        if table := re.match(r"CREATE TABLE (\w+)", lines[0]):
            yield from (f"{table[1]}: {line}" for line in lines[1:] if line not in (")", ");"))
        else:
            first = [line for line in lines if not line.startswith("--")][:2]
            yield " ".join([*(line for line in lines if line.startswith("--")), *first])


def _code(body: str) -> Iterator[str]:
    yield "code: " + next(line for line in body.splitlines() if not line.startswith("//"))
    yield from (line.strip() for line in body.splitlines() if line.strip().startswith("//"))


def _sketch(body: str) -> Iterator[str]:
    """Read a table drawn with strokes line by line, a picture as one, the rest by paragraphs."""
    lines = [line for line in body.splitlines() if line.strip()]
    if "┌" in body:
        yield "the picture"
    elif all("|" in line for line in lines):
        yield from (_cells(line) for line in lines[2:])
    else:
        yield from re.sub(r"\n +", " ", "\n".join(lines)).splitlines()


_BLOCKS = {"mermaid": _mermaid, "sql": _sql, "typescript": _code}


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Name every test that a file defines."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return frozenset(node.name for node in nodes if isinstance(node, functions))
