"""Opens a store by its address; each driver is imported when its database is used."""

from pathlib import Path

from milepost.config import StoreUrl
from milepost.errors import Unavailable
from milepost.store.driver import Driver

__all__ = ["open_driver"]


def open_driver(url: StoreUrl, *, create: bool = True) -> Driver:
    """Connect synchronously. Without `create` a SQLite file must be there already."""
    if url.dialect == "sqlite":
        if not create and not Path(url.target).exists():
            raise Unavailable(f"{url}: no such file; is this the store you mean?")
        from milepost.store.sqlite import SqliteDriver  # noqa: PLC0415 - loaded when used

        return SqliteDriver(url.target)
    from milepost.store.postgres import PsycopgDriver  # noqa: PLC0415 - loaded when used

    return PsycopgDriver(url)
