"""The documents' examples are run.

A block whose first line is a comment with a file's name is that file. A python file is run, by
pytest if it holds tests; so is a shell block after `<!-- run -->`. The text block that follows is
what was printed, with `…` for what differs from run to run.
"""

import os
import pydoc
import re
import signal
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import milepost as mp
from milepost.lifecycle import JOB, RUN

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *(page for folder in ("docs", "examples") for page in sorted((ROOT / folder).rglob("*.md"))),
]
PICTURE_MOST = 200_000
"""Bytes."""
QUICKLY = ("-p", "no:cacheprovider")
PLUGINS = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "milepost.testing.plugin,pytest_asyncio.plugin",
}
"""What a reader has; others that are installed here take longer to load than the examples."""
BLOCK = re.compile(r"(<!-- run -->\n)?```(\w+)\n(.*?)```", re.DOTALL)
FILE = re.compile(r"# ([\w.]+\.(?:py|toml|ini))\n")
WITH_EXAMPLES = [page for page in PAGES if re.search(r"```\w+\n# [\w.]+\.py\n", page.read_text())]


def commands(run, language, text):
    """Say how a block is run; None for one that is only read."""
    named = FILE.match(text)
    if named and named.group(1).startswith("test_"):
        return [sys.executable, "-m", "pytest", "-q", *QUICKLY, named.group(1)]
    if named and language == "python":
        return [sys.executable, named.group(1)]
    return ["bash", "-e", "-u", "-c", text] if run else None


def finished(command, folder):
    """Run it in a session of its own, and take along whatever it left in the background."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MILEPOST", "PYTEST"))}
    environment.pop("DATABASE_URL", None)
    environment |= PLUGINS
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    with (folder / "printed").open("w+") as printed, (folder / "errors").open("w+") as errors:
        # Files, not pipes: what is left in the background would hold a pipe open.
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=printed,
            stderr=errors,
            start_new_session=True,
        )
        try:
            process.wait(timeout=120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        printed.seek(0)
        errors.seek(0)
        assert process.returncode == 0, printed.read() + errors.read()
        return printed.read()


def shown(blocks):
    """Find the text that a block is followed by, past a command that says how to run it."""
    for run, language, text in blocks[:2]:
        if language == "text":
            return text
        if run or language != "sh":
            break
    return None


def alike(printed, told):
    """Compare with what the page says; `…` stands for anything on a line."""
    pattern = re.escape(told).replace("…", "[^\n]*")
    return re.fullmatch(pattern, printed) is not None


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_examples_print_what_the_page_says(page, tmp_path):
    blocks = BLOCK.findall(page.read_text())
    ran = 0
    for index, (run, language, text) in enumerate(blocks):
        if named := FILE.match(text):
            (tmp_path / named.group(1)).write_text(text)
        if (command := commands(run, language, text)) is None:
            continue
        printed = finished(command, tmp_path)
        ran += 1
        told = shown(blocks[index + 1 :])
        if told is not None and "pytest" not in command:
            assert alike(printed, told), f"printed:\n{printed}\ntold:\n{told}"
    assert ran


@pytest.mark.parametrize(
    ("printed", "told", "same"),
    [("a 1 b\n", "a … b\n", True), ("a\nb\n", "a…\n", False), ("a.b\n", "a-b\n", False)],
)
def test_what_differs_is_told_by_dots(printed, told, same):
    assert alike(printed, told) is same


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page):
    """Name every heading of a page as links to it do."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def test_links_between_pages_lead_somewhere():
    links = [
        (page, page.parent / target if target else page, heading)
        for page in [*PAGES, *(ROOT / "deploy").rglob("*.md"), *ROOT.glob("*.md")]
        for target, heading in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", prose(page))
        if not target.startswith("http")
    ]
    assert len(links) > 50
    assert [(page.name, to) for page, to, _ in links if not to.exists()] == []
    lost = [
        (page.name, to.name, heading)
        for page, to, heading in links
        if heading and to.suffix == ".md" and heading not in anchors(to)
    ]
    assert lost == []


