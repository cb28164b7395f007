"""`milepost jobs`, `queues`, `workers`: looked at without an app, on every store."""

import json
import logging
import re
import threading

import pytest

import milepost as mp
from milepost.store import retention, workers


@pytest.fixture
def kinds(app):
    from milepost.job import Job

    return {definition.name: Job(app, definition) for definition in app.registry}


def test_jobs_are_listed_newest_first_as_lines_and_as_json(prompt, app, kinds):
    first, second = kinds["convert"].submit_many([("a",), ("b",)])
    shown = prompt("jobs", "ls")
    assert shown.code == 0
    head, *lines = shown.out.splitlines()
    assert head.split("\t") == ["id", "kind", "state", "attempt", "queue", "age", "ran", "error"]
    assert [line.split("\t")[0] for line in lines] == [second.id, first.id]
    listed = json.loads(prompt("jobs", "ls", "--json").out)
    assert [job["id"] for job in listed] == [second.id, first.id]
    assert listed[0]["state"] == "QUEUED"
    assert "arguments" not in listed[0]


def test_a_list_is_filtered_and_turned_page_by_page(prompt, app, kinds):
    first, second = kinds["convert"].submit_many([("a",), ("b",)])
    kinds["refuse"].submit(3)
    app.drain()
    failed = json.loads(prompt("jobs", "ls", "--state", "failed", "--json").out)
    assert [job["kind"] for job in failed] == ["refuse"]
    [_, line] = prompt("jobs", "ls", "--state", "failed").out.splitlines()
    assert re.search(r"\t[\d.]+ s\t[\d.]+ s\tFail: 3 is too large$", line)
    assert failed[0]["error"]["type"] == "Fail"
    assert failed[0]["error"]["message"] == "3 is too large"
    page = prompt("jobs", "ls", "--kind", "convert", "--limit", "1")
    assert f"--before {second.id}" in page.err
    older = json.loads(
        prompt("jobs", "ls", "--kind", "convert", "--before", second.id, "--json").out
    )
    assert [job["id"] for job in older] == [first.id]
    none = prompt("jobs", "ls", "--queue", "elsewhere")
    assert (none.code, none.out, none.err) == (0, "", "none fits; nothing to show\n")
    assert prompt("jobs", "ls", "--queue", "elsewhere", "--json").out == "[]\n"


def test_a_list_is_searched_and_says_how_far_it_looked(prompt, app, kinds, monkeypatch):
    kinds["convert"].options(tags={"user": "42"}).submit("a")
    kinds["convert"].submit_many([(str(n),) for n in range(5)])
    kinds["refuse"].submit(3)
    app.drain()
    found = json.loads(prompt("jobs", "ls", "--where", "tag.user:42 -state:failed", "--json").out)
    assert [job["tags"] for job in found] == [{"user": "42"}]
    wrong = prompt("jobs", "ls", "--where", "state:failed sate:x")
    assert (wrong.code, wrong.out) == (2, "")
    assert "column 14: there is no key 'sate'; did you mean state?" in wrong.err
    monkeypatch.setattr("milepost.store.search.LOOK", 2)
    on = prompt("jobs", "ls", "--where", 'error:"too large"')
    assert "3 is too large" in on.out
    assert "looked at" not in on.err
    monkeypatch.setattr("milepost.cli.jobs.LOOKS", 1)
    stopped = prompt("jobs", "ls", "--where", "kind:none")
    looked = r"looked at jobs back to .*; go on: --before \S{36}\n"
    assert re.fullmatch(f"none fits so far\n{looked}", stopped.err)
    stopped = prompt("jobs", "ls", "--where", "kind:none", "--json")
    assert stopped.out == "[]\n"
    assert re.fullmatch(looked, stopped.err), "a program was told that there is none"


