"""C's sequence diagrams over real HTTP: POST, a GET while the worker is held, a GET after."""

import threading
from collections.abc import Iterator

import httpx2
import pytest
from remote import Says

import milepost as mp
from milepost.store.rules import Limit, declare
from tests.support.serving import served

RULES = {"state": "$.status", "complete": ["done"], "pending": ["working"], "failed": ["error"]}
WORKING, DONE = Says(json={"status": "working"}), Says(json={"status": "done", "value": 7})


@pytest.fixture
def http(app) -> Iterator[httpx2.Client]:
    with served(app) as where, httpx2.Client(base_url=where, trust_env=False, timeout=60) as client:
        yield client


def test_c_a_request_that_ends_complete(app, http, remote):
    """The caller asks three times; the first time the poller has not come yet."""
    remote.answers = [DONE]
    posted = http.post(
        "/v1/requests", json={"method": "POST", "url": remote.url, "json": {}, "reply": RULES}
    )
    assert posted.status_code == 202
    told = posted.json()
    assert (told["state"], told["done"]) == ("PENDING", False)
    assert int(posted.headers["retry-after"]) >= 1
    where = posted.headers["location"]
    assert where.endswith(f"/v1/requests/{told['id']}")

    held = http.get(where).json()  # no worker has taken it
    assert (held["state"], held["done"]) == ("PENDING", False)
    assert "result" not in held
    assert "error" not in held

    app.drain()
    after = http.get(where).json()
    assert (after["state"], after["done"]) == ("COMPLETE", True)
    assert after["result"] == {"status": "done", "value": 7}
    assert "error" not in after


def test_c_a_request_is_a_job_like_any_other(app, http, remote):
    remote.answers = [DONE]
    body = {"kind": "request", "args": ["POST", remote.url], "kwargs": {"json": {}, "reply": RULES}}
    posted = http.post("/v1/jobs", json=body)
    assert posted.status_code == 202, posted.text
    app.drain()
    assert http.get(posted.headers["location"]).json()["result"] == {"status": "done", "value": 7}
    wrong = {"kind": "request", "kwargs": {"url": remote.url, "tags": [1]}}
    assert http.post("/v1/jobs", json=wrong).status_code == 422


def test_c_a_batch_with_two_requests(app, http, remote):
    """Revalidated with each request: REQUEST after the first, COMPLETE after the second."""
    remote.answers = [DONE]
    posted = http.post(
        "/v1/requests:batch",
        json={"requests": [{"url": f"{remote.url}/{n}"} for n in ("a", "b")], "channel": "orders"},
    )
    assert (posted.status_code, posted.json()["state"]) == (202, "PENDING")
    where = posted.headers["location"]
    run = app.runs.get(posted.json()["id"])
    assert (run.as_spec("C"), run.record.channel) == ("IDLE", "orders")

    release = threading.Event()

    def second(_):
        release.wait(10)
        return DONE

    remote.answers = [DONE, second]
    app.request_limit("127.0.0.1", concurrency=1)
    worker = threading.Thread(target=app.drain)
    worker.start()
    states = set()
    while (seen := http.get(where).json())["steps"][0]["counts"].get("SUCCEEDED", 0) < 1:
        states.add(seen["state"])
    assert (seen["state"], seen["run_state"], seen["done"]) == ("PENDING", "RUNNING", False)
    assert run.refresh().as_spec("C") == "REQUEST"
    release.set()
    worker.join(30)

    after = http.get(where).json()
    assert (after["state"], after["done"]) == ("COMPLETE", True)
    assert run.refresh().as_spec("C") == "COMPLETE"
    children = http.get("/v1/jobs", params={"run": run.id}).json()["items"]
    assert [child["state"] for child in children] == ["COMPLETE", "COMPLETE"]


def test_c_a_failed_reply_is_an_error(app, http, remote):
    remote.answers = [Says(json={"status": "error"})]
    posted = http.post("/v1/requests", json={"url": remote.url, "reply": RULES})
    app.drain()
    told = http.get(posted.headers["location"]).json()
    assert (told["state"], told["error"]["code"]) == ("FAIL", "remote_failure")
    assert told["job_state"] == "FAILED"
    assert "result" not in told


