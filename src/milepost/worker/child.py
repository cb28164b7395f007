"""The process of isolated jobs: imports the app as the worker did, and runs one attempt at a time.

Steps, transactions, cursors and signals go to the store over a connection of its own, opened when
first used, under the attempt's fence. Progress, lines and counts go to the worker, which writes
them as it does those of its threads.
"""

import asyncio
import faulthandler
import importlib
import multiprocessing.spawn
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar, copy_context
from itertools import count
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import msgspec

from milepost import outcome
from milepost.address import StoreUrl
from milepost.client import Caller, Client, Importing, acting
from milepost.context import Context
from milepost.declare import Definition, Host
from milepost.errors import Invalid
from milepost.faces import Flow, Wait
from milepost.hooks import POINTS, Ended, Hook, HookEvent, Hooks, Made
from milepost.outcome import Outcome
from milepost.policy import MESSAGE_LIMIT, message_of
from milepost.records import Claim
from milepost.store.connections import end_with_process
from milepost.tracebacks import hidden
from milepost.worker import warden
from milepost.worker.execute import Executor, Interrupted
from milepost.worker.pipe import (
    Attempt,
    Begin,
    Broken,
    Done,
    HookBegin,
    HookBegun,
    HookEnd,
    Message,
    Pipe,
    Place,
    Ready,
    Report,
    Severed,
    Stop,
)
from milepost.worker.surroundings import STOPS, Surroundings, hears_warden

REPORT_SECONDS = 0.1
BURST = 50
"""This many reports of an attempt are sent at once; the later ones ten a second."""
MAIN = "__mp_main__"
"""The name that the program's own module is imported under, as by `multiprocessing`."""
LOGGING = "milepost.cli.logs"
OOM_SCORE = "1000"
HEARD_SECONDS = 5 * warden.WHERE_SECONDS

T = TypeVar("T")
_kept = ExitStack()
"""What lasts as long as the process."""
_inside: ContextVar[int] = ContextVar("milepost_hooked", default=0)


class Reporter:
    """Sends progress, lines and counts of an attempt: at once while few, later together."""

    def __init__(self, pipe: Pipe, number: int) -> None:
        self._pipe = pipe
        self._empty = Report(number)
        self._is_over = False
        self._sent_at = 0.0
        self._burst = BURST
        self._usage: dict[str, float] | None = None

    def tell(self, context: Context) -> None:
        """Send what there is; if that was done too often, a thread sends it soon."""
        now = time.monotonic()
        if self._is_over:
            return
        if self._burst <= 0 and now - self._sent_at < REPORT_SECONDS:
            return
        report = self.taken(context)
        if report == self._empty:
            return
        self._sent_at = now
        self._burst -= 1
        if not self._pipe.send(report, blocking=False):
            self._give_back(context, report)

    def taken(self, context: Context) -> Report:
        """Take what was told and is not sent yet."""
        progress, usage = context.take_progress(), context.usage
        counted = None if usage == self._usage else dict(usage or {})
        self._usage = counted or self._usage
        told = None if progress is None else (progress.share, progress.text)
        return Report(self._empty.number, told, context.take_lines(), counted)

    def last(self, context: Context) -> Report:
        """Take what goes with the outcome; what threads of the handler tell later is not sent."""
        self._is_over = True
        return self.taken(context)

    def _give_back(self, context: Context, report: Report) -> None:
        self._burst, self._usage = 0, None  # soon, and not now
        context.put_back(report.lines)
        if report.progress is not None and not context.has_progress:
            context.relay(report.progress, (), None)


