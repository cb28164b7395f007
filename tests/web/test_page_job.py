"""The page of a job: why it does not run, its path, its errors, its content, what can be done."""

import html
import logging
import re
from datetime import UTC, datetime, timedelta

import httpx2
import pytest
import pytest_asyncio

import milepost as mp
from milepost.client import new_id
from milepost.history import Entry
from milepost.records import FailedAttempt
from milepost.store import job_view, jobs
from milepost.web.api import create_api
from milepost.web.dashboard import frames, timeline
from tests.web.test_page_overview import SHARED

HTML = {"Accept": "text/html"}
BUDGET = 6
NOT_COUNTED = SHARED | {"server_key_put", "server_key_get"}
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=y> \x1b[31mred \u202eltr &amp; {{ 7 * 7 }}'
log = logging.getLogger("shop")


@pytest_asyncio.fixture
async def pages(app: mp.App):
    """Call the pages as somebody on this machine, who may do everything."""

    @app.job(retries=2, retry_delay=60)
    def charge(ctx: mp.Context, order: str, amount: int = 1) -> None:
        log.warning("slow partner\nsecond line %s", order)
        ctx.step("reserve", lambda: {"hold": 7741})
        ctx.count("pages", 3)
        _charged(order)

    @app.job
    def endless(ctx: mp.Context) -> None:
        raise mp.Later(0)

    @app.job
    def asleep(ctx: mp.Context) -> str:
        raise mp.Later(None)

    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://test", headers=HTML
    ) as client:
        yield client
    await app.client.close_async()


def _charged(order: str) -> None:
    raise ConnectionError(f"503 from api.pay.example for {order}")


def form_of(page: str, action: str) -> dict[str, str]:
    form = re.search(rf'action="{re.escape(action)}"[^>]*>(.*?)</form>', page, re.DOTALL)
    assert form is not None, action
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form[1]))


def walked(page: str) -> set[tuple[str, str, str, int]]:
    edges = re.findall(r'data-from="(\w*)" data-to="(\w+)" data-moves="([^"]+)"', page)
    return {
        (name, source, target, int(number))
        for source, target, moves in edges
        for name, _, number in (one.partition(":") for one in moves.split())
    }


def made(history: list[Entry]) -> set[tuple[str, str, str, int]]:
    moves = [(entry.move, entry.from_state or "", entry.to_state) for entry in history]
    return {(*move, moves.count(move)) for move in moves}


async def submitted(app: mp.App, kind: str, *args: object, **options: object) -> str:
    [job_id] = await app.client.create_async([app.new_job(kind, args, {}, options)])
    return job_id


async def test_a_failed_job_shows_its_own_frame_its_lines_steps_and_use(app, pages):
    job_id = await submitted(app, "charge", "A-1", tags={"customer": "acme"})
    await app.drain_async()
    page = (await pages.get(f"/jobs/{job_id}")).text
    assert "ConnectionError" in page
    [marked] = re.findall(r'class="frame own innermost">(.*?)</p>', page, re.DOTALL)
    assert "<b>_charged</b>" in marked
    assert "raise ConnectionError" in html.unescape(marked)
    assert "slow partner\nsecond line A-1" in page
    assert "reserve" in page
    assert "7741" in page
    assert "<dt>pages</dt><dd>3</dd>" in page
    assert 'href="/jobs?q=tag.customer%3Aacme"' in page
    assert 'href="/jobs?q=queue%3Adefault"' in page
    assert re.search(r'href="/errors/\w+"', page)


async def test_the_path_is_lit_where_the_job_went_and_nowhere_else(app, pages):
    for kind, args in (("charge", ["A-1"]), ("broken", []), ("convert", ["a"]), ("asleep", [])):
        job_id = await submitted(app, kind, *args)
        await app.drain_async()
        history = await (await app.jobs.get_async(job_id)).history_async()
        assert walked((await pages.get(f"/jobs/{job_id}")).text) == made(history)


async def test_a_long_history_is_bounded_and_its_path_is_whole(app, pages, statements):
    job_id = await submitted(app, "asleep")
    for _ in range(60):
        await app.drain_async()
        await app.client.run_async(jobs.signal, job_id, signal_id=new_id(), data=None, actor="ana")
    history = await (await app.jobs.get_async(job_id)).history_async()
    assert len(history) > job_view.MOVES
    statements.clear()
    page = (await pages.get(f"/jobs/{job_id}")).text
    assert walked(page) == made(history)
    assert f"milepost jobs history {job_id}" in page
    journal = page[page.index('id="job-journal"') :]
    assert journal.partition("</table>")[0].count("<tr>") == job_view.MOVES + 1
    assert len([name for name in statements if name not in NOT_COUNTED]) <= BUDGET


