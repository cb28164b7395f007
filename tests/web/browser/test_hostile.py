"""Names and texts from anywhere are text: nothing runs, and nothing breaks out of its place."""

import logging
import shlex
from collections.abc import Iterator
from urllib.parse import quote, urlencode

import pytest

import milepost as mp
from milepost import filters
from milepost.limit import limit_key
from milepost.store import buckets, dashboard, queues, rules, tokens
from milepost.store.rules import Limit
from tests.support.browser import SCREENS
from tests.support.serving import served

MARKUP = "<img src=x onerror=__hit=1><script>__hit=2</script>\"'>{{ 7*7 }}</td></table>"
ACTING = "\x1b[31mred\x1b[0m\u202egnp.exe\u2066"
NAME = f"{MARKUP}{ACTING}"
LONG = "x" * 1_000_000
WORD = "w" * 400
log = logging.getLogger("hostile")
STATE = """() => (document.querySelectorAll("[type=hidden]").forEach((one) => one.remove()), {
  hit: window.__hit ?? null,
  wide: document.documentElement.scrollWidth,
  acting: /[\\u0000-\\u0008\\u000e-\\u001f\\u202a-\\u202e\\u2066-\\u2069]/
    .test(document.documentElement.outerHTML),
  made: document.querySelectorAll(
    "img, script:not([src]), [onerror], [style]:not(.uplot, .uplot *)").length,
  shown: document.body.innerText.includes("<img src=x"),
  command: document.querySelector("#cli-line")?.textContent ?? "",
})"""
"""What is on a page; hidden fields hold what is sent back as it is, and are not seen."""
WORDS_MOST = 8
"""A command has no more words, whatever a name in it is."""


class Rows(mp.Source):
    def count(self, window, low, high):
        return len([n for n in range(4) if low <= n < high])

    def fetch(self, window, partition, cursor):
        return mp.Page([{"id": n} for n in range(4) if partition.low <= n < partition.high])

    def map(self, raw):
        raise mp.Reject(NAME)


def declare(app: mp.App) -> None:
    """Declare jobs, a batch and a pipeline of hostile names."""

    @app.job(name=NAME, queue=NAME, retries=0)
    def broken(ctx: mp.Context, text: str, *, other: str = "") -> None:
        log.warning("%s\n%s", NAME, LONG)
        ctx.step(NAME, lambda: NAME)
        ctx.progress(0.5, NAME)
        raise type(MARKUP, (Exception,), {})(text)

    batch = app.batch(f"batch {NAME}", params=dict[str, str], policy=mp.Tolerate(1.0))

    @batch.step(name=f"step {NAME}", retries=0)
    def only(params: dict[str, str]) -> str:
        raise mp.Fail(NAME)

    app.pipeline("rows", Rows(), key="id", partition_by="id", partitions=2, quarantine_limit=1.0)
    app.schedule(broken, "0 2 * * *", args=(NAME,), name=NAME)


