"""SQLite's connection is shared: threads that write take turns, and share commits."""

import os
import re
import sqlite3
import threading
from contextlib import nullcontext

import msgspec
import pytest

import milepost as mp
from milepost import outcome
from milepost.errors import Unavailable
from milepost.records import Settlement
from milepost.store import jobs
from milepost.store.driver import Call
from milepost.store.group import Waiter
from milepost.store.sqlite import SqliteDriver
from tests.support.suite import Store

LOOK = Call("migration_exists")


@pytest.fixture
def driver(tmp_path):
    with_file = SqliteDriver(str(tmp_path / "store.db"))
    yield with_file
    with_file.close()


def test_a_new_file_is_opened_while_another_program_writes_to_it(tmp_path):
    path = str(tmp_path / "store.db")
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    commit = threading.Timer(0.2, other.execute, ["COMMIT"])
    commit.start()
    SqliteDriver(path).close()
    commit.join()
    other.close()


class Held:
    """An operation that keeps the connection until it is let go."""

    def __init__(self):
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self):
        yield LOOK
        self.begun.set()
        assert self.go.wait(10)


def noted(done, name):
    def operation():
        yield LOOK
        done.append(name)

    return operation


def failing():
    yield LOOK
    raise ValueError("its own fault")


def waiting(driver):
    return len(driver._writes._waiting)


def started(driver, operation, count=1):
    """Let a thread ask for the connection; come back when it stands in line."""
    errors = []

    def run():
        try:
            driver.run(operation)
        except ValueError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    before = waiting(driver)
    thread.start()
    while count and waiting(driver) < before + count:
        thread.join(0.001)
    thread.errors = errors
    return thread


def test_who_came_first_is_served_before_who_asks_again_and_again(driver):
    held, done = Held(), []

    def greedy():
        driver.run(held)
        driver.run(noted(done, "greedy"))

    thread = threading.Thread(target=greedy)
    thread.start()
    assert held.begun.wait(10)
    patient = started(driver, noted(done, "patient"))
    held.go.set()
    thread.join(10)
    patient.join(10)
    assert done == ["patient", "greedy"]


def one_of_three_fails(driver):
    """Let three share a commit, the second of which fails; answer with who was done."""
    held, done = Held(), []
    first = started(driver, held, count=0)
    assert held.begun.wait(10)
    threads = [started(driver, op) for op in (noted(done, 1), failing, noted(done, 2))]
    held.go.set()
    for thread in (first, *threads):
        thread.join(10)
    assert done == [1, 2]
    assert [len(thread.errors) for thread in threads] == [0, 1, 0]
    return done


def test_one_operation_of_a_shared_commit_fails_alone(driver):
    one_of_three_fails(driver)