async def test_a_page_takes_no_more_statements_than_its_budget(app, pages, statements):
    run = await app.batches[0].start_async({"count": 2})
    gated = await app.client.run_async(jobs.listing, run_id=run.id, most=10)
    found = [
        await submitted(app, "charge", "A-1"),
        await submitted(app, "broken"),
        await submitted(app, "asleep"),
        *[job.id for job in gated],
    ]
    for job in gated:
        assert (await pages.get(f"/jobs/{job.id}")).status_code == 200
    await app.drain_async()
    found.append(await submitted(app, "convert", "a"))
    for job_id in found:
        statements.clear()
        assert (await pages.get(f"/jobs/{job_id}")).status_code == 200
        asked = [name for name in statements if name not in NOT_COUNTED]
        assert len(asked) <= BUDGET, asked


async def test_hostile_content_is_text(app, pages):
    long = HOSTILE + "x" * 900_000
    job_id = await submitted(app, "charge", long, tags={HOSTILE[:40]: HOSTILE[:40]}, unique=HOSTILE)
    await app.drain_async()
    await app.client.run_async(jobs.cancel, job_id, reason=HOSTILE, actor="ana")
    page = (await pages.get(f"/jobs/{job_id}")).text
    for wrong in ("<script>alert", "<img", "\x1b", "\u202e", " 49 "):
        assert wrong not in page
    assert "\\u202e" in page
    assert len(page) < 250_000
    assert "style=" not in page


async def test_actions_do_what_they_say_in_the_callers_name(app, pages):
    job_id = await submitted(app, "convert", "a", start_in=3600)
    page = (await pages.get(f"/jobs/{job_id}")).text
    fields = form_of(page, f"/jobs/{job_id}/run-now")
    answer = await pages.post(f"/jobs/{job_id}/run-now", data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job_id}")
    job = await app.jobs.get_async(job_id)
    assert job.state == "QUEUED"
    assert (await job.history_async())[-1].actor == "local"
    asked = await pages.get(f"/jobs/{job_id}/cancel", headers={"X-Dialog": "1"})
    assert "<html" not in asked.text
    fields = form_of(asked.text, f"/jobs/{job_id}/cancel")
    await pages.post(f"/jobs/{job_id}/cancel", data={**fields, "reason": "bounce storm"})
    job = await app.jobs.get_async(job_id)
    assert (job.state, job.record.cancel_reason) == ("CANCELLED", "bounce storm")
    fields = form_of((await pages.get(f"/jobs/{job_id}/rerun")).text, f"/jobs/{job_id}/rerun")
    answer = await pages.post(f"/jobs/{job_id}/rerun", data=fields)
    newer = answer.headers["location"].rpartition("/")[2]
    assert (await app.jobs.get_async(newer)).rerun_of == job_id
    page = (await pages.get(f"/jobs/{job_id}")).text
    assert f'href="/jobs/{newer}"' in page
    assert f'action="/jobs/{job_id}' not in page


async def test_a_signal_wakes_a_job_and_wrong_data_is_refused(app, pages):
    job_id = await submitted(app, "asleep")
    await app.drain_async()
    asked = await pages.get(f"/jobs/{job_id}/signal")
    fields = form_of(asked.text, f"/jobs/{job_id}/signal")
    wrong = await pages.post(f"/jobs/{job_id}/signal", data={**fields, "data": "{no json"})
    assert wrong.status_code == 422
    answer = await pages.post(f"/jobs/{job_id}/signal", data={**fields, "data": '{"ok": 1}'})
    assert answer.status_code == 303
    assert (await app.jobs.get_async(job_id)).state == "QUEUED"


async def test_a_form_of_another_page_does_nothing(app, pages):
    job_id = await submitted(app, "convert", "a")
    answer = await pages.post(f"/jobs/{job_id}/cancel", data={"form_token": "forged"})
    assert answer.status_code == 403
    assert (await app.jobs.get_async(job_id)).state == "QUEUED"


