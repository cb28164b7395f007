"""A stored call reaches its handler exactly as Python itself would have made it."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.codec import JsonCodec
from milepost.declare import Arguments
from milepost.errors import Invalid

pytestmark = pytest.mark.in_turn

CODEC = JsonCodec()


def plain(a: int = 1, b: int = 2, c: int = 3) -> list:
    return [a, b, c]


def required(a: int, b: int = 2, *, c: int = 3, d: int = 4) -> list:
    return [a, b, c, d]


def positional_only(a: int, b: int = 2, /, c: int = 3) -> list:
    return [a, b, c]


def starred(a: int = 1, *rest: int, b: int = 2, **more: int) -> list:
    return [a, rest, b, more]


def nullable(a: int | None = 1, b: int | None = 2) -> list:
    return [a, b]


def named_only(a: int = 1, *, b: int) -> list:
    return [a, b]


HANDLERS = (plain, required, positional_only, starred, nullable, named_only)


def carried(function, args, kwargs):
    """Store a call and make it again from what was stored."""
    arguments = Arguments(function, function.__name__)
    payload = CODEC.encode(arguments.bind(args, kwargs))
    arguments.check(payload, CODEC)
    positional, named = arguments.stored(payload, CODEC)
    return function(*positional, **named)


@given(
    st.sampled_from(HANDLERS),
    st.lists(st.integers(10, 99), max_size=4),
    st.dictionaries(st.sampled_from("abcde"), st.integers(10, 99)),
)
def test_every_call_that_python_takes_arrives_as_it_was_meant(function, args, kwargs):
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(Invalid):
            carried(function, args, kwargs)
        return
    assert carried(function, args, kwargs) == function(*args, **kwargs)


@pytest.mark.parametrize("named", [{"b": 9}, {"c": 9}, {"a": 9, "c": 8}])
def test_a_default_that_was_left_out_keeps_its_place(named):
    assert carried(plain, (), named) == plain(**named)


def test_object_means_anything():
    def handler(given: object, other: object = None, *, union: int | object = 3) -> object: ...

    arguments = Arguments(handler, "handler")
    for value in (1, "x", [None, {"n": 1}], None):
        stored = CODEC.encode(arguments.bind((value, value), {"union": value}))
        arguments.check(stored, CODEC)
        assert arguments.stored(stored, CODEC) == ([value, value], {"union": value})
