"""Why something stands still, and how it stood, over HTTP."""

from datetime import timedelta

from milepost.store import workers


async def test_what_stands_still_is_explained_within_the_bounds_of_a_token(app, api, token):
    [job_id] = await app.client.create_async([app.new_job("convert", ["a"], {}, {})])
    run = await app.batches[0].start_async({"count": 1})
    told = (await api.get(f"/v1/explain/job/{job_id}")).json()
    assert told["reasons"] == ["no_worker"]
    assert told["next"] == "the first worker that starts and knows its kind claims it"
    told = (await api.get(f"/v1/explain/run/{run.id}")).json()
    assert (told["subject"], told["reasons"]) == ("run", ["step", "no_worker"])
    told = (await api.get("/v1/explain/queue/default")).json()
    assert "no_worker" in told["reasons"]
    assert (await api.get("/v1/explain/queue/none")).status_code == 404
    assert (await api.get("/v1/explain/kettle/none")).status_code == 422
    theirs, slow = token("theirs", "read", tenant="acme"), token("slow", "read", queues=["slow"])
    for subject, name in (("job", job_id), ("run", run.id)):
        found = await api.get(f"/v1/explain/{subject}/{name}", headers=theirs)
        assert found.status_code == 404
    assert (await api.get("/v1/explain/queue/default", headers=theirs)).status_code == 403
    assert (await api.get("/v1/explain/queue/default", headers=slow)).status_code == 404


async def test_a_job_a_run_and_a_queue_are_told_as_they_stood(app, api):
    [job_id] = await app.client.create_async([app.new_job("convert", ["a"], {}, {})])
    run = await app.batches[0].start_async({"count": 1})
    now = await app.client.run_async(workers.now)
    await app.client.run_async(workers.advance_clock, 3_600.0)
    await app.drain_async()
    then = (now + timedelta(minutes=1)).isoformat()
    stood = (await api.get(f"/v1/jobs/{job_id}", params={"at": then})).json()
    assert (stood["state"], stood["attempt"]) == ("QUEUED", 0)
    assert (await api.get(f"/v1/jobs/{job_id}")).json()["job_state"] == "SUCCEEDED"
    stood = (await api.get(f"/v1/runs/{run.id}", params={"at": then})).json()
    assert stood["state"] == "QUEUED"
    stood = (await api.get("/v1/queues/default", params={"at": then})).json()
    assert stood["counts"] == {"QUEUED": 2}
    early = {"at": "2000-01-01T00:00:00"}
    assert (await api.get(f"/v1/jobs/{job_id}", params=early)).status_code == 404
    assert (await api.get(f"/v1/jobs/{job_id}", params={"at": "noon"})).status_code == 422
    later = {"at": (now + timedelta(days=2)).isoformat()}
    for path in (f"/v1/jobs/{job_id}", f"/v1/runs/{run.id}", "/v1/queues/default"):
        refused = await api.get(path, params=later)
        assert (refused.status_code, "still to come" in refused.text) == (422, True), path
