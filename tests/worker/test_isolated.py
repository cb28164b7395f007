"""Isolated handlers: each in a process of its own, killed at its limit, its neighbours unharmed."""

import asyncio
import errno
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import pytest_asyncio

import milepost as mp
from milepost.address import StoreUrl
from milepost.lifecycle import WorkerState
from milepost.observe.verify import verify
from milepost.worker.pipe import MARK, Begin, Place, Stop
from milepost.worker.processes import IsolatedProcess
from milepost.worker.warden import sample
from tests.support import isolated
from tests.support.databases import Backends, everyday_names
from tests.support.prove import PROVING

pytestmark = [
    pytest.mark.in_turn,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system has no /proc"),
    pytest.mark.filterwarnings("ignore:.* waits and no live worker"),
]


ANY = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For what has nothing to do with the store."""
SERVER = pytest.mark.parametrize(
    "database", [name for name in everyday_names() if name != "sqlite"], indirect=True
)


@pytest.fixture(params=everyday_names())
def database(request, backends: Backends):
    made = backends.fresh(request.param)
    yield made
    backends.drop(made)


@pytest.fixture
def app(database):
    app = isolated.app
    app.client.move_to(StoreUrl.parse(database.url))
    yield app
    app.close()


@pytest_asyncio.fixture
async def worker(app):
    """A worker beside the test."""
    made = await app.worker()
    running = asyncio.create_task(made.run())
    yield made
    made.drain()
    await asyncio.wait_for(running, 60)
    await app.client.close_async()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


async def ended(job, seconds: float = 60):
    return await job.wait_async(seconds)


LIMITED = {
    "allocates": ("MemoryExceeded", "memory", None),
    "spins_in_c": ("TimedOut", "timeout", 0.5),
    "forks": ("TimedOut", "timeout", 1.0),
    "segfaults": ("ProcessDied", "crash", 0.0),
    "ignores_everything": ("TimedOut", "timeout", 0.5),
}
MORE = {
    "forks_and_allocates": ("MemoryExceeded", "memory", None),
    "burns": ("CpuExceeded", "timeout", None),
    "exits": ("ProcessDied", "crash", 0.0),
    "closes_everything": ("ProcessDied", "crash", 0.0),
}
WITHIN = 1.0 if PROVING else 20.0
"""How long after its limit an attempt has ended; the tests of every day share a crowded machine."""


async def test_handlers_that_pass_their_limits_are_ended_and_a_hundred_neighbours_are_not(
    app, worker, tmp_path, database
):
    kinds = {**LIMITED, **MORE}
    if database.dialect != "sqlite" and not PROVING:  # a process is killed alike
        kinds = {kind: kinds[kind] for kind in ("allocates", "segfaults", "forks")}
    pids, other = tmp_path / "pids", tmp_path / "other"
    arguments = {"forks": (str(pids),), "closes_everything": (str(other),)}
    took = {}
    report = worker._settler.report

    def noted(running, result):
        took[running.definition.name] = running.seconds
        report(running, result)

    worker._settler.report = noted
    worst = {
        kind: await getattr(isolated, kind).submit_async(*arguments.get(kind, ())) for kind in kinds
    }
    first = await isolated.neighbour.submit_many_async([(n,) for n in range(50)])
    second = await isolated.plain_neighbour.submit_many_async([(n,) for n in range(50)])
    for kind, (error, code, limit) in kinds.items():
        job = await worst[kind].wait_async(60)
        assert (kind, job.error.type, job.error.code) == (kind, error, code), job.error.message
        record = job.record
        assert (record.state, record.cause) == ("FAILED", "attempts_exhausted")
        assert (record.errors, record.losses) == (1, 0)
        assert limit is None or took[kind] < limit + WITHIN
    for jobs in (first, second):
        assert [(await job.wait_async(60)).result for job in jobs] == list(range(50))
        assert {job.record.attempt for job in jobs} == {1}
    left = [int(line) for line in pids.read_text().split()]
    assert left, "a crowded machine starts some of the eight within its second"
    assert not [pid for pid in left if is_alive(pid)], "they changed their session"
    assert not other.exists() or other.read_text() == "mine", "its own file, under a number of ours"
    crashed = worst["segfaults"]
    assert crashed.error.message == "its process was killed by signal 11 (SIGSEGV)"
    [failure] = await crashed.failures_async()
    assert failure.place.startswith("support/isolated.py:")
    assert failure.place.endswith(" in segfaults")
    assert "ctypes.string_at(0)" in failure.traceback
    assert len(await app.workers.list_async()) == 1
    with database.driver() as driver:
        assert verify(driver).problems == []


async def test_an_attempt_has_everything_it_has_in_a_thread(app, worker, database, raw):
    """Steps, a cursor and transactions survive the attempt that failed and the one that was killed.

    Hooks run here, in the worker's own process, around attempts, steps and submits.
    """
    seen = []

    def hook(event):
        ended = yield
        seen.append((event.point, event.name, ended.outcome, type(ended.error).__name__))

    for point in ("attempt", "step", "submit"):
        app.hook(point)(hook)
    try:
        job = await isolated.uses_everything.submit_async("swordfish")
        job = await job.wait_async(60)
        assert job.state == mp.JobState.SUCCEEDED, job.error
        told = [job.id, 3, job.id, False]
        assert job.result == {"steps": [1, 42], "cursor": {"at": 3}, "signals": [], "told": told}
        record = job.record
        assert (record.errors, record.losses, job.usage) == (2, 0, {"pages": 9.0})
        assert record.progress in (0.5, 0.75)
        first, second = await job.failures_async()
        assert (first.type, second.type) == ("RuntimeError", "ProcessDied")
        assert first.message == "password=[redacted]"
        assert "raise RuntimeError" in first.traceback
        lines = [line.text for line in await job.logs_async()]
        assert lines == ["as it goes password=[redacted]", "token=[redacted]"] * 3
        assert "swordfish" not in repr([first, second, lines])
        assert raw.execute("SELECT count(*) FROM isolated") == [(3,)]
        assert len(await app.jobs.list_async(queue="elsewhere")) == 1
        assert seen == [
            ("submit", None, "done", "NoneType"),
            *(("step", name, "done", "NoneType") for name in ("one", "two")),
            ("attempt", None, "retry", "RuntimeError"),
            *(("step", name, "recalled", "NoneType") for name in ("one", "two")),
            ("attempt", None, "retry", "ProcessDied"),
            *(("step", name, "recalled", "NoneType") for name in ("one", "two")),
            ("submit", None, "done", "NoneType"),
            ("attempt", None, "succeed", "NoneType"),
        ]
    finally:
        for point in ("attempt", "step", "submit"):
            app.client.hooks.at[point] = ()


async def test_an_asynchronous_attempt_has_everything_too(app, worker, until):
    job = await isolated.uses_everything_async.submit_async()
    await until(lambda: _is(job, "WAITING"))
    await job.signal_async({"go": 1})
    assert (await job.wait_async(60)).state == mp.JobState.SUCCEEDED, job.error
    assert job.result == {"step": 1, "signals": [{"go": 1}], "cursor": 2}


async def _is(job, state):
    return (await job.refresh_async()).state == state


@ANY
async def test_a_handler_that_does_not_listen_is_cancelled_and_one_that_does_cleans_up(
    app, worker, until, tmp_path
):
    path = tmp_path / "cleaned"
    jobs = [
        await isolated.deaf.submit_async(),
        await isolated.listens.submit_async(str(path)),
    ]
    await until(lambda: sum(r.number > 0 for r in worker._slots._running.values()) == 2, 60)
    for job in jobs:
        await job.cancel_async("enough")
    for job in jobs:
        done = await job.wait_async(60)
        assert (done.state, done.record.cancel_reason) == (mp.JobState.CANCELLED, "enough")
    assert path.read_text() == "enough"


@ANY
async def test_a_handler_that_stops_its_warden_is_cancelled_all_the_same(app, worker, until):
    """It ran on for as long as it liked."""
    job = await isolated.stops_its_warden.submit_async()
    await until(lambda: [r for r in worker._slots._running.values() if r.began], 60)
    [process] = worker._isolated._all
    await until(lambda: sample(process._warden._pid)[1] == "T", 60)
    await job.cancel_async("enough")
    done = await job.wait_async(20)
    assert (done.state, done.record.cancel_reason) == (mp.JobState.CANCELLED, "enough")
    assert (await (await isolated.pid.submit_async()).wait_async(60)).state == "SUCCEEDED"


@pytest.fixture
def seldom(app, monkeypatch):
    """Have workers sweep seldom."""
    monkeypatch.setattr(app, "settings", app.settings.chosen(sweep=50.0))


@ANY
async def test_a_handler_is_cancelled_soon_however_long_the_sweep_before_it_pauses(
    app, seldom, worker, until
):
    """The first look came at the end of a pause that began before the job: in 1.4 s by default."""
    await until(lambda: worker.state == WorkerState.IDLE)
    job = await isolated.deaf.submit_async()
    await until(lambda: [r for r in worker._slots._running.values() if r.began], 60)
    await job.cancel_async("enough")
    assert (await job.wait_async(WITHIN)).state == mp.JobState.CANCELLED


@ANY
async def test_a_handler_is_asked_to_stop_while_it_is_handed_over(
    app, worker, tmp_path, monkeypatch
):
    """The process passed over what came with the attempt, and was killed without being asked."""
    await (await isolated.pid.submit_async()).wait_async(60)
    begin = IsolatedProcess.begin

    def begin_and_stop(process, running, *rest):
        begin(process, running, *rest)
        process._pipe.send(Stop(process.number, "at once"))

    monkeypatch.setattr(IsolatedProcess, "begin", begin_and_stop)
    for _ in range(5):
        job = await isolated.listens.submit_async(str(tmp_path / "reason"))
        assert (await job.wait_async(20)).state == mp.JobState.CANCELLED


@ANY
async def test_a_job_whose_process_still_starts_ends_at_once_if_cancelled_or_too_late(
    app, worker, until, monkeypatch
):
    """It ended when the import of its app was over."""
    monkeypatch.setenv(isolated.SLOW, "40")
    late = await isolated.pid.options(deadline=1).submit_async()
    job = await isolated.pid.submit_async()
    await until(lambda: len(worker._isolated._all) == 2, 60)
    assert (await late.wait_async(WITHIN + 1)).error.cause == "deadline"
    await job.cancel_async("enough")
    done = await job.wait_async(WITHIN)
    assert (done.state, done.record.cancel_reason) == (mp.JobState.CANCELLED, "enough")
    monkeypatch.setenv(isolated.SLOW, "0")
    assert (await (await isolated.pid.submit_async()).wait_async(30)).result > 0


@SERVER
async def test_a_query_ends_with_the_handler_that_was_killed(app, worker, raw):
    """It went on in the server with its locks, and the next attempt waited for them."""
    raw.execute("CREATE TABLE locked (id int, attempt int)")
    raw.execute("INSERT INTO locked VALUES (1, 0), (2, 0)")
    jobs = [
        await isolated.locks_a_row.submit_async(),
        await isolated.locks_a_row_async.submit_async(),
    ]
    for job in jobs:
        done = await job.wait_async(60)
        assert (done.state, done.record.errors) == (mp.JobState.SUCCEEDED, 1), done.error
        assert done.result == 2


@ANY
async def test_bytes_that_a_handler_writes_into_its_connection_end_its_attempt_at_once(app, worker):
    """The worker took them for a length, and waited for so much, or kept up to a GiB of it."""
    length = (2**30 - 1).to_bytes(4, "big")
    jobs = [
        await isolated.writes_where_it_should_not.submit_async(),
        await isolated.floods.submit_async(length.decode("latin-1")),
        await isolated.floods.submit_async((MARK + length).decode("latin-1")),
    ]
    for job in jobs:
        done = await job.wait_async(60)
        assert (done.error.type, done.error.code) == ("ProcessDied", "crash"), done.error.message
        assert "no message" in done.error.message


@ANY
async def test_a_process_is_used_again_unless_it_left_others_behind(app, worker):
    """What an attempt started ends with it: the next one would pay for it."""
    first = (await (await isolated.pid.submit_async()).wait_async(60)).result
    assert first != os.getpid()
    await asyncio.sleep(0.6)  # longer than its timeout, which holds for attempts alone
    assert (await (await isolated.pid.submit_async()).wait_async(60)).result == first
    used, left = (await (await isolated.leaves_a_process.submit_async()).wait_async(60)).result
    assert used == first
    second = (await (await isolated.leaks.submit_async(200)).wait_async(60)).result
    assert second != first
    assert not is_alive(left)
    assert (await (await isolated.pid.submit_async()).wait_async(60)).result == second
    third = (await (await isolated.leaks.submit_async(1)).wait_async(60)).result
    assert third != second, "little was left of what it may hold"
    # Neither its output nor its lines are too much, and no value is too odd.
    talker = await (await isolated.talks.submit_async(500)).wait_async(60)
    assert talker.result == 500
    assert [line.text[:3] for line in await talker.logs_async()][-1] == "499"
    for what, told in (("odd", "Odd"), ("huge", "the limit is 1,048,576"), ("lock", "lock")):
        job = await (await isolated.returns.submit_async(what)).wait_async(60)
        assert (job.error.type, job.error.code) == ("Invalid", "validation")
        assert told in job.error.message
    run = await isolated.batch.start_async()
    assert (await run.wait_async(60)).report == 2 + 4
    grown = await (await isolated.grows_once.submit_async()).wait_async(60)
    assert (grown.result, grown.record.errors) == (2, 1), "by policy"


@ANY
async def test_a_process_that_is_starting_a_command_does_not_hold_its_memory_twice(app, worker):
    """Until the command's program begins, it has its parent's pages: the job FAILED (`memory`)."""
    jobs = [await isolated.starts_commands.submit_async(200) for _ in range(3)]
    for job in jobs:
        done = await job.wait_async(60)
        assert done.state == mp.JobState.SUCCEEDED, done.error.message


@ANY
@pytest.mark.parametrize("which", ["process", "warden"])
async def test_a_job_is_not_blamed_for_a_process_that_was_killed_before_it(
    app, worker, until, which
):
    """It FAILED without having begun, where its process rested and the warden was killed."""
    first = await (await isolated.works_for.submit_async(0.0)).wait_async(60)
    killed = first.result if which == "process" else sample(first.result)[0]
    os.kill(killed, signal.SIGKILL)
    # Of several threads the first may be dead, and others still hold its files.
    gone = Path(f"/proc/{killed}")
    await until(lambda: not (gone.exists() if which == "process" else is_alive(killed)))
    after = await (await isolated.works_for.submit_async(0.0)).wait_async(60)
    assert after.state == mp.JobState.SUCCEEDED, after.error.message
    assert after.result != first.result
    moves = [event.move for event in await after.history_async()]
    assert moves.count("claim") == 1, "nor claimed twice"


@ANY
async def test_a_process_that_has_an_older_source_is_replaced(app, worker, monkeypatch):
    """It was kept, and failed the job for good, whatever the source was by then."""
    monkeypatch.setenv(isolated.OLD_SOURCE, "yes")
    failed = await (await isolated.is_new.submit_async()).wait_async(60)
    assert failed.error.code == "configuration"
    monkeypatch.delenv(isolated.OLD_SOURCE)
    done = await (await isolated.is_new.submit_async()).wait_async(60)
    assert done.state == mp.JobState.SUCCEEDED, done.error.message


@ANY
async def test_what_a_thread_that_a_handler_left_tells_is_not_the_next_jobs(app, worker):
    """The next job showed its lines and its progress; one that was killed then, its counts."""
    left = await (await isolated.leaves_a_thread.submit_async()).wait_async(60)
    after = await (await isolated.works_for.submit_async(0.5)).wait_async(60)
    assert after.result == left.result, "the thread goes on beside it"
    assert after.record.progress_text is None
    assert await after.logs_async() == []


@ANY
async def test_calls_in_threads_that_a_handler_gave_up_do_not_keep_the_next_job_waiting(
    app, worker
):
    """The event loop's threads were all taken: it waited for one of them, up to its timeout."""
    left = await (await isolated.leaves_calls_in_threads.submit_async()).wait_async(60)
    after = await (await isolated.calls_in_a_thread.submit_async()).wait_async(60)
    assert after.state == mp.JobState.SUCCEEDED, after.error.message
    assert after.result == left.result, "in the same process"


