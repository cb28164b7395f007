"""Searches find the jobs that a filter means, on either store, and look at a bounded number."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import milepost as mp
from milepost import filters
from milepost.errors import Invalid
from milepost.lifecycle import JobState
from milepost.records import Job
from milepost.store import jobs, search
from milepost.store.instants import EPOCH

COLUMNS = {"run": "run_id", "worker": "worker_id", "key": "unique_key"}


@pytest.fixture
def shop(app, advance):
    """Jobs in every state that a small store can have, with tags, keys, runs and errors."""

    @app.job(retries=0)
    def sell(price: int) -> int:
        if price % 3 == 0:
            raise mp.Fail(f'no "customer" pays {price}', code="dear")
        if price % 5 == 0:
            raise TimeoutError
        return price

    @app.job(retries=9, retry_delay=3600)
    def ask(whom: str) -> None:
        raise ConnectionError(whom)

    packing = app.batch("pack", params=int)

    @packing.step
    def wrap(count: int) -> Iterator[int]:
        yield from range(count)

    @packing.step(gated=True)
    def seal(one: int) -> None:
        return None

    long = "x" * 300
    for price in range(12):
        tags = {"customer": str(price % 4), "note": f"{long}{price % 2}"}
        sell.options(tags=tags if price % 2 else None, unique=f"sale-{price}").submit(price)
    packing.start(3)
    app.drain(10)
    advance(600)
    ask.options(tags={"customer": "1"}, queue="slow").submit("Ada")
    app.drain(queues=["slow"])
    sell.options(start_in=3600, queue="slow").submit(1)
    sell.options(hold=True).submit(2)
    sell.submit(4).cancel("no more")
    packing.start(2)
    sell.options(tags={"customer": "2", "a b": "c,d"}, queue="slow").submit(7)
    return app


def everything(app) -> list[Job]:
    return list(app.client.run(jobs.listing, most=1000))


def holds(term: filters.Term, job: Job, now_us: int) -> bool:
    """Say whether a job fits a term, by its own row."""
    if term.key in ("created", "age", "duration"):
        ran = (
            (job.finished_at or EPOCH) - job.started_at
            if job.finished_at and job.started_at
            else None
        )
        at = job.created_at - EPOCH if term.key != "duration" else ran
        plain = filters.Term(term.key, term.values)
        us = None if at is None else at // EPOCH.resolution
        found = us is not None and any(a <= us < b for a, b in plain.intervals(now_us))
    elif term.key == "tag":
        found = json.loads(job.tags or "{}").get(term.name) in term.words
    elif term.key == "error":
        error = json.loads(job.error or "{}")
        words = {error.get("type"), error.get("code"), job.fingerprint} - {None}
        texts = [value.word for value in term.values if value.text]
        found = bool(words & set(term.words)) or any(
            text in str(error.get("message", "")) for text in texts
        )
    else:
        found = getattr(job, COLUMNS.get(term.key, term.key)) in term.words
    return found is not term.negated


def found_by(app, text: str, **more) -> list[str]:
    page = app.client.run(search.page, filters.parse(text), most=1000, **more)
    assert page.next is None, text
    return [job.id for job in page]


def words(app) -> dict[str, list[str]]:
    known = everything(app)
    made = min(job.created_at for job in known if job.queue == "slow").isoformat()
    return {
        "state": [*JobState, "pending"],
        "kind": ["sell", "ask", "pack.wrap", "none"],
        "queue": ["default", "slow"],
        "run": sorted({job.run_id for job in known if job.run_id}),
        "created": [f">{made}", f"<{made}", "2020-01-01"],
        "age": [">5m", "<5m", ">1d"],
        "duration": [">0s", "<1h", ">1h"],
        "error": ["dear", "Fail", "TimeoutError", "none", '"pays 3"', '"no \\"customer\\""'],
        "fingerprint": sorted({job.fingerprint for job in known if job.fingerprint}),
        "worker": ["nobody"],
        "tenant": ['""', "other"],
        "key": ["sale-1", "sale-3", "none"],
        "tag.customer": ["1", "2", "3"],
        "tag.note": [f"{'x' * 300}1", "x"],
        'tag."a b"': ['"c,d"', "c"],
    }


def test_every_filter_finds_the_jobs_it_means(shop):
    known, chosen = everything(shop), random.Random(7)
    now_us = (datetime.now(UTC) - EPOCH) // EPOCH.resolution + 600_000_000
    values = words(shop)
    texts = [f"{key}:{value}" for key in values for value in values[key]]
    assert {job.state for job in known} > {"FAILED", "SUCCEEDED", "RETRYING", "WAITING", "CREATED"}

    def term() -> str:
        key = chosen.choice(list(values))
        some = chosen.sample(values[key], k=min(len(values[key]), chosen.choice((1, 1, 2))))
        return f"{chosen.choice(('', '', '-'))}{key}:{','.join(some)}"

    texts += [f"-{text}" for text in texts]
    texts += [" ".join(term() for _ in range(chosen.choice((2, 2, 3)))) for _ in range(150)]
    hits = 0
    for text in ["", *texts]:
        where = filters.parse(text)
        expected = [job.id for job in known if all(holds(t, job, now_us) for t in where.terms)]
        assert found_by(shop, text) == expected, text
        hits += bool(expected)
    assert hits > 100


def test_pages_follow_each_other_and_stop_at_the_rows_they_may_look_at(shop, monkeypatch):
    known = everything(shop)
    for text in ("kind:sell", "state:failed,succeeded", "tag.customer:1,2,3", "error:dear,Fail"):
        got, cursor = [], None
        while True:
            page = shop.jobs.list(where=text, limit=2, cursor=cursor)
            got += [job.id for job in page]
            if (cursor := page.next) is None:
                break
        assert got == found_by(shop, text)

    monkeypatch.setattr(search, "LOOK", 4)
    page = shop.jobs.list(where="kind:none", limit=2)
    assert (list(page), page.next, page.looked_to) == ([], known[3].id, known[3].created_at)
    seen = 1
    while (page := shop.jobs.list(where="kind:none", limit=2, cursor=page.next)).next:
        seen += 1
    assert seen == len(known) // 4
    assert page.looked_to is None


@pytest.mark.parametrize("later", [0, 1])
def test_a_long_backlog_behind_many_newer_jobs_is_on_the_first_page(app, monkeypatch, later):
    @app.job()
    def sell(price: int) -> None: ...

    waiting = [sell.options(queue="slow").submit(n).id for n in range(6)]
    waiting += [sell.options(start_in=3600).submit(n).id for n in range(later)]
    sell.submit_many([(n,) for n in range(9)])
    app.drain(queues=["default"])
    monkeypatch.setattr(search, "LOOK", 4)
    page = app.jobs.list(where="state:pending", limit=3)
    assert [job.id for job in page] == waiting[::-1][:3]


def test_superseded_jobs_and_large_pages_are_left_out(shop):
    [failed, *_] = shop.jobs.list(where="error:dear")
    again = failed.rerun()
    assert found_by(shop, "kind:sell", superseded=True) == [failed.id]
    assert again.id in found_by(shop, f"-key:{failed.record.unique_key}", superseded=False)
    page = shop.client.run(search.page, filters.parse("kind:sell"), most=9, most_bytes=1)
    assert (len(page), page.next, page.looked_to) == (1, page[0].id, None)


def test_a_running_job_is_found_by_its_worker_and_its_duration(app):
    seen = {}

    @app.job()
    def look(ctx: mp.Context) -> None:
        [job] = app.jobs.list(where="state:running duration:<1h")
        worker = job.record.worker_id
        seen["by_worker"] = [one.id for one in app.jobs.list(where=f"worker:{worker}")]

    job = look.submit()
    app.drain()
    assert job.refresh().state == "SUCCEEDED", job.error
    assert seen == {"by_worker": [job.id]}
    assert list(app.jobs.list(where="duration:>1h")) == []


def test_tags_leave_with_their_job(app, raw):
    @app.job()
    def sell(price: int) -> None: ...

    sell.options(tags={"customer": "42"}).submit(1)
    job = sell.options(tags={"customer": "42"}).submit(2)
    app.drain()
    assert raw.value("SELECT count(*) FROM job_tag") == 2
    raw.execute(f"DELETE FROM job WHERE id = '{job.id}'")
    assert raw.value("SELECT count(*) FROM job_tag") == 1
    with pytest.raises(Exception, match=r"these never change|touches nothing else"):
        raw.execute("UPDATE job SET tags = NULL, move = 'erase', version = version + 1")


def test_an_unknown_key_is_invalid(app):
    with pytest.raises(Invalid, match="column 14"):
        app.jobs.list(where="state:failed sate:x")


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


def test_a_text_is_looked_for_in_the_message_alone(app):
    """`error:"message"` found every job that had failed: it is a word of their rows."""

    @app.job(retries=0)
    def sell() -> None:
        raise mp.Fail(f'first\nnext\t\x1b[31m "one" C:\\temp {FAMILY}', code="dear")

    job = sell.submit()
    app.drain()
    for word in (
        "message",
        "code",
        "attempt",
        "dear",
        "Fail",
        "in test",
        "nnext",
        "tnext",
        "u001b",
    ):
        assert found_by(app, f'error:"{word}"') == [], word
        assert found_by(app, f'-error:"{word}"') == [job.id]
    for said in ("first\nnext", "next\t\x1b[31m", '"one"', "C:\\temp", FAMILY):
        where = filters.Where((filters.Term("error", (filters.Value(said, text=True),)),))
        assert found_by(app, str(where)) == [job.id], said


def test_a_value_may_hold_characters_that_do_not_print(app):
    """A tag with the joiner U+200D, as in Persian, could be stored and not found."""

    @app.job
    def sell() -> None: ...

    job = sell.options(tags={FAMILY: FAMILY, "lines": "a\nb"}, unique="a\u00a0b").submit()
    for text in (f"tag.{FAMILY}:{FAMILY}", 'tag.lines:"a\nb"', 'key:"a\u00a0b"'):
        assert found_by(app, text) == [job.id]
        assert str(filters.parse(text)).startswith(text[:5])
