"""Messages for people, through Apprise: to a chat's HTTP door, and by mail over real SMTP."""

import json
import logging
import socketserver
import threading

import pytest
from receivers import receiving

import milepost as mp

# Apprise still loads a module that Python is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")


def declared(app, urls, **options):
    app.channel("ops", people=urls, **options)

    @app.job(retries=0)
    def convert(document: str) -> str:
        if document == "bad":
            raise mp.Fail("unsupported format")
        return document

    return convert.options(channel="ops")


def test_people_are_told_in_the_words_of_the_template(app):
    with receiving() as receiver:
        convert = declared(
            app,
            [f"json://127.0.0.1:{receiver.port}/chat"],
            title="$kind: $state",
            template="$machine $id: $error",
        )
        job = convert.submit("bad")
        app.drain()
    [request] = receiver.got
    told = json.loads(request.body)
    assert told["title"] == "convert: FAILED"
    assert told["message"] == f"job {job.id}: unsupported format"
    assert app.channels.messages("ops")[0].stands == "delivered"


def test_a_channel_on_failure_stays_silent_about_successes(app):
    with receiving() as receiver:
        convert = declared(
            app,
            [f"json://127.0.0.1:{receiver.port}/chat"],
            on="failure",
            title="$severity: $subject",
        )
        convert.submit("good")
        convert.submit("bad")
        unwanted = convert.options(start_in=60).submit("unwanted")
        unwanted.cancel()
        app.drain()
    titles = sorted(json.loads(request.body)["title"] for request in receiver.got)
    assert [title.partition(" ")[0] for title in titles] == ["error:", "error:"]
    assert all("convert" in title for title in titles)
    assert {message.stands for message in app.channels.messages("ops")} == {"delivered"}


@pytest.mark.parametrize("wrong", [{"on": "success", "people": ["json://x"]}, {"on": "failure"}])
def test_an_occasion_is_one_that_a_channel_can_be_told_on(app, wrong):
    with pytest.raises(mp.Invalid, match="on="):
        app.channel("ops", **wrong)


def test_a_place_that_does_not_take_it_brings_it_again(app, advance):
    with receiving() as receiver:
        declared(app, [f"json://127.0.0.1:{receiver.port}/"]).submit("report")
        receiver.answers.append((500, {}))
        app.drain()
        [waiting] = app.channels.messages("ops")
        assert (waiting.attempts, waiting.error) == (1, "not every one of 1 addresses took it")
        advance(2)
        assert app.relay_once() == 1
    assert "convert COMPLETE" in receiver.got[-1].body.decode()


def test_h105_no_debug_log_shows_where_people_read(app, caplog):
    caplog.set_level(logging.DEBUG)
    with receiving() as receiver:
        place = f"json://me:canary-word@127.0.0.1:{receiver.port}/canary-path?-canary=header"
        declared(app, [place]).submit("report")
        app.drain()
    assert len(receiver.got) == 1
    assert "canary" not in caplog.text.lower()


@pytest.fixture
def mailbox():
    """A mail server that keeps what it is given."""
    letters = []

    class Session(socketserver.StreamRequestHandler):
        def say(self, line):
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self):
            self.say("220 here")
            for raw in self.rfile:
                word = raw[:4].upper()
                if word == b"DATA":
                    self.say("354 go on")
                    letters.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
                self.say("221 bye" if word == b"QUIT" else "250 fine")
                if word == b"QUIT":
                    return

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server.server_address[1], letters
    server.shutdown()
    server.server_close()


def test_a_mail_is_sent(app, mailbox):
    port, letters = mailbox
    people = "from=engine@milepost.example&to=ops@milepost.example&mode=insecure"
    url = f"mailto://127.0.0.1:{port}/?{people}"
    job = declared(app, [url]).submit("report")
    app.drain()
    [letter] = letters
    assert "Subject: convert COMPLETE" in letter
    assert job.id in letter.replace("=\r\n", "")


def test_an_address_that_is_none_is_told_without_repeating_it(app):
    declared(app, ["nonsense://user:hunter2@x"]).submit("report")
    app.drain()
    [waiting] = app.channels.messages("ops")
    assert "address 1 of 1" in waiting.error
    [channel] = app.channels.list()
    assert (channel.kind, channel.target) == ("people", "nonsense://")
    assert "hunter2" not in repr((waiting, channel))