def fill(app: mp.App) -> list[str]:
    """Fill a store, and name the pages that show it."""
    options = {"tags": {NAME: NAME, "long": WORD}, "channel": NAME}
    new = [app.new_job(NAME, [text], {"other": NAME}, options) for text in (NAME, LONG[:900_000])]
    failed, large = app.client.create(new)
    [batch] = app.batches
    run = batch.start({NAME: NAME, "long": LONG[:200_000]})
    app.pipelines["rows"].start()
    app.drain(timeout=20)
    [waiting] = app.client.create([app.new_job(NAME, [NAME], {}, {"hold": True})])
    app.jobs.get(waiting).cancel(reason=NAME)
    act = app.client.run
    act(queues.pause, NAME, paused=True, actor=NAME, reason=NAME)
    app.limits.set(NAME, scope="queue", most=1, reason=NAME)
    slow = Limit(rate=1, per_us=60_000_000, burst=1)
    act(rules.declare, {("job", f"limit {NAME}"): slow})
    for key in (NAME, f"{NAME}2"):
        act(buckets.take, "job", limit_key(f"limit {NAME}", key), 500, limit=slow)
    app.limits.clear(f"limit {NAME}", f"{NAME}2", reason=NAME)
    act(dashboard.save_view, NAME, f'error:"{WORD}"', actor=NAME)
    act(dashboard.note_check, "verify", clean=False, summary=NAME)
    token_id, _, hashed = tokens.new_secret()
    act(tokens.create, token_id, name=NAME, hashed=hashed, scopes=["read"])
    act(tokens.revoke, NAME)
    [group, *_] = app.errors.list()
    paths = ("/", "/jobs", "/errors", "/runs", "/queues", "/schedules", "/channels", "/tokens")
    more = (f"/jobs/{failed}", f"/jobs/{large}", f"/jobs/{waiting}", f"/runs/{run.id}")
    found = (
        *paths,
        "/limits",
        *more,
        f"/errors/{group.fingerprint}",
        "/pipelines",
        "/pipelines/rows",
    )
    return [*found, *_asked_by_name(failed, run.id)]


def _asked_by_name(job_id: str, run_id: str) -> Iterator[str]:
    """Name the pages of one thing, and the questions before actions."""
    name, by_name = quote(NAME, safe=""), urlencode({"name": NAME})
    yield from (f"/queues?{by_name}", f"/schedules?{by_name}", f"/channels?{by_name}")
    yield from (f"/queues/{name}/resume", f"/schedules/{name}/run", f"/schedules/{name}/pause")
    yield from (f"/limits?{by_name}", f"/limits/queue/{name}/set", f"/limits/queue/{name}/reset")
    limit = quote(f"limit {NAME}", safe="")
    yield f"/limits/job/{limit}/clear?{urlencode({'key': NAME})}"
    yield f"/limits?{urlencode({'name': f'limit {NAME}'})}"
    yield from (f"/channels/{name}/stop", f"/runs/{run_id}/resume", "/login?next=%2F%3Cimg")
    yield f"/runs/new?{urlencode({'batch': f'batch {NAME}'})}"
    yield f"/runs?{urlencode({'kind': NAME})}"
    yield f"/pipelines/rows?run={run_id}&partition=0"
    where = quote_word(NAME)
    yield f"/jobs?{urlencode({'q': f'kind:{where}'})}"
    yield f"/jobs?{urlencode({'q': NAME})}"
    yield f"/jobs/bulk?{urlencode({'action': 'rerun', 'q': f'kind:{where}', 'all': 1})}"
    yield f"/jobs/bulk?{urlencode({'action': 'rerun', 'id': job_id})}"


def quote_word(text: str) -> str:
    """Write a word of a filter."""
    return str(filters.where(kind=text)).removeprefix("kind:")


@pytest.fixture(scope="module")
def hostile(backends) -> Iterator[tuple[str, list[str]]]:
    """Serve a hostile store."""
    database = backends.take("sqlite")
    app, server = mp.App(database.url), mp.App(database.url)
    declare(app)
    declare(server)
    paths = fill(app)
    with served(server, access="open") as address:
        yield address, paths
    server.close()
    app.close()
    backends.give_back(database)


async def test_the_hostile_corpus_is_text_on_every_page(hostile, opened):
    """Check 18."""
    address, paths = hostile
    page = await opened(address, screen="phone")
    wrong, shown = {}, 0
    for path in paths:
        answer = await page.goto(path)
        assert answer.status == 200, path
        assert len(await answer.body()) < 500_000, path
        found = await page.evaluate(STATE)
        shown += found.pop("shown")
        assert len(shlex.split(found.pop("command"))) <= WORDS_MOST, path
        expected = {"hit": None, "wide": SCREENS["phone"][0], "acting": False, "made": 0}
        if found != expected:
            wrong[path] = found
    assert wrong == {}
    assert shown >= 10  # else the corpus was not there
