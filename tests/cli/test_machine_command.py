"""`milepost machine` shows a lifecycle at a prompt."""

import json

import pytest

from milepost.cli import main
from milepost.lifecycle import MACHINES
from milepost.specs import VIEWS


def show(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["machine", *arguments])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.mark.parametrize("name", MACHINES)
def test_it_prints_the_diagram_and_the_table_on_stdout(capsys, name):
    code, out, err = show(capsys, name)
    machine = MACHINES[name]
    assert (code, err) == (0, "")
    assert out == f"{machine.mermaid()}\n\n{machine.table()}\n"


def test_it_prints_one_of_them(capsys):
    assert show(capsys, "job", "--format", "mermaid")[1] == MACHINES["job"].mermaid() + "\n"
    assert show(capsys, "job", "--format", "table")[1] == MACHINES["job"].table() + "\n"


@pytest.mark.parametrize(("name", "spec"), [(n, s) for n, views in VIEWS.items() for s in views])
def test_it_speaks_a_specs_words(capsys, name, spec):
    code, out, err = show(capsys, name, "--spec", spec)
    view = VIEWS[name][spec]
    assert (code, err) == (0, "")
    assert out == f"{view.mermaid()}\n\n{view.table()}\n"


def test_d_sees_retrying_and_never_running_go_back(capsys):
    _, out, _ = show(capsys, "job", "--spec", "d", "--format", "mermaid")
    assert "RUNNING --> RETRYING : later, lose, release, retry" in out
    assert "RUNNING --> QUEUED" not in out
    assert "RUNNING --> CREATED" not in out


@pytest.mark.parametrize(
    ("name", "spec", "known"),
    [("run", "D", "A or B or C"), ("worker", "A", "E"), ("slot", "C", "E")],
)
def test_a_spec_without_words_is_an_error_that_names_those_with(capsys, name, spec, known):
    code, out, err = show(capsys, name, "--spec", spec)
    assert (code, out) == (2, "")
    assert err == (
        f"milepost: spec {spec} has no words for the {name} machine; try --spec {known}\n"
    )


def test_an_unknown_machine_is_a_usage_error(capsys):
    code, out, err = show(capsys, "door")
    assert (code, out) == (2, "")
    assert "'door' is not one of 'job', 'run', 'worker', 'slot'" in err


@pytest.mark.parametrize("name", MACHINES)
def test_json_has_exactly_the_declared_moves(capsys, name):
    document = json.loads(show(capsys, name, "--json")[1])
    machine = MACHINES[name]
    moves = {(m["move"], m["from"] or "", m["to"]) for m in document["moves"]}
    assert moves == machine.triples
    assert set(document["terminal"]) == machine.terminal
    assert document["states"] == [state.value for state in machine.states]


def test_json_speaks_a_specs_words(capsys):
    document = json.loads(show(capsys, "job", "--spec", "D", "--json")[1])
    assert document["spec"] == "D"
    assert document["terminal"] == ["SUCCEEDED", "FAILED"]
    assert {"move": "create", "from": None, "to": "QUEUED"} in document["moves"]
    assert not [m for m in document["moves"] if (m["from"], m["to"]) == ("RUNNING", "QUEUED")]
