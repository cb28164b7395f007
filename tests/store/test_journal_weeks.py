"""The journal's partitions on PostgreSQL: made ahead, dropped when nearly nothing is left (I9)."""

import threading
from datetime import UTC, datetime, time, timedelta

import psycopg
import pytest

import milepost as mp
from milepost import outcome
from milepost.records import NewJob, Template
from milepost.store import creation, jobs, journal, retention, timers
from milepost.store.migrate import migrate
from tests.support.databases import everyday_names
from tests.support.suite import Store, opened
from tests.support.suite.store import new_id

DAY = 86_400
WEEK = timedelta(days=7)
KEEP = retention.Keep(7 * DAY, 30 * DAY, 90 * DAY)
POSTGRES = [name for name in everyday_names() if name.startswith("postgres")]

pytestmark = pytest.mark.skipif(not POSTGRES, reason="there is no PostgreSQL")


@pytest.fixture(params=POSTGRES)
def store(request, backends):
    database = backends.fresh(request.param)
    with opened(database, "sync") as made:
        # Whatever day it is: a Wednesday of the week in which the store was made.
        [(first,)] = made.rows(f"SELECT to_date('{weeks(made)[0][8:]}', 'YYYYMMDD')")
        noon = datetime.combine(first, time(12), UTC) + timedelta(days=2)
        made.advance((noon - now(made)).total_seconds())
        yield made
        # Whatever a test did, the journal and the rows agree afterwards (I8, I9).
        assert made.problems() == []
    backends.drop(database)


def monday(moment: datetime) -> datetime:
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def now(store: Store) -> datetime:
    return store.rows("SELECT milepost_now()")[0][0].astimezone(UTC)


def weeks(store: Store) -> list[str]:
    """List the partitions but the default one."""
    found = store.rows(
        "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'journal'::regclass"
        " AND inhrelid <> 'journal_default'::regclass ORDER BY 1"
    )
    return [name for (name,) in found]


def named(*mondays: datetime) -> list[str]:
    return [f"journal_{each:%Y%m%d}" for each in mondays]


def where(store: Store, job_id: str) -> set[str]:
    """Name the partitions in which a job's history is."""
    found = store.rows(
        f"SELECT DISTINCT tableoid::regclass::text FROM journal WHERE subject_id = '{job_id}'"
    )
    return {name for (name,) in found}


def created(moment: datetime) -> str:
    """Make an id as if at that time."""
    passed = f"{int(moment.timestamp() * 1000):012x}"
    return f"{passed[:8]}-{passed[8:]}{new_id()[13:]}"


def create(store: Store, *ids: str, **options) -> list[str]:
    shared = Template(kind="k", **options)
    return store.run(creation.create, [NewJob(job_id, b"x", shared) for job_id in ids])


def polled(store: Store, *, times: int = 1, queue: str = "default", most: int = 100) -> None:
    worker = store.worker(new_id(), lease=9 * DAY)
    for _ in range(times):
        claims = store.claim(most, worker=worker, queues=[queue])
        store.settle(*[(claim, outcome.later(0)) for claim in claims], actor=worker)
        store.run(timers.wake, actor="m", most=most)


def summed_up(store: Store) -> None:
    while store.run(retention.sum_up, KEEP, after=retention.FIRST, most=100).left:
        pass


# Made


@pytest.mark.parametrize("backend", POSTGRES)
def test_a_store_is_born_with_this_week_and_the_next_two(backends, backend):
    database = backends.fresh(backend, empty=True)
    before = monday(datetime.now(UTC))
    with database.driver() as driver:
        migrate(driver)
    after = monday(datetime.now(UTC))
    with opened(database, "sync") as store:
        assert weeks(store) in [
            named(first, first + WEEK, first + 2 * WEEK) for first in (before, after)
        ]
        [job_id] = store.create()
        assert where(store, job_id) <= set(weeks(store))
    backends.drop(database)


def test_a_creation_lands_in_its_week_from_its_first_moment_to_its_last(store):
    first = monday(now(store)) + WEEK
    moment = timedelta(milliseconds=1)
    edges = [first - moment, first, first + WEEK - moment, first + WEEK]
    ids = create(store, *[created(edge) for edge in edges])
    before, own, after = named(first - WEEK, first, first + WEEK)
    assert [where(store, job_id) for job_id in ids] == [{before}, {own}, {own}, {after}]


def test_two_weeks_are_made_ahead_as_time_goes_on_and_none_twice(store):
    first = monday(now(store))
    store.advance(7 * DAY)
    assert store.run(retention.make_weeks) == 1
    assert store.run(retention.make_weeks) == 0
    assert weeks(store) == named(*(first + n * WEEK for n in range(4)))


def test_after_a_long_rest_what_is_missing_is_made(store):
    """Nobody ran maintenance for two months: what was created meanwhile is in the default one."""
    first = monday(now(store))
    [orphan] = create(store, created(first + 5 * WEEK))
    assert where(store, orphan) == {"journal_default"}
    store.advance(8 * 7 * DAY)
    assert store.run(retention.make_weeks) == 3
    assert weeks(store)[3:] == named(*(first + n * WEEK for n in (8, 9, 10)))