@ANY
async def test_a_process_that_a_handler_forks_takes_a_step_where_the_worker_has_hooks(app, worker):
    """It waited for an answer that only its parent hears, up to the attempt's timeout."""

    @app.hook("step")
    def hook(_event):
        yield

    try:
        done = await (await isolated.takes_a_step_in_a_fork.submit_async()).wait_async(60)
        assert (done.state, done.result) == (mp.JobState.SUCCEEDED, 7), done.error
    finally:
        app.client.hooks.at["step"] = ()


@ANY
async def test_a_step_that_is_given_up_while_its_hooks_begin_is_followed_by_others(app, worker):
    """The process heard nothing any more: the next step, or the next job, waited for ever."""
    seen = []

    @app.hook("step")
    def hook(event):
        if event.name == "given up":
            time.sleep(0.3)
        ended = yield
        seen.append((event.name, ended.outcome, type(ended.error).__name__))

    try:
        done = await (await isolated.gives_up_a_step.submit_async()).wait_async(60)
        assert (done.state, done.result) == (mp.JobState.SUCCEEDED, 2), done.error
        assert seen == [("given up", "raised", "CancelledError"), ("taken", "done", "NoneType")]
    finally:
        app.client.hooks.at["step"] = ()


@ANY
async def test_a_level_that_no_database_stores_is_kept_in_other_characters(app, worker):
    """The call that logged it failed; in a thread the job did."""
    done = await (await isolated.names_a_level.submit_async()).wait_async(60)
    assert done.state == mp.JobState.SUCCEEDED, done.error.message
    [line] = await done.logs_async()
    assert (line.level, line.text) == ("odd\\udcff", "odd")


