"""How much a page is: on the first visit, and on later ones."""

import gzip
import json
import re
from importlib.resources import files

import httpx2
import pytest

from milepost.web.dashboard import static
from tests.support.evening import PAGES

FIRST_VISIT, LATER, STYLES, SCRIPTS, FONT = 120_000, 15_000, 8_000, 6_000, 45_000
HTML = {"Accept": "text/html", "Accept-Encoding": "gzip"}
VENDOR = files("milepost.web.dashboard") / "static" / "vendor"


def sent(address: str, path: str) -> tuple[bytes, int]:
    """Return a page, and how many bytes were sent."""
    with httpx2.stream("GET", address + path, headers=HTML) as answer:
        packed = b"".join(answer.iter_raw())
    whole = gzip.decompress(packed) if answer.headers.get("content-encoding") else packed
    return whole, len(packed)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_and_its_own_styles_and_scripts_are_small(shop, name):
    page, size = sent(shop.address, PAGES[name].format(shop.seen))
    assert size <= LATER
    linked = set(re.findall(r'(?:href|src)="/static/([^"#?]+)', page.decode()))
    held, foreign = static.manifest(), json.loads(versions())
    assert size + sum(len(held[one].packed) for one in linked) <= FIRST_VISIT
    own = {one: len(held[one].packed) for one in linked - set(foreign)}
    assert sum(size for one, size in own.items() if one.endswith(".css")) <= STYLES
    assert sum(size for one, size in own.items() if one.endswith(".js")) <= SCRIPTS


def test_the_font_is_small():
    assert len(static.manifest()["inter.woff2"].content) <= FONT


def versions() -> str:
    return (VENDOR / "versions.json").read_text()
