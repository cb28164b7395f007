"""Filters token by token: what cannot be read is told, and the rest is read."""

import pytest

from milepost.filters import LONGEST, TERMS_MOST, parse, tokens


@pytest.mark.parametrize(
    "text",
    ["", "state:failed", 'kind:"load files" -queue:a,b age:<1h tag.x:"a b"', 'error:"a \\" b"'],
)
def test_tokens_of_a_filter_are_its_terms(text):
    assert tuple(token.term for token in tokens(text)) == parse(text).terms
    assert " ".join(token.text for token in tokens(text)) == text


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("stat:failed kind:a", ["there is no key 'stat'; did you mean state?", ""]),
        ("kind:a word kind:b", ["", "'word' has no key", ""]),
        ('kind:"a b kind:c', ["a quote has no end", "'b' has no key", ""]),
        ("kind:a,, state:x", ["a value is missing", "there is no state 'x'"]),
        ("kind:\0", ["a character that no database stores"]),
    ],
)
def test_what_cannot_be_read_is_a_token_of_its_own(text, wrong):
    found = tokens(text)
    assert len(found) == len(wrong)
    for token, said in zip(found, wrong, strict=True):
        assert token.wrong.startswith(said)
        assert (token.term is None) == bool(said)


def test_a_filter_that_is_too_long_is_one_wrong_token():
    assert "at most" in tokens("x" * (LONGEST + 1))[0].wrong
    many = tokens("kind:a " * (TERMS_MOST + 1))
    assert [bool(token.wrong) for token in many] == [*[False] * TERMS_MOST, True]
