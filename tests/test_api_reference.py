"""The page on the public names is generated, complete and committed as generated."""

from pathlib import Path

import milepost
from tools import reference
from tools.api_reference import api_page, told

ROOT = Path(__file__).parents[1]


def test_the_committed_page_is_a_fresh_rendering():
    assert (ROOT / reference.API_PAGE).read_text() == api_page(), "run `make docs`"


def test_every_public_name_is_told():
    assert told() >= {*milepost.__all__, "testing"}


def test_calls_members_and_fields_are_told_with_their_types():
    page = api_page()
    assert "`maintain_once() -> int`" in page
    assert "queues: Sequence[str] \\| None = None, isolate: bool = False) -> int`" in page
    assert "| `eta: timedelta \\| None` |" in page
    assert "Fields: `type: str`, `message: str`, `cause: str | None`" in page
    assert "typing." not in page
    assert "collections.abc" not in page
    assert "NoneType" not in page


def test_whatever_is_told_says_what_it_is():
    for line in api_page().splitlines():
        assert not line.endswith("|  |"), line


def test_a_name_without_a_section_still_gets_one(monkeypatch):
    class Novel:
        """Something that was just made public."""

    monkeypatch.setattr(milepost, "Novel", Novel, raising=False)
    monkeypatch.setattr(milepost, "__all__", [*milepost.__all__, "Novel"])

    assert "## More\n\n### `mp.Novel`\n\nSomething that was just made public." in api_page()