def test_many_jobs_are_acted_on_by_a_filter_which_is_counted_first(prompt, app, kinds, monkeypatch):
    jobs = [kinds["convert"].options(start_in=3600).submit(str(n)) for n in range(3)]
    refused = kinds["refuse"].submit(3)
    app.drain()
    monkeypatch.setattr("click.confirm", lambda text, **_: asked.append(text))
    asked = []
    done = prompt("jobs", "cancel", "--where", "kind:convert", "--reason", "no more")
    assert (done.code, asked) == (0, ["3 jobs fit; cancel them?"])
    assert "stops it\ncancel: 3 of 3 jobs" in done.err
    assert {job.refresh().state for job in jobs} == {"CANCELLED"}
    assert jobs[0].history[-1].actor.startswith("cli:")
    again = prompt("jobs", "rerun", "--where", "state:failed", "--yes", "--json")
    assert {**json.loads(again.out), "job": 0} == {"job": 0, "matched": 1, "done": 1}
    app.drain()
    assert "none fits" in prompt("jobs", "erase", "--where", "kind:none").err
    assert prompt("jobs", "erase", refused.id).code == 0
    assert refused.refresh().record.payload is None
    assert [prompt("jobs", "cancel").code, prompt("jobs", "erase", "1", "--yes").code] == [2, 2]
    assert len(asked) == 1


def test_jobs_that_begin_to_fit_while_you_are_asked_are_left_alone(prompt, app, kinds, monkeypatch):
    """You agreed to one job, and all that had come by the time of the answer were cancelled."""
    convert = kinds["convert"].options(start_in=3600)
    before, after = convert.submit("a"), []

    def think(_text: str, **_: object) -> None:
        app.client.run(workers.advance_clock, 1.0)
        after.append(convert.submit("b"))

    monkeypatch.setattr("click.confirm", think)
    done = prompt("jobs", "cancel", "--where", "kind:convert")
    assert "cancel: 1 of 1 jobs\n" in done.err
    assert (before.refresh().state, after[0].refresh().state) == ("CANCELLED", "WAITING")


def test_an_action_on_many_jobs_says_how_far_it_came_and_what_it_passed_over(
    prompt, kinds, monkeypatch
):
    kinds["convert"].options(start_in=3600).submit("a")
    done = prompt("jobs", "erase", "--where", "kind:convert", "--yes")
    assert "erase: 0 of 1 jobs; 1 could not be acted on as they stand\n" in done.err

    def stopped(job, _work):
        job.cancel("Ctrl-C at the prompt")

    monkeypatch.setattr("milepost.cli.subjects.follow_here", stopped)
    done = prompt("jobs", "cancel", "--where", "kind:convert", "--yes")
    assert done.code == 3
    assert "cancel: it came to no job; what was done stays done\n" in done.err


def test_a_job_runs_before_its_time(prompt, app, kinds):
    waiting = kinds["convert"].options(start_in=3600).submit("a")
    ran = prompt("jobs", "run-now", waiting.id)
    assert (ran.code, ran.err) == (0, f"job {waiting.id} is QUEUED\n")
    app.drain()
    assert waiting.refresh().state == "SUCCEEDED"
    assert [(move.move, move.detail) for move in waiting.history][1] == ("wake", "run now")

    @app.job(retries=1, retry_delay=3600)
    def fetch() -> None:
        raise ConnectionError

    retrying = fetch.submit()
    app.drain()
    assert prompt("jobs", "run-now", retrying.id).code == 0
    app.drain()
    assert retrying.refresh().state == "FAILED"
    late = prompt("jobs", "run-now", retrying.id)
    assert (late.code, "is FAILED: only one that waits for its time" in late.err) == (5, True)


def test_a_job_that_waits_is_woken_with_data(prompt, app):
    @app.job()
    def approve(ctx: mp.Context) -> list[object]:
        found = ctx.signals()
        if not found:
            raise mp.Later(None)
        return found

    waiting = approve.submit()
    app.drain()
    told = prompt("jobs", "signal", waiting.id, '{"by": "Ada"}')
    assert (told.code, told.err) == (0, f"job {waiting.id} is QUEUED\n")
    app.drain()
    assert waiting.refresh().result == [{"by": "Ada"}]
    late = prompt("jobs", "signal", waiting.id)
    assert (late.code, "has ended; nothing waits for a signal" in late.err) == (5, True)


def test_a_queue_is_paused_for_a_reason(prompt, app, kinds):
    kinds["convert"].submit("a")
    shown = prompt("queues", "pause", "default", "--reason", "wrong price list", "--json")
    assert json.loads(shown.out)["reason"] == "wrong price list"
    assert ": wrong price list" in prompt("queues", "ls").out
    prompt("queues", "resume", "default")
    assert json.loads(prompt("queues", "ls", "--json").out)[0]["reason"] is None


