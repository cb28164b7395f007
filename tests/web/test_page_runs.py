"""The pages of runs: what they show, how many statements that takes, and what can be done there."""

import re
from collections.abc import Iterator
from datetime import date
from html import unescape
from typing import Literal

import httpx2
import msgspec
import pytest
import pytest_asyncio

import milepost as mp
from milepost.store import blockers, failpoint, looks, run_page
from milepost.store.looks import StepStand
from milepost.web.api import create_api
from milepost.web.dashboard import burn_up, run_figures
from milepost.web.dashboard import fields as forms

HTML = {"Accept": "text/html"}
HOSTILE = '<script>alert(1)</script>\x1b[31m\u202e"><img src=x onerror=alert(1)>'


class Import(msgspec.Struct):
    """Parameters of many types."""

    folder: str
    day: date
    mode: Literal["all", "changed"] = "changed"
    limit: int = 3
    dry: bool = False
    share: float = 0.5
    names: dict[str, list[str]] = {}
    until: date | None = None


@pytest.fixture
def app(app: mp.App) -> mp.App:
    batch = app.batch("import", params=Import, policy=mp.Tolerate(0.4))

    @batch.step
    def find(params: Import) -> Iterator[int]:
        yield from range(params.limit)

    @batch.step(retries=0)
    def load(ctx: mp.Context, number: int) -> int:
        if number == 1:
            raise ValueError(HOSTILE)
        if number == 7 and ctx.fence == 1:
            raise mp.Later(3600)
        return number

    @batch.step(gated=True)
    def index(number: int) -> int:
        return number

    @batch.reduce
    def report(numbers: Iterator[int]) -> dict[str, int]:
        return {"sum": sum(numbers)}

    return app


def start(app: mp.App, **params: object) -> mp.RunHandle:
    [batch] = [one for one in app.batches if one.name == "import"]
    return batch.start(Import(HOSTILE, date(2026, 11, 16), **params))


@pytest_asyncio.fixture
async def pages(app: mp.App):
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://test", headers=HTML
    ) as client:
        yield client
    await app.client.close_async()


async def form_token(pages: httpx2.AsyncClient, path: str) -> str:
    text = (await pages.get(path)).text
    return re.findall(r'name="form_token" value="([^"]+)"', text)[-1]


async def statements(pages: httpx2.AsyncClient, path: str) -> list[str]:
    """Name the statements that a page takes; those of the rail are read once for all pages."""
    await pages.get(path)
    asked: list[str] = []
    with failpoint.watched(lambda point, _: asked.append(point)):
        assert (await pages.get(path)).status_code == 200
    names = [point.removeprefix("before:") for point in asked if point.startswith("before:")]
    return [name for name in names if name not in ("token_any", "commit")]


def is_inert(text: str) -> None:
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text


async def test_a_run_shows_its_steps_gates_budget_and_errors(app, pages):
    run = start(app, limit=5)
    await app.drain_async()
    shown = await pages.get(f"/runs/{run.id}")
    assert shown.status_code == 200
    text = unescape(re.sub(r"<[^>]+>", " ", shown.text))
    is_inert(shown.text)
    assert "Tolerate(0.4), each step" in text
    assert re.search(r"1\s+of 2 allowed", text)  # 0.4 of five jobs
    assert "Gate to index, open" in shown.text
    assert "gate to index opened" in text
    assert "ValueError:" in text
    assert '"sum": 9' in text
    listed = await pages.get("/runs")
    is_inert(listed.text)
    assert f"/runs/{run.id}" in listed.text


async def test_a_closed_gate_is_drawn_closed_and_explained_as_by_the_command(app, pages):
    run = start(app, limit=8)
    await app.drain_async()
    told = await app.client.run_async(blockers.explain_run, run.id)
    assert told.reasons == ("step", "gate", "due")
    shown = unescape((await pages.get(f"/runs/{run.id}")).text)
    assert "Gate to index, closed" in shown
    assert "6 wait at the gate" in shown
    for detail in (told.heading, *told.details[:2], told.next):
        assert detail in shown
    # In two seconds it is due a little sooner.
    assert told.details[2].partition("due in")[0] in shown


