"""`milepost schedules`: what a person sees and does without the app."""

import json

import pytest


@pytest.fixture
def scheduled(app):
    """A schedule that a worker has entered, and one whose program is gone."""
    convert = app.registry.newest("convert")
    from milepost.job import Job

    app.schedule(Job(app, convert), "0 2 * * *", zone="Europe/Berlin", args=("a",), name="nightly")
    app.maintain_once()
    return app


def test_schedules_are_listed_with_their_next_time_in_their_zone(prompt, scheduled):
    answer = prompt("schedules", "ls", "--json")
    [schedule] = json.loads(answer.out)
    assert answer.code == 0
    assert (schedule["name"], schedule["kind"], schedule["state"]) == (
        "nightly",
        "convert",
        "active",
    )
    assert schedule["next"][11:16] == "02:00"
    table = prompt("schedules", "ls").out
    assert table.splitlines()[0].split("\t")[:4] == ["name", "kind", "cron", "zone"]
    assert "nightly\tconvert\t0 2 * * *\tEurope/Berlin\tlast\tactive" in table


def test_pausing_and_resuming_say_what_they_did(prompt, scheduled):
    paused = prompt("schedules", "pause", "nightly", "--json")
    assert (paused.code, json.loads(paused.out)["state"]) == (0, "paused")
    assert "was paused before; nothing to do" in prompt("schedules", "pause", "nightly").err
    assert "schedule nightly is not paused" in prompt("schedules", "resume", "nightly").err


def test_a_schedules_job_is_run_now(prompt, scheduled):
    ran = prompt("schedules", "run", "nightly")
    job = scheduled.jobs.get(ran.out.strip())
    scheduled.drain()
    assert (ran.code, job.refresh().result) == (0, "a.pdf")
    assert job.history[0].actor.startswith("cli:")
    assert json.loads(prompt("schedules", "ls", "--json").out)[0]["fired"] == 0
    assert prompt("schedules", "run", "weekly").code == 4


def test_the_next_times_are_told(prompt, scheduled):
    answer = prompt("schedules", "next", "nightly", "--count", "3")
    assert [line[11:16] for line in answer.out.splitlines()] == ["02:00"] * 3
    assert len(json.loads(prompt("schedules", "next", "nightly", "--json").out)) == 5


def test_a_schedule_that_is_not_there_is_not_found(prompt, scheduled):
    for command in ("pause", "resume", "next"):
        answer = prompt("schedules", command, "weekly")
        assert answer.code == 4
        assert "there is no schedule 'weekly'; there are: nightly" in answer.err


def test_where_there_is_none_it_says_how_to_make_one(prompt, app):
    app.maintain_once()
    answer = prompt("schedules", "ls")
    assert (answer.code, answer.out) == (0, "")
    assert "app.schedule" in answer.err
    for command in ("pause", "next"):
        answer = prompt("schedules", command, "nightly")
        assert answer.code == 4
        assert "a worker enters its program's when it starts" in answer.err
