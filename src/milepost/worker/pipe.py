"""The messages between a worker and the process of an isolated job, and how they are sent.

Each message is a frame: a mark, its length and its content. Arguments, results and errors cross as
they are stored, so that nothing has to be picklable.
"""

import os
import select
import socket
import threading
from typing import Any, ClassVar

import msgspec

from milepost.client import Caller
from milepost.errors import MilepostError
from milepost.outcome import LogLine, Outcome
from milepost.records import Claim

MARK = b"\xc1MP\x00"
"""Begins each frame: a handler that writes into the connection, by mistake, is noticed at once. Its
first byte is in no text of UTF-8."""
LENGTH_BYTES = 4
FRAME_MOST = 2**30
OTHERS = 16 * 1024**2
"""What a message may hold besides arguments or results: lines, a traceback, counts."""
PAYLOADS = 4
"""A message may be this many times the largest result, plus `OTHERS`."""
PART = 1 << 18


class Severed(MilepostError):  # noqa: N818 - what happened
    """The other side is gone, or sent what is no message."""


class Place(msgspec.Struct, frozen=True):
    """Where an app is found by a process that imports it anew."""

    module: str
    attribute: str
    main_name: str | None = None
    """The module that was run as the program, where the app is in it."""
    main_path: str | None = None


class Begin(msgspec.Struct, frozen=True, tag=True):
    """How to import the app as the worker did."""

    place: Place
    argv: list[str]
    address: str
    """The store's address, with its password: it crosses the pipe alone."""
    logging: tuple[str, str] | None
    """The level and the format of lines, where a command writes them."""
    max_payload: int
    """How many bytes the result of a job may have."""

    def __repr__(self) -> str:
        return f"<how {self.place.module}:{self.place.attribute} is imported>"


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process can take attempts, and holds this many bytes."""

    held: int


class Broken(msgspec.Struct, frozen=True, tag=True):
    """The process cannot take attempts: the import failed."""

    message: str


class Attempt(msgspec.Struct, frozen=True, tag=True):
    """An attempt to run."""

    number: int
    claim: Claim
    caller: Caller
    hooked: tuple[str, ...] = ()
    """The points where the worker has hooks."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """The attempt should stop."""

    number: int
    reason: str


class Report(msgspec.Struct, frozen=True, tag=True):
    """What an attempt has told since the last report."""

    number: int
    progress: tuple[float, str | None] | None = None
    lines: tuple[LogLine, ...] = ()
    usage: dict[str, float] | None = None


class Done(msgspec.Struct, frozen=True, tag=True):
    """The outcome of an attempt."""

    number: int
    outcome: Outcome
    report: Report
    held: int = 0
    """How many bytes the process holds now."""
    left: bool = False
    """Whether the attempt has left behind what the next one would run into."""


class HookBegin(msgspec.Struct, frozen=True, tag=True):
    """An operation of the attempt begins, which hooks are to see; it waits for them."""

    number: int
    inside: int
    """The operation that it is a part of; 0: the attempt itself."""
    event: dict[str, Any]


class HookBegun(msgspec.Struct, frozen=True, tag=True):
    """The hooks have begun, and this is the caller from now on."""

    number: int
    caller: Caller


class HookEnd(msgspec.Struct, frozen=True, tag=True):
    """The operation has ended."""

    number: int
    seconds: float
    told: dict[str, Any]
    error: tuple[str, str] | None = None
    """The class and the text of an error that it raised."""


Message = Begin | Ready | Broken | Attempt | Stop | Report | Done | HookBegin | HookBegun | HookEnd
Told = Report | Done | HookBegin | HookEnd
"""What comes from an attempt."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Message)


class Pipe:
    """One end; one thread reads, any may write.

    Where `until` is readable the other side is gone: a process that a handler has forked from this
    one may hold a copy of its end, and keep it open.
    """

    _most: ClassVar[int] = FRAME_MOST
    _payload: ClassVar[int] = 0

    @classmethod
    def bound(cls, payload: int) -> None:
        """Refuse messages that are larger than any with such a result; several apps may say so.

        A worker does: what it reads may have been written by a handler.
        """
        cls._payload = max(cls._payload, payload)
        cls._most = min(FRAME_MOST, OTHERS + PAYLOADS * cls._payload)

    def __init__(self, connection: socket.socket, until: int | None = None) -> None:
        self._socket = connection
        self._waiting: Any = None
        self.seconds: float | None = None
        """How long a read waits; None: as long as it takes."""
        if until is not None:
            self._waiting = select.poll()
            for descriptor in (connection.fileno(), until):
                self._waiting.register(descriptor, select.POLLIN)
        self._buffer = bytearray()
        self._writing = threading.Lock()
        self._identity = identity(connection.fileno())
        self._process = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process opened it: one that a handler has forked is not heard."""
        return os.getpid() == self._process

    @property
    def is_severed(self) -> bool:
        """Whether the other side is gone, whatever it has sent before."""
        hung_up = select.poll()
        hung_up.register(self._socket.fileno(), 0)
        return bool(hung_up.poll(0))

    def send(self, message: Message, *, blocking: bool = True) -> bool:
        """Write a message; without `blocking` False if that would wait for another to be written.

        Raises `Severed` if the other side is gone.
        """
        if not self.is_own:
            return True  # a handler has forked: what its child tells, nobody asked for
        data = _encoder.encode(message)
        if not self._writing.acquire(blocking=blocking):
            return False
        try:
            # A handler may have closed everything, and opened a file of its own under this number.
            if identity(self._socket.fileno()) != self._identity:
                raise Severed("the connection was closed here")
            self._socket.sendall(MARK + len(data).to_bytes(LENGTH_BYTES, "big") + data)
        except OSError as error:
            raise Severed(f"the connection is closed: {error}") from error
        finally:
            self._writing.release()
        return True

    def read(self) -> Message:
        """Read a message, or raise `Severed`."""
        if self._exactly(len(MARK)) != MARK:
            raise Severed("what came over the connection is no message")
        length = int.from_bytes(self._exactly(LENGTH_BYTES), "big")
        if length > self._most:
            raise Severed(f"what came over the connection is no message: {length:,} bytes long")
        try:
            message: Message = _decoder.decode(self._exactly(length))
        except msgspec.MsgspecError as error:
            raise Severed(f"what came over the connection is no message: {error}") from error
        return message

    def _exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._wait()
            try:
                part = self._socket.recv(PART)
            except OSError as error:
                raise Severed(f"the connection is closed: {error}") from error
            if not part:
                raise Severed("the connection is closed")
            self._buffer += part
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    def _wait(self) -> None:
        if self._waiting is None:
            return
        milliseconds = None if self.seconds is None else self.seconds * 1000
        ready = [descriptor for descriptor, _ in self._waiting.poll(milliseconds)]
        if self._socket.fileno() not in ready:
            raise Severed("the other side is gone" if ready else "nothing was heard in time")

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def identity(descriptor: int) -> Any:
    """Tell which file a descriptor is; None: none."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
