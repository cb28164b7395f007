"""librdkafka's own mock cluster: today's protocol, in memory. Writes its port into a file.

Its Python client can start one too, which makes every group wait three seconds for its members.
"""

import ctypes
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

UNKNOWN_TOPIC_OR_PART = 3


def run(file: Path, unknown: str) -> None:
    """Serve until told to end, and have one topic unknown."""
    spec = find_spec("confluent_kafka")
    assert spec is not None
    assert spec.origin is not None
    [library] = (Path(spec.origin).parents[1] / "confluent_kafka.libs").glob("librdkafka*")
    kafka = ctypes.CDLL(str(library))
    for name in ("rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(kafka, name).restype = ctypes.c_void_p
    kafka.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    client = kafka.rd_kafka_new(0, None, None, 0)
    cluster = ctypes.c_void_p(kafka.rd_kafka_mock_cluster_new(ctypes.c_void_p(client), 1))
    kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
    kafka.rd_kafka_mock_topic_set_error(cluster, unknown.encode(), UNKNOWN_TOPIC_OR_PART)
    port = kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode().rpartition(":")[2]
    unfinished = file.with_suffix(".new")
    unfinished.write_text(port)
    unfinished.replace(file)
    signal.pause()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
