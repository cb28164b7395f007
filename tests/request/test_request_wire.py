"""What goes over the wire: limits, redirects, credentials, reuse; and what is written down."""

import contextlib
import gzip
import json
import socket
import threading
import zlib

import pytest
from remote import Remote, Says

import milepost as mp

SECRET = "hunter2-and-more"


def ended(app, job):
    app.drain()
    return job.refresh()


def everything(app, job):
    """Everything that is kept of a job and shown to people."""
    told = [entry.detail or "" for entry in job.history]
    return "\n".join([*told, repr(job.error), repr(job.explain())])


def test_redirects_are_followed_as_far_as_asked_and_no_further(small, remote):
    hop = Says(307, headers={"location": "/next"})
    remote.answers = [hop, hop, Says(json=1)]
    job = ended(small, small.request("POST", remote.url, json={"a": 1}, redirects=2))
    assert job.result == 1
    assert [(a.method, a.path, a.body) for a in remote.asked] == [
        ("POST", "/", b'{"a":1}'),
        ("POST", "/next", b'{"a":1}'),
        ("POST", "/next", b'{"a":1}'),
    ]
    remote.answers = [hop]
    job = ended(small, small.request("POST", remote.url, redirects=1))
    assert job.error.code == "http_307"


def test_a_303_is_looked_up_with_get(small, remote):
    remote.answers = [Says(303, headers={"location": "/done"}), Says(json=1)]
    job = ended(small, small.request("POST", remote.url, json={"a": 1}, redirects=1))
    assert job.result == 1
    assert (remote.asked[1].method, remote.asked[1].body) == ("GET", b"")
    assert "content-type" not in remote.asked[1].headers


def test_h94_each_hop_is_judged(small, remote):
    remote.answers = [Says(302, headers={"location": f"http://127.0.0.2:{remote.port}/"})]
    job = ended(small, small.request("GET", remote.url, redirects=5))
    assert (job.state, job.error.code) == ("FAILED", "guarded")
    assert len(remote.asked) == 1


@pytest.mark.parametrize("way", ["redirect", "poll"])
def test_credentials_stay_with_their_origin(tmp_path, remote, way):
    with Remote() as other:
        allow = f"127.0.0.1:{remote.port}, 127.0.0.1:{other.port}"
        app = mp.App(f"sqlite:///{tmp_path}/a.db", request_allow=allow)
        elsewhere = f"{other.url}/there"
        remote.answers = [Says(307, headers={"location": elsewhere})]
        rules = None
        if way == "poll":
            remote.answers = [Says(202, headers={"location": elsewhere})]
            rules = mp.Reply(poll=mp.Poll(url="Location", every=0))
        headers = {"Authorization": f"Bearer {SECRET}", "Cookie": SECRET, "X-Api-Key": SECRET}
        headers["X-Plain"] = "plain"
        job = app.request("GET", remote.url, headers=headers, redirects=1, reply=rules)
        app.drain(timeout=5)
        assert job.refresh().state == "SUCCEEDED"
        assert remote.asked[0].headers["authorization"] == f"Bearer {SECRET}"
        [there] = other.asked
        assert there.headers["x-plain"] == "plain"
        assert SECRET not in repr(there.headers)
        app.close()


def test_a_reply_that_is_too_large_is_not_read_to_its_end(tmp_path, remote):
    app = mp.App(f"sqlite:///{tmp_path}/a.db", request_allow="127.0.0.1", max_payload=10_000)
    remote.answers = [Says(body=b"x" * 10_001)]
    job = ended(app, app.request("GET", remote.url))
    assert (job.state, job.error.code) == ("FAILED", "too_large")

    # A small packet that unpacks into a large one.
    packed = gzip.compress(b"\0" * 5_000_000)
    assert len(packed) < 10_000
    remote.answers = [Says(body=packed, headers={"content-encoding": "gzip"})]
    job = ended(app, app.request("GET", remote.url))
    assert (job.state, job.error.code) == ("FAILED", "too_large")
    app.close()