def test_a_week_of_which_the_default_partition_has_entries_stays_there(store):
    ahead = monday(now(store)) + 3 * WEEK
    [early] = create(store, created(ahead + timedelta(hours=1)))
    store.advance(7 * DAY)
    assert store.run(retention.make_weeks) == 0
    store.advance(7 * DAY)
    assert store.run(retention.make_weeks) == 1
    assert named(ahead)[0] not in weeks(store)
    store.claim(worker=store.worker())
    assert (where(store, early), store.moves(early)) == ({"journal_default"}, ["create", "claim"])


def test_whoever_reads_for_long_is_not_waited_for(store):
    """What a long report or a dump holds is asked for briefly, and again by another pass."""
    store.advance(7 * DAY)
    with psycopg.connect(store.database.url) as reader:
        reader.execute("SELECT count(*) FROM milepost.journal")
        assert store.run(retention.make_weeks) == 0
        store.advance(100 * DAY)
        assert not store.run(retention.drop_week, KEEP)
        reader.rollback()
    assert store.run(retention.make_weeks) == 3
    assert store.run(retention.drop_week, KEEP)


@pytest.mark.parametrize("held", ["a week", "the default partition"])
def test_a_partition_that_a_hand_holds_breaks_no_pass(store, held):
    """To count what is left, or to look for what is in the way, waits for locks as well (H-100)."""
    store.advance(111 * DAY)
    table = weeks(store)[0] if held == "a week" else "journal_default"
    with psycopg.connect(store.database.url) as hand:
        hand.execute(f"LOCK TABLE milepost.{table} IN ACCESS EXCLUSIVE MODE")
        made = store.run(retention.make_weeks)
        assert store.run(retention.weeks_full) is None
        assert not store.run(retention.drop_week, KEEP)
        hand.rollback()
    assert made + store.run(retention.make_weeks) == 3
    assert store.run(retention.drop_week, KEEP)


@pytest.fixture
def none_too_small(store):
    """Let any default partition that has an entry be too large; a store may be used again."""
    [(known,)] = store.rows("SELECT pg_get_functiondef('milepost_default_most()'::regprocedure)")
    with psycopg.connect(store.database.url, autocommit=True) as hand:
        hand.execute(
            "CREATE OR REPLACE FUNCTION milepost.milepost_default_most() RETURNS bigint"
            " LANGUAGE sql IMMUTABLE AS 'SELECT 0::bigint'"
        )
        yield
        hand.execute(known.encode())


def test_that_no_more_weeks_are_made_is_told(store, none_too_small, capsys):
    """Where the default partition is too large to be read through by an attach."""
    create(store, created(monday(now(store)) - WEEK))  # it fits into no week
    store.advance(7 * DAY)
    assert store.run(retention.make_weeks) == 0
    assert store.run(retention.weeks_full) > 0
    app = mp.App(store.database.url)
    app.maintain_once()
    app.close()
    told = capsys.readouterr().err
    assert "the journal gets no more weeks: its default partition is too large" in told
    assert "docs/how-to/retention.md" in told


def test_whoever_waits_behind_it_waits_briefly(store):
    """A lock that is waited for keeps everybody else waiting, as long as it is waited for."""
    asked = "SELECT proname FROM pg_proc WHERE proconfig @> '{lock_timeout=200ms}' ORDER BY 1"
    found = [name.removeprefix("milepost_") for (name,) in store.rows(asked)]
    assert found == ["default_size", "drop_week", "make_weeks"]


def test_a_new_week_is_guarded_like_the_rest(store):
    store.advance(7 * DAY)
    store.run(retention.make_weeks)
    [job_id] = create(store, created(now(store) + 2 * WEEK))
    [week] = where(store, job_id)
    for cheat in (
        f"UPDATE {week} SET detail = 'x'",
        f"DELETE FROM {week}",
        f"TRUNCATE {week}",
        f"INSERT INTO {week} SELECT * FROM {week}",
    ):
        with pytest.raises(psycopg.Error, match="milepost:"):
            store.rows(cheat)


# Dropped


def old_week(store: Store, *, times: int = 2) -> tuple[str, str]:
    """Let a job poll a few times, long ago; answer with its id and the partition it is in."""
    [job_id] = create(store, created(now(store)))
    polled(store, times=times)
    [week] = where(store, job_id)
    store.advance(100 * DAY)
    return job_id, week


def test_a_week_of_which_nothing_is_left_is_dropped(store):
    made = weeks(store)
    store.advance(97 * DAY + 14 * DAY)
    gone = [store.run(retention.drop_week, KEEP) for _ in range(4)]
    assert gone == [True, True, True, False]
    assert (len(made), weeks(store)) == (3, [])


def test_a_week_that_is_not_old_enough_stays(store):
    ended = monday(now(store)) + WEEK + timedelta(days=90)
    store.advance((ended - now(store)).total_seconds() - 60)
    assert not store.run(retention.drop_week, KEEP)
    store.advance(120)
    assert store.run(retention.drop_week, KEEP)


