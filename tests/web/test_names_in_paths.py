"""Names in the paths of the API: any that can be declared is reached, and no other thing by it."""

from urllib.parse import quote, unquote

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Match, Mount

import milepost as mp
from milepost.web.api import create_api, describe
from milepost.web.route import Route

NAMES = [
    *("plain", "a/b", "/a", "a/", "a//b", "/", "a/../b", "x:pause", "x/y:set", "100%", "a%2Fb"),
    *("a b?c#d", "Öl/→", "two\nlines", "eu/changes", "eu/runs", "eu/removals", "eu/quarantine"),
    *("eu/runs/x:resume", "eu/messages", "eu/messages:ack", "eu/table:release", "runs", "changes"),
]
NAMED = [
    route for route in describe().routes if isinstance(route, Route) and "{name}" in route.path
]
OTHERS = {"run_id": "an-id", "subject": "queue"}


def resolved(method, written, **scope):
    """Tell the route that answers, and the values that it reads from the path."""
    given = {"type": "http", "method": method, "path": unquote(written), "headers": []}
    given |= {"raw_path": written.encode(), **scope}
    for route in describe().routes:
        match, found = route.matches(given)
        if match is Match.FULL:
            return getattr(route, "path", None), found["path_params"]
    return None, {}


def written(name):
    return quote(name, safe="")


def filled(path, name):
    values = {key: value for key, value in OTHERS.items() if f"{{{key}}}" in path}
    return path.format(name=name, **values), values


def test_every_resource_that_has_a_name_is_looked_at():
    kinds = {route.path.split("/")[2] for route in NAMED}
    known = {"queues", "limits", "schedules", "pipelines", "channels", "batches", "explain"}
    assert kinds == known


@pytest.mark.parametrize("name", NAMES)
def test_an_encoded_name_leads_to_its_own_route(name):
    for route in NAMED:
        path, values = filled(route.path, written(name))
        for method in route.methods:
            assert resolved(method, path) == (route.path, {**values, "name": name}), path


@pytest.mark.parametrize("name", ["a/b", "/a", "a//b", "x:pause", "x/y:set", "two/\nlines"])
def test_a_slash_may_stand_as_it_is_where_nothing_else_can_be_meant(name):
    for route in NAMED:
        path, values = filled(route.path, quote(name))
        for method in route.methods:
            assert resolved(method, path) == (route.path, {**values, "name": name}), path
            # A server, or what stands before it, may have decoded it.
            decoded = resolved(method, path, raw_path=None)
            assert decoded == (route.path, {**values, "name": name})
            rewritten = resolved(method, path, raw_path=b"/elsewhere%2Fx")
            assert rewritten == (route.path, {**values, "name": name})


def test_a_route_is_not_reached_without_a_name():
    for route in NAMED:
        path, _ = filled(route.path, "")
        for method in route.methods:
            assert resolved(method, path)[0] != route.path, path


@pytest.mark.both_stores
async def test_queues_are_found_and_paused_by_any_name(app, api):
    work = app.job(lambda: None, name="work")
    for name in NAMES:
        await work.options(queue=name).submit_async()
    for name in NAMES:
        shown = await api.get(f"/v1/queues/{written(name)}")
        assert (shown.status_code, shown.json().get("name")) == (200, name)
        paused = await api.post(f"/v1/queues/{written(name)}:pause")
        assert (paused.json()["name"], paused.json()["paused"]) == (name, True)
        told = await api.get(f"/v1/explain/queue/{written(name)}")
        assert (told.json()["id"], told.json()["reasons"][0]) == (name, "queue_paused")
        resumed = await api.post(f"/v1/queues/{written(name)}:resume")
        assert (resumed.json()["name"], resumed.json()["paused"]) == (name, False)
    queues = (await api.get("/v1/queues?limit=100")).json()["items"]
    assert {queue["name"] for queue in queues} == set(NAMES)
    assert (
        (await api.get("/v1/queues/a/c")).json()["detail"].startswith("no job is in a queue 'a/c'")
    )


