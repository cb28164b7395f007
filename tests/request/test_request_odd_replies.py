"""Replies that nobody expects: each is read or refused, is on the record, and harms nobody else."""

import json

import httpx2
import pytest
from remote import Says
from test_requests_over_http import served

from milepost.cli.output import job_summary

YEAR = 366 * 86_400
FAR = {"Date": "Fri, 01 Jan 0100 00:00:00 GMT", "Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}


def ended(app, job):
    app.drain()
    return job.refresh()


def notes(job, phase):
    found = [json.loads(entry.detail) for entry in job.history if entry.move == "note"]
    return [note for note in found if note["phase"] == phase]


@pytest.mark.parametrize("status", [202, 503])
def test_h92_a_server_cannot_ask_for_more_time_than_can_be_written_down(app, remote, status):
    remote.answers = [Says(status, headers=FAR)]
    job = ended(app, app.request("GET", remote.url))
    assert job.state == ("WAITING" if status == 202 else "RETRYING")
    assert (job.record.due_at - job.record.created_at).days <= 367
    assert job_summary(job)["due_at"] == job.record.due_at
    with served(app) as where, httpx2.Client(base_url=where, trust_env=False) as client:
        for path in (f"/v1/jobs/{job.id}", f"/v1/jobs/{job.id}/history", "/v1/jobs"):
            assert client.get(path).status_code == 200, path


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "9" * 5_000}, float(YEAR)),
        ({"retry-after": "99999999999"}, float(YEAR)),
        ({name.lower(): value for name, value in FAR.items()}, float(YEAR)),
        ({"retry-after": "²"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 +" + "9" * 30}, None),
    ],
)
def test_nonsense_in_retry_after_is_not_obeyed(headers, seconds):
    from milepost.request.attempt import retry_after
    from milepost.request.reply import Answer

    assert retry_after(Answer(503, headers)) == seconds