def test_one_job_is_shown_with_what_it_was_given_and_what_came_out(prompt, app, kinds):
    job = kinds["convert"].options(tags={"user": "42"}).submit("a", format="html")
    app.drain()
    shown = json.loads(prompt("jobs", "show", job.id[:-1], "--json").out)
    assert (shown["id"], shown["state"], shown["done"]) == (job.id, "SUCCEEDED", True)
    assert (shown["arguments"], shown["result"]) == ({"document": "a", "format": "html"}, "a.html")
    assert (shown["tags"], shown["attempt"], shown["error"]) == ({"user": "42"}, 1, None)
    assert shown["progress"] == 1.0
    lines = dict(line.split("\t") for line in prompt("jobs", "show", job.id).out.splitlines())
    assert (lines["id"], lines["result"], lines["state"]) == (job.id, "a.html", "SUCCEEDED")
    assert "error" not in lines


def test_one_job_is_shown_with_its_usage(prompt, app):
    @app.job
    def spend(ctx: mp.Context) -> None:
        ctx.count("tokens", 120)

    job = spend.submit()
    assert json.loads(prompt("jobs", "show", job.id, "--json").out)["usage"] == {}
    app.drain()
    assert json.loads(prompt("jobs", "show", job.id, "--json").out)["usage"] == {"tokens": 120}
    lines = dict(line.split("\t") for line in prompt("jobs", "show", job.id).out.splitlines())
    assert lines["usage"] == '{"tokens": 120.0}'


def test_a_history_is_every_move_in_order(prompt, app, kinds):
    job = kinds["convert"].submit("a")
    app.drain()
    moves = json.loads(prompt("jobs", "history", job.id, "--json").out)
    assert [entry["move"] for entry in moves] == ["create", "claim", "succeed"]
    assert [entry["to_state"] for entry in moves] == ["QUEUED", "RUNNING", "SUCCEEDED"]
    assert [entry["attempt"] for entry in moves] == [0, 1, 1]
    lines = prompt("jobs", "history", job.id).out.splitlines()
    assert [line.split("\t")[1] for line in lines] == ["move", "create", "claim", "succeed"]


def test_a_history_that_was_summed_up_says_so(prompt, app, kinds):
    job = kinds["convert"].submit("a")
    app.drain()
    app.client.run(workers.advance_clock, 91 * 86_400)
    app.client.run(retention.sum_up, retention.Keep(1, 1), after=retention.FIRST, most=9)
    lines = prompt("jobs", "history", job.id).out.splitlines()
    assert [line.split("\t")[1] for line in lines] == ["move", "snapshot"]
    told = lines[1].split("\t")[-1]
    assert told.startswith("earlier history was summed up: 3 moves since 20")
    assert told.endswith("0 errors, 0 losses, 0 polls, 0 releases; the last was succeed")
    [entry] = json.loads(prompt("jobs", "history", job.id, "--json").out)
    assert (entry["seq"], entry["attempt"], json.loads(entry["detail"])["moves"]) == (3, 1, 3)
    assert prompt("verify").code == 0


def test_errors_that_are_the_same_one_are_listed_and_shown(prompt, app, kinds):
    none = prompt("errors", "ls")
    assert (none.code, none.out, none.err) == (0, "", "no attempt failed; nothing to show\n")
    bad, worse = kinds["refuse"].submit_many([(3,), (4,)])
    app.drain()
    [one] = json.loads(prompt("errors", "ls", "--json").out)
    head, line = prompt("errors", "ls").out.splitlines()
    assert head.split("\t") == ["fingerprint", "error", *head.split("\t")[2:]]
    told = dict(zip(head.split("\t"), line.split("\t"), strict=True))
    assert told["fingerprint"] == one["fingerprint"]
    assert told["place"] == "newcomer.py:14 in refuse"
    assert (told["count"], told["failed"], told["open"]) == ("2", "2", "0")
    shown = prompt("errors", "show", one["fingerprint"]).out
    assert 'by kind\t{"refuse": 2}\n' in shown
    assert all(f"job {job.id}" in shown for job in (bad, worse))
    assert shown.count("Traceback (most recent call last)") == 1
    assert prompt("errors", "show", one["fingerprint"][:5]).out == shown
    assert prompt("errors", "show", "nothing").code == 4
    assert one["job"] in (bad.id, worse.id), "as the API calls it"


