"""The documents' examples are run: a python block is a file, the text block after it its output."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
WITH_EXAMPLES = [page for page in PAGES if "```python\n# " in page.read_text()]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.stem)
def test_examples_print_what_the_page_says(page, tmp_path):
    blocks = BLOCK.findall(page.read_text())
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MILEPOST")}
    environment.pop("DATABASE_URL", None)
    ran = 0
    for index, (language, text) in enumerate(blocks):
        if language != "python" or not (named := re.match(r"# (\w+\.py)\n", text)):
            continue
        (tmp_path / named.group(1)).write_text(text)
        done = subprocess.run(
            [sys.executable, named.group(1)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        printed = [out for kind, out in blocks[index + 1 : index + 3] if kind == "text"]
        if printed:
            assert done.stdout == printed[0]
            ran += 1
    assert ran


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
