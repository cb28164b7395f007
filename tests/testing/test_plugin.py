"""The pytest plugin, as a user's own tests meet it."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

SHOP = """
import milepost as mp

app = mp.App("sqlite:///production.db")


@app.job(retry_delay=60)
def bill(ctx: mp.Context, order: str) -> str:
    if ctx.attempt == 1:
        raise ConnectionError("the bank is away")
    return f"{order} billed"
"""

TESTS = """
from pathlib import Path
from shop import bill


def test_a_bill_is_tried_again(milepost_app, milepost_clock):
    job = bill.submit("order-7")
    assert milepost_app.drain() == 1
    assert job.refresh().state == "RETRYING"

    milepost_clock.advance(60)

    assert milepost_app.drain() == 1
    assert job.refresh().result == "order-7 billed"


def test_the_next_test_has_a_store_of_its_own(milepost_app):
    assert milepost_app.jobs.list() == []
    assert not Path("production.db").exists()
"""


@pytest.fixture
def shop(pytester, monkeypatch):
    """A user's project: an app, tests of it, and nothing of this project's settings."""
    for name in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "MILEPOST_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(shop=SHOP)
    pytester.makeini(
        "[pytest]\nmilepost_app = shop:app\npythonpath = .\nfilterwarnings = error\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    return pytester


@pytest.fixture
def elsewhere(shop, monkeypatch, tmp_path):
    """Have the project's folder outside of the temporary one, as projects are."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delenv("MILEPOST_ALLOW_STORE", raising=False)
    return shop.path


def run(pytester, *arguments):
    # By their names: others that are installed here take longer to load than all the rest.
    options = ("-p", "no:cacheprovider", "-p", "milepost", "-p", "asyncio")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        return pytester.runpytest_subprocess(*options, *arguments)


def test_each_test_gets_the_named_app_on_a_fresh_store(shop):
    """It is there once the package is installed, with nothing that names it."""
    shop.makepyfile(TESTS)
    without = ("schemathesis", "logfire", "hypothesispytest", "xdist", "time_machine")
    options = [word for name in ("cacheprovider", *without) for word in ("-p", f"no:{name}")]
    shop.runpytest_subprocess(*options).assert_outcomes(passed=2)


def test_the_same_tests_run_on_every_store_that_is_named(shop, server):
    shop.makepyfile(TESTS)
    result = run(shop, "-v", "--milepost-store=sqlite", f"--milepost-store={server}")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["*tried_again[[]postgresql[]] PASSED*"])