def test_c_a_caller_reads_pending_complete_or_fail_and_nothing_else(app, http, remote):
    """The engine's word stands next to it, and the face of jobs keeps the words of jobs."""
    remote.answers = [WORKING]
    body = {"url": remote.url, "reply": RULES, "poll": 3600}
    one, other = (http.post("/v1/requests", json=body).json() for _ in range(2))
    many = http.post("/v1/requests:batch", json={"requests": [body]}).json()
    app.drain()

    def words(told, engine="job_state"):
        shown = http.get(f"/v1/requests/{told['id']}").json()
        return shown["state"], shown[engine]

    assert words(one) == ("PENDING", "WAITING")
    assert words(many, "run_state") == ("PENDING", "RUNNING")
    app.jobs.get(one["id"]).cancel("enough")
    app.runs.get(many["id"]).cancel("enough")
    assert words(one) == ("FAIL", "CANCELLED")
    assert words(many, "run_state") == ("FAIL", "CANCELLED")
    assert http.get(f"/v1/jobs/{one['id']}").json()["state"] == "CANCELLED"
    app.jobs.get(other["id"]).signal({"status": "done"})
    app.drain()
    waited = http.get(f"/v1/requests/{other['id']}", headers={"Prefer": "wait=5"})
    assert (waited.json()["state"], waited.json()["job_state"]) == ("COMPLETE", "SUCCEEDED")


FAILURES = {
    "remote_failure": (Says(json={"status": "error", "message": "out of paper"}), "out of paper"),
    "malformed": (Says(json={"status": "odd"}), "'odd'"),
    "http_404": (Says(404, json={"detail": "no such document"}), "no such document"),
}


@pytest.mark.parametrize("code", FAILURES)
def test_c_a_failure_has_one_code_and_the_remotes_reason_everywhere(app, http, remote, code):
    """The message and GET say the same, of one request and of one within a batch."""
    said, reason = FAILURES[code]
    remote.answers = [said]
    body = {"url": remote.url, "reply": RULES}
    one = http.post("/v1/requests", json={**body, "channel": "one"}).headers["location"]
    many = {"requests": [body], "channel": "many"}
    batch = http.post("/v1/requests:batch", json=many).headers["location"]
    app.drain()

    told, shown = app.channels.pull("one").messages[0]["data"], http.get(one).json()
    assert told["error"] == shown["error"]
    assert (shown["error"]["code"], told["state"]) == (code, "FAIL")
    assert reason in shown["error"]["message"]

    told, shown = app.channels.pull("many").messages[0]["data"], http.get(batch).json()
    assert told["error"] == shown["error"]
    assert told["jobs"][0]["error"]["code"] == code
    for said in (told, shown):
        [child] = said["errors"]
        assert (child["ordinal"], child["code"]) == (0, code)
        assert "1 of 1 jobs failed: request 0" in said["error"]["message"]
        assert code in said["error"]["message"]
        assert reason in said["error"]["message"]


def test_c_an_end_without_an_error_says_what_happened(app, http, remote, raw):
    """Never "ended by": by its deadline, by a cancel, by a person at the database."""
    body = {"url": remote.url, "start_in": 3600, "channel": "orders"}
    late, gone, odd = (http.post("/v1/requests", json=body).headers["location"] for _ in range(3))
    ids = [where.rpartition("/")[2] for where in (late, gone, odd)]
    app.jobs.get(ids[1]).cancel("not needed")
    change = "UPDATE job SET state = 'FAILED', move = 'expire', version = version + 1"
    raw.execute(f"{change}, cause = 'deadline' WHERE id = '{ids[0]}'")
    raw.execute(f"{change} WHERE id = '{ids[2]}'")
    messages = {one["subject"]: one["data"] for one in app.channels.pull("orders").messages}
    for job_id, code, text in zip(
        ids,
        ("deadline", "cancelled", None),
        ("its deadline has passed", "not needed", "no reason was recorded"),
        strict=True,
    ):
        error = http.get(f"/v1/requests/{job_id}").json()["error"]
        assert error == messages[job_id]["error"]
        assert (error["code"], error["message"]) == (code, text)
    assert app.jobs.get(ids[0]).error.message == "its deadline has passed"


def test_c_get_of_a_batch_gives_its_responses_a_page_at_a_time(app, http, remote):
    """In the order of the requests; of a resumed batch also those that were answered before."""
    answers = {"/1": Says(404), "/2": WORKING}
    remote.answers = [lambda asked: answers.get(asked.path, DONE)]
    new = [{"url": f"{remote.url}/{n}", "reply": RULES, "poll": 3600} for n in range(5)]
    posted = http.post("/v1/requests:batch", json={"requests": new, "policy": "collect"})
    where = posted.headers["location"]

    def pages(where, **params):
        found = []
        for _ in range(9):
            shown = http.get(where, params={"limit": 2, **params}).json()
            found.append(shown["responses"])
            if shown["next"] is None:
                return shown, found
            params = {"cursor": shown["next"]}
        raise AssertionError("pages do not end")

    app.drain()
    shown, found = pages(where)
    assert [len(page) for page in found] == [2, 2, 1]
    told = [one for page in found for one in page]
    assert [one["ordinal"] for one in told] == list(range(5))
    words = ["COMPLETE", "FAIL", "PENDING", "COMPLETE", "COMPLETE"]
    assert [one["state"] for one in told] == words
    assert told[0]["result"] == {"status": "done", "value": 7}
    assert (told[1]["job_state"], told[1]["error"]["code"]) == ("FAILED", "http_404")
    assert not {"result", "error"} & set(told[2])
    assert shown["state"] == "PENDING"
    for wrong in ("nonsense", "WyJ4IiwwXQ"):
        assert http.get(where, params={"cursor": wrong}).status_code == 422

    app.runs.get(posted.json()["id"]).cancel("enough")
    again = app.runs.get(posted.json()["id"]).resume()
    answers.clear()
    app.drain(timeout=10)
    shown, found = pages(f"/v1/requests/{again.id}")
    told = [one for page in found for one in page]
    assert sorted(one["ordinal"] for one in told) == list(range(5))
    assert {one["state"] for one in told} == {shown["state"]} == {"COMPLETE"}


