"""Secrets by reference (H-94, H-105): the worker puts them in, and nothing else ever holds them."""

import base64
import html
import json
import logging
import string
import time
from pathlib import Path
from urllib.parse import quote, unquote_plus

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from remote import Remote, Says

import milepost as mp
from milepost.request.guard import parse
from milepost.request.secrets import Secrets
from milepost.store import workers
from tests.support.prove import PROVING
from tests.support.serving import served

NAME = "partner-token"
VALUE = "s3cr3t/+ \"q&<'\\-value~"
REFERENCE = "{secret:partner-token}"
RULES = mp.Reply(
    state="$.status", complete=["done"], pending=["working"], failed=["error"], error="$.why"
)


@pytest.fixture(autouse=True)
def value(monkeypatch):
    monkeypatch.setenv("MILEPOST_SECRET_PARTNER_TOKEN", VALUE)
    return VALUE


def opened(url: str, remote: Remote, **more: str) -> mp.App:
    bound = more.pop("request_secrets", f"{NAME}@http://127.0.0.1:{remote.port}")
    return mp.App(url, request_allow="127.0.0.1", request_secrets=bound, **more)


@pytest.fixture
def app(database, remote):
    made = opened(database.url, remote)
    yield made
    made.close()


@pytest.fixture
def small(tmp_path, remote):
    made = opened(f"sqlite:///{tmp_path}/small.db", remote)
    yield made
    made.close()


