"""Limits as operators see them: what is in force, who set it, and how to set something else."""

from collections.abc import Sequence

import msgspec

from milepost.client import Client, caller
from milepost.faces import Flow, faces
from milepost.store import buckets, limit_looks, rules
from milepost.store.driver import Steps
from milepost.store.limit_looks import LimitStand
from milepost.store.rules import RuleChange, RuleEdit
from milepost.subjects import check_page

CHANGES = 100
"""How many changes are listed."""


class Limits:
    """Looks limits up, and sets them: from the next claim on, with a name and a reason."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _list(self) -> Flow[Sequence[LimitStand]]:
        """Return every limit, with the jobs that run and wait under it, counted up to a bound."""
        return self._client.flow(limit_looks.listing)

    list, list_async = faces(_list)

    def _get(self, name: str, *, scope: str | None = None) -> Flow[LimitStand]:
        """Return one limit; `scope` says which, where several have that name."""
        return self._client.flow(limit_looks.one, name, scope=scope)

    get, get_async = faces(_get)

    def _set(
        self,
        name: str,
        *,
        most: int | msgspec.UnsetType | None = msgspec.UNSET,
        rate: str | float | msgspec.UnsetType | None = msgspec.UNSET,
        burst: float | msgspec.UnsetType | None = msgspec.UNSET,
        reason: str | None = None,
        scope: str | None = None,
    ) -> Flow[LimitStand]:
        """Set what a limit allows, until `reset`, or until a program declares something new.

        What is left out stays as it is; None removes it. No job that runs is stopped. A `scope`
        of "queue", "host" or "source" also makes the first limit of one.
        """
        return self._client.flow(
            set_limit,
            name,
            RuleEdit(most, rate, burst),
            scope=scope,
            actor=caller().actor,
            reason=reason,
        )

    set, set_async = faces(_set)

    def _reset(
        self, name: str, *, reason: str | None = None, scope: str | None = None
    ) -> Flow[LimitStand]:
        """Put back what programs declare; a limit that none declares is removed."""
        actor = caller().actor
        return self._client.flow(reset_limit, name, scope=scope, actor=actor, reason=reason)

    reset, reset_async = faces(_reset)

    def _clear(
        self,
        name: str,
        key: str | None = None,
        *,
        reason: str | None = None,
        scope: str | None = None,
    ) -> Flow[LimitStand]:
        """Refill the bucket of a rate, or of one key of it: the next job may start at once.

        For a key that is closed because too much was counted, as by a huge `ctx.count`. Of the
        limit "*" of hosts a host is the key. A bucket that is full is `NotFound`.
        """
        actor = caller().actor
        return self._client.flow(clear_limit, name, key, scope=scope, actor=actor, reason=reason)

    clear, clear_async = faces(_clear)

    def _changes(
        self, name: str | None = None, *, scope: str | None = None, limit: int = CHANGES
    ) -> Flow[Sequence[RuleChange]]:
        """Return who changed or cleared limits, to what and why, the newest first."""
        return self._client.flow(rules.changes, name, scope=scope, most=check_page(limit))

    changes, changes_async = faces(_changes)


def set_limit(
    name: str, wanted: RuleEdit, *, scope: str | None, actor: str | None, reason: str | None
) -> Steps[LimitStand]:
    """Set a limit, and say how it stands."""
    rule = yield from rules.edit(name, wanted, scope=scope, actor=actor, reason=reason)
    return (yield from limit_looks.one(name, scope=rule.scope))


def reset_limit(
    name: str, *, scope: str | None, actor: str | None, reason: str | None
) -> Steps[LimitStand]:
    """Reset a limit, and say how it stands: one that nobody declared is gone."""
    found = yield from limit_looks.one(name, scope=scope)
    rule = yield from rules.reset(name, scope=found.scope, actor=actor, reason=reason)
    if rule is None:
        return LimitStand(scope=found.scope, name=found.name, words="no limit")
    return (yield from limit_looks.one(name, scope=found.scope))


def clear_limit(
    name: str, key: str | None, *, scope: str | None, actor: str | None, reason: str | None
) -> Steps[LimitStand]:
    """Clear the rate of a limit, and say how it stands."""
    rule = yield from buckets.clear(name, key, scope=scope, actor=actor, reason=reason)
    return (yield from limit_looks.one(name, scope=rule.scope))