def test_a_list_of_errors_has_a_line_for_each_however_much_it_says(prompt, app):
    """One that quotes a whole document filled the screen."""

    @app.job(retries=0)
    def sell() -> None:
        raise mp.Fail("x" * 5_000)

    sell.submit()
    app.drain()
    for listed in (prompt("errors", "ls"), prompt("jobs", "ls")):
        _, line = listed.out.splitlines()
        assert len(line) < 250
        assert "xx…" in line


def test_waiting_prints_the_result_and_exits_by_how_it_ended(prompt, app, kinds):
    good, bad = kinds["convert"].submit("a"), kinds["refuse"].submit(3)
    gone = kinds["convert"].options(start_in=60).submit("b")
    gone.cancel("no need")
    app.drain()
    done = prompt("jobs", "wait", good.id)
    assert (done.code, done.out, done.err) == (0, '"a.pdf"\n', "")
    failed = prompt("jobs", "wait", bad.id)
    assert (failed.code, failed.out) == (3, "")
    assert "FAILED: Fail: 3 is too large" in failed.err
    told = prompt("jobs", "wait", bad.id, "--json")
    assert (told.code, json.loads(told.out)["state"]) == (3, "FAILED")
    [one] = json.loads(told.out)["failures"]
    shown = prompt("jobs", "show", bad.id).out
    assert f"attempt 1, {one['at'][:10]}" in shown
    assert "Z: Fail: 3 is too large\n  at newcomer.py:14 in refuse\n" in shown
    assert shown.endswith(f"  {one['traceback'].splitlines()[-1]}\n")
    cancelled = prompt("jobs", "wait", gone.id)
    assert (cancelled.code, cancelled.out) == (3, "")
    assert "CANCELLED: no need" in cancelled.err


def test_waiting_in_vain_is_exit_code_124(prompt, kinds):
    job = kinds["convert"].submit("a")
    late = prompt("jobs", "wait", job.id, "--timeout", "0")
    assert (late.code, late.out) == (124, "")
    assert f"job {job.id} is QUEUED after 0 s" in late.err


def test_a_wait_for_which_no_worker_is_there_says_so(prompt, kinds, monkeypatch):
    monkeypatch.setattr("milepost.subjects.WARN_AFTER", -1.0)
    job = kinds["convert"].submit("a")
    late = prompt("jobs", "wait", job.id, "--timeout", "0")
    assert "no live worker could take it; start one with `milepost worker APP`" in late.err
    assert ".py:" not in late.err


def test_cancelling_says_what_really_happened(prompt, app, kinds):
    """H-106: an open job is cancelled, a cancelled one stays so, a finished one is refused."""
    job, done = kinds["convert"].options(start_in=60).submit("a"), kinds["convert"].submit("b")
    app.drain()
    first = prompt("jobs", "cancel", job.id, "--reason", "wrong folder", "--json")
    assert first.code == 0
    assert json.loads(first.out)["cancel_reason"] == "wrong folder"
    again = prompt("jobs", "cancel", job.id)
    assert (again.code, again.out) == (0, "")
    assert "was cancelled before; nothing to do" in again.err
    refused = prompt("jobs", "cancel", done.id)
    assert (refused.code, refused.out) == (5, "")
    assert f"job {done.id} is SUCCEEDED already" in refused.err


def test_running_again_makes_a_new_job_that_points_at_the_old_one(prompt, app, kinds):
    """H-9: final is final."""
    job = kinds["convert"].submit("a")
    early = prompt("jobs", "rerun", job.id)
    assert (early.code, early.out) == (5, "")
    assert "only a finished one is run again" in early.err
    app.drain()
    done = prompt("jobs", "rerun", job.id)
    assert (done.code, done.out) == (5, "")
    assert "--fresh" in done.err
    again = prompt("jobs", "rerun", job.id, "--fresh")
    assert again.code == 0
    assert app.jobs.get(again.out.strip()).record.rerun_of == job.id
    app.drain()
    assert prompt("jobs", "wait", again.out.strip()).out == '"a.pdf"\n'
    twice = prompt("jobs", "rerun", job.id, "--fresh")
    assert (twice.code, twice.out) == (5, "")
    assert again.out.strip() in twice.err
    newest = again.out.strip()
    more = json.loads(prompt("jobs", "rerun", newest, "--fresh", "--json").out)
    assert (more["rerun_of"], more["state"]) == (newest, "QUEUED")
    listed = json.loads(prompt("jobs", "ls", "--latest", "--json").out)
    assert [found["id"] for found in listed] == [more["id"]]
    assert len(json.loads(prompt("jobs", "ls", "--json").out)) == 3