async def test_a_run_takes_five_statements_and_its_list_two(app, pages):
    run = start(app, limit=8)
    await app.drain_async()
    assert len(await statements(pages, f"/runs/{run.id}")) <= 5
    assert len(await statements(pages, "/runs")) <= 2


async def test_a_run_of_many_jobs_is_counted_by_the_tally(app, pages, monkeypatch):
    monkeypatch.setattr(looks, "ENDS_MOST", 3)
    run = start(app, limit=5)
    await app.drain_async()
    assert len(await statements(pages, f"/runs/{run.id}")) <= 5
    page = app.client.run(run_page.read, run.id)
    shown = (await pages.get(f"/runs/{run.id}")).text
    assert (page.ends is None) == ("too many to be read one by one" in shown)


async def test_runs_are_filtered_and_an_unknown_state_is_named(app, pages):
    run = start(app)
    await app.drain_async()
    assert run.id in (await pages.get("/runs?state=succeeded")).text
    assert run.id not in (await pages.get("/runs?state=open")).text
    assert run.id not in (await pages.get("/runs?kind=letters")).text
    refused = await pages.get("/runs?state=stuck")
    assert refused.status_code == 422
    assert "SUCCEEDED" in refused.text


async def test_the_list_goes_on_where_a_page_ends(app, pages, monkeypatch):
    monkeypatch.setattr("milepost.web.dashboard.runs.PAGE", 2)
    runs = [start(app).id for _ in range(3)]
    first = (await pages.get("/runs")).text
    assert [f'id="run-{one}' in first for one in runs] == [False, True, True]
    [after] = re.findall(r'href="/runs\?before=([^"]+)"', first)
    second = (await pages.get(f"/runs?before={after}")).text
    assert [f'id="run-{one}' in second for one in runs] == [True, False, False]


async def test_a_run_is_cancelled_with_a_reason_under_a_name_and_resumed(app, pages):
    run = start(app, limit=8)
    await app.drain_async()
    asked = await pages.get(f"/runs/{run.id}/cancel", headers={"X-Dialog": "1"})
    assert "<html" not in asked.text
    assert re.search(r"have not begun and are cancelled</dt><dd>7<", asked.text)
    token = await form_token(pages, f"/runs/{run.id}/cancel")
    done = await pages.post(
        f"/runs/{run.id}/cancel", data={"form_token": token, "reason": "wrong folder"}
    )
    assert (done.status_code, done.headers["location"]) == (303, f"/runs/{run.id}")
    assert run.refresh().state == "CANCELLED"
    shown = (await pages.get(f"/runs/{run.id}")).text
    assert "wrong folder" in shown
    assert "by local" in shown
    asked = await pages.get(f"/runs/{run.id}/resume")
    assert re.search(r"were cancelled and run again</dt><dd>7<", asked.text)
    token = await form_token(pages, f"/runs/{run.id}/resume")
    again = await pages.post(f"/runs/{run.id}/resume", data={"form_token": token})
    assert again.status_code == 303
    newer = again.headers["location"].rpartition("/")[2]
    assert newer != run.id
    assert newer in (await pages.get(f"/runs/{run.id}")).text
    refused = await pages.get(f"/runs/{run.id}/resume")
    assert "it was resumed by run" in refused.text


async def test_nothing_is_cancelled_without_the_forms_token(app, pages):
    run = start(app)
    refused = await pages.post(f"/runs/{run.id}/cancel", data={"reason": "no"})
    assert refused.status_code == 403
    assert run.refresh().state == "QUEUED"