def test_without_settings_there_is_an_app_to_declare_jobs_on(pytester):
    pytester.makepyfile(
        """
        def test_one(milepost_app):
            @milepost_app.job
            def double(number: int) -> int:
                return number * 2

            job = double.submit(2)
            milepost_app.drain()
            assert job.refresh().result == 4
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_the_fixture_can_be_overridden(shop):
    shop.makeconftest(
        """
        import pytest
        import milepost as mp
        from shop import app

        @pytest.fixture
        def milepost_app(milepost_store):
            with mp.testing.fresh_store(app, milepost_store):
                app.marked = True
                yield app
        """
    )
    shop.makepyfile(TESTS + "    assert milepost_app.marked\n")
    run(shop).assert_outcomes(passed=2)


def test_an_asynchronous_test_leaves_nothing_open(shop):
    shop.makepyfile(
        """
        import gc, pytest
        from shop import app, bill

        @pytest.mark.asyncio
        async def test_async(milepost_app, milepost_clock):
            job = await bill.submit_async("order-8")
            await milepost_app.drain_async()
            await milepost_clock.advance_async(60)
            await milepost_app.drain_async()
            assert (await job.refresh_async()).result == "order-8 billed"

        def test_nothing_is_left():
            assert app.client.loops == []
        """
    )
    run(shop).assert_outcomes(passed=2)


def test_an_app_that_is_none_is_named(shop):
    shop.makepyfile("def test_it(milepost_app): ...")
    result = run(shop, "-o", "milepost_app=shop:bill")
    result.stdout.fnmatch_lines(["*milepost_app = shop:bill: bill is no milepost.App*"])


FORGETFUL = """
import pytest
import milepost as mp
from shop import app, bill


def test_it_forgets_the_fixture():
    bill.submit("order-7")
"""


def test_a_test_that_forgets_the_fixture_does_not_write_into_the_real_store(shop, elsewhere):
    shop.makepyfile(FORGETFUL)
    result = run(shop)
    result.assert_outcomes(failed=1)
    told = "*Invalid: sqlite:///production.db is not a store made for tests, and pytest is running*"
    ways = "milepost_app*milepost_allow = sqlite:///production.db*MILEPOST_ALLOW_STORE=1*"
    result.stdout.fnmatch_lines([told + ways])
    assert not (elsewhere / "production.db").exists()


EVERY_WAY = """
import asyncio
import sqlite3
import subprocess
import sys

import pytest

import milepost as mp
from shop import app, bill

LIST = [sys.executable, "-m", "milepost.cli", "jobs", "ls", "--store", "sqlite:///production.db"]


def within():
    bill.within(sqlite3.connect("production.db")).submit("order-7")


def lent():
    with mp.testing.connection(app):
        pass


@pytest.mark.parametrize("way", [
    lambda: app.drain(),
    lambda: asyncio.run(bill.submit_async("order-7")),
    lambda: asyncio.run(app.drain_async()),
    within,
    lent,
])
def test_it_forgets_the_fixture(way):
    with pytest.raises(mp.Invalid, match="not a store made for tests"):
        way()


def test_a_program_that_a_test_starts_is_refused_too(milepost_app):
    done = subprocess.run(LIST, capture_output=True, text=True)
    assert done.returncode == 2
    assert "not a store made for tests" in done.stderr
"""


def test_no_way_leads_into_the_real_store(shop, elsewhere):
    shop.makepyfile(EVERY_WAY)
    run(shop).assert_outcomes(passed=6)


def test_a_real_postgresql_database_is_refused(shop, server):
    shop.makepyfile(shop=SHOP.replace("sqlite:///production.db", server), test_it=FORGETFUL)
    result = run(shop)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*is not a store made for tests*"])


@pytest.mark.parametrize(
    ("patterns", "outcome"),
    [
        ("nothing sqlite:///production.db", "passed"),
        ("nothing sqlite:///*/prod*.db", "passed"),
        ("sqlite:///other.db", "failed"),
    ],
)
def test_a_store_is_allowed_by_its_name(shop, elsewhere, patterns, outcome):
    shop.makepyfile(FORGETFUL)
    run(shop, "-o", f"milepost_allow={patterns}").assert_outcomes(**{outcome: 1})


def test_every_store_is_allowed_by_a_variable(shop, elsewhere, monkeypatch):
    shop.makepyfile(FORGETFUL)
    monkeypatch.setenv("MILEPOST_ALLOW_STORE", "1")
    run(shop).assert_outcomes(passed=1)


def test_a_file_below_the_temporary_folder_needs_no_name(shop, elsewhere, tmp_path):
    shop.makepyfile(
        """
        import milepost as mp

        def test_it(tmp_path):
            app = mp.App(f"sqlite:///{tmp_path}/milepost.db")
            assert app.jobs.list() == []
            app.close()
        """
    )
    run(shop).assert_outcomes(passed=1)
    run(shop, f"--basetemp={elsewhere}/kept").assert_outcomes(passed=1)


def test_help_names_the_setting(pytester):
    result = run(pytester, "--help")
    result.stdout.fnmatch_lines(["*--milepost-store=STORE*", "*milepost_app (string)*"])


def loaded(code: str, *names: str) -> list[str]:
    program = f"import sys; {code}; print(*[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_the_library_does_not_import_pytest():
    code = "import milepost as mp; mp.App; mp.testing.fresh_store; mp.testing.crash_everywhere"
    assert loaded(code, "pytest", "_pytest") == []


def test_the_plugin_does_not_import_the_library_before_it_is_used():
    assert loaded("import milepost.testing.plugin", "milepost.app", "msgspec", "asyncio") == []
