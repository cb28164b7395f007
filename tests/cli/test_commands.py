"""The command line: data on stdout, messages on stderr, documented exit codes."""

import subprocess
import sys

import pytest

from milepost.cli import COMMANDS, cli, main


def run(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from milepost.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_that_agrees_with_the_list(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert capsys.readouterr().out.startswith("Usage: milepost")


def test_help_lists_every_command_and_the_exit_codes(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)
    assert "75 store unreachable" in out
    assert cli.get_command(None, "nonsense") is None


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["verify", "--store", "sqlite:///nothing-here.db"], 75, "no such file"),
        (["verify", "--store", "mysql://x"], 2, "no such kind of store"),
        (["migrate", "--dialect", "sqlite"], 2, "--dialect goes with --sql"),
        (["migrate", "--sql", "--json"], 2, "choose one"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_a_wrong_call_says_what_to_do(arguments, code, told, tmp_path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert told in done.stderr
    assert done.stdout == ""


def test_a_store_that_was_never_set_up_is_told_apart_from_a_broken_one(tmp_path):
    (tmp_path / "empty.db").touch()
    done = run("verify", "--store", "sqlite:///empty.db", cwd=tmp_path)
    assert done.returncode == 75
    assert "no Milepost store here yet: sqlite:///empty.db has no tables" in done.stderr
    assert "`milepost migrate --store sqlite:///empty.db` sets a store up there" in done.stderr


def test_printing_migrations_changes_nothing(tmp_path):
    done = run("migrate", "--sql", "--store", "sqlite:///none.db", cwd=tmp_path)
    assert done.returncode == 0
    assert "CREATE TABLE job" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_printing_migrations_where_none_is_missing_says_so(tmp_path):
    assert run("migrate", "--store", "sqlite:///jobs.db", cwd=tmp_path).returncode == 0
    done = run("migrate", "--sql", "--store", "sqlite:///jobs.db", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "sqlite:///jobs.db is up to date: nothing is missing\n"