@ANY
async def test_a_timer_that_a_handler_left_does_not_end_the_next_job(app, worker):
    """Its process was killed by SIGALRM under the next attempt, which failed for it."""
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        left = await (await isolated.leaves_an_alarm.submit_async(int(timer))).wait_async(60)
        after = await (await isolated.works_for.submit_async(0.7)).wait_async(60)
        assert after.state == mp.JobState.SUCCEEDED, after.error.message
        assert after.result != left.result


@ANY
async def test_a_handler_that_hears_of_its_timeout_has_timed_out(app, worker):
    """It was asked where it was, and answered: it SUCCEEDED, or had crashed by itself."""
    for answer in ("exit", "return"):
        done = await (await isolated.hears_everything.submit_async(answer)).wait_async(60)
        assert (done.state, done.error and done.error.code) == (mp.JobState.FAILED, "timeout")


@ANY
async def test_what_a_handler_changed_of_its_process_is_as_before_for_the_next_one(app, worker):
    """A command that failed looked well to the next job, its files were another one's, or it died.

    A signal to every process, or a watchdog that the handler had set, ended the next job.
    """
    before = (await (await isolated.finds.submit_async()).wait_async(60)).result
    replaced = ["limit", "ignored", "blocked", "priority", *(["user"] if os.geteuid() == 0 else [])]
    for what in (*replaced, "processors", "mask", "recursion", "stop", "watchdog", "folder"):
        left = await (await isolated.leaves.submit_async(what)).wait_async(60)
        after = await (await isolated.finds.submit_async()).wait_async(60)
        assert after.state == mp.JobState.SUCCEEDED, (what, after.error.message)
        assert after.result[1:] == before[1:], what
        assert (after.result[0] != left.result) is (what in replaced), what


