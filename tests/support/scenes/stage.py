"""A store with a program on it, whose clock, workers and brokers a scene has in its hand."""

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import milepost as mp
from milepost import outcome
from milepost.batch.declaration import Batch
from milepost.outcome import Outcome, Problem
from milepost.records import Claim, Settlement
from milepost.relay.nats import Nats
from milepost.store import jobs, limits, timers, workers
from milepost.store.limits import Reach
from milepost.store.workers import NewWorker
from tests.support.brokers import NatsServer

__all__ = ["SCENES", "Scene", "Stage", "scene"]

LEASE_SECONDS = 99_999.0
WIDE = Reach(front=100, visits=50, newest=8, quantum=50)
CUSTOMER = "acme"


class Stage:
    """What a scene is played on."""

    def __init__(self, url: str, *, subject: str, word: Callable[[str], str] = str) -> None:
        """Play on a store; `word` makes names and texts of people into what is to be shown."""
        self.url = url
        self.subject = subject
        self.word = word
        self.kind = word("work")
        self.queue = word("default")
        self._left = ExitStack()
        self.app = self.program()
        self._submit: Callable[[str], Any] | None = None

    def close(self) -> None:
        """Stop what was started, and close the programs."""
        self._left.close()

    def program(self) -> mp.App:
        """Start a program: one deployment after the other has the last word."""
        made = mp.App(self.url)
        self._left.callback(made.close)
        return made

    def run(self, operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do something to the store."""
        return self.app.client.run(operation, *args, **kwargs)

    def advance(self, seconds: float) -> None:
        """Move the clock that decides."""
        self.run(workers.advance_clock, seconds)

    # Jobs

    def declare(self, handler: Any = None, **declared: Any) -> None:
        """Declare what is submitted: a job; or a batch of one step, where runs are looked at."""
        self.queue = declared.setdefault("queue", self.queue)
        handler = handler or _work
        if self.subject != "run":
            self._submit = self.app.job(name=self.kind, **declared)(handler).submit
            return
        [params] = [type_ for name, type_ in handler.__annotations__.items() if name != "return"]
        batch = self.batch(params)
        batch.step(name=self.word("work"), **declared)(handler)
        self._submit = lambda customer: _first_of(self.app, batch.start(customer).id)

    def batch(self, params: Any, *, first: str = "work", **options: Any) -> Batch:
        """Declare a batch; workers know the kind of its first step."""
        made = self.app.batch(self.word("pack"), params=params, **options)
        self.kind = f"{made.name}.{self.word(first)}"
        return made

    def submit(self, number: int = 1, **declared: Any) -> list[str]:
        """Submit jobs of one kind, which is declared with the first; each of a run of its own."""
        if self._submit is None:
            self.declare(**declared)
        assert self._submit is not None
        made = [self._submit(self.word(CUSTOMER)) for _ in range(number)]
        return [str(getattr(one, "id", one)) for one in made]

    def ask(self, **options: Any) -> str:
        """Submit a job with options of its own; it is of no run."""
        job = self.app.job(name=self.kind, queue=self.queue)(_work)
        return str(job.options(**options).submit(CUSTOMER).id)

    # Workers

    def employ(
        self,
        name: str = "w",
        *,
        kinds: Sequence[str] | None = (),
        queues: Sequence[str] | None = None,
        busy: bool = False,
        lease: float = LEASE_SECONDS,
    ) -> None:
        """Enter a worker, as one that lives somewhere would enter itself; None: all kinds."""
        known = [f"{self.kind} 1"] if kinds == () else kinds
        new = NewWorker(
            id=self.word(name),
            lease_us=round(lease * 1e6),
            kinds=None if known is None else json.dumps(known),
            queues=None if queues is None else json.dumps(queues),
            slots='{"EXECUTING": 4}' if busy else '{"FREE": 4}',
        )
        self.run(workers.register, new)

    def claim(self, most: int = 1, *, worker: str = "w", alone: bool = False) -> list[Claim]:
        """Claim jobs as a worker does, under limits or not."""
        line = jobs.lines([self.queue])
        asked = {"worker_id": self.word(worker), "line": line, "most": most, "alone": alone}
        found, _ = self.run(limits.claim, **asked, reach=WIDE)
        return list(found) or list(self.run(jobs.claim, **asked))

    def settle(self, ended: Outcome, *, worker: str = "w") -> None:
        """Claim the next job, and end its attempt so."""
        [claim] = self.claim(worker=worker)
        self.run(jobs.settle, [Settlement(claim, ended)], actor=self.word(worker))

    def fail(self, *, after: float | None = None) -> None:
        """Claim the next job, and let its attempt fail: for good, or until then."""
        problem = Problem(type=self.word("ConnectionError"), message="503 from the bank")
        self.settle(
            outcome.failed(problem) if after is None else outcome.retry(problem, after=after)
        )

    def lose(self) -> None:
        """Let a worker die with the next job, and others take it away."""
        self.employ("lost", lease=30.0)
        self.claim(worker="lost")
        self.advance(31)
        self.run(workers.bury, most=10)
        self.run(timers.lose, actor="test", most=10)

    # Brokers

    def nats(self) -> NatsServer:
        """Start a broker of one's own."""
        folder = self._left.enter_context(tempfile.TemporaryDirectory(prefix="nats-"))
        server = NatsServer(Path(folder) / "jetstream")
        server.start()
        self._left.callback(server.kill)
        return server

    def on_broker(self) -> NatsServer:
        """Put the queue on a broker."""
        server = self.nats()
        self.app.queue(self.queue, transport=Nats(server.url, stream="S"))
        return server

    def hand_out(self) -> None:
        """Tell the broker of the jobs that wait for it, as a worker does."""
        self.app.client.run_in_loop(self._handed_out())

    async def _handed_out(self) -> None:
        await self.app.maintain_once_async()
        await self.app.relay_once_async()

    def report(self) -> None:
        """Ask the brokers how they stand, as a worker does."""
        self.app.client.run_in_loop(self._reported())

    async def _reported(self) -> None:
        driver = await self.app.client.async_driver()
        hinted = await self.app._hint_queues(driver, None)
        for reporter in self.app._reporters(driver, hinted):
            await reporter.once()
        for queue in hinted:
            await queue.broker.close()


def _work(customer: str) -> None:
    """Do nothing: scenes claim and settle by themselves."""


def _first_of(app: mp.App, run_id: str) -> str:
    [job] = app.jobs.list(where=f"run:{run_id}")
    return str(job.id)


Play = Callable[[Stage], str]


@dataclass(frozen=True)
class Scene:
    """How something comes to stand where it does, and the reasons that are then told."""

    subject: str
    name: str
    reasons: tuple[str, ...]
    play: Play
    """Plays it on a stage; gives the id, or the name, of what is looked at."""

    def __str__(self) -> str:
        return f"{self.subject}-{self.name}"


SCENES: list[Scene] = []


def scene(*reasons: str, of: Sequence[str] = ("job", "run")) -> Callable[[Play], Play]:
    """Enter a scene: these are the reasons of its subject.

    One of a job is played in a run, too: that tells of its step, and of the job's first reason.
    """

    def enter(play: Play) -> Play:
        for subject in of:
            in_run = subject == "run" and "job" in of
            told = ("step", reasons[0]) if in_run else reasons
            SCENES.append(Scene(subject, play.__name__, told, _of_run(play) if in_run else play))
        return play

    return enter


def _of_run(play: Play) -> Play:
    def played(stage: Stage) -> str:
        return str(stage.app.jobs.get(play(stage)).record.run_id)

    return played