def test_no_more_is_unpacked_than_there_is_room_for():
    """A bomb is noticed before it has gone off, and not after."""
    from milepost.request import wire

    packed = gzip.compress(b"\0" * 50_000_000)
    assert len(wire._unpacker("gzip").unpacked(packed, 1_000)) == 1_000
    # Nor than that of all members together.
    members = gzip.compress(b"\0" * 600) * 50
    assert len(wire._unpacker("gzip").unpacked(members, 1_000)) == 1_000


def test_a_packed_reply_is_unpacked(small, remote):
    packed = gzip.compress(b'{"a": 1}')
    told = {"content-encoding": "gzip", "content-type": "application/json"}
    remote.answers = [Says(body=packed, headers=told)]
    assert ended(small, small.request("GET", remote.url)).result == {"a": 1}
    remote.answers = [Says(body=b"nonsense", headers=told)]
    assert ended(small, small.request("GET", remote.url)).error.code == "malformed"


PACKED = {"gzip": gzip.compress, "deflate": zlib.compress}


@pytest.mark.parametrize("encoding", PACKED)
@pytest.mark.parametrize("lost", [1, 8, 12, 3_000])
def test_a_packed_reply_that_was_cut_short_is_malformed(small, remote, encoding, lost):
    text = "".join(f"line {n}\n" for n in range(2_000)).encode()
    packed = PACKED[encoding](text)
    remote.answers = [Says(body=packed[:-lost], headers={"content-encoding": encoding})]
    job = ended(small, small.request("GET", remote.url))
    assert (job.state, job.error.code) == ("FAILED", "malformed")
    assert "cut short" in job.error.message


def test_every_member_of_a_packed_reply_is_read(small, remote):
    """Members may be padded with zeros, as tape writers do."""
    told = {"content-encoding": "gzip"}
    packed = gzip.compress(b"one, ") + gzip.compress(b"") + gzip.compress(b"two") + b"\0" * 7
    remote.answers = [Says(body=packed, headers=told)]
    assert ended(small, small.request("GET", remote.url)).result == "one, two"

    remote.answers = [Says(body=packed[:-17], headers=told)]  # within the last member
    assert ended(small, small.request("GET", remote.url)).error.code == "malformed"

    remote.answers = [Says(body=gzip.compress(b"one") + b"nonsense", headers=told)]
    assert ended(small, small.request("GET", remote.url)).error.code == "malformed"
    remote.answers = [Says(body=b"", headers=told)]
    assert ended(small, small.request("GET", remote.url)).result is None


def test_members_are_read_wherever_the_wire_divides_them():
    from milepost.request import wire

    packed = gzip.compress(b"one, ") + gzip.compress(b"two")
    unpacker = wire._unpacker("gzip")
    text = b"".join(unpacker.unpacked(packed[at : at + 1], 100) for at in range(len(packed)))
    unpacker.finish()
    assert text == b"one, two"


def test_a_packed_reply_of_nothing_at_all_ends_at_the_limit(tmp_path, remote):
    """Empty members unpack to nothing, however many there are."""
    app = mp.App(f"sqlite:///{tmp_path}/a.db", request_allow="127.0.0.1", max_payload=10_000)
    chunked = {"content-encoding": "gzip", "transfer-encoding": "chunked"}
    endless = gzip.compress(b"") * 1_000
    body = f"{len(endless):x}\r\n".encode() + endless + b"\r\n0\r\n\r\n"
    remote.answers = [Says(body=body, headers=chunked)]
    job = ended(app, app.request("GET", remote.url))
    assert (job.state, job.error.code) == ("FAILED", "too_large")
    app.close()


def test_each_part_has_a_timeout(small, remote):
    release = threading.Event()

    def slow(_):
        release.wait(10)
        return Says()

    remote.answers = [slow]
    job = small.request("GET", remote.url, timeout={"read": 0.05}, retries=0)
    job = ended(small, job)
    release.set()
    assert (job.state, job.error.type) == ("FAILED", "NoAnswer")
    assert "ReadTimeout" in job.error.message


