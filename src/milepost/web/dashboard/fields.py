"""Forms made from types: an input for each field of a batch's parameters, and values read back."""

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import inspect as kinds

from milepost.batch.declaration import Batch
from milepost.codec import from_builtin
from milepost.errors import MilepostError

EMPTY = ""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """An input: how it looks, and what it must be."""

    name: str
    input: str
    """text, number, checkbox, date, select or json."""
    hint: Any = Any
    required: bool = False
    optional: bool = False
    """Whether it may be null."""
    value: str = EMPTY
    options: Sequence[str] = ()
    least: float | None = None
    most: float | None = None
    step: str = EMPTY
    told: str = EMPTY
    """Its type in words."""


WHOLE = "params"
"""The name of the one field of parameters that have no fields of their own."""


def fields_of(batch: Batch) -> list[Field]:
    """Make the inputs for a batch's parameters."""
    type_ = batch.params_type
    if type_ is None:
        return []
    found = _described(type_)
    if found is None:
        return [Field(name=WHOLE, input="json", hint=type_, required=True, told=_name(type_))]
    return [_field(name, hint, default) for name, (hint, default) in found.items()]


class _Missing:
    """There is no default."""


MISSING = _Missing()


def _described(type_: Any) -> dict[str, tuple[Any, Any]] | None:
    """Name the fields of a type with their types and defaults; None where it has none."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return {f.encode_name: (f.type, _default(f)) for f in msgspec.structs.fields(type_)}
    if dataclasses.is_dataclass(type_) and isinstance(type_, type):
        hints = typing.get_type_hints(type_, include_extras=True)
        return {f.name: (hints[f.name], _default(f)) for f in dataclasses.fields(type_)}
    if typing.is_typeddict(type_):
        hints = typing.get_type_hints(type_)
        needed = type_.__required_keys__
        return {name: (hints[name], MISSING if name in needed else None) for name in hints}
    models = getattr(type_, "model_fields", None)
    if isinstance(models, Mapping):
        return {
            name: (one.annotation, MISSING if one.is_required() else _called(one))
            for name, one in models.items()
        }
    return None


def _called(field: Any) -> Any:
    return field.get_default(call_default_factory=True)


def _default(field: Any) -> Any:
    nothing = (msgspec.NODEFAULT, dataclasses.MISSING)
    if field.default not in nothing:
        return field.default
    return MISSING if field.default_factory in nothing else field.default_factory()


def _field(name: str, hint: Any, default: Any) -> Field:
    required = isinstance(default, _Missing)
    looks, optional = _look(hint)
    value = EMPTY if required else _written(default, looks["input"])
    return Field(name=name, hint=hint, required=required, optional=optional, value=value, **looks)


def _look(hint: Any) -> tuple[dict[str, Any], bool]:
    """Choose an input for a type."""
    try:
        info = kinds.type_info(hint)
    except (TypeError, ValueError):
        return {"input": "json", "told": _name(hint)}, False
    if isinstance(info, kinds.UnionType):
        others = [one for one in info.types if not isinstance(one, kinds.NoneType)]
        optional = len(others) < len(info.types)
        if len(others) == 1:
            return _plain(others[0], hint), optional
        return {"input": "json", "told": _name(hint)}, optional
    return _plain(info, hint), False


SIMPLE: dict[type[kinds.Type], dict[str, Any]] = {
    kinds.BoolType: {"input": "checkbox", "told": "yes or no"},
    kinds.IntType: {"input": "number", "step": "1", "told": "a whole number"},
    kinds.FloatType: {"input": "number", "step": "any", "told": "a number"},
    kinds.StrType: {"input": "text", "told": "a text"},
    kinds.DateType: {"input": "date", "told": "a date"},
    kinds.DateTimeType: {"input": "text", "told": "a time, such as 2026-11-16T04:00:00Z"},
    kinds.TimeType: {"input": "text", "told": "a time of day, such as 04:00:00"},
    kinds.TimeDeltaType: {"input": "text", "told": "a duration, such as PT1H30M"},
    kinds.UUIDType: {"input": "text", "told": "a UUID"},
    kinds.DecimalType: {"input": "text", "told": "a number"},
}


def _plain(info: kinds.Type, hint: Any) -> dict[str, Any]:
    if isinstance(info, kinds.EnumType):
        return {"input": "select", "options": [_text(one.value) for one in info.cls]}
    if isinstance(info, kinds.LiteralType):
        return {"input": "select", "options": [_text(one) for one in info.values]}
    if type(info) not in SIMPLE:
        return {"input": "json", "told": _name(hint)}
    bounds = _bounds(info) if isinstance(info, kinds.IntType | kinds.FloatType) else {}
    return {**SIMPLE[type(info)], **bounds}


def _bounds(info: kinds.IntType | kinds.FloatType) -> dict[str, Any]:
    least = info.ge if info.ge is not None else info.gt
    return {"least": least, "most": info.le if info.le is not None else info.lt}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _written(value: Any, look: str) -> str:
    """Write a default as its input has it."""
    if value is None or isinstance(value, msgspec.UnsetType):
        return EMPTY
    if look == "checkbox":
        return "on" if value else EMPTY
    try:
        plain = msgspec.to_builtins(value, enc_hook=str)
    except (TypeError, ValueError):
        return EMPTY
    is_text = isinstance(plain, str) and look != "json"
    return str(plain) if is_text else msgspec.json.encode(plain).decode()


def _name(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    return text.replace("typing.", "")


# Reading what was sent


class Sent(msgspec.Struct, frozen=True):
    """What a form gave: the parameters, the texts as they were typed, and what does not fit."""

    params: Any
    typed: Mapping[str, str]
    problems: Mapping[str, str]


def read(fields: Sequence[Field], given: Mapping[str, Sequence[str]]) -> Sent:
    """Read the parameters of a form, each on its own."""
    typed = {field.name: (given.get(f"p.{field.name}") or [EMPTY])[-1] for field in fields}
    params: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for field in fields:
        try:
            if (value := _value(field, typed[field.name].strip())) is not MISSING:
                params[field.name] = value
                msgspec.convert(value, field.hint, dec_hook=from_builtin)
        except (MilepostError, ValueError, TypeError) as error:
            problems[field.name] = str(error) or "this does not fit"
    if not fields:
        return Sent(None, typed, problems)
    whole = len(fields) == 1 and fields[0].name == WHOLE and fields[0].input == "json"
    return Sent(params.get(WHOLE) if whole else params, typed, problems)


def _value(field: Field, text: str) -> Any:
    """Make a value of what was typed, as JSON would have it; nothing was typed: leave it out."""
    if field.input == "checkbox":
        return text == "on"
    if text == EMPTY:
        return _nothing(field)
    if field.input == "number":
        return _number(text, whole=field.step == "1")
    is_text = field.input in ("text", "date") or _is_text_option(field, text)
    return text if is_text else _json(text)


def _nothing(field: Field) -> Any:
    if not field.required:
        return MISSING
    if field.optional:
        return None
    if field.input == "text" and field.told == "a text":
        return EMPTY
    raise ValueError("it is missing")


def _is_text_option(field: Field, text: str) -> bool:
    """Tell whether an option of a list is a text, or the number that it says."""
    if field.input != "select":
        return False
    try:
        msgspec.convert(text, field.hint)
    except (msgspec.ValidationError, TypeError):
        return False
    return True


def _number(text: str, *, whole: bool) -> int | float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise ValueError("expected a whole number" if whole else "expected a number") from None


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is no JSON: {error}") from None
