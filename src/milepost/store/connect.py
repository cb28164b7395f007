"""Opens a store by its address; each driver is imported when its database is used."""

from pathlib import Path

from milepost.address import StoreUrl
from milepost.config import Timeouts
from milepost.errors import Unavailable
from milepost.store.allow import check_allowed
from milepost.store.driver import AsyncDriver, Driver


def open_driver(
    url: StoreUrl, *, create: bool = True, look: bool = False, limits: Timeouts | None = None
) -> Driver:
    """Connect synchronously; a server is waited for within the `limits`.

    Without `create` a SQLite file must be there already; to `look` it must be, and stays untouched.
    """
    check_allowed(url)
    if url.dialect == "sqlite":
        if (look or not create) and not Path(url.target).exists():
            raise Unavailable(
                f"{url}: no such file; is this the store you mean? "
                "--store and MILEPOST_DATABASE_URL name another"
            )
        if look:
            from milepost.store.look import ReadOnlyDriver  # noqa: PLC0415 - loaded when used

            return ReadOnlyDriver(url.target)
        from milepost.store.sqlite import SqliteDriver  # noqa: PLC0415 - loaded when used

        return SqliteDriver(url.target)
    from milepost.store.postgres import PsycopgDriver  # noqa: PLC0415 - loaded when used

    return PsycopgDriver(url, limits or Timeouts())


def open_async_driver(url: StoreUrl, *, limits: Timeouts | None = None) -> AsyncDriver:
    """Connect for the running event loop; a server is waited for within the `limits`."""
    check_allowed(url)
    if url.dialect == "sqlite":
        from milepost.store.sqlite import AsyncSqliteDriver  # noqa: PLC0415 - loaded when used

        return AsyncSqliteDriver(url.target)
    from milepost.store.postgres import AsyncpgDriver  # noqa: PLC0415 - loaded when used

    return AsyncpgDriver(url, limits or Timeouts())
