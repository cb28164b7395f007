"""Writes the page on the public names, from their signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, get_overloads, get_type_hints

import msgspec

import milepost
from milepost import config, testing
from milepost.app import App
from milepost.batch.declaration import Batch, Collect, FailFast, Tolerate
from milepost.batch.handles import RunHandle, Runs, StepState
from milepost.config import OPENS, RULED, Settings, variable
from milepost.context import Context
from milepost.encrypt import EncryptingCodec
from milepost.errors import MilepostError
from milepost.handles import JobHandle, Jobs
from milepost.history import Entry
from milepost.hooks import HookEvent
from milepost.ingest.declaration import Declaration
from milepost.ingest.handles import PartitionState, PipelineRun, Quarantine, Removals
from milepost.ingest.pipeline import Pipeline
from milepost.ingest.source import Gone, OffsetSource, Page, Partition, Reject, Source, Window
from milepost.job import Job
from milepost.limit import Limit
from milepost.options import JobOptions, SubmitOptions, rules
from milepost.policy import Cancelled, Fail, Later
from milepost.queues import Queues
from milepost.records import JobError, Queue, RunError, Worker
from milepost.relay.broker import Broker, Delivery, Incoming, Outgoing
from milepost.relay.nats import Nats
from milepost.relay.pull import Channels
from milepost.request.batch import RequestBatch, Response
from milepost.request.declaration import Poll, Reply
from milepost.schedules import Schedules
from milepost.store.explain import Explanation
from milepost.store.pages import Counts
from milepost.store.schedules import Schedule
from milepost.workers import Workers
from tools.options_reference import meanings, options_section, pipeline_section

__all__ = ["api_page", "told"]

INTRODUCTION = """\
# The public names

This page is written by `make docs` from the code; change the docstrings, not this.

`import milepost as mp` gives the names below that are marked with `mp.`, to call and to annotate;
an arrow says where such a thing comes from. A call marked with *async* has a twin with the suffix
`_async` that takes the same arguments and is awaited. Whatever is not on this page may
change with any release.
"""

SECTIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "Declaring and running": (
        ("mp.App", App),
        ("@app.job → mp.Job", Job),
        ("mp.Limit", Limit),
    ),
    "Looking at jobs": (
        ("mp.JobHandle", JobHandle),
        ("job.error → mp.JobError", JobError),
        ("job.history → mp.Entry", Entry),
        ("job.explain() → mp.Explanation", Explanation),
        ("app.jobs", Jobs),
    ),
    "Inside a handler": (("mp.Context", Context),),
    "Batches": (
        ("app.batch → mp.Batch", Batch),
        ("mp.RunHandle", RunHandle),
        ("run.steps → mp.StepState", StepState),
        ("run.errors → mp.RunError", RunError),
        ("app.runs", Runs),
        *((f"mp.{policy.__name__}", policy) for policy in (FailFast, Collect, Tolerate)),
    ),
    "Pipelines": (
        ("app.pipeline → mp.Pipeline", Pipeline),
        *(
            (f"mp.{class_.__name__}", class_)
            for class_ in (Source, OffsetSource, Window, Partition, Page)
        ),
        ("pipeline.start → mp.PipelineRun", PipelineRun),
        ("run.counts → mp.Counts", Counts),
        ("run.partitions → mp.PartitionState", PartitionState),
        ("pipeline.quarantine", Quarantine),
        ("pipeline.removals", Removals),
        *((f"mp.{class_.__name__}", class_) for class_ in (Reject, Gone)),
    ),
    "Requests": (
        ("mp.Reply", Reply),
        ("mp.Poll", Poll),
        ("app.request_batch → mp.RequestBatch", RequestBatch),
        ("batch.responses() → mp.Response", Response),
    ),
    "Telemetry": (("@app.hook → mp.HookEvent", HookEvent),),
    "Encryption": (("mp.EncryptingCodec", EncryptingCodec),),
    "Queues, workers, schedules": (
        ("app.queues", Queues),
        ("app.queues.list() → mp.Queue", Queue),
        ("app.workers", Workers),
        ("app.workers.list() → mp.Worker", Worker),
        ("app.schedules", Schedules),
        ("app.schedules.list() → mp.Schedule", Schedule),
    ),
    "Final messages": (
        ("app.channels", Channels),
        ("milepost.relay.nats.Nats", Nats),
        *((f"mp.{class_.__name__}", class_) for class_ in (Broker, Outgoing, Incoming, Delivery)),
    ),
    "What a handler can raise": tuple((f"mp.{k.__name__}", k) for k in (Fail, Later, Cancelled)),
}
TOLD_APART = (MilepostError, Enum)
GIVEN = {Context, HookEvent, JobHandle, RunHandle, Broker, Delivery}
"""Classes that nobody calls: they are handed out, or implemented."""
HIDDEN = {
    App: {"client", "registry", "settings", "define", "receivers", "worker"},
    Job: {"scheduled", "belongs_to"},
    JobHandle: {"read", "record"},
    Context: {"ask_to_stop", "has_news", "news", "take_news", "tell", "usage", "claim", "reason"},
    Batch: {"client", "fill", "named", "output", "parameters", "plan", "report_type"},
    Entry: {"with_attempt"},
    Limit: {"pace", "room"},
    HookEvent: {"of"},
    RunHandle: {"picture", "read", "record"},
    Pipeline: {"row", "starting", *vars(Declaration)},
    PipelineRun: {"about", "add", "picture", "read", "record", "refill_async", "submit"},
    Nats: {"publish", "receive", "address"},
}
"""What the engine's own parts call on each other."""


