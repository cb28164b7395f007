"""Orders over HTTP: an order and the job about it are committed together, or not at all."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import milepost as mp

URL = os.environ.get("MILEPOST_DATABASE_URL", "sqlite:///shop.db")
SOLD = {"tea", "rice", "salt"}

jobs = mp.App(URL)


def engine(url: str) -> Engine:
    """Reach the database of the jobs, for the shop's own tables as well."""
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


# Nothing is connected yet. A worker imports this file too, and has no server to open it.
Sessions = sessionmaker(bind=engine(URL))


class Base(DeclarativeBase):
    """The shop's own tables, beside Milepost's in the same database."""


class Order(Base):
    """Something that a customer wants."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    article: Mapped[str]
    confirmed: Mapped[bool] = mapped_column(default=False)


def open_database(url: str) -> None:
    """Make the shop's own tables there, and use them from now on."""
    opened = engine(url)
    Base.metadata.create_all(opened)
    Sessions.configure(bind=opened)


@jobs.job(retries=5, retry_delay=2.0)
def confirm(order: int) -> str:
    """Confirm an order. It may run more than once, so it does what is harmless to repeat."""
    with Sessions.begin() as session:
        found = session.get_one(Order, order)
        found.confirmed = True
        return f"order {order} is confirmed: {found.article}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Open the database; with SHOP_WORKER=1 also run a worker in this process."""
    await asyncio.to_thread(jobs.counts)  # sets an empty store up
    await asyncio.to_thread(open_database, URL)
    wanted = os.environ.get("SHOP_WORKER") == "1"
    # The web server has the signals; it cancels the worker, which then drains.
    worker = asyncio.create_task(jobs.run_worker_async(signals=False)) if wanted else None
    yield
    if worker is not None:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
    await jobs.close_async()


app = FastAPI(title="Shop", lifespan=lifespan)


class Wish(BaseModel):
    """What a customer asks for."""

    article: str


@app.post("/orders", status_code=202)
def place_order(wish: Wish, response: Response) -> dict[str, Any]:
    """Store an order and submit its job; both are there once this answers, or neither is."""
    with Sessions.begin() as session:
        order = Order(article=wish.article)
        session.add(order)
        session.flush()
        job = confirm.within(session).submit(order.id)
        if wish.article not in SOLD:
            raise HTTPException(422, f"we do not sell {wish.article}")
        answer = {"order": order.id, "job": job.id}
    response.headers["Location"] = f"/jobs/{job.id}"
    return answer


@app.get("/jobs/{job_id}")
async def show_job(job_id: str) -> dict[str, Any]:
    """Say where a job stands; once it is done, exactly one of its result and its error."""
    try:
        job = await jobs.jobs.get_async(job_id)
    except mp.NotFound as error:
        raise HTTPException(404, str(error)) from error
    shown = {"id": job.id, "state": job.state, "done": job.done, "progress": job.progress}
    if job.state == mp.JobState.SUCCEEDED:
        return {**shown, "result": job.result}
    if job.done:
        return {**shown, "error": job.error.message if job.error else str(job.state)}
    return shown