def test_a_drip_feeder_is_ended_by_the_whole(small):
    """Each piece comes in time, and the whole never does."""

    def drip(listening):
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while True:
                connection.sendall(b"x")
                threading.Event().wait(0.02)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        app = mp.App(str(small.client.url), request_allow=f"127.0.0.1:{port}")
        timeout = {"read": 1, "total": 0.2}
        job = app.request("GET", f"http://127.0.0.1:{port}/", timeout=timeout, retries=0)
        assert ended(app, job).error.type == "NoAnswer"
        thread.join(10)
        app.close()


def test_nobody_there_is_tried_again_whatever_the_policy(tmp_path):
    with Remote() as gone:
        url = gone.url
    app = mp.App(f"sqlite:///{tmp_path}/a.db", request_allow="127.0.0.1")
    job = app.request("POST", url, retries=1, retry_delay=0, crash="fail_unknown")
    app.drain(timeout=5)
    job.refresh()
    assert (job.state, job.error.type, job.error.cause) == (
        "FAILED",
        "NotReached",
        "attempts_exhausted",
    )
    app.close()


@pytest.mark.parametrize(
    ("crash", "cause", "sent"), [("resend", None, 2), ("fail_unknown", "outcome_unknown", 1)]
)
def test_h91_an_answer_that_never_came(small, remote, crash, cause, sent):
    remote.answers = [Says(0), Says(json=1)]
    job = small.request("POST", remote.url, crash=crash, retry_delay=0)
    small.drain(timeout=5)
    job.refresh()
    assert job.state == ("SUCCEEDED" if cause is None else "FAILED")
    assert job.record.cause == cause
    assert len(remote.asked) == sent


def test_connections_are_used_again(small, remote):
    seen = []

    def answering(_):
        seen.append(threading.get_ident())  # over there one connection has one thread
        return Says(json=1)

    remote.answers = [answering]
    small.request_limit("127.0.0.1", concurrency=1)
    for _ in range(10):
        small.request("GET", remote.url)
    small.drain()
    assert len(seen) == 10
    assert len(set(seen)) == 1


def test_h97_a_host_is_sent_no_more_at_a_time_than_it_bears(small, remote):
    lock, full, now, most = threading.Lock(), threading.Event(), [0], [0]

    def counted(_):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == 3:
                full.set()
        full.wait(30)  # for as many as it bears, then a while for one too many
        threading.Event().wait(0.01)
        with lock:
            now[0] -= 1
        return Says(json=1)

    remote.answers = [counted]
    small.request_limit("127.0.0.1", concurrency=3)
    jobs = [small.request("GET", remote.url) for _ in range(20)]
    small.drain()
    assert most[0] == 3
    assert {job.refresh().state for job in jobs} == {"SUCCEEDED"}


def test_who_waits_too_long_for_a_host_gives_its_slot_back(small, remote):
    gate = threading.Event()

    def held(_):
        gate.wait(10)
        return Says(json=1)

    remote.answers = [held]
    small.request_limit("127.0.0.1", concurrency=1)
    jobs = [small.request("GET", remote.url, timeout={"pool": 0.05}) for _ in range(2)]
    threading.Timer(0.3, gate.set).start()
    small.drain(timeout=5)
    records = [job.refresh().record for job in jobs]
    assert {record.state for record in records} == {"SUCCEEDED"}
    assert max(record.releases for record in records) >= 1
    assert {record.errors for record in records} == {0}


@pytest.mark.parametrize("rate", ["fast", "0/s", "5/y", "-1/s", ""])
def test_a_rate_that_cannot_be_meant_is_refused(small, rate):
    with pytest.raises(mp.Invalid, match="rate"):
        small.request_limit("a.example", rate=rate)


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "5", 2**31, 10**400])
def test_a_concurrency_that_no_store_holds_is_refused(small, most):
    """From 2^31 on no worker of the program started on PostgreSQL."""
    with pytest.raises(mp.Invalid, match="must be a whole number from 1 to 2,147,483,647"):
        small.request_limit("a.example", concurrency=most)


