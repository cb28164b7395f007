"""Every page in both themes and sizes: accessible, quiet, within its screen, and photographed."""

import pytest

from tests.support.browser import SCREENS, looks, shoot, violations

PAGES = {
    "overview": "/",
    "queues": "/queues",
    "job": "/jobs/{0.failed}",
    "job-retrying": "/jobs/{0.retrying}",
    "job-running": "/jobs/{0.running}",
    "runs": "/runs",
    "run": "/runs/{0.run}",
    "run-ended": "/runs/{0.ended_run}",
    "pipelines": "/pipelines",
    "pipeline": "/pipelines/{0.pipeline}",
}


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_is_accessible_quiet_and_within_its_screen(shop, opened, name):
    """Checks 1 and 2: axe, the console, the policy, foreign requests and the width of a phone."""
    page = await opened(shop.address)
    await page.goto(PAGES[name].format(shop.seen), wait_until="load")
    await page.wait_for_selector("#live[data-state=on]", state="attached")
    for screen, theme in looks():
        width, height = SCREENS[screen]
        await page.emulate_media(color_scheme=theme)
        await page.set_viewport_size({"width": width, "height": height})
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, screen
        await shoot(page, name, screen, theme)
        assert await violations(page) == [], (screen, theme)


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
