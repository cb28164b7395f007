"""Batches of requests: a run whose jobs are requests, and, if asked for, a final call of its own.

It is a run like any other: each request's own transaction counts it in (C's revalidation, H-57,
H-58), a policy says whether it fails with one of them (H-59), and the final call is a leased job.
A batch within a batch is a run too, and an item of its parent: the transaction that ends it counts
it in there (H-68).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, Required, TypedDict, TypeGuard

import msgspec

from milepost.batch.declaration import SLOTS, FailFast, FailurePolicy, Step, check_failure_policy
from milepost.batch.handles import RunHandle
from milepost.client import caller, new_id
from milepost.codec import encode_tags, limited
from milepost.context import Context
from milepost.declare import Host
from milepost.errors import Invalid
from milepost.faces import Flow, Stream, Wait, faces, streams
from milepost.lifecycle import JobState, RunState
from milepost.options import check, check_seconds
from milepost.outcome import micros
from milepost.records import JobError, NewJob, NewRun, NewStep, ResponseRow
from milepost.request.attempt import Attempt
from milepost.request.declaration import Request, RequestOptions
from milepost.request.kind import NO_LIMITS, KnownLimits, Requests, can_send, define
from milepost.specs import JOB_VIEWS, RUN_VIEWS, Facts
from milepost.store import chains, failures, fanin, requests, runs
from milepost.store.runs import NewBatch

KIND = "requests"
FINAL = "request.final"
CHUNK = 500
"""So many requests are stored by one transaction; a larger batch is filled piece by piece."""
ITEM = "a request of a batch is a dict with method and url, or a tuple such as ('GET', url)"
DEEPEST = 8
"""How deep batches stand within one another."""
TREE_MOST = 10_000
"""How many requests a batch with others in it takes: all of it is stored by one transaction."""
_LOST = (JobState.FAILED, JobState.CANCELLED)
NOT_FOR_ONE = ("unique", "hold", "start_within")
OF_BATCH = ("channel", "policy", "final")
"""The options of a batch within a batch."""


class RequestItem(RequestOptions, total=False):
    """A request of a batch, as a dict."""

    method: str
    url: Required[str]


class BatchItem(TypedDict, total=False):
    """A batch within a batch, as a dict."""

    batch: Required[Iterable["Item"]]
    channel: str | None
    policy: FailurePolicy | None
    final: "Item | None"


Item = RequestItem | BatchItem | Mapping[str, Any] | Sequence[Any]


class NewTree(NamedTuple):
    """A batch with all that is in it: the arguments of `chains.start`."""

    run: NewRun
    plan: Sequence[NewStep]
    jobs: Sequence[NewJob]
    batches: Sequence[NewBatch] = ()

    @property
    def parts(self) -> Iterator["NewTree | NewBatch"]:
        """It and every batch within it."""
        waiting: list[NewTree | NewBatch] = [self]
        while waiting:
            yield (one := waiting.pop())
            waiting += one.batches


class Response(msgspec.Struct, frozen=True):
    """The response to a request of a batch, or the end of a `batch` in it; `state` is C's word."""

    id: str
    ordinal: int
    state: str
    result: Any = None
    error: JobError | None = None
    batch: bool = False