def test_explaining_says_why_a_job_does_not_run(prompt, app, kinds):
    job = kinds["convert"].submit("a")
    app.queues.pause("default")
    told = prompt("explain", job.id)
    assert told.code == 0
    head, *reasons, then = told.out.splitlines()
    assert head == f"job {job.id} (convert) is QUEUED:"
    assert then.startswith("  next: nothing, until its queue is resumed")
    assert any("paused" in reason for reason in reasons)
    document = json.loads(prompt("explain", job.id[:30], "--json").out)
    assert (document["id"], document["state"]) == (job.id, "QUEUED")
    assert "queue_paused" in document["reasons"]
    assert len(document["reasons"]) == len(document["details"]) == len(reasons)


@pytest.mark.parametrize(
    "command",
    [("explain",), *(("jobs", word) for word in ("show", "history", "wait", "cancel", "rerun"))],
)
def test_an_id_that_is_not_there_is_exit_code_4(prompt, here, command):
    missing = prompt(*command, "0194")
    assert (missing.code, missing.out) == (4, "")
    assert missing.err == "milepost: there is no job '0194'\n"


def test_a_beginning_that_fits_several_is_a_usage_error(prompt, app, kinds):
    first, second = kinds["convert"].submit_many([("a",), ("b",)])
    unclear = prompt("jobs", "show", first.id[:4])
    assert unclear.code == 2
    assert first.id in unclear.err
    assert second.id in unclear.err


def test_what_a_terminal_would_obey_is_shown_not_sent(prompt, app, kinds):
    kinds["convert"].options(queue="\x1b[31mred\tline\n").submit("a")
    for command in (("jobs", "ls"), ("queues", "ls")):
        shown = prompt(*command).out
        assert "\x1b" not in shown
        assert "\\x1b[31mred\\tline\\n" in shown


def test_queues_are_listed_paused_and_resumed(prompt, app, kinds):
    empty = prompt("queues", "ls")
    assert (empty.code, empty.out) == (0, "")
    assert "nothing to show" in empty.err
    kinds["convert"].submit("a")
    assert prompt("queues", "pause", "default").err == "queue default is paused\n"
    assert "nothing to do" in prompt("queues", "pause", "default").err
    assert app.drain() == 0
    [row] = json.loads(prompt("queues", "ls", "--json").out)
    assert (row["name"], row["paused"]) == ("default", True)
    assert row["paused_by"].startswith("cli:")
    assert row["counts"] == {"QUEUED": 1}
    lines = prompt("queues", "ls").out.splitlines()
    assert lines == ["queue\tpaused\tQUEUED", f"default\tby {row['paused_by']}\t1"]
    resumed = prompt("queues", "resume", "default", "--json")
    assert json.loads(resumed.out)["paused"] is False
    assert "nothing to do" in prompt("queues", "resume", "default").err
    assert app.drain() == 1


def test_pausing_a_queue_that_holds_nothing_names_those_that_do(prompt, app, kinds):
    kinds["convert"].submit("a")
    odd = prompt("queues", "pause", "defualt")
    assert odd.code == 0
    assert "there are: default" in odd.err


def test_workers_are_listed_while_they_live(prompt, app, kinds):
    none = prompt("workers")
    assert (none.code, none.out) == (0, "")
    assert "start one with `milepost worker APP`" in none.err
    app.drain()  # a worker that comes and goes
    assert prompt("workers", "--json").out == "[]\n"
    assert prompt("workers", "ls", "--json").out == "[]\n"
    [gone] = json.loads(prompt("workers", "--all", "--json").out)
    assert (gone["state"], gone["live"], gone["queues"]) == ("STOPPED", False, None)
    assert {"convert 1", "refuse 1"} <= set(gone["kinds"])
    head, line = prompt("workers", "--all").out.splitlines()
    assert dict(zip(head.split("\t"), line.split("\t"), strict=True))["queues"] == "all"


