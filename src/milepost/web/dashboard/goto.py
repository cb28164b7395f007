"""`/go`: from a word that was typed to the page of what it names."""

from urllib.parse import quote

from fastapi import APIRouter
from starlette.responses import Response

from milepost.errors import NotFound
from milepost.store import failures, outbox, rules
from milepost.store.driver import Steps
from milepost.subjects import checked_id
from milepost.web.call import Call, ReadCall
from milepost.web.dashboard.page import PageRoute, address, go_to

router = APIRouter(route_class=PageRoute, include_in_schema=False)
PAGES = frozenset(
    (
        *("jobs", "errors", "runs", "pipelines", "queues", "limits", "schedules", "channels"),
        "tokens",
    )
)


@router.get("/go")
async def go(*, call: ReadCall, to: str = "") -> Response:
    """Go to what was typed: an id, a filter, or the name of something; else search for a kind."""
    word = to.strip()
    if not word:
        return go_to(call.request, "/")
    for finder, path in ((call.app.jobs, "/jobs"), (call.app.runs, "/runs")):
        try:
            found = await finder.get_async(checked_id(word))
        except NotFound:
            continue
        if call.principal.sees(found.record):
            return go_to(call.request, f"{path}/{found.id}")
    if ":" in word:
        return go_to(call.request, "/jobs", q=word)
    # What there is in the installation is nothing that a bound token finds out by guessing.
    place = await _queue_or_pipeline(call, word) if call.principal.tenant is None else None
    if place is None and call.principal.tenant is None and call.principal.queues is None:
        place = await call.run(_named, call, word)
    return go_to(call.request, place or address("", "/jobs", q=_term("kind", word)))


def _term(key: str, word: str) -> str:
    return f'{key}:"{word}"' if " " in word else f"{key}:{word}"


async def _queue_or_pipeline(call: Call, word: str) -> str | None:
    if word in call.app.pipelines:
        return f"/pipelines/{quote(word, safe='')}"
    names = {queue.name for queue in await call.app.queues.list_async()}
    if word in names and call.principal.sees_queue(word):
        return address("", "/jobs", q=_term("queue", word))
    return None


def _named(call: Call, word: str) -> Steps[str | None]:
    """Find what has this name; a schedule that is called as its kind is found by its jobs."""
    if word.lower() in PAGES:
        return f"/{word.lower()}"
    if word in {batch.name for batch in call.app.batches}:
        return address("", "/runs", kind=word)
    listed = yield from call.app.schedules.listing()
    if word in {one.name for one in listed if one.name != one.kind}:
        return address("", "/schedules", name=word)
    if word in {one.name for one in (yield from outbox.known())}:
        return address("", "/channels", name=word)
    scopes = [scope for scope, name in (yield from rules.rules()) if name == word]
    if scopes:
        return address("", "/limits", name=word, scope=scopes[0])
    known = yield from failures.groups(most=1, fingerprint=word)
    return f"/errors/{quote(word, safe='')}" if known else None
