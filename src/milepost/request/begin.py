"""Attempts that are about to send at the same time share a transaction for their notes."""

from milepost.client import Client
from milepost.errors import LeaseLost
from milepost.store import requests
from milepost.store.group import AsyncGroupCommit, GroupSize, Refusal
from milepost.store.requests import Begin

Signals = list[bytes | None]
"""Signals to be read before an attempt sends; None means that it is noted, and is to send now."""


class Beginner:
    """Notes what is about to be sent, many at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._notes: AsyncGroupCommit[Begin, Signals | None] = AsyncGroupCommit(
            self._note, size=GroupSize(200)
        )

    async def begin(self, begin: Begin) -> Signals | None:
        """Note one attempt, or raise `LeaseLost`; answer with signals to be read first."""
        return await self._notes.run(begin)

    async def _note(self, begins: list[Begin]) -> list[Signals | Refusal | None]:
        begun = await self._client.run_async(requests.begin, begins, actor=None)
        answers: list[Signals | Refusal | None] = []
        for claim in (begin.claim for begin in begins):
            if claim.id in begun.signals:
                answers.append(list(begun.signals[claim.id]))
            elif claim.id in begun.held:
                answers.append(None)
            else:
                lost = LeaseLost(f"job {claim.id} is no longer held with fence {claim.fence}")
                answers.append(Refusal(lost))
        return answers