@pytest.mark.both_stores
async def test_limits_are_found_and_set_by_any_name(app, api):
    names = ["a/b", "x:set", "eu/changes", "eu", "100%2F"]
    for name in names:
        work = app.job(lambda: None, name=f"work {name}", limit=mp.Limit(5, name=name))
        await work.submit_async()
    for most, name in enumerate(names, 1):
        done = await api.post(f"/v1/limits/{written(name)}:set", json={"most": most})
        assert (done.status_code, done.json()["name"]) == (200, name)
    for most, name in enumerate(names, 1):
        shown = (await api.get(f"/v1/limits/{written(name)}")).json()
        assert (shown["name"], shown["most"]) == (name, most)
        [change, *_] = (await api.get(f"/v1/limits/{written(name)}/changes")).json()["items"]
        assert (change["name"], change["after"]["most"]) == (name, most)
        again = (await api.post(f"/v1/limits/{written(name)}:reset")).json()
        assert (again["name"], again["most"]) == (name, 5)


@pytest.mark.both_stores
async def test_batches_schedules_and_channels_are_found_by_any_name(app, api):
    batch = app.batch("eu/letters →")
    batch.step(lambda: None)
    app.schedule(app.job(lambda: None, name="eu/work"), "0 2 * * *", name="eu/nightly")
    place = f"/v1/batches/{written('eu/letters →')}/runs"
    begun = [(await api.post(place, json={})).json()["id"] for _ in "ab"]
    page = await api.get(place, params={"limit": 1})
    following = await api.get(page.links["next"]["url"])
    found = [answer.json()["items"][0]["id"] for answer in (page, following)]
    assert found == [*reversed(begun)]

    for place in ("eu%2Fnightly", "eu/nightly"):
        assert (await api.get(f"/v1/schedules/{place}")).json()["name"] == "eu/nightly"
        assert (await api.post(f"/v1/schedules/{place}:pause")).json()["state"] == "paused"
        assert (await api.post(f"/v1/schedules/{place}:resume")).json()["state"] == "active"
        assert (await api.post(f"/v1/schedules/{place}:run")).status_code == 202

    await app.job(lambda: None, name="told", channel="par/tner").submit_async()
    await app.drain_async()
    for place in ("par%2Ftner", "par/tner"):
        pulled = (await api.get(f"/v1/channels/{place}/messages")).json()
        assert [event["type"] for event in pulled["items"]] != []
    answer = await api.post(
        "/v1/channels/par%2Ftner/messages:ack", json={"cursor": pulled["cursor"]}
    )
    assert answer.json()["count"] == 1


async def test_errors_are_found_by_any_fingerprint(app, api, advance):
    late = app.job(lambda: None, name="send/mail").options(start_in=9, deadline=5)
    await late.submit_async()
    advance(7)
    await app.maintain_once_async()
    for place in ("deadline@send%2Fmail", "deadline@send/mail"):
        shown = await api.get(f"/v1/errors/{place}")
        assert shown.json()["fingerprint"] == "deadline@send/mail"


def test_names_are_the_same_over_real_http(app, address):
    app.job(lambda: None, name="work", queue="a/b").submit()
    for place in ("a/b", "a%2Fb", "a%2fb"):
        assert httpx2.get(f"{address}/v1/queues/{place}").json()["name"] == "a/b"
        assert httpx2.post(f"{address}/v1/queues/{place}:pause").json()["name"] == "a/b"


async def test_names_are_the_same_where_the_api_is_mounted(app):
    await app.job(lambda: None, name="work", queue="a/changes").submit_async()
    transport = httpx2.ASGITransport(Starlette(routes=[Mount("/in/it", app.asgi(access="open"))]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        for place in ("a/changes", "a%2Fchanges"):
            shown = await client.get(f"/in/it/v1/queues/{place}")
            assert shown.json()["name"] == "a/changes"
    await app.client.close_async()


async def test_a_slash_in_an_id_opens_nothing(app):
    """Remotes call back without a token: no other path may pass for theirs."""
    transport = httpx2.ASGITransport(create_api(app, access="tokens"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        assert (await client.post("/v1/requests/x/callback/y")).status_code == 404
        for place in ("x%2Fcallback%2Fy", "x%2Fcallback/y", "x/callback%2Fy"):
            for method in ("GET", "POST"):
                answer = await client.request(method, f"/v1/requests/{place}")
                assert answer.status_code == 401, (method, place)
    await app.client.close_async()
