"""The overview says what needs somebody first, and its numbers are those of the store."""

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.records import ErrorGroup, Queue, Worker
from milepost.store import queues, tally
from milepost.store.dashboard import Checked
from milepost.store.tally import DurationCount, MoveCount
from milepost.web.dashboard import words
from milepost.web.dashboard.attention import sentences
from milepost.web.dashboard.facts import Facts
from milepost.web.dashboard.pace import RANGES, Pace, overall

HTML = {"Accept": "text/html"}
NOW = datetime(2026, 11, 18, 4, 10, 22, tzinfo=UTC)
BUDGET = 6
SHARED = {"rail_counts", "view_list", "checked_list", "clock_now", "token_any"}
"""Asked once in a while for all pages, or to let somebody in."""
SLOW = {"worker_list", "error_groups", "error_hours", "pipeline_lags", "outbox_waiting"}


def worker(name="app-1", *, state="POLLING", queues=None, lease=20.0, move="poll"):
    ended = NOW + timedelta(seconds=lease)
    return Worker(*(name, state, move, "app", 1, None, queues, None, None), NOW, NOW, ended, lease)


def error(**changed):
    group = {
        "fingerprint": "f" * 8,
        "type": "HTTPError",
        "message": "503",
        "code": None,
        "place": None,
        "kind": "charge",
        "count": 312,
        "more": False,
        "failed": 240,
        "open": 72,
        "first_at": NOW - timedelta(minutes=18),
        "last_at": NOW - timedelta(seconds=12),
        "job_id": "j",
        "hours": (0,) * 23 + (312,),
    }
    return ErrorGroup(**{**group, **changed})


def needs(*found, oldest=None, workers=(), errors=(), late=None, checks=None, pipelines=None):
    live = Facts(list(workers), list(errors), pipelines or {}, late or {})
    return sentences(list(found), oldest or {}, live, checks or {}, NOW)


def test_nothing_needs_anybody_where_nothing_is_wrong():
    assert needs(Queue("mail", {"QUEUED": 3}), oldest={"mail": 2.0}, workers=[worker()]) == []


def test_an_error_that_comes_now_and_often_is_named_with_its_kind_and_number():
    [said] = needs(
        errors=[error(), error(hours=(0,) * 23 + (2,)), error(last_at=NOW - timedelta(hours=1))]
    )
    assert said.subject == "charge fails"
    assert "HTTPError: 503" in said.said
    assert "since 03:52" in said.said
    assert said.more == "240 jobs failed, 72 will be tried again"
    assert said.path.startswith("/errors/")


def test_a_paused_queue_is_named_with_who_and_why_and_can_be_resumed():
    paused = Queue(
        *("mail", {"QUEUED": 1204}, True, NOW - timedelta(minutes=14)), "ana", "bounce storm"
    )
    [said] = needs(paused, oldest={"mail": 848.0}, workers=[worker()])
    assert said.subject == "Queue mail is paused"
    assert "14 min 00 s by ana" in said.said
    assert "bounce storm" in said.said
    assert said.more == "1,204 waiting, oldest 14 min 08 s"
    assert (said.path, said.asks) == ("/queues/mail/resume", True)


@pytest.mark.parametrize("alive", [[], [worker(queues='["other"]')], [worker(lease=-1.0)]])
def test_a_queue_that_nobody_serves_is_named(alive):
    [said] = needs(Queue("index", {"QUEUED": 96}), oldest={"index": 400.0}, workers=alive)
    assert said.subject == "No worker serves queue index"


def test_a_lost_worker_a_late_channel_and_a_failed_check_are_named():
    lost = worker("gone", state="STOPPED", move="bury", lease=-60.0)
    check = Checked("verify", False, "2 findings", NOW)
    said = needs(workers=[lost], late={"orders": (4, 900.0)}, checks={"verify": check})
    assert [one.subject for one in said] == [
        "verify found something",
        "1 worker was lost",
        "Channel orders is late",
    ]


def test_the_only_worker_is_named_when_it_was_killed_and_nobody_noticed():
    [said] = needs(workers=[worker("gone", state="IDLE", lease=-7200.0)])
    assert said.subject == "1 worker was lost"
    assert said.more == "no worker is alive to take over their jobs"


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 50)), max_size=40))
def test_no_move_of_a_range_is_lost_or_counted_twice(moves):
    chosen = RANGES["1 h"]
    since = chosen.since(NOW)
    given_moves = [
        MoveCount(NOW - timedelta(seconds=ago), None, None, "succeed", count)
        for ago, count in moves
    ]
    pace = Pace.of(chosen, NOW, given_moves)
    within = sum(one.count for one in given_moves if one.at >= since)
    assert pace.total("succeed") == within
    assert len(pace.per_second("succeed")) == chosen.points