class RequestBatch(RunHandle):
    """A batch of requests as it stood when it was last read."""

    def _responses(self) -> Stream[Response]:
        """Read the responses, in the order of the requests, a page at a time."""
        run = self._client.flow
        for run_id in (yield from run(chains.chain, self.id)):
            pages = partial(requests.responses, run_id, most=CHUNK, ended=run_id != self.id)
            after: str | None = None
            while page := (yield from run(pages, after=after)):
                for row in page:
                    yield self._response(row)
                after = page[-1].id

    responses, responses_async = streams(_responses)

    def _batches(self) -> Flow[list["RequestBatch"]]:
        """List the batches within it, those that succeeded before it was resumed first."""
        run, found = self._client.flow, []
        for run_id in (yield from run(chains.chain, self.id)):
            for branch in (yield from run(runs.tree, run_id)):
                counts = run_id == self.id or branch.state == RunState.SUCCEEDED
                if branch.parent_id == run_id and counts:
                    found.append(RequestBatch(self._client, branch.id))
        return found

    batches, batches_async = faces(_batches)

    def _response(self, row: ResponseRow) -> Response:
        views = RUN_VIEWS if row.batch else JOB_VIEWS
        word = views["C"].word(Facts(row.state, row.fence, row.phase))
        result = None if row.result is None else self._client.codec.decode(row.result)
        error = failures.failure(row) if row.state in _LOST else None
        return Response(row.id, row.ordinal or 0, word, result, error, bool(row.batch))


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a batch of requests."""

    channel: str | None = None
    policy: FailurePolicy | None = None
    final: Item | None = None
    deadline: float | None = None
    queue: str | None = None
    priority: int = 0
    tags: Mapping[str, str] | None = None
    known: KnownLimits = NO_LIMITS
    """Limits that requests may call by their names, besides those that this program declares."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        check({n: getattr(self, n) for n in ("queue", "priority", "channel")})
        check_seconds("deadline", self.deadline, zero=False)
        check_failure_policy(self.policy, what="a batch of requests")


