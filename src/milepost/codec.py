"""How values become bytes. The store keeps the bytes and the codec's name, and looks no further."""

import hashlib
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import PurePath
from typing import Any, Protocol

import msgspec

from milepost.errors import Invalid

DEEPEST = 200
"""How deep a value may be nested: it may be read back on a deeper stack."""

NAME_BYTES = 500
"""How long a name may be: several of them together must fit into an index of any database."""
PROSE_BYTES = 4_000
"""How long a reason, or one tag, may be."""
TAGS_BYTES = 16_384

_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_RISES = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
# One that has no end is a text too: else a search from each of its quotes would go to the end.
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)


class Unreadable(Invalid):
    """No value at all can be built by that annotation: an `Iterable`, a class of the user's own."""


class _NotBuiltError(TypeError):
    """A class that JSON says nothing of."""


class Codec(Protocol):
    """Turns values into bytes and back; an encrypting one makes the engine blind to content."""

    name: str

    def encode(self, value: Any) -> bytes:
        """Encode, or raise `Invalid` naming the value that cannot be stored."""
        ...

    def decode(self, data: bytes, type_: Any = Any) -> Any:
        """Decode as the type that an annotation asks for, or raise `Invalid`."""
        ...


def marks(codec: Codec, data: bytes, *, column: str) -> tuple[str, ...]:
    """Fingerprint content: the first mark is to be stored, any of them tells it again.

    A codec with keys makes one with each, so that guesses cannot be tried without them, and content
    stored under an older key is known again.
    """
    keyed: Callable[..., tuple[str, ...]] | None = getattr(codec, "marks", None)
    if keyed is not None:
        return keyed(data, column=column)
    return (hashlib.sha256(data).hexdigest(),)


class JsonCodec:
    """JSON by msgspec: a value comes back as it went in, or is refused at once."""

    name = "json"

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=_to_builtin)
        self._decoders: dict[Any, msgspec.json.Decoder[Any]] = {}

    def encode(self, value: Any) -> bytes:
        """Encode, or raise `Invalid` naming the value that cannot be stored."""
        try:
            data = self._encoder.encode(value)
        except RecursionError as error:
            raise Invalid("the value is nested too deeply, or contains itself") from error
        except UnicodeEncodeError as error:
            raise Invalid("a text holds a lone surrogate, which no database stores") from error
        except (TypeError, ValueError, OverflowError) as error:
            raise Invalid(f"the value cannot be stored: {error}") from error
        # JSON has no NaN; msgspec writes null for it, and null alone may be a None.
        if b"null" in data:
            refuse_nan(value)
        # Short data cannot be deep. Brackets within texts may mislead; only then it is worth
        # taking the texts out.
        if len(data) > 2 * DEEPEST and _deeper(data) and _deeper(_TEXT.sub(b"", data)):
            raise Invalid(f"the value is nested more than {DEEPEST} deep")
        return data

    def decode(self, data: bytes, type_: Any = Any) -> Any:
        """Decode as the type that an annotation asks for, or raise `Invalid`."""
        try:
            return self._decoder(type_).decode(data)
        except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
            if data.startswith(b"\0mp"):  # see `encrypt`
                raise Invalid("the stored value is encrypted: MILEPOST_CODEC_KEYS") from None
            unknown = any(isinstance(e, _NotBuiltError) for e in (error, error.__cause__))
            kind = Unreadable if unknown else Invalid
            raise kind(f"the stored value does not fit: {error}") from error

    def _decoder(self, type_: Any) -> "msgspec.json.Decoder[Any]":
        try:
            return self._decoders[type_]
        except KeyError:
            decoder = self._decoders[type_] = _build_decoder(type_)
            return decoder
        except TypeError:  # an annotation that cannot be hashed
            return _build_decoder(type_)


def _build_decoder(type_: Any) -> "msgspec.json.Decoder[Any]":
    try:
        return msgspec.json.Decoder(type_, dec_hook=from_builtin)
    except (TypeError, ValueError) as error:
        raise _NotBuiltError(str(error)) from error


def hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Read a function's annotations: the types that its arguments and its result are decoded as."""
    try:
        told = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}  # a name that exists for type checkers only: nothing can be checked then
    return {name: Any if _is_anything(hint) else hint for name, hint in told.items()}