def stored(database) -> bytes:
    """Everything that the store holds, as bytes."""
    if database.dialect == "sqlite":
        path = Path(database.url.removeprefix("sqlite:///"))
        files = [path, *path.parent.glob(f"{path.name}-*")]
        return b"".join(file.read_bytes() for file in files if not file.name.endswith("-shm"))
    with database.raw() as raw:
        tables = raw.execute(
            "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables"
            " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        )
        rows = [raw.execute(f"SELECT t::text FROM {name} AS t") for (name,) in tables]
    text = "\n".join(row for found in rows for (row,) in found)
    # What stands there as bytes is shown as hexadecimal digits.
    pieces = text.replace("\\\\x", "\\x").split("\\x")
    binary = [bytes.fromhex(_digits(piece)) for piece in pieces[1:]]
    return text.encode() + b"\n".join(binary)


def _digits(piece: str) -> str:
    count = next((i for i, c in enumerate(piece) if c not in string.hexdigits), len(piece))
    return piece[: count - count % 2]


def spellings(value: str) -> list[bytes]:
    escaped = json.dumps(value)[1:-1]
    plain = [value, escaped, json.dumps(escaped)[1:-1], quote(value, safe=""), html.escape(value)]
    packed = base64.b64encode(value.encode()).decode().rstrip("=")[:-1]
    wide = [value.encode("utf-16-le"), value.encode("utf-16-be")]
    return [text.encode() for text in (*plain, packed, value.encode().hex())] + wide


def assert_nowhere(database, value: str = VALUE) -> None:
    held = stored(database)
    assert NAME.encode() in held  # the search does find what is there
    assert [way for way in spellings(value) if way in held] == []


def echo(value: str, way: str) -> Says:
    """Answer as servers do that repeat what they were sent."""
    says = {
        "json": Says(json={"status": "done", "said": f"you sent {value}.", value: [value]}),
        "failed": Says(json={"status": "error", "why": f"{value} is wrong"}),
        "refused": Says(401, json={"message": value}),
        "again": Says(503, body=value.encode()),
        "header": Says(
            json={"status": "done"}, headers={"X-Echo": value, "Link": quote(value, safe="")}
        ),
        "text": Says(body=f"{value} {quote(value)} {html.escape(value)}".encode()),
        "escaped": Says(body="".join(f"\\u{ord(c):04X}" for c in value).encode()),
        "base64": Says(body=base64.b64encode(f"me:{value}:x".encode())),
        "hex": Says(body=value.encode().hex().encode()),
        "wide": Says(
            body=value.encode("utf-16"), headers={"content-type": "text/plain; charset=utf-16"}
        ),
        "octets": Says(
            body=b"\xff\0" + value.encode(), headers={"content-type": "application/octet-stream"}
        ),
        "malformed": Says(json={"status": value}),
        "pending": Says(json={"status": "working", "said": value}),
        "redirect": Says(
            307, headers={"Location": f"/next/{quote(value, safe='')}?k={quote(value)}"}
        ),
        "away": Says(307, headers={"Location": f"http://127.0.0.1:9/?k={quote(value, safe='')}"}),
        "hang up": Says(0),
    }
    return says[way]


WAYS = [
    *("json", "failed", "refused", "again", "header", "text", "escaped", "base64", "hex", "wide"),
    *("octets", "malformed", "pending", "redirect", "away", "hang up"),
]
BASIC = ("wide", "octets", "text", "escaped", "base64", "hex")
PLACES = {
    "header": {"headers": {"X-Key": REFERENCE, "Authorization": f"Bearer {REFERENCE}"}},
    "query": {"path": f"/?key={REFERENCE}&page=3"},
    "path": {"path": f"/{REFERENCE}/items"},
    "userinfo": {"user": f"me:{REFERENCE}@"},
    "json": {"json": {"deep": [{"token": REFERENCE}], "text": f"-{REFERENCE}-"}},
    "form": {
        "content": f"grant=x&client_secret={REFERENCE}",
        "headers": {"Content-Type": "application/x-www-form-urlencoded"},
    },
    "content": {"content": f"plain {REFERENCE} text"},
}


def asked_for(app, remote, place: str, *, way: str = "json", **more):
    given = dict(PLACES[place])
    url = f"http://{given.pop('user', '')}127.0.0.1:{remote.port}{given.pop('path', '/')}"
    reply = None if way in BASIC else RULES
    more["headers"] = {**given.pop("headers", {}), **more.pop("headers", {})}
    more = {"reply": reply, "retries": 1, "retry_delay": 0, "redirects": 2, **more}
    return app.request("POST", url, secrets=[NAME], **given, **more)


def sent(asked, place: str) -> str:
    """What arrived where the secret was meant to be, read as the server would."""
    return {
        "header": lambda: asked.headers["x-key"],
        "query": lambda: unquote_plus(asked.path.partition("key=")[2].partition("&")[0]),
        "path": lambda: unquote_plus(asked.path.split("/")[1]),
        "userinfo": lambda: str(base64.b64decode(asked.headers["authorization"][6:]), "ascii")[3:],
        "json": lambda: asked.json()["deep"][0]["token"],
        "form": lambda: unquote_plus(asked.body.decode().partition("client_secret=")[2]),
        "content": lambda: asked.body.decode()[6:-5],
    }[place]()


def test_h94_the_worker_puts_a_secret_where_its_name_stands(app, database, remote):
    remote.answers = [Says(json={"status": "done"})]
    for place in PLACES:
        job = asked_for(app, remote, place)
        app.drain()
        assert job.refresh().result == {"status": "done"}
        assert sent(remote.asked[-1], place) == VALUE
    assert_nowhere(database)


@pytest.mark.parametrize("place", ["header", "query", "userinfo", "json"])
def test_h94_h105_what_a_server_repeats_is_kept_by_name_alone(app, database, remote, place):
    jobs = {}
    for way in WAYS:
        remote.answers = [echo(VALUE, way)]
        if way == "redirect":
            remote.answers.append(echo(VALUE, "json"))
        jobs[way] = asked_for(app, remote, place, way=way, retries=0, poll=None)
        app.drain()
    bad = ("failed", "refused", "again", "malformed", "away", "hang up")
    for way, job in jobs.items():
        wanted = "WAITING" if way == "pending" else "FAILED" if way in bad else "SUCCEEDED"
        assert (way, job.refresh().state) == (way, wanted)
        shown = repr((job.record, job.history, app.jobs.get(job.id)))
        assert "s3cr3t" not in shown
    assert jobs["json"].result["said"] == f"you sent {REFERENCE}."
    assert REFERENCE in jobs["failed"].error.message
    assert_nowhere(database)


@settings(
    max_examples=300 if PROVING else 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    value=st.text(st.sampled_from(string.printable[:95]), min_size=8, max_size=60).filter(
        lambda text: len(text.strip()) >= 8
    ),
    place=st.sampled_from(sorted(PLACES)),
    way=st.sampled_from([way for way in WAYS if way not in ("again", "hang up")]),
)
def test_h94_no_secret_is_ever_stored(tmp_path_factory, remote, value, place, way):
    """Any value, in any place, repeated in any way."""
    value = value.strip()
    remote.asked.clear()
    remote.answers = [echo(value, way), echo(value, "json")]
    folder = tmp_path_factory.mktemp("any")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILEPOST_SECRET_PARTNER_TOKEN", value)
        app = opened(f"sqlite:///{folder}/any.db", remote)
        asked_for(app, remote, place, way=way, retries=0)
        app.drain()
        app.close()
    assert sent(remote.asked[0], place) == value
    held = b"".join(file.read_bytes() for file in folder.iterdir())
    # Eight characters of nothing but zeros, say, stand in any database.
    if len(set(value)) > 3:
        assert [way for way in spellings(value) if way in held] == []


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:{other}/", "may go to http://127.0.0.1"),
        ("https://127.0.0.1:{port}/", "may go to"),
        ("http://localhost:{port}/", "may go to"),
        ("http://127.0.0.1.evil.example:{port}/", "may go to"),
        ("http://127.0.0.1:{port}@evil.example/", "may go to"),
    ],
)
def test_h94_nobody_has_a_secret_sent_to_a_place_of_their_own(small, remote, url, told):
    place = url.format(port=remote.port, other=remote.port + 1)
    with pytest.raises(mp.Invalid, match=told):
        small.request("GET", place, headers={"X-Key": REFERENCE}, secrets=[NAME])
    assert small.jobs.list() == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"headers": {"X": "{secret:other}"}, "secrets": ["other"]}, "no secret is called 'other'"),
        ({"headers": {"X": REFERENCE}}, "say so by secrets="),
        ({"secrets": [NAME]}, "where it goes"),
        ({"headers": {"X": REFERENCE}, "secrets": "partner-token"}, "a list of names"),
        ({"headers": {"X": REFERENCE}, "secrets": [7]}, "a list of names"),
    ],
)
def test_a_secret_that_could_never_be_sent_is_refused_at_the_door(small, remote, asked, told):
    with pytest.raises(mp.Invalid, match=told):
        small.request("GET", remote.url, **asked)


