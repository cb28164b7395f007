"""Opens a store by its address; each driver is imported when its database is used."""

from milepost.config import StoreUrl
from milepost.store.driver import Driver

__all__ = ["open_driver"]


def open_driver(url: StoreUrl) -> Driver:
    """Connect synchronously."""
    if url.dialect == "sqlite":
        from milepost.store.sqlite import SqliteDriver  # noqa: PLC0415 - loaded when used

        return SqliteDriver(url.target)
    from milepost.store.postgres import PsycopgDriver  # noqa: PLC0415 - loaded when used

    return PsycopgDriver(url)