def api_page() -> str:
    """Write every public name with its signature and the promise of its docstring."""
    found = {title: _section(title, entries) for title, entries in _sections().items()}
    found["Pipelines"] += f"\n{pipeline_section()}"
    sections = list(found.values())
    sections.insert(1, options_section())
    rest = [_functions(), _errors(), _states(), _settings(), _testing()]
    return "\n".join([INTRODUCTION, *sections, *rest])


def told() -> set[str]:
    """Name what the page tells of `mp.`: a test compares it with what there is."""
    return set(re.findall(r"(?:`|→ )mp\.(\w+)", api_page()))


def _sections() -> dict[str, tuple[tuple[str, Any], ...]]:
    """Give what has no section yet one of its own."""
    named = {class_ for entries in SECTIONS.values() for _, class_ in entries}
    found = [getattr(milepost, name) for name in milepost.__all__]
    more = [
        (f"mp.{class_.__name__}", class_)
        for class_ in found
        if inspect.isclass(class_) and class_ not in named and not issubclass(class_, TOLD_APART)
    ]
    return SECTIONS | ({"More": tuple(more)} if more else {})


def _section(title: str, entries: tuple[tuple[str, Any], ...]) -> str:
    parts = [f"## {title}"]
    for name, class_ in entries:
        parts += [f"### `{name}`", inspect.getdoc(class_) or ""]
        if name.startswith(("mp.", "milepost.")) and class_ not in GIVEN:
            parts.append(_code(f"{name}{_signature(class_)}"))
        elif names := _fields(class_):
            parts.append(f"Fields: {', '.join(f'`{field}`' for field in names)}.")
        rows = [_row(member, value) for member, value in _members(class_)]
        if rows:
            parts.append("\n".join(["| member | is |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _fields(class_: type) -> list[str]:
    """Name the fields of a record, with their types."""
    if issubclass(class_, msgspec.Struct):
        hints = get_type_hints(class_)
        return [_typed(name, hints[name]) for name in class_.__struct_fields__]
    return [_typed(f.name, f.type) for f in fields(class_)] if is_dataclass(class_) else []


def _members(class_: type) -> Iterator[tuple[str, Any]]:
    """Walk through what is public, the twins of others left out."""
    if issubclass(class_, BaseException | msgspec.Struct):
        return
    hidden = HIDDEN.get(class_, set())
    twins = {f"{name}_async" for name in dir(class_)}
    for name, value in _declared(class_).items():
        is_told = callable(value) or isinstance(value, property)
        if is_told and not name.startswith("_") and name not in hidden | twins:
            yield name, (value, hasattr(class_, f"{name}_async"))


def _declared(class_: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for base in reversed(class_.__mro__[:-1]):
        found |= {k: v for k, v in vars(base).items() if base.__module__.startswith("milepost")}
    return found


def _row(name: str, member: tuple[Any, bool]) -> str:
    value, has_twin = member
    if isinstance(value, property):
        annotations = getattr(value.fget, "__annotations__", {})
        shown = _typed(name, annotations.get("return", inspect.Signature.empty))
    else:
        shown = f"{name}{_signature(_spoken(value))}"
    means = _sentence(value) + (" *async*" if has_twin else "")
    return f"| `{_cell(shown)}` | {_cell(means)} |"


def _spoken(value: Any) -> Any:
    """Choose the signature that says most: `job` and `step` take what a declaration takes."""
    if value in (App.job, Batch.step):
        return get_overloads(value)[-1]
    return value


def _one_by_one(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """Give the options that `app.job` and `job.options` take, each with its default."""
    place = getattr(parameter.annotation, "__args__", (None,))[0]
    if place not in (JobOptions, SubmitOptions):
        yield parameter
        return
    for name, rule in rules(place).items():
        default = rule.default if place is JobOptions else None
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)


def _signature(value: Any) -> str:
    """Spell a call with its types; a class is called by name, and so returns nothing to tell."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "()"
    kept = [
        shown
        for parameter in signature.parameters.values()
        if parameter.name != "self"
        for shown in _one_by_one(parameter)
    ]
    returned = signature.empty if inspect.isclass(value) else signature.return_annotation
    return _brief(str(signature.replace(parameters=kept, return_annotation=returned)))


def _typed(name: str, annotation: Any) -> str:
    """Spell a name with its type, where it is told."""
    if annotation is inspect.Signature.empty:
        return name
    spelled = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return f"{name}: {_brief(spelled)}"


def _brief(text: str) -> str:
    """Leave out the modules of types, and quotes around those that are named before they exist."""
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text).replace("NoneType", "None")
    text = re.sub(r"\bForwardRef\('([^']*)'\)", r"\1", text)
    text = re.sub(r"(: |-> |\[|, )'([A-Z][\w\[\], .|]*)'", r"\1\2", text)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Z~]|date|time)|~", "", text)


def _sentence(value: Any) -> str:
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    # Which hazard a promise answers is for whoever changes the code.
    return re.sub(r" \([HF]-?\d+(, [HF]-?\d+)*\)", "", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _code(text: str) -> str:
    return f"```text\n{text}\n```"


def _functions() -> str:
    rows = [
        f"| `mp.{name}{_cell(_signature(getattr(milepost, name)))}` | "
        f"{_cell(_sentence(getattr(milepost, name)))} |"
        for name in milepost.__all__
        if inspect.isfunction(getattr(milepost, name))
    ]
    return "\n".join(["## Functions\n", "| function | is |", "|---|---|", *rows, ""])


def _errors() -> str:
    found = [getattr(milepost, name) for name in milepost.__all__]
    errors = [e for e in found if inspect.isclass(e) and issubclass(e, MilepostError)]
    rows = [
        f"| `mp.{error.__name__}` | {_cell(_sentence(error))} | `{error.__bases__[0].__name__}` |"
        for error in errors
    ]
    head = ["## Errors\n", "| error | means | is a |", "|---|---|---|"]
    transient = ", ".join(f"`{error.__name__}`" for error in milepost.TRANSIENT)
    named = f"`mp.TRANSIENT`, for `retry_on=`, are the errors that may not come again: {transient}."
    return "\n".join([*head, *rows, "", named, ""])


def _states() -> str:
    states = [getattr(milepost, n) for n in milepost.__all__]
    rows = [
        f"* `mp.{kind.__name__}`: {', '.join(f'`{state.value}`' for state in kind)}"
        for kind in states
        if inspect.isclass(kind) and issubclass(kind, Enum)
    ]
    head = ["## States\n", "Every state and move is told in [the machines](machines.md).\n"]
    return "\n".join([*head, *rows, ""])


def _settings() -> str:
    meant = meanings(config)
    rows = [
        f"| `{field.name}` | `{variable(field.name)}` | {_default(field.default)} | "
        f"{_cell(meant[field.name])} |"
        for field in fields(Settings)
    ]
    told = (
        "Given to `mp.App` by name, else in the environment, else in the file that\n"
        "`MILEPOST_CONFIG` names, else in `milepost.toml` in the working folder. Durations are\n"
        "seconds, or have a unit: `30s`, `7d`. A file in the working folder cannot set\n"
        f"{', '.join(f'`{name}`' for name in sorted(RULED[OPENS]))}:\n"
        "whoever may write there would decide who is let in.\n"
    )
    head = ["## Settings\n", told, "| setting | variable | default | means |", "|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def _default(value: object) -> str:
    shown = f"{value:.10g}" if isinstance(value, int | float) else str(value)
    return f"`{shown}`" if shown else "none"


def _testing() -> str:
    head = ["## `mp.testing`\n", "How it is used: [testing](../how-to/testing.md).\n"]
    parts = []
    for name in testing.__all__:
        if name == "Context":  # told as `context`, which makes it
            continue
        value = getattr(testing, name)
        parts += [f"### `mp.testing.{name}{_signature(value)}`", inspect.getdoc(value) or ""]
    return "\n".join(head) + "\n" + "\n\n".join(parts) + "\n"
