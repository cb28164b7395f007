"""The command line as a shell meets it: quick to load, completed, guessed at, configured."""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from milepost.cli import COMMANDS

LOADED = """
import sys
from pathlib import Path
import click
before = set(sys.modules)
from milepost.cli import main
each, *arguments = sys.argv[1:]
for command in [[name, each] for name in arguments] if each else [arguments]:
    try:
        main(command)
    except SystemExit:
        pass
print()
print(*sorted(set(sys.modules) - before))
"""
HEAVY = {"rich", "msgspec", "sqlite3", "psycopg", "asyncpg", "asyncio", "structlog", "logging"}


def loaded_by(*arguments, each=""):
    """Name what a command loads, or each of these with that option, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, each, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_click_and_next_to_nothing_else():
    """`milepost --help` stays under 200 ms because of what it does not import."""
    loaded = loaded_by("--help")
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("milepost.")} == {
        *("milepost.cli", "milepost.cli.groups", "milepost.errors"),
    }
    assert len(loaded) < 25, sorted(loaded)


def test_the_help_of_a_command_loads_no_driver_and_no_terminal_library():
    """One process asks for all: what one of them loads is there after the others, too."""
    unwanted = {"rich", "sqlite3", "psycopg", "asyncpg", "asyncio"}
    assert len(COMMANDS) > 20
    if loaded_by(*sorted(COMMANDS), each="--help") & unwanted:
        guilty = {name: loaded_by(name, "--help") & unwanted for name in sorted(COMMANDS)}
        pytest.fail(f"{guilty}")


def test_importing_milepost_loads_next_to_nothing():
    """`import milepost` stays under 150 ms: names are loaded when they are first used."""
    code = "import sys; a = set(sys.modules); import milepost; print(len(set(sys.modules) - a))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 40


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["queus"], "No such command 'queus'. Did you mean queues?"),
        (["jobs", "shwo"], "No such command 'shwo'. Did you mean show?"),
        (["config", "shw"], "Did you mean show?"),
        (["xyzzy"], "No such command 'xyzzy'. Try 'milepost --help'."),
        (["--nonsense"], "No such option"),
    ],
)
def test_a_mistyped_command_is_guessed(prompt, arguments, told):
    wrong = prompt(*arguments)
    assert (wrong.code, wrong.out) == (2, "")
    assert told in wrong.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_script(prompt, shell):
    done = prompt("completion", shell)
    assert done.code == 0
    assert f"_MILEPOST_COMPLETE={shell}_complete" in done.out


def completed(monkeypatch, prompt, words):
    monkeypatch.setenv("_MILEPOST_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_LINE", " ".join(words))
    monkeypatch.setenv("COMP_WORDBREAKS", " \t\n\"'><=;|&(:")
    return {line.partition(",")[2] for line in prompt().out.split()}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["milepost", "jo"], {"jobs"}),
        (["milepost", "wo"], {"worker", "workers"}),
        (["milepost", "jobs", "h"], {"history"}),
        (["milepost", "jobs", "ls", "--state", "RE"], {"ready", "retrying"}),
        (["milepost", "completion", ""], {"bash", "fish", "zsh"}),
    ],
)
def test_words_are_completed(monkeypatch, prompt, words, offered):
    assert completed(monkeypatch, prompt, words) == offered


def test_names_that_the_store_and_the_app_know_are_completed(monkeypatch, prompt, folder):
    from milepost.cli.values import load_app

    app = load_app("newcomer.py")
    convert, refuse = (vars(sys.modules["newcomer"])[name] for name in ("convert", "refuse"))
    jobs = [convert.options(queue="slow").submit("a"), refuse.submit(1)]
    app.schedule(convert, "0 2 * * *", name="nightly", args=("b",))
    app.drain()
    ids = {job.id for job in jobs}
    beginning = jobs[0].id[:-4]

    def offered(*words):
        return completed(monkeypatch, prompt, ["milepost", *words])

    assert offered("jobs", "show", "") == ids
    assert offered("explain", beginning) == {i for i in ids if i.startswith(beginning)}
    assert offered("runs", "show", "") == set()
    assert offered("queues", "pause", "") == {"default", "slow"}
    assert offered("jobs", "ls", "--queue", "s") == {"slow"}
    assert offered("worker", "newcomer.py", "--queue", "sl") == {"slow"}
    assert offered("jobs", "ls", "--kind", "") == {"convert", "refuse"}
    assert offered("submit", "newcomer:app", "con") == {"convert"}
    assert offered("schedules", "pause", "") == {"nightly"}
    assert offered("explain", "") == ids | {"queue", "schedule", "channel", "pipeline"}
    assert offered("explain", "queue", "") == {"default", "slow"}
    assert offered("explain", "schedule", "n") == {"nightly"}
    assert offered("at", "10m", "q") == {"queue"}
    assert offered("at", "10m", "queue", "s") == {"slow"}
    app.close()


def test_completing_creates_nothing_and_says_nothing(monkeypatch, prompt, folder):
    (folder / "broken.py").write_text("print('loud'); raise ValueError")
    assert completed(monkeypatch, prompt, ["milepost", "jobs", "show", "0"]) == set()
    assert completed(monkeypatch, prompt, ["milepost", "submit", "broken:app", ""]) == set()
    assert not (folder / "milepost.db").exists()


def test_the_package_itself_can_be_run():
    done = subprocess.run(
        [sys.executable, "-m", "milepost", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("milepost, version ")


def test_completing_a_command_loads_none(monkeypatch):
    monkeypatch.setenv("_MILEPOST_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_LINE", "milepost ")
    ours = {name for name in loaded_by() if name.startswith("milepost.cli.")}
    assert ours == {"milepost.cli.groups", "milepost.cli.bash"}


def test_settings_are_shown_with_where_they_come_from(prompt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MILEPOST_DATABASE_URL", "DATABASE_URL", "MILEPOST_SWEEP"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "milepost.toml").write_text('grace = "1m"\nlease = 60\n')
    monkeypatch.setenv("MILEPOST_LEASE", "45s")
    shown = json.loads(prompt("config", "show", "--json").out)
    assert shown["lease"] == {"value": 45.0, "from": "MILEPOST_LEASE"}
    assert shown["grace"] == {"value": 60.0, "from": "milepost.toml"}
    assert shown["sweep"] == {"value": 1.0, "from": "default"}
    assert shown["database_url"] == {"value": "sqlite:///milepost.db", "from": "default"}
    lines = [line.split("\t") for line in prompt("config", "show").out.splitlines()]
    assert lines[0] == ["setting", "value", "from"]
    assert ["lease", "45.0", "MILEPOST_LEASE"] in lines
    assert not (tmp_path / "milepost.db").exists()


def test_a_mistyped_variable_is_told(prompt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_LEAS", "45s")
    monkeypatch.setenv("MILEPOST_SECRET_OF_OURS", "hunter2")
    shown = prompt("config", "show", "--json")
    assert json.loads(shown.out)["lease"]["value"] == 30.0
    assert shown.err == "MILEPOST_LEAS is no setting; did you mean MILEPOST_LEASE?\n"


@pytest.mark.parametrize(
    ("variable", "option"),
    [("MILEPOST_DATABASE_URL", False), ("DATABASE_URL", False), ("--store", True)],
)
def test_the_stores_address_is_shown_without_its_secret(
    prompt, tmp_path, monkeypatch, variable, option
):
    monkeypatch.chdir(tmp_path)
    for name in ("MILEPOST_DATABASE_URL", "DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    url = "postgresql://me:hunter2@db.example:5433/jobs?sslpassword=hunter3"
    if not option:
        monkeypatch.setenv(variable, url)
    done = prompt("config", "show", "--json", *(["--store", url] if option else []))
    assert json.loads(done.out)["database_url"] == {
        "value": "postgresql://me@db.example:5433/jobs",
        "from": variable,
    }
    assert "hunter" not in done.out + done.err


def test_a_wrong_setting_is_a_usage_error(prompt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MILEPOST_LEASE", "soon")
    wrong = prompt("config", "show")
    assert (wrong.code, wrong.out) == (2, "")
    assert "lease: 'soon' is not a number" in wrong.err


def test_tables_are_drawn_on_a_terminal(monkeypatch, capsys):
    from milepost.cli.output import show_pairs, show_table

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    name = "0194f3a2-7b1c-7def-8000-123456789abc"
    show_table(("id", "kind"), [(name, "[bold]convert[/]" + "x" * 90)])
    show_pairs({"id": 1, "kind": "x"})
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["id", "kind"]
    assert name in out  # never cut short
    assert out.count("x") > 90  # folded, not cut
    assert "[bold]convert[/]" in out  # no markup is obeyed
    assert "id    1\nkind  x\n" in out


def test_a_table_fits_a_terminal_of_eighty_columns_and_no_word_of_it_is_broken(monkeypatch, capsys):
    from milepost.cli.output import show_table

    name, today = "0194f3a2-7b1c-7def-8000-123456789abc", datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    monkeypatch.setattr("milepost.cli.table.today", today.date)
    columns = ("id", "kind", "state", "attempt", "queue", "created_at")
    row = (name, "convert", "SUCCEEDED", 1, "default", today)
    long = (name, "count-stock.weigh", "SUCCEEDED", 1, "default", today - timedelta(days=400))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")

    def drawn(width, *rows):
        monkeypatch.setenv("COLUMNS", str(width))
        show_table(columns, rows)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        return [line.rstrip() for line in plain.splitlines()]

    head, rule, line = drawn(80, row)
    assert max(map(len, (head, rule, line))) <= 80
    assert line.split() == [name, "convert", "SUCCEEDED", "1", "default", "04:05:06Z"]
    assert line.split()[2:] == drawn(40, row)[2].split()[2:]  # too narrow: one line, the terminal's
    head, _, first, *folded = drawn(90, long)
    assert (name in first, "SUCCEEDED" in first) == (True, True)
    assert "".join(text.split()[0] for text in folded) in "count-stock.weigh"
    assert drawn(120, row)[2].endswith("2026-02-03 04:05:06Z")


def every_command(group=None, context=None):
    import click

    from milepost.cli import cli

    group = group or cli
    context = context or click.Context(cli)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield command
        if isinstance(command, click.Group):
            yield from every_command(command, context)


def test_every_command_and_every_option_has_a_help():
    import click

    for command in every_command():
        assert command.help, command.name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{command.name} {parameter.name}"


def test_every_command_that_shows_data_has_json():
    """What is not data is a script, a story, a secret, or runs until it is stopped."""
    without = {
        command.name
        for command in every_command()
        if not hasattr(command, "commands") and "as_json" not in {p.name for p in command.params}
    }
    assert without == {"completion", "demo", "dev", "grants", "secret", "server", "worker"}


def test_the_committed_page_is_a_fresh_rendering():
    from tools import reference

    page = Path(__file__).parents[2] / reference.COMMANDS_PAGE
    assert page.read_text() == reference.commands_page(), "run `make docs`"


def test_the_page_has_every_command_and_every_exit_code():
    from milepost.cli import EXIT_CODES, EXITS
    from tools import reference

    page = reference.commands_page()
    for name in ("jobs ls", "jobs rerun", "queues pause", "config show", "bench", "submit"):
        assert f"## milepost {name}\n" in page
    assert "| 124 | timed out |" in page
    assert {code for _, code in EXIT_CODES} < set(EXITS)
