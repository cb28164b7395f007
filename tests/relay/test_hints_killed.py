"""A broker is killed while two workers drain its queue: every job ends, and runs once.

The full proof kills it ten times during 5,000 jobs, and wipes it once; every day a tenth.
"""

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hint_worker import program

from milepost.observe.verify import verify
from tests.support.brokers import NatsServer, RedisServer, ValkeyServer
from tests.support.prove import PROVING, size
from tests.support.rabbitmq import RabbitMQServer

PROGRAM = Path(__file__).parent / "hint_worker.py"
JOBS, KILLS = size(5_000), size(10)
SERVERS = [NatsServer, RedisServer, ValkeyServer, RabbitMQServer] if PROVING else [NatsServer]
AWAY_SECONDS = {"amqp": "60"}
"""RabbitMQ starts in seconds: workers that scanned would have drained the queue by then."""
LONGEST_SECONDS = 540


@pytest.fixture(params=SERVERS, ids=lambda kind: kind.scheme)
def server(request, tmp_path):
    """A broker of the test's own."""
    if (missing := request.param.missing()) is not None:
        pytest.skip(missing)
    made = request.param(tmp_path / "broker")
    made.start()
    yield made
    made.stop()


@pytest.mark.prove
@pytest.mark.timeout(600)
def test_every_job_ends_and_runs_once_however_often_the_broker_dies(
    database, raw, server, tmp_path
):
    effects = tmp_path / "effects"
    given = [database.url, server.url, str(effects), AWAY_SECONDS.get(server.scheme, "1")]
    app, work = program(*given)
    work.submit_many([(number,) for number in range(JOBS)])
    app.close()
    assert raw.value("SELECT count(*) FROM job WHERE state = 'READY'") == JOBS
    command = [sys.executable, str(PROGRAM), *given]
    workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    killed, until = 0, time.monotonic() + LONGEST_SECONDS
    try:
        while (done := ended(raw)) < JOBS:
            assert time.monotonic() < until, f"{done} of {JOBS} after {killed} kills"
            if killed < KILLS and done >= (killed + 1) * JOBS // (KILLS + 2):
                server.restart()
                killed += 1
            elif killed == KILLS and PROVING:
                server.wipe()
                killed += 1
            time.sleep(0.02)  # another look at what other processes have done
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait(60) for worker in workers]

    assert codes == [0, 0]
    assert killed == KILLS + PROVING
    ran = Counter(map(int, effects.read_text().split()))
    assert ran == dict.fromkeys(range(JOBS), 1)
    told = raw.value("SELECT count(*) FROM journal WHERE move = 'dispatch'")
    print(f"{JOBS} jobs, {server.scheme} killed {killed} times: {told} dispatched")
    with database.driver() as driver:
        assert verify(driver).clean


def ended(raw) -> int:
    return raw.value("SELECT count(*) FROM job WHERE state = 'SUCCEEDED'")
