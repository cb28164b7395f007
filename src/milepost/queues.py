"""Queues: the jobs in each, and whether they may be claimed."""

from collections.abc import Sequence

from milepost.client import Client, caller
from milepost.codec import check_text
from milepost.errors import Invalid
from milepost.faces import Flow, faces
from milepost.records import Queue
from milepost.store import queues


class Queues:
    """Looks queues up, and lets claims from them rest."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _list(self) -> Flow[Sequence[Queue]]:
        """Return every queue that holds a job or was ever paused, with its jobs counted."""
        return self._client.flow(queues.listing)

    list, list_async = faces(_list)

    def _pause(self, name: str, reason: str | None = None) -> Flow[bool]:
        """Let nobody claim from it; running jobs may end. False when it was paused already."""
        return self._set(name, paused=True, reason=reason)

    pause, pause_async = faces(_pause)

    def _resume(self, name: str) -> Flow[bool]:
        """Let claims go on. False when it was not paused."""
        return self._set(name, paused=False)

    resume, resume_async = faces(_resume)

    def _set(self, name: str, *, paused: bool, reason: str | None = None) -> Flow[bool]:
        actor = caller().actor
        return self._client.flow(
            queues.pause, _checked(name), paused=paused, actor=actor, reason=reason
        )


def check_queues(names: Sequence[str]) -> None:
    """Refuse a choice of queues that is empty, or no list of names."""
    if isinstance(names, str) or not names:
        raise Invalid(f"queues={names!r} must be a list of names; None serves every queue")
    for name in names:
        _checked(name)


def _checked(name: str) -> str:
    check_text(name, what="queue")
    return name
