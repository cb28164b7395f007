"""A store that was closed says so, in every colour, on every database."""

import pytest

from milepost.config import store_url
from milepost.errors import Unavailable
from milepost.store import workers
from milepost.store.connect import open_async_driver, open_driver


def test_a_closed_driver_says_that_it_was_closed(database):
    driver = open_driver(store_url(database.url, {}))
    driver.run(workers.now)
    driver.close()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"was closed$"):
            driver.run(workers.now)
    with pytest.raises(Unavailable, match=r"was closed$"), driver.snapshot():
        pass


async def test_a_closed_asynchronous_driver_says_so_too(database):
    driver = open_async_driver(store_url(database.url, {}))
    await driver.run(workers.now)
    await driver.close()
    with pytest.raises(Unavailable, match=r"was closed$"):
        await driver.run(workers.now)


def test_an_app_that_was_closed_opens_its_store_again(app):
    assert app.counts() == {}
    app.close()
    assert app.counts() == {}
