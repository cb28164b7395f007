"""The job of the demonstration's workers: convert documents, with an unreliable partner."""

import time
from typing import Any

from milepost.app import App
from milepost.context import Context
from milepost.job import Job
from milepost.policy import Fail, Later

WORK_SECONDS = 0.2
POLL_SECONDS = 1.0
TRANSIENT, PERMANENT, POLLED = 7, 23, 11
"""Every so many documents one meets a partner that hangs up, is refused, or takes its time."""

TABLE = "CREATE TABLE converted (document INTEGER NOT NULL, job_id TEXT NOT NULL)"
"""Where conversions leave their effect. Nothing in it forbids a second one: it would be seen."""


def convert(ctx: Context, document: int) -> str:
    """Convert one document."""
    if not is_supported(document):
        raise Fail("this format is not supported")
    if document % POLLED == 0 and ctx.claim.polls == 0:
        raise Later(POLL_SECONDS)  # the partner has it; ask again
    time.sleep(WORK_SECONDS)
    if document % TRANSIENT == 0 and ctx.claim.errors == 0:
        raise ConnectionError("the partner hung up")
    # The effect and its record commit together: after a crash it is there once, or not at all.
    return ctx.step("keep", _keep, document, ctx.id, transaction=True)


def is_supported(document: int) -> bool:
    """Tell whether a document can be converted at all."""
    return document % PERMANENT != 0


def _keep(connection: Any, document: int, job_id: str) -> str:
    connection.execute("INSERT INTO converted VALUES (?, ?)", (document, job_id))
    return f"document-{document}.pdf"


def converter(app: App) -> Job[[Context, int], [int], str, str]:
    """Declare the job on an app."""
    return app.job(retries=5, retry_delay=0.5)(convert)


app = App()
converter(app)
