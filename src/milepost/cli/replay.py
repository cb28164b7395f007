"""`milepost replay ID`: what today's rules make of what a request was really answered."""

from uuid import uuid4

import click

from milepost.cli.options import id_argument, json_option, store_option
from milepost.cli.output import say
from milepost.config import StoreUrl


@click.command()
@store_option
@click.option(
    "--app",
    "target",
    metavar="APP",
    help="MODULE:APP or a file: whose functions declared with @app.reply read the replies.",
)
@id_argument
@json_option
def replay(store: StoreUrl, target: str | None, subject_id: str, *, as_json: bool) -> None:
    """Read a finished request's recorded replies again, offline, as a new job linked to it.

    Nothing is sent. The new job runs here and now; its result, or why it failed, is printed. Exit
    code 3 unless it succeeded.
    """
    from milepost.app import App
    from milepost.cli.jobs import await_end
    from milepost.cli.load import load_app

    app = load_app(target) if target else App(store.address)
    try:
        # A queue of its own: what else is due is left to the workers.
        queue = f"replay-{uuid4().hex[:12]}"
        job = app.replay(app.jobs.find(subject_id).id, queue=queue)
        say(f"job {job.id}")
        app.drain(queues=[queue])
        await_end(job, 10.0, as_json=as_json)
    finally:
        app.close()
