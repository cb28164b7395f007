"""Who writes next, where only one can: threads that wait are served together, in their order."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import Any

GROUP = 256


class Turn:
    """An operation that waits for the connection; somebody else may run it meanwhile."""

    def __init__(self, work: Any = None, *, simple: bool = False) -> None:
        """Make one; its work is done on the connection, by whoever has it."""
        self.work = work
        self.simple = simple
        self.answer: Future[Any] = Future()
        self.leads = False
        self.called = False
        self._waits = Lock()
        self._waits.acquire()

    def wait(self) -> None:
        """Wait until it has been run, or leads."""
        self._waits.acquire()

    def wake(self) -> None:
        """Let it go on."""
        self.called = True
        self._waits.release()


class Turns:
    """Whose turn it is to write: first come, first served, so that nobody starves.

    Who waits is called to lead, and does what all who wait want. A server, where there is one,
    leads instead: while there is work it never lets go, and no thread has to be woken before the
    next transaction begins. (Who wakes may have to wait for the interpreter's lock.)
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._taken = False
        self._waiting: deque[Turn] = deque()
        self._server: Turn | None = None

    def take(self) -> bool:
        """Take the connection if it is free."""
        with self._mutex:
            if self._taken:
                return False
            self._taken = True
            return True

    def wait(self, turn: Turn) -> bool:
        """Wait for one's turn; answer whether one leads, and must pass on, or was served."""
        with self._mutex:
            if not self._taken:
                self._taken = turn.leads = True
                return True
            self._waiting.append(turn)
        try:
            turn.wait()
        except BaseException:
            self._leave(turn)
            raise
        return turn.leads

    def followers(self) -> list[Turn]:
        """Let whoever else waits share the leader's transaction."""
        with self._mutex:
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), GROUP))]

    def pass_on(self) -> None:
        """Hand the connection to who has waited longest."""
        with self._mutex:
            if not self._waiting:
                self._taken = False
                return
            following = self._server or self._waiting.popleft()
        following.leads = True
        following.wake()

    def serve(self, do: Callable[[list[Turn]], None]) -> Callable[[], None]:
        """Become the server; answer with what serves until `end_service`."""
        server = self._server = Turn()

        def serving() -> None:
            while True:
                server.wait()
                if self._server is not server:
                    return
                do(self.followers())
                self.pass_on()

        return serving

    def end_service(self) -> None:
        """Let the server go; for who has the connection."""
        with self._mutex:
            server, self._server = self._server, None
        if server is not None:
            server.wake()

    def _leave(self, turn: Turn) -> None:
        with self._mutex:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
        # It was called meanwhile, to lead or with an answer: a leader must not vanish. And who was
        # interrupted while it woke is called no second time.
        if not turn.called:
            turn.wait()
        if turn.leads:
            self.pass_on()