class ChildContext(Context):
    """The attempt as its handler holds it; progress and lines go to the worker."""

    __slots__ = ("_reporter",)

    def __init__(self, claim: Claim, client: Client, reporter: Reporter) -> None:
        super().__init__(claim, client)
        self._reporter = reporter

    def _may_write(self) -> bool:
        self._tell()
        return False

    def count(self, name: str, amount: float = 1) -> None:
        """Add to the usage of this attempt; recorded with its outcome, also a failure."""
        super().count(name, amount)
        self._tell()

    def keep_line(self, at: float, level: str, logger: str, text: str) -> None:
        """Keep a line with the job."""
        super().keep_line(at, level, logger, text)
        self._tell()

    def _tell(self) -> None:
        with suppress(Severed):  # whoever sends the outcome notices
            self._reporter.tell(self)

    def write_progress(self) -> None:
        """Leave it to the worker."""

    async def write_progress_async(self) -> None:
        """Leave it to the worker."""


def _elsewhere(_: HookEvent) -> Made:
    raise NotImplementedError


_THERE = Hook(_elsewhere)
"""Stands for the worker's hooks."""


class RemoteHooks(Hooks):
    """Has the worker run the hooks of steps and submits: it is there that a program counts them."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe
        self._count = count(1)
        self._begun: dict[int, Future[Caller]] = {}

    def stand_at(self, points: Collection[str]) -> None:
        """Learn where the worker has hooks."""
        self.at = {point: (_THERE,) if point in points else () for point in POINTS}

    def watch(
        self,
        event: HookEvent,
        body: Flow[T],
        ended: Ended[T] = lambda _: {"outcome": "done"},
    ) -> Flow[T]:
        """Run an operation between the halves of hooks that run in the worker."""
        if not self._pipe.is_own:
            return (yield from body)  # nobody would answer
        number = next(self._count)
        token, began = None, time.perf_counter()
        told: dict[str, Any] = {"outcome": "raised"}
        raised: BaseException | None = None
        try:
            by = yield Wait(self._begin, self._begin_async, (number, event))
            token, began = _inside.set(number), time.perf_counter()
            with acting(by.actor, tenant=by.tenant, trace=by.trace):
                result = yield from body
            told = ended(result)
        except BaseException as error:
            raised = error
            raise
        finally:
            if token is not None:
                _inside.reset(token)
            self._end(number, time.perf_counter() - began, told, raised)
        return result

    def _asked(self, number: int, event: HookEvent) -> "Future[Caller]":
        answer = self._begun[number] = Future()
        told = msgspec.structs.asdict(event)
        del told["error"]
        self._pipe.send(HookBegin(number, _inside.get(), told))
        return answer

    def _begin(self, number: int, event: HookEvent) -> Caller:
        return self._asked(number, event).result()

    async def _begin_async(self, number: int, event: HookEvent) -> Caller:
        return await asyncio.wrap_future(self._asked(number, event))

    def _end(
        self, number: int, seconds: float, told: dict[str, Any], error: BaseException | None
    ) -> None:
        said = None if error is None else hidden(message_of(error)[: 2 * MESSAGE_LIMIT])
        named = None if said is None else (type(error).__qualname__, said[:MESSAGE_LIMIT])
        with suppress(Severed):  # whoever sends the outcome notices
            self._pipe.send(HookEnd(number, seconds, told, named))

    def take(self, message: HookBegun) -> None:
        """Let the operation begin whose hooks have."""
        answer = self._begun.pop(message.number, None)
        # A task that waited for it may have been cancelled.
        if answer is not None and answer.set_running_or_notify_cancel():
            answer.set_result(message.caller)


class Child:
    """Runs attempts, in the main thread, while another one listens to the worker."""

    def __init__(self, pipe: Pipe, app: Host) -> None:
        self._pipe = pipe
        self._app = app
        client = app.client
        self._client = client
        self._hooks = client.hooks = RemoteHooks(pipe)
        self._executor = Executor(client.codec, client.hooks, max_result=app.settings.max_payload)
        self._waiting: queue.SimpleQueue[Attempt] = queue.SimpleQueue()
        self._running: tuple[int, ChildContext] | None = None
        self._stop: Stop | None = None
        """The last request to stop; it may come before its attempt runs."""
        self._task: asyncio.Task[Outcome] | None = None
        self._runner: asyncio.Runner | None = None
        self._before = Surroundings()
        self._is_outdated = False
        """Whether its source lacks a job that the worker knows: a new process may have it."""

    def run(self) -> None:
        """Run what comes until the worker is gone."""
        threading.Thread(target=self._listen, name="milepost-listener", daemon=True).start()
        threading.Thread(target=self._report, name="milepost-reporter", daemon=True).start()
        self._pipe.send(Ready(held()))
        while True:
            attempt = self._waiting.get()
            reporter = Reporter(self._pipe, attempt.number)
            context = ChildContext(attempt.claim, self._client, reporter)
            self._hooks.stand_at(attempt.hooked)
            self._running = attempt.number, context
            stopped = self._stopped(attempt)
            result = stopped or copy_context().run(self._called, attempt, context)
            self._running = None
            if hears_warden():
                time.sleep(HEARD_SECONDS)  # it may have ended by that signal: it is killed now
            left = self._before.restore() or self._is_outdated
            report = reporter.last(context)
            self._pipe.send(Done(attempt.number, result, report, held(), left))

    def _stopped(self, attempt: Attempt) -> Outcome | None:
        """Do not begin what was asked to stop while it was handed over."""
        stop = self._stop
        if stop is None or stop.number != attempt.number:
            return None
        return outcome.cancelled(stop.reason)

    def _called(self, attempt: Attempt, context: ChildContext) -> Outcome:
        by = attempt.caller
        context.trace = by.trace
        with acting(by.actor, tenant=by.tenant, trace=by.trace):
            claim = attempt.claim
            definition = self._app.registry.find(claim.kind, claim.kind_version)
            if definition is None:
                self._is_outdated = True
                return outcome.failed(_undeclared(claim))
            if not definition.is_async:
                return self._executor.run(definition, context)
            if self._runner is None:
                self._runner = asyncio.Runner()
            with _own_threads(self._runner.get_loop()):
                return self._runner.run(self._awaited(definition, context), context=copy_context())

    async def _awaited(self, definition: Definition, context: ChildContext) -> Outcome:
        work = self._executor.run_async(definition, context)
        self._task = task = asyncio.get_running_loop().create_task(work)
        if context.cancelled:  # before there was a task
            task.cancel()
        try:
            return await task
        except asyncio.CancelledError:
            if context.reason is not None:
                return outcome.cancelled(context.reason)
            error = Interrupted("a task that the handler waited for was cancelled")
            return self._executor.judge(definition, context, error)
        finally:
            self._task = None

    def _listen(self) -> None:
        """Take what the worker sends; without a worker, or a listener, there is nothing to do."""
        while True:
            try:
                self._take(self._pipe.read())
            except Severed:
                os._exit(1)
            except BaseException as error:  # noqa: BLE001 - the process would hear nothing any more
                _leave(error)

    def _take(self, message: Message) -> None:
        if isinstance(message, Attempt):
            self._waiting.put(message)
        elif isinstance(message, HookBegun):
            self._hooks.take(message)
        elif isinstance(message, Stop):
            self._stop = message
            if (running := self._running) is not None and running[0] == message.number:
                running[1].ask_to_stop(message.reason)
                if self._runner is not None and (task := self._task) is not None:
                    self._runner.get_loop().call_soon_threadsafe(task.cancel)

    def _report(self) -> None:
        """Send what an attempt told too often for it to be sent at once."""
        while True:
            time.sleep(REPORT_SECONDS)
            if (running := self._running) is not None:
                running[1]._tell()  # noqa: SLF001 - our own


@contextmanager
def _own_threads(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Give an attempt threads of its own: calls that it gives up keep theirs until they end."""
    threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
    loop.set_default_executor(threads)
    try:
        yield
    finally:
        threads.shutdown(wait=False)


