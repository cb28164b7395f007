"""The language of filters: what is read is what was written, and what is wrong has its column."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import Invalid
from milepost.filters import (
    EVER,
    KEYS,
    TAG,
    WORDS,
    Term,
    Value,
    Where,
    complement,
    intersection,
    parse,
    union,
)
from milepost.lifecycle import JobState

HOUR = 3_600_000_000
NOW = 1_800_000_000_000_000

texts = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"))
names = texts.filter(bool)
signs = st.sampled_from("<>")
spans = st.builds("{}{}".format, st.integers(0, 10**6), st.sampled_from("smhd"))
days = st.dates().map(str)
VALUES = {
    "state": st.sampled_from([*JobState, "pending", "Complete"]).map(str).map(Value),
    "run": st.uuids().map(str).map(Value),
    "age": st.builds(Value, spans, signs),
    "duration": st.builds(Value, spans, signs),
    "created": st.builds(Value, days, st.sampled_from(["", "<", ">"])),
    "error": st.builds(Value, names, st.just(""), st.booleans()),
}


@st.composite
def terms(draw):
    key = draw(st.sampled_from([*WORDS, "created", "age", "duration", "error", TAG]))
    values = draw(st.lists(VALUES.get(key, st.builds(Value, texts)), min_size=1, max_size=3))
    # A word that must be quoted is a text, of an error.
    if key == "error":
        values = [v if str(v)[0] != '"' else Value(v.word, text=True) for v in values]
    return Term(key, tuple(values), draw(names) if key == TAG else "", draw(st.booleans()))


@given(st.lists(terms(), max_size=5))
def test_a_filter_reads_as_it_was_written(given_terms):
    where = Where(tuple(given_terms))
    assert parse(str(where)) == where
    assert parse(f"  {where}  ") == where


@given(names.filter(lambda name: not re.search(r'[\s":,]', name)), st.lists(terms(), max_size=3))
def test_an_unknown_key_is_refused_with_its_column(name, before):
    if name.removeprefix("-") in KEYS or name.startswith(("-", "tag.")):
        return
    text = " ".join([*map(str, before), f"-{name}:x"])
    with pytest.raises(Invalid, match=f"column {len(text) - len(name) - 1}: there is no key"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("state:failed sate:x", 14, "did you mean state?"),
        ("Timeout", 1, "write KEY:VALUE, as in error:Timeout"),
        ("kind:", 6, "a value is missing"),
        ("kind:a,", 8, "a value is missing"),
        ('kind:"a', 6, "a quote has no end"),
        ('kind:"a"b', 9, "a space or a comma"),
        ("kind:>a", 6, "takes no >"),
        ("age:1h", 5, "takes < or >"),
        ("age:>1 h", 5, "no length of time"),
        ("duration:>5w", 10, "write 30s, 5m, 1.5h or 7d"),
        ("created:>1h", 9, "or age:>1h"),
        ("state:failed,broken", 14, "there is no state 'broken'"),
        ("run:12", 5, "is not the id of a run"),
        ("tag.:1", 1, "there is no key 'tag.'"),
        ("kind:a " * 31, 211, "at most 30 terms"),
    ],
)
def test_a_mistake_has_its_column(text, column, said):
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert f"filter, column {column}: " in str(refused.value)
    assert said in str(refused.value)


def test_terms_are_joined_by_and_commas_by_or_and_a_dash_is_not():
    where = parse("state:failed,CANCELLED state:pending,failed -kind:a,b -kind:c")
    assert where.only("state") == ["FAILED"]
    assert where.never("kind") == ["a", "b", "c"]
    assert where.only("kind") is None
    assert where.never("state") is None


def test_times_become_intervals():
    assert parse("age:>1h").created(NOW) == [(0, NOW - HOUR)]
    assert parse("age:<1.5h").created(NOW) == [(NOW - HOUR * 3 // 2 + 1, EVER)]
    assert parse("-age:>1h").created(NOW) == [(NOW - HOUR, EVER)]
    [(first, last)] = parse("created:2026-11-16").created(NOW)
    assert last - first == 24 * HOUR
    assert parse("created:>2026-11-16").created(NOW) == [(last, EVER)]
    assert parse("created:>2026-11-17T01:00+01:00").created(NOW) == [(last + 1, EVER)]
    assert parse("duration:<10s,>1m").duration() == [(0, 10_000_000), (60_000_001, EVER)]
    fixed = parse("age:>1h -age:>2d kind:a").fixed(NOW)
    assert fixed.created(NOW + HOUR) == parse("age:>1h -age:>2d").created(NOW)
    assert "age" not in str(fixed)


points = st.integers(0, 50)
sets = st.lists(st.tuples(points, points), max_size=4)


@given(sets, sets, points)
def test_intervals_are_sets(some, others, point):
    def within(intervals):
        return any(low <= point < high for low, high in intervals)

    assert within(union(some)) == within(some)
    assert within(complement(some)) != within(some)
    assert within(intersection(some, others)) == (within(some) and within(others))
