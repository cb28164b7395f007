"""Jobs and runs that arrive as messages (spec C's `add_job_from_message`).

A message holds the document of `POST /v1/jobs`: `kind`, `args`, `kwargs`, `options`; or the one of
`POST /v1/batches/{name}/runs` with the name of the batch: `batch`, `params`, `options`; plain, or
as the data of a CloudEvent. It is acknowledged after the commit that stores its job or run, and its
id is remembered by that same commit: one that comes again makes no second one (H-53). One that can
never be either is kept for operators to see, and does not come again.

One whose queue is full is given back. Until there is room again no more are taken than fit: brokers
count how often a message comes, and give up at last.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Protocol

import msgspec

from milepost.client import Client, acting
from milepost.codec import DEEPEST, check_text, nested_deeper
from milepost.declare import Registry
from milepost.errors import Invalid, LeaseLost, MilepostError, NotFound, QueueFull, Unavailable
from milepost.options import SubmitOptions, check_names, read
from milepost.records import NewJob
from milepost.relay.adapter import DeliveryCounter
from milepost.relay.broker import Broker, Delivery, Incoming, cancelled, trouble_seconds
from milepost.relay.message import read_traceparent
from milepost.store import inbox
from milepost.store.driver import AsyncDriver, Steps
from milepost.telemetry import Log

log = Log("milepost.relay")

AT_ONCE = 64
WAIT_SECONDS = 2.0
AGAIN_SECONDS = 5.0
FULL_SECONDS = 1.0
"""How often a queue that was full is looked at again."""
DELIVERIES_MOST = 20
"""How often a message may come that is not wrong in itself: of a kind that is not declared yet."""
KEPT_BYTES = 64 * 1024

_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")


class Submitter(Protocol):
    """The part of an app that makes jobs of names and values."""

    registry: Registry
    client: Client

    def new_job(
        self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> NewJob:
        """Make a job that is to be stored, or raise `Invalid` saying what does not fit."""
        ...

    def new_run(
        self, name: str, params: Any, options: Mapping[str, Any]
    ) -> Callable[[], Steps[str]]:
        """Give the operation that starts a run of a batch, `NotFound` if there is none."""
        ...


class Submission(msgspec.Struct, forbid_unknown_fields=True):
    """A job as a message asks for it."""

    kind: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    options: dict[str, Any] = {}


class RunOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a run that a message asks for."""

    reuse: bool = False
    deadline: float | None = None
    priority: int = 0
    tags: dict[str, str] | None = None
    channel: str | None = None


class RunSubmission(msgspec.Struct, forbid_unknown_fields=True):
    """A run of a batch as a message asks for it."""

    batch: str
    params: Any = None
    options: RunOptions = RunOptions()


Asked = Submission | RunSubmission


class _Envelope(msgspec.Struct):
    """The attributes of a CloudEvent that matter here."""

    specversion: str
    id: str
    source: str
    data: Any
    traceparent: str | None = None


class _UnknownKind(MilepostError):  # noqa: N818 - caught here
    """No program here declares that kind or batch; another, or a newer one, may."""


class Inbound(msgspec.Struct, frozen=True):
    """A program's declaration of where jobs come from."""

    name: str
    broker: Broker
    subject: str
    tenant: str = ""


def declare_inbound(
    name: str, broker: Broker, subject: str | None, tenant: str | None = None
) -> Inbound:
    """Make an inbound, or raise `Invalid`."""
    if not _NAME.fullmatch(check_text(name, what="name")):
        raise Invalid(f"name={name!r} may hold letters, digits, dashes and underscores")
    owner = "" if tenant is None else check_text(tenant, what="tenant")
    place = name if subject is None else subject
    return Inbound(name, broker, check_text(place, what="subject"), owner)


