"""The types that `map` takes and returns, and the fingerprint of the mapping and its rules."""

import enum
import hashlib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import msgspec

from milepost.ingest.source import Source

HASH_BYTES = 8
"""The hash kept with each record is one number: it is compared, and never read."""


# Types


def fields_of(type_: Any) -> Mapping[str, Any] | None:
    """Name the fields of a type with their own types; None for a type without fields."""
    told = _annotated_fields(type_)
    return None if told is None else {name: _bare(hint) for name, hint in told.items()}


def _annotated_fields(type_: Any) -> Mapping[str, Any] | None:
    """Name the fields of a type with all that is annotated, None included."""
    known = isinstance(type_, type) and (
        issubclass(type_, msgspec.Struct)
        or is_dataclass(type_)
        or typing.is_typeddict(type_)
        or hasattr(type_, "model_fields")
    )
    if not known:
        return None
    names = getattr(type_, "__struct_fields__", None) or getattr(type_, "model_fields", None)
    told = typing.get_type_hints(type_, include_extras=True)
    return {name: told[name] for name in (names or told) if name in told}


def _bare(hint: Any) -> Any:
    """Take away annotations, and None where a value may be missing."""
    if typing.get_origin(hint) is typing.Annotated:
        return _bare(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        known = [one for one in typing.get_args(hint) if one is not types.NoneType]
        return _bare(known[0]) if len(known) == 1 else hint
    return hint


def record_type(source: Source[Any, Any, Any]) -> Any:
    """Find the type of records: the one that `map` returns, or that `Source[...]` was given."""
    for found in (_bare(_hints(source.map).get("return")), _argument(type(source), 1)):
        if fields_of(found) is not None:
            return found
    return Any


def raw_type(source: Source[Any, Any, Any]) -> Any:
    """Find the type of raw records: the one that `map` takes, or that `Source[...]` was given."""
    taken = [hint for name, hint in _hints(source.map).items() if name != "return"]
    for found in (*taken[:1], _argument(type(source), 0)):
        if found is not None and not isinstance(found, typing.TypeVar):
            return found
    return Any


def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(method, include_extras=True)
    except (NameError, TypeError):
        return {}


def _argument(class_: type, place: int) -> Any:
    """Find the argument of `Source[...]` in that place."""
    for base in class_.__mro__:
        for origin in getattr(base, "__orig_bases__", ()):
            args = typing.get_args(origin)
            if len(args) > place and issubclass(typing.get_origin(origin) or object, Source):
                return args[place]
    return None


# Fingerprints


class Fingerprint:
    """How a program turns raw records into records of its target, in one word."""

    def __init__(self, record: Any, *, version: int | str) -> None:
        self.digest = hashlib.sha256(f"{version}\n{shape_of(record)}".encode()).hexdigest()

    def made_with(self, rules_digest: str | None) -> int:
        """Return the number that is kept with records of this mapping and those rules."""
        told = f"{self.digest}\n{rules_digest or ''}".encode()
        digest = hashlib.blake2b(told, digest_size=HASH_BYTES).digest()
        return int.from_bytes(digest, "big", signed=True)


def shape_of(hint: Any, within: tuple[Any, ...] = ()) -> str:
    """Write a type as its fields and their types: the same in every program that means the same.

    Names of classes and modules are not in it (a file that is run is another module), nor the order
    of fields.
    """
    if typing.get_origin(hint) is typing.Annotated:
        return shape_of(typing.get_args(hint)[0], within)
    if typing.get_origin(hint) is not None or isinstance(hint, types.UnionType):
        return _composed(hint, within)
    if hint in within:  # a type that holds itself
        return f"^{within[::-1].index(hint)}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"Enum[{', '.join(sorted(repr(one.value) for one in hint))}]"
    fields = _annotated_fields(hint)
    if fields is None:
        return _name(hint)
    inner = (f"{field}: {shape_of(type_, (*within, hint))}" for field, type_ in fields.items())
    return f"({', '.join(sorted(inner))})"


def _composed(hint: Any, within: tuple[Any, ...]) -> str:
    """Write a union, a generic, or listed values."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return f"Literal[{', '.join(sorted(map(repr, args)))}]"
    parts = [shape_of(one, within) for one in args]
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(parts))
    return f"{_name(origin)}[{', '.join(parts)}]"


def _name(hint: Any) -> str:
    """Name a type; one without a name is known by its kind: an address is another every time."""
    return str(getattr(hint, "__name__", None) or type(hint).__name__)
