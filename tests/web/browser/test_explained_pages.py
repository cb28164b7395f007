"""Check 10, in a browser: what a page says is what `milepost explain` says, for every reason."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import milepost as mp
from milepost.store.reasons import REASONS, RunReason
from tests.support.browser import SCREENS
from tests.support.explained import Told, path_of, printed
from tests.support.scenes import SCENES, Scene, Stage
from tests.support.serving import served_under

TRIES = 20
SHOWN = """() => {
  const texts = (name) => [...document.querySelectorAll(`.${name}`)].map((one) => one.textContent);
  return { details: texts("explained"), ruled_out: texts("ruled-out").join(""),
    next: texts("next").join(""), wide: document.documentElement.scrollWidth };
}"""


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
        stage = Stage(databases[-1].url, subject=scene.subject)
        shown.append(Played(scene, stage, scene.play(stage), f"/{number}"))
    apps = {one.prefix: mp.App(one.stage.url) for one in shown}
    with served_under(apps) as address:
        yield address, shown
    for closed in (*apps.values(), *(one.stage for one in shown)):
        closed.close()
    for database in databases:
        backends.give_back(database)


async def test_every_explanation_on_a_page_is_that_of_the_command(played, opened):
    """Nothing of it is wider than a phone."""
    address, scenes = played
    page = await opened(address, screen="phone", theme="dark")
    wrong = {}
    for one in scenes:
        for _ in range(TRIES):
            told = await one.printed()
            await page.goto(one.path, wait_until="domcontentloaded")
            found = await page.evaluate(SHOWN)
            wide = found.pop("wide")
            # A number may have changed between the two: then both are read again.
            if Told(**found) == told or await one.printed() == told:
                break
        if (Told(**found), wide) != (told, SCREENS["phone"][0]):
            wrong[str(one.scene)] = (told, found, wide)
    assert wrong == {}
