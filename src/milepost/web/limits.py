"""/v1/limits: list limits, change them, and show who changed them and why."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from milepost.limit import SCOPES, UNITS_MOST
from milepost.rules import clear_limit, reset_limit, set_limit
from milepost.store import limit_looks, rules
from milepost.store.driver import Steps
from milepost.store.limit_looks import LimitStand, Terms
from milepost.store.rules import RuleChange, RuleEdit
from milepost.web.call import Call, OperateCall, ReadCall, json_response
from milepost.web.documents import ListDocument, RequestBody
from milepost.web.problems import answers, problems
from milepost.web.route import Route

router = APIRouter(route_class=Route, tags=["limits"])
CHANGES_MOST = 1_000
SCOPE_PATTERN = f"^({'|'.join(SCOPES)})$"

Scope = Annotated[
    str | None,
    Query(
        description="What it limits, if several have that name.",
        pattern=SCOPE_PATTERN,
    ),
]


class TermsDocument(BaseModel):
    """What a limit allows."""

    most: int | None = Field(default=None, description="How many of each key run at once.")
    rate: str | None = Field(default=None, examples=["25/s"])
    burst: float | None = Field(default=None, description="How many start at once after a rest.")
    ordered: bool = False
    units: str | None = None
    words: str = Field(description="The same in a sentence.", examples=["5 at once"])


class LimitDocument(TermsDocument):
    """A limit: what is in force, what was declared, who set it, and how it stands."""

    scope: str = Field(examples=["job", "queue", "host", "source"])
    name: str
    declared: TermsDocument | None = None
    set_at: datetime | None = None
    set_by: str | None = None
    reason: str | None = None
    running: int | None = Field(default=None, description="Jobs that run, over all keys.")
    waiting: int | None = Field(default=None, description="Jobs in line, over all keys.")
    counted_to: int | None = Field(
        default=None, description="Counting stops here: such a count means this many or more."
    )


class LimitList(ListDocument[LimitDocument]):
    """Every limit, by scope and name."""


class ChangeDocument(BaseModel):
    """A change of a limit."""

    at: datetime
    scope: str
    name: str
    before: TermsDocument | None = None
    after: TermsDocument | None = None
    key: str | None = Field(
        default=None, description="Whose rate was cleared; the limit stayed as it was."
    )
    free_at: datetime | None = Field(
        default=None, description="When that rate would have had all of its burst again."
    )
    actor: str | None = None
    reason: str | None = None


class ChangeList(ListDocument[ChangeDocument]):
    """Changes of a limit, newest first."""


class LimitChoice(RequestBody):
    """What to set: a field that is left out stays as it is, null removes it."""

    most: int | None = Field(default=None, ge=0, lt=2**31)
    rate: str | None = Field(default=None, max_length=100, examples=["25/s"])
    burst: float | None = Field(default=None, ge=1, le=UNITS_MOST)
    reason: str | None = Field(default=None, min_length=1, max_length=2000)
    scope: str | None = Field(default=None, pattern=SCOPE_PATTERN)

    @property
    def edit(self) -> RuleEdit:
        """The fields that were given; the others stay unset."""
        names = self.model_fields_set & set(RuleEdit.__struct_fields__)
        return RuleEdit(**{name: getattr(self, name) for name in names})


class ResetReason(RequestBody):
    """Why a limit goes back to what was declared."""

    reason: str | None = Field(default=None, min_length=1, max_length=2000)
    scope: str | None = Field(default=None, pattern=SCOPE_PATTERN)


class ClearChoice(RequestBody):
    """Whose bucket is refilled, and why."""

    key: str | None = Field(
        default=None,
        min_length=1,
        description="The key, of a limit that has keys; of the limit `*` of hosts, the host.",
    )
    reason: str | None = Field(default=None, min_length=1, max_length=2000)
    scope: str | None = Field(default=None, pattern=SCOPE_PATTERN)


STANDS = {**answers(LimitDocument, 404, description="How it stands now."), **problems(413, 415)}


def _checked(call: Call) -> Call:
    # It counts jobs of every tenant, in every queue.
    call.principal.check_unbound("a limit")
    return call


@router.get("/v1/limits", responses=answers(LimitList))
async def listing(*, call: ReadCall) -> Response:
    """List limits, with the jobs that run and wait under each, counted up to a bound."""
    found = await _checked(call).run(limit_looks.listing)
    return json_response({"items": found})


@router.get("/v1/limits/{name}/changes", responses=answers(ChangeList))
async def changes(
    *,
    name: str,
    call: ReadCall,
    scope: Scope = None,
    limit: Annotated[int, Query(ge=1, le=CHANGES_MOST)] = 100,
) -> Response:
    """List who changed a limit, to what and why."""
    found = await _checked(call).run(rules.changes, name, scope=scope, most=limit)
    return json_response({"items": [_change(one) for one in found]})


def _change(change: RuleChange) -> dict[str, Any]:
    told = msgspec.structs.asdict(change)
    ends = {"before": change.before, "after": change.after}
    return {**told, **{side: one and Terms.of(one, change.scope) for side, one in ends.items()}}


@router.get("/v1/limits/{name}", responses=answers(LimitDocument, 404))
async def show(*, name: str, call: ReadCall, scope: Scope = None) -> Response:
    """Show one limit."""
    return json_response(await _checked(call).run(limit_looks.one, name, scope=scope))


@router.post("/v1/limits/{name}:set", responses=STANDS)
async def set_(*, name: str, call: OperateCall, choice: Annotated[LimitChoice, Body()]) -> Response:
    """Set what a limit allows, from the next claim on. Jobs that run are not stopped."""
    said = {"actor": _checked(call).principal.actor, "reason": choice.reason}

    def operation() -> Steps[LimitStand]:
        return (yield from set_limit(name, choice.edit, scope=choice.scope, **said))

    return await call.once(operation)


@router.post("/v1/limits/{name}:reset", responses=STANDS)
async def reset(
    *,
    name: str,
    call: OperateCall,
    why: Annotated[ResetReason, Body()] = ResetReason(),  # noqa: B008 - it never changes
) -> Response:
    """Put back what programs declare; a limit that none declares is removed."""
    said = {"actor": _checked(call).principal.actor, "reason": why.reason}

    def operation() -> Steps[LimitStand]:
        return (yield from reset_limit(name, scope=why.scope, **said))

    return await call.once(operation)


@router.post("/v1/limits/{name}:clear", responses=STANDS)
async def clear(
    *,
    name: str,
    call: OperateCall,
    choice: Annotated[ClearChoice, Body()] = ClearChoice(),  # noqa: B008 - it never changes
) -> Response:
    """Refill the bucket of a rate, or of one key of it: the next job may start at once."""
    said = {"actor": _checked(call).principal.actor, "reason": choice.reason}

    def operation() -> Steps[LimitStand]:
        return (yield from clear_limit(name, choice.key, scope=choice.scope, **said))

    return await call.once(operation)
