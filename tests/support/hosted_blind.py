"""The app of `hosted` in processes that count nobody at a host: what is judged must go wrong.

Workers import it, and nobody else: it changes the process that does.
"""

from collections.abc import Sequence

from milepost.store import hosts
from tests.support.hosted import app

__all__ = ["app"]

_places = hosts._places


def _blind(found: hosts._HostState, asked: Sequence[hosts.Asking]) -> dict[str, hosts.Place]:
    found.sending = 0
    return _places(found, asked)


hosts._places = _blind
