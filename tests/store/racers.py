"""What the processes of a race do. Started afresh, so that nothing is shared but the store."""

import multiprocessing
import os
import random
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from milepost import outcome
from milepost.address import StoreUrl
from milepost.outcome import Output
from milepost.records import Claim, Settlement
from milepost.store import failpoint, jobs, outputs, runs, timers
from milepost.store.connect import open_driver
from milepost.store.driver import Driver
from milepost.store.postgres import PsycopgDriver

GOOD = outcome.succeeded()
RACING = multiprocessing.get_context("forkserver")
# Imported once for all: a racer has a process of its own, and need not read the engine anew.
RACING.set_forkserver_preload(
    ["psycopg", "milepost.store.postgres", "milepost.store.sqlite", "milepost.store.runs"]
)
MAINTENANCE = "maintenance"


def race(racers: Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]) -> list[Any]:
    """Run every racer in a process of its own; their answers, or the first error of any."""
    started = []
    for racer, arguments in racers:
        here, there = RACING.Pipe(duplex=False)
        process = RACING.Process(target=_racing, args=(there, racer, arguments), daemon=True)
        process.start()
        there.close()
        started.append((process, here))
    answers = [here.recv() for _, here in started]
    for process, _ in started:
        process.join(30)
    errors = [error for _, error in answers if error]
    assert errors == [], errors[0]
    return [answer for answer, _ in answers]


