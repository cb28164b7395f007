"""A batch: steps in order, a reducer, hooks and a failure policy; starting runs of it.

Parameters are checked, all of them, before anything is stored.
"""

import inspect
import typing
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, TypeVar, Unpack, get_args, overload

import msgspec

from milepost.batch.handles import RunHandle
from milepost.batch.outputs import Inputs, RunArgument, StepOutlet
from milepost.client import Client, caller, new_id
from milepost.codec import check_text, encode_tags, from_builtin, limited, marks
from milepost.declare import Definition, Host
from milepost.errors import Invalid
from milepost.faces import Flow, faces
from milepost.lifecycle import JobState
from milepost.options import HandlerOptions, StepOptions, check, check_seconds
from milepost.outcome import Output, micros
from milepost.policy import POLL_SECONDS
from milepost.records import NewJob, NewRun, NewStep, Run, Template
from milepost.store import chains
from milepost.store.driver import Steps

F = TypeVar("F", bound=Callable[..., Any])
SLOTS = 16
"""Counters of a step: settlers of a large one do not queue for a single row."""


class FailFast(msgspec.Struct, frozen=True, tag=True):
    """The first failure stops the run: running jobs may end, the rest is cancelled."""


class Collect(msgspec.Struct, frozen=True, tag=True):
    """Everything is tried; then the run fails if anything failed."""


class Tolerate(msgspec.Struct, frozen=True, tag=True):
    """Everything is tried; the run goes on if at most this share of each step failed."""

    share: float

    def __post_init__(self) -> None:
        """Refuse a value that is no share."""
        if isinstance(self.share, bool) or not isinstance(self.share, int | float):
            raise Invalid(f"Tolerate({self.share!r}) takes a share, such as 0.05")
        if not 0 <= self.share <= 1:
            raise Invalid(f"Tolerate({self.share}) takes a share between 0 and 1")


FailurePolicy = FailFast | Collect | Tolerate


def check_failure_policy(policy: Any, *, what: str) -> None:
    """Refuse a value that is no failure policy; None stands for the default."""
    if policy is not None and not isinstance(policy, FailFast | Collect | Tolerate):
        raise Invalid(
            f"{what}: policy={policy!r} must be mp.FailFast(), mp.Collect() or mp.Tolerate(share)"
        )


