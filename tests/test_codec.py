"""The JSON codec: what comes back is what went in, or it is refused at the door, on every store."""

import math
import sys
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pydantic
import pytest
import uuid_utils

from milepost import outcome
from milepost.codec import DEEPEST, JsonCodec, check_text, limited
from milepost.errors import Invalid
from milepost.records import NewJob, Settlement, Template
from milepost.store import creation, jobs, workers
from tests.support.prove import size as proven

CODEC = JsonCodec()


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    LARGE = 2


class Mood(StrEnum):
    FINE = "fine"


@dataclass
class Part:
    weight: float
    made: datetime
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Frozen:
    part: Part
    where: Path


class Struct(msgspec.Struct):
    amount: Decimal
    data: bytes
    key: uuid.UUID
    nested: Part | None = None


class Model(pydantic.BaseModel):
    amount: Decimal
    at: datetime
    where: Path
    key: uuid.UUID
    colour: Colour
    inner: dict[str, list[int]]


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: datetime
    key: uuid.UUID


class Measured(pydantic.BaseModel):
    value: float


NOW = datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
KEY = uuid.UUID("018f0000-0000-7000-8000-000000000001")
PART = Part(0.1 + 0.2, NOW, ["ä", "日本", "\U0001f600"])
MODEL = Model(
    amount=Decimal("1.10"),
    at=NOW,
    where=Path("a/b c"),
    key=KEY,
    colour=Colour.BLUE,
    inner={"x": [1, 2]},
)

KEPT: list[tuple[Any, Any]] = [
    (None, None),
    (True, bool),
    (0, int),
    (-(2**63) - 1, int),
    (2**64, int),
    (10**40, int),
    (-(10**40), Any),
    (10**4299, int),
    (-0.0, float),
    (5e-324, float),
    (sys.float_info.max, float),
    ("", str),
    ("a\0b", str),
    ("\u2028\u2029\ufeff\U0010ffff", str),
    ("[" * 1000, str),
    ('"\\"[{' * 300, str),
    (b"", bytes),
    (bytes(range(256)), bytes),
    (NOW, datetime),
    (datetime(2026, 3, 29, 1, 30), datetime),  # noqa: DTZ001 - a naive one stays naive
    (date(2026, 2, 28), date),
    (timedelta(days=2, microseconds=1), timedelta),
    (KEY, uuid.UUID),
    (Decimal("1.10"), Decimal),
    (Decimal("1E+400"), Decimal),
    (Path("/a/b"), Path),
    (PurePosixPath("c"), PurePosixPath),
    (Colour.RED, Colour),
    (Size.LARGE, Size),
    (Mood.FINE, Mood),
    ((1, "a"), tuple[int, str]),
    ({1, 2, 3}, set[int]),
    (frozenset({"a"}), frozenset[str]),
    ({1: "a", 2: "b"}, dict[int, str]),
    ({KEY: [NOW]}, dict[uuid.UUID, list[datetime]]),
    ({math.inf: 1}, dict[float, int]),
    ([None, "null", {"null": None}], Any),
    (PART, Part),
    (Frozen(PART, Path("x")), Frozen),
    (Struct(Decimal("0.00"), b"\x00\xff", KEY, PART), Struct),
    ([Struct(Decimal(1), b"", KEY)], list[Struct]),
    (MODEL, Model),
    ({"models": [MODEL, MODEL]}, dict[str, list[Model]]),
    (Strict(at=NOW, key=KEY), Strict),
]


def name(value: Any) -> str:
    return ascii(value)[:40]


@pytest.mark.parametrize(("value", "type_"), KEPT, ids=name)
def test_a_value_comes_back_as_its_annotation_says(value, type_):
    back = CODEC.decode(CODEC.encode(value), type_)
    assert back == value
    assert type(back) is type(value)
    assert CODEC.encode(back) == CODEC.encode(value)


NESTINGS = {
    "alone": lambda value: value,
    "in a list": lambda value: [None, value],
    "in a dict": lambda value: {"a": {"b": value}},
    "in a set": lambda value: {value},
    "in a tuple": lambda value: (1, (value,)),
    "in a dataclass": lambda value: Part(value, NOW),
    "in a Struct": lambda value: Struct(Decimal(1), b"", KEY, Part(value, NOW)),
    "in a model": lambda value: Measured(value=value),
    "in a model in a dataclass": lambda value: Frozen(Measured(value=value), Path()),
    "in a Struct in a model": lambda value: [{"deep": [Measured(value=value)]}],
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("nested", NESTINGS.values(), ids=NESTINGS.keys())
def test_what_json_has_no_number_for_is_refused_however_deep_it_sits(nested, value):
    with pytest.raises(Invalid, match="has no place in JSON; pass None or a text"):
        CODEC.encode(nested(value))


def nested_to(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


def in_itself(container: Any) -> Any:
    if isinstance(container, dict):
        container["me"] = container
    else:
        container.append(container)
    return container


REFUSED = [
    ("\ud800", "lone surrogate"),
    ({"\udfff": 1}, "lone surrogate"),
    ([Path("\udcff")], "lone surrogate"),
    (10**5000, "4300 digits"),
    ([-(10**4400)], "4300 digits"),
    (nested_to(10_000), "nested too deeply"),
    (nested_to(DEEPEST + 1), f"nested more than {DEEPEST} deep"),
    ({"a": '"]', "b": nested_to(DEEPEST)}, f"nested more than {DEEPEST} deep"),
    (in_itself([]), "contains itself"),
    (in_itself({}), "contains itself"),
    (object(), "object is not a type that JSON can carry"),
    (len, "not a type that JSON can carry"),
    (1j, "complex is not a type that JSON can carry"),
    ({(1, 2): 3}, "tuple is not a type"),
]


@pytest.mark.parametrize(("value", "why"), REFUSED, ids=lambda item: type(item).__name__)
def test_what_could_not_come_back_is_refused_and_says_why(value, why):
    with pytest.raises(Invalid, match=why):
        CODEC.encode(value)


def test_a_value_as_deep_as_allowed_is_read_back_from_a_deep_stack():
    data = CODEC.encode(nested_to(DEEPEST))

    def below(frames: int) -> Any:
        return CODEC.decode(data) if frames == 0 else below(frames - 1)

    assert below(500) == nested_to(DEEPEST)


def test_a_stored_value_that_no_longer_fits_is_invalid_and_is_not_repeated():
    for type_ in (int, Part, Struct, Model, Strict, Colour, Path, uuid.UUID):
        with pytest.raises(Invalid, match="does not fit") as caught:
            CODEC.decode(b'{"at": "secret-42"}', type_)
        assert "secret-42" not in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b'"\xff"', b"[" * 100_000, b"NaN", b"1" * 5000]
)
def test_bytes_that_are_not_json_are_invalid(data):
    with pytest.raises(Invalid, match="does not fit"):
        CODEC.decode(data)


