"""Check 10: a page says of something what `milepost explain` says of it, for every reason."""

import asyncio
import re
from collections.abc import Iterator

import httpx2
import pytest

import milepost as mp
from milepost.store import workers
from milepost.store.reasons import REASONS
from milepost.web.api import create_api
from tests.support.explained import Told, documented, path_of, printed, shown
from tests.support.scenes import SCENES, Scene, Stage

HTML = {"Accept": "text/html"}
TRIES = 20
UNSAID = {"run-run_that_succeeded"}
"""A page that says nothing: there is nothing to explain."""
PLAYED = {str(scene): scene for scene in SCENES}
AMONG = {"job": "no_worker", "run": "no_worker", "pipeline": "pipeline_that_waits_for_a_worker"}


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


@pytest.mark.both_stores
@pytest.mark.parametrize("subject", ["job", "run", "pipeline"])
def test_a_live_worker_is_seen_among_any_number_that_stopped_since(subject, database, raw):
    """A worker that crashes and is started again each second fills a list in minutes."""
    stage = Stage(database.url, subject=subject)
    name = PLAYED[f"{subject}-{AMONG[subject]}"].play(stage)
    stage.employ("old", kinds=None)
    second = "interval '1 second'" if raw.dialect == "postgres" else "1000000"
    raw.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"
        " INSERT INTO worker (id, state, move, started_at, heartbeat_at, lease_until)"
        f" SELECT 'gone' || i, 'STARTUP', 'boot', started_at + i * {second}, heartbeat_at,"
        f" heartbeat_at - {second} FROM worker, n"
    )
    stage.run(workers.bury, most=1_000)
    told, page = both(stage.url, subject, name)
    stage.close()
    assert page == told
    assert "the only live worker may take it next" in told.details[-1]


QUIET = {
    "job-told": "answer calm",
    "job-broker": "answer calm",
    "run-told": "panel run-why",
    "run-broker": "panel run-why",
    "run-run_whose_limit_is_used_up": "panel run-why",
    "queue-queue_on_a_broker": "answer calm",
    "queue-queue_in_line": "answer calm",
}
LOUD = {
    "job-no_worker": "answer ",
    "run-limit": "answer ",
    "run-no_worker": "answer ",
    "queue-queue_behind_a_limit": "answer ",
    "queue-queue_that_is_paused": "answer ",
    "queue-queue_without_workers": "answer ",
}


@pytest.mark.parametrize(("name", "css"), [*QUIET.items(), *LOUD.items()])
def test_what_is_as_it_should_be_is_not_marked_as_trouble(name, css, database):
    scene = PLAYED[name]
    stage = Stage(database.url, subject=scene.subject)
    page = page_of(stage.url, path_of(scene.subject, scene.play(stage)))
    stage.close()
    found = re.search(r'<(?:section|details|div) class="((?:answer|panel run-why)[^"]*)"', page)
    assert found is not None
    assert found[1] == css
