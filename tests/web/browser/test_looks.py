"""Every page in both themes and sizes: accessible, quiet, within its screen, photographed."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page

from tests.support.browser import SCREENS, Watch, looks, shoot, violations
from tests.support.evening import PAGES
from tests.support.prove import PROVING

EXAMINED = set(looks()) if PROVING else {("desktop", "light"), ("phone", "dark")}
"""The looks that axe examines and that are photographed: every day each theme and size once."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def turned(browser, evenings) -> AsyncIterator[Page]:
    """A page for all tests of a process: each turns it, and leaves nothing that it complained of.

    To start a renderer for each and to load everything anew costs more than to look.
    """
    address = (await asyncio.to_thread(evenings, "sqlite")).address
    context = await browser.new_context(base_url=address)
    watch = Watch(address)
    await watch.over(context)
    page = await context.new_page()
    page.watch = watch
    yield page
    await context.close()


@pytest.mark.prove
@pytest.mark.parametrize("name", PAGES)
async def test_a_page_is_accessible_quiet_and_within_its_screen(shop, turned, name):
    """Checks 1 and 2: axe, the console, the policy, foreign requests and the width of a phone."""
    await turned.goto(PAGES[name].format(shop.seen))
    if name == "not-there":
        turned.watch.problems.clear()
    await turned.wait_for_function("document.fonts.status === 'loaded'")
    for screen, theme in looks():
        width, height = SCREENS[screen]
        await turned.emulate_media(color_scheme=theme)
        await turned.set_viewport_size({"width": width, "height": height})
        assert await turned.evaluate("document.documentElement.scrollWidth") <= width, screen
        if (screen, theme) in EXAMINED:
            await shoot(turned, name, screen, theme)
            assert await violations(turned) == [], (screen, theme)
    problems, turned.watch.problems = turned.watch.problems, []
    assert problems == []


async def test_the_watch_hears_what_it_is_there_for(shop, opened):
    """A guard of the guards: the policy refuses, and each refusal fails a test."""
    page = await opened(shop.address)
    await page.goto("/queues")
    await page.evaluate("""() => {
      const script = document.createElement("script"), image = document.createElement("img");
      script.textContent = "window.__hit = 1"; image.src = "http://evil.example/a.png";
      document.body.append(script, image);
    }""")
    await page.wait_for_function("document.querySelector('body > img').complete")
    assert await page.evaluate("window.__hit") is None
    said = " ".join(page.watch.problems)
    assert "CSP script-src-elem inline" in said
    assert "CSP img-src http://evil.example/a.png" in said
    page.watch.problems.clear()
    await page.evaluate("document.querySelector('main').innerHTML = '<img src=x><a href=/></a>'")
    assert {rule for rule, _ in await violations(page)} >= {"image-alt", "link-name"}
    page.watch.problems.clear()


STATES = (
    *("created", "gated", "waiting", "ready", "queued"),
    *("running", "retrying", "succeeded", "failed", "cancelled"),
)
SIZE, SCALE = 16, 4
DRAW = """(states) => {
  const sprite = document.querySelector("use").getAttribute("href").split("#")[0];
  document.body.innerHTML = "<main id=glyphs></main>";
  for (const state of states) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const used = document.createElementNS("http://www.w3.org/2000/svg", "use");
    used.setAttribute("href", `${sprite}#${state}`);
    made.setAttribute("width", 16); made.setAttribute("height", 16);
    made.classList.add("glyph", `s-${state}`);
    made.append(used);
    document.body.append(made);
  }
  return [...document.querySelectorAll("body > .glyph")].map((one) => {
    const { x, y } = one.getBoundingClientRect();
    return [x, y];
  });
}"""
COMPARE = """async ([picture, places, scale, size]) => {
  const image = new Image();
  image.src = `data:image/png;base64,${picture}`;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const drawn = canvas.getContext("2d", { willReadFrequently: true });
  drawn.drawImage(image, 0, 0);
  const grey = places.map(([x, y]) => {
    const { data } = drawn.getImageData(x * scale, y * scale, size * scale, size * scale);
    return Array.from({ length: data.length / 4 }, (_, i) =>
      0.2126 * data[4 * i] + 0.7152 * data[4 * i + 1] + 0.0722 * data[4 * i + 2]);
  });
  const pairs = [];
  for (let a = 0; a < grey.length; a++)
    for (let b = a + 1; b < grey.length; b++)
      pairs.push([a, b, grey[a].filter((one, i) => Math.abs(one - grey[b][i]) > 40).length
        / grey[a].length]);
  return pairs;
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_any_two_states_are_told_apart_without_colour(shop, opened, browser, theme):
    """Check 20: in greyscale two glyphs differ by at least 6 % of their pixels."""
    page = await opened(shop.address, theme=theme, device_scale_factor=SCALE)
    await page.goto("/queues")
    places = await page.evaluate(DRAW, STATES)
    await page.wait_for_load_state("networkidle")
    picture = base64.b64encode(await page.screenshot()).decode()
    blank = await browser.new_page()
    pairs = await blank.evaluate(COMPARE, [picture, places, SCALE, SIZE])
    await blank.close()
    assert len(pairs) == 45
    alike = [(STATES[a], STATES[b], share) for a, b, share in pairs if share < 0.06]
    assert alike == []
