"""The page of jobs: its filter, its rows and counts, what is done to many, saved views."""

import html
import re

import httpx2
import pytest
import pytest_asyncio

import milepost as mp
from milepost.store import dashboard
from milepost.web import dashboard as pages
from milepost.web.api import create_api
from milepost.web.dashboard import joblines

SHARED = ("rail_", "view_", "checked_", "token_")
"""What is read for every page, and kept for a moment; and who the caller is."""
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>\x1b[31m\u202eevil'


@pytest_asyncio.fixture
async def page(app: mp.App):
    """Call the pages as somebody on this machine does."""
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    await app.client.close_async()


@pytest.fixture
def calls(app, monkeypatch):
    """Count the statements that operations of the app run."""
    seen = []
    plain = app.client.run_async

    async def counted(operation, *args, **kwargs):
        def watched():
            steps = operation(*args, **kwargs)
            try:
                call = next(steps)
                while True:
                    seen.append(str(call.name))
                    call = steps.send((yield call))
            except StopIteration as end:
                return end.value

        return await plain(watched)

    monkeypatch.setattr(app.client, "run_async", counted)
    return seen


async def submitted(app, api, count, name="convert", **more):
    body = {"kind": name, **({"args": ["a"]} if name == "convert" else {}), **more}
    return [(await api.post("/v1/jobs", json=body)).json()["id"] for _ in range(count)]


def rows(text):
    return re.findall(r'<tr id="job-([0-9a-f-]+)"', text)


def fields(text):
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in found}


def counted(text):
    """Read the numbers of a confirmation by their words."""
    found = re.findall(r"<dt[^>]*>.*?</svg> ([^<]+)</dt><dd[^>]*>([\d,]+)</dd>", text, re.DOTALL)
    return {words: int(number.replace(",", "")) for words, number in found}


async def test_a_filter_is_shown_as_tokens_and_lists_its_jobs(app, page):
    failed = await submitted(app, page, 3, "broken")
    other = await submitted(app, page, 2, args=["report"])
    await app.drain_async()
    text = (await page.get("/jobs", params={"q": "state:failed kind:broken"})).text
    assert rows(text) == failed[::-1]
    assert "Fail: no such format" in text
    assert "3 match" in text
    assert 'href="/jobs?q=kind%3Abroken"' in text, "a token can be dropped"
    assert "milepost jobs ls --where &#39;state:failed kind:broken&#39;" in text
    everything = (await page.get("/jobs")).text
    assert set(rows(everything)) == {*failed, *other}
    assert f'href="/jobs/{other[0]}"' in everything
    assert "document=&#34;report&#34;" in everything


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("stat:failed", "did you mean state?"),
        ("state:fialed", "there is no state"),
        ("failed", "has no key"),
        ("age:2h", "age takes &lt; or &gt;"),
        ('kind:"open', "a quote has no end"),
    ],
)
async def test_what_cannot_be_read_lists_nothing_and_says_what_is_known(app, page, query, says):
    await submitted(app, page, 1)
    text = (await page.get("/jobs", params={"q": f"kind:convert {query}"})).text
    assert rows(text) == []
    assert says in text
    assert "wrong-token" in text


async def test_a_token_is_added_to_those_that_are_there(page):
    answer = await page.get("/jobs", params={"had": "state:failed", "q": " kind:broken "})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/jobs?q=state%3Afailed+kind%3Abroken"


async def test_pages_go_on_and_a_search_says_how_far_it_looked(app, page, monkeypatch):
    monkeypatch.setattr(pages.jobs, "PAGE", 2)
    ids = await submitted(app, page, 3)
    first = (await page.get("/jobs", params={"q": "kind:convert"})).text
    assert rows(first) == [ids[2], ids[1]]
    [following] = re.findall(r'href="([^"]+)" rel="next"', first)
    assert rows((await page.get(html.unescape(following))).text) == [ids[0]]
    monkeypatch.setattr("milepost.store.joblist.LOOK", 2)
    text = (await page.get("/jobs", params={"q": "kind:broken"})).text
    assert "Look further" in text
    assert "There may be older ones" in text