class Step(msgspec.Struct, frozen=True):
    """One declared step, in the order of declaration."""

    number: int
    name: str
    role: str
    definition: Definition
    gated: bool = False
    poll: float | None = None

    def planned(self, failure_policy: FailurePolicy) -> NewStep:
        """Describe it for the store: everything that fan-in needs, pinned to the run."""
        return NewStep(
            number=self.number,
            name=self.name,
            role=self.role,
            **self.definition.pinned(),
            gated=self.gated,
            poll_us=None if self.poll is None else micros(self.poll),
            slots=SLOTS if self.role == "work" and self.number else 1,
            fail_fast=isinstance(failure_policy, FailFast),
            tolerance=failure_policy.share if isinstance(failure_policy, Tolerate) else 0.0,
        )


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one start."""

    reuse: bool = False
    hold: bool = False
    deadline: float | None = None
    priority: int = 0
    tags: Mapping[str, str] | None = None
    channel: str | None = None


class Batch:
    """A declared batch: decorate its steps, then start runs of it.

    It is one version; the decorators return the functions unchanged.
    """

    def __init__(
        self, host: Host, name: str, *, version: int, params: Any, policy: FailurePolicy | None
    ) -> None:
        check_text(name, what="name")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise Invalid(f"batch {name!r}: version={version!r} must be a whole number from 1")
        check_failure_policy(policy, what=f"batch {name!r}")
        self.name = name
        self.version = version
        self.params_type = params
        self.policy: FailurePolicy = policy or FailFast()
        self._host = host
        self.steps: list[Step] = []
        self.reducer: Step | None = None
        self.hooks: dict[str, Step] = {}

    def __repr__(self) -> str:
        return f"<batch {self.name} version {self.version}>"

    # Declaring

    @overload
    def step(self, function: F, /) -> F: ...
    @overload
    def step(
        self,
        *,
        gated: bool = False,
        poll: float | bool | None = None,
        **declared: Unpack[StepOptions],
    ) -> Callable[[F], F]: ...
    def step(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare the next step: `@batch.step` or `@batch.step(gated=True, poll=60, …)`."""
        if function is None:
            return lambda given: self.step(given, **declared)
        self._refuse_after_reducer(function)
        gated, poll = bool(declared.pop("gated", False)), _poll(declared.pop("poll", None))
        definition = self._defined(function, declared)
        self._check_parameter(definition)
        number = len(self.steps)
        definition = msgspec.structs.replace(definition, outlet=StepOutlet(self, number))
        self.steps.append(self._enter("work", definition, number, gated=gated, poll=poll))
        return function

    @overload
    def reduce(self, function: F, /) -> F: ...
    @overload
    def reduce(self, **declared: Unpack[HandlerOptions]) -> Callable[[F], F]: ...
    def reduce(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare the reducer: it gets the last step's outputs, and returns the report."""
        if function is None:
            return lambda given: self.reduce(given, **declared)
        if self.reducer is not None:
            raise Invalid(f"batch {self.name!r} has a reducer already: {self.reducer.name}")
        self._refuse_limit("a reducer", declared)
        definition = self._defined(function, declared)
        element = _element(definition)
        feed = Inputs(self.client, self, element, is_async=definition.is_async)
        definition = msgspec.structs.replace(definition, feed=feed)
        self.reducer = self._enter("reduce", definition)
        return function

    @overload
    def on_success(self, function: F, /) -> F: ...
    @overload
    def on_success(self, **declared: Unpack[HandlerOptions]) -> Callable[[F], F]: ...
    def on_success(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare a job that is called with the run once it has SUCCEEDED."""
        return self._hook("on_success", function, declared)

    @overload
    def on_failure(self, function: F, /) -> F: ...
    @overload
    def on_failure(self, **declared: Unpack[HandlerOptions]) -> Callable[[F], F]: ...
    def on_failure(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare a job that is called with the run once it is FAILED or CANCELLED."""
        return self._hook("on_failure", function, declared)

    def _hook(self, role: str, function: Any, declared: dict[str, Any]) -> Any:
        if function is None:
            return lambda given: self._hook(role, given, dict(declared))
        if role in self.hooks:
            raise Invalid(f"batch {self.name!r} has {role} already: {self.hooks[role].name}")
        self._refuse_limit(role, declared)
        definition = self._defined(function, declared)
        definition = msgspec.structs.replace(definition, feed=RunArgument(self.client, self))
        self.hooks[role] = self._enter(role, definition)
        return function

    def _enter(self, role: str, definition: Definition, number: int = -1, **more: Any) -> Step:
        """Enter a definition in the registry; answer with the step that it is."""
        self._host.registry.add(definition)
        return Step(number, definition.name.removeprefix(f"{self.name}."), role, definition, **more)

    def _defined(self, function: Any, declared: Mapping[str, Any]) -> Definition:
        if "version" in declared:
            raise Invalid(f"batch {self.name!r}: version is an option of the batch")
        named = declared.get("name")
        if named is None:
            named = getattr(function, "__name__", "step")
        check_text(named, what=f"batch {self.name!r}: name")
        options = {**declared, "name": f"{self.name}.{named}", "version": self.version}
        return self._host.define(function, options, what=f"a step of batch {self.name!r}")

    def _refuse_after_reducer(self, function: Any) -> None:
        if self.reducer is not None:
            raise Invalid(
                f"batch {self.name!r}: {getattr(function, '__name__', function)} comes after the "
                f"reducer {self.reducer.name}; declare the reducer last"
            )

    def _refuse_limit(self, what: str, declared: Mapping[str, Any]) -> None:
        if declared.get("limit") is not None:
            raise Invalid(
                f"batch {self.name!r}: {what} takes no limit, a run has one of them; app.queue() "
                "limits a queue of its own"
            )

    def _check_parameter(self, definition: Definition) -> None:
        arguments = definition.arguments
        first = not self.steps
        takes = len(arguments.names)
        if takes > 1 or (takes == 0 and not (first and self.params_type is None)):
            what = "the parameters" if first else "one item"
            raise Invalid(f"step {definition.name} must take {what} as its only argument")
        hint = arguments.hint_of_first
        if first and self.params_type is not None and hint not in (Any, self.params_type):
            raise Invalid(
                f"step {definition.name} takes {hint!r}, but the batch's params= are "
                f"{self.params_type!r}"
            )

    # Starting

    def _start(
        self,
        params: Any = None,
        *,
        reuse: bool = False,
        hold: bool = False,
        deadline: float | None = None,
        priority: int = 0,
        tags: Mapping[str, str] | None = None,
        channel: str | None = None,
    ) -> Flow[RunHandle]:
        """Start a run; it is durable once this returns.

        With `reuse` a live run with the same parameters is returned instead, however it was
        started, but never one that is being stopped. With `hold` the run waits for `add()` and
        `submit()`. Its end is told on the `channel`, if one is named.
        """
        options = {"reuse": reuse, "hold": hold, "deadline": deadline, "priority": priority}
        body = self._started(params, tags=tags, channel=channel, **options)
        run_id = yield from self.client.submitting(self.name, body, lambda made: {"run_id": made})
        return RunHandle(self.client, run_id, type_of=self.report_type, fill=self.fill)

    start, start_async = faces(_start)

    def _started(self, params: Any, **options: Any) -> Flow[str]:
        starting = self.starting(params, **options)
        yield from self.client.tell_rules()
        return (yield from self.client.flow(starting))

    def starting(self, params: Any = None, **options: Any) -> Callable[[], Steps[str]]:
        """Check everything, and give the store operation that starts the run, for the API."""
        chosen = StartOptions(**options)
        new, jobs = self._new(params, chosen)
        return partial(
            chains.start,
            *(new, self.plan(), jobs),
            hold=chosen.hold,
            reuse=chosen.reuse,
            admit=self.client.refuse_full,
        )

    @property
    def parameters(self) -> list[str]:
        """The names of its parameters, where their type names them."""
        return list(_fields(self.params_type) or ())

    def _new(self, params: Any, options: StartOptions) -> tuple[NewRun, list[NewJob]]:
        check_seconds("deadline", options.deadline, zero=False)
        check({"priority": options.priority})
        self.plan()
        data = self._checked(params)
        params_key, *before = self._params_keys(data)
        new = NewRun(
            id=new_id(),
            kind=self.name,
            kind_version=self.version,
            payload=data,
            codec=self.client.codec.name,
            actor=caller().actor,
            policy=msgspec.json.encode(self.policy).decode(),
            queue=self.steps[0].definition.options["queue"],
            priority=options.priority,
            tenant=caller().tenant,
            trace=caller().trace,
            params_key=params_key,
            params_keys_before=tuple(before),
            tags=encode_tags(options.tags),
            channel=self.client.channel
            if options.channel is None
            else check_text(options.channel, what="channel"),
            deadline_us=None if options.deadline is None else micros(options.deadline),
            hold_us=micros(self.client.settings.hold_limit) if options.hold else None,
        )
        if options.hold:
            return new, []
        return new, [self._job(params, new.id, ordinal=0, tenant=new.tenant)]

    def _params_keys(self, data: bytes | None) -> tuple[str, ...]:
        """Tell parameters apart: the same values have the same key, also if their bytes differ."""
        value = None if data is None else self.client.codec.decode(data)
        plain = msgspec.json.encode(value, order="deterministic", enc_hook=repr)
        return marks(self.client.codec, plain, column="run.params_key")

    def _checked(self, params: Any) -> bytes | None:
        if self.params_type is None:
            if params is not None:
                raise Invalid(f"batch {self.name!r} takes no parameters; declare params=")
            return None
        data = self.client.codec.encode(params)
        problems = _problems(self.client.codec.decode(data), self.params_type)
        if problems:
            raise Invalid(f"batch {self.name!r}: {'; '.join(problems)}")
        return limited(data, most=self.client.settings.payload_most, what="the parameters")

    def fill(self, run: Run, items: Iterable[Any]) -> list[NewJob]:
        """Turn items into held jobs of the first step: all fit, or none is stored."""
        return [
            self._job(item, run.id, ordinal=place, tenant=run.tenant, held=True)
            for place, item in enumerate(items)
        ]

    def _job(
        self, item: Any, run_id: str, *, ordinal: int, tenant: str, held: bool = False
    ) -> NewJob:
        """Make a job of the first step."""
        step = self.steps[0]
        given = self.output(step, item, tenant=tenant)
        poll = None if step.poll is None else micros(step.poll)
        state = JobState.QUEUED if poll is None else JobState.WAITING
        template = Template(
            **step.definition.pinned(),
            state=JobState.CREATED.value if held else state.value,
            delay_us=None if held else poll,
            codec=self.client.codec.name,
            actor=caller().actor,
            tenant=tenant,
            trace=caller().trace,
            run_id=run_id,
            step=step.number,
        )
        return NewJob(new_id(), given.payload, template, ordinal=ordinal, key=given.limit_key)

    # For runs of it

    @property
    def client(self) -> Client:
        """The way to the store."""
        return self._host.client

    def output(self, step: Step, item: Any, *, tenant: str) -> Output:
        """Encode an item for a step, or raise `Invalid` saying how it does not fit.

        It becomes a job where no user's code runs, so its limit key is made here.
        """
        arguments, client = step.definition.arguments, self.client
        codec, most = client.codec, client.settings.payload_most
        data = codec.encode(arguments.bind((item,) if arguments.names else (), {}))
        given = arguments.check(data, codec)
        if len(data) > most:
            limited(data, most=most, what=f"an item for {step.definition.name}")
        return Output(step.number, data, step.definition.limit_key(given, tenant=tenant))

    def named(self, name: str) -> Step | None:
        """Find a step by its name."""
        return next((step for step in self.steps if step.name == name), None)

    def report_type(self, name: str, version: int) -> Any:
        """Return the annotated type of the reducer's result."""
        known = self.reducer is not None and (name, version) == (self.name, self.version)
        return self.reducer.definition.arguments.result_type if known and self.reducer else Any

    def plan(self) -> list[NewStep]:
        """Describe every step for the store, or raise `Invalid` if there is none."""
        if not self.steps:
            raise Invalid(f"batch {self.name!r} has no step; declare one with @batch.step")
        extra = [self.reducer] if self.reducer is not None else []
        extra += list(self.hooks.values())
        numbered = [
            msgspec.structs.replace(step, number=len(self.steps) + place)
            for place, step in enumerate(extra)
        ]
        return [step.planned(self.policy) for step in (*self.steps, *numbered)]


def _poll(poll: Any) -> float | None:
    if poll is None or poll is False:
        return None
    if poll is True:
        return POLL_SECONDS
    check_seconds("poll", poll, zero=True)
    return float(poll)


def _element(definition: Definition) -> Any:
    arguments = definition.arguments
    if len(arguments.names) != 1:
        raise Invalid(f"reducer {definition.name} must take the inputs as its only argument")
    hint = arguments.hint_of_first
    origin = getattr(hint, "__origin__", None)
    if hint is Any or origin is None:
        return Any
    if not (inspect.isclass(origin) and issubclass(origin, Iterable | AsyncIterable)):
        raise Invalid(f"reducer {definition.name} takes an Iterable of the last step's outputs")
    return next(iter(get_args(hint)), Any)


def _problems(given: Any, type_: Any) -> list[str]:
    """Name everything that does not fit, not the first thing alone."""
    names = _fields(type_)
    if names is None or not isinstance(given, dict):
        return _misfit(given, type_, "")
    unknown = [f"{name}: there is no such parameter" for name in given if name not in names]
    found = [
        problem
        for name, (hint, required) in names.items()
        for problem in (
            _misfit(given[name], hint, f"{name}: ")
            if name in given
            else ([f"{name}: it is missing"] if required else [])
        )
    ]
    return [*unknown, *found] or _misfit(given, type_, "")


def _misfit(value: Any, type_: Any, place: str) -> list[str]:
    try:
        msgspec.convert(value, type_, dec_hook=from_builtin)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        return [f"{place}{error}"]
    return []


def _fields(type_: Any) -> dict[str, tuple[Any, bool]] | None:
    """Name the fields of a Struct or a dataclass, with their types; None for anything else."""
    if not (isinstance(type_, type) and (issubclass(type_, msgspec.Struct) or is_dataclass(type_))):
        return None
    if issubclass(type_, msgspec.Struct):
        return {f.encode_name: (f.type, f.required) for f in msgspec.structs.fields(type_)}
    hints = typing.get_type_hints(type_)
    info = msgspec.inspect.type_info(type_)
    required = {f.name: f.required for f in getattr(info, "fields", ())}
    return {f.name: (hints[f.name], required.get(f.name, False)) for f in fields(type_)}