def _undeclared(claim: Claim) -> outcome.Problem:
    return outcome.Problem(
        type="Invalid",
        message=(
            f"job {claim.kind!r} version {claim.kind_version} is not declared when its process "
            "imports the app's module: declare isolated jobs at the top of that module, or of one "
            "that it imports"
        ),
        kind="permanent",
        code="configuration",
        attempt=claim.attempt,
    )


def held() -> int:
    """Say how many bytes this process holds; 0 where that cannot be read."""
    found = warden.sample("self")
    return 0 if found is None else found[3]


# Beginning


def main(descriptor: int, crash: int) -> None:
    """Import the app, and run attempts; called by the program that a warden starts."""
    _die_with_parent()
    for kept in (descriptor, crash):
        if kept >= 0:
            os.set_inheritable(kept, False)
    _disarm_signals()
    end_with_process()
    if crash >= 0:
        faulthandler.enable(crash)
        faulthandler.register(warden.WHERE, crash, all_threads=False, chain=True)
    pipe = Pipe(socket.socket(fileno=descriptor))
    try:
        begin = pipe.read()
        if not isinstance(begin, Begin):
            raise Severed("its first message is no Begin")  # noqa: TRY301 - nobody listens
        try:
            app = _imported(begin)
        except BaseException as error:  # noqa: BLE001 - sys.exit() in a module, too
            told = "".join(traceback.format_exception_only(error)).strip()
            pipe.send(Broken(told))
            return
        Child(pipe, app).run()
    except Severed:
        os._exit(1)
    except BaseException as error:  # noqa: BLE001 - sys.exit() in a task of a handler's, too
        _leave(error)