@pytest.mark.parametrize(
    "host",
    ["http://a.example/", "a.example:8443", "a.example/v1", "*.example", "a b", "u@a.example"],
)
def test_a_limit_of_what_is_no_host_is_refused(small, host):
    """It was kept, and in force for nobody."""
    with pytest.raises(mp.Invalid, match="is no name of a host: leave scheme, port and path out"):
        small.request_limit(host, concurrency=1)
    with pytest.raises(mp.Invalid, match="is no name of a host"):
        small.limits.set(host, scope="host", most=1)
    assert small.limits.list() == []
    assert small.requests.declared == {}


@pytest.mark.parametrize("host", ["*", "a.example", "A.Example.", "bücher.example", "::1", "[::1]"])
def test_a_limit_of_a_host_is_taken_as_it_is_spelled(small, host):
    small.request_limit(host, rate=2.5)
    assert small.limits.set(host, scope="host", most=1).name in small.requests.declared


def test_h105_no_secret_is_written_down(app, remote):
    """By name, and by value: the server repeats everything it was sent."""
    remote.answers = [
        lambda asked: Says(
            404,
            json={"said": asked.headers, "path": asked.path, "password": "other-secret"},
            headers={"Set-Cookie": "session=cookie-secret", "X-Echo": SECRET},
        )
    ]
    job = app.request(
        "POST",
        f"http://user:userinfo-secret@127.0.0.1:{remote.port}/x?api_key={SECRET}-q&page=3",
        headers={"Authorization": f"Bearer {SECRET}", "X-Auth-Token": "token-secret"},
        json={"name": "visible", "client_secret": "body-secret", "deep": [{"passwd": "p-secret"}]},
    )
    job = ended(app, job)
    assert job.state == "FAILED"
    told = everything(app, job)
    for secret in (SECRET, "userinfo-secret", "token-secret", "body-secret", "p-secret"):
        assert secret not in told
    for secret in ("other-secret", "cookie-secret"):
        assert secret not in told
    assert "visible" in told
    assert "page=3" in told
    assert remote.asked[0].headers["authorization"] == f"Bearer {SECRET}"


def test_userinfo_is_sent_as_basic_credentials(small, remote):
    ended(small, small.request("GET", f"http://me:pw@127.0.0.1:{remote.port}/"))
    assert remote.asked[0].headers["authorization"] == "Basic bWU6cHc="


def test_more_names_can_be_kept_secret(tmp_path, remote):
    app = mp.App(
        f"sqlite:///{tmp_path}/a.db", request_allow="127.0.0.1", request_redact="iban, x-internal"
    )
    headers = {"X-Internal": "inner-thing"}
    job = app.request("POST", remote.url, json={"IBAN": "DE00 1234"}, headers=headers)
    told = everything(app, ended(app, job))
    assert "DE00" not in told
    assert "inner-thing" not in told
    app.close()


def test_what_is_written_down_is_capped(tmp_path, remote):
    app = mp.App(f"sqlite:///{tmp_path}/a.db", request_allow="127.0.0.1", request_record="100B")
    remote.answers = [Says(body=("ä" * 500).encode())]
    job = ended(app, app.request("POST", remote.url, content="y" * 500))
    details = [json.loads(e.detail) for e in job.history if e.move == "note"]
    assert (details[0]["cut"], details[0]["bytes"], len(details[0]["text"])) == (True, 500, 100)
    assert (details[2]["cut"], details[2]["bytes"]) == (True, 1000)
    assert job.result == "ä" * 500
    app.close()


def test_bodies_can_be_kept_out_of_the_record(small, remote):
    remote.answers = [Says(json={"patient": "Miller"})]
    job = small.request("POST", remote.url, json={"patient": "Miller"}, record=False)
    job = ended(small, job)
    assert job.result == {"patient": "Miller"}
    assert "Miller" not in everything(small, job)


def test_proxies_of_the_environment_are_not_used(small, remote, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ended(small, small.request("GET", remote.url)).state == "SUCCEEDED"


def test_cookies_of_one_request_are_not_sent_with_another(small, remote):
    remote.answers = [Says(json=1, headers={"Set-Cookie": "a=b; Path=/"})]
    for _ in range(2):
        ended(small, small.request("GET", remote.url))
    assert "cookie" not in remote.asked[1].headers