async def test_states_are_counted_without_the_state_of_the_filter(app, page):
    await submitted(app, page, 3, "broken")
    await submitted(app, page, 2, args=["a"])
    await app.drain_async()
    text = (await page.get("/jobs", params={"q": "state:failed"})).text
    facets = re.findall(r"</svg>(\w+)</span><b>([\d,+]+)</b>", text)
    assert {name: count for name, count in facets if count != "0"} == {
        "Failed": "3",
        "Succeeded": "2",
    }


async def test_an_empty_page_offers_the_filter_without_a_term(app, page):
    await submitted(app, page, 2)
    text = (await page.get("/jobs", params={"q": "kind:convert age:>1h"})).text
    assert "No job matches" in text
    assert "Drop age:&gt;1h, 2 match" in text
    text = (await page.get("/jobs", params={"q": "state:failed kind:convert"})).text
    assert "Drop state:failed, 2 match" in text


async def test_a_store_without_jobs_says_how_to_begin(page):
    assert "Nothing here yet" in (await page.get("/jobs")).text


@pytest.mark.parametrize(
    "query",
    [
        "",
        "state:failed",
        "state:queued",
        "state:failed,retrying queue:default age:<2h",
        "kind:convert age:>1h",
        "tag.tenant:acme error:dear",
        "stat:failed",
    ],
)
async def test_a_page_takes_three_statements_at_most(app, page, calls, query):
    await submitted(app, page, 3, "broken")
    await app.drain_async()
    await submitted(app, page, 3)
    await page.get("/jobs")
    calls.clear()
    text = (await page.get("/jobs", params={"q": query})).text
    mine = [name for name in calls if not name.startswith(SHARED)]
    assert len(mine) <= 3, mine
    packed = re.search(r"rows=([\w-]*)", text)
    calls.clear()
    streamed = {"q": query, "rows": packed[1] if packed else ""}
    await page.get("/jobs", params=streamed)
    mine = [name for name in calls if not name.startswith(SHARED)]
    assert len(mine) <= 3, mine


async def test_rows_that_are_shown_stay_and_say_what_became_of_them(app, page):
    ids = await submitted(app, page, 2)
    shown = {"q": "state:queued", "rows": joblines.packed(ids[::-1]), "end": "1"}
    await app.drain_async()
    await submitted(app, page, 3)
    text = (await page.get("/jobs", params=shown)).text
    assert rows(text) == ids[::-1]
    assert text.count(joblines.GONE) == 2
    assert "3 new jobs match" in text


async def test_suggestions_are_keys_states_kinds_and_queues_with_counts(app, page):
    await submitted(app, page, 3, "broken")
    await submitted(app, page, 2)
    await app.drain_async()

    async def found(typed, query=""):
        answer = await page.get("/jobs/suggest", params={"q": query, "typed": typed})
        return re.findall(r'data-take="([^"]+)".*?<small>([^<]*)</small>', answer.text)

    assert [take for take, _ in await found("st")] == ["state:"]
    assert await found("state:f") == [("state:failed", "3")]
    assert await found("kind:", "state:failed") == [("kind:broken", "3")]
    assert await found("-kind:con") == [("-kind:convert", "2")]
    assert await found("queue:d") == [("queue:default", "5")]
    assert await found("kind:x", "stat:failed") == []
    hostile = await page.get("/jobs/suggest", params={"typed": HOSTILE})
    assert "<script>" not in hostile.text


