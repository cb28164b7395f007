"""What every page has beside it: the numbers of the rail, saved views, the last checks."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from milepost.store import dashboard, workers
from milepost.store.dashboard import Checked, Rail, SavedView
from milepost.store.driver import Steps
from milepost.web.call import Call, Engine
from milepost.web.dashboard.facts import Kept
from milepost.web.session import Keys

VERSION = version("milepost")
STORE_NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
FRESH_SECONDS = 2.0
"""For so long the numbers are not asked for again."""

Shared = tuple[Rail, list[SavedView], list[Checked], timedelta]


def _read() -> Steps[Shared]:
    counts = yield from dashboard.rail()
    saved = yield from dashboard.views()
    checks = yield from dashboard.checks()
    return counts, saved, checks, (yield from workers.now()) - datetime.now(UTC)


class RailReader:
    """Reads the rail once for all pages of a process, and no more often than it must."""

    def __init__(self, engine: Engine, keys: Keys) -> None:
        self._engine = engine
        self._keys = keys
        self._kept: Kept[Shared] = Kept(engine, _read, seconds=lambda _: FRESH_SECONDS)

    async def shared(self, call: Call) -> Mapping[str, Any]:
        """Give the values that every page takes, as this caller may see them."""
        bound = call.principal.tenant is not None or call.principal.queues is not None
        counts: Rail | None
        counts, saved, checks, ahead = await self._kept.read()
        if bound:
            counts, saved, checks = None, [], []
        signer = await self._keys.signer()
        return {
            "rail": counts,
            "now": datetime.now(UTC) + ahead,
            "saved_views": saved,
            "checks": {check.name: check for check in checks},
            "form_token": signer.form_token(call.principal.id),
            "store": "" if bound else str(self._engine.client.url),
            "store_name": STORE_NAMES[self._engine.client.url.dialect],
            "version": VERSION,
            "is_session": call.request.scope.get("milepost.session") is not None,
        }

    async def now(self) -> datetime:
        """Tell the store's time, by its clock as it was read last."""
        return datetime.now(UTC) + (await self._kept.read())[3]

    def forget(self) -> None:
        """Read it anew: something of it was changed here."""
        self._kept.forget()
