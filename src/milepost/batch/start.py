"""Starting runs of a batch: parameters are checked, all of them, before anything is stored."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import msgspec

from milepost.batch.declaration import BatchDeclaration, Step
from milepost.batch.handles import RunHandle
from milepost.client import caller, new_id
from milepost.codec import check_text, encode_tags, from_builtin, limited, marks
from milepost.errors import Invalid
from milepost.faces import Flow, faces
from milepost.lifecycle import JobState
from milepost.options import check, check_seconds
from milepost.outcome import micros
from milepost.records import NewJob, NewRun, Run, Template
from milepost.store import chains
from milepost.store.driver import Steps


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one start."""

    reuse: bool = False
    hold: bool = False
    deadline: float | None = None
    priority: int = 0
    tags: Mapping[str, str] | None = None
    channel: str | None = None


class Batch(BatchDeclaration):
    """A declared batch: decorate its steps, then start runs of it."""

    def __repr__(self) -> str:
        return f"<batch {self.name} version {self.version}>"

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
        starting = self.starting(
            params,
            reuse=reuse,
            hold=hold,
            deadline=deadline,
            priority=priority,
            tags=tags,
            channel=channel,
        )
        run_id = yield from self.client.flow(starting)
        return RunHandle(self.client, run_id, type_of=self.report_type, fill=self.fill)

    start, start_async = faces(_start)

    def starting(self, params: Any = None, **options: Any) -> Callable[[], Steps[str]]:
        """Check everything, and give the store operation that starts the run, for the API."""
        chosen = StartOptions(**options)
        new, jobs = self._new(params, chosen)
        return partial(chains.start, new, self.plan(), jobs, hold=chosen.hold, reuse=chosen.reuse)

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
            channel=None
            if options.channel is None
            else check_text(options.channel, what="channel"),
            deadline_us=None if options.deadline is None else micros(options.deadline),
            hold_us=micros(self.client.settings.hold_limit) if options.hold else None,
        )
        if options.hold:
            return new, []
        first = self.steps[0]
        payload = self.payload(first, params)
        return new, [self._job(first, payload, new.id, ordinal=0, tenant=new.tenant)]

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
        first = self.steps[0]
        return [
            self._job(
                first,
                self.payload(first, item),
                run.id,
                ordinal=place,
                tenant=run.tenant,
                held=True,
            )
            for place, item in enumerate(items)
        ]

    def _job(
        self,
        step: Step,
        payload: bytes,
        run_id: str,
        *,
        ordinal: int,
        tenant: str,
        held: bool = False,
    ) -> NewJob:
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
        return NewJob(new_id(), payload, template, ordinal=ordinal)


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
    import typing  # noqa: PLC0415 - rarely

    hints = typing.get_type_hints(type_)
    info = msgspec.inspect.type_info(type_)
    required = {f.name: f.required for f in getattr(info, "fields", ())}
    return {f.name: (hints[f.name], required.get(f.name, False)) for f in fields(type_)}
