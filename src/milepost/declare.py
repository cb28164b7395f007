"""Declarations: kinds of jobs, their arguments and their policies."""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, get_args

import msgspec

from milepost.client import Client
from milepost.codec import Codec, check_text, from_builtin, hints
from milepost.config import Settings
from milepost.context import Context
from milepost.errors import Invalid
from milepost.limit import TENANT, Limit, StoredLimit, key_text, limit_key
from milepost.options import DEFAULTS, check, default, pinned, stored
from milepost.outcome import Outcome
from milepost.policy import Policy
from milepost.records import NewJob
from milepost.store import rules

_PLACED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Unfit(Invalid):
    """Stored arguments do not fit their handler: its signature, or the submitter's, has changed."""


class Arguments:
    """A handler's parameters as a type: checked when a job is submitted, decoded when it runs."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._signature, self.wants_context = _own_parameters(function)
        self._told = told = hints(function)
        self.result_type = told.get("return", Any)
        self._struct = _struct_of(self._signature, told, name)
        self._kinds = [(name, p.kind) for name, p in self._signature.parameters.items()]
        self.names = [name for name, _ in self._kinds]
        """The parameters of a call, in order."""
        needed = [p for p in self._signature.parameters.values() if _required(p)]
        self._places = [name for name, kind in self._kinds if kind in _PLACED]
        self._least = len(needed)
        if any(parameter.kind not in _PLACED for parameter in needed):
            self._least = len(self._places) + 1  # no call without names will do
        self._all_placed = len(self._places) == len(self._kinds)

    @property
    def hint_of_first(self) -> Any:
        """The annotation of the first parameter; Any if it has none."""
        return self._told.get(self.names[0], Any) if self._kinds else Any

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Name every argument, or raise `Invalid` as Python itself would complain."""
        # The everyday call, without what inspect costs; anything else is for inspect to judge.
        if not kwargs and self._least <= len(args) <= len(self._places):
            return dict(zip(self._places, args, strict=False))
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise Invalid(f"{self._name}{self._signature}: {error}") from error

    def check(self, payload: bytes, codec: Codec) -> msgspec.Struct:
        """Give the arguments as a handler will have them, or raise `Invalid` if they do not fit."""
        try:
            given: msgspec.Struct = codec.decode(payload, self._struct)
        except (Invalid, msgspec.MsgspecError, ValueError, TypeError) as error:
            # Nothing is stored yet: the codec's reason alone, without its text on stored data.
            raise Invalid(f"{self._name}{self._signature}: {error.__cause__ or error}") from error
        return given

    def value(self, given: msgspec.Struct, name: str) -> Any:
        """Give one argument as the handler will have it: its own default if it was left out."""
        value = getattr(given, name)
        return self._signature.parameters[name].default if value is msgspec.UNSET else value

    def call(self, function: Callable[..., Any], given: msgspec.Struct) -> Any:
        """Call a function as the handler will be called, its defaults filled in."""
        positional, named = self._spread(given)
        bound = self._signature.bind(*positional, **named)
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs)

    def stored(self, payload: bytes | None, codec: Codec) -> tuple[list[Any], dict[str, Any]]:
        """Decode stored arguments into those of a call, or raise `Unfit`."""
        try:
            given = codec.decode(payload, self._struct) if payload else self._struct()
        except (Invalid, msgspec.MsgspecError, ValueError, TypeError) as error:
            reason = error.__cause__ if isinstance(error, Invalid) and error.__cause__ else error
            raise Unfit(
                f"the stored arguments do not fit {self._name}{self._signature}: {reason}"
            ) from error
        return self._spread(given)

    @cached_property
    def fingerprint(self) -> str:
        """Tell it from other signatures: the same in every process with the same types."""
        # The element of an Iterable has no place in the schema of its parameter.
        parts = (part for name in self.names for part in get_args(self._told.get(name)))
        try:
            told = [msgspec.json.schema(t, schema_hook=_schema) for t in (self._struct, *parts)]
            text = msgspec.json.encode(told, order="deterministic")
        except Exception:  # noqa: BLE001 - a type that has no schema, or a model that fails to give one
            text = str(self._signature).encode()
        return hashlib.sha256(text).hexdigest()[:16]

    def signature(self, codec: Codec) -> str:
        """Identify the reader of its arguments: its types, and the codec with its keys."""
        if codec.name == "json":
            return self.fingerprint
        told = " ".join((self.fingerprint, codec.name, *getattr(codec, "key_ids", ())))
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def _spread(self, given: msgspec.Struct) -> tuple[list[Any], dict[str, Any]]:
        values = msgspec.structs.astuple(given)
        if self._all_placed and _complete(values):
            return list(values), {}
        named: dict[str, Any] = {}
        positional: list[Any] = []
        omitted = False
        for (name, kind), value in zip(self._kinds, values, strict=True):
            if value is msgspec.UNSET:
                omitted = True  # later ones must not move up into its place
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                positional.extend(value)
            elif kind is inspect.Parameter.VAR_KEYWORD:
                named.update(value)
            elif omitted or kind is inspect.Parameter.KEYWORD_ONLY:
                named[name] = value
            else:
                positional.append(value)
        return positional, named