def test_what_a_body_says_is_not_a_name_unless_it_was_asked_for(small, remote):
    """A text of somebody else's stays what it is."""
    small.request("POST", remote.url, json={"comment": REFERENCE})
    small.drain()
    assert remote.asked[0].json() == {"comment": REFERENCE}


def test_h94_the_worker_has_the_last_word(tmp_path, remote):
    """What was stored by other settings, or by hand, is judged again before it is sent."""
    url = f"sqlite:///{tmp_path}/a.db"
    first = opened(url, remote)
    job = first.request("GET", remote.url, headers={"X-Key": REFERENCE}, secrets=[NAME])
    first.close()
    for bound, told in (("", "no secret is called"), (f"{NAME}@partner.example", "may go to")):
        app = opened(url, remote, request_secrets=bound)
        again = app.jobs.get(job.id)
        again = again if bound == "" else again.rerun()
        app.drain()
        assert (again.refresh().state, again.error.code) == ("FAILED", "secret")
        assert told in again.error.message
        app.close()
    assert remote.asked == []


def test_a_worker_without_the_value_says_so_and_leaves_it_to_others(tmp_path, remote, monkeypatch):
    url = f"sqlite:///{tmp_path}/a.db"
    monkeypatch.delenv("MILEPOST_SECRET_PARTNER_TOKEN")
    app = opened(url, remote)
    job = app.request(
        "GET", remote.url, headers={"X-Key": REFERENCE}, secrets=[NAME], retry_delay=3600
    )
    app.drain()
    assert job.refresh().state == "RETRYING"
    assert "set MILEPOST_SECRET_PARTNER_TOKEN" in str(job.record.error)
    app.close()

    monkeypatch.setenv("MILEPOST_SECRET_PARTNER_TOKEN", VALUE)
    able = opened(url, remote)
    able.client.run(workers.advance_clock, 7200)
    able.drain()
    assert remote.asked[0].headers["x-key"] == VALUE
    able.close()


def came(remote: Remote) -> bytes:
    """Everything that arrived at a server, as it arrived."""
    lines = [[a.path, *a.headers, *a.headers.values(), a.body.decode()] for a in remote.asked]
    return "\n".join(text for found in lines for text in found).encode()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("place", ["header", "json", "query", "userinfo"])
def test_h94_a_redirect_takes_no_secret_to_another_origin(small, remote, status, place):
    with Remote() as other:
        remote.answers = [Says(status, headers={"Location": f"{other.url}/taken"})]
        job = asked_for(small, remote, place, reply=None)
        small.drain()
        assert sent(remote.asked[0], place) == VALUE
        assert [way for way in spellings(VALUE) if way in came(other)] == []
        kept = place == "json" and status in (307, 308)
        assert len(other.asked) == (0 if kept else 1)
        assert job.refresh().state == ("FAILED" if kept else "SUCCEEDED")


