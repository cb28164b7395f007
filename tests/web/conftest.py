"""An app on a fresh store, and the API of it: called within the process, or served over HTTP."""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator

import httpx2
import pytest
import pytest_asyncio

import milepost as mp
from milepost.store import tokens
from milepost.web.api import create_api
from tests.support.serving import served


@pytest.fixture
def app(app: mp.App) -> mp.App:
    """An app with something to submit, on a fresh store, on each database in turn."""
    declare(app)
    return app


def declare(app: mp.App) -> None:
    """Declare what these tests submit."""

    @app.job
    def convert(document: str, *, format: str = "pdf") -> str:  # noqa: A002 - as in the README
        return f"{document}.{format}"

    @app.job(retries=0)
    def broken() -> None:
        raise mp.Fail("no such format")

    @app.job
    def patient(ctx: mp.Context) -> str:
        if ctx.fence == 1:
            raise mp.Later(3600)
        return "woken"

    @app.job(queue="slow")
    def slowly(number: int) -> int:
        return number

    letters = app.batch("letters", params=dict[str, int])

    @letters.step
    def write(params: dict[str, int]) -> Iterator[int]:
        yield from range(params["count"])

    @letters.step
    def send(number: int) -> int:
        if number > 5:
            raise mp.Fail("too many letters")
        return number

    app.schedule(convert, "0 2 * * *", args=("nightly",), name="nightly")


@pytest_asyncio.fixture(autouse=True)
async def closed(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Close the connections that an asynchronous test opened; else another test pays for them."""
    asks = inspect.iscoroutinefunction(request.function) and "app" in request.fixturenames
    opened: mp.App | None = request.getfixturevalue("app") if asks else None
    yield
    if opened is not None:
        await opened.client.close_async()


@pytest_asyncio.fixture
async def api(app: mp.App) -> AsyncIterator[httpx2.AsyncClient]:
    """Call the API within the process, as `milepost dev` serves it."""
    transport = httpx2.ASGITransport(app=create_api(app, access="local"))
    async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client
    await app.client.close_async()


Bearer = dict[str, str]


@pytest.fixture
def token(app: mp.App) -> Callable[..., Bearer]:
    """Make a token, and the header that shows it."""

    def made(name: str, *scopes: str, **bounds: object) -> Bearer:
        token_id, secret, hashed = tokens.new_secret()
        app.client.run(tokens.create, token_id, name=name, hashed=hashed, scopes=scopes, **bounds)
        return {"Authorization": f"Bearer {secret}"}

    return made


@pytest.fixture
def address(app: mp.App) -> Iterator[str]:
    """Where the API of the app is served over real HTTP."""
    with served(app) as where:
        yield where


@pytest.fixture
def statements(app: mp.App, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Name each query that the API asks of the store, in order."""
    asked: list[str] = []
    run = app.client.run_async

    async def counted(operation, *args, **kwargs):
        def steps():
            going = operation(*args, **kwargs)
            answer = None
            while True:
                try:
                    step = going.send(answer)
                except StopIteration as stop:
                    return stop.value
                asked.append(str(step.name))
                answer = yield step

        return await run(steps)

    monkeypatch.setattr(app.client, "run_async", counted)
    return asked
