"""Check 10, in a browser: what a page says is what `milepost explain` says, for every reason."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import milepost as mp
from milepost.cli.output import printable
from milepost.store.reasons import REASONS, RunReason
from tests.support.browser import SCREENS
from tests.support.explained import Told, path_of, printed
from tests.support.scenes import SCENES, Scene, Stage
from tests.support.serving import served_under
from tests.web.browser.test_hostile import NAME, STATE

TRIES = 20
INERT = {"hit": None, "wide": SCREENS["phone"][0], "acting": False, "made": 0}
SHOWN = """() => {
  const texts = (name) => [...document.querySelectorAll(`.${name}`)].map((one) => one.textContent);
  return [texts("explained"), texts("ruled-out").join(""), texts("next").join("")];
}"""


def hostile(text: str) -> str:
    """Make markup, what acts on the text around it, and a very long word of a name."""
    return f"{text}{NAME}{'w' * 90}"


def covering() -> list[Scene]:
    """Choose scenes that show every reason; the words that runs have of jobs are seen on jobs."""
    own = {**REASONS, "run": RunReason}
    left = {(subject, word) for subject, words in own.items() for word in words}
    left -= {("run", RunReason.SUCCEEDED)}  # its page explains nothing
    chosen = []
    for scene in sorted(SCENES, key=lambda one: -len(set(one.reasons))):
        shows = {(scene.subject, word) for word in scene.reasons}
        if shows & left:
            left -= shows
            chosen.append(scene)
    assert left == set()
    return chosen


@dataclass(frozen=True)
class Played:
    """A scene that was played on a store, and is served under a prefix."""

    scene: Scene
    stage: Stage
    name: str
    prefix: str

    @property
    def path(self) -> str:
        """Tell where its subject is shown."""
        return self.prefix + path_of(self.scene.subject, self.name)

    async def printed(self) -> Told:
        """Read what the command prints of it."""
        return await asyncio.to_thread(printed, self.stage.url, self.scene.subject, self.name)


@pytest.fixture(scope="module")
def played(backends) -> Iterator[tuple[str, list[Played]]]:
    """Play the scenes, each on a store of its own, and serve them all."""
    databases, shown = [], []
    for number, scene in enumerate(covering()):
        databases.append(backends.take("sqlite"))
        stage = Stage(databases[-1].url, subject=scene.subject, word=hostile)
        shown.append(Played(scene, stage, scene.play(stage), f"/{number}"))
    apps = {one.prefix: mp.App(one.stage.url) for one in shown}
    with served_under(apps) as address:
        yield address, shown
    for closed in (*apps.values(), *(one.stage for one in shown)):
        closed.close()
    for database in databases:
        backends.give_back(database)


async def test_every_explanation_on_a_page_is_that_of_the_command(played, opened):
    """Whatever names are in it: nothing acts, and nothing is wider than a phone."""
    address, scenes = played
    page = await opened(address, screen="phone", theme="dark")
    wrong = {}
    for one in scenes:
        for _ in range(TRIES):
            told = await one.printed()
            await page.goto(one.path, wait_until="domcontentloaded")
            details, ruled_out, then = await page.evaluate(SHOWN)
            found = Told([printable(text) for text in details], printable(ruled_out), then)
            # A number may have changed between the two: then both are read again.
            if found == told or await one.printed() == told:
                break
        state = await page.evaluate(STATE)
        if found != told or not state["shown"] or {name: state[name] for name in INERT} != INERT:
            wrong[str(one.scene)] = (told, found, state)
    assert wrong == {}