async def test_an_id_may_be_cut_short_and_a_foreign_job_is_not_there(app, pages, token):
    job_id = await submitted(app, "convert", "a")
    short = await pages.get(f"/jobs/{job_id[:-2]}")
    assert short.headers["location"] == f"/jobs/{job_id}"
    assert (await pages.get("/jobs/no-such-job")).status_code == 404
    theirs = token("theirs", "read", "operate", tenant="acme")
    for path in (f"/jobs/{job_id}", f"/jobs/{job_id[:-2]}", f"/jobs/{job_id}/cancel"):
        assert (await pages.get(path, headers=theirs)).status_code == 404
    look = token("look", "read")
    page = (await pages.get(f"/jobs/{job_id}", headers=look)).text
    assert "needs the scope operate" in page


async def test_an_erased_job_says_so(app, pages):
    job_id = await submitted(app, "broken")
    await app.drain_async()
    await app.client.run_async(jobs.erase, job_id, actor="ana")
    page = (await pages.get(f"/jobs/{job_id}")).text
    assert "erased" in page
    assert "no such format" not in page


def test_a_stream_that_others_follow_too_carries_no_form_token(app, address):
    [job_id] = app.client.create([app.new_job("convert", ["a"], {}, {"start_in": 3600})])
    asked = {"Accept": "text/event-stream"}
    with httpx2.stream("GET", f"{address}/jobs/{job_id}", headers=asked, timeout=30) as answer:
        told = ""
        for text in answer.iter_text():
            told += text
            if "job-facts" in told:
                break
    assert 'name=\\"form_token\\" value=\\"\\"' in told
    assert not re.search(r'form_token\\" value=\\"[^\\]', told)


TRACE = """Traceback (most recent call last):
  … 2 frames of milepost
  File "shop/tasks.py", line 10, in outer
    middle()
  File "json/decoder.py", line 337, in decode
    obj, end = self.raw_decode(s)
  File "json/decoder.py", line 355, in raw_decode
    raise JSONDecodeError
json.decoder.JSONDecodeError: Expecting value
"""


def test_frames_of_others_are_folded_and_the_innermost_own_one_is_marked():
    found = frames.blocks(TRACE, "shop/tasks.py:10 in outer")
    shown = [
        (block.folded, [frame.name or frame.text for frame in block.frames]) for block in found
    ]
    assert shown == [
        ("", ["… 2 frames of milepost"]),
        ("", ["outer"]),
        ("json/decoder.py:355 in raw_decode … 2 frames of json", ["decode", "raw_decode"]),
        ("", ["json.decoder.JSONDecodeError: Expecting value"]),
    ]
    assert [frame.name for block in found for frame in block.frames if frame.innermost] == ["outer"]


def test_only_the_innermost_own_frames_are_open():
    deep = "".join(f'  File "shop/a.py", line {n}, in f{n}\n    call()\n' for n in range(30))
    found = frames.blocks(deep, "shop/a.py:29 in f29")
    assert len(found) == 1 + frames.OPEN
    assert len(found[0].frames) == 30 - frames.OPEN
    assert found[-1].frames[0].innermost


@pytest.mark.parametrize("text", ["", "\n", 'File "', '  File "x", line 1, in y', HOSTILE * 100])
def test_any_traceback_is_read(text):
    frames.blocks(text, None)


def test_the_delay_after_which_a_loss_was_noticed_is_read_from_its_error():
    now = datetime(2026, 11, 18, tzinfo=UTC)
    said = "nothing was heard of its worker for 31 s while it ran alone"
    problem = FailedAttempt(1, now, "Lost", said)
    lost = timeline.Attempt(number=1, fence=1, worker="w", begun=now, problem=problem)
    assert lost.unheard == timedelta(seconds=31)


@pytest.mark.parametrize("seconds", [0.0004, 0.3, 4, 61, 3_700, 90_000, 5_000_000])
def test_a_time_line_of_any_length_has_a_few_marks(seconds):
    begin = datetime(2026, 11, 18, tzinfo=UTC)
    marks = timeline.Scale(begin, begin + timedelta(seconds=seconds)).ticks()
    assert 2 <= len(marks) <= 8
    assert all(0 < x < 100 for _, x in marks)


def test_a_method_is_marked_though_tracebacks_leave_its_class_out():
    found = frames.blocks(TRACE, "shop/tasks.py:10 in Shop.sell.<locals>.outer")
    assert [frame.name for block in found for frame in block.frames if frame.innermost] == ["outer"]
