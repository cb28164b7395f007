"""Trees of batches (H-68): whatever fails, is cancelled or killed, each end is counted once."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import racers
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from milepost.batch.handles import resuming
from milepost.lifecycle import RUN, RunState
from milepost.records import Claim, NewJob, NewRun, Template
from milepost.store import chains, fanin, jobs, retention, runs, timers, workers
from milepost.store.runs import NewBatch
from tests.support.databases import Backends, alike
from tests.support.prove import PROVING, size
from tests.support.suite.store import BAD, GOOD, Store, new_id, opened, plan

POLICIES = ({"fail_fast": True}, {"fail_fast": False}, {"fail_fast": False, "tolerance": 0.5})
DEADLINE_SECONDS = 10_000


@pytest.fixture(scope="module", params=alike())
def store(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Store]:
    """One store for all: trees do not meet."""
    database = backends.fresh(request.param)
    with opened(database, "sync") as made:
        yield made
        assert made.problems() == []
    backends.drop(database)


class Tree:
    """A tree as it is asked for: each leaf is whether its job will succeed."""

    def __init__(self, items: list[Any], policy: dict[str, Any], *, reduce: bool = False) -> None:
        self.items, self.policy, self.reduce = items, policy, reduce

    @classmethod
    def grown(cls, chance: random.Random, depth: int = 0) -> "Tree":
        """Grow one at random."""
        items = [
            cls.grown(chance, depth + 1)
            if depth < 4 and chance.random() < 0.35
            else chance.random() < 0.85
            for _ in range(chance.randint(1, 4))
        ]
        return cls(items, chance.choice(POLICIES), reduce=chance.random() < 0.3)

    @property
    def succeeds(self) -> bool:
        """How it ends if nobody interferes."""
        lost = sum(not (i.succeeds if isinstance(i, Tree) else i) for i in self.items)
        return lost <= self.policy.get("tolerance", 0.0) * len(self.items)

    def made(self, queue: str, parent: NewRun | None = None, ordinal: int | None = None) -> Any:
        """Describe it as the store takes it."""
        place = None if parent is None else parent.id
        depth = 0 if parent is None else (parent.depth or 0) + 1
        run = NewRun(id=new_id(), kind="batch", parent_id=place, ordinal=ordinal, depth=depth)
        run = replace(run, channel="c", queue=queue)
        shared = Template(kind="k0", run_id=run.id, step=0, queue=queue)
        new, within = [], []
        for number, item in enumerate(self.items):
            if isinstance(item, Tree):
                within.append(item.made(queue, run, number))
            else:
                new.append(NewJob(new_id(), b"1" if item else b"0", shared, number))
        steps = [replace(s, queue=queue) for s in plan(1, self.reduce, **self.policy)]
        return NewBatch(run, steps, new, within)


def start(store: Store, tree: Tree) -> NewBatch:
    """Store a tree in a queue of its own."""
    made: NewBatch = tree.made(f"q-{new_id()}")
    run = replace(made.run, deadline_us=DEADLINE_SECONDS * 1_000_000)
    store.run(chains.start, run, made.plan, made.jobs, made.batches)
    return made


def branches(store: Store, run_id: str) -> dict[str, runs.Branch]:
    return {branch.id: branch for branch in store.run(runs.tree, run_id)}


def maintain(store: Store, ids: list[str]) -> None:
    """What maintenance does with these."""
    for run_id in ids:
        while store.run(runs.cancel_rest, run_id, actor="m", most=2):
            pass
    for run_id in store.run(fanin.overdue, ids):
        store.run(fanin.advance_one, run_id, actor="m")
    while store.run(timers.wake, actor="m", most=1000):
        pass


def disturb(store: Store, chance: random.Random, root: str) -> bool:
    """Cancel something, or let the tree miss its deadline; tell whether anything was done."""
    live = [i for i, b in branches(store, root).items() if b.state not in RUN.terminal]
    if not live or chance.random() > 0.15:
        return False
    if chance.random() < 0.2:
        store.advance(DEADLINE_SECONDS)
        store.run(runs.expire, actor="m", most=100)
        assert store.run_state(root) in ("STOPPING", *RUN.terminal)
    else:
        store.run(runs.cancel, chance.choice(live), reason="enough", actor="somebody")
    return True


def play(store: Store, chance: random.Random, made: NewBatch, *, quiet: bool) -> bool:
    """Work on a tree until all of it has ended; tell whether it was left to itself."""
    root, queue, untouched = made.run.id, made.run.queue, True
    worker = store.worker(f"w-{new_id()}", lease=1_000_000)
    held: list[Claim] = []
    for _ in range(500):
        ids = list(branches(store, root))
        if store.run_state(root) in RUN.terminal:
            return untouched
        held += store.claim(chance.randint(1, 4), worker=worker, queues=[queue])
        if not quiet and disturb(store, chance, root):
            untouched = False
        chance.shuffle(held)
        some = held[: chance.randint(0, len(held))]
        if some:
            store.settle(*[(c, GOOD if c.payload != b"0" else BAD) for c in some], actor=worker)
        held = held[len(some) :]
        if chance.random() < 0.5:
            maintain(store, ids)
    raise AssertionError("it did not end")


def check_ends(store: Store, root: str) -> None:
    """Everything in it is final, was counted once, and was told after all that is in it."""
    found = branches(store, root)
    assert {branch.state for branch in found.values()} <= RUN.terminal
    told = dict(store.rows("SELECT subject_id, n FROM outbox WHERE machine = 'run'"))
    told = {str(subject): n for subject, n in told.items()}
    for branch in found.values():
        assert branch.parent_id is None or told[branch.id] < told[branch.parent_id]
        counted = store.run(fanin.steps, branch.id)
        assert sum(step.open for step in counted) == 0


@pytest.mark.prove
@given(seed=st.integers(0, 2**32), quiet=st.booleans())
@settings(max_examples=100 if PROVING else 12)
def test_h68_a_tree_ends_once_as_its_policies_say(store, seed, quiet):
    chance = random.Random(seed)
    tree = Tree.grown(chance)
    made = start(store, tree)
    root = made.run.id
    untouched = play(store, chance, made, quiet=quiet)
    check_ends(store, root)
    [work, *_] = store.run(fanin.steps, root)
    assert work.succeeded + work.lost == len(tree.items)
    if untouched:
        expected = RunState.SUCCEEDED if tree.succeeds else RunState.FAILED
        assert store.run_state(root) == expected

    if store.run_state(root) != RunState.SUCCEEDED:
        check_resumed(store, root)


def check_resumed(store: Store, root: str) -> None:
    """A resumed tree does again what did not succeed, at any depth, and nothing else."""
    old = store.run(runs.get, root)
    new = store.run(chains.resume, root, resuming(old))
    for branch in store.run(runs.tree, new):
        assert store.run(runs.get, branch.resumes).state in (RunState.FAILED, RunState.CANCELLED)
        after = None
        while after := store.run(
            chains.create_again, branch.resumes, branch.id, after=after, most=2, actor="a"
        ):
            pass
    store.run(chains.go_on, root, new, actor="a")
    worker = store.worker(f"w-{new_id()}", lease=1_000_000)
    while claims := store.claim(10, worker=worker, queues=[old.queue]):
        store.settle(*[(claim, GOOD) for claim in claims], actor=worker)
        assert all(store.run(jobs.get, c.id).rerun_of or c.step == 1 for c in claims)
    assert store.run_state(new) == RunState.SUCCEEDED
    check_ends(store, new)


def claimed(store: Store, *trees: NewBatch, worker: str) -> list[Claim]:
    """Claim all there is in these."""
    queues = [tree.run.queue for tree in trees]
    return store.claim(1000, worker=worker, queues=queues)


def test_the_last_settlement_ends_every_level_in_its_own_transaction(store):
    """Nobody comes after it: neither maintenance nor another transaction is needed."""
    tree = Tree([True], POLICIES[0])
    for _ in range(8):
        tree = Tree([tree], POLICIES[0])
    made = start(store, tree)
    worker = store.worker(f"w-{new_id()}", lease=1_000_000)
    [claim] = claimed(store, made, worker=worker)
    store.settle((claim, GOOD), actor=worker)
    assert {b.state for b in branches(store, made.run.id).values()} == {"SUCCEEDED"}
    assert store.moves(made.run.id, "run") == ["create", "begin", "finish"]


def test_the_database_counts_a_child_and_refuses_a_forged_one(store):
    made = start(store, Tree([Tree([True], POLICIES[0])], POLICIES[0]))
    root, [child] = made.run.id, made.batches
    forged = "INSERT INTO run (id, kind, state, move, parent_id, depth, ordinal) VALUES"
    lone = start(store, Tree([True], POLICIES[0])).run.id
    wrong = [(f"'{root}'", depth) for depth in ("NULL", 0, 2, 9)]
    wrong += [(f"'{lone}'", 1), (f"'{new_id()}'", 1), ("NULL", 1), ("NULL", -1)]
    for parent, depth in wrong:
        with pytest.raises(Exception, match="takes no such batch as an item"):
            store.rows(f"{forged} ('{new_id()}', 'k', 'QUEUED', 'create', {parent}, {depth}, 1)")
    # A legal move by hand is counted too; maintenance then advances the parent.
    store.rows(
        "UPDATE job SET state = 'CANCELLED', move = 'cancel', version = version + 1"
        f" WHERE run_id = '{child.run.id}'"
    )
    store.rows(
        "UPDATE run SET state = 'CANCELLED', move = 'cancel', version = version + 1"
        f" WHERE id = '{child.run.id}'"
    )
    assert store.count(root) == (0, 0, 0, 1)
    maintain(store, [root])
    assert store.run_state(root) == "FAILED"
    with pytest.raises(Exception, match="milepost: run"):
        store.rows(f"UPDATE run SET ordinal = 3, version = version + 1 WHERE id = '{root}'")


def test_a_child_leaves_with_its_parent_and_not_before(store):
    tree = Tree([Tree([True], POLICIES[0]), True], POLICIES[0])
    made = start(store, tree)
    worker = store.worker(f"w-{new_id()}", lease=1_000_000_000)
    one, two = sorted(claimed(store, made, worker=worker), key=lambda c: c.run_id == made.run.id)
    store.settle((one, GOOD), actor=worker)
    store.rows("UPDATE outbox SET delivered_at = created_at WHERE delivered_at IS NULL")
    [child] = made.batches
    keep = retention.Keep(succeeded=10, failed=10)
    forget = (retention.forget_chain, child.run.id, keep)
    store.run(retention.set_minimum, 0, actor="a")
    store.advance(20)
    assert store.run(*forget, most=10) == 0
    store.settle((two, GOOD), actor=worker)
    store.rows("UPDATE outbox SET delivered_at = created_at WHERE delivered_at IS NULL")
    store.advance(20)
    while store.run(*forget, most=1):
        pass
    assert store.rows(f"SELECT 1 FROM run WHERE id IN ('{made.run.id}', '{child.run.id}')") == []


# Races

WIDE = Tree([Tree([True, Tree([True, True], POLICIES[0])], POLICIES[0]), True], POLICIES[0])
TWINS = Tree([Tree([True], POLICIES[0]), Tree([True], POLICIES[0])], POLICIES[0])


@pytest.mark.prove
def test_children_that_end_together_end_their_parent_once_h58(store):
    """Both have ended their own batch, and neither has looked at the parent, when they meet."""
    rounds = size(100)
    trees = [start(store, TWINS) for _ in range(rounds)]
    worker = store.worker(f"w-{new_id()}", lease=1_000_000)
    mine: list[list[Claim]] = [[], []]
    for made in trees:
        for place, claim in enumerate(claimed(store, made, worker=worker)):
            mine[place].append(claim)
    barrier = racers.RACING.Barrier(2)
    point = "after:run_lock_tree" if store.dialect == "postgres" else ""
    url = store.database.url
    racers.race(
        [
            (racers.settle_together, (url, point, barrier, taken, {}, slot))
            for slot, taken in enumerate(mine)
        ]
    )
    for made in trees:
        assert store.run_state(made.run.id) == "SUCCEEDED"
        check_ends(store, made.run.id)
    assert_no_deadlock(store)


@pytest.mark.prove
def test_settlers_at_every_level_and_who_cancels_from_above_do_not_deadlock(store):
    racing, each = 4, size(100)
    trees = [start(store, WIDE) for _ in range(each)]
    workers_ = [store.worker(f"w-{new_id()}", lease=1_000_000) for _ in range(racing)]
    claims = [c for name in workers_ for c in store.claim(each, worker=name, queues=queues(trees))]
    chance = random.Random(7)
    chance.shuffle(claims)
    width = len(claims) // racing
    barrier = racers.RACING.Barrier(racing + 1)
    url = store.database.url
    batches = [
        [mine[at : at + 5] for at in range(0, len(mine) - 4, 5)]
        for mine in (claims[n * width : (n + 1) * width] for n in range(racing))
    ]
    turns = min(len(mine) for mine in batches)
    doomed = [made.run.id for made in trees[: each // 2]]
    racers.race(
        [
            *(
                (racers.settle_batches_together, (url, barrier, mine[:turns], seed))
                for seed, mine in enumerate(batches)
            ),
            (racers.cancel_trees, (url, barrier, doomed, turns)),
        ]
    )
    assert_no_deadlock(store)
    store.advance(2_000_000)
    finish_all(store, trees)


def queues(trees: list[NewBatch]) -> list[str]:
    return [made.run.queue for made in trees]


@pytest.mark.prove
def test_a_child_whose_last_settler_is_killed_anywhere_is_counted_once(store):
    """Killed before the commit it is lost and runs again; after it, every level has ended."""
    trees = [start(store, TWINS) for _ in range(size(200))]
    worker = store.worker(f"w-{new_id()}", lease=1_000)
    claims = [claim for made in trees for claim in claimed(store, made, worker=worker)]
    victim = (store.database.url, racers.RACING.Barrier(1), claims, 11)
    [deaths] = racers.race([(racers.settle_and_die, victim)])
    assert deaths > len(claims) / 4
    racers.wait_for_the_dead(store.rows, store.dialect)
    store.advance(2_000)
    finish_all(store, trees)
    for made in trees:
        assert store.run_state(made.run.id) == "SUCCEEDED"


def finish_all(store: Store, trees: list[NewBatch]) -> None:
    """Recover what the dead held, and do the rest; every tree ends, and is counted right."""
    store.run(workers.bury, most=100)
    while store.run(timers.lose, actor="m", most=1000):
        pass
    worker = store.worker(f"w-{new_id()}", lease=1_000_000)
    for made in trees:
        maintain(store, list(branches(store, made.run.id)))
        while claims := claimed(store, made, worker=worker):
            store.settle(*[(claim, GOOD) for claim in claims], actor=worker)
        check_ends(store, made.run.id)


def assert_no_deadlock(store: Store) -> None:
    """A deadlock reaches nobody, because the driver repeats what lost it; but there is none."""
    if store.dialect == "postgres":
        statement = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert store.rows(statement)[0][0] == 0
