"""How `verify` and `doctor` ended is kept for the pages, where that is allowed."""

import milepost as mp
from milepost.store import dashboard


def checks(app: mp.App) -> dict[str, dashboard.Checked]:
    return {check.name: check for check in app.client.run(dashboard.checks)}


def test_how_a_check_ended_is_kept(app, database, prompt):
    app.job(name="work")(lambda: None).submit()
    app.drain()
    assert checks(app) == {}
    assert prompt("verify", "--store", database.url).code == 0
    assert prompt("doctor", "--store", database.url).err == ""
    found = checks(app)
    assert found["verify"].clean
    assert found["verify"].summary.startswith("clean: ")
    assert "healthy" in found["doctor"].summary or "finding" in found["doctor"].summary
    assert found["doctor"].clean == ("healthy" in found["doctor"].summary)
    assert app.client.run(dashboard.rail).new_errors == 0


def test_new_errors_are_counted_beside_the_rail(app):
    @app.job(retries=0)
    def fails(text: str) -> None:
        raise mp.Fail(text)

    @app.job(retries=0)
    def differs(text: str) -> None:
        raise ValueError(text)

    for text in ("a", "b"):
        fails.submit(text)
        differs.submit(text)
    app.drain(30)
    assert app.client.run(dashboard.rail).new_errors == 2