def test_c_a_page_of_responses_ends_before_it_grows_too_large(app, http, remote):
    remote.answers = [Says(json="x" * 900_000)]
    new = [{"url": f"{remote.url}/{n}"} for n in range(6)]
    where = http.post("/v1/requests:batch", json={"requests": new}).headers["location"]
    app.drain(timeout=20)
    first = http.get(where).json()
    rest = http.get(where, params={"cursor": first["next"]}).json()
    assert [len(first["responses"]), len(rest["responses"]), rest["next"]] == [4, 2, None]


def test_c_only_requests_are_found_among_requests(app, http):
    @app.job
    def convert(document: str) -> str:
        return document

    job = convert.submit("report")
    for there_is_none in (job.id, "018f0000-0000-7000-8000-000000000000", "nonsense"):
        answer = http.get(f"/v1/requests/{there_is_none}")
        assert answer.status_code == 404
        assert there_is_none in answer.json()["detail"]


def test_h105_who_looks_at_a_request_sees_no_secrets(small, remote):
    from milepost.cli.subjects import job_document

    secret = "hunter2-and-more"
    body = {
        "url": f"http://me:{secret}@127.0.0.1:{remote.port}/?token={secret}",
        "method": "POST",
        "headers": {"Authorization": f"Bearer {secret}", "X-Plain": "plain"},
        "json": {"password": secret, "document": "report"},
    }
    with (
        served(small) as where,
        httpx2.Client(base_url=where, trust_env=False, timeout=60) as client,
    ):
        one = client.post("/v1/requests", json=body)
        many = client.post("/v1/requests:batch", json={"requests": [body], "final": body})
        small.drain()
        looked = [client.get(answer.headers["location"]).text for answer in (one, many)]
    looked.append(str(job_document(small.jobs.get(one.json()["id"]))))
    assert remote.asked[0].headers["authorization"] == f"Bearer {secret}"
    for text in looked:
        assert secret not in text
        assert "report" in text


def test_h105_names_of_the_settings_are_secret_to_who_looks_too(tmp_path, remote):
    from milepost.cli.subjects import job_document, run_document

    app = mp.App(
        f"sqlite:///{tmp_path}/a.db", request_allow="127.0.0.1", request_redact="x-inner, iban"
    )
    body = {"url": remote.url, "headers": {"X-Inner": "inner-thing"}, "json": {"IBAN": "DE00"}}
    body["method"] = "POST"
    with served(app) as where, httpx2.Client(base_url=where, trust_env=False, timeout=60) as client:
        one = client.post("/v1/requests", json=body)
        many = client.post("/v1/requests:batch", json={"requests": [body], "final": body})
        looked = [client.get(answer.headers["location"]).text for answer in (one, many)]
    looked.append(str(job_document(app.jobs.get(one.json()["id"]))))
    looked.append(str(run_document(app.runs.get(many.json()["id"]))))
    for text in looked:
        assert "inner-thing" not in text
        assert "DE00" not in text
        assert "[redacted]" in text
    app.close()


def test_a_timeout_is_a_number_or_one_for_each_part(small, remote):
    with (
        served(small) as where,
        httpx2.Client(base_url=where, trust_env=False, timeout=60) as client,
    ):
        for given, read in ((5, 5.0), (2.5, 2.5), ({"read": 7}, 7.0), (None, 30.0)):
            body = {"url": remote.url, "timeout": given}
            posted = client.post("/v1/requests", json=body)
            assert posted.status_code == 202, posted.text
            told = client.get(posted.headers["location"]).json()["arguments"]["request"]
            assert told["timeouts"]["read"] == read
            assert client.post("/v1/requests:batch", json={"requests": [body]}).is_success
        for wrong in (0, -1, True, "5", {"reads": 1}):
            body = {"url": remote.url, "timeout": wrong}
            assert client.post("/v1/requests", json=body).status_code == 422, wrong