class _Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The payload of the run."""

    final: Request | None = None


class Batches:
    """The batches of requests of one app."""

    def __init__(self, host: Host, single: Requests) -> None:
        self._host = host
        self._single = single
        self._definition = define(FINAL, self.final)
        if can_send():
            host.registry.add(self._definition, own=True)

    async def final(self, ctx: Context) -> Any:
        """Make the batch's own call, once its requests have ended well enough."""
        client = self._host.client
        run = await client.run_async(runs.get, ctx.claim.run_id or "")
        request = client.codec.decode(run.payload or b"{}", _Plan).final
        if request is None:
            raise Invalid(f"run {run.id} has no final call")
        if request.json is msgspec.UNSET and request.content is None and request.method != "GET":
            work, *_ = await client.run_async(fanin.steps, run.id)
            ended = {"complete": work.succeeded, "failed": work.lost}
            told = {"batch": run.id, "requests": sum(ended.values()), **ended}
            request = msgspec.structs.replace(request, json=told)
        return await Attempt(self._single, ctx, request).outcome()

    # Starting

    def start(
        self, items: Iterable[Item], asking: BatchOptions, shared: Mapping[str, Any]
    ) -> Flow[RequestBatch]:
        """Store a batch: all of it, or nothing that will be sent."""
        body = self._started(items, asking, shared)
        return self._host.client.submitting(KIND, body, lambda made: {"run_id": made.id})

    def _started(
        self, items: Iterable[Item], asking: BatchOptions, shared: Mapping[str, Any]
    ) -> Flow[RequestBatch]:
        client, run = self._host.client, self._host.client.flow
        new, plan = self._new(asking)
        made = self._items(items, asking, shared, new, path="items")
        first = list(islice(made, CHUNK + 1))
        batch = RequestBatch(client, new.id)
        if len(first) <= CHUNK or _any_batch(first, items):
            tree = _tree(new, plan, chain(first, made))
            yield from client.tell_rules()
            yield from run(chains.start, *tree, admit=client.refuse_full)
            return batch
        held = msgspec.structs.replace(new, hold_us=micros(client.settings.hold_limit))
        yield from run(chains.start, held, plan, [], hold=True)
        counts: Counter[str] = Counter()
        try:
            while first:
                jobs = [_hold(job) for job in first]
                yield from client.tell_rules()
                yield from run(runs.add, new.id, jobs)
                counts.update(job.template.queue for job in jobs if not _starts_later(job))
                first = list(islice(made, CHUNK))
            yield from run(client.refuse_more, counts)
        except BaseException:
            yield Wait(batch.cancel, batch.cancel_async, ("it could not be filled",))
            raise
        yield from run(runs.submit, new.id, actor=caller().actor)
        return batch

    def starting(
        self, items: Sequence[Item], asking: BatchOptions, shared: Mapping[str, Any]
    ) -> NewTree:
        """Check everything, and give the arguments of `chains.start`, which the API runs."""
        new, plan = self._new(asking)
        return _tree(new, plan, self._items(items, asking, shared, new, path="requests"))

    def _new(self, asking: BatchOptions) -> tuple[NewRun, list[NewStep]]:
        client, final = self._host.client, None
        if asking.final is not None:
            method, url, asked = _parse_item(asking.final, {})
            if wrong := sorted({"limit", "limit_key", "units"} & asked.keys()):
                raise Invalid(f"the final call takes no {', '.join(wrong)}: a run has one")
            _, final = self._single.prepare(method, url, asked)
        payload = client.codec.encode(_Plan(final))
        new = NewRun(
            id=new_id(),
            kind=KIND,
            payload=limited(payload, most=client.settings.payload_most, what="the final call"),
            codec=client.codec.name,
            actor=caller().actor,
            policy=msgspec.json.encode(asking.policy or FailFast()).decode(),
            queue=asking.queue or "default",
            priority=asking.priority,
            tenant=caller().tenant,
            trace=caller().trace,
            tags=encode_tags(asking.tags),
            channel=asking.channel or client.channel,
            deadline_us=None if asking.deadline is None else micros(asking.deadline),
        )
        return new, self._plan(asking, final)

    def _plan(self, asking: BatchOptions, final: Request | None) -> list[NewStep]:
        failure_policy = asking.policy or FailFast()
        place = {"queue": asking.queue or "default", "priority": asking.priority}
        work = Step(0, "request", "work", self._single.definition).planned(failure_policy)
        plan = [msgspec.structs.replace(work, slots=SLOTS, **place)]
        if final is not None:
            last = Step(1, "final", "reduce", self._definition).planned(failure_policy)
            policy = None if final.crash == "resend" else final.crash
            plan.append(msgspec.structs.replace(last, policy=policy, **place))
        return plan

    def _items(
        self,
        items: Iterable[Item],
        asking: BatchOptions,
        shared: Mapping[str, Any],
        run: NewRun,
        *,
        path: str,
    ) -> Iterator[NewJob | NewBatch]:
        """Make the items of a batch, one by one; an invalid one is named by its path."""
        common = {"queue": asking.queue, "priority": asking.priority, **shared}
        for ordinal, item in enumerate(items):
            if _is_batch(item):
                within = msgspec.structs.replace(asking, deadline=None, tags=None)
                here = f"{path}[{ordinal}]"
                yield self._batch(item, within, shared, run, ordinal=ordinal, path=here)
                continue
            try:
                made = self._job(item, common, run, ordinal=ordinal, known=asking.known)
            except Invalid as error:
                raise Invalid(f"{path}[{ordinal}]: {error}") from error
            yield made

    def _job(
        self,
        item: Item,
        common: Mapping[str, Any],
        run: NewRun,
        *,
        ordinal: int,
        known: KnownLimits,
    ) -> NewJob:
        method, url, asked = _parse_item(item, common)
        if wrong := [name for name in NOT_FOR_ONE if asked.get(name)]:
            raise Invalid(f"a request of a batch takes no {', '.join(wrong)}")
        job, request = self._single.prepare(method, url, asked, known)
        made = job.new((request,), {})
        told = asked.get("channel")  # the app's own is told by the run
        # Their keys stand with the jobs, so that one statement stores many.
        changed = {"run_id": run.id, "step": 0, "channel": told, "limit_key": None}
        inside = msgspec.structs.replace(made.template, **changed)
        key = made.key or made.template.limit_key
        return msgspec.structs.replace(made, template=inside, ordinal=ordinal, key=key)

    def _batch(
        self,
        item: Mapping[str, Any],
        common: BatchOptions,
        shared: Mapping[str, Any],
        parent: NewRun,
        *,
        ordinal: int,
        path: str,
    ) -> NewBatch:
        """Make a batch within a batch: it waits in the same queue, with the same priority."""
        depth = (parent.depth or 0) + 1
        try:
            items = _check_batch(item, depth=depth)
            told = {name: item.get(name) for name in OF_BATCH}
            asking = msgspec.structs.replace(common, **told)
            new, plan = self._new(asking)
        except Invalid as error:
            raise Invalid(f"{path}: {error}") from error
        # The app's own channel hears of the outermost one.
        place = {"parent_id": parent.id, "ordinal": ordinal, "depth": depth}
        run = msgspec.structs.replace(new, channel=asking.channel, **place)
        made = list(self._items(items, asking, shared, run, path=f"{path}.batch"))
        if not made:
            raise Invalid(f"{path}.batch: a batch within a batch has one request at least")
        return NewBatch(run, plan, *_divided(made))


