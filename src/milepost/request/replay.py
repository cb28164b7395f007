"""Replay: the handling of recorded replies again, offline, as a new job that points at the old one.

Nothing is sent (H-96). It tells what today's rules make of what the remote really answered.
"""

import base64
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import msgspec

from milepost.context import Context
from milepost.declare import Host
from milepost.errors import Invalid
from milepost.faces import Flow, Wait
from milepost.handles import JobHandle
from milepost.job import Job
from milepost.lifecycle import JOB
from milepost.options import DEFAULTS
from milepost.outcome import Outcome
from milepost.policy import Fail
from milepost.records import Entry, NewJob
from milepost.records import Job as Record
from milepost.request import kind as kinds
from milepost.request.declaration import Request
from milepost.request.guard import parse
from milepost.request.redact import HIDDEN
from milepost.request.reply import Answer, Verdict, judged, settled, succeeded
from milepost.store import jobs, journal

KIND = "request.replay"


class _Payload(msgspec.Struct):
    request: Request


class Replays:
    """The replays of one app."""

    def __init__(self, host: Host, requests: kinds.Requests) -> None:
        self._host = host
        self._requests = requests
        self.definition = kinds.definition(KIND, self.run, options={**DEFAULTS, "retries": 0})
        host.registry.add(self.definition, own=True)

    # Asking for one

    def start(self, job_id: str, *, queue: str | None) -> Flow[JobHandle[Any]]:
        """Store a replay of a finished request."""
        client = self._host.client
        new = self._new((yield from client.flow(jobs.get, job_id)), queue)
        [made] = yield Wait(client.create, client.create_async, ([new],))
        return JobHandle(client, made)

    def _new(self, record: Record, queue: str | None) -> NewJob:
        if record.kind != kinds.KIND:
            raise Invalid(f"job {record.id} is a {record.kind}; only requests are replayed")
        if record.state not in JOB.terminal:
            raise Invalid(f"job {record.id} is {record.state}; only a finished one is replayed")
        self._request(record)
        job: Job[..., ..., Any, Any] = Job(
            self._host, self.definition, {"queue": queue or record.queue}
        )
        made = job.new((record.id,), {})
        linked = msgspec.structs.replace(made.template, parent_id=record.id, tenant=record.tenant)
        return msgspec.structs.replace(made, template=linked)

    def _request(self, record: Record) -> Request:
        if record.payload is None:
            raise Invalid(f"the payload of job {record.id} was erased; nothing is left to replay")
        payload: _Payload = self._host.client.codec.decode(record.payload, _Payload)
        return payload.request

    # Doing it

    async def run(self, ctx: Context, job_id: str) -> Any:
        """Read every recorded reply in its order, until one decides."""
        client = self._host.client
        record = await client.run_async(jobs.get, job_id)
        history = await client.run_async(journal.history, job_id)
        request = self._request(record)
        seen = 0
        for entry, answer in recorded(history):
            seen += 1
            verdict = judged(request, answer, self._requests.judges)
            if verdict.word not in ("pending", "again"):
                return self._outcome(ctx, request, verdict, answer, entry)
        what = f"{seen} recorded replies decide nothing" if seen else "no reply was recorded"
        if history[0].summary is not None:
            what += " since its history was summed up (keep_history)"
        raise Fail(f"{what} of job {job_id}", code="replay")

    def _outcome(
        self, ctx: Context, request: Request, verdict: Verdict, answer: Answer, entry: Entry
    ) -> Outcome:
        client = self._host.client
        verdict = _whole(verdict)
        if verdict.word == "complete":
            most = client.settings.max_payload
            result = succeeded(verdict.value, ctx.id, client.codec, most)
        else:
            named = f"{request.method} {parse(request.url).shown}"
            result = settled(verdict, ctx.claim, answer, named=named, retry=request.retry)
        told: dict[str, Any] = {
            "phase": "RESPONSE",
            "from": "record",
            "seq": entry.seq,
            "status": answer.status,
        }
        if HIDDEN.encode() in answer.content:
            told["redacted"] = True
        note = msgspec.json.encode(told).decode()
        return msgspec.structs.replace(result, phase="RESPONSE", note=note)


def _whole(verdict: Verdict) -> Verdict:
    """Refuse a result that would hold a mark where the remote had sent a secret."""
    if HIDDEN not in msgspec.json.encode(verdict.value, enc_hook=str).decode():
        return verdict
    reason = (
        f"the result would hold {HIDDEN} where the remote had sent a secret, which is never "
        "recorded: read less of the reply (result=), or rerun the request"
    )
    return Verdict("failed", reason, code="redacted")


def recorded(history: list[Entry]) -> Iterator[tuple[Entry, Answer]]:
    """Read the replies out of a request's history, as they came."""
    for entry in history:
        if entry.move == "note" and (entry.detail or "").startswith('{"phase":"RESPONSE"'):
            told = msgspec.json.decode(entry.detail or "{}")
            yield (
                entry,
                Answer(
                    told.get("status", 0),
                    told.get("headers", {}),
                    _content(told),
                    told.get("url", ""),
                ),
            )


def _content(told: dict[str, Any]) -> bytes:
    if told.get("cut"):
        raise Fail(
            f"of a reply with {told['bytes']:,} bytes only the beginning was recorded; "
            "MILEPOST_REQUEST_RECORD says how much is kept",
            code="replay",
        )
    if "headers" not in told and told.get("from") != "signal" and told.get("bytes"):
        raise Fail("the request was made with record=False: no body was kept", code="replay")
    if "json" in told:
        return msgspec.json.encode(told["json"])
    if "form" in told:
        return urlencode(told["form"]).encode()
    if "base64" in told:
        return base64.b64decode(told["base64"])
    return str(told.get("text", "")).encode()
