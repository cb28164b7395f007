"""Generated sources against kills: the target is what the source and the rules say now.

Each seed is a world and a life in it: runs of every kind, deployments, outages and operators, while
workers are killed. At the end one full run is left alone; then the target holds what the source
says, the quarantine what cannot be used, and nothing else is in either.

    MILEPOST_PROVE=1 MILEPOST_SEEDS=17,18 pytest tests/ingest/test_generated_source.py

runs these seeds alone, as `make prove` does; without the first, as `make test` does: shorter.
"""

import os
import signal
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
from generated_source import NAME, declare
from generated_world import GOOD, SHAPES, UNUSABLE, World

import milepost as mp
from milepost.observe.verify import verify
from milepost.store import failpoint
from milepost.testing.everywhere import finish
from milepost.testing.fresh import StoreClock
from tests.support.databases import Backends, Database
from tests.support.prove import PROVING

SEEDS = [int(seed) for seed in os.environ.get("MILEPOST_SEEDS", "").split(",") if seed]
EACH = 10 if PROVING else 5
"""How many seeds a test takes."""
STEPS = 4 if PROVING else 2
"""How many things are done at most before the last run."""
POINTS = 900
"""About how many statements and calls of a source a run makes."""
READING = ("full", "incremental", "backfill")
PLAUSIBLE = ("removals confirm", "could be identified", "watermark_conflict")
"""Why a run may fail though the source was there all the time."""