async def test_many_are_run_again_once_and_the_second_dialog_says_none(app, page):
    await submitted(app, page, 4, "broken")
    await submitted(app, page, 2, args=["a"])
    await app.drain_async()
    await submitted(app, page, 1, "broken")
    asked = {"action": "rerun", "q": "kind:broken", "all": "1"}
    dialog = (await page.get("/jobs/bulk", params=asked, headers={"X-Dialog": "1"})).text
    assert "<html" not in dialog
    assert counted(dialog) == {"will run again": 4, "left out: not final": 1}
    assert "Rerun 5 jobs?" in dialog
    late = await submitted(app, page, 1, "broken")
    answer = await page.post("/jobs/bulk", data=fields(dialog) | {"slowly": "1"})
    assert answer.status_code == 303, answer.text
    job = app.jobs.get(answer.headers["location"].rpartition("/")[2])
    assert job.history[0].actor == "local"
    await app.drain_async(queues=["bulk"])
    assert (job.refresh().result.done, job.result.matched) == (4, 5), "what came later is left out"
    again = counted((await page.get("/jobs/bulk", params=asked)).text)
    assert again == {
        "will run again": 0,
        "left out: not final": 6,
        "left out: a rerun of it is under way": 4,
    }
    assert not app.jobs.get(late[0]).record.rerun_by


async def test_jobs_whose_rerun_is_under_way_are_left_out(app, page):
    await submitted(app, page, 3, "broken")
    await app.drain_async()
    asked = {"action": "rerun", "q": "state:failed", "all": "1"}
    dialog = (await page.get("/jobs/bulk", params=asked)).text
    await page.post("/jobs/bulk", data=fields(dialog))
    await app.drain_async(queues=["bulk"])
    second = (await page.get("/jobs/bulk", params=asked)).text
    assert counted(second) == {"will run again": 0, "left out: a rerun of it is under way": 3}
    assert re.search(r'<button class="button primary"\s+disabled>', second)
    refused = await page.post("/jobs/bulk", data=fields(second))
    assert refused.status_code == 409
    assert "nothing to do" in refused.text


async def test_above_a_hundred_the_number_is_typed_here_and_there(app, page, monkeypatch):
    monkeypatch.setattr(pages.bulk, "TYPED_ABOVE", 2)
    await submitted(app, page, 3, "patient")
    asked = {"action": "cancel", "q": "kind:patient", "all": "1"}
    dialog = (await page.get("/jobs/bulk", params=asked)).text
    assert 'data-must="3"' in dialog
    assert "data-guarded" in dialog
    for typed in ("", "2", "three"):
        refused = await page.post("/jobs/bulk", data=fields(dialog) | {"typed": typed})
        assert refused.status_code == 422
        assert "Type 3" in refused.text
    assert not app.jobs.list(where="kind:jobs.bulk")
    reason = {"typed": "3", "reason": "no more"}
    assert (await page.post("/jobs/bulk", data=fields(dialog) | reason)).status_code == 303
    await app.drain_async()
    assert {job.state for job in app.jobs.list(where="kind:patient")} == {"CANCELLED"}
    assert {job.record.cancel_reason for job in app.jobs.list(where="kind:patient")} == {"no more"}


async def test_more_jobs_than_were_confirmed_are_counted_again(app, page):
    """A retry that failed meanwhile is one more, within the same filter and time."""
    await submitted(app, page, 2, "broken")
    asked = {"action": "rerun", "q": "kind:broken", "all": "1"}
    dialog = (await page.get("/jobs/bulk", params=asked)).text
    assert counted(dialog)["will run again"] == 0
    await app.drain_async()
    answer = await page.post("/jobs/bulk", data=fields(dialog))
    assert answer.status_code == 409
    assert "Meanwhile it is 2 jobs" in answer.text


async def test_a_filter_without_terms_is_not_acted_on(app, page):
    await submitted(app, page, 1)
    answer = await page.get("/jobs/bulk", params={"action": "cancel", "q": " ", "all": "1"})
    assert answer.status_code == 422
    answer = await page.get("/jobs/bulk", params={"action": "cancel", "q": "stat:x", "all": "1"})
    assert answer.status_code == 422


