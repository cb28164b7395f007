"""The example's own tests, as a user would write them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import shop
from fastapi.testclient import TestClient

import milepost as mp


@pytest.fixture
def jobs(milepost_store, monkeypatch):
    """The shop on a fresh store, its own tables included."""
    with mp.testing.fresh_store(shop.jobs, milepost_store) as url:
        monkeypatch.setattr(shop, "URL", url)
        yield shop.jobs
        close_database()


@pytest.fixture
def client(jobs):
    with TestClient(shop.app) as client:
        yield client


def close_database():
    shop.Sessions.kw["bind"].dispose()


def orders():
    with shop.Sessions.begin() as session:
        return [(order.article, order.confirmed) for order in session.query(shop.Order)]


def test_an_order_is_accepted_worked_on_and_shown(client, jobs):
    answer = client.post("/orders", json={"article": "tea"})
    assert answer.status_code == 202
    place = answer.headers["Location"]
    assert client.get(place).json()["state"] == "QUEUED"

    assert jobs.drain() == 1

    shown = client.get(place).json()
    assert (shown["done"], shown["result"]) == (True, "order 1 is confirmed: tea")
    assert orders() == [("tea", True)]


def test_an_order_that_is_refused_leaves_no_job(client, jobs):
    assert client.post("/orders", json={"article": "unicorn"}).status_code == 422
    assert orders() == []
    assert jobs.jobs.list() == []


def test_a_job_that_fails_shows_its_error(client, jobs):
    job = shop.confirm.options(retries=0).submit(404)
    jobs.drain()
    shown = client.get(f"/jobs/{job.id}").json()
    assert shown["state"] == "FAILED"
    assert "result" not in shown
    assert shown["error"]


def test_a_job_that_is_not_there_is_404(client):
    assert client.get("/jobs/0190").status_code == 404


# A worker may take its time to start; `wait` says so, which is right and no mistake here.
@pytest.mark.filterwarnings("ignore:.*no live worker could take it:RuntimeWarning")
def test_a_worker_beside_the_server_confirms_an_order(client, jobs):
    job = jobs.jobs.get(client.post("/orders", json={"article": "salt"}).json()["job"])
    known = {**os.environ, "MILEPOST_DATABASE_URL": shop.URL}
    command = [sys.executable, "-m", "milepost.cli", "worker", "shop:jobs"]
    with subprocess.Popen(command, cwd=Path(shop.__file__).parent, env=known) as worker:
        try:
            assert job.wait(timeout=60).result == "order 1 is confirmed: salt"
        finally:
            worker.terminate()
    assert worker.returncode == 0


def test_a_worker_may_live_in_the_server(jobs, monkeypatch):
    monkeypatch.setenv("SHOP_WORKER", "1")
    with TestClient(shop.app) as client:
        answer = client.post("/orders", json={"article": "rice"}).json()
        done = jobs.jobs.get(answer["job"]).wait(timeout=60)
    assert done.result == "order 1 is confirmed: rice"


def test_an_order_is_confirmed_wherever_the_worker_dies(jobs):
    def start():
        shop.open_database(mp.testing.address(jobs))  # another one each time
        with shop.Sessions.begin() as session:
            session.add(shop.Order(article="salt"))
            session.flush()
            shop.confirm.within(session).submit(1)
        close_database()  # a connection must not be carried into the process that is killed

    def check():
        assert orders() == [("salt", True)]
        assert [job.state for job in jobs.jobs.list()] == ["SUCCEEDED"]
        close_database()

    assert mp.testing.crash_everywhere(jobs, start, check) == 4
