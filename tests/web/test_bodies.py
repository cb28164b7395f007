"""Bodies are read within limits: after the caller is known, and never deeper than allowed."""

import time

import pytest

import milepost as mp
from milepost.client import new_id
from milepost.codec import nested_deeper
from milepost.store import jobs
from milepost.store.driver import Call
from milepost.web.requests import CALLBACK_BYTES, CALLBACK_SIGNALS
from milepost.web.route import DEEPEST

NOWHERE = "018f0000-0000-7000-8000-000000000000"
JSON = {"Content-Type": "application/json"}


async def called(app, path, *pieces, method="POST", client=("127.0.0.1", 1)):
    """Call an ASGI app with a body that comes in pieces; answer with (status, pieces read)."""
    left, sent = list(pieces), []

    async def receive():
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"test"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
    scope |= {"query_string": b"", "headers": headers, "client": client, "root_path": ""}
    await app(scope, receive, send)
    return sent[0]["status"], len(pieces) - len(left)


@pytest.fixture
def awaited(app: mp.App) -> tuple[str, str]:
    """A request that waits to be called back: its job's id, and the path of its callback."""
    object.__setattr__(app.settings, "public_url", "http://api.example")
    told = {"json": {"to": "{callback}"}, "callback": True, "poll": None}
    job = app.request("POST", "https://partner.example", **told)
    token = job.record.payload.decode().rpartition('"callback":"')[2].partition('"')[0]
    assert len(token) > 20
    return job.id, f"/v1/requests/{job.id}/callback/{token}"


async def test_a_callback_with_a_wrong_address_is_refused_before_its_body_is_read(app, awaited):
    api = app.asgi()
    job_id, address = awaited
    for wrong in (f"/v1/requests/{NOWHERE}/callback/guess", address[:-3] + "abc"):
        assert await called(api, wrong, b"[" * 500_000, b"]" * 500_000) == (404, 0)
    assert await called(api, address, b'{"status":', b'"done"}') == (202, 2)
    assert await app.client.run_async(_kept, job_id) == 1
    await app.client.close_async()


def _kept(job_id):
    [(count,)] = yield Call("signal_count", {"job_id": job_id, "most": 10_000})
    return count


async def test_a_callback_is_small_and_rare_and_what_is_unread_is_bounded(app, api, awaited):
    job_id, address = awaited
    large = b'"' + b"x" * (CALLBACK_BYTES - 1) + b'"'
    assert (await api.post(address, content=large, headers=JSON)).status_code == 413
    assert (await api.post(address, content=large[:-2] + b'"', headers=JSON)).status_code == 202
    told = [(await api.post(address, json={"n": n})).status_code for n in range(40)]
    assert set(told) == {202, 429}
    assert told[:5] == [202] * 5  # one job's bucket; another's is its own
    # However slowly they come, a job that does not read them keeps so many at most.
    for _ in range(CALLBACK_SIGNALS):
        try:
            await app.client.run_async(
                jobs.signal,
                job_id,
                signal_id=new_id(),
                data=b"1",
                actor="t",
                most=CALLBACK_SIGNALS,
            )
        except mp.IllegalMove as error:
            assert "has not read" in str(error)  # noqa: PT017
            break
    else:
        pytest.fail("there is no end of it")


def test_what_a_program_signals_is_bounded_too(app, monkeypatch):
    @app.job
    def reads(ctx: mp.Context) -> None:
        ctx.signals()
        if ctx.fence == 1:
            raise mp.Later(3600)

    monkeypatch.setattr(jobs, "SIGNALS_MOST", 3)
    job = reads.options(start_in=3600).submit()
    for _ in range(3):
        job.signal({"go": 1})
    with pytest.raises(mp.IllegalMove, match="has not read"):
        job.signal({"go": 1})
    app.drain()
    job.signal({"go": 2})  # there is room again: it has read them
    app.drain()
    assert job.refresh().state == "SUCCEEDED"


DEEP = {
    "unclosed": b"[" * (DEEPEST + 1),
    "objects": b'{"a":' * (DEEPEST + 1) + b"1" + b"}" * (DEEPEST + 1),
    "closed in a text": b'["]]]]",' * (DEEPEST + 1) + b"1" + b"]" * (DEEPEST + 1),
    "an escaped quote": b'["\\"",' * (DEEPEST + 1) + b"1" + b"]" * (DEEPEST + 1),
}


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs:bulk", "/v1/batches/letters/runs"])
async def test_depth_is_checked_before_a_body_is_decoded(api, path, subtests):
    """One that is not even JSON to its end is refused for its depth, which is seen first."""
    for shape, body in DEEP.items():
        with subtests.test(shape=shape):
            answer = await api.post(path, content=body, headers=JSON)
            assert answer.status_code == 400
            assert answer.json()["type"].endswith("too-deep")


@pytest.mark.parametrize(
    "data",
    [
        b"[" * DEEPEST + b"]" * DEEPEST,
        b'"' + b"[" * 5_000 + b'"',
        b'["\\"' + b"[" * 5_000 + b'"]',
        b'["\\\\", ' + b"[]," * 5_000 + b"1]",
        b'"' + b"[" * 5_000,
    ],
)
def test_what_only_looks_deep_is_not(data):
    assert not nested_deeper(data, DEEPEST)


@pytest.mark.parametrize(
    "piece", [b"[", b'"', b'\\"', b'"\\', b"[]", b'["', b'{"a":', b'""', b"\\", b'"[']
)
def test_the_depth_of_any_megabyte_is_found_in_a_moment(piece):
    """Linear in what is sent, whatever it is: 50 ms per 100 kB is the most."""
    data = piece * (1_000_000 // len(piece))
    began = time.process_time()
    nested_deeper(data, DEEPEST)
    assert time.process_time() - began < 0.5