def _schema(type_: Any) -> dict[str, Any]:
    """Describe a type that msgspec does not know: a model by its own schema, others by name."""
    model = getattr(type_, "model_json_schema", None)
    if callable(model):
        return dict(model())
    return {"title": getattr(type_, "__name__", repr(type_))}


def _complete(values: Iterable[Any]) -> bool:
    for value in values:  # noqa: SIM110 - once for every job, and any() takes thrice the time
        if value is msgspec.UNSET:
            return False
    return True


def _required(parameter: inspect.Parameter) -> bool:
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in stars


def _own_parameters(function: Callable[..., Any]) -> tuple[inspect.Signature, bool]:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    wants = bool(parameters) and _is_context(parameters[0], hints(function))
    return signature.replace(parameters=parameters[1:] if wants else parameters), wants


def _is_context(parameter: inspect.Parameter, told: Mapping[str, Any]) -> bool:
    hint = told.get(parameter.name)
    return hint is Context or (hint is None and parameter.name == "ctx")


def _struct_of(
    signature: inspect.Signature, told: Mapping[str, Any], name: str
) -> type[msgspec.Struct]:
    fields = [_field(parameter, told) for parameter in signature.parameters.values()]
    try:
        struct = msgspec.defstruct(
            f"{name.replace('-', '_').replace('.', '_')}_arguments",
            fields,
            kw_only=True,
            forbid_unknown_fields=True,
        )
        msgspec.json.Decoder(struct, dec_hook=from_builtin)  # raises if it cannot build one
    except (TypeError, ValueError) as error:
        raise Invalid(f"job {name!r}: its annotations cannot be checked: {error}") from error
    return struct


def _field(parameter: inspect.Parameter, told: Mapping[str, Any]) -> Any:
    hint = told.get(parameter.name, Any)
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return (parameter.name, tuple.__class_getitem__((hint, ...)), ())
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        keyed = dict.__class_getitem__((str, hint))
        return (parameter.name, keyed, msgspec.field(default_factory=dict))
    if parameter.default is not inspect.Parameter.empty:
        # Left out: the handler's own default applies when it runs.
        return (parameter.name, hint | msgspec.UnsetType if _unites(hint) else Any, msgspec.UNSET)
    return (parameter.name, hint)


def _unites(hint: Any) -> bool:
    try:
        _ = hint | msgspec.UnsetType
    except TypeError:
        return False
    return hint is not Any


class Outlet(Protocol):
    """Takes a handler's value where it is more than a result: the outputs of a batch's step."""

    def put(self, context: Context, value: Any) -> Outcome:
        """Stage outputs, or send them along; return the attempt's outcome."""
        ...

    async def put_async(self, context: Context, value: Any) -> Outcome:
        """Stage outputs, or send them along; return the attempt's outcome."""
        ...


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one kind of job.

    `feed` makes the arguments of a handler that does not take the stored ones; `outlet` takes what
    a handler gives where that becomes other jobs.
    """

    name: str
    function: Callable[..., Any]
    arguments: Arguments
    is_async: bool
    version: int = default("version")
    options: Mapping[str, Any] = DEFAULTS
    """Those that are stored with its jobs."""
    policy: Policy = Policy()
    channel: str | None = None
    """The channel that its jobs tell how they ended, unless a submit names one."""
    on_failure: NewJob | None = None
    """The job that is created when one of them fails, with a placeholder for its id."""
    isolate: bool = False
    """Whether it runs in a process of its own, which is killed when it passes a limit."""
    memory: int | None = None
    """How many bytes that process may hold, with those it started."""
    cpu_seconds: float | None = None
    limit: Limit | None = None
    feed: Callable[[Context], list[Any]] | None = None
    outlet: Outlet | None = None

    def __post_init__(self) -> None:
        """Refuse an invalid declaration, when it is declared."""
        check_text(self.name, what="name")
        try:
            check({**self.options, "version": self.version, "channel": self.channel})
            check({"limit": self.limit})
            self._check_key()
        except Invalid as error:
            raise Invalid(f"job {self.name!r}: {error}") from error

    def _check_key(self) -> None:
        key, known = self.limit and self.limit.key, self.arguments.names
        if isinstance(key, str) and key != TENANT and key not in known:
            there = f"there are: {', '.join(known)}" if known else "it has none"
            raise Invalid(
                f"limit key={key!r} is no parameter of the function ({there}); a function of the "
                'arguments or "tenant" will do, too'
            )

    @property
    def rule(self) -> str:
        """Name the rule that its jobs are counted by."""
        return (self.limit and self.limit.name) or self.name

    def limit_key(self, given: msgspec.Struct, *, tenant: str) -> str | None:
        """Name what a job with these arguments is counted under; None: it has no limit."""
        return None if self.limit is None else limit_key(self.rule, self._key(given, tenant))

    def _key(self, given: msgspec.Struct, tenant: str) -> str:
        key = None if self.limit is None else self.limit.key
        if key is None:
            return ""
        if not isinstance(key, str):
            return key_text(self._called(key, given), what=f"the limit key of {self.name}")
        if key in self.arguments.names:
            value = self.arguments.value(given, key)
            return key_text(value, what=f"{self.name}: {key}, its limit key,")
        return tenant

    def _called(self, key: Callable[..., Any], given: msgspec.Struct) -> Any:
        try:
            return self.arguments.call(key, given)
        except Exception as error:
            raise Invalid(
                f"{self.name}: its limit's key function, called with the arguments, failed: "
                f"{type(error).__name__}: {error}"
            ) from error

    def pinned(self, asked: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Give the columns of its jobs and steps; options of a submit come before its own."""
        chosen = stored(asked, self.options) if asked else self.options
        return {"kind": self.name, "kind_version": self.version, **pinned(chosen)}

    @property
    def word(self) -> str:
        """Name the kind and its version, as a worker registers it with the store."""
        return f"{self.name} {self.version}"


