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


def run(pytester, *arguments):
    # Schemathesis is installed here and takes longer to load than all the rest.
    without = ("-p", "no:cacheprovider", "-p", "no:schemathesis")
    return pytester.runpytest_subprocess(*without, *arguments)


def test_each_test_gets_the_named_app_on_a_fresh_store(shop):
    shop.makepyfile(TESTS)
    run(shop).assert_outcomes(passed=2)


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
    run(pytester, "-p", "no:asyncio").assert_outcomes(passed=1)


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
