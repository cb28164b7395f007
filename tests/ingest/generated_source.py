"""The source of a generated world, as a program declares it: its methods, types and options."""

from datetime import datetime
from typing import Any, TypedDict

import msgspec
from generated_world import BOUNDS, ERRORS, LONGEST, World

import milepost as mp
from milepost.store import failpoint

NAME = "things"
OVERLAP = 10
"""In minutes, or numbers of a sequence."""


def declare(world: World, url: str, **options: Any) -> tuple[mp.App, Any]:
    """Make an app with the world's pipeline, as a new version of a program does."""
    app = mp.App(url, lease=2, heartbeat=0.5, max_payload=LONGEST)
    pipeline = app.pipeline(
        NAME,
        source_of(world),
        key=shop_key if world.has_key_function else "id",
        version="at" if world.is_versioned else None,
        partition_by="place",
        page=world.page,
        overlap=OVERLAP if world.is_sequence else OVERLAP * 60,
        quarantine_limit=1.0,
        retries=4,
        retry_delay=0,
        mapping_version=world.mapping,
        **options,
    )
    return app, pipeline


def shop_key(raw):
    """Tell records apart by more than one field."""
    if not raw["id"] and raw["id"] != 0:
        raise KeyError("id")
    return f"shop-{raw['id']}"


def record_of(world: World) -> type:
    """Make the record type of now."""
    fields: list[Any] = [
        ("id", world.key_type),
        ("price", int if world.shape < 2 else float),
        ("text", str | None),
        ("extra", dict[str, Any]),
    ]
    if world.shape >= 1:
        fields += [("weight", float | None), ("moment", datetime | None)]
    return msgspec.defstruct("Thing", fields)


def raw_of(world: World) -> Any:
    """Say what the source gives: everything with its type, or nothing at all."""
    if world.has_bounds:
        return dict
    fields = {"id": world.key_type, "place": world.place_type | None, "moment": datetime | None}
    rest = dict.fromkeys(["at", "base", "text", "weight", "extra", "trouble"], Any)
    return TypedDict("Raw", {**fields, **rest}, total=False)  # type: ignore[operator]


def source_of(world: World) -> mp.Source:
    """Make the source: by cursors or by offsets, asynchronous or not."""
    record, given, times = record_of(world), raw_of(world), world.mapping + 1
    is_offset = world.style == "offsets"
    base = mp.OffsetSource[given, record] if is_offset else mp.Source[given, record, Any]

    class Things(base):
        nullable = world.is_nullable
        bounds = BOUNDS[world.place_type] if world.has_bounds else None
        measure = "sequence" if world.is_sequence else "time"
        again = 2

        def count(self, window, low, high):
            return counted(world, window, low, high)

        def fetch(self, window, partition, cursor):
            return fetched(world, window, partition, cursor)

        def map(self, raw: given) -> record:
            return corrected(mapped(world, record, raw), times)

        def enrich(self, records, rules):
            return [enriched(one, rules) for one in records]

        def rules(self):
            return {"factor": world.factor} if world.has_rules else None

        def upper_bound(self):
            return world.end if world.has_clock else None

    class AsyncThings(Things):
        async def fetch(self, window, partition, cursor):
            return fetched(world, window, partition, cursor)

        async def map(self, raw: given) -> record:
            return corrected(mapped(world, record, raw), times)

    return AsyncThings() if world.is_async else Things()


def counted(world, window, low, high):
    if world.broken == "count":
        raise ConnectionError("the source is away")
    rows = [row for row in world.shown() if row.place is not None and window.covers(row.at)]
    return round(world.counting * sum(bool(low <= row.place < high) for row in rows))


def fetched(world, window, partition, cursor):
    """Give a page: plainly, each one twice, with the last record again, or nothing at first."""
    failpoint.reach("before:fetch")
    world.read()
    if world.broken == "fetch" and partition.ordinal % 2 == world.seed % 2:
        raise ConnectionError("the source is away")
    rows = [r for r in world.shown() if window.covers(r.at) and partition.covers(r.place)]
    if world.style == "offsets":
        return [row.raw for row in rows[cursor or 0 : (cursor or 0) + 5]]
    at, turn = cursor or (None, 0)
    left = [row for row in rows if at is None or row.order > at]
    page, more = left[: world.page], len(left) > world.page
    if world.style in ("twice", "empty") and not turn:
        return mp.Page([row.raw for row in page if world.style == "twice"], [at, 1])
    if world.style == "overlapping" and at is not None:
        page = [*(row for row in rows if row.order == at), *page]
    return mp.Page([row.raw for row in page], [page[-1].order, 0] if more else None)


def mapped(world, record, raw):
    failpoint.reach("before:map")
    trouble = raw.get("trouble")
    if trouble in ERRORS:
        raise ERRORS[trouble]("no such thing")
    key = msgspec.convert(raw["id"], world.key_type, strict=False)
    if trouble in ("gone", "raise gone"):
        gone = mp.Gone(world.key_text(key))
        if trouble == "gone":
            return gone
        raise gone
    given = {name: raw[name] for name in record.__struct_fields__ if name in raw}
    base = raw["base"] if trouble != "enrich" else None
    halved = record.__annotations__["price"] is float and base is not None
    given["price"] = base / 2 if halved else base
    if given.get("moment"):
        given["moment"] = msgspec.convert(raw["moment"], datetime)
    return record(**{**given, "id": key})


def corrected(record, times):
    """Write a text more often with every correction of the mapping."""
    if isinstance(record, mp.Gone) or record.text is None:
        return record
    return msgspec.structs.replace(record, text=record.text * times)


def enriched(record, rules):
    if record.price is None:
        raise mp.Reject("it has no price")
    factor = 1 if rules is None else rules["factor"]
    return msgspec.structs.replace(record, price=record.price * factor)