def _is_batch(item: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(item, Mapping) and "batch" in item


def _any_batch(made: Iterable[NewJob | NewBatch], items: Iterable[Item]) -> bool:
    """Tell whether batches are among the items; of an iterator, among the first ones."""
    given = items if isinstance(items, Sequence) else ()
    return any(isinstance(one, NewBatch) for one in made) or any(map(_is_batch, given))


def _check_batch(item: Mapping[str, Any], *, depth: int) -> Iterable[Item]:
    if unknown := sorted(str(name) for name in item.keys() - {"batch", *OF_BATCH}):
        raise Invalid(
            f"a batch within a batch takes batch, {', '.join(OF_BATCH)}, not {', '.join(unknown)}"
        )
    if depth > DEEPEST:
        raise Invalid(f"batches stand at most {DEEPEST} deep within one another")
    items: Any = item["batch"]
    if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping):
        raise Invalid("batch: a list of requests, each a dict with method and url")
    return items


def _divided(made: Iterable[NewJob | NewBatch]) -> tuple[list[NewJob], list[NewBatch]]:
    jobs: list[NewJob] = []
    batches: list[NewBatch] = []
    for one in made:
        if isinstance(one, NewBatch):
            batches.append(one)
        else:
            jobs.append(one)
    return jobs, batches


def _tree(run: NewRun, plan: Sequence[NewStep], made: Iterable[NewJob | NewBatch]) -> NewTree:
    jobs, batches = _divided(made)
    if not batches:
        return NewTree(run, plan, jobs)
    tree = NewTree(msgspec.structs.replace(run, depth=0), plan, jobs, batches)
    if (count := sum(len(part.jobs) for part in tree.parts)) > TREE_MOST:
        raise Invalid(
            f"a batch with others in it takes {TREE_MOST:,} requests in all, not {count:,}: start "
            "several"
        )
    return tree


def _parse_item(item: Any, common: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Take an item of a batch apart into its method, its URL and the rest."""
    if isinstance(item, Mapping):
        asked = {**common, **item}
        if "url" not in asked:
            raise Invalid(ITEM)
        return asked.pop("method", "GET"), asked.pop("url"), asked
    if isinstance(item, list | tuple) and 2 <= len(item) <= 3:  # noqa: PLR2004 - method, url, rest
        rest = item[2] if len(item) > 2 else {}  # noqa: PLR2004 - as above
        if isinstance(rest, Mapping):
            return item[0], item[1], {**common, **rest}
    raise Invalid(ITEM)


def _starts_later(job: NewJob) -> bool:
    """Tell whether a held job has a time before which it does not start."""
    return job.template.delay_us is not None or job.template.due_at is not None


def _hold(job: NewJob | NewBatch) -> NewJob:
    if isinstance(job, NewBatch):
        raise Invalid(
            f"a batch came after the first {CHUNK} items of an iterator; give them as a list"
        )
    template = msgspec.structs.replace(job.template, state=JobState.CREATED.value)
    return msgspec.structs.replace(job, template=template)