def _racing(pipe: Any, racer: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((racer(*arguments), None))
    except BaseException:  # noqa: BLE001 - whatever it is, the test must hear of it
        pipe.send((None, traceback.format_exc()))


def opened(url: str) -> Driver:
    return open_driver(StoreUrl.parse(url))


def opened_at(url: str, slot: int) -> Driver:
    """Open a store so that what ends is counted in that slot of four: by who serves us."""
    for _ in range(200):
        driver = opened(url)
        if not isinstance(driver, PsycopgDriver):
            return driver
        with driver._connections.taken() as connection:  # the one that is taken next, too
            if connection.info.backend_pid % 4 == slot:
                return driver
        driver.close()
    raise AssertionError("no process of the server has such a number")


def settle_together(  # noqa: PLR0917 - each racer its own
    url: str, point: str, barrier: Any, claims: list[Claim], given: dict[str, int], slot: int
) -> int:
    """Settle claim after claim, each time waiting at a fail point until all have come there.

    Without one they wait before they begin: SQLite's one writer would wait for the others inside.
    """
    driver = opened_at(url, slot)
    for claim in claims:
        waiting = _once(lambda: barrier.wait(60))
        staged = given.get("staged")
        if staged:
            driver.run(outputs.stage, claim, [(seq, Output(1, b"x")) for seq in range(staged)])
        if not point:
            waiting()
        with failpoint.armed(point, waiting):
            ended = outcome.succeeded(
                staged=staged, outputs=(Output(1, b"x"),) * given.get("along", 0)
            )
            settled = driver.run(jobs.settle, [Settlement(claim, ended)], actor="w")
        assert settled == {claim.id}
    driver.close()
    return len(claims)


def _once(action: Callable[[], Any]) -> Callable[[], None]:
    left = [action]

    def maybe() -> None:
        if left:
            left.pop()()

    return maybe


def settle_and_die(url: str, barrier: Any, claims: list[Claim], seed: int) -> int:
    """Settle claim after claim, each in a child that dies at a random fail point; count deaths."""
    chance = random.Random(seed)
    deaths = 0
    for claim in claims:
        turn = chance.randint(1, 24)
        child = os.fork()
        if child == 0:
            _die_at(url, turn, barrier, claim)
        _, status = os.waitpid(child, 0)
        deaths += os.waitstatus_to_exitcode(status) == failpoint.EXIT_CODE
    return deaths


def _die_at(url: str, turn: int, barrier: Any, claim: Claim) -> None:
    try:
        driver = opened(url)
        failpoint.active = _Fuse(turn)
        barrier.wait(60)
        driver.run(jobs.settle, [Settlement(claim, GOOD)], actor="victim")
    finally:
        os._exit(0)


def wait_for_the_dead(rows: Callable[[str], list[Any]], dialect: str) -> None:
    """Wait until the server has rolled back what was killed: till then it holds those rows.

    It notices a moment later that a program is gone, and maintenance passes over rows in use.
    """
    busy = """
        SELECT 1 FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
    """
    until = time.monotonic() + 60
    while dialect == "postgres" and rows(busy):
        assert time.monotonic() < until, "the server still works for a process that was killed"
        time.sleep(0.01)


class _Fuse(dict[str, Callable[[], None]]):
    """Kills at the turn-th fail point, whichever that is."""

    def __init__(self, turn: int) -> None:
        super().__init__({"": failpoint.leave})
        self.turn = turn

    def get(self, point: str, default: Any = None) -> Any:
        del point
        self.turn -= 1
        return failpoint.leave if self.turn == 0 else default


def settle_batches_together(url: str, barrier: Any, batches: list[list[Claim]], seed: int) -> int:
    """Settle batches that belong to the same runs as everybody else's, all at once."""
    driver = opened(url)
    for batch in batches:
        random.Random(seed).shuffle(batch)
        barrier.wait(60)
        settled = driver.run(jobs.settle, [Settlement(c, GOOD) for c in batch], actor="w")
        assert len(settled) == len(batch)
    driver.close()
    return len(batches)


def cancel_trees(url: str, barrier: Any, roots: list[str], turns: int) -> int:
    """Cancel trees of batches from above, while others settle what is in them."""
    driver = opened(url)
    for turn in range(turns):
        barrier.wait(60)
        for root in roots[turn::turns]:
            driver.run(runs.cancel, root, reason="enough", actor="m")
            for branch in reversed(driver.run(runs.tree, root)):
                while driver.run(runs.cancel_rest, branch.id, actor="m", most=1):
                    pass
    driver.close()
    return turns


def settle_in_any_order(url: str, claims: list[Claim], seed: int) -> int:
    """Settle claims in batches over many runs; some yield outputs, some come again, some fail."""
    chance = random.Random(seed)
    driver = opened(url)
    chance.shuffle(claims)
    while claims:
        batch = [claims.pop() for _ in range(min(len(claims), chance.randint(1, 100)))]
        settled = [Settlement(claim, _some_end(driver, claim, chance)) for claim in batch]
        driver.run(jobs.settle, settled, actor="w")
    driver.close()
    return 0


def _some_end(driver: Driver, claim: Claim, chance: random.Random) -> outcome.Outcome:
    kind = chance.choice(["good"] * 8 + ["along", "staged"] * 4 + ["later"] * 2 + ["bad"])
    if kind == "along":
        return outcome.succeeded(outputs=(Output(1, b"x"),) * chance.randint(1, 3))
    if kind == "staged":
        driver.run(outputs.stage, claim, [(n, Output(1, b"x")) for n in range(3)])
        return outcome.succeeded(staged=3)
    if kind == "later":
        return outcome.later(0)
    return outcome.failed(outcome.Problem("E", "m")) if kind == "bad" else GOOD


def maintain(url: str, run_ids: list[str], seconds: float) -> int:
    """Do what maintenance and one more worker do, until every run has ended."""
    driver = opened(url)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        live = driver.run(runs.live, after=None, most=1000)
        if not live:
            driver.close()
            return len(run_ids)
        driver.run(outputs.publish, actor=MAINTENANCE, most=50)
        driver.run(timers.wake, actor=MAINTENANCE, most=50)
        for run_id, state in live:
            if state == "STOPPING":
                driver.run(runs.cancel_rest, run_id, actor=MAINTENANCE, most=50)
        claims = driver.run(
            jobs.claim, worker_id=MAINTENANCE, line=jobs.lines(["default"]), most=50
        )
        driver.run(jobs.settle, [Settlement(c, GOOD) for c in claims], actor=MAINTENANCE)
    raise AssertionError(f"not ended: {driver.run(runs.live, after=None, most=9)}")


def claim_all(url: str, worker: str, seed: int) -> list[tuple[str, int]]:
    """Claim and settle until nothing is left; answer with every (id, fence) that was claimed."""
    chance = random.Random(seed)
    driver = opened(url)
    line = jobs.lines(["default"])
    taken: list[tuple[str, int]] = []
    empty = 0
    while empty < 3:
        claims = driver.run(jobs.claim, worker_id=worker, line=line, most=chance.randint(1, 60))
        empty = 0 if claims else empty + 1
        taken += [(claim.id, claim.fence) for claim in claims]
        settled = driver.run(jobs.settle, [Settlement(c, GOOD) for c in claims], actor=worker)
        assert len(settled) == len(claims)
    driver.close()
    return taken
