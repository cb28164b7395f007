"""What holds of the project as a whole."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import milepost

ROOT = Path(__file__).parent.parent


def test_the_lock_names_one_index_the_public_default():
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    indexes = {
        package["source"]["registry"]
        for package in lock["package"]
        if "registry" in package["source"]
    }
    assert indexes == {"https://pypi.org/simple"}


def test_public_names_are_sorted_complete_and_few():
    constants_first = sorted(milepost.__all__, key=lambda name: (not name.isupper(), name))
    assert list(milepost.__all__) == constants_first
    assert len(milepost.__all__) <= 60
    assert all(hasattr(milepost, name) for name in milepost.__all__)


def test_every_public_name_is_typed_as_it_is_loaded():
    """A type checker reads the imports, a program the table: both name one home."""
    tree = ast.parse(Path(milepost.__file__).read_text())
    imports = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if (node.module or "").startswith("milepost.")
    }
    assert imports == milepost._HOMES
    assert sorted(imports) == sorted(milepost.__all__)


def test_importing_milepost_loads_nothing_but_itself():
    """It takes some milliseconds because of this: a name is loaded when it is first used."""
    heavy = "{'psycopg', 'asyncpg', 'rich', 'click', 'structlog', 'sqlite3', 'msgspec', 'asyncio'}"
    code = (
        "import milepost, sys;"
        "print([name for name in sys.modules if name.startswith('milepost')],"
        f"sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['milepost'] []"


def test_readme_opens_with_the_two_commands():
    head = (ROOT / "README.md").read_text().split("## ")[0]
    assert "make demo" in head
    assert "make test" in head
    assert head.count("\n") <= 30  # all of it on the first screen, with the picture


def test_readme_stays_a_front_door():
    assert (ROOT / "README.md").read_text().count("\n") <= 200


def test_no_committed_text_names_a_path_of_some_machine():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".sql", ".sh"} and path.exists():
            assert not re.search(r"(?<![\w.])/(work|root)/", path.read_text()), name


def test_every_module_imports():
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        importlib.import_module(name.removesuffix(".__init__"))


def test_the_product_imports_nothing_of_its_tests_and_tools():
    """The wheel has neither: what imports them would fail at a user's."""
    ours = re.compile(r"^\s*(from|import) (tests|tools|benchmarks|examples)\b", re.MULTILINE)
    found = [path for path in (ROOT / "src").rglob("*.py") if ours.search(path.read_text())]
    assert found == []


def test_the_wheel_has_for_tests_what_users_call_and_no_more():
    folder = ROOT / "src/milepost/testing"
    assert {path.name for path in folder.rglob("*.py")} == {
        *("__init__.py", "everywhere.py", "fresh.py", "plugin.py", "unit.py"),
    }
