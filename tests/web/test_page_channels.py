"""The page of channels: messages that wait, are dead or arrived; stopping, and delivering again."""

import re

import pytest_asyncio

from milepost.store import outbox

HTML = {"Accept": "text/html"}
DIALOG = {**HTML, "X-Dialog": "1"}
HOSTILE = '<script>alert(1)</script>"><img src=x> \x1b[31m\u202e'


def form_token(page: str) -> str:
    return re.findall(r'name="form_token" value="([^"]+)"', page)[-1]


@pytest_asyncio.fixture
async def channel(app):
    """A channel with three messages: one that waits, one that arrived, one that is dead."""

    @app.job(channel="par/tner")
    def told(number: int) -> int:
        return number

    jobs = await told.submit_many_async([(number,) for number in range(3)])
    await app.drain_async(30)
    messages = await app.client.run_async(outbox.listing, "par/tner")
    assert len(messages) == len(jobs)
    first, second, third = reversed(messages)
    await app.client.run_async(outbox.acknowledge, "par/tner", ids=[first.id])
    [taken] = [
        one
        for one in await app.client.run_async(
            outbox.take, "par/tner", most=9, lease_seconds=60, tenant=outbox.EVERYONE
        )
        if one.id == second.id
    ]
    failure = outbox.Failure(taken.id, taken.fence, HOSTILE)
    assert await app.client.run_async(outbox.failed, [failure], most=1) == 1
    return first, second, third


async def test_a_channel_says_what_waits_is_dead_and_arrived(api, app, channel):
    first, second, third = channel
    page = (await api.get("/channels", headers=HTML)).text
    assert 'href="/channels?name=par%2Ftner"' in page
    assert "<span>Channels</span><b>1</b>" in page  # beside its name, though nobody declared it
    assert "pull" in page
    one = (await api.get("/channels", params={"name": "par/tner"}, headers=HTML)).text
    assert second.subject_id in one
    assert "1 message" in one
    assert "<script>alert" not in one
    assert "\x1b" not in one
    for stands, message in (("waiting", third), ("delivered", first)):
        asked = {"name": "par/tner", "show_only": stands}
        one = (await api.get("/channels", params=asked, headers=HTML)).text
        assert message.subject_id in one, stands
        assert second.subject_id not in one
    assert (await api.get("/channels?name=nobody", headers=HTML)).status_code == 404
    assert (await api.get("/channels?show_only=x", headers=HTML)).status_code == 422


async def test_it_is_stopped_with_a_reason_and_started_under_the_callers_name(api, app, channel):
    asked = await api.get("/channels/par%2Ftner/stop", headers=DIALOG)
    form = {"form_token": form_token(asked.text), "reason": "<i>receiver moves</i>"}
    done = await api.post("/channels/par%2Ftner/stop", data=form)
    assert done.headers["location"] == "/channels?name=par%2Ftner"
    [stopped] = await app.client.run_async(outbox.known)
    assert (stopped.state, stopped.stopped_by) == ("stopped", "local")
    asked = await api.get("/channels/par%2Ftner/start", headers=HTML)
    assert "&lt;i&gt;receiver moves&lt;/i&gt;" in asked.text
    await api.post("/channels/par%2Ftner/start", data=form)
    assert (await app.client.run_async(outbox.known))[0].state == "active"


async def test_dead_and_arrived_messages_are_delivered_again(api, app, channel):
    first, second, _ = channel
    asked = await api.get("/channels/par%2Ftner/retry", headers=DIALOG)
    assert "1 dead message" in asked.text
    form = {"form_token": form_token(asked.text)}
    await api.post("/channels/par%2Ftner/retry", data=form)
    assert (await app.client.run_async(outbox.get, second.id)).stands == "waiting"
    await api.post("/channels/par%2Ftner/redeliver", data={**form, "message": first.id})
    assert (await app.client.run_async(outbox.get, first.id)).stands == "waiting"
    again = await api.post("/channels/par%2Ftner/redeliver", data={**form, "message": first.id})
    assert again.status_code == 404


async def test_what_arrived_lately_is_counted(app, channel):
    found = await app.client.run_async(outbox.lately, ["par/tner", "none"], seconds=3600)
    count, at = found["par/tner"]
    assert (count, at is not None) == (1, True)
    assert found["none"] == (0, None)
    assert await app.client.run_async(outbox.lately, [], seconds=1) == {}


async def test_a_reader_changes_nothing_and_a_bound_token_sees_none(api, channel, token):
    reader, bound = token("reader", "read"), token("bound", "read", queues=["slow"])
    page = await api.get("/channels", params={"name": "par/tner"}, headers={**HTML, **reader})
    assert "needs the scope operate" in page.text
    for action in ("stop", "start", "retry", "redeliver"):
        answer = await api.post(f"/channels/par%2Ftner/{action}", headers={**HTML, **reader})
        assert answer.status_code == 403
    assert (await api.get("/channels", headers={**HTML, **bound})).status_code == 403