async def test_a_run_is_started_from_a_form_of_its_types(app, pages):
    asked = (await pages.get("/runs/new?batch=import")).text
    assert 'type="date"' in asked
    assert "<option selected>changed</option>" in asked
    assert 'value="0.5" step="any"' in asked
    token = re.findall(r'name="form_token" value="([^"]+)"', asked)[-1]
    given = {
        "form_token": token,
        "batch": "import",
        "p.folder": "f",
        "p.day": "2026-11-16",
        "p.mode": "all",
        "p.limit": "2",
        "p.dry": "on",
        "p.names": '{"a": ["b"]}',
    }
    done = await pages.post("/runs/new", data=given)
    assert done.status_code == 303, done.text
    run = app.runs.get(done.headers["location"].rpartition("/")[2])
    stored = app.client.codec.decode(run.record.payload)
    assert stored["mode"] == "all"
    assert stored["dry"] is True
    assert stored["names"] == {"a": ["b"]}
    assert run.history[0].actor == "local"


async def test_what_does_not_fit_is_said_beside_its_field_and_nothing_is_started(app, pages):
    token = await form_token(pages, "/runs/new?batch=import")
    given = {"batch": "import", "p.folder": HOSTILE, "p.day": "someday", "p.limit": "many"}
    given |= {"p.names": "[1"}
    answer = await pages.post("/runs/new", data={"form_token": token, **given})
    assert answer.status_code == 422
    is_inert(answer.text)
    assert answer.text.count('aria-invalid="true"') == 3
    assert "expected a whole number" in answer.text
    assert "this is no JSON" in answer.text
    assert not app.runs.list()


async def test_a_token_of_a_tenant_or_queue_sees_no_other_run(app, token):
    run = start(app)
    transport = httpx2.ASGITransport(app=create_api(app, access="tokens"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        theirs = token("them", "read", "operate", tenant="other") | HTML
        assert (await client.get(f"/runs/{run.id}", headers=theirs)).status_code == 404
        assert run.id not in (await client.get("/runs", headers=theirs)).text
        slow = token("slow", "read", "submit", queues=["slow"]) | HTML
        assert (await client.get(f"/runs/{run.id}", headers=slow)).status_code == 404
        assert "import" not in (await client.get("/runs/new", headers=slow)).text
        reader = token("reader", "read") | HTML
        shown = (await client.get(f"/runs/{run.id}", headers=reader)).text
        assert 'title="needs the scope operate"' in shown
        assert f'href="/runs/{run.id}/cancel"' not in shown
    await app.client.close_async()


def stand(number: int, **counts: int) -> StepStand:
    told = {"open": 0, "succeeded": 0, "failed": 0, "cancelled": 0, **counts}
    states = {"QUEUED": told["open"], "SUCCEEDED": told["succeeded"]}
    return StepStand(
        *(number, f"s{number}", "work", False, True, False, 0.03, *told.values()), states=states
    )


def test_later_steps_are_expected_to_have_as_many_jobs_as_so_far(app):
    run = start(app).record
    steps = [stand(0, succeeded=1), stand(1, open=90, succeeded=10), stand(2, open=20)]
    assert run_figures.expected(run, steps) == {0: 1, 1: 100, 2: 200}
    done = run_figures.progress(run, steps)
    assert (done.ended, done.expected, done.coming) == (11, 301, 180)
    assert [one.allowed for one in run_figures.budgets(run, steps)] == [0, 3, 6]


def test_parameters_without_fields_are_one_document(app):
    [batch] = [one for one in app.batches if one.name == "letters"]
    inputs = forms.fields_of(batch)
    assert [field.input for field in inputs] == ["json"]
    assert forms.read(inputs, {"p.params": ['{"count": 2}']}).params == {"count": 2}
    assert "params" in forms.read(inputs, {"p.params": ['{"count": "x"}']}).problems


def test_labels_of_the_chart_do_not_lie_on_each_other():
    """Near its end a run is now about where it will be done, and its last gate opened there."""
    labels = burn_up.Labels()
    done = labels.place(750, 20, "end", "done, 04:10:22")
    now = labels.place(742, 16, "end", "now, 9,998")
    gate = labels.place(740, 34, "end", "gate to write")
    assert done == 20
    assert now - done >= burn_up.LINE
    assert gate - now >= burn_up.LINE
    assert labels.place(60, 20, "start", "far away") == 20
