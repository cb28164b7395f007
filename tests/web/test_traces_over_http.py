"""What a caller's request makes belongs to the caller's trace (W3C Trace Context)."""

import pytest

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
CALL = {"kind": "convert", "args": ["a"]}
SENT = {"url": "https://partner.example"}


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}])
@pytest.mark.parametrize(("path", "body"), [("/v1/jobs", CALL), ("/v1/requests", SENT)])
async def test_a_job_belongs_to_its_callers_trace(app, api, path, body, key):
    posted = await api.post(path, json=body, headers={"traceparent": TRACE, **key})
    assert posted.status_code == 202
    assert app.jobs.get(posted.json()["id"]).record.trace == TRACE


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/batches/letters/runs", {"params": {"count": 1}}),
        ("/v1/requests:batch", {"requests": [SENT]}),
    ],
)
async def test_a_run_and_its_jobs_belong_to_its_callers_trace(app, api, path, body):
    posted = await api.post(path, json=body, headers={"traceparent": TRACE})
    assert app.runs.get(posted.json()["id"]).record.trace == TRACE
    assert [job.record.trace for job in app.jobs.list()] == [TRACE]


async def test_a_job_run_again_belongs_to_the_trace_of_who_asked(app, api):
    job_id = (await api.post("/v1/jobs", json=CALL)).json()["id"]
    await app.drain_async()
    again = await api.post(
        f"/v1/jobs/{job_id}:rerun", json={"fresh": True}, headers={"traceparent": TRACE}
    )
    assert app.jobs.get(again.json()["id"]).record.trace == TRACE
    assert app.jobs.get(job_id).record.trace is None


@pytest.mark.parametrize("given", ["", "nonsense", TRACE.upper(), TRACE + "0"])
async def test_what_is_no_trace_is_not_kept(app, api, given):
    posted = await api.post("/v1/jobs", json=CALL, headers={"traceparent": given})
    assert posted.status_code == 202
    assert app.jobs.get(posted.json()["id"]).record.trace is None