@ANY
async def test_output_that_a_handler_closed_is_not_what_the_next_one_opens(app, worker):
    """The next job's connection to the store was where its output went, too."""
    closed = await (await isolated.closes_its_output.submit_async()).wait_async(60)
    assert closed.state == mp.JobState.SUCCEEDED, closed.error.message
    after = await (await isolated.opens_a_file.submit_async()).wait_async(60)
    pid, number = after.result
    assert number > 2
    assert pid != closed.result
    again = await (await isolated.opens_a_file.submit_async()).wait_async(60)
    assert again.result[0] == pid, "nothing is replaced that was left as it was"


@ANY
async def test_a_process_that_ends_by_itself_waits_for_no_thread_of_its_handler(app, worker):
    """The attempt went on to its timeout, an hour as a rule, and held its slot."""
    job = await isolated.exits_in_a_task.submit_async()
    done = await job.wait_async(60)
    assert (done.error.type, done.error.code) == ("ProcessDied", "crash"), done.error.message
    assert done.error.message == "its process ended with code 3 before its handler returned"


@ANY
async def test_a_process_runs_attempts_where_python_has_no_waitid(app, worker):
    """Before Python 3.13 it has none on macOS: the process died after each attempt."""
    first = await (await isolated.is_where_waitid_is_missing.submit_async()).wait_async(60)
    assert first.state == mp.JobState.SUCCEEDED, first.error.message
    used, _ = (await (await isolated.leaves_a_process.submit_async()).wait_async(60)).result
    assert used == first.result
    second = await (await isolated.pid.submit_async()).wait_async(60)
    assert second.result != used, "it left a process"


