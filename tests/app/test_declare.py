"""A declaration is checked when it is made; arguments arrive as what they are annotated."""

import enum
import functools
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pydantic
import pytest

import milepost as mp
from milepost.policy import RetryPolicy
from milepost.store.instants import instant

pytestmark = pytest.mark.in_turn


@pytest.fixture
def idle() -> mp.App:
    """An app whose store is never opened."""
    return mp.App("sqlite:///never-opened.db")


def work() -> None: ...


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 10},
        {"priority": -1},
        {"priority": "high"},
        {"retries": -1},
        {"retries": "3"},
        {"retries": 1.5},
        {"retry_delay": -1},
        {"retry_delay": float("nan")},
        {"retry_delay": "1"},
        {"backoff": "linear"},
        {"max_delay": -1},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "60"},
        {"deadline": -1},
        {"start_within": -1},
        {"poll_limit": -1},
        {"poison_limit": 0},
        {"version": 0},
        {"version": "2"},
        {"name": ""},
        {"name": "a\0b"},
        {"queue": ""},
        {"retrys": 3},
        {"retry_on": ("ValueError",)},
        {"fail_on": (3,)},
        {"retry_on": 3},
    ],
)
def test_a_wrong_declaration_is_refused_when_it_is_declared(idle, wrong):
    with pytest.raises(mp.Invalid):
        idle.job(**wrong)(work)
    assert list(idle.registry) == []


def generator():
    yield 1


async def async_generator():
    yield 1


class Handler:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "handler", [3, None, "work", generator, async_generator, functools.partial(work), Handler()]
)
def test_what_cannot_be_a_handler_is_refused(idle, handler):
    with pytest.raises(mp.Invalid):
        idle.job()(handler)


def test_a_job_is_declared_once_per_name_and_version(idle):
    idle.job(work)
    with pytest.raises(mp.Invalid, match=r"'work' version 1 is declared twice.*name=.*version="):
        idle.job(work)
    with pytest.raises(mp.Invalid, match="is a job already"):
        idle.job(idle.job(name="other")(work))


def test_an_annotation_that_cannot_be_checked_is_refused(idle):
    def mixed(where: Path | str) -> None: ...

    with pytest.raises(mp.Invalid, match=r"'mixed'.*cannot be checked"):
        idle.job(mixed)


def test_with_and_without_parentheses_mean_the_same(idle):
    bare, called = idle.job(work), idle.job(name="called")(work)
    assert bare.definition.options == called.definition.options
    assert bare.definition.name == "work"


def test_the_defaults_are_those_of_the_contract(idle):
    definition = idle.job(work).definition
    assert definition.options == {
        "queue": "default",
        "priority": 0,
        "retries": 3,
        "recoveries": None,
        "poll_limit": 1000,
        "poison_limit": 3,
        "timeout": 3600,
        "deadline": None,
        "start_within": None,
    }
    assert definition.version == 1
    policy = definition.policy
    assert policy.retry == RetryPolicy(delay=1.0, backoff="fixed", max_delay=3600, jitter=False)
    assert (policy.retry_on, policy.fail_on) == ((Exception,), ())


def test_the_function_stays_callable(idle):
    @idle.job
    def convert(ctx: mp.Context, document: str) -> str:
        """Convert it."""
        return f"{document}.pdf"

    assert convert(None, "a") == "a.pdf"
    assert (convert.__name__, convert.__doc__) == ("convert", "Convert it.")


def test_classes_of_errors_are_given_alone_or_together(app):
    ran = []

    @app.job(fail_on=KeyError, retry_on=(KeyError, OSError), retry_delay=0)
    def choose(name: str) -> None:
        ran.append(name)
        raise {"key": KeyError, "os": OSError, "other": ValueError}[name]

    for name in ("key", "os", "other"):
        choose.submit(name)
    app.drain()
    assert {name: ran.count(name) for name in ran} == {"key": 1, "os": 4, "other": 1}


def test_retry_on_nothing_retries_nothing(app):
    @app.job(retry_on=())
    def fail() -> None:
        raise ConnectionError

    job = fail.submit()
    app.drain()
    assert job.refresh().state == mp.JobState.FAILED
    assert job.error.cause == "error"


def test_the_apps_own_classes_hold_for_every_job(database):
    app = mp.App(database.url, fail_on=(KeyError,), retry_on=(LookupError,))

    @app.job(retry_delay=0, fail_on=(IndexError,))
    def choose(name: str) -> None:
        raise {"key": KeyError, "index": IndexError, "lookup": LookupError, "other": OSError}[name]

    jobs = {name: choose.submit(name) for name in ("key", "index", "lookup", "other")}
    app.drain()
    assert {name: job.refresh().attempt for name, job in jobs.items()} == {
        "key": 1,
        "index": 1,
        "lookup": 4,
        "other": 1,
    }
    app.close()


def test_versions_stand_side_by_side(app):
    @app.job(name="render", version=1)
    def old(page: int) -> str:
        return f"old {page}"

    @app.job(name="render", version=2)
    def new(page: int, dpi: int = 300) -> str:
        return f"new {page} {dpi}"

    first, second = old.submit(1), new.submit(1)
    app.drain()
    assert (first.refresh().result, second.refresh().result) == ("old 1", "new 1 300")
    assert app.registry.newest("render").version == 2


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Size:
    width: int
    paths: list[Path]