def stored_limit(limit: Limit) -> rules.Limit:
    """Give a limit as it is stored."""
    pace = limit.pace
    return rules.Limit(
        most=limit.most,
        rate=None if pace is None else pace.amount,
        per_us=None if pace is None else pace.per_us,
        burst=limit.room,
        ordered=limit.ordered,
        units=limit.units,
    )


def known_limit(rule: rules.Rule) -> StoredLimit:
    """Give a limit of the store as one that a request can name."""
    limit = rule.limit
    return StoredLimit(
        most=limit.most,
        rate=limit.rate_text,
        burst=limit.burst,
        units=limit.units,
        ordered=limit.ordered,
        name=rule.name,
    )


class Registry:
    """Every definition that this program has: those that were declared, and the engine's own."""

    def __init__(self, limits: rules.Declared | None = None) -> None:
        """Enter the rules of limits, too, among those that are declared to the store."""
        self._limits = {} if limits is None else limits
        self._ruled: dict[str, Definition] = {}
        self._by_word: dict[str, Definition] = {}
        self._own: set[str] = set()
        self._newest: dict[str, Definition] = {}

    def add(self, definition: Definition, *, own: bool = False) -> None:
        """Enter a definition; versions may stand side by side, names and versions not.

        The engine's own run like any other, and are not listed among those that were declared.
        """
        if definition.word in self._by_word:
            raise Invalid(
                f"job {definition.name!r} version {definition.version} is declared twice; "
                "give one of them a name= or a version= of its own"
            )
        self.enter_rule(definition)
        self._by_word[definition.word] = definition
        if own:
            self._own.add(definition.word)
            return
        newest = self._newest.get(definition.name)
        if newest is None or definition.version > newest.version:
            self._newest[definition.name] = definition

    def enter_rule(self, definition: Definition) -> None:
        """Enter a rule, or raise `Invalid` if another kind means something else by its name."""
        limit = definition.limit
        if limit is None:
            return
        first = self._ruled.setdefault(definition.rule, definition)
        stored = stored_limit(limit)
        if first is not definition:
            known = self._limits["job", definition.rule] or stored
            if known != stored:
                raise Invalid(
                    f"limit {definition.rule!r} is declared as {stored.words()} by "
                    f"{definition.word} and as {known.words()} by {first.word}: give one of them a "
                    "name= of its own"
                )
            named = f"limit {definition.rule!r} of {definition.word} and of {first.word}"
            lines = [[d.options[n] for n in ("queue", "priority")] for d in (definition, first)]
            if limit.ordered and lines[0] != lines[1]:
                raise Invalid(f"{named}: order holds within one queue and one priority")
        self._limits["job", definition.rule] = stored

    def limit(self, name: str) -> Limit | None:
        """Return the limit of that name, if it is declared here."""
        found = self._ruled.get(name)
        return None if found is None else found.limit

    @property
    def limits(self) -> list[str]:
        """Name the limits that are declared here."""
        return sorted(self._ruled)

    def find(self, name: str, version: int) -> Definition | None:
        """Return that version of that kind, if it is declared here."""
        return self._by_word.get(f"{name} {version}")

    def is_own(self, definition: Definition) -> bool:
        """Tell whether it is one of the engine's own."""
        return definition.word in self._own

    def newest(self, name: str) -> Definition:
        """Return the highest version of a kind, or raise `Invalid` naming the declared ones."""
        if name not in self._newest:
            known = ", ".join(sorted(self._newest)) or "none"
            raise Invalid(f"no job is called {name!r}; declared here: {known}")
        return self._newest[name]

    @property
    def words(self) -> list[str]:
        """Name everything declared, for the store."""
        return sorted(self._by_word)

    @property
    def all(self) -> Iterable[Definition]:
        """Everything that can be run here."""
        return self._by_word.values()

    def __iter__(self) -> Iterator[Definition]:
        return (d for word, d in self._by_word.items() if word not in self._own)


class Host(Protocol):
    """The parts of an app that jobs and batches use."""

    client: Client
    registry: Registry
    settings: Settings

    def define(
        self,
        function: Callable[..., Any],
        declared: Mapping[str, Any],
        *,
        what: str | None = None,
    ) -> Definition:
        """Turn a function and the options of `@app.job` into a definition."""
        ...