def test_what_survives_its_week_goes_on_in_the_default_partition(store):
    """One snapshot and what it did since, whole; nobody who looks sees a difference."""
    job_id, week = old_week(store)
    summed_up(store)
    polled(store)
    before = store.run(journal.history, job_id)
    xids = f"SELECT seq, xid::text FROM journal WHERE subject_id = '{job_id}' ORDER BY seq"
    written = store.rows(xids)
    assert [entry.move for entry in before] == ["snapshot", "claim", "later", "wake"]
    assert store.run(retention.drop_week, KEEP)
    assert week not in weeks(store)
    assert where(store, job_id) == {"journal_default"}
    # By the transactions that wrote them, so that whoever follows is not told again.
    assert (store.run(journal.history, job_id), store.rows(xids)) == (before, written)
    polled(store)
    assert store.moves(job_id) == [*(e.move for e in before), "claim", "later", "wake"]


def test_a_week_of_which_much_is_left_stays_for_another_round(store, monkeypatch):
    monkeypatch.setattr(retention, "MOVED", 3)
    job_id, week = old_week(store)
    while store.run(retention.drop_week, KEEP):
        pass
    assert week in weeks(store)
    summed_up(store)
    assert store.run(retention.drop_week, KEEP)
    assert store.moves(job_id) == ["snapshot"]


def test_entries_whose_row_was_deleted_by_hand_are_kept(store):
    """`verify` counts them as pruned, before and after."""
    job_id, _ = old_week(store)
    store.run(jobs.cancel, job_id, reason="r", actor=None)
    store.rows(f"DELETE FROM job WHERE id = '{job_id}'")
    assert store.run(retention.drop_week, KEEP)
    assert where(store, job_id) == {"journal_default"}
    assert store.moves(job_id)[-1] == "cancel"


def test_no_move_is_lost_or_refused_while_weeks_are_dropped(store):
    """H-9: cleaning up is no move, and stands in the way of none. Real connections, at once."""
    lived = 6
    first = monday(now(store))
    for n in range(lived):
        store.advance(-7 * DAY * (n + 20))
        store.run(retention.make_weeks)
        store.advance(7 * DAY * (n + 20))
    old = [first - (n + 20) * WEEK for n in range(lived)]
    ids = create(store, *[created(each + timedelta(hours=n)) for each in old for n in range(8)])
    assert set(named(*old)) <= set(weeks(store))
    stop, troubles, rounds = threading.Event(), [], [0] * 3

    def move(slot: int) -> None:
        try:
            with opened(store.database, "sync") as mine:
                while not stop.is_set() or rounds[slot] < 5:
                    polled(mine, most=9)
                    rounds[slot] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must hear of it
            troubles.append(error)

    movers = [threading.Thread(target=move, args=(slot,)) for slot in range(len(rounds))]
    for mover in movers:
        mover.start()
    # Each may be busy at the moment: it is tried again, as every pass does.
    tries = 0
    while set(named(*old)) & set(weeks(store)) and tries < 2000:
        store.run(retention.drop_week, KEEP)
        tries += 1
    stop.set()
    for mover in movers:
        mover.join(60)
    assert troubles == []
    assert set(named(*old)) & set(weeks(store)) == set()
    assert store.problems() == []
    for job_id in ids:
        job = store.run(jobs.get, job_id)
        moves = store.moves(job_id)
        assert (len(moves), moves.count("later")) == (job.version, job.polls)


# Who may


def test_upkeep_is_asked_for_by_retention_alone(store):
    ask = "INSERT INTO journal_upkeep (task, subject_id, before, most) VALUES ('{}', '{}', {}, 9)"
    job_id, _ = old_week(store)
    with pytest.raises(psycopg.Error, match="by retention alone"):
        store.rows(ask.format("sum up", job_id, "now()"))
    with pytest.raises(psycopg.Error, match="milepost:"):
        store.rows(f"SELECT milepost_sum_up('{job_id}', milepost_now(), 9)")
    assert store.rows("SELECT * FROM journal_upkeep") == []
    for statement in ("UPDATE journal_upkeep SET most = 1", "DELETE FROM journal_upkeep"):
        with pytest.raises(psycopg.Error, match="journal_upkeep"):
            store.rows(statement)


def test_a_role_without_grants_may_not(store):
    name = f"clerk_{store.rows('SELECT current_database()')[0][0]}"
    with store.raw() as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN")
        owner.execute(f"GRANT USAGE ON SCHEMA milepost TO {name}")
        owner.execute(f"GRANT SELECT, INSERT, UPDATE ON job, run TO {name}")
    for attempt in (
        "INSERT INTO journal_upkeep (task, most) VALUES ('make weeks', 2)",
        "SELECT milepost_make_weeks(9)",
        "SELECT milepost_drop_week(now(), 9)",
        "SELECT milepost_sum_up(gen_random_uuid(), now(), 9)",
    ):
        with store.database.raw(role=name) as clerk:
            clerk.execute("SET milepost.retaining = 'on'")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                clerk.execute(attempt)
    with store.raw() as owner:
        owner.execute(f"DROP OWNED BY {name}")
        owner.execute(f"DROP ROLE {name}")
