"""Job: a declared function that can be called, submitted and scheduled; how it is declared."""

import inspect
import sqlite3
import warnings
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, cast, overload

import msgspec

from milepost.client import acting, caller, new_id
from milepost.codec import check_text, encode_tags, limited
from milepost.config import size
from milepost.context import Context
from milepost.cron import CronLine, MissedPolicy
from milepost.declare import Arguments, Definition, Host
from milepost.errors import Invalid
from milepost.faces import Flow, Wait, faces, in_loop, perform, perform_async, stack_level
from milepost.handles import JobHandle
from milepost.lifecycle import JobState
from milepost.limit import limit_key, number_text
from milepost.options import (
    UNIQUE_SECONDS,
    JobOptions,
    SubmitOptions,
    check,
    check_names,
    default,
)
from milepost.options import declared as stored_options
from milepost.outcome import micros
from milepost.policy import Policy, retry_policy
from milepost.records import NewJob, Template
from milepost.store.borrow import BorrowedConnection, borrow, require_same_kind
from milepost.store.driver import Steps
from milepost.store.followups import FAILED_ID, FAILED_TENANT
from milepost.store.schedules import NewSchedule

P = ParamSpec("P")
C = ParamSpec("C")
R = TypeVar("R")
A = TypeVar("A")

Errors = tuple[type[BaseException], ...]
LOAD_BYTES = 256 * 1024**2
"""How much one statement stores; beyond a few times that PostgreSQL refuses it."""
Given = tuple[tuple[Any, ...], Mapping[str, Any]]
"""The arguments of one call, by place and by name."""


