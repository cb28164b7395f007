"""What records are made with: the rules, the mapping's version and the shape of a record."""

import enum
import hashlib
import types
import typing
from collections.abc import Mapping
from typing import Any

from milepost.ingest.target import fields_of

HASH_BYTES = 8
"""What is kept with each record is one number: it is compared, and never read."""


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
    fields = _told(hint)
    if fields is None:
        return _name(hint)
    inner = (f"{field}: {shape_of(type_, (*within, hint))}" for field, type_ in fields.items())
    return f"({', '.join(sorted(inner))})"


def _composed(hint: Any, within: tuple[Any, ...]) -> str:
    """Write a union, a list of something, or values that are listed."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return f"Literal[{', '.join(sorted(map(repr, args)))}]"
    parts = [shape_of(one, within) for one in args]
    if origin in (typing.Union, types.UnionType):
        return " | ".join(sorted(parts))
    return f"{_name(origin)}[{', '.join(parts)}]"


def _told(hint: Any) -> Mapping[str, Any] | None:
    """Name the fields of a type with all that is said of them, None included."""
    if (bare := fields_of(hint)) is None:
        return None
    full = typing.get_type_hints(hint, include_extras=True)
    return {name: full[name] for name in bare}


def _name(hint: Any) -> str:
    """Name a type; what has no name is known by its kind: an address is another every time."""
    return str(getattr(hint, "__name__", None) or type(hint).__name__)