def test_the_store_may_be_named_instead_of_found(prompt, here, database, monkeypatch, tmp_path):
    monkeypatch.delenv("MILEPOST_DATABASE_URL")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    assert prompt("jobs", "ls", "--store", database.url, "--json").out == "[]\n"
    unset = prompt("jobs", "ls")
    assert unset.code == 75
    assert "no such file; is this the store you mean?" in unset.err
    assert not (tmp_path / "milepost.db").exists()


def test_looking_never_sets_a_store_up(prompt, backends, database):
    empty = backends.fresh(database.backend, empty=True)
    looked = prompt("jobs", "ls", "--store", empty.url)
    assert (looked.code, looked.out) == (75, "")
    assert "`milepost migrate --store" in looked.err or "no such file" in looked.err
    again = prompt("queues", "pause", "default", "--store", empty.url)
    assert (again.code, again.err) == (75, looked.err)


def test_an_older_schema_says_milepost_migrate_and_stays_as_it_is(prompt, backends, database):
    from milepost.store.migrate import migrate, pending

    old = backends.fresh(database.backend, empty=True)
    with old.driver() as driver:
        migrate(driver, upto=4)
    looked = prompt("queues", "ls", "--store", old.url)
    assert looked.code == 75
    assert "schema is older" in looked.err
    assert "run `milepost migrate --store" in looked.err
    with old.driver() as driver:
        assert pending(driver)
    done = json.loads(prompt("migrate", "--store", old.url, "--json").out)
    assert done["applied"][0].startswith("0005_")
    assert json.loads(prompt("migrate", "--store", old.url, "--json").out)["applied"] == []
    assert prompt("queues", "ls", "--store", old.url, "--json").out == "[]\n"


def test_an_unreachable_store_is_exit_code_75_and_no_password_is_told(prompt):
    away = prompt("jobs", "ls", "--store", "postgresql://user:hunter2@127.0.0.1:9/none")
    assert (away.code, away.out) == (75, "")
    assert "cannot be reached" in away.err
    assert "hunter2" not in away.err


def test_a_job_of_another_codec_is_shown_without_being_read(prompt, here, database):
    from milepost.app import App
    from milepost.codec import JsonCodec

    class Sealed(JsonCodec):
        name = "sealed"

        def encode(self, value):
            return bytes(byte ^ 0xFF for byte in super().encode(value))

        def decode(self, data, type_=object):
            return super().decode(bytes(byte ^ 0xFF for byte in data), type_)

    app = App(database.url, codec=Sealed())

    @app.job
    def hide(text: str) -> str:
        return text

    job = hide.submit("secret")
    app.drain()
    app.close()
    shown = json.loads(prompt("jobs", "wait", job.id, "--json").out)
    assert shown["arguments"] == "17 bytes of sealed"
    assert shown["result"] == "8 bytes of sealed"


def test_a_job_whose_arguments_do_not_fit_is_explained_and_released(prompt, app, kinds):
    job = kinds["convert"].submit("a")
    refused = prompt("jobs", "release", job.id)
    assert (refused.code, "is QUEUED" in refused.err) == (5, True)
    changed = mp.App(app.client.url.address)

    @changed.job(name="convert")
    def convert(number: int) -> int:
        return number

    changed.drain()
    changed.close()
    assert "do not fit convert(number: int)" in prompt("explain", job.id).out
    released = prompt("jobs", "release", job.id[:30])
    assert (released.code, released.err) == (0, f"job {job.id} is QUEUED again\n")
    app.drain()
    assert job.refresh().result == "a.pdf"


def test_the_lines_that_a_job_logged_are_shown_and_followed(prompt, app, kinds):
    @app.job
    def chat() -> None:
        logging.getLogger("shop").warning("two\nlines \x1b[31m")

    silent = kinds["convert"].submit("a")
    job = chat.submit()
    follower = threading.Thread(target=app.drain)
    follower.start()
    shown = prompt("jobs", "logs", job.id, "-f")  # until it is final
    follower.join()
    assert shown.code == 0
    assert shown.out.splitlines()[0].endswith("warning  1 two")
    assert shown.out.splitlines()[1] == "  lines \\x1b[31m"
    [line] = [json.loads(one) for one in prompt("jobs", "logs", job.id, "--json").out.splitlines()]
    assert (line["n"], line["level"], line["logger"]) == (1, "warning", "shop")
    assert line["text"] == "two\nlines \x1b[31m"
    assert f"job {silent.id} has logged nothing" in prompt("jobs", "logs", silent.id).err
