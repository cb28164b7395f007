"""Group commit: callers at the same moment share a transaction, and each hears of its own mistake.

How threads lead and hand over is shown by their two users: test_sqlite.py and app/test_submit.py.
"""

import asyncio

import pytest

from milepost.errors import Invalid, Unavailable
from milepost.store.group import AsyncGroupCommit, GroupSize, Refusal


class Journal:
    """Commits items, and keeps each group; some items no transaction takes."""

    def __init__(self, error: Exception | None = None) -> None:
        self.groups: list[list[str]] = []
        self._error = error

    async def write(self, items: list[str]) -> list[str | Refusal]:
        self.groups.append(items)
        await asyncio.sleep(0)
        if self._error is not None and any(item.startswith("bad") for item in items):
            raise self._error
        refused = Refusal(Invalid("refused by its own answer"))
        return [refused if item == "refused" else item.upper() for item in items]


async def committed(group, *items):
    return await asyncio.gather(*map(group.run, items), return_exceptions=True)


async def test_tasks_of_the_same_moment_share_a_transaction():
    journal = Journal()
    assert await committed(AsyncGroupCommit(journal.write, size=GroupSize(10)), *"abc") == [*"ABC"]
    assert journal.groups == [["a", "b", "c"]]


async def test_a_group_ends_at_its_weight_and_where_another_kind_begins():
    journal = Journal()
    size = GroupSize(5, weight=len, kind=lambda item: item[0])
    await committed(AsyncGroupCommit(journal.write, size=size), "a1", "a2", "a3", "b", "bbbbbbb")
    assert journal.groups == [["a1", "a2"], ["a3"], ["b"], ["bbbbbbb"]]


async def test_a_group_that_fails_is_committed_in_halves_until_the_mistake_stands_alone():
    journal = Journal(Invalid("bad"))
    group = AsyncGroupCommit(journal.write, size=GroupSize(10))
    *good, bad = await committed(group, "a", "b", "c", "bad")
    assert (good, type(bad)) == ([*"ABC"], Invalid)
    assert journal.groups == [["a", "b", "c", "bad"], ["a", "b"], ["c", "bad"], ["c"], ["bad"]]


async def test_a_store_that_is_away_is_not_asked_for_each():
    journal = Journal(Unavailable("away"))
    group = AsyncGroupCommit(journal.write, size=GroupSize(10))
    assert [type(e) for e in await committed(group, "bad", "b")] == [Unavailable, Unavailable]
    assert journal.groups == [["bad", "b"]]


async def test_an_answer_can_be_an_error_of_one_caller():
    group = AsyncGroupCommit(Journal().write, size=GroupSize(10))
    a, refused = await committed(group, "a", "refused")
    assert (a, type(refused)) == ("A", Invalid)


async def test_a_store_that_cannot_be_opened_refuses_the_group_and_serves_the_next():
    journal, problems = Journal(), [Unavailable("not open")]

    async def ready():
        await asyncio.sleep(0)
        if problems:
            raise problems.pop()

    group = AsyncGroupCommit(journal.write, size=GroupSize(10), ready=ready)
    assert [type(e) for e in await committed(group, *"ab")] == [Unavailable, Unavailable]
    assert await committed(group, *"cd") == [*"CD"]
    assert journal.groups == [["c", "d"]]


async def test_callers_hear_that_the_task_that_leads_was_cancelled():
    group = AsyncGroupCommit(Journal().write, size=GroupSize(1))
    waiting = [asyncio.create_task(group.run(name)) for name in "ab"]
    for _ in range(3):  # they queue up; the leader writes
        await asyncio.sleep(0)
    [line] = group._lines.values()
    line.leader.cancel()
    for task in waiting:
        with pytest.raises(Unavailable, match="try again"):
            await task
    assert await group.run("c") == "C"
