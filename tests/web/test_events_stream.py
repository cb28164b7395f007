"""/v1/events: every committed move once, in the order of each subject, whatever began when."""

import json
import threading

import httpx2
import pytest

import milepost as mp
from milepost.store import creation, events, jobs
from milepost.store.events import Cursor

pytestmark = pytest.mark.both_stores


def heard(address, count, *, headers=None, params=None, ready=None, names=("job", "run")):
    """Follow the stream until so many events of these names have come: (id, name, data)s."""
    found = []
    with (
        httpx2.Client(timeout=30) as client,
        client.stream("GET", f"{address}/v1/events", headers=headers, params=params) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        event = {}
        for line in answer.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                event[name] = value
                continue
            if event["event"] == "hello" and ready is not None:
                ready.set()
            if event["event"] in names:
                found.append((event["id"], event["event"], json.loads(event["data"])))
            event = {}
            if len(found) >= count:
                return found
    return found


class Follower:
    """Follows the stream in a thread."""

    def __init__(self, address, count, **how):
        self.ready = threading.Event()
        self.found = []
        self._thread = threading.Thread(
            target=lambda: self.found.extend(heard(address, count, ready=self.ready, **how))
        )
        self._thread.start()
        assert self.ready.wait(20)

    def result(self):
        self._thread.join(30)
        return self.found


def test_every_move_is_told_as_it_is_committed(app, address):
    follower = Follower(address, 3)
    job = app.registry.newest("convert") and app.new_job("convert", ["a"], {}, {})
    app.client.create([job])
    app.drain()

    told = [data for _, _, data in follower.result()]

    assert [(d["id"], d["move"], d["state"]) for d in told] == [
        (job.id, "create", "PENDING"),
        (job.id, "claim", "RUNNING"),
        (job.id, "succeed", "COMPLETE"),
    ]
    assert [d["seq"] for d in told] == [1, 2, 3]
    assert told[0]["kind"] == "convert"
    assert "detail" not in told[0]


def test_whoever_comes_back_hears_the_rest_and_nothing_twice(app, address):
    first = Follower(address, 2)
    submitted = [app.new_job("convert", [str(n)], {}, {}) for n in range(6)]
    app.client.create(submitted)
    begun = first.result()

    rest = heard(address, 4, headers={"Last-Event-ID": begun[-1][0]})

    told = [data["id"] for _, _, data in begun + rest]
    assert sorted(told) == sorted(job.id for job in submitted)


def test_a_stream_may_have_an_end_and_the_next_goes_on_from_it(app, address):
    """What is there, and where it came to: for whoever would rather ask now and then."""
    [before] = heard(address, 1, params={"seconds": 0}, names=("end",))
    [job_id] = app.client.create([app.new_job("convert", ["a"], {}, {})])
    following = {"Last-Event-ID": before[0]}
    every = ("hello", "job", "end")
    told = heard(address, 9, params={"seconds": 0}, headers=following, names=every)
    assert [name for _, name, _ in told] == ["hello", "job", "end"]
    assert told[1][2]["id"] == job_id
    following = {"Last-Event-ID": told[-1][0]}
    rest = heard(address, 9, params={"seconds": 0.2}, headers=following, names=every)
    assert [name for _, name, _ in rest] == ["hello", "end"]
    for odd in ("-1", "x", "86401", "nan", "inf"):
        answer = httpx2.get(f"{address}/v1/events", params={"seconds": odd})
        assert answer.status_code == 422


def test_a_follower_hears_of_its_job_its_run_its_kind_only(app, address):
    one, other = (
        app.new_job(kind, args, {}, {}) for kind, args in (("slowly", [1]), ("convert", ["x"]))
    )
    followers = [
        Follower(address, 1, params={"job": one.id}),
        Follower(address, 1, params={"kind": "slowly"}),
        Follower(address, 1, params={"queue": "slow"}),
    ]
    app.client.create([other, one])
    assert {f.result()[0][2]["id"] for f in followers} == {one.id}


def test_a_bound_token_hears_of_its_own_only(app, address, token):
    """H-116: the stream is narrowed like everything else."""
    everything = token("everything", "read")
    mine = token("mine", "read", tenant="acme")
    slow = token("slow", "read", queues=["slow"])
    with httpx2.Client(timeout=60) as client:
        assert client.get(f"{address}/v1/events").status_code == 401
        submit = token("submits", "submit", tenant="acme")
        assert client.get(f"{address}/v1/events", headers=submit).status_code == 403
    followers = [Follower(address, 1, headers=h) for h in (mine, slow)]
    whole = Follower(address, 3, headers=everything)
    with httpx2.Client(timeout=60) as client:
        made = [
            client.post(f"{address}/v1/jobs", headers=h, json=body).json()["id"]
            for h, body in (
                (token("all", "submit"), {"kind": "convert", "args": ["a"]}),
                (submit, {"kind": "convert", "args": ["b"]}),
                (token("all2", "submit"), {"kind": "slowly", "args": [1]}),
            )
        ]
    assert [f.result()[0][2]["id"] for f in followers] == made[1:]
    assert [data["id"] for _, _, data in whole.result()] == made


@pytest.mark.parametrize("id_", ["nonsense", "W10", str(Cursor("x", "1")), str(Cursor("1", "1:"))])
def test_a_last_event_id_that_is_none_is_refused(address, id_):
    answer = httpx2.get(f"{address}/v1/events", headers={"Last-Event-ID": id_})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"


def read(app, cursor, most=100):
    return app.client.run(events.follow, cursor, most=most)


def test_what_commits_late_is_told_late_and_not_left_out(app, database, raw):
    """Numbers and times are taken before a commit: an older one may be seen after a newer."""
    if database.dialect != "postgres":
        pytest.skip("SQLite has one writer: what is written first is committed first")
    cursor = app.client.run(events.here)
    early, late = (app.new_job("convert", [word], {}, {}) for word in ("early", "late"))
    with database.raw() as other:
        other.execute("BEGIN")
        other.execute(
            "INSERT INTO job (id, kind, state, move) "
            f"VALUES ('{early.id}', 'convert', 'QUEUED', 'create')"
        )
        app.client.run(creation.create, [late])
        found, cursor, _ = read(app, cursor)
        assert [event.id for event in found] == [late.id]
        resumed = found[-1].cursor
        other.execute("COMMIT")

    found, cursor, _ = read(app, cursor)
    assert [event.id for event in found] == [early.id]
    assert read(app, cursor)[0] == []
    # The same for whoever was away meanwhile.
    assert [event.id for event in read(app, resumed)[0]] == [early.id]


def test_pages_of_any_size_tell_the_same(app):
    cursor = app.client.run(events.here)
    for n in range(7):
        [job_id] = app.client.run(creation.create, [app.new_job("convert", [str(n)], {}, {})])
        app.client.run(jobs.cancel, job_id, reason="x", actor="test")
    whole = [(e.id, e.seq) for e in read(app, cursor)[0]]
    assert len(whole) == len(set(whole)) == 14
    for most in (1, 2, 3, 13, 14, 15):
        found, place = [], cursor
        for _ in range(20):
            page, place, lost = read(app, place, most=most)
            assert not lost
            found += [(e.id, e.seq) for e in page]
        assert found == whole
    # From after each single event too: its id is a place.
    told = read(app, cursor)[0]
    for index, event in enumerate(told):
        assert [(e.id, e.seq) for e in read(app, event.cursor)[0]] == whole[index + 1 :]


def test_writers_at_once_lose_nothing_and_double_nothing(app):
    """What eight writers commit while somebody reads is read once, in the order of each job."""
    cursor, found, stop = app.client.run(events.here), [], threading.Event()

    def write():
        for n in range(25):
            [job_id] = app.client.run(creation.create, [app.new_job("convert", [str(n)], {}, {})])
            app.client.run(jobs.cancel, job_id, reason="x", actor="test")

    def follow(place):
        while True:
            last = stop.is_set()
            page, place, _ = read(app, place, most=17)
            found.extend((e.id, e.seq) for e in page)
            if last and not page:
                return

    reader = threading.Thread(target=follow, args=(cursor,))
    writers = [threading.Thread(target=write) for _ in range(8)]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()

    assert len(found) == len(set(found)) == 400
    by_job = {}
    for job_id, seq in found:
        by_job.setdefault(job_id, []).append(seq)
    assert set(map(tuple, by_job.values())) == {(1, 2)}


def test_a_follower_away_for_too_long_is_told_that_it_missed_something(app, database, advance):
    if database.dialect != "sqlite":
        pytest.skip("PostgreSQL keeps it with the journal")
    cursor = app.client.run(events.here)
    app.client.run(creation.create, [app.new_job("convert", ["a"], {}, {})])
    [first] = read(app, cursor)[0]
    app.client.run(creation.create, [app.new_job("convert", ["b"], {}, {})])
    app.client.run(creation.create, [app.new_job("convert", ["c"], {}, {})])
    advance(events.KEEP_SECONDS * 2)
    assert app.client.run(events.prune, most=100) == 2
    # Nobody follows: what moves now costs nothing, and is not kept.
    app.client.run(creation.create, [app.new_job("convert", ["d"], {}, {})])
    found, place, lost = read(app, first.cursor)
    assert lost
    assert found == []
    app.client.run(creation.create, [app.new_job("convert", ["e"], {}, {})])
    assert [e.move for e in read(app, place)[0]] == ["create"]


class Stones(mp.Source):
    def count(self, window, low, high):
        return 3

    def fetch(self, window, partition, cursor):
        return mp.Page([{"id": n, "price": n} for n in range(3)])


def test_h_87_a_pipelines_signals_are_told_with_run_and_trace(app, address):
    pipeline = app.pipeline("stones", Stones(), key="id", partition_by="price", partitions=1)
    since = app.client.run(events.here)
    run = pipeline.start()
    app.drain(timeout=20)
    found, _, _ = app.client.run(events.follow, since, most=500)
    told = heard(address, len(found), headers={"Last-Event-ID": str(since)})
    signals = [data for _, _, data in told if data["signal"]]
    assert [data["signal"] for data in signals] == ["WORK_DONE", "CONSOLIDATE"]
    assert {data["run"] for data in signals} == {run.id}
    assert {data["trace"].split("-")[1] for data in signals} == {run.id.replace("-", "")}