def test_quantiles_of_a_range_are_those_of_all_its_steps_together():
    buckets = [0] * (len(tally.BOUNDS) + 1)
    buckets[3] = 10
    one = DurationCount(NOW, tuple(buckets), 0.1)
    assert overall([one, None, one], 0.5) == tally.quantile([2 * n for n in buckets], 0.5)
    assert overall([None], 0.5) is None


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0 ms"),
        (0.038, "38 ms"),
        (0.9996, "1 s"),
        (1.9, "1.9 s"),
        (59.97, "1 min 00 s"),
        (848, "14 min 08 s"),
        (3600, "1 h 0 min"),
        (100_800, "1 d 4 h"),
        (None, words.NONE),
    ],
)
def test_durations_read_as_people_say_them(seconds, told):
    assert words.duration(seconds) == told


@pytest.mark.parametrize(
    ("number", "told"), [(118, "118/s"), (1.8, "1.8/s"), (31 / 60, "31/min"), (0, "0")]
)
def test_rates_are_in_the_unit_that_gives_a_readable_number(number, told):
    assert words.rate(number) == told


async def test_its_counts_are_the_stores_and_each_links_to_its_list(api, app):
    for kind in ("convert", "broken", "patient"):
        await api.post("/v1/jobs", json={"kind": kind, "args": ["a"] if kind == "convert" else []})
    await app.drain_async()
    await api.post("/v1/jobs", json={"kind": "convert", "args": ["b"]})
    page = await api.get("/", headers=HTML)
    assert page.status_code == 200
    shown = dict(re.findall(r'<th scope="row">(\w+)</th><td>([\d,]+)</td>', page.text))
    held = {}
    for counts in app.counts().values():
        for state, count in counts.items():
            held[state.capitalize()] = held.get(state.capitalize(), 0) + count
    assert {state: int(number.replace(",", "")) for state, number in shown.items()} == held
    assert held == {"Succeeded": 1, "Failed": 1, "Waiting": 1, "Queued": 1}
    for state in held:
        assert f'href="/jobs?q=state%3A{state.lower()}"' in page.text


async def test_it_asks_no_more_than_six_things_of_the_store(api, statements):
    await api.get("/", headers=HTML)
    statements.clear()
    await api.get("/", headers=HTML)
    asked = [name for name in statements if name not in SHARED | SLOW]
    assert len(asked) <= BUDGET, asked


async def test_an_unknown_range_is_refused_with_those_that_there_are(api):
    answer = await api.get("/?range=2h", headers=HTML)
    assert answer.status_code == 422
    assert "15 min, 1 h, 24 h, 7 d" in answer.text


@pytest.mark.parametrize("name", ["default", "eu/mail & <b>?#%"])
async def test_a_queue_is_paused_with_a_reason_and_resumed_under_the_persons_name(api, app, name):
    place = f"/queues/{quote(name, safe='')}"
    await app.client.run_async(queues.pause, name, paused=True, actor="x")
    await app.client.run_async(queues.pause, name, paused=False, actor="x")
    asked = await api.get(f"{place}/pause", headers={**HTML, "X-Dialog": "1"})
    assert "<html" not in asked.text
    token = re.search(r'name="form_token" value="([^"]+)"', asked.text)[1]
    form = {"form_token": token, "reason": "<b>storm</b>"}
    done = await api.post(f"{place}/pause", data=form)
    assert done.status_code == 303
    page = await api.get("/queues", headers=HTML)
    assert "paused" in page.text
    assert f'href="{place}/resume"' in page.text
    assert f'href="{place}/resume"' in (await api.get("/", headers=HTML)).text
    assert "&lt;b&gt;storm&lt;/b&gt;" in page.text
    [queue] = [one for one in app.queues.list() if one.name == name]
    assert (queue.paused, queue.paused_by, queue.reason) == (True, "local", "<b>storm</b>")
    assert (await api.post(f"{place}/resume", data={"form_token": token})).is_redirect
    assert not next(one for one in app.queues.list() if one.name == name).paused


async def test_a_token_of_one_tenant_is_led_to_its_jobs(api, token):
    answer = await api.get("/", headers={**HTML, **token("acme-ops", "read", tenant="acme")})
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs")


def test_the_first_three_troubles_are_of_different_kinds():
    """A paused queue is not pushed out of sight by the third error."""
    held = Queue("mail", {"QUEUED": 1_204}, paused=True, paused_at=NOW, paused_by="ana")
    failing = [error(fingerprint=name, kind=name, failed=9) for name in ("a", "b", "c", "d")]
    idle = Queue("index", {"QUEUED": 3})
    found = needs(held, idle, errors=failing, oldest={"index": 400.0})
    kinds = [one.subject for one in found]
    assert kinds[:3] == ["a fails", "No worker serves queue index", "Queue mail is paused"]
    assert kinds[3:] == ["b fails", "c fails", "d fails"]


def test_a_pipeline_that_breaks_its_promise_is_named():
    [told] = needs(pipelines={"stones": (5_460.0, 3_600.0), "rings": (5_460.0, None)})
    assert told.subject == "Pipeline stones is behind"
    assert told.said == "by 1 h 31 min: fresh within 1 h was asked for"
    assert (told.label, told.path) == ("Open", "/pipelines/stones")
