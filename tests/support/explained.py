"""What `milepost explain` prints, and what a page shows of the same."""

import json
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from html.parser import HTMLParser
from io import StringIO
from urllib.parse import quote, urlencode

import msgspec

from milepost.cli import main

__all__ = ["Told", "commanded", "path_of", "printed", "shown"]

NOT_THE_CAUSE, NEXT = "  not the cause: ", "  next: "
VOID = frozenset({"br", "img", "input", "link", "meta", "hr", "path", "use"})
CLASSES = ("explained", "ruled-out", "next")


class Told(msgspec.Struct, frozen=True):
    """An explanation, as somebody reads it."""

    details: Sequence[str]
    ruled_out: str
    next: str


def commanded(*words: str) -> str:
    """Run a command in this process; give what it prints."""
    out = StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        main(list(words))
    return out.getvalue()


def printed(url: str, subject: str, name: str) -> Told:
    """Read what the command prints for people; the document says the same."""
    heading, *lines = commanded("explain", "--store", url, subject, name).splitlines()
    assert heading.startswith(f"{subject} "), heading
    [*lines, last] = lines
    ruled_out = lines.pop() if lines[-1].startswith(NOT_THE_CAUSE) else NOT_THE_CAUSE
    assert last.startswith(NEXT), last
    assert all(line.startswith("  ") for line in lines), lines
    told = [line.removeprefix("  ") for line in lines]
    return Told(told, ruled_out.removeprefix(NOT_THE_CAUSE), last.removeprefix(NEXT))


def documented(url: str, subject: str, name: str) -> dict[str, object]:
    """Read what the command prints for programs."""
    found: dict[str, object] = json.loads(
        commanded("explain", "--store", url, "--json", subject, name)
    )
    return found


def path_of(subject: str, name: str) -> str:
    """Tell which page shows it."""
    if subject in ("job", "run", "pipeline"):
        return f"/{subject}s/{quote(name, safe='')}"
    return f"/{subject}s?{urlencode({'name': name})}"


class _Reader(HTMLParser):
    """Collects the text of elements by their class."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str | None] = []
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        words = (dict(attrs).get("class") or "").split()
        name = next((word for word in CLASSES if word in words), None)
        if name is not None:
            self.found.append((name, ""))
        self.open.append(name)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and self.open:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if any(self.open):
            name, text = self.found[-1]
            self.found[-1] = (name, text + data)


def shown(page: str) -> Told:
    """Read what a page shows."""
    reader = _Reader()
    reader.feed(page)
    found = {name: [text for each, text in reader.found if each == name] for name in CLASSES}
    return Told(found["explained"], "".join(found["ruled-out"]), "".join(found["next"]))
