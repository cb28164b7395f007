"""Streams of pages: one reader for all who look, no form of another session, no end by an error."""

import asyncio
import json

import pytest

import milepost as mp
from milepost.web.api import create_api
from milepost.web.call import Call
from milepost.web.dashboard.live import Live, Viewer
from milepost.web.dashboard.page import View, mark
from milepost.web.problems import HttpProblem


class Watched:
    """A page whose reads are counted; the second one may fail."""

    def __init__(self, failing: Exception | None = None) -> None:
        self.reads = 0
        self.failing = failing

    async def load(self) -> View:
        self.reads += 1
        if self.reads == 2 and self.failing is not None:
            raise self.failing
        return View(
            template="base.html",
            title="t",
            section="s",
            cli="",
            values={"label": f"read {self.reads}"},
            pieces={"form": ("test-form.html", {})},
        )


@pytest.fixture
def page(monkeypatch):
    """A part with a form in it, as the pages of queues and jobs have them."""
    from jinja2 import ChoiceLoader, DictLoader

    from milepost.web.dashboard.page import environment

    form = (
        '{% from "parts.html" import form_token_field with context %}'
        '<form id="form">{{ form_token_field() }}{{ label }}</form>'
    )
    made = environment()
    monkeypatch.setattr(
        made, "loader", ChoiceLoader([DictLoader({"test-form.html": form}), made.loader])
    )


class Request:
    """As much of a request as a stream needs."""

    def __init__(self, api, who: str) -> None:
        from starlette.datastructures import URL

        from milepost.web.access import EVERYTHING, Principal

        self.app = api
        self.url = URL("http://test/page")
        self.headers: dict[str, str] = {}
        self.scope = {"milepost.principal": Principal(who, EVERYTHING), "root_path": ""}
        self.scope |= {"path": "/page", "query_string": b""}
        self.scope["milepost.authenticate"] = self.admitted

    async def admitted(self) -> None:
        return None


async def parts(live: Live, call: Call, watched: Watched, most: int) -> list[dict[str, str]]:
    response = await live.stream(call, watched.load)
    found = []
    async with asyncio.timeout(20):
        async for piece in response.body_iterator:
            for event in bytes(piece).split(b"\n\n"):
                if event.startswith(b"event: part"):
                    found += [json.loads(event.partition(b"data: ")[2])]
            if len(found) >= most:
                break
    await response.body_iterator.aclose()
    return found


def calls(app: mp.App, *names: str):
    api = create_api(app, access="open")
    inner = api._api
    return inner.state.live, [Call(Request(inner, name), "read") for name in names]


async def test_no_one_is_sent_the_token_of_another_persons_forms(app, page):
    live, [ana, ben] = calls(app, "ana", "ben")
    watched = Watched()
    both = await asyncio.gather(parts(live, ana, watched, 2), parts(live, ben, watched, 2))
    for found in both:
        assert all('name="form_token" value=""' in one["html"] for one in found)
    await app.client.close_async()


async def test_many_viewers_cost_what_one_does_and_none_costs_nothing(app, page):
    live, viewers = calls(app, *(f"viewer-{n}" for n in range(20)))
    watched = Watched()
    await asyncio.gather(*(parts(live, call, watched, 2) for call in viewers))
    assert live.viewers == 0
    read = watched.reads
    assert read <= 6
    await asyncio.sleep(1.2)
    assert watched.reads <= read + 1
    await app.client.close_async()


@pytest.mark.parametrize("error", [mp.Unavailable("down"), RuntimeError("a defect")])
async def test_a_page_that_could_not_be_read_once_is_read_again(app, page, error):
    live, [ana] = calls(app, "ana")
    found = await parts(live, ana, Watched(error), 2)
    assert [one["html"].rpartition(">")[0].rpartition(">")[2][:6] for one in found] == [
        "read 1",
        "read 3",
    ]
    await app.client.close_async()


@pytest.mark.parametrize("error", [mp.NotFound("there is no job"), HttpProblem(403, "refused")])
async def test_a_page_that_is_gone_ends_its_streams_and_is_not_read_again(app, page, error):
    """A tab that is left open on a removed job must not fill the log; it loads the page again."""
    live, [ana] = calls(app, "ana")
    watched = Watched(error)
    response = await live.stream(ana, watched.load)
    async with asyncio.timeout(20):
        events = b"".join([bytes(piece) async for piece in response.body_iterator])
    assert events.endswith(b"event: end\ndata: {}\n\n")
    await asyncio.sleep(1.0)
    assert (watched.reads, live.viewers) == (2, 0)
    await app.client.close_async()


def test_how_long_ago_something_was_is_no_change():
    first = '<td><time datetime="x" data-ago>1 s ago</time></td>'
    assert mark(first) == mark(first.replace("1 s", "2 s"))
    assert mark(first) != mark(first.replace("<td>", "<td>new"))


def test_a_slow_viewer_gets_the_newest_of_each_part_once():
    viewer = Viewer()
    viewer.tell({"a": b"1", "b": b"1"})
    viewer.tell({"a": b"2"})
    assert viewer.take() == {"a": b"2", "b": b"1"}
    assert viewer.take() == {}


async def test_a_person_whose_token_is_revoked_is_told_that_the_stream_ends(app, page, monkeypatch):
    live, [ana] = calls(app, "ana")

    async def refused() -> None:
        raise HttpProblem(401, "revoked")

    monkeypatch.setattr("milepost.web.dashboard.live.BEAT_SECONDS", 0.5)
    ana.request.scope["milepost.authenticate"] = refused
    response = await live.stream(ana, Watched().load)
    events = b""
    async with asyncio.timeout(30):
        async for piece in response.body_iterator:
            events += bytes(piece)
    assert events.endswith(b"event: end\ndata: {}\n\n")
    await app.client.close_async()


async def test_one_caller_cannot_take_all_the_streams(app, page, monkeypatch):
    monkeypatch.setattr("milepost.web.dashboard.live.VIEWERS_EACH", 1)
    live, [ana, ben] = calls(app, "ana", "ben")
    watched = Watched()
    first = (await live.stream(ana, watched.load)).body_iterator
    await anext(first)
    with pytest.raises(HttpProblem, match="close some"):
        await live.stream(ana, watched.load)
    await parts(live, ben, watched, 1)
    await first.aclose()
    await parts(live, ana, watched, 1)
    await app.client.close_async()
