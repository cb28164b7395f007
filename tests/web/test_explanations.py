"""Check 10: a page says of something what `milepost explain` says of it, for every reason."""

import asyncio
from collections.abc import Iterator

import httpx2
import pytest

import milepost as mp
from milepost.store.reasons import REASONS
from milepost.web.api import create_api
from tests.support.explained import Told, documented, path_of, printed, shown
from tests.support.scenes import SCENES, Scene, Stage

HTML = {"Accept": "text/html"}
TRIES = 20
UNSAID = {"run-run_that_succeeded"}
"""A page that says nothing: there is nothing to explain."""


@pytest.fixture
def stage(request: pytest.FixtureRequest, database) -> Iterator[Stage]:
    made = Stage(database.url, subject=request.getfixturevalue("scene").subject)
    yield made
    made.close()


def page_of(url: str, path: str) -> str:
    """Get a page as a program shows it that declares nothing."""
    app = mp.App(url)

    async def get() -> str:
        transport = httpx2.ASGITransport(app=create_api(app, access="local"))
        client = httpx2.AsyncClient(transport=transport, base_url="http://test", headers=HTML)
        async with client:
            answer = await client.get(path)
        await app.client.close_async()
        assert answer.status_code == 200, answer.text
        return answer.text

    try:
        return asyncio.run(get())
    finally:
        app.close()


def both(url: str, subject: str, name: str) -> tuple[Told, Told]:
    """Read the command's text and the page's, at a moment in which no number changed."""
    for _ in range(TRIES):
        before = printed(url, subject, name)
        page = shown(page_of(url, path_of(subject, name)))
        if page == before or printed(url, subject, name) == before:
            return before, page
    pytest.fail(f"what is told of {subject} {name} changes too often to be compared")


def test_there_is_a_scene_for_every_reason_and_none_for_what_is_no_reason():
    """Whoever adds a reason shows how it comes about; one that nothing leads to is deleted."""
    for subject, reasons in REASONS.items():
        played = {word for scene in SCENES if scene.subject == subject for word in scene.reasons}
        assert played == set(reasons), subject


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_the_page_says_what_the_command_says(scene: Scene, stage: Stage):
    name = scene.play(stage)
    told, page = both(stage.url, scene.subject, name)
    if str(scene) in UNSAID:
        assert page == Told([], "", "")
    else:
        assert page == told
    document = documented(stage.url, scene.subject, name)
    assert tuple(document["reasons"]) == scene.reasons
    assert len(document["details"]) == len(scene.reasons) == len(told.details)
    assert told.next