class Receiver:
    """Receives for one declaration, in every worker that has it."""

    def __init__(
        self, driver: AsyncDriver, inbound: Inbound, host: Submitter, *, most_bytes: int
    ) -> None:
        self._driver = driver
        self._inbound = inbound
        self._host = host
        self._most = most_bytes
        self._counter = DeliveryCounter()
        self._full: str | None = None
        """A queue that had no room for a message."""
        self._turn = asyncio.Lock()

    async def run(self) -> None:
        """Receive until cancelled."""
        trouble = 0
        try:
            while not cancelled():
                try:
                    await self.once(WAIT_SECONDS)
                    trouble = 0
                except Exception as error:  # noqa: BLE001 - the broker or the store is away
                    if cancelled():
                        break
                    trouble += 1
                    log.warning(
                        "receiving failed, tried again",
                        inbound=self._inbound.name,
                        error=str(error),
                    )
                    await asyncio.sleep(trouble_seconds(trouble))
        finally:
            with suppress(Exception):
                await self._inbound.broker.close()

    async def once(self, seconds: float) -> int:
        """Receive the messages that are there, or come in time; answer with how many."""
        inbound, most = self._inbound, await self._room()
        if not most:
            await asyncio.sleep(min(FULL_SECONDS, seconds))
            return 0
        found = await inbound.broker.receive(
            inbound.subject, name=inbound.name, most=most, seconds=seconds
        )
        await asyncio.gather(*(self._take(delivery) for delivery in found))
        return len(found)

    async def _room(self) -> int:
        """Tell how many messages to take: while a queue is full, as many as fit into it."""
        if self._full is None:
            return AT_ONCE
        room = await self._driver.run(self._host.client.room, self._full)
        if room is None or room >= AT_ONCE:
            log.info("queue has room again, receiving goes on", queue=self._full)
            self._full = None
            return AT_ONCE
        return room

    async def _take(self, delivery: Delivery) -> None:
        """Bring a message to an end; whatever goes wrong, it does not stay in hand."""
        try:
            await self._accept(delivery)
        except Exception:
            await delivery.again(AGAIN_SECONDS)
            raise

    async def _accept(self, delivery: Delivery) -> None:
        try:
            await self._store(*self._read(delivery.message))
        except Unavailable:
            raise
        except LeaseLost:  # a unique key changed hands too often: it is right, and comes again
            await delivery.again(AGAIN_SECONDS)
        except QueueFull as error:
            # It is right, and stays the broker's: it is not counted as one that nobody can handle.
            if self._full is None:
                log.warning("queue is full", inbound=self._inbound.name, queue=error.queue)
            self._full = error.queue
            await delivery.again(AGAIN_SECONDS)
        except _UnknownKind as error:
            await self._put_off(delivery, str(error))
        except MilepostError as error:
            await self._refuse(delivery, str(error))
        except Exception as error:  # noqa: BLE001 - one message must not hold up the others
            log.warning("message failed", inbound=self._inbound.name, error=repr(error))
            await self._put_off(delivery, repr(error))
        else:
            # Only now: before the commit a crash would lose it, after it a crash brings it again.
            await delivery.acknowledge()

    async def _store(self, message_id: str, new: NewJob | Callable[[], Steps[str]]) -> None:
        client, source = self._host.client, self._inbound.name
        accept = partial(inbox.accept, create=client.create_in_bounds)
        # One after the other where there is a bound: together they would exceed it.
        async with self._turn if client.may_be_full else nullcontext():
            await self._driver.run(accept, source, message_id, new)

    async def _put_off(self, delivery: Delivery, error: str) -> None:
        """Give a message back that may be right later, so often; then refuse it."""
        count = self._counter.count(delivery.message)
        if count < DELIVERIES_MOST:
            await delivery.again(AGAIN_SECONDS * count)
        else:
            await self._refuse(delivery, error)
            self._counter.forget(delivery.message)

    async def _refuse(self, delivery: Delivery, error: str) -> None:
        source, message = self._inbound.name, delivery.message
        kept = message.data[:KEPT_BYTES]
        await self._driver.run(inbox.refuse, source, message.id, error=error, content=kept)
        log.warning("message refused", inbound=source, message_id=message.id)
        await delivery.terminate()

    def _read(self, message: Incoming) -> tuple[str, NewJob | Callable[[], Steps[str]]]:
        """Make what a message asks for, or raise `Invalid` saying why there is nothing to make."""
        if len(message.data) > self._most:
            raise Invalid(f"the message is larger than {self._most:,} bytes")
        message_id, trace, asked = _parse(message)
        inbound, trace = self._inbound, read_traceparent(trace)
        with acting(f"inbound {inbound.name}", tenant=inbound.tenant, trace=trace):
            if isinstance(asked, RunSubmission):
                return message_id, self._run(asked)
            return message_id, self._job(asked)

    def _job(self, asked: Submission) -> NewJob:
        if not any(definition.name == asked.kind for definition in self._host.registry.all):
            raise _UnknownKind(f"no job is called {asked.kind!r} here")
        check_names(SubmitOptions, asked.options, what="options")
        options = read(SubmitOptions, asked.options, what="options")
        return self._host.new_job(asked.kind, asked.args, asked.kwargs, options)

    def _run(self, asked: RunSubmission) -> Callable[[], Steps[str]]:
        options = msgspec.structs.asdict(asked.options)
        try:
            return self._host.new_run(asked.batch, asked.params, options)
        except NotFound as error:
            raise _UnknownKind(str(error)) from error


def _parse(message: Incoming) -> tuple[str, str | None, Asked]:
    """Read a message, plain or as a CloudEvent: its id, its trace, and what it asks for."""
    message_id, trace = message.id, message.headers.get("traceparent")
    if nested_deeper(message.data, DEEPEST):
        raise Invalid(f"the message is no job: it is nested more than {DEEPEST} deep")
    is_event = message.headers.get("content-type", "").startswith("application/cloudevents")
    what = "job"
    try:
        found = msgspec.json.decode(message.data)
        if is_event or (isinstance(found, dict) and "specversion" in found):
            event = msgspec.convert(found, _Envelope)
            message_id, trace = f"{event.source} {event.id}", event.traceparent or trace
            found = event.data
        if isinstance(found, dict) and "batch" in found:
            what = "run"
            return message_id, trace, msgspec.convert(found, RunSubmission)
        return message_id, trace, msgspec.convert(found, Submission)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"the message is no {what}: {error}") from error