def test_where_to_look_is_kept_by_name_and_filled_again(app, database, remote):
    """Partners whose links hold the key: it is put in again, at its own origin alone."""
    rules = mp.Reply(
        state="$.status", complete=["done"], pending=["working"], poll=mp.Poll(url="$.href")
    )
    href = f"/jobs/9?key={quote(VALUE, safe='')}"
    with Remote() as other:
        remote.answers = [
            Says(json={"status": "working", "href": href}),
            Says(json={"status": "working", "href": f"{other.url}{href}"}),
        ]
        job = asked_for(app, remote, "query", reply=rules, poll=30)
        app.drain()
        assert job.refresh().state == "WAITING"
        for _ in range(2):
            app.client.run(workers.advance_clock, 61)
            app.drain()
        assert remote.asked[1].path == href
        [elsewhere] = other.asked
        assert "s3cr3t" not in repr(elsewhere)
        assert [way for way in spellings(VALUE) if way in came(other)] == []
    assert job.refresh().state == "SUCCEEDED"
    assert_nowhere(database)


def test_a_signal_that_repeats_a_secret_gives_its_name(app, remote):
    remote.answers = [Says(json={"status": "working"})]
    job = asked_for(app, remote, "header", poll=None)
    app.drain()
    job.signal({"status": "done", "said": VALUE})
    app.drain()
    assert job.refresh().result == {"status": "done", "said": REFERENCE}


def test_a_reply_function_sees_names(small, remote):
    @small.reply
    def reader(answer):
        return [answer.text, answer.headers["x-echo"]]

    remote.answers = [Says(body=VALUE.encode(), headers={"X-Echo": VALUE})]
    job = asked_for(small, remote, "header", reply=mp.Reply(by="reader"))
    small.drain()
    assert job.refresh().result == [REFERENCE, REFERENCE]


def test_an_error_of_ours_on_the_way_holds_no_secret(app, database, remote, monkeypatch):
    from milepost.request.wire import Wire

    async def broken(_self, outgoing):
        raise LookupError(f"{outgoing.headers} {outgoing.target}")

    monkeypatch.setattr(Wire, "send", broken)
    job = asked_for(app, remote, "header", retries=0)
    app.drain()
    assert job.refresh().state == "FAILED"
    assert REFERENCE in job.error.message
    assert_nowhere(database)


def test_h94_over_http_the_names_are_the_same(app, database, remote):
    """Nor does a partner who calls back and repeats it have it stored."""
    object.__setattr__(app.settings, "public_url", "http://api.example")
    remote.answers = [Says(json={"status": "working"})]
    told = {"method": "POST", "url": remote.url, "secrets": [NAME], "callback": True, "poll": None}
    told |= {"headers": {"X-Key": REFERENCE}, "reply": {"state": "$.status", "complete": ["done"]}}
    told["reply"]["pending"] = ["working"]
    with served(app) as where, httpx2.Client(base_url=where, trust_env=False, timeout=60) as http:
        posted = http.post("/v1/requests", json={**told, "content": "to {callback}"})
        assert posted.status_code == 202, posted.text
        app.drain()
        assert remote.asked[0].headers["x-key"] == VALUE
        address = remote.asked[0].body.decode().removeprefix("to http://api.example")
        assert http.post(address, json={"status": "done", "said": VALUE}).status_code == 202
        app.drain()
        shown = http.get(posted.headers["location"])
        assert shown.json()["result"] == {"status": "done", "said": REFERENCE}
        foreign = http.post("/v1/requests", json={**told, "url": "https://evil.example/"})
        assert foreign.status_code == 422
        assert "may go to" in foreign.json()["detail"]
    assert_nowhere(database)


def test_batches_and_their_final_call_take_secrets(app, database, remote):
    key = {"headers": {"X-Key": REFERENCE}, "secrets": [NAME]}
    remote.answers = [lambda asked: Says(json={"said": asked.headers["x-key"]})]
    batch = app.request_batch(
        [("GET", remote.url, key)], final={"method": "POST", "url": remote.url, **key}
    )
    app.drain()
    assert batch.refresh().report == {"said": REFERENCE}
    assert [asked.headers["x-key"] for asked in remote.asked] == [VALUE, VALUE]
    assert_nowhere(database)


