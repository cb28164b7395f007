"""`milepost limits`: what a person sees and does without the app."""

import json

import pytest

from milepost.limit import limit_key
from milepost.store import buckets, rules
from milepost.store.rules import Limit


@pytest.fixture
def limited(app):
    """An app with a limit of 5 and a rate."""
    app.client.run(
        rules.declare,
        {
            ("job", "customer"): Limit(most=5),
            ("job", "tokens"): Limit(rate=25, per_us=1_000_000, burst=50, units="tokens"),
        },
    )
    return app


def test_limits_are_listed_and_shown(prompt, limited):
    answer = prompt("limits", "ls")
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "scope\tname\tallows\trunning\twaiting\tset_by\treason",
        "job\tcustomer\t5 at once\t0\t0\t\t",
        "job\ttokens\t25/s tokens, burst 50\t0\t0\t\t",
    ]
    one = json.loads(prompt("limits", "show", "tokens", "--json").out)
    assert (one["rate"], one["burst"], one["units"]) == ("25/s", 50, "tokens")
    assert one["declared"]["rate"] == "25/s"
    assert "allows\t5 at once" in prompt("limits", "show", "customer").out
    assert prompt("limits", "show", "nothing").code == 4


def test_a_limit_is_set_and_reset_in_the_persons_name(prompt, limited):
    said = prompt("limits", "set", "customer", "--most", "9", "--reason", "a quiet day", "--json")
    assert (said.code, json.loads(said.out)["most"]) == (0, 9)
    assert "limit customer is set: 9 at once; it acts at the next claim" in said.err
    again = prompt("limits", "set", "customer", "--most", "none", "--rate", "2/m", "--burst", "4")
    assert "2/m, burst 4" in again.err
    usual = prompt("limits", "set", "customer", "--burst", "none")
    assert "2/m, burst 1;" in usual.err
    back = prompt("limits", "reset", "customer", "--reason", "over")
    assert "limit customer is as it was declared: 5 at once" in back.err
    table = prompt("limits", "changes", "customer").out.splitlines()
    assert len(table) == 6
    newest = table[1].split("\t")
    assert newest[3:5] == ["2/m, burst 1", "5 at once"]
    assert newest[5].startswith("cli:")
    assert newest[6] == "over"
    [_, _, first, _, _] = json.loads(prompt("limits", "changes", "customer", "--json").out)
    assert (first["after"]["rate"], first["reason"]) == ("2/m", None)


@pytest.mark.both_stores
def test_a_key_is_cleared_in_the_persons_name(prompt, limited):
    took = {"limit": Limit(rate=25, per_us=1_000_000, burst=50), "units": 900}
    limited.client.run(buckets.take, "job", limit_key("tokens", "acme"), **took)
    nobody = prompt("limits", "clear", "tokens", "nobody")
    assert nobody.code == 4
    assert "least is left of: acme" in nobody.err
    said = prompt("limits", "clear", "tokens", "acme", "--reason", "counted twice", "--json")
    assert (said.code, json.loads(said.out)["name"]) == (0, "tokens")
    assert "the rate of tokens begins anew for acme" in said.err
    assert prompt("limits", "clear", "tokens", "acme").code == 4
    assert prompt("limits", "clear", "nothing").code == 4
    newest = prompt("limits", "changes", "tokens").out.splitlines()[1].split("\t")
    assert newest[4] == "acme cleared"
    assert newest[5].startswith("cli:")
    [first, _] = json.loads(prompt("limits", "changes", "tokens", "--json").out)
    assert (first["key"], first["reason"]) == ("acme", "counted twice")
    assert first["free_at"] > first["at"]


def test_a_queue_gets_a_limit_and_loses_it(prompt, limited):
    assert prompt("limits", "set", "slow", "--most", "3").code == 4
    assert prompt("limits", "set", "slow", "--scope", "queue", "--most", "3").code == 0
    assert "removed: no program declared it" in prompt("limits", "reset", "slow").err


def test_a_rate_without_a_unit_is_a_second(prompt, limited):
    assert "25/s, burst 25;" in prompt("limits", "set", "customer", "--rate", "25").err


def test_a_name_that_is_unknown_is_told_how_it_gets_a_limit(prompt, limited):
    assert "by setting it with its scope" in prompt("limits", "set", "slow", "--most", "3").err
    changes = prompt("limits", "changes", "slow")
    assert (changes.code, changes.out) == (0, "")
    assert "no limit 'slow' was ever declared or changed" in changes.err


@pytest.mark.parametrize("number", ["2147483648", "9" * 30])
def test_a_number_that_is_too_large_is_told_its_bound(prompt, limited, number):
    answer = prompt("limits", "set", "customer", "--most", number)
    assert (answer.code, "2,147,483,647 at most" in answer.err) == (2, True)


def test_a_limit_of_a_queue_is_told_as_one(prompt, limited):
    said = prompt("limits", "set", "customer", "--scope", "queue", "--most", "3")
    assert "limit of queue customer is set: 3 at once" in said.err


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--most", "many"],
        ["--most", "-1"],
        ["--rate", "fast"],
        ["--burst", "0"],
        ["--burst", "x"],
    ],
)
def test_a_mistake_is_told_and_nothing_is_set(prompt, limited, words):
    answer = prompt("limits", "set", "customer", *words)
    assert answer.code == 2
    assert len(limited.limits.changes("customer")) == 1


def test_a_store_without_limits_says_how_to_get_one(prompt, app):
    assert "declare one with @app.job(limit=" in prompt("limits", "ls").err
    assert "no limit was ever" in prompt("limits", "changes").err