def test_every_picture_is_shown_by_a_page_and_is_small():
    text = "".join(page.read_text() for page in PAGES)
    pictures = sorted((ROOT / "docs/pictures").iterdir())
    assert len(pictures) > 5
    assert [path.name for path in pictures if f"pictures/{path.name}" not in text] == []
    assert [path.name for path in pictures if path.stat().st_size > PICTURE_MOST] == []
    for png in (path.read_bytes() for path in pictures if path.suffix == ".png"):
        assert struct.unpack(">II", png[16:24]) == (1440, 900)


def test_every_hazard_and_invariant_that_is_named_is_explained():
    told = "".join((ROOT / f"docs/specs/{page}.md").read_text() for page in ("hazards", "promises"))
    explained = set(re.findall(r"^\| ([HI]-?\d+) \|", told, re.MULTILINE))
    named = {
        number
        for folder in ("src", "tests", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".sql", ".md")
        for number in re.findall(r"\bH-\d+\b|\bI\d+\b", path.read_text())
    }
    assert len(named) > 80
    assert named <= explained


HELP = [ROOT / "README.md", *(ROOT / "docs/reference").iterdir()]
HELP += [page for part in ("how-to", "tutorial") for page in (ROOT / "docs" / part).glob("*.md")]


@pytest.mark.parametrize("page", HELP, ids=lambda page: page.name)
def test_no_number_of_a_hazard_stands_in_a_users_help(page):
    # cli.md holds every command's --help, machines.md all that `milepost machine` prints.
    assert re.findall(r".*\bH-\d+\b.*", page.read_text()) == []


def test_no_number_of_a_hazard_stands_in_what_help_prints():
    printed = [pydoc.plain(pydoc.render_doc(getattr(mp, name))) for name in mp.__all__]
    assert re.findall(r".*\bH-\d+\b.*", "\n".join(printed)) == []


def test_every_page_says_the_same_of_postgresqls_versions():
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    texts = {page: " ".join(page.read_text().split()) for page in pages}
    others = r"PostgreSQL \d+(?:\+| or (?:newer|later))(?! \(\[introduction\])"
    assert {page.name: found for page, t in texts.items() if (found := re.findall(others, t))} == {}
    said = {
        page.name for page, t in texts.items() if "PostgreSQL 15 to 18 (tested: 15 and 18)" in t
    }
    assert {"README.md", "deploy-on-postgresql.md", "comparison.md"} <= said


def test_finalize_is_spelled_one_way():
    folders = [ROOT / name for name in ("src", "docs", "changelog.d")]
    files = [path for folder in folders for path in folder.rglob("*")]
    spelled = [path for path in files if path.suffix in (".py", ".sql", ".md")]
    assert len(spelled) > 100
    assert [path for path in spelled if "finalis" in (path.name + path.read_text()).lower()] == []


def edges(text):
    """Read the moves of the diagrams that were drawn by hand."""
    for diagram in re.findall(r"```mermaid\n(.*?)```", text, re.DOTALL):
        yield re.findall(r"^ +(\S+) --> (\S+): (.+)$", diagram, re.MULTILINE)


def test_the_diagrams_drawn_by_hand_show_declared_moves_only():
    text = (ROOT / "docs/explanation/how-it-works.md").read_text()
    for machine, drawn in zip((JOB, RUN), edges(text), strict=True):
        for source, target, names in drawn:
            for name in names.replace("create, due later", "create").split(", "):
                targets = machine.targets(name, None if source == "[*]" else source)
                assert target in targets, f"{source} {name} {target}"


def test_every_path_on_the_architecture_page_exists():
    page = ROOT / "docs/explanation/architecture.md"
    files = r"(?<![\w/.])((?:\w[\w-]*/)*\w[\w-]*\.(?:py|sql|md|json|toml))\b"
    named = set(re.findall(files, page.read_text())) | set(
        re.findall(r"`([\w/]+/)`", page.read_text())
    )
    homes = (ROOT, ROOT / "src/milepost", page.parent)
    assert len(named) > 70
    assert {path for path in named if not any((home / path).exists() for home in homes)} == set()