def test_a_rerun_and_a_replay_hold_names_too(app, database, remote):
    remote.answers = [lambda asked: Says(json={"status": "done", "said": asked.headers["x-key"]})]
    job = asked_for(app, remote, "header")
    app.drain()
    again, replay = job.refresh().rerun(fresh=True), app.replay(job.id)
    app.drain()
    assert again.refresh().result == replay.refresh().result == job.refresh().result
    assert len(remote.asked) == 2
    assert_nowhere(database)


@pytest.mark.parametrize(
    ("bound", "url", "fits"),
    [
        ("a@partner.example", "https://partner.example/x", True),
        ("a@partner.example", "https://PARTNER.example./x", True),
        ("a@partner.example", "https://partner.example:8443/", False),
        ("a@partner.example", "http://partner.example/", False),
        ("a@partner.example", "https://sub.partner.example/", False),
        ("a@partner.example", "https://partner.example.evil.example/", False),
        ("a@*.partner.example", "https://sub.partner.example/", True),
        ("a@*.partner.example", "https://partner.example/", False),
        ("a@*.partner.example", "https://evilpartner.example/", False),
        ("a@partner.example:8443", "https://partner.example:8443/", True),
        ("a@http://partner.example", "http://partner.example/", True),
        ("a@http://partner.example", "https://partner.example/", False),
        ("a@https://[2001:4860::8]:8443/", "https://[2001:4860:0::8]:8443/", True),
        ("a@one.example, a@two.example", "https://two.example/", True),
    ],
)
def test_where_a_secret_may_go(bound, url, fits):
    known = Secrets.read(bound, {"MILEPOST_SECRET_A": "long-enough"})
    request = mp_request(url)
    if fits:
        assert known.filling(request, parse(url)) is not None
    else:
        with pytest.raises(mp.Invalid, match="may go to"):
            known.filling(request, parse(url))


def mp_request(url):
    from milepost.request.declaration import Request

    return Request(method="GET", url=url, headers={"X": "{secret:a}"}, secrets=["a"])


@pytest.mark.parametrize(
    "bound",
    [
        *("a", "a@", "@host", "A@host", "a_b@host", "a@*", "a@*.", "a@ftp://host", "a@host/path"),
        *("a@user:pw@host", "a@host:0", "a@host:99999", "a@https://"),
    ],
)
def test_bounds_that_cannot_be_meant_are_refused(bound):
    with pytest.raises(mp.Invalid, match="request_secrets"):
        Secrets.read(bound, {})


@pytest.mark.parametrize(
    "value", ["short", "line\nbreaks-here", "nicht-ascii-ä", "with\0zero-byte"]
)
def test_values_that_could_not_be_sent_or_hidden_are_refused_unsaid(value):
    with pytest.raises(mp.Invalid, match="MILEPOST_SECRET_A_B") as caught:
        Secrets.read("a-b@host.example", {"MILEPOST_SECRET_A_B": value})
    assert value not in str(caught.value)
    known = Secrets.read("a@host.example", {"MILEPOST_SECRET_A": "long-enough"})
    assert "long-enough" not in repr(known)


def lines(text: str, length: int, between: str) -> str:
    return between.join(text[at : at + length] for at in range(0, len(text), length))


LONG = "a long value that is wrapped wherever it is spelled in base64: 0123456789 " * 3
DIGITS = VALUE.encode().hex()
FOLDED = {
    "base64 in lines": base64.encodebytes(f"user:{LONG}".encode()).decode(),
    "base64 of a mail": lines(base64.b64encode(LONG.encode()).decode(), 64, "\r\n  "),
    "base64 within JSON": json.dumps(base64.encodebytes(b"x" + LONG.encode()).decode()),
    "base64 as a list": json.dumps(base64.encodebytes(LONG.encode()).decode().splitlines()),
    "base64 in a URL": quote(base64.encodebytes(LONG.encode()), safe=""),
    "base64, URL-safe": lines(base64.urlsafe_b64encode(LONG.encode()).decode(), 19, "\n"),
    "hex with colons": lines(DIGITS, 2, ":"),
    "hex with colons, in lines": lines(lines(DIGITS.upper(), 2, ":"), 48, ":\n    "),
    "hex with spaces": lines(DIGITS, 2, " "),
    "hex with dashes": lines(DIGITS, 8, "-"),
    "hex as C writes it": ", ".join(f"0x{pair}" for pair in lines(DIGITS, 2, " ").split()),
    "escaped twice": quote(quote(VALUE, safe=""), safe=""),
    "escaped as HTML, then as JSON": json.dumps(html.escape(VALUE)),
    "after a stray percent sign": f"100%{VALUE}",
}