def test_who_gives_up_waiting_keeps_nobody_else_waiting(driver, monkeypatch):
    held, done = Held(), []
    first = started(driver, held, count=0)
    assert held.begun.wait(10)
    with monkeypatch.context() as patched:
        patched.setattr("milepost.store.group.Waiter.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            driver.run(noted(done, "gone"))
    later = started(driver, noted(done, "later"))
    held.go.set()
    first.join(10)
    later.join(10)
    assert done == ["later"]


def interrupted(_):
    raise KeyboardInterrupt


def kept(caught, driver, operation):
    """Run an operation; keep what it raises, whatever it is."""
    try:
        driver.run(operation)
    except BaseException as error:  # noqa: BLE001 - an interrupt, too
        caught.append(error)
    else:
        caught.append(None)


def test_who_is_interrupted_while_it_wakes_passes_on(driver, monkeypatch):
    """A thread that was called has no lock of the interpreter yet: Ctrl-C often comes just then."""
    held, done, caught = Held(), [], []
    first = started(driver, held, count=0)
    assert held.begun.wait(10)
    usual = Waiter.wait

    def woken(turn):
        usual(turn)
        if threading.current_thread().name == "interrupted":
            raise KeyboardInterrupt

    monkeypatch.setattr(Waiter, "wait", woken)
    second = threading.Thread(
        target=kept, args=(caught, driver, noted(done, "gone")), name="interrupted", daemon=True
    )
    second.start()
    while not waiting(driver):
        second.join(0.001)
    held.go.set()
    first.join(10)
    second.join(10)
    assert [type(error) for error in caught] == [KeyboardInterrupt]
    driver.run(noted(done, "later"))
    assert done == ["later"]


def test_an_interrupt_is_told_to_who_leads_and_the_others_may_try_again(driver):
    held, done, caught = Held(), [], ([], [], [])
    first = started(driver, held, count=0)
    assert held.begun.wait(10)

    def struck():
        yield LOOK
        raise KeyboardInterrupt

    threads = []
    for place, operation in zip(caught, (noted(done, 1), struck, noted(done, 2)), strict=True):
        threads.append(threading.Thread(target=kept, args=(place, driver, operation)))
        threads[-1].start()
        while waiting(driver) < len(threads):
            threads[-1].join(0.001)
    held.go.set()
    for thread in (first, *threads):
        thread.join(10)
    leader, *others = [type(error) for (error,) in caught]
    assert (leader, others) == (KeyboardInterrupt, [Unavailable, Unavailable])
    driver.run(noted(done, "later"))
    assert done == [1, "later"], "it ended at the interrupt"


class Struck:
    """A connection whose user is interrupted right after some statements."""

    def __init__(self, connection, *texts):
        self._connection, self._texts = connection, list(texts)

    def execute(self, text, *given):
        answer = self._connection.execute(text, *given)
        if text in self._texts:
            self._texts.remove(text)
            raise KeyboardInterrupt
        return answer

    def __getattr__(self, name):
        return getattr(self._connection, name)


@pytest.mark.parametrize("texts", [["BEGIN IMMEDIATE"], ["BEGIN IMMEDIATE", "ROLLBACK"]])
def test_no_transaction_stays_open_behind_an_interrupt(driver, texts):
    done = []
    driver._connection = Struck(driver._connection, *texts)
    with pytest.raises(KeyboardInterrupt):
        driver.run(noted(done, "gone"))
    driver.run(noted(done, "later"))
    assert (done, driver._connection.in_transaction) == (["later"], False)


def test_who_was_interrupted_twice_leaves_no_transaction_to_the_next(driver):
    done = []
    driver._connection.execute("BEGIN IMMEDIATE")
    driver.run(noted(done, "later"))
    assert (done, driver._connection.in_transaction) == (["later"], False)


def test_all_of_a_group_are_told_whatever_interrupts_the_telling(driver, monkeypatch):
    held, done, caught = Held(), [], ([], [], [])
    first = started(driver, held, count=0)
    assert held.begun.wait(10)
    usual, told = Waiter.wake, []

    def struck(turn):
        usual(turn)
        told.append(turn)
        if len(told) == 2:
            raise KeyboardInterrupt

    threads = []
    for place in caught:
        threads.append(
            threading.Thread(target=kept, args=(place, driver, noted(done, 1)), daemon=True)
        )
        threads[-1].start()
        while waiting(driver) < len(threads):
            threads[-1].join(0.001)
    monkeypatch.setattr(Waiter, "wake", struck)
    held.go.set()
    for thread in (first, *threads):
        thread.join(10)
    assert [type(error) for (error,) in caught] == [KeyboardInterrupt, type(None), type(None)]
    driver.run(noted(done, 2))
    assert done == [1, 1, 1, 2]


def test_what_needs_no_connection_is_done_outside_the_turn(driver):
    held, steps = Held(), []
    first = started(driver, held, count=0)
    assert held.begun.wait(10)

    def asking():
        steps.append("made ready")
        yield Call("migration_exists", alone=True)
        steps.append("free" if driver._writes.take() else "held")
        driver._writes.pass_on()

    second = started(driver, asking)
    assert steps == ["made ready"], "what comes before its first statement waits for nobody"
    held.go.set()
    first.join(10)
    second.join(10)
    assert steps == ["made ready", "free"], "it has given the connection back when it reads"


def test_an_operation_goes_on_in_a_new_transaction_after_a_call_that_stands_alone(driver):
    points = []

    def three():
        yield Call("migration_exists", alone=True)
        yield LOOK
        yield Call("migration_exists", alone=True)
        return "done"

    def trace(text):
        statement = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
        points.extend(statement.split()[:1])  # none of one that a table function makes inside

    driver._connection.set_trace_callback(trace)
    assert driver.run(three) == "done"
    assert points == ["BEGIN", "SELECT", "COMMIT", "BEGIN", "SELECT", "SELECT", "COMMIT"]


def test_a_server_does_what_waits_and_ends_with_the_driver(driver):
    writer = driver.serve()
    done = one_of_three_fails(driver)
    driver.run(noted(done, 3))
    driver.close()
    writer.join(10)
    assert not writer.is_alive()
    assert done == [1, 2, 3]


@pytest.fixture
def store(backends):
    made = backends.fresh("sqlite")
    with_jobs = Store(made, "sync")
    yield with_jobs
    with_jobs.close()
    backends.drop(made)


def stale(claim):
    return msgspec.structs.replace(claim, fence=claim.fence - 1)


@pytest.mark.parametrize("served", [False, True])
def test_a_lost_lease_among_those_who_share_a_commit_costs_nobody_else_anything(store, served):
    store.worker()
    store.create(3)
    kept, lost, other = store.claim(3)
    driver, held, answers = store._runner, Held(), {}
    if served:
        driver.serve()
    first = started(driver, held, count=0)
    assert held.begun.wait(10)

    def settling(*claims):
        def operation():
            outcomes = [Settlement(claim, outcome.succeeded(b"1")) for claim in claims]
            answers[claims] = yield from jobs.settle(outcomes, actor="w1")

        return operation

    mixed, whole = (kept, stale(lost)), (other,)
    threads = [started(driver, settling(*claims)) for claims in (mixed, whole)]
    held.go.set()
    for thread in (first, *threads):
        thread.join(10)
    assert answers == {mixed: {kept.id}, whole: {other.id}}
    assert [store.state(c.id) for c in (kept, lost, other)] == ["SUCCEEDED", "RUNNING", "SUCCEEDED"]
    assert store.problems() == []


def test_a_lost_lease_is_told_where_nobody_shares_the_commit(store):
    store.worker()
    store.create(2)
    kept, lost = store.claim(2)
    done = outcome.succeeded(b"1")
    assert store.settle((kept, done), (stale(lost), done)) == {kept.id}
    assert [store.state(claim.id) for claim in (kept, lost)] == ["SUCCEEDED", "RUNNING"]
    assert store.problems() == []


def test_what_is_held_is_settled_by_one_statement(store):
    store.worker()
    store.create(2)
    claims, said = store.claim(2), []
    store._runner._connection.set_trace_callback(lambda text: said.append(text.split()[0]))
    store.settle(*((claim, outcome.succeeded(b"1")) for claim in claims))
    assert said[:2] == ["BEGIN", "UPDATE"], "it is moved without a look first"
    assert not {"SAVEPOINT", "ROLLBACK", "WITH"} & set(said)


def modes(folder):
    return {file.name: oct(file.stat().st_mode & 0o777) for file in folder.iterdir()}


@pytest.mark.parametrize("way", ["submit", "lend"])
def test_only_its_owner_reads_a_new_file_and_a_shared_one_stays_shared(tmp_path, way):
    """H-105: what is stored may be personal, and folders of services are often readable."""
    before = os.umask(0o022)
    try:
        app = mp.App(f"sqlite:///{tmp_path}/new.db")
        with app.client.lend() if way == "lend" else nullcontext():
            pass
        app.jobs.list()
        assert modes(tmp_path) == dict.fromkeys(("new.db", "new.db-wal", "new.db-shm"), "0o600")
        app.close()
        (tmp_path / "new.db").chmod(0o640)
        app = mp.App(f"sqlite:///{tmp_path}/new.db")
        app.jobs.list()
        assert modes(tmp_path) == dict.fromkeys(("new.db", "new.db-wal", "new.db-shm"), "0o640")
        app.close()
    finally:
        os.umask(before)