class Life:
    """A world, the program that reads it, and everything that befalls them."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.world = World(seed)
        self.chance = self.world.chance
        self.told: list[str] = []
        self.judged: set[str] = set()
        self.has_target = False
        self.options = {
            "partitions": self.chance.randrange(1, 5),
            "consolidators": self.chance.randrange(1, 3),
            "batch": self.chance.choice([3, 2000]),
            "upsert": self.chance.choice([2, 100]),
            "removal_limit": self.chance.choice([1.0, 1.0, 0.3]),
        }
        self.deploy()

    def deploy(self) -> None:
        """Start the program anew, with the record type of now."""
        if hasattr(self, "app"):
            self.app.close()
        self.app, self.pipeline = declare(self.world, self.database.url, **self.options)

    # What befalls it

    def step(self) -> None:
        """Change the world, do something about it, and be killed while it is done."""
        chance, world = self.chance, self.world
        self.change()
        self.pass_time(chance.randrange(6))
        is_still = chance.random() < 0.6
        if not is_still:
            world.mutate(chance.randrange(1, 4), during=True)
        world.broken = chance.choice([None] * 6 + ["fetch", "fetch", "count"])
        act = chance.choice([*[self.start] * 3, *[self.full] * 2, *self.possible()])
        self.tell(f"{act.__name__}" + f", {world.broken} is broken" * bool(world.broken))
        kept = self.safe()
        is_within = chance.random() < 0.2
        if not is_within:
            self.attempt(act)
        for _ in range(chance.choice([0, 1, 1, 2])):
            self.kill(act if is_within else lambda: None)
        if is_within:
            self.attempt(act)
        if chance.random() < 0.2:
            self.change()
        finish(self.app)
        for run in self.judged_now():
            if is_still and run.state == mp.RunState.SUCCEEDED and run.mode in READING:
                self.check_window(run)
        self.check_kept(kept)
        world.broken = None
        world.settle()

    def change(self) -> None:
        """Change the rules, or deploy the next record type or a corrected mapping."""
        chance, world = self.chance, self.world
        if chance.random() < 0.3:
            world.reprice()
            self.tell(f"the factor is {world.factor}")
        if chance.random() < 0.3:
            what = chance.choice(["shape", "mapping", "nothing"])
            world.shape = min(world.shape + (what == "shape"), SHAPES - 1)
            world.mapping += what == "mapping"
            self.deploy()
            self.tell(f"deployed shape {world.shape}, mapping {world.mapping}")

    def pass_time(self, times: int) -> None:
        """Let so many things happen; a world without a clock lives by the store's."""
        world, clock = self.world, StoreClock(self.app)
        if not world.has_clock:
            world.now = max(world.now, clock.now)
        world.mutate(times)
        if not world.has_clock:
            clock.advance((world.now - clock.now).total_seconds() + 1)

    def attempt(self, act) -> None:
        try:
            act()
        except (mp.IllegalMove, mp.NotFound) as error:
            self.tell(f"refused: {error}")

    def tell(self, what: str) -> None:
        self.told.append(what)

    # What an operator may do

    def start(self):
        self.pipeline.start()

    def full(self):
        self.pipeline.start(full=True)

    def backfill(self):
        world = self.world
        since = world.later(world.now, -self.chance.randrange(5, 50))
        self.pipeline.start(since=since, until=world.later(since, self.chance.randrange(1, 50)))

    def resume(self):
        self.last().resume()

    def force(self):
        self.last().force()

    def retry(self):
        failed = [p for p in self.last().partitions if p.state == mp.JobState.FAILED]
        self.last().retry(failed[0].ordinal if failed else 0)

    def replay(self):
        self.pipeline.quarantine.replay()

    def remap(self):
        self.pipeline.remap()

    def confirm(self):
        self.pipeline.removals.confirm(reason="they are gone")

    def dismiss(self):
        self.pipeline.removals.dismiss(reason="they are not")

    def cancel(self):
        self.pipeline.start().cancel("changed my mind")

    def go_back(self):
        mark = self.pipeline.watermark
        self.pipeline.override_watermark(self.world.later(mark, -20), reason="read again")

    def last(self):
        [run] = self.app.runs.list(kind=NAME, limit=1)
        return self.pipeline.run(run.id)

    def possible(self):
        """List what can be done besides starting."""
        acts = [self.backfill]
        if self.pipeline.row is None:
            return acts
        acts += [self.go_back] * (self.pipeline.watermark is not None) + [self.cancel]
        acts += [self.remap] + [self.replay] * bool(len(self.pipeline.quarantine))
        acts += [self.confirm, self.dismiss] * 2 * bool(len(self.pipeline.removals))
        if self.app.runs.list(kind=NAME, limit=1) and self.last().state == mp.RunState.FAILED:
            acts += [self.resume, self.force] * 3
            if any(part.state == mp.JobState.FAILED for part in self.last().partitions):
                acts += [self.retry] * 3
        return acts

    # Killing

    def kill(self, act) -> None:
        """Let a process work that is killed: at a statement, a page, a record, or any time."""
        self.app.close()  # a connection must not be carried into another process
        left = self.chance.randrange(POINTS) if self.chance.random() < 0.8 else None
        seconds = self.chance.uniform(0, 0.3)
        with tempfile.NamedTemporaryFile(prefix="milepost-") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: the child uses none
            pid = os.fork()
            if pid == 0:
                self.live_and_die(act, left, Path(file.name))
            if left is None:
                time.sleep(seconds)
                os.kill(pid, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            said = Path(file.name).read_text()
        assert status in (0, -signal.SIGKILL), said
        self.tell(f"killed at {left or seconds}" if status else "not killed: it was done")

    def live_and_die(self, act, left, file) -> None:
        def passed(_point, _rows):
            nonlocal left
            left = None if left is None else left - 1
            if left is not None and left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with failpoint.watched(passed):
                self.attempt(act)
                finish(self.app)
        except BaseException:  # noqa: BLE001 - nothing of the parent's must run here
            file.write_text(traceback.format_exc())
            os._exit(1)
        os._exit(0)

    # What must hold

    def held(self) -> set[str]:
        """Read the keys of the target, as anybody can who has its table."""
        if not self.has_target:
            return set()
        name = "key" if self.world.has_key_function else "id"
        with self.database.raw() as raw:
            rows = raw.execute(f"SELECT {name} FROM {NAME} WHERE removed_at IS NULL")
        return {str(key) for (key,) in rows}

    def safe(self) -> dict[str, Any]:
        """List records that stand in the target and in the source: nothing may remove them."""
        held, steady = self.held(), self.world.steady()
        return {row.key: row.at for row in steady if row.fate == GOOD and row.key in held}

    def check_kept(self, before) -> None:
        """Refuse that a record was removed by mistake, whatever the run was."""
        good = {row.key: row.at for row in self.world.winners() if row.fate == GOOD}
        same = {key for key, at in before.items() if good.get(key) == at}
        assert same <= self.held(), same - self.held()

    def check_window(self, run) -> None:
        """Compare what a run has read, if nothing changed meanwhile.

        One that went on with another did not read again what that had read.
        """
        if run.about.root_id != run.id:
            return
        found = self.held()
        kept = {one.key for one in self.pipeline.quarantine}
        for row in self.world.winners():
            if row.key is not None and run.window.covers(row.at):
                assert (row.key in kept) == (row.fate == UNUSABLE), (run, row)
                if row.fate != UNUSABLE:
                    assert (row.key in found) == (row.fate == GOOD), (run, row)

    def judged_now(self) -> list[Any]:
        """List the runs that ended now; refuse one that failed though nothing was in its way."""
        runs = [run for run in self.app.runs.list(kind=NAME) if run.id not in self.judged]
        for run in runs:
            self.judged.add(run.id)
            why = f"{run.record.cause} {[error.message for error in run.errors]}"
            self.tell(f"{run.record.mode} run {run.state} {why if run.errors else ''}")
            assert run.done
            may_fail = self.world.broken or any(word in why for word in PLAUSIBLE)
            assert may_fail or run.state != mp.RunState.FAILED, why
            self.has_target |= run.state == mp.RunState.SUCCEEDED
        return [self.pipeline.run(run.id).refresh() for run in runs]

    def end(self) -> None:
        """Run once more, in peace, and compare."""
        self.pass_time(0)
        run = self.pipeline.start(full=True)
        finish(self.app)
        if run.refresh().state == mp.RunState.FAILED:
            assert len(self.pipeline.removals), run.errors
            self.confirm()
            run = run.resume()
            finish(self.app)
        assert run.refresh().state == mp.RunState.SUCCEEDED, run.errors
        assert not (odd := differences(self.target(), self.wanted())), odd
        self.check_quarantine()
        assert self.pipeline.gaps == []
        assert self.pipeline.watermark == run.window.end, run.mode

    def target(self):
        """Read the target; what is in quarantine may stand there as it could be used last."""
        found = [
            {name: getattr(one, name) for name in one.__struct_fields__}
            for one in self.pipeline.records()
        ]
        assert len(found) == self.pipeline.count()
        keyed = {self.world.key_text(one["id"]): one for one in found}
        assert len(keyed) == len(found)
        stale = {row.key or row.last for row in self.world.winners() if row.fate == UNUSABLE}
        return {key: one for key, one in keyed.items() if key not in stale & self.world.once_good}

    def wanted(self):
        rows = [row for row in self.world.winners() if row.fate == GOOD]
        return {row.key: self.world.expected(row) for row in rows}

    def check_quarantine(self) -> None:
        bad = [row for row in self.world.winners() if row.fate == UNUSABLE]
        kept = {one.key: one.reason for one in self.pipeline.quarantine}
        keyless = {key: why for key, why in kept.items() if key[0] == "?"}
        wanted = {row.key: kept.get(row.key) for row in bad if row.key}
        keyed = {key: kept[key] for key in kept.keys() - keyless.keys()}
        assert not (odd := differences(keyed, wanted)), odd
        assert len(keyless) == sum(row.key is None for row in bad), keyless


def differences(found, wanted):
    """Say of every key that differs what is there and what should be."""
    keys = found.keys() | wanted.keys()
    return {key: (found.get(key), wanted.get(key)) for key in keys if differ(found, wanted, key)}


def differ(found, wanted, key):
    return (key in found) != (key in wanted) or found[key] != wanted[key]


def live(backends: Backends, backend: str, seed: int) -> None:
    database = backends.fresh(backend)
    life = Life(database, seed)
    try:
        life.pass_time(life.chance.randrange(4, 16))
        for _ in range(life.chance.randrange(1, STEPS + 1)):
            life.step()
        life.end()
        with database.driver() as driver:
            assert [str(problem) for problem in verify(driver).problems] == []
    except BaseException as error:
        error.add_note("\n".join([str(life.world), str(life.options), *life.told]))
        raise
    finally:
        life.app.close()
        backends.drop(database)


@pytest.mark.prove
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["sqlite", "postgres18"])
@pytest.mark.parametrize("first", SEEDS or range(0, 200 if PROVING else EACH, EACH))
def test_the_target_is_what_the_source_and_the_rules_say_now(backends, backend, first):
    for seed in [first] if SEEDS else range(first, first + EACH):
        live(backends, backend, seed)
