"""Places where a test can make the store fail, switched on by name.

Every driver reaches `before:QUERY` and `after:QUERY` around each statement, `before:commit`, and
`after:commit` before it answers. Off, a fail point costs one look at an empty dictionary.
`MILEPOST_FAILPOINTS="after:job_settle=exit"` switches them on in a process started by a test;
`after:job_settle=exit@3` fires at the third time. `watched` sees every point, and the
rows that each statement answered.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from milepost.errors import Unavailable

EXIT_CODE = 86

Watcher = Callable[[str, Sequence[Any]], None]

active: dict[str, Callable[[], None]] = {}
watchers: list[Watcher] = []


def reach(point: str, rows: Sequence[Any] = ()) -> None:
    """Fail here if a test asked for it; `rows` are the answer of the statement."""
    for watcher in watchers:
        watcher(point, rows)
    action = active.get(point)
    if action is not None:
        action()


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Show every point to a test for a while."""
    watchers.append(watcher)
    try:
        yield
    finally:
        watchers.remove(watcher)


@contextmanager
def armed(point: str, action: Callable[[], None]) -> Iterator[None]:
    """Switch a fail point on for a while."""
    active[point] = action
    try:
        yield
    finally:
        active.pop(point, None)


def leave() -> NoReturn:
    """End the process as a crash does: nothing is flushed, no handler runs."""
    os._exit(EXIT_CODE)


def cut() -> NoReturn:
    """Lose the connection's answer."""
    raise Unavailable("the connection was lost (fail point)")


ACTIONS: dict[str, Callable[[], None]] = {"exit": leave, "error": cut}


def _from_environment(text: str) -> None:
    for assignment in filter(None, text.split(",")):
        point, _, action = assignment.partition("=")
        name, _, turn = action.partition("@")
        active[point] = _at_turn(ACTIONS[name], int(turn or 1))


def _at_turn(action: Callable[[], None], turn: int) -> Callable[[], None]:
    left = turn

    def maybe() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            action()

    return maybe


_from_environment(os.environ.get("MILEPOST_FAILPOINTS", ""))
