"""An argument that could not be moved within a lease is refused when it is submitted."""

import pytest

import milepost as mp


def declared(url, **settings):
    app = mp.App(url, **settings)

    @app.job
    def keep(text: str) -> int:
        return len(text)

    return app, keep


def test_the_lease_bounds_what_max_payload_allows(database):
    app, keep = declared(database.url, lease=2, heartbeat=1, max_payload=64 * 1024**2)
    fits, too_large = "x" * (2 * 1024**2 - 100), "x" * (2 * 1024**2 + 1)
    assert keep.submit(fits).state == "QUEUED"
    for submit in (lambda: keep.submit(too_large), lambda: keep.submit_many([(too_large,)])):
        with pytest.raises(mp.Invalid, match="MILEPOST_LEASE"):
            submit()
    assert app.drain() == 1
    app.close()


def test_a_load_that_no_statement_takes_is_refused_as_a_whole(database, monkeypatch):
    monkeypatch.setattr("milepost.job.LOAD_BYTES", 1000)
    app, keep = declared(database.url)
    with pytest.raises(mp.Invalid, match="submit them in parts"):
        keep.submit_many([("x" * 400,)] * 3)
    assert app.counts() == {}
    app.close()