def test_h95_the_same_key_makes_one_request(app, http, remote):
    body = {"method": "POST", "url": remote.url}
    first, second = (
        http.post("/v1/requests", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)
    )
    assert first.json() == second.json()
    app.drain()
    assert len(remote.asked) == 1


WRONG = [
    {},
    {"url": "ftp://a.example"},
    {"url": "http://a.example", "method": "BREW"},
    {"url": "http://a.example", "pol": 3},
    {"url": "http://a.example", "reply": {"stat": "$.a"}},
    {"url": "http://a.example", "reply": {"state": "$..a", "complete": [1]}},
    {"url": "http://a.example", "headers": {"Host": "b"}},
    {"url": "http://a.example", "callback": True},
]


def test_what_could_never_be_sent_is_a_problem(small):
    with (
        served(small) as where,
        httpx2.Client(base_url=where, trust_env=False, timeout=60) as client,
    ):
        for body in WRONG:
            for path, sent in (("", body), (":batch", {"requests": [body]})):
                answer = client.post(f"/v1/requests{path}", json=sent)
                assert answer.status_code == 422, body
                assert answer.headers["content-type"] == "application/problem+json"
    assert small.jobs.list() == []


def test_h93_a_remote_calls_back_and_nobody_else_does(database, remote):
    app = mp.App(database.url, request_allow="127.0.0.1", public_url="http://will.be.set")
    with served(app) as where, httpx2.Client(trust_env=False, timeout=60) as client:
        # Where the API is reached is known once it is served.
        object.__setattr__(app.settings, "public_url", where)
        remote.answers = [WORKING]
        told = {"json": {"notify": "{callback}"}, "callback": True, "reply": RULES, "poll": None}
        posted = client.post(
            f"{where}/v1/requests", json={"method": "POST", "url": remote.url, **told}
        )
        app.drain()
        job = app.jobs.get(posted.json()["id"])
        assert job.state == "WAITING"
        address = remote.asked[0].json()["notify"]
        assert address.startswith(f"{where}/v1/requests/{job.id}/callback/")
        token = address.rpartition("/")[2]
        assert token not in repr([entry.detail for entry in job.history])

        wrong = address[:-3] + "abc"
        assert client.post(wrong, json={"status": "done"}).status_code == 404
        other = app.request("GET", remote.url)
        swapped = address.replace(job.id, other.id)
        assert client.post(swapped, json={"status": "done"}).status_code == 404
        assert job.refresh().state == "WAITING"

        assert client.post(address, json={"status": "done", "value": 9}).status_code == 202
        app.drain()
        assert job.refresh().result == {"status": "done", "value": 9}
        # Late or again: heard, and nothing changes.
        assert client.post(address, json={"status": "error"}).status_code == 202
        assert job.refresh().result == {"status": "done", "value": 9}
    app.close()


def test_a_request_names_a_limit_that_the_store_has(app, http, remote):
    """Of a program, or of an operator; its key and its units come with it."""
    remote.answers = [DONE]
    app.client.run(
        declare, {("job", "erp"): Limit(most=1), ("job", "tokens"): Limit(None, 9, 60_000_000, 5)}
    )
    app.limits.set("erp", most=0, reason="a quiet day")
    asked = {"url": remote.url, "limit": "erp", "limit_key": "acme"}
    posted = http.post("/v1/requests", json=asked)
    assert posted.status_code == 202, posted.text
    more = [asked, {"batch": [{**asked, "limit": "tokens", "units": 5}]}]
    assert http.post("/v1/requests:batch", json={"requests": more}).status_code == 202
    found = [(job.limit, job.limit_key) for job in app.jobs.list(kind="request")]
    assert sorted(found) == [("erp", "acme"), ("erp", "acme"), ("tokens", "acme")]
    app.drain()
    assert app.limits.get("erp").waiting == 2
    assert (app.limits.get("erp").most, app.limits.get("erp").set_by) == (0, "client")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"limit": "epr"}, "there is no limit of that name; there are: erp"),
        ({"limit": {"most": 5, "name": "erp"}}, "string"),
        ({"limit_key": "acme"}, "without limit="),
        ({"limit": "erp", "units": 2}, "units= is for limits with a rate="),
        ({"limit": "erp", "units": 0}, "greater than 0"),
    ],
)
def test_who_may_submit_declares_no_limit_and_hears_what_is_wrong(app, http, remote, asked, told):
    app.client.run(declare, {("job", "erp"): Limit(most=1)})
    one = {"url": remote.url, **asked}
    for path, body in (("/v1/requests", one), ("/v1/requests:batch", {"requests": [one]})):
        said = http.post(path, json=body)
        assert (said.status_code, told in said.text) == (422, True), said.text
    assert len(app.limits.changes()) == 1
    assert app.jobs.list() == []