@ANY
async def test_what_imports_pass_over_in_the_path_of_modules_is_passed_over_here_too(
    app, worker, monkeypatch, tmp_path
):
    """Each attempt failed with a TypeError, and left a process and its connections behind."""
    monkeypatch.setattr(sys, "path", [tmp_path, b"bytes", *sys.path])
    done = await (await isolated.pid.submit_async()).wait_async(60)
    assert done.state == mp.JobState.SUCCEEDED, done.error.message


def test_a_process_that_cannot_be_started_leaves_nothing_open(monkeypatch):
    """A file stayed open for each attempt, so that a shortage that should pass never did."""

    def refused(*_args, **_named):
        raise OSError(errno.EAGAIN, "temporarily unavailable")

    begin = Begin(Place("nowhere", "app"), [], "", None, 0)
    monkeypatch.setattr(os, "posix_spawn", refused)
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="temporarily"):
        IsolatedProcess(begin)
    assert set(Path("/proc/self/fd").iterdir()) == before


@ANY
def test_a_drain_runs_them_in_this_process_unless_it_is_asked(app):
    jobs = isolated.pid.submit_many([()] * 2)
    assert app.drain() == 2
    assert {job.refresh().result for job in jobs} == {os.getpid()}
    job = isolated.pid.submit()
    assert app.drain(isolate=True) == 1
    assert job.refresh().result != os.getpid()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"memory": "512M"}, "memory without isolate=True"),
        ({"isolate": True, "memory": "much"}, "memory: 'much' is not a number"),
        ({"isolate": True, "memory": 0}, "memory=0 must be more than zero"),
        ({"isolate": True, "cpu_seconds": 0}, "cpu_seconds=0 must be more than zero seconds"),
        ({"isolate": 1}, "isolate=1 must be True or False"),
    ],
)
def test_limits_that_make_no_sense_are_refused(options, told):
    with pytest.raises(mp.Invalid, match=told):
        mp.App().job(**options)(lambda: None)


async def test_an_app_that_no_module_holds_is_refused_in_words(tmp_path):
    app = mp.App(f"sqlite:///{tmp_path}/s.db")

    @app.job(isolate=True)
    def alone() -> None: ...

    with pytest.raises(mp.Invalid, match=r"'alone' is to run in a process of its own, .* top of a"):
        await app.worker()
    await app.client.close_async()
