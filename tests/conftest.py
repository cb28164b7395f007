"""Fixtures: a fresh store on every database at hand, an app on it, and its clock in hand."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import settings

# Before pydantic is imported, here and in programs that tests start: Logfire, which is there for
# one recipe, would be loaded with the first model of each.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"

# Before anything imports it: a failing assertion of the suite then shows its values.
pytest.register_assert_rewrite("tests.support.suite")

import milepost as mp  # noqa: E402
from milepost.store import workers  # noqa: E402
from tests.support.brokers import (  # noqa: E402
    BrokerServer,
    NatsServer,
    RedisServer,
    ValkeyServer,
)
from tests.support.databases import Backends, Database, Raw, everyday_names  # noqa: E402
from tests.support.order import in_order  # noqa: E402
from tests.support.prove import PROVING  # noqa: E402
from tests.support.rabbitmq import RabbitMQServer, SharedRabbitMQ  # noqa: E402
from tests.support.servers import scratch  # noqa: E402
from tests.support.turns import take_turns  # noqa: E402

# Every day the same examples, so that what fails fails for everybody; new ones when proving.
settings.register_profile(
    "milepost", derandomize=not PROVING, deadline=None, max_examples=100 if PROVING else 40
)
settings.load_profile("milepost")

BROKERS: dict[str, type[BrokerServer]] = {
    "nats": NatsServer,
    "redis": RedisServer,
    "valkey": ValkeyServer,
}


RABBITMQ = pytest.StashKey[SharedRabbitMQ]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep in memory what tests write, and the programs they start: nobody waits for a disk.

    Runners and programs inherit it. Proofs write to the disk.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell's background job: programs that tests start would never hear of a Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if PROVING or hasattr(config, "workerinput"):
        return
    folder = scratch("milepost-tmp-")
    folder.chmod(0o755)  # servers that are started as somebody else must reach their files
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # so that it is looked up anew


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage meanwhile: modules and tests stay, and there are ever more of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Leave out what has its turn elsewhere; what remains is put in order when all have chosen."""
    take_turns(config, items)
    done = yield
    items[:] = in_order(items, getattr(config, "workerinput", {}).get("workercount", 1))
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what RabbitMQ said, as its folder goes at the end."""
    report = yield
    shared = item.config.stash.get(RABBITMQ, None)
    if report.failed and shared and "rabbitmq" in item.nodeid:
        report.sections.append(("RabbitMQ", shared.tail()))
    return report


@pytest.fixture(scope="session")
def backends() -> Iterator[Backends]:
    """Every database at hand; servers start when first asked for."""
    folder = scratch("milepost-stores-")
    made = Backends(folder)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def rabbitmq_servers(pytestconfig: pytest.Config) -> Iterator[SharedRabbitMQ]:
    """The RabbitMQ of this session, which is started when it is first lent."""
    if missing := RabbitMQServer.missing():
        pytest.skip(missing)
    shared = pytestconfig.stash[RABBITMQ] = SharedRabbitMQ()
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def broker_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BrokerServer]]:
    """The servers that tests of this runner have started, by their names."""
    started: dict[str, BrokerServer] = {}
    yield started
    for server in started.values():
        server.kill()


@pytest.fixture(params=[*BROKERS, "rabbitmq"])
def broker_server(
    request: pytest.FixtureRequest,
    broker_servers: dict[str, BrokerServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[BrokerServer]:
    """A server of each broker in turn, which tests of one runner share: nobody kills it."""
    name = request.param
    if name == "rabbitmq":
        with request.getfixturevalue("rabbitmq_servers").lent(alone=False) as server:
            yield server
        return
    if missing := BROKERS[name].missing():
        pytest.skip(missing)
    if name not in broker_servers:
        broker_servers[name] = BROKERS[name](tmp_path_factory.mktemp(name) / "data")
        broker_servers[name].start()
    yield broker_servers[name]


@pytest.fixture(params=everyday_names())
def database(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Database]:
    """A migrated, empty store, on each database in turn."""
    made = backends.take(request.param)
    yield made
    backends.give_back(made)


@pytest.fixture
def raw(database: Database) -> Iterator[Raw]:
    """A raw connection to that store: what a person at a SQL prompt has."""
    with database.raw() as connection:
        yield connection


@pytest.fixture
def app(database: Database) -> Iterator[mp.App]:
    """An app on a fresh store, on each database in turn."""
    made = mp.App(database.url)
    yield made
    made.close()


@pytest.fixture
def advance(app: mp.App) -> Callable[[float], None]:
    """Move the clock that decides."""
    return lambda seconds: app.client.run(workers.advance_clock, seconds)
