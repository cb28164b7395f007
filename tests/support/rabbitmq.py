"""A real RabbitMQ for tests: it takes seconds to start, so all runners of a session share one."""

import asyncio
import fcntl
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import aio_pika
import msgspec

from tests.support.brokers import PASSWORD, USER, BrokerServer, free_port
from tests.support.proxy import Network, Proxy, proxy

__all__ = ["DistantRabbitMQ", "RabbitMQServer", "SharedRabbitMQ", "distant", "private"]

HOMES = Path("/usr/lib/rabbitmq/lib")
LARGEST_BYTES = 1024 * 1024
READY_SECONDS = 200
QUEUE = re.compile(r"friendly_name => \"queue '(.+?)' in vhost")


class Place(msgspec.Struct):
    """Where a server is: what another process must know of it."""

    port: int = 0
    nodes_port: int = 0
    names_port: int = 0
    pids: list[int] = []


class RabbitMQServer(BrokerServer):
    """Debian's rabbitmq-server, without plugins, and the name server that Erlang wants beside it.

    Its folder says where it runs: whoever has the folder may use, kill and restart it.
    """

    scheme = "amqp"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "data")
        self._file = folder / "place.json"
        folder.mkdir(parents=True, exist_ok=True)
        self._place = Place(self.port, free_port(), free_port())
        if self._file.exists():
            self._place = msgspec.json.decode(self._file.read_bytes(), type=Place)
            self.port = self._place.port

    @classmethod
    def missing(cls) -> str | None:
        """Say what must be installed for it, if it is not."""
        if _home().name and shutil.which("epmd"):
            return None
        return "rabbitmq-server is not installed: apt install rabbitmq-server"

    @property
    def log(self) -> Path:
        """Where it says what it does."""
        return self._file.with_name("rabbitmq.log")

    @property
    def is_running(self) -> bool:
        """Tell whether it was started, not stopped, and has not ended by itself."""
        return bool(self._place.pids) and not any(map(_is_gone, self._place.pids))

    def command(self) -> Sequence[str]:
        """Give the command that starts it."""
        return [str(_home() / "sbin" / "rabbitmq-server")]

    def environment(self) -> Mapping[str, str]:
        """Give the environment that it runs in: nothing of this machine's."""
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "messages"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_LOGS": str(self.log),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_PLUGINS_DIR": str(_home() / "plugins"),
            "RABBITMQ_NODENAME": "milepost@localhost",
            "RABBITMQ_DIST_PORT": str(self._place.nodes_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{loopback} +sbwt none +S 2:2",
            "ERL_EPMD_PORT": str(self._place.names_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RUNNING_UNDER_SYSTEMD": "1",  # no shell between it and whoever stops it
        }

    def is_ready(self) -> bool:
        """Tell whether it begins to talk AMQP."""
        return self.answers(b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00")

    def start(self) -> None:
        """Start, and wait until it takes connections; nothing is done if it runs."""
        if self.is_running:
            return
        self.stop(signal.SIGKILL)  # what is left of one that ended by itself
        self._configure()
        names = ["epmd", "-port", str(self._place.names_port), "-address", "127.0.0.1"]
        environment = self.environment()
        self._place.pids = [_spawned(names, environment), _spawned(self.command(), environment)]
        self._keep()
        _guard(self._place.pids)
        until = time.monotonic() + READY_SECONDS
        while not self.is_ready():
            assert time.monotonic() < until, "rabbitmq-server did not start"
            assert not _is_gone(self._place.pids[-1]), "rabbitmq-server ended"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop in good order, or by another signal."""
        pids, self._place.pids = self._place.pids, []
        self._keep()
        for pid in reversed(pids):  # the name server last
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            until = time.monotonic() + READY_SECONDS
            while not _is_gone(pid):
                assert time.monotonic() < until, "rabbitmq-server did not stop"
                time.sleep(0.005)

    def kill(self) -> None:
        """Stop as a crash would, once the queues are known on disk.

        Debian's 3.10 writes down a quorum queue's name a second after it has made the queue: a
        crash in between loses the queue, and its name is of no more use.
        """
        until = time.monotonic() + READY_SECONDS
        while not self._queues_are_known():
            assert time.monotonic() < until, "rabbitmq-server writes down no queues"
            time.sleep(0.05)
        self.stop(signal.SIGKILL)

    def _queues_are_known(self) -> bool:
        for names in self.folder.glob("messages/*/quorum/*/names.dets"):
            known = names.read_bytes()
            found = [place for place in names.parent.iterdir() if place.is_dir()]
            return all(place.name.encode() in known for place in found)
        return True

    def queues(self) -> list[str]:
        """Name its quorum queues, as they are written down."""
        configured = self.folder.glob("messages/*/quorum/*/*/config")
        return [name for file in configured for name in QUEUE.findall(file.read_text())]

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let it keep its connections, and answer nobody."""
        os.kill(self._place.pids[-1], signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._place.pids[-1], signal.SIGCONT)

    def _keep(self) -> None:
        self._file.write_bytes(msgspec.json.encode(self._place))

    def _configure(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"default_user = {USER}\n"
            f"default_pass = {PASSWORD}\n"
            f"max_message_size = {LARGEST_BYTES}\n"
        )


@contextmanager
def private(folder: Path) -> Iterator[RabbitMQServer]:
    """Run a server that may be killed.

    Debian's 3.10 comes back from a crash with queues that nobody can consume, if it made or removed
    some just before, and then serves nobody else.
    """
    server = RabbitMQServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop(signal.SIGKILL)


class SharedRabbitMQ:
    """One server for all runners of a session: the first that needs it starts it, the last stops.

    Locks on files say who uses it, so that a runner that dies holds up nobody.
    """

    def __init__(self) -> None:
        session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
        self._folder = Path(tempfile.gettempdir()) / f"milepost-rabbitmq-{session}"
        self._users: int | None = None

    @contextmanager
    def lent(self, *, alone: bool = False) -> Iterator[RabbitMQServer]:
        """Lend it; `alone` to whoever empties it. Whoever kills one needs a `private` one."""
        while self._users is None:
            self._users = self._used()
        lock = self._locked("lock", fcntl.LOCK_EX)
        try:
            server = RabbitMQServer(self._folder)
            server.start()
            if not alone:
                fcntl.flock(lock, fcntl.LOCK_SH)
            yield server
        finally:
            os.close(lock)

    def close(self) -> None:
        """Stop it, unless another runner uses it."""
        if self._users is None:
            return
        with suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            RabbitMQServer(self._folder).stop(signal.SIGKILL)
            shutil.rmtree(self._folder, ignore_errors=True)  # another runner may begin to use it
        os.close(self._users)
        self._users = None

    def tail(self) -> str:
        """Give the last that it said, for whoever wonders why a test failed."""
        log = RabbitMQServer(self._folder).log
        return log.read_text(errors="replace")[-4000:] if self._users and log.exists() else ""

    def _used(self) -> int | None:
        """Say that this runner uses it; None if whoever stopped it took the folder away."""
        self._folder.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            users = self._locked("users", fcntl.LOCK_SH)
            if os.fstat(users).st_nlink:
                return users
            os.close(users)
        return None

    def _locked(self, name: str, how: int) -> int:
        opened = os.open(self._folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(opened, how)
        return opened


class DistantRabbitMQ:
    """A server behind a network that fails: for its clients the same as its death, and faster."""

    def __init__(self, server: RabbitMQServer, network: Proxy) -> None:
        self._server = server
        self._network = network
        self.url = server.url.replace(f":{server.port}", f":{network.port}")

    def is_ready(self) -> bool:
        """Tell whether it can be reached."""
        return self._network.mode == Network.PASS

    def kill(self) -> None:
        """Break every connection off, and let nobody in."""
        self._network.mode = Network.REFUSE
        self._network.reset()

    def start(self) -> None:
        """Let everybody in again."""
        self._network.mode = Network.PASS

    def wipe(self) -> None:
        """Be away, and come back with nothing; whoever does this must have it alone."""
        self.kill()
        asyncio.run(_empty(self._server.url, self._server.queues()))
        self.start()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Keep connections, and carry nothing."""
        self._network.mode = Network.SWALLOW
        yield
        self.start()


@contextmanager
def distant(server: RabbitMQServer) -> Iterator[DistantRabbitMQ]:
    """Put a network before a server."""
    with proxy(("127.0.0.1", server.port)) as network:
        yield DistantRabbitMQ(server, network)


async def _empty(url: str, queues: Sequence[str]) -> None:
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        for queue in queues:
            await channel.queue_delete(queue)


def _home() -> Path:
    """Find the newest server that is installed."""
    return max(HOMES.glob("rabbitmq_server-*"), default=Path())


def _spawned(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start a program that no runner waits for: another than its parent may end it."""
    program = shutil.which(command[0])
    assert program, command[0]
    nowhere = [(os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_RDWR, 0) for place in (0, 1, 2)]
    return os.posix_spawn(
        program, list(command), dict(environment), file_actions=nowhere, setpgroup=0
    )


def _guard(pids: Sequence[int]) -> None:
    """End these processes when the session is gone: a session that is killed cannot."""
    session = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    numbers = " ".join(map(str, pids))
    loop = f"while kill -0 {session} && kill -0 {numbers}; do sleep 1; done; kill -9 {numbers}"
    _spawned(["sh", "-c", loop], os.environ)


def _is_gone(pid: int) -> bool:
    """Tell whether a process has ended, whoever is to hear of it."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    gone = status.rpartition(")")[2].split()[0] == "Z"
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return gone
