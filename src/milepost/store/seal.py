"""Content of users passes the codec on its way to the database, and back (H-105).

Operations and drivers know nothing of it. A parameter is known by its name: `SEALED` names those
that carry content. Columns that people search by in SQL stay as they are: tags, unique and limit
keys, names, actors, the keys of records and the tables of pipelines.
"""

import base64
import binascii
import re
from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import msgspec

from milepost.codec import Codec
from milepost.encrypt import moved
from milepost.errors import Invalid
from milepost.store.catalog import Statement, query
from milepost.store.driver import Call, Rows, Steps

T = TypeVar("T")
P = ParamSpec("P")
CODED = frozenset({"payload", "result", "data", "position", "rules", "session"})
"""Parameters whose values the codec has made already."""
SEALED = {name: name for name in CODED} | {
    **{name: name for name in ("answer", "content", "error", "message")},
    # A reason becomes the detail of an entry.
    **dict.fromkeys(("detail", "reason"), "detail"),
}
"""Parameters that carry content, and the column that it is sealed for."""
COLUMNS = SEALED | {"report": "result", "cancel_reason": "detail"}
"""Columns, and those they were sealed for: the database moves a result into a run's report."""
MAGIC = b"\0mp"
TEXT = "sealed:"
PROBLEM = '{"type":"Sealed","message":"'
"""An error keeps the form that readers expect: a type and a message."""
ANY = "any"


class _Sealer(Protocol):
    def seal(self, data: bytes, *, column: str) -> bytes: ...

    def unseal(self, data: bytes) -> tuple[bytes, str]: ...


class _ByCodec:
    """Has a codec that only knows values encode texts and bytes too; it knows no columns."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def seal(self, data: bytes, *, column: str) -> bytes:
        del column
        return MAGIC + b"0" + self._codec.encode(base64.b64encode(data).decode())

    def unseal(self, data: bytes) -> tuple[bytes, str]:
        try:
            text: str = self._codec.decode(data[len(MAGIC) + 1 :], str)
            return base64.b64decode(text), ANY
        except Exception as error:
            raise Invalid(f"the codec {self._codec.name} cannot open it") from error


class CodecPass:
    """Passes the content that operations write and read through a codec."""

    def __init__(self, codec: Codec) -> None:
        if hasattr(codec, "seal"):
            self._sealer = cast("_Sealer", codec)
            self._sealed = SEALED
        else:
            self._sealer = _ByCodec(codec)
            self._sealed = {name: SEALED[name] for name in SEALED.keys() - CODED}

    def __call__(self, operation: Callable[P, Steps[T]]) -> Callable[P, Steps[T]]:
        """Make an operation that is run instead."""

        def passed(*args: P.args, **kwargs: P.kwargs) -> Steps[T]:
            return self._steps(operation(*args, **kwargs))

        return passed

    def _steps(self, steps: Steps[T]) -> Steps[T]:
        try:
            call = next(steps)
            while True:
                rows = yield self._passed(call)
                call = steps.send(self._opened(call, rows))
        except StopIteration as end:
            result: T = end.value
            return result

    def _passed(self, call: Call) -> Call:
        # A statement without a name is about a table of the user's.
        names = call.parameters.keys() & self._sealed.keys() if isinstance(call.name, str) else ()
        if not names:
            return call
        more = {name: self._value(call.parameters[name], self._sealed[name]) for name in names}
        return msgspec.structs.replace(call, parameters={**call.parameters, **more})

    def _value(self, value: Any, column: str) -> Any:
        if isinstance(value, list):
            return [self._value(item, column) for item in value]
        if isinstance(value, bytes):
            return self._sealer.seal(value, column=column)
        if not isinstance(value, str):
            return value
        data = self._sealer.seal(value.encode(errors="surrogatepass"), column=column)
        text = f"{TEXT}{base64.urlsafe_b64encode(data).decode()}"
        return f'{PROBLEM}{text}"}}' if value.startswith('{"type":') else text

    def _opened(self, call: Call, rows: Rows) -> Rows:
        is_sealed = _is_sealed_text if call.as_stored else _is_sealed
        if not any(is_sealed(value) for row in rows for value in row):
            return rows
        columns = _columns(call.name)
        return [
            [self._plain(value, columns) if is_sealed(value) else value for value in row]
            for row in rows
        ]

    def _plain(self, value: Any, columns: frozenset[str]) -> Any:
        """Open a value; one that cannot be opened stays as it is, and its decoder says why."""
        try:
            data, column = self._sealer.unseal(_bytes(value))
        except (Invalid, binascii.Error):
            return value
        if column != ANY and column not in columns:
            return moved(column) if isinstance(value, bytes) else value
        return data if isinstance(value, bytes) else data.decode(errors="surrogatepass")


def _is_sealed_text(value: Any) -> bool:
    return isinstance(value, str) and value.startswith((TEXT, PROBLEM))


def _is_sealed(value: Any) -> bool:
    return _is_sealed_text(value) or (isinstance(value, bytes) and value.startswith(MAGIC))


def _bytes(value: bytes | str) -> bytes:
    if isinstance(value, bytes):
        return value
    text = value.removeprefix(PROBLEM).removesuffix('"}').removeprefix(TEXT)
    return base64.urlsafe_b64decode(text)


@cache
def _columns(name: str | Statement) -> frozenset[str]:
    """List the columns that a statement reads: a value sealed for another was moved by hand."""
    # One that only one database has says nothing for the other.
    texts = [query(name, dialect).text for dialect in ("sqlite", "postgres")]
    words = re.findall(r"[a-z_]+", " ".join(texts))
    return frozenset(COLUMNS[word] for word in words if word in COLUMNS)


class SealingDriver:
    """A driver of either colour whose operations pass a codec."""

    def __init__(self, driver: Any, through: CodecPass) -> None:
        self._driver = driver
        self._through = through

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def run(self, operation: Callable[P, Steps[T]], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run an operation; with an asynchronous driver it is to be awaited."""
        return self._driver.run(self._through(operation), *args, **kwargs)


def through_codec(codec: Codec) -> CodecPass | None:
    """Say how content passes a codec; plain JSON is stored as it is, and costs nothing."""
    return None if codec.name == "json" else CodecPass(codec)


def as_stored(steps: Steps[T]) -> Steps[T]:
    """Have an operation read payloads and results as they are stored, to pass them on."""
    try:
        call = next(steps)
        while True:
            call = steps.send((yield msgspec.structs.replace(call, as_stored=True)))
    except StopIteration as end:
        result: T = end.value
        return result