def _is_anything(hint: Any) -> bool:
    """Tell whether every value fits: `object`, alone or as one of several."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return hint is object or (is_union and object in typing.get_args(hint))


def limited(data: bytes, *, most: int, what: str) -> bytes:
    """Refuse data that is too large for a job to carry."""
    if len(data) > most:
        raise Invalid(
            f"{what}: {len(data):,} bytes, and the limit is {most:,}: put it into a file or a "
            "bucket and pass its address, or raise MILEPOST_MAX_PAYLOAD (and MILEPOST_LEASE: an "
            "argument has at most 1 MiB for each second of it, or no claim could move it in time)"
        )
    return data


def check_text(text: Any, *, what: str, most: int = NAME_BYTES, blank: bool = False) -> str:
    """Refuse a value that no database stores as a text, or that is too long for its place (H-105).

    A name that could not be seen is refused too; only prose may be `blank`.
    """
    if not isinstance(text, str) or not text or (text.isspace() and not blank):
        raise Invalid(f"{what}={shorten(text)} must be a text that is not blank")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise Invalid(f"{what}={shorten(text)} holds a character that no database stores")
    if len(text) * 4 > most and len(text.encode()) > most:
        raise Invalid(f"{what}={shorten(text)} is too long: it may take {most:,} bytes")
    return text


def check_tags(tags: Any) -> None:
    """Refuse tags that are no dict of texts, or more than a row should carry."""
    if tags is None:
        return
    if not isinstance(tags, Mapping):
        raise Invalid(f"tags={tags!r} must be a dict of texts, such as {{'user': '42'}}")
    size = 0
    for name, value in tags.items():
        check_text(name, what="the name of a tag")
        if value != "":
            check_text(value, what=f"tags[{name!r}]", most=PROSE_BYTES, blank=True)
        size += len(name) + len(value)
    if size > TAGS_BYTES:
        raise Invalid(f"tags: {size:,} characters, and {TAGS_BYTES:,} are the most of one job")


def encode_tags(tags: Mapping[str, str] | None) -> str | None:
    """Encode tags for their column, or raise `Invalid`."""
    if tags is None:
        return None
    check_tags(tags)
    return msgspec.json.encode(dict(tags)).decode()


def shorten(value: object) -> str:
    """Write a value for a message, cut where it is longer than a line's worth."""
    if isinstance(value, str):
        return repr(_cut(value))
    try:
        return _cut(repr(value))
    except ValueError:
        return "a number of thousands of digits"  # more than Python writes down


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:40] + "…"  # noqa: PLR2004 - a line's worth


def _to_builtin(value: Any) -> Any:
    if isinstance(value, PurePath):
        return str(value)
    dump = getattr(value, "model_dump", None)  # pydantic, which is not a dependency
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a type that JSON can carry")


def from_builtin(type_: Any, value: Any) -> Any:
    """Build types that msgspec does not know itself: paths, pydantic models, and `object`."""
    if type_ is object:
        return value
    if isinstance(type_, type) and issubclass(type_, PurePath):
        return type_(value)
    validate = getattr(type_, "model_validate_json", None)
    if callable(validate):
        return _validate(validate, value)
    raise _NotBuiltError(f"{type_} cannot be built from JSON")


def _validate(validate: Callable[[bytes], Any], value: Any) -> Any:
    try:
        return validate(msgspec.json.encode(value))
    except ValueError as error:
        # Pydantic's own text repeats the value; an error may end up where the value must not.
        told = getattr(error, "errors", None)
        if told is None:
            raise
        problems = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in told())
        raise ValueError("; ".join(problems)) from None


def _deeper(data: bytes) -> bytes:
    """Peel off one level after the other; the rest is nested deeper than allowed."""
    brackets = data.translate(_ONE_KIND, _NOT_BRACKETS)
    for _ in range(DEEPEST):
        if not brackets:
            break
        brackets = brackets.replace(b"[]", b"")
    return brackets


def nested_deeper(data: bytes, most: int) -> bool:
    """Tell whether JSON from outside is nested deeper than that, before anybody decodes it.

    One pass over the bytes, which need not be JSON: a bracket within a text is none.
    """
    if data.count(b"[") + data.count(b"{") <= most:
        return False
    brackets = _TEXT.sub(b"", data).translate(_RISES, _NOT_BRACKETS)
    return max(accumulate(memoryview(brackets).cast("b")), default=0) > most


def refuse_nan(value: Any) -> None:
    """Refuse NaN and infinity anywhere in a value: JSON has null for them, which says nothing."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                raise Invalid(f"{item} has no place in JSON; pass None or a text instead")
        elif isinstance(item, Mapping):
            stack.extend(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            stack.extend(item)
        elif callable(getattr(item, "model_dump", None)):
            stack.extend(vars(item).values())
        else:
            stack.extend(getattr(item, name, None) for name in _fields(item))


def _fields(item: Any) -> list[str]:
    """Name the fields of a Struct, a dataclass or an attrs class; anything else has none."""
    if hasattr(item, "__attrs_attrs__"):
        return [field.name for field in item.__attrs_attrs__]
    if hasattr(item, "__struct_fields__"):
        return list(item.__struct_fields__)
    return list(getattr(item, "__dataclass_fields__", ()))
