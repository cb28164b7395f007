"""The page of schedules: when each fires, what became of its last job, pausing and running it."""

import re

import pytest

from milepost.store.tokens import Bounds
from milepost.web.dashboard import cronwords

HTML = {"Accept": "text/html"}
DIALOG = {**HTML, "X-Dialog": "1"}


def form_token(page: str) -> str:
    return re.findall(r'name="form_token" value="([^"]+)"', page)[-1]


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("* * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("5 * * * *", "every hour at :05"),
        ("0,30 * * * *", "every hour at :00 and :30"),
        ("0 */6 * * *", "every 6 hours at :00"),
        ("0 2 * * *", "at 02:00, every day"),
        ("0 9,17 * * *", "at 09:00 and 17:00, every day"),
        ("30 6 * * 1-5", "at 06:30, Monday to Friday"),
        ("30 6 * * mon,WED,5", "at 06:30, Monday, Wednesday and Friday"),
        ("0 0 1 * *", "at 00:00, on day 1 of the month"),
        ("0 0 L * *", "at 00:00, on the last day of the month"),
        ("0 0 24 12 *", "at 00:00, on day 24 of December"),
        ("0 0 * 6 *", "at 00:00, in June"),
        ("0 0 13 * 5", "at 00:00, Friday or on day 13 of the month"),
        ("0 0 * * 7", "at 00:00, Sunday"),
        ("0-10 * * * *", None),
        ("0 8-18 * * *", None),
        ("0 0 * * 5#2", None),
        ("0 0 * * 99", None),
        ("nonsense", None),
    ],
)
def test_a_line_is_told_in_words_or_shown_as_it_is(cron, told):
    assert cronwords.told(cron) == told


async def test_each_schedule_says_when_it_fires_and_how_its_last_job_ended(api, app):
    page = (await api.get("/schedules", headers=HTML)).text
    assert "at 02:00, every day" in page
    assert "never fired" in page
    assert 'href="/schedules?name=nightly"' in page
    one = (await api.get("/schedules", params={"name": "nightly"}, headers=HTML)).text
    assert one.count("02:00 UTC") == 5
    assert "the last one fires" in one
    missing = await api.get("/schedules", params={"name": "<b>"}, headers=HTML)
    assert missing.status_code == 404
    assert "&lt;b&gt;" in missing.text


async def test_it_is_paused_resumed_and_run_under_the_callers_name(api, app):
    asked = await api.get("/schedules/nightly/pause", headers=DIALOG)
    assert "<html" not in asked.text
    form = {"form_token": form_token(asked.text)}
    done = await api.post("/schedules/nightly/pause", data=form)
    assert (done.status_code, done.headers["location"]) == (303, "/schedules?name=nightly")
    [paused] = await app.schedules.list_async()
    assert (paused.state, paused.paused_by) == ("paused", "local")
    page = (await api.get("/schedules", headers=HTML)).text
    assert "Paused" in page
    assert "/schedules/nightly/resume" in page
    assert "paused by local" in (await api.get("/schedules/nightly/resume", headers=DIALOG)).text
    await api.post("/schedules/nightly/resume", data=form)
    assert (await app.schedules.list_async())[0].state == "active"

    assert (
        "One job of kind <b>convert</b>"
        in (await api.get("/schedules/nightly/run", headers=HTML)).text
    )
    ran = await api.post("/schedules/nightly/run", data=form)
    job = await app.jobs.get_async(ran.headers["location"].removeprefix("/jobs/"))
    assert job.record.kind == "convert"
    assert job.history[0].actor == "local"


async def test_a_reader_changes_nothing_and_a_bound_token_sees_none(api, app, token):
    reader, bound = token("reader", "read"), token("bound", "read", tenant="acme")
    page = await api.get("/schedules", headers={**HTML, **reader})
    assert 'aria-disabled="true" title="needs the scope operate">Pause' in page.text
    for method, path in (("GET", "pause"), ("POST", "pause"), ("POST", "run")):
        answer = await api.request(method, f"/schedules/nightly/{path}", headers={**HTML, **reader})
        assert answer.status_code == 403
    assert (await api.get("/schedules", headers={**HTML, **bound})).status_code == 403
    assert (await api.get("/schedules", headers={**HTML, **reader})).status_code == 200


async def test_a_token_for_other_kinds_runs_no_schedule(api, app, token):
    other = token("other", "operate", "read", bounds=Bounds(kinds=("slowly",)))
    page = await api.get("/schedules/nightly/run", headers={**HTML, **other})
    form = {"form_token": form_token(page.text)}
    answer = await api.post("/schedules/nightly/run", data=form, headers={**HTML, **other})
    assert answer.status_code == 403
    assert "not for" in answer.text


async def test_a_token_of_low_priority_runs_and_resumes_no_urgent_schedule(api, app, token):
    @app.job(priority=7)
    def urgent() -> None: ...

    app.schedule(urgent, "0 3 * * *", name="urgent")
    low = {**HTML, **token("low", "operate", "read", bounds=Bounds(max_priority=3))}
    form = {"form_token": form_token((await api.get("/schedules/urgent/run", headers=low)).text)}
    for action in ("run", "resume"):
        answer = await api.post(f"/schedules/urgent/{action}", data=form, headers=low)
        assert answer.status_code == 403
        assert "priority 3 at most, not 7" in answer.text
        answer = await api.post(f"/v1/schedules/urgent:{action}", headers=low)
        assert (answer.status_code, "not 7" in answer.text) == (403, True)
    assert (await api.post("/schedules/urgent/pause", data=form, headers=low)).status_code == 303
    assert app.jobs.list() == []
