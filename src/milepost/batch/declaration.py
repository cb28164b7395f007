"""The declaration of a batch: steps in order, a reducer, hooks, and a failure policy."""

import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack, get_args, overload

import msgspec

from milepost.batch.outputs import Inputs, RunArgument, StepOutlet
from milepost.client import Client
from milepost.codec import check_text, limited
from milepost.declare import Definition, Host
from milepost.errors import Invalid
from milepost.options import StepOptions, check_seconds
from milepost.outcome import micros
from milepost.policy import POLL_SECONDS
from milepost.records import NewStep

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


class BatchDeclaration:
    """One version of a batch; the decorators return the functions unchanged."""

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
        outlet = StepOutlet(self, number)
        definition = msgspec.structs.replace(definition, outlet=outlet)
        name = definition.name.removeprefix(f"{self.name}.")
        self.steps.append(Step(number, name, "work", definition, gated, poll))
        self._host.registry.add(definition)
        return function

    @overload
    def reduce(self, function: F, /) -> F: ...
    @overload
    def reduce(self, **declared: Unpack[StepOptions]) -> Callable[[F], F]: ...
    def reduce(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare the reducer: it gets the last step's outputs, and returns the report."""
        if function is None:
            return lambda given: self.reduce(given, **declared)
        if self.reducer is not None:
            raise Invalid(f"batch {self.name!r} has a reducer already: {self.reducer.name}")
        definition = self._defined(function, declared)
        element = _element(definition)
        feed = Inputs(self._host.client, self, element, is_async=definition.is_async)
        definition = msgspec.structs.replace(definition, feed=feed)
        name = definition.name.removeprefix(f"{self.name}.")
        self.reducer = Step(-1, name, "reduce", definition)
        self._host.registry.add(definition)
        return function

    @overload
    def on_success(self, function: F, /) -> F: ...
    @overload
    def on_success(self, **declared: Unpack[StepOptions]) -> Callable[[F], F]: ...
    def on_success(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare a job that is called with the run once it has SUCCEEDED."""
        return self._hook("on_success", function, declared)

    @overload
    def on_failure(self, function: F, /) -> F: ...
    @overload
    def on_failure(self, **declared: Unpack[StepOptions]) -> Callable[[F], F]: ...
    def on_failure(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare a job that is called with the run once it is FAILED or CANCELLED."""
        return self._hook("on_failure", function, declared)

    def _hook(self, role: str, function: Any, declared: dict[str, Any]) -> Any:
        if function is None:
            return lambda given: self._hook(role, given, dict(declared))
        if role in self.hooks:
            raise Invalid(f"batch {self.name!r} has {role} already: {self.hooks[role].name}")
        definition = self._defined(function, declared)
        feed = RunArgument(self._host.client, self)
        definition = msgspec.structs.replace(definition, feed=feed)
        name = definition.name.removeprefix(f"{self.name}.")
        self.hooks[role] = Step(-1, name, role, definition)
        self._host.registry.add(definition)
        return function

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

    # For runs of it

    @property
    def client(self) -> Client:
        """The way to the store."""
        return self._host.client

    def payload(self, step: Step, item: Any) -> bytes:
        """Encode an item for a step, or raise `Invalid` saying how it does not fit."""
        arguments, client = step.definition.arguments, self.client
        codec, most = client.codec, client.settings.payload_most
        data = codec.encode(arguments.bind((item,) if arguments.names else (), {}))
        arguments.check(data, codec)
        if len(data) > most:
            limited(data, most=most, what=f"an item for {step.definition.name}")
        return data

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