class Job(Generic[C, P, R, A]):
    """A declared job: callable as the function it is, and submittable."""

    def __init__(
        self,
        app: Host,
        definition: Definition,
        options: Mapping[str, Any] | None = None,
        borrowed: BorrowedConnection | None = None,
        *,
        policy: str | None = None,
    ) -> None:
        self._app = app
        self._options = options or {}
        if self._options:
            check(self._options)
        self._borrowed = borrowed
        self._policy = policy
        self.definition = definition
        self.__doc__ = definition.function.__doc__
        self.__name__ = definition.name

    def __call__(self, /, *args: C.args, **kwargs: C.kwargs) -> A:
        """Call the function itself, here and now."""
        return cast("A", self.definition.function(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<job kind {self.definition.name} version {self.definition.version}>"

    def submit(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Submit a job; it is durable once this returns (or the borrowed transaction commits)."""
        _warn_if_in_loop(self.definition.name)
        if self._app.client.hooks.at["submit"]:
            return perform(self._watched([(args, kwargs)]))[0]
        new = self._new([(args, kwargs)])
        return self._handles(new, self._create(new))[0]

    async def submit_async(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Submit a job; it is durable once this returns (or the borrowed transaction commits)."""
        if self._app.client.hooks.at["submit"]:
            return (await perform_async(self._watched([(args, kwargs)])))[0]
        new = self._new([(args, kwargs)])
        return self._handles(new, await self._create_async(new))[0]

    def _submit_many(self, calls: Iterable[Any]) -> Flow[list[JobHandle[R]]]:
        """Submit many jobs in one statement: a tuple of arguments, or a dict, for each."""
        given = [_arguments(call) for call in calls]
        watched = given and self._app.client.hooks.at["submit"]
        return (yield from (self._watched(given) if watched else self._stored(given)))

    submit_many, submit_many_async = faces(_submit_many)

    def _stored(self, calls: Sequence[Given]) -> Flow[list[JobHandle[R]]]:
        new = self._new(calls)
        ids = (yield Wait(self._create, self._create_async, (new,))) if new else []
        return self._handles(new, ids)

    def _watched(self, calls: Sequence[Given]) -> Flow[list[JobHandle[R]]]:
        return self._app.client.submitting(
            self.definition.name,
            self._stored(calls),
            lambda made: {"job_id": made[0].id},
            queue=self._pinned["queue"],
            count=len(calls),
        )

    def options(self, **options: Unpack[SubmitOptions]) -> "Job[C, P, R, A]":
        """Return a copy that submits with these options; an option left out stays as it was."""
        check_names(SubmitOptions, options, what=f"{self.definition.name}.options()")
        given: dict[str, Any] = {n: value for n, value in options.items() if value is not None}
        if isinstance(tags := given.get("tags"), Mapping):
            given["tags"] = dict(tags)  # the caller may go on with theirs
        chosen = {**self._options, **given}
        return Job(self._app, self.definition, chosen, self._borrowed, policy=self._policy)

    def belongs_to(self, app: Host) -> bool:
        """Tell whether that app declared it."""
        return self._app is app

    def within(self, connection: Any) -> "Job[C, P, R, A]":
        """Return a copy that submits inside the caller's own transaction."""
        borrowed = borrow(connection)
        return Job(self._app, self.definition, self._options, borrowed, policy=self._policy)

    def scheduled(
        self,
        app: Host,
        name: str | None,
        line: CronLine,
        *,
        call: Given,
        missed: MissedPolicy,
    ) -> NewSchedule:
        """Describe a schedule of this job; arguments that do not fit are refused here and now."""
        if self._app is not app:
            raise Invalid(f"{self!r} is another app's; schedule it there")
        for option in ("unique", "on_conflict", "unique_for", "start_in", "start_at", "hold"):
            if self._options.get(option):
                raise Invalid(f"a scheduled job takes no {option}: its slot is what it has")
        if self._borrowed is not None:
            raise Invalid("a schedule outlives a transaction: schedule the job without within()")
        named = self.definition.name if name is None else name
        check_text(named, what="name")
        payload, key = self._encoded(*call)
        template = self._template()
        changed = {"actor": f"schedule {named}", "limit_key": key or template.limit_key}
        template = msgspec.structs.replace(template, **changed)
        return NewSchedule(name=named, line=line, missed=missed, template=template, payload=payload)

    # How a submission is stored

    def _create(self, new: list[NewJob]) -> list[str]:
        client = self._app.client
        if self._borrowed is None:
            return client.create(new)
        if self._borrowed.is_async:
            raise Invalid("this connection is asynchronous: await submit_async() instead")
        create = self._creation(self._borrowed)
        try:
            return self._borrowed.run(client.home(), create, new)
        except sqlite3.OperationalError as error:
            if not str(error).startswith("no such table"):
                raise
        client.set_up_within(self._borrowed)
        return self._borrowed.run(client.home(), create, new)

    async def _create_async(self, new: list[NewJob]) -> list[str]:
        client = self._app.client
        if self._borrowed is None:
            return await client.create_async(new)
        if not self._borrowed.is_async:
            raise Invalid("this connection is synchronous: call submit() instead")
        create = self._creation(self._borrowed)
        return await self._borrowed.run_async(await client.home_async(), create, new)

    def _handles(self, new: Sequence[NewJob], ids: Sequence[str]) -> list[JobHandle[R]]:
        client, type_ = self._app.client, self.definition.arguments.result_type
        return [
            JobHandle(client, job_id, type_=type_, asked=None if job_id == job.id else job.payload)
            for job, job_id in zip(new, ids, strict=True)
        ]

    def _creation(
        self, borrowed: BorrowedConnection
    ) -> Callable[[Sequence[NewJob]], Steps[list[str]]]:
        """Return the operation that stores jobs, if the connection speaks the store's dialect."""
        client = self._app.client
        require_same_kind(borrowed, client.url)
        return client.through(client.create_in_bounds)

    def new(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        """Make a job for the caller to store, or raise `Invalid`."""
        return self._new([(tuple(args), kwargs)])[0]

    def _new(self, calls: Sequence[Given]) -> list[NewJob]:
        template, unique = self._template(), self._unique
        new = [
            NewJob(new_id(), payload, template, key=key, **unique)
            for payload, key in (self._encoded(*call) for call in calls)
        ]
        if len(new) > 1 and (size := sum(len(job.payload or b"") for job in new)) > LOAD_BYTES:
            raise Invalid(
                f"the arguments of {len(new):,} jobs have {size:,} bytes, and one submit takes "
                f"{LOAD_BYTES:,}: submit them in parts"
            )
        return new

    def _encoded(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[bytes, str | None]:
        """Encode arguments, and name the key that they are counted under; it stays in clear."""
        definition, codec = self.definition, self._app.client.codec
        data = codec.encode(definition.arguments.bind(args, kwargs))
        given = definition.arguments.check(data, codec)
        most = self._app.settings.payload_most
        limited(data, most=most, what=f"the arguments of {definition.name}")
        if definition.limit is None or "limit_key" in self._options:
            return data, None
        return data, definition.limit_key(given, tenant=caller().tenant)

    def _template(self) -> Template:
        options = self._options
        delay = None if (start_in := options.get("start_in")) is None else micros(start_in)
        start_at = options.get("start_at")
        # Whether a given time has come is for the store's clock to say, not for this machine's.
        later = bool(delay) or start_at is not None
        state = JobState.WAITING if later else JobState.QUEUED
        return Template(
            **self._pinned,
            **self._limited,
            policy=self._policy,
            state=JobState.CREATED.value if options.get("hold") else state.value,
            actor=caller().actor,
            due_at=start_at,
            delay_us=delay or None,
            codec=self._app.client.codec.name,
            tags=encode_tags(options.get("tags")),
            tenant=caller().tenant,
            trace=caller().trace,
            channel=options.get("channel", self.definition.channel),
        )

    @cached_property
    def _unique(self) -> Mapping[str, Any]:
        """The key, and what becomes of a job that has it; raises `Invalid` where they disagree."""
        key, keeps = self._options.get("unique"), self._options.get("unique_for")
        conflict = self._options.get("on_conflict")
        if key is None and (conflict is not None or keeps is not None):
            alone = "on_conflict" if conflict is not None else "unique_for"
            raise Invalid(f"{alone}= goes with unique=, the key that is taken")
        if keeps is not None and conflict not in (None, "keep"):
            raise Invalid(f"unique_for= keeps the first job: on_conflict={conflict!r} cannot")
        if keeps is not None and keeps > UNIQUE_SECONDS:
            raise Invalid(f"unique_for={keeps:g} must be {UNIQUE_SECONDS:,.0f} seconds at most")
        if conflict == "debounce" and not {"start_in", "start_at"} & self._options.keys():
            raise Invalid("on_conflict='debounce' moves the start: say when, with start_in=")
        return {
            "unique_key": key,
            "on_conflict": conflict or "keep",
            "unique_us": None if keeps is None else micros(keeps),
        }

    @cached_property
    def _limited(self) -> Mapping[str, Any]:
        """The key and units that a submit asks for; raises `Invalid` where its limit has none."""
        name, limit = self.definition.name, self.definition.limit
        key, units = self._options.get("limit_key"), self._options.get("units")
        if key is not None and limit is None:
            raise Invalid(f"limit_key= is for kinds with a limit=, and {name} has none")
        if units is not None:
            _check_units(name, units, None if limit is None else limit.room)
        if limit is not None and limit.ordered:
            self._check_line()
        named = None if key is None else limit_key(self.definition.rule, key)
        return {"limit_key": named, "units": units}

    def _check_line(self) -> None:
        for option in ("queue", "priority"):
            if self._pinned[option] != self.definition.options[option]:
                raise Invalid(
                    f"{option}= would break the order of {self.definition.name}, which holds "
                    "within one queue and one priority"
                )

    @cached_property
    def _pinned(self) -> Mapping[str, Any]:
        """The columns that come from the kind and the options: the same for every submit."""
        return self.definition.pinned(self._options)


def _check_units(name: str, units: float, room: float | None) -> None:
    """Refuse units that no rate counts, or that could never be had (L-19)."""
    if room is None:
        raise Invalid(f"units= is for limits with a rate=, and {name} has none")
    if units > room:
        raise Invalid(
            f"units={number_text(units)} is more than {name} may ever take at once, "
            f"{number_text(room)}: raise its limit's burst=, or reserve less"
        )


def _arguments(call: Any) -> Given:
    if isinstance(call, Mapping):
        return (), call
    if isinstance(call, tuple | list):
        return tuple(call), {}
    raise Invalid(f"submit_many takes a tuple or a dict for each job, not {type(call).__name__}")


_warned_in_loop: set[str] = set()


def _warn_if_in_loop(name: str) -> None:
    """Warn once that a synchronous submit blocks the event loop."""
    if name not in _warned_in_loop and in_loop():
        _warned_in_loop.add(name)
        warnings.warn(
            f"{name}.submit() blocks the running event loop; await {name}.submit_async() instead",
            RuntimeWarning,
            stacklevel=stack_level(),
        )


class JobDecorator:
    """Turns functions into jobs of an app."""

    def __init__(self, app: Host, **declared: Any) -> None:
        self._app = app
        self._declared = declared

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Job[Concatenate[Context, P], P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Job[Concatenate[Context, P], P, R, R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Job[P, P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Declare the function."""
        definition = self._app.define(function, self._declared)
        if (following := self._declared.get("on_failure")) is not None:
            new = _followup(following, self._app)
            definition = msgspec.structs.replace(definition, on_failure=new)
        self._app.registry.add(definition)
        return Job(self._app, definition)


def _followup(job: Any, app: Host) -> NewJob:
    """Make the job that follows on failures, or raise `Invalid`; its id is a placeholder."""
    if not isinstance(job, Job) or not job.belongs_to(app):
        raise Invalid(f"on_failure={job!r} must be a job that this app declared before")
    with acting(caller().actor, tenant=FAILED_TENANT):
        new = job.new((FAILED_ID,), {})
    if FAILED_ID.encode() not in (new.payload or b"") or new.unique_key is not None:
        raise Invalid(
            f"on_failure={job!r} takes one argument, the failed job's id as a text; it cannot be "
            "unique, and a codec of your own must leave that text readable"
        )
    return msgspec.structs.replace(new, id=FAILED_ID)


def define(
    function: Callable[..., Any],
    declared: Mapping[str, Any],
    *,
    retry_on: Errors,
    fail_on: Errors,
    channel: str | None = None,
    what: str | None = None,
) -> Definition:
    """Turn a function and the options of `@app.job` into a definition.

    `retry_on`, `fail_on` and `channel` are the app's own; `what` names another decorator than
    `@app.job`, whose jobs belong to runs: these have a channel, and hooks of their own.
    """
    _check_handler(function, yields=what is not None)
    check_names(JobOptions, declared, what=what or "@app.job")
    if what is not None and (refused := sorted({"channel", "on_failure"} & declared.keys())):
        raise Invalid(f"{what} takes no {', '.join(refused)}: its run has one")
    name = declared.get("name")
    name = check_text(function.__name__ if name is None else name, what="name")
    policy = Policy(
        retry=retry_policy(declared),
        retry_on=error_classes("retry_on", declared.get("retry_on"), retry_on),
        fail_on=(*fail_on, *error_classes("fail_on", declared.get("fail_on"), ())),
    )
    return Definition(
        **_isolation(declared, what or "@app.job"),
        limit=declared.get("limit"),
        name=name,
        function=function,
        arguments=Arguments(function, name),
        is_async=inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function),
        version=declared.get("version", default("version")),
        options=stored_options(declared),
        policy=policy,
        channel=declared.get("channel", channel) if what is None else None,
    )


def _isolation(declared: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Read how a handler is isolated."""
    chosen = {n: declared.get(n) for n in ("isolate", "memory", "cpu_seconds")}
    check(chosen)
    if not chosen["isolate"] and (limits := [n for n, value in chosen.items() if value]):
        raise Invalid(
            f"{what}: {' and '.join(limits)} without isolate=True: only a process of its own can "
            "be measured and killed"
        )
    memory = None if chosen["memory"] is None else size(chosen["memory"], "memory")
    return {**chosen, "isolate": bool(chosen["isolate"]), "memory": memory}


def _check_handler(function: Any, *, yields: bool = False) -> None:
    if isinstance(function, Job):
        raise Invalid(f"{function!r} is a job already")
    if not inspect.isroutine(function):
        raise Invalid(f"{function!r} cannot be a job: declare a function, plain or async")
    generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if generates and not yields:
        raise Invalid(
            f"{function.__name__} yields; a job returns one value (a batch's step yields)"
        )


def error_classes(name: str, given: Any, declared: Errors) -> Errors:
    """Take one class of errors or several; None stands for those declared before."""
    if given is None:
        return declared
    chosen = (given,) if isinstance(given, type) else given
    if not isinstance(chosen, tuple | list) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in chosen
    ):
        raise Invalid(f"{name}={given!r} must be classes of exceptions")
    return tuple(chosen)
