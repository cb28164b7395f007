"""`milepost tokens` and `milepost server`: shown once, and never open to the world unasked."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import milepost
from milepost.errors import Invalid
from milepost.store import tokens
from milepost.web.serve import is_public, listen
from milepost.worker.heartbeat import new_id


def test_a_token_is_shown_once_listed_and_revoked(prompt, folder):
    made = prompt("tokens", "create", "ci", "--scope", "read,submit", "--expires", "30d", "--json")
    assert made.code == 0
    shown = json.loads(made.out)
    assert re.fullmatch(r"mp_[0-9a-f]{12}_[\w-]{43}", shown["token"])
    assert shown["scopes"] == ["submit", "read"]
    assert "not shown again" in made.err

    [listed] = json.loads(prompt("tokens", "ls", "--json").out)
    assert (listed["name"], listed["state"]) == ("ci", "active")
    assert "token" not in listed
    assert shown["token"].split("_")[2] not in prompt("tokens", "ls").out
    taken = prompt("tokens", "create", "ci")
    assert taken.code == 2
    assert "revoke it first" in taken.err

    assert prompt("tokens", "revoke", "ci").code == 0
    assert prompt("tokens", "revoke", "ci").code == 4
    assert json.loads(prompt("tokens", "ls", "--json").out)[0]["state"] == "revoked"
    assert prompt("tokens", "create", "ci", "--queue", "slow", "--tenant", "acme").code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--scope", "root"], "scopes are submit, read, operate, admin"),
        (["--expires", "soon"], "--expires"),
        (["--expires", "0"], "never work"),
        (["--tenant", ""], "tenant"),
        (["--max-priority", "10"], "--max-priority"),
        (["--rate", "fast"], "25/s"),
        (["--rate", "0/s"], "25/s"),
    ],
)
def test_a_token_that_cannot_be_meant_is_refused(prompt, folder, options, told):
    refused = prompt("tokens", "create", "x", *options)
    assert refused.code == 2
    assert told in refused.err


def test_what_a_token_may_create_is_listed_with_it(prompt, folder):
    told = ["--kind", "convert", "--kind", "letters", "--max-priority", "3", "--rate", "60/m"]
    made = json.loads(prompt("tokens", "create", "few", *told, "--json").out)
    assert (made["kinds"], made["max_priority"], made["rate"]) == (["convert", "letters"], 3, 1.0)
    assert made["requests"] is False  # whoever says what it creates says so of requests too
    both = json.loads(prompt("tokens", "create", "both", *told, "--requests", "--json").out)
    assert both["requests"] is True
    none = json.loads(prompt("tokens", "create", "none", "--no-requests", "--json").out)
    assert (none["requests"], none["kinds"], none["rate"]) == (False, None, None)
    listed = {each["name"]: each for each in json.loads(prompt("tokens", "ls", "--json").out)}
    assert listed["few"]["kinds"] == ["convert", "letters"]


ENGINES = re.compile(r"""(?:ACTOR = |actor=|acting\(f?|Principal\()["']([a-z]+)""")


def test_no_token_bears_the_name_of_a_part_of_the_engine(prompt, folder):
    """Whatever signs the journal in src/, now or later, no token signs as it."""
    source = Path(milepost.__file__).parent
    used = {
        name
        for file in source.rglob("*.py")
        if not {"testing", "demo"} & set(file.parts)
        for name in ENGINES.findall(file.read_text())
    }
    assert used >= {"callback", "client", "inbound", "local", "maintenance", "planner", "relay"}
    assert used <= tokens.ENGINE_ACTORS
    for name in (*used, "Maintenance", " worker", "worker 7", "inbound orders", new_id()):
        refused = prompt("tokens", "create", name)
        assert refused.code == 2, name
        assert "engine" in refused.err


@pytest.mark.parametrize(
    ("host", "public"),
    [
        ("127.0.0.1", False),
        ("127.8.9.10", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("192.0.2.7", True),
    ],
)
def test_what_others_could_reach_is_public(host, public):
    assert is_public(host) is public


def test_a_public_bind_without_a_live_token_refuses_to_start(prompt, folder):
    for host in ("0.0.0.0", "::", "192.0.2.7"):
        refused = prompt("server", "newcomer.py", "--host", host, "--port", "0")
        assert refused.code == 5
        assert "milepost tokens create" in refused.err
    assert prompt("tokens", "create", "gone", "--scope", "read").code == 0
    assert prompt("tokens", "revoke", "gone").code == 0
    # A revoked one is no credential.
    assert prompt("server", "newcomer.py", "--host", "0.0.0.0", "--port", "0").code == 5


def test_an_address_that_is_taken_or_wrong_is_told():
    with pytest.raises(Invalid, match="no name of one"):
        is_public("no such host")
    taken = listen("127.0.0.1", 0)
    with taken, pytest.raises(Invalid, match="cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_a_server_starts_where_it_is_told_and_stops_when_asked(folder, asked):
    """MILEPOST_PORT is the contract's; 0 takes any. Whoever stops it is told that all is well."""
    command = [sys.executable, "-m", "milepost.cli", "server", "newcomer.py"]
    known = {**os.environ, "MILEPOST_PORT": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=known) as server:
        try:
            link = server.stdout.readline().split()[1]
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", link)
            with urllib.request.urlopen(f"{link}/readyz", timeout=20) as answer:
                assert json.load(answer) == {"status": "ready"}
            # What a plain proxy passes on comes from this machine too: it is asked for a token.
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"{link}/v1/jobs", timeout=20)
            assert refused.value.code == 401
            refused.value.close()
        finally:
            server.send_signal(asked)
        _, told = server.communicate(timeout=60)
        assert (server.returncode, "Aborted" in told) == (0, False)
        assert "milepost tokens create" in told


def test_the_compare_takes_the_whole_secret(monkeypatch):
    """A look-alike is compared as the real one is: by digest, and where there is none too."""
    compared = []
    real = tokens.hmac.compare_digest
    monkeypatch.setattr(
        tokens.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b)
    )
    steps = tokens.find("mp_000000000000_x")
    next(steps)
    with pytest.raises(StopIteration) as ended:
        steps.send([])
    assert ended.value.value is None
    assert compared == [(32, 32)]