def _leave(error: BaseException) -> NoReturn:
    """End at once: Python would wait for the threads of handlers, and the worker for this."""
    with suppress(Exception):
        if not isinstance(error, SystemExit):
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    code = error.code if isinstance(error, SystemExit) else 1
    os._exit(code & 0xFF if isinstance(code, int) else int(code is not None))


def _imported(begin: Begin) -> Host:
    sys.argv[:] = begin.argv
    Importing.now = True
    try:
        found = getattr(_module(begin.place), begin.place.attribute, None)
    finally:
        Importing.now = False
    if found is None:
        raise Invalid(
            f"{begin.place.module} has no {begin.place.attribute} when the job's process imports it"
        )
    app: Any = found
    address = StoreUrl.parse(begin.address)
    if app.client.url != address:
        app.client.move_to(address)
    if begin.logging is not None:
        app.settings = app.settings.chosen(log_level=begin.logging[0], log_format=begin.logging[1])
        # A name: the commands stand above, and only they ask for it.
        _kept.enter_context(importlib.import_module(LOGGING).logging_as(app.settings))
    host: Host = app
    return host


def _module(place: Place) -> ModuleType:
    data = {"init_main_from_name": place.main_name, "init_main_from_path": place.main_path}
    main = {name: value for name, value in data.items() if value is not None}
    if main:
        multiprocessing.spawn.prepare(main)
        return sys.modules[MAIN]
    return importlib.import_module(place.module)


def _die_with_parent() -> None:
    """Die with the warden, be killed before others where memory runs out, and adopt orphans."""
    parent = os.getppid()
    warden.prctl(warden.SET_PDEATHSIG, signal.SIGKILL)
    warden.prctl(warden.SET_CHILD_SUBREAPER, 1)
    if os.getppid() != parent:
        os._exit(1)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
        file.write(OOM_SCORE)


def _disarm_signals() -> None:
    """Let the worker decide when to stop: a service manager signals every process."""
    for number in STOPS:
        signal.signal(number, _nothing)  # SIG_IGN would be inherited by programs
    os.register_at_fork(after_in_child=_rearm_signals)


def _nothing(_number: int, _frame: object) -> None: ...


def _rearm_signals() -> None:
    for number in STOPS:
        if signal.getsignal(number) is _nothing:
            usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, usual)
