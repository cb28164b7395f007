"""H-90: one login for all workers, and a call that was refused is repeated."""

import asyncio

import pytest
from diamond_shop import OPTIONS, T0, Shop, go, held, offered

import milepost as mp
from milepost.ingest.calls import Calls
from milepost.ingest.source import Partition, Window
from milepost.store import budgets

pytestmark = pytest.mark.in_turn


class RefusedError(Exception):
    status_code = 401


class Guarded(Shop):
    """A source whose server knows one session at a time."""

    def __init__(self, server):
        super().__init__(30)
        self.server = server

    def fetch(self, window, partition, cursor):
        if self.session != self.server["valid"]:
            raise RefusedError
        return super().fetch(window, partition, cursor)

    def login(self):
        self.server["logins"] += 1
        self.server["valid"] = f"session {self.server['logins']}"
        return self.server["valid"]


@pytest.fixture
def server():
    return {"valid": "session 0", "logins": 0}


def ask(app, source, count=1):
    """Call a source as the jobs of a worker of its own would, at once."""

    async def asked():
        calls = Calls(app.client, "guarded", source, None)
        window, partition = Window(None, T0), Partition(0, 0)
        return await asyncio.gather(
            *(calls.remote(source.fetch, window, partition, None) for _ in range(count))
        )

    async def closed():
        try:
            return await asked()
        finally:
            await app.client.close_async()

    return asyncio.run(closed())


def test_h_90_a_worker_uses_the_login_of_another(app, server):
    first, second = Guarded(server), Guarded(server)
    ask(app, first, count=5)
    ask(app, second, count=5)
    assert (server["logins"], second.session) == (1, "session 1")


def test_h_90_a_session_that_expired_is_renewed_once_by_whoever_notices(app, server):
    first, second, third = (Guarded(server) for _ in range(3))
    ask(app, first)
    server["valid"] = "none of them"
    ask(app, second, count=5)  # what is stored is old too
    ask(app, third)
    ask(app, first)
    assert server["logins"] == 2
    assert {first.session, second.session, third.session} == {"session 2"}


def test_h_90_who_is_refused_with_a_new_login_fails(app, server):
    source = Guarded(server)
    source.login = lambda: "wrong"
    with pytest.raises(RefusedError):
        ask(app, source)


def test_h_90_while_one_logs_in_the_others_wait_and_take_over_if_it_dies(app, advance):
    looks = [app.client.run(budgets.look_for_login, "s", seen=0, lease_seconds=30) for _ in "12"]
    assert [look.is_ours for look in looks] == [True, False]
    advance(31)
    late = app.client.run(budgets.look_for_login, "s", seen=0, lease_seconds=30)
    assert late.is_ours
    assert app.client.run(budgets.give_login, "s", seen=0, session=b"1") == 1
    assert app.client.run(budgets.give_login, "s", seen=0, session=b"2") == 1
    found = app.client.run(budgets.look_for_login, "s", seen=0, lease_seconds=30)
    assert (found.number, bytes(found.session), found.is_ours) == (1, b"1", False)


def test_h_90_a_whole_run_needs_one_login(app, server):
    source = Guarded(server)
    pipeline = app.pipeline("guarded", source, **OPTIONS, retries=0)
    assert go(app, pipeline.start()).state == mp.RunState.SUCCEEDED
    assert (server["logins"], held(pipeline)) == (1, offered(source))


class Away(Guarded):
    """A source whose login fails so many times."""

    def __init__(self, server, failures):
        super().__init__(server)
        self.failures = failures

    def login(self):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no login today")
        return super().login()


def test_h_90_a_login_that_fails_is_told_and_the_next_may_try_at_once(app, server):
    with pytest.raises(ConnectionError, match="no login today"):
        ask(app, Away(server, 1))
    found = app.client.run(budgets.look_for_login, "guarded", seen=0, lease_seconds=30)
    assert found.is_ours
    app.client.run(budgets.leave_login, "guarded", until=found.until)
    other = Guarded(server)
    ask(app, other)
    assert (server["logins"], other.session) == (1, "session 1")


def test_h_90_who_steps_back_late_leaves_anothers_turn_alone(app, advance):
    first = app.client.run(budgets.look_for_login, "s", seen=0, lease_seconds=30)
    advance(31)
    second = app.client.run(budgets.look_for_login, "s", seen=0, lease_seconds=30)
    assert second.is_ours
    app.client.run(budgets.leave_login, "s", until=first.until)
    assert not app.client.run(budgets.look_for_login, "s", seen=0, lease_seconds=30).is_ours