class Order(pydantic.BaseModel):
    number: int
    placed: datetime


def test_arguments_arrive_as_what_they_are_annotated(app):
    seen: list[Any] = []

    @app.job
    def take(  # noqa: PLR0917 - one of each
        path: Path,
        colour: Colour,
        size: Size,
        order: Order,
        day: date,
        price: Decimal,
        id_: UUID,
        span: timedelta,
        data: bytes,
        some: set[int],
        pair: tuple[int, str],
        folder: Path = Path("here"),
        maybe: Order | None = None,
    ) -> None:
        seen.extend(
            (path, colour, size, order, day, price, id_, span, data, some, pair, folder, maybe)
        )

    given = (
        Path("a/b"),
        Colour.BLUE,
        Size(3, [Path("x")]),
        Order(number=7, placed=datetime(2030, 1, 2, tzinfo=UTC)),
        date(2030, 1, 2),
        Decimal("1.10"),
        UUID(int=5),
        timedelta(seconds=90),
        b"\0\xff",
        {1, 2},
        (1, "a"),
    )
    take.submit(*given)
    app.drain()
    assert seen == [*given, Path("here"), None]
    seen.clear()
    take.submit(*given, folder=Path("there"), maybe=given[3])
    app.drain()
    assert seen == [*given, Path("there"), given[3]]


def test_every_kind_of_parameter_is_carried(app):
    seen: list[Any] = []

    @app.job
    def take(
        ctx: mp.Context, first: int, /, second: int = 2, *rest: int, named: str = "n", **more: float
    ) -> None:
        seen.append((first, second, rest, named, more))

    take.submit(1)
    take.submit(1, 20, 3, 4, named="x", a=0.5, first=1.5)
    app.drain()
    assert seen == [
        (1, 2, (), "n", {}),
        (1, 20, (3, 4), "x", {"a": 0.5, "first": 1.5}),
    ]
    for args, kwargs in [((1, 2, "3"), {}), ((1,), {"a": "no"}), ((), {"first": 1})]:
        with pytest.raises(mp.Invalid):
            take.submit(*args, **kwargs)


def test_the_handlers_own_defaults_apply_when_it_runs(app):
    box = ["then"]

    @app.job
    def show(text: str = "default") -> str:
        return text + box[0]

    job = show.submit()
    assert job.record.payload == b"{}"
    box[0] = " now"
    app.drain()
    assert job.refresh().result == "default now"


def test_unannotated_parameters_take_any_json(app):
    @app.job
    def echo(value, other=None):
        return [value, other]

    job = echo.submit({"a": [1, None, 2.5]})
    app.drain()
    assert job.refresh().result == [{"a": [1, None, 2.5]}, None]


def test_ctx_is_known_by_its_annotation_or_its_name(app):
    @app.job
    def by_name(ctx, number: int) -> int:
        return ctx.attempt + number

    @app.job
    async def by_annotation(context: mp.Context, number: int) -> int:
        assert mp.current() is context
        return context.attempt + number

    one, two = by_name.submit(1), by_annotation.submit(1)
    app.drain()
    assert one.refresh().result == two.refresh().result == 2
    with pytest.raises(mp.Invalid, match="inside a handler only"):
        mp.current()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"start_at": "tomorrow"}, "must be a datetime"),
        ({"start_at": datetime.max.replace(tzinfo=UTC)}, "calendars"),
        ({"tags": [1]}, "must be a dict"),
        ({"start_in": 1e300}, "at most a hundred years"),
        ({"retries": 10**20}, "between 0 and"),
    ],
)
def test_options_that_cannot_be_meant_say_what_can(tmp_path, options, told):
    app = mp.App(f"sqlite:///{tmp_path}/store.db")

    @app.job
    def work() -> None: ...

    with pytest.raises(mp.Invalid, match=told):
        work.options(**options)


@pytest.mark.parametrize(
    "url", ["postgresql://localhost:99999/x", "postgresql://[::1/x", "sqlite:///a\0b", 5]
)
def test_an_address_that_cannot_be_read_is_refused_without_repeating_it(url):
    with pytest.raises(mp.Invalid, match="expected"):
        mp.App(url)


@pytest.mark.parametrize("limit", [0, 10**20, "x"])
def test_a_page_that_cannot_be_meant_is_refused(tmp_path, limit):
    app = mp.App(f"sqlite:///{tmp_path}/store.db")
    with pytest.raises(mp.Invalid, match="between 1 and"):
        app.jobs.list(limit=limit)
    app.close()


def test_the_last_instant_of_a_store_can_be_read():
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    stored = (last - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert instant(stored) == last


@pytest.mark.parametrize("timeout", [float("nan"), "x"])
def test_a_timeout_that_never_ends_is_refused(tmp_path, timeout):
    app = mp.App(f"sqlite:///{tmp_path}/store.db")

    @app.job
    def work() -> None: ...

    job = work.options(start_in=100).submit()
    with pytest.raises(mp.Invalid, match="timeout"):
        job.wait(timeout)
    with pytest.raises(mp.Invalid, match="timeout"):
        app.drain(timeout)
    app.close()


@pytest.mark.parametrize("name", [5, "", b"work", True])
def test_a_name_that_is_no_text_is_refused(name):
    app = mp.App()
    with pytest.raises(mp.Invalid, match=r"name=.* must be a text"):
        app.job(name=name)(lambda: None)
