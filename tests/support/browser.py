"""A browser for tests of the pages: Debian's chromium, and what it complains of."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, ConsoleMessage, Page, Request

from tests.support.prove import PROVING

__all__ = [
    "CHROMIUM",
    "FLAGS",
    "MISSING",
    "SCREENS",
    "SOON_MS",
    "Watch",
    "follow",
    "looks",
    "shoot",
    "shown",
    "violations",
]

CHROMIUM = Path("/usr/bin/chromium")
MISSING = f"chromium is not installed: {CHROMIUM} is what pages are looked at with (apt install)"
_OFF = (
    # As Playwright has it: whoever names features names all of them.
    *("AvoidCorsURLLoaderRestartOnRedirect", "AvoidUnnecessaryBeforeUnloadCheckSync"),
    *("AimEnabled", "DestroyProfileOnBrowserClose", "HttpsFirstBalancedModeAutoEnable"),
    *("HttpsUpgrades", "LensOverlay", "MediaRouter", "NetworkTimeServiceQuerying"),
    *("OptimizationHints", "PaintHolding", "PreconnectToSearch", "ThirdPartyStoragePartitioning"),
    # A process for the address bar of each window, which nobody sees: a third of what a page takes.
    *("WebUIOmniboxAimPopup", "WebUIOmniboxPopup"),
)
FLAGS = (
    f"--disable-features={','.join(_OFF)}",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SCREENS = {"desktop": (1440, 900), "phone": (390, 844)}
SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
SOON_MS = 1_000 if PROVING else 20_000
"""How long a change may take to be shown: a promise on a machine of its own, else a limit."""

_REPORT_CSP = """
document.addEventListener("securitypolicyviolation", (event) =>
  window.cspReport(`${event.violatedDirective} ${event.blockedURI}`));
"""
_AXE = """
(async () => {
  const found = await axe.run(document, {
    resultTypes: ["violations"], runOnly: { type: "tag", values: RULES } });
  return JSON.stringify(found.violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => [id, nodes.slice(0, 3).map((node) => node.html.slice(0, 200))]));
})()
"""
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@dataclass
class Watch:
    """What went wrong in a context's pages: no test passes with any of it."""

    home: str
    """Where everything comes from."""
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """The path of each request, in order."""
    is_cut_off: bool = False
    """The server is away on purpose: requests that fail then are no problem."""

    async def over(self, context: BrowserContext) -> None:
        """Listen to all pages of a context."""
        await context.expose_function("cspReport", lambda text: self.problems.append(f"CSP {text}"))
        await context.add_init_script(_REPORT_CSP)
        context.on("console", self._console)
        context.on("weberror", lambda error: self.problems.append(f"error {error.error}"))
        context.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        expected = any(
            word in message.text for word in ("net::ERR", "htmx:sse:error", "htmx:error")
        )
        if not (self.is_cut_off and expected):
            self.problems.append(f"console {message.text}")

    def _request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if f"{address.scheme}://{address.netloc}" != self.home and address.scheme != "data":
            self.problems.append(f"foreign request {request.url}")
        self.requests.append(address.path)


@cache
def _axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text()


async def violations(page: Page) -> list[Any]:
    """Name what axe finds serious or critical on a page, with the first elements of each."""
    # By the protocol: a script element would be refused by the policy of the page.
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(_axe())
    found = await page.evaluate(_AXE.replace("RULES", json.dumps(_RULES)))
    return list(json.loads(found))


async def follow(page: Page, path: str) -> None:
    """Go to a page, and wait until it is followed."""
    await page.goto(path)
    await page.wait_for_selector("#live[data-state=on]", state="attached")


async def shown(page: Page, script: str, wanted: Any) -> None:
    """Wait until a script finds that on a page: what is followed may first show what was."""
    until = time.monotonic() + SOON_MS / 1_000
    while (found := await page.evaluate(script)) != wanted and time.monotonic() < until:
        await page.wait_for_timeout(50)
    assert found == wanted


def looks() -> Iterator[tuple[str, str]]:
    """Name each way to look at a page: a screen and a theme."""
    for screen in SCREENS:
        for theme in ("light", "dark"):
            yield screen, theme


async def shoot(page: Page, name: str, screen: str, theme: str) -> None:
    """Keep a picture of a page, for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    kept = SCREENSHOTS / f"{name}-{screen}-{theme}.png"
    if screen == "phone":  # all of it, with the bar of the foot where it belongs
        height = await page.evaluate("document.documentElement.scrollHeight")
        await page.set_viewport_size({"width": SCREENS[screen][0], "height": min(height, 4_000)})
    await page.screenshot(path=kept, animations="disabled")