def test_the_limit_says_how_large_it_is_and_what_to_do():
    assert limited(b"x" * 10, most=10, what="the payload") == b"x" * 10
    with pytest.raises(Invalid) as caught:
        limited(b"x" * 2_000_000, most=1024**2, what="the payload of email.send")
    assert str(caught.value) == (
        "the payload of email.send: 2,000,000 bytes, and the limit is 1,048,576: put it into a "
        "file or a bucket and pass its address, or raise MILEPOST_MAX_PAYLOAD (and MILEPOST_LEASE: "
        "an argument has at most 1 MiB for each second of it, or no claim could move it in time)"
    )


@pytest.mark.parametrize("text", ["", "a\0b", "\ud800", None, 3])
def test_a_name_that_no_database_stores_is_refused(text):
    with pytest.raises(Invalid, match="queue="):
        check_text(text, what="queue")


# The stores keep what the codec made of it, alike


def store_and_read(driver: Any, payload: bytes | None) -> bytes | None:
    new = NewJob(str(uuid_utils.uuid7()), payload, Template(kind="k"))
    [job_id] = driver.run(creation.create, [new])
    return driver.run(jobs.get, job_id).payload


def test_every_kept_value_comes_back_from_the_store(database):
    encoded = [CODEC.encode(value) for value, _ in KEPT]
    with database.driver() as driver:
        new = [NewJob(str(uuid_utils.uuid7()), data, Template(kind="k")) for data in encoded]
        found = [driver.run(jobs.get, job_id) for job_id in driver.run(creation.create, new)]
    assert [job.payload for job in found] == encoded
    for job, (value, type_) in zip(found, KEPT, strict=True):
        assert CODEC.decode(job.payload, type_) == value


def test_values_that_trouble_sql_do_not_trouble_the_views_for_people(database, raw):
    with database.driver() as driver:
        for value in ("a\0b", 10**4299, nested_to(DEEPEST), "'; DROP TABLE job; --", {"a": "\\"}):
            store_and_read(driver, CODEC.encode(value))
        store_and_read(driver, b"\xff\x00 not json")
    assert len(raw.execute("SELECT * FROM jobs")) == 6


@pytest.mark.prove
def test_a_text_of_64_megabytes_is_kept(database):
    data = CODEC.encode("ä" * proven(32 * 1024**2))
    with database.driver() as driver:
        # Not `==` in the assertion: nobody wants to read the difference.
        same = store_and_read(driver, data) == data
    assert same


@pytest.mark.parametrize("size", [0, 1, 8191, 8192, 1024**2])
def test_a_payload_and_a_result_of_any_size_are_kept(database, size):
    text = "ä" * (size // 2) + "x" * (size % 2)
    data = CODEC.encode(text)
    with database.driver() as driver:
        assert store_and_read(driver, data) == data
        driver.run(workers.register, workers.NewWorker(id="w", lease_us=600_000_000))
        [claim] = driver.run(jobs.claim, worker_id="w", line=jobs.lines(["default"]), most=1)
        assert claim.payload == data
        driver.run(jobs.settle, [Settlement(claim, outcome.succeeded(data))], actor="w")
        assert CODEC.decode(driver.run(jobs.get, claim.id).result, str) == text


def test_texts_that_no_database_stores_are_refused_alike(database):
    with database.driver() as driver:
        driver.run(workers.register, workers.NewWorker(id="w", lease_us=600_000_000))
        for text in ("a\0b", "\ud800"):
            for template in (Template(kind=text), Template(kind="k", trace=text)):
                new = NewJob(str(uuid_utils.uuid7()), b"1", template)
                with pytest.raises(Invalid):
                    driver.run(creation.create, [new])
        driver.run(creation.create, [NewJob(str(uuid_utils.uuid7()), b"1", Template(kind="k"))])
        [claim] = driver.run(jobs.claim, worker_id="w", line=jobs.lines(["default"]), most=1)
        for text in ("a\0b", "\ud800"):
            with pytest.raises(Invalid):
                driver.run(
                    jobs.settle, [Settlement(claim, outcome.later(5, detail=text))], actor="w"
                )
        assert driver.run(jobs.get, claim.id).state == "RUNNING"