@pytest.mark.parametrize("way", FOLDED)
def test_h105_a_secret_is_hidden_however_it_is_folded(way):
    values = {"MILEPOST_SECRET_A": VALUE, "MILEPOST_SECRET_B": LONG}
    known = Secrets.read("a@host.example b@host.example", values)
    hidden = known.hider.content(f"before {FOLDED[way]} after".encode())
    assert b"{secret:" in hidden
    assert hidden.startswith(b"before ")
    assert hidden.endswith(b" after")
    # Hardly anything of it is left: the bits at both ends that others share.
    assert len(hidden) < 60


def test_what_is_no_secret_stays_as_it_is():
    known = Secrets.read("a@host.example", {"MILEPOST_SECRET_A": VALUE})
    for text in (b"", b"\0" * 99, b"%25 &amp; \\u0041 \\n", json.dumps(FOLDED)[:40].encode()):
        assert known.hider.content(text) == text


@pytest.mark.parametrize("named", [True, False])
def test_h105_a_reply_to_a_request_that_names_no_secret_is_scrubbed_too(
    app, database, remote, named
):
    """A partner may tell in any answer what it was sent by another request."""
    said = {"said": VALUE, "as": lines(DIGITS, 2, ":")}
    remote.answers = [Says(json={"status": "done", **said}, headers={"X-Echo": VALUE})]
    more = {"headers": {"X-Key": REFERENCE}, "secrets": [NAME]} if named else {}
    job = app.request("GET", remote.url, **more)
    app.drain()
    assert job.refresh().result == {"status": "done", "said": REFERENCE, "as": REFERENCE}
    remote.answers = [Says(json={"status": "error", "why": VALUE})]
    job = app.request("GET", remote.url, reply=RULES, **more)
    app.drain()
    assert REFERENCE in job.refresh().error.message
    assert_nowhere(database)


def test_h105_no_debug_log_shows_headers(small, remote, caplog):
    """Nor what a partner hands out: a cookie is a secret that nobody has told us of."""
    caplog.set_level(logging.DEBUG)
    said = {"Set-Cookie": "session=canary-cookie", "X-Echo": VALUE}
    remote.answers = [Says(json={"status": "done"}, headers=said)]
    job = asked_for(small, remote, "header", headers={"Cookie": "canary-sent", "X-Key": REFERENCE})
    small.drain()
    assert job.refresh().state == "SUCCEEDED"
    assert "receive_response_headers.complete" in caplog.text  # what happened may be followed
    for canary in ("canary", *(way.decode("latin-1") for way in spellings(VALUE))):
        assert canary not in caplog.text

    # What others send with the same library is theirs.
    httpx2.get(remote.url, trust_env=False, timeout=60)
    assert "canary-cookie" in caplog.text


SLOW = 100_000
HOSTILE = {
    "one letter": ("a" * 4_000 + "b", b"a" * SLOW),
    "two letters": ("ab" * 500 + "c", b"ab" * (SLOW // 2)),
    "escaped": ("a" * 200 + "b", b"%61" * (SLOW // 3)),
    "escaped again and again": ("a" * 200 + "b", b"%2525252561" * (SLOW // 11)),
    "entities": ("a" * 200 + "b", b"&#0097;" * (SLOW // 7)),
    "backslashes": ("\\" * 300 + "x", b"\\" * SLOW),
    "backslashes, wide": ("\\" * 300 + "x", b"\\\0" * (SLOW // 2)),
    "zeros": ("0" * 900 + "1", b"\0" * SLOW),
    "digits": ("\x11" * 0 + "1" * 900 + "2", b"31" * (SLOW // 2)),
    "base64": ("a" * 900 + "b", b"YWFh" * (SLOW // 4)),
    "found everywhere": ("abcdefgh", b"abcdefgh" * (SLOW // 8)),
    "found escaped": ("a" * 8, b"%61" * (SLOW // 3)),
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_hiding_takes_as_long_as_the_reply_is_whatever_the_secret(shape):
    """50 ms for 100 kB on a machine that does nothing else; here with room for a busy one."""
    value, content = HOSTILE[shape]
    known = Secrets.read("a@host.example", {"MILEPOST_SECRET_A": value})
    taken = []
    for _ in range(3):
        started = time.process_time()
        known.hider.content(content)
        taken.append(time.process_time() - started)
    assert min(taken) < 0.2
