"""Tells options and settings: a table of each, and what an editor shows for `@app.job`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from milepost import options
from milepost.ingest import options as pipeline_options
from milepost.options import JobOptions, Rule, StepOptions, SubmitOptions, names, rules
from milepost.request.declaration import RequestOptions

__all__ = ["APP", "described", "meanings", "options_section", "pipeline_section"]

APP = Path("src/milepost/app.py")
REGION = re.compile(r"( +)Options:\n.*?(?=\n +\"\"\"\n)", flags=re.DOTALL)
PLACES: Mapping[str, type] = {
    "`@app.job`": JobOptions,
    "a batch's step": StepOptions,
    "`job.options`, API, message": SubmitOptions,
    "`app.request`": RequestOptions,
}
WIDTH = 100
HEAD = """\
## Options of a job

A declaration sets what a submit does not; a submit's options are for its jobs alone. `None` is the
same as leaving an option out, except that a declaration says `timeout=None` for no limit.

| option | default | is | taken by | means |
|---|---|---|---|---|
"""


def meanings(module: ModuleType) -> dict[str, str]:
    """Read the text under each annotated name in the classes of a module."""
    found = {}
    for class_ in ast.parse(inspect.getsource(module)).body:
        if isinstance(class_, ast.ClassDef):
            for said, text in zip(class_.body, class_.body[1:], strict=False):
                if isinstance(said, ast.AnnAssign) and isinstance(said.target, ast.Name):
                    found[said.target.id] = _text(text)
    return found


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def described(source: str) -> str:
    """Fill what the docstring of `app.job` says of its options; an editor reads nothing else."""
    told = meanings(options)

    def filled(match: re.Match[str]) -> str:
        indent = match.group(1)
        lines = [f"{indent}Options:"]
        for name in rules(JobOptions):
            lines += textwrap.wrap(
                f"* `{name}`: {told[name]}",
                WIDTH,
                initial_indent=indent,
                subsequent_indent=f"{indent}  ",
            )
        return "\n".join(lines)

    return REGION.sub(filled, source, count=1)


def options_section() -> str:
    """Write every option, its default, its bounds, who takes it and what it means."""
    told = meanings(options)
    known = {**rules(JobOptions), **rules(SubmitOptions)}
    return HEAD + "".join(_row(name, rule, told[name]) for name, rule in known.items())


def pipeline_section() -> str:
    """Write every option of a pipeline, its default, its bounds and what it means."""
    told = meanings(pipeline_options)
    lines = ["## Options of a pipeline\n\n| option | default | is | means |\n|---|---|---|---|\n"]
    for name, rule in rules(pipeline_options.PipelineOptions).items():
        default = "" if rule.default is None else f"`{rule.default!r}`"
        lines.append(f"| `{name}` | {default} | {_bounds(rule)} | {told[name]} |\n")
    return "".join(lines)


def _row(name: str, rule: Rule, means: str) -> str:
    places = ", ".join(place for place, taken in PLACES.items() if name in names(taken))
    default = "" if rule.default is None else f"`{rule.default!r}`"
    return f"| `{name}` | {default} | {_bounds(rule)} | {places} | {means} |\n"


def _bounds(rule: Any) -> str:
    kind = "" if type(rule) is Rule else type(rule).__name__.lower()
    bounds = rule.bounds
    told = [f"≥ {bounds['ge']}"] if "ge" in bounds else []
    told += [f"> {bounds['gt']}"] if "gt" in bounds else []
    told += [f"≤ {bounds['le']}"] if "le" in bounds else []
    return " ".join([kind, *told]).strip()
