"""An option of a job is declared once; all who take, check, store or tell it derive from there."""

import inspect
from importlib.resources import files
from pathlib import Path

import pytest

import milepost as mp
from milepost import options
from milepost.batch.declaration import Batch
from milepost.options import (
    DEFAULTS,
    Amount,
    Counted,
    HandlerOptions,
    JobOptions,
    Rule,
    Seconds,
    Size,
    StepOptions,
    SubmitOptions,
    Submitting,
    Whole,
    names,
    pinned,
    rules,
)
from milepost.records import Claim, Job, Limits, NewStep, Template
from milepost.request.declaration import RequestOptions
from milepost.web.jobs import NewJobOptions
from tools.options_reference import APP, described, meanings

EVERY = {**rules(JobOptions), **rules(SubmitOptions)}


@pytest.fixture
def idle() -> mp.App:
    """An app whose store is never opened."""
    return mp.App("sqlite:///never-opened.db")


def work() -> None: ...


def test_every_option_has_a_meaning_that_an_editor_shows():
    told = meanings(options)
    assert {name for name in EVERY if not told.get(name)} == set()
    shown = inspect.getdoc(mp.App.job) or ""
    assert {name for name in names(JobOptions) if f"* `{name}`: " not in shown} == set()


def test_the_docstring_of_a_declaration_says_what_the_options_say():
    text = APP.read_text()
    assert described(text) == text, "run `make docs`"
    assert described(text.replace("* `retries`: ", "* `retries`: not ")) == text


def test_what_is_stored_has_a_column_in_every_row_that_stores_it():
    columns = set(pinned(DEFAULTS))
    assert columns <= set(Template.__struct_fields__) & set(NewStep.__struct_fields__)
    assert set(Limits.__struct_fields__) <= columns
    assert set(Limits.__struct_fields__) <= set(Job.__struct_fields__)
    assert set(Limits.__struct_fields__) <= set(Claim.__struct_fields__)


def test_places_take_what_is_declared_for_them():
    assert set(NewJobOptions.model_fields) == names(SubmitOptions)
    assert names(StepOptions) == names(JobOptions) - {"version", "channel", "on_failure"}
    assert names(HandlerOptions) == names(StepOptions) - {"limit"}
    assert names(Submitting) | names(Counted) | {"limit"} <= names(RequestOptions)
    hinted = Batch.step.__globals__["StepOptions"]
    assert hinted is StepOptions


WRONG = {
    "queue": "",
    "priority": 10,
    "retries": -1,
    "recoveries": -1,
    "deadline": -1,
    "start_within": "soon",
    "poll_limit": 1.5,
    "timeout": 0,
    "poison_limit": 0,
    "start_in": -1,
    "start_at": "now",
    "unique": "",
    "tags": "red",
    "hold": "yes",
    "channel": "\0",
    "version": 0,
    "name": " ",
    "isolate": "yes",
    "memory": "much",
    "cpu_seconds": 0,
    "on_conflict": "drop",
    "unique_for": 0,
    "limit": 5,
    "limit_key": "",
    "units": 0,
}


def test_a_wrong_value_is_refused_in_the_same_words_wherever_it_is_given(idle):
    assert set(WRONG) == {name for name, rule in EVERY.items() if type(rule) is not Rule}
    for name, value in WRONG.items():
        said = []
        if name in names(JobOptions):
            with pytest.raises(mp.Invalid) as declared:
                idle.job(**{name: value})(work)
            said.append(str(declared.value).removeprefix("job 'work': "))
        if name in names(SubmitOptions):
            job = mp.App("sqlite:///never-opened.db").job(work)
            with pytest.raises(mp.Invalid) as asked:
                job.options(**{name: value})
            said.append(str(asked.value))
        assert len(set(said)) == 1, said
        assert name in said[0]


@pytest.mark.parametrize("digits", [400, 5_000])
def test_a_number_beyond_all_bounds_is_refused_in_short(digits):
    """Some were an OverflowError; and 5,000 digits are more than Python writes down."""
    for name, rule in EVERY.items():
        if isinstance(rule, Whole | Seconds | Amount | Size):
            with pytest.raises(mp.Invalid, match=name) as caught:
                rule.check(name, 10**digits)
            assert len(str(caught.value)) < 200


def test_none_leaves_an_option_as_it_was_and_takes_a_time_limit_away(idle):
    declared = idle.job(queue=None, retries=None, timeout=None)(work)
    assert declared.definition.options == {**DEFAULTS, "timeout": None}
    template = declared.options(retries=7, priority=None).options(retries=None).new((), {}).template
    assert (template.retries, template.priority, template.timeout_us) == (7, 0, None)


def test_an_option_that_there_is_not_is_refused_by_name(idle):
    with pytest.raises(mp.Invalid, match=r"work\.options\(\) takes no colour; it takes channel, "):
        idle.job(work).options(colour="red")


def test_few_files_know_an_option_by_its_name():
    package = Path(str(files("milepost")))
    texts = [*package.rglob("*.py"), *package.rglob("*.sql")]
    naming = [
        str(path.relative_to(package))
        for path in texts
        if "migrations" not in path.parts and "poison_limit" in path.read_text()
    ]
    assert len(naming) <= 12, sorted(naming)