async def test_selected_jobs_are_acted_on_at_once(app, page):
    failed = await submitted(app, page, 2, "broken")
    await app.drain_async()
    [waiting] = await submitted(app, page, 1, "broken")
    asked = [
        ("action", "rerun"),
        ("q", "kind:broken"),
        *(("id", one) for one in [*failed, waiting]),
    ]
    dialog = (await page.get("/jobs/bulk", params=asked)).text
    assert counted(dialog) == {"will run again": 2, "left out: not final": 1}
    sent = {**fields(dialog), "id": [*failed, waiting]}
    answer = await page.post("/jobs/bulk", data=sent)
    assert answer.headers["location"] == "/jobs?q=kind%3Abroken&did=rerun-2-1"
    shown = (await page.get(answer.headers["location"])).text
    assert "2 jobs run again, as new jobs; 1 job left out." in shown
    assert "rerun</span>" in shown
    assert {job.record.rerun_of for job in app.jobs.list(where="state:queued")} == {*failed, None}


async def test_erase_is_for_admins(app, page, token):
    [job] = await submitted(app, page, 1, args=["secret"])
    await app.drain_async()
    admin, operator = token("ada", "admin"), token("olga", "operate", "read")
    asked = {"action": "erase", "id": job}
    assert "Erase" not in (await page.get("/jobs", headers=operator)).text
    assert (await page.get("/jobs/bulk", params=asked, headers=operator)).status_code == 403
    dialog = (await page.get("/jobs/bulk", params=asked, headers=admin)).text
    assert "cannot be undone" in dialog
    refused = await page.post("/jobs/bulk", data=fields(dialog), headers=operator)
    assert refused.status_code == 403
    await page.post("/jobs/bulk", data=fields(dialog), headers=admin)
    assert "erased" in (await page.get("/jobs", headers=operator)).text
    assert app.jobs.get(job).history[-1].actor == "ada"


async def test_a_bound_token_sees_and_acts_within_its_bounds(app, page, token):
    mine = await submitted(app, page, 1, "slowly", args=[1])
    await submitted(app, page, 2)
    bound = token("olga", "operate", "read", queues=["slow"])
    text = (await page.get("/jobs", headers=bound)).text
    assert rows(text) == mine
    assert ">1 job<" in text
    asked = {"action": "cancel", "q": "state:queued", "all": "1"}
    dialog = (await page.get("/jobs/bulk", params=asked, headers=bound)).text
    assert counted(dialog) == {"will be cancelled": 1}
    other = rows((await page.get("/jobs?q=kind:convert", headers=bound)).text)
    assert other == []


async def test_hostile_texts_are_inert(app, page):
    await submitted(app, page, 1, args=[HOSTILE], options={"tags": {"x": HOSTILE[:60]}})
    await submitted(app, page, 1, args=["x" * 1_000_000])
    for query in ("", "kind:convert", HOSTILE, f'kind:"{HOSTILE[:20]}"'):
        text = (await page.get("/jobs", params={"q": query})).text
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text) < 60_000
    told = (await page.get("/jobs", params={"did": HOSTILE[:40]})).text
    assert "<script>alert" not in told


async def test_views_are_saved_shown_and_deleted(app, page):
    await submitted(app, page, 1)
    text = (await page.get("/jobs", params={"q": "state:failed kind:broken"})).text
    assert "Save view" in text
    sent = {"name": "Broken <b>", "q": "state:failed kind:broken"}
    sent["form_token"] = fields(text)["form_token"]
    assert (await page.post("/views", data=sent)).status_code == 303
    [view] = await app.client.run_async(dashboard.views)
    assert (view.name, view.query, view.actor) == (
        "Broken <b>",
        "state:failed kind:broken",
        "local",
    )
    text = (await page.get("/jobs", params={"q": "state:failed kind:broken"})).text
    assert "Saved as" in text
    assert "Broken &lt;b&gt;" in text
    assert (await page.post("/views", data=sent | {"q": "stat:x"})).status_code == 422
    await page.post("/views/drop", data=sent)
    assert await app.client.run_async(dashboard.views) == []


async def test_an_empty_list_offers_a_bound_token_no_count_of_other_queues(app, page, token):
    await submitted(app, page, 7)
    bound = token("olga", "read", queues=["slow"])
    for query in ("", "state:queued", "tenant:acme", "-kind:broken", "queue:default", "age:<1h"):
        text = (await page.get("/jobs", params={"q": query}, headers=bound)).text
        assert not rows(text)
        assert "7 match" not in text, query
