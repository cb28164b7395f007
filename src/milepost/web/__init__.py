"""The HTTP API: an ASGI app over an engine. `app.asgi()` and `milepost server` give it.

A route is a handler in `web/<resource>.py`, below `router = APIRouter(route_class=Route)`, which is
an entry in `ROUTERS` of `web.api`::

    @router.post("/v1/things/{name}:paint", responses=answers(ThingDocument, 404, 413, 415))
    async def paint(*, name: str, colour: Colour, call: OperateCall) -> Response:
        thing = ...
        return await call.once(lambda: store.things.paint(thing.id, actor=call.principal.actor))

1. `call` is declared by the scope that it needs and the headers that it takes (`web.call`). Its
   `principal` is who calls: `check_new` refuses a job that the token may not create, `sees` says
   whether a job or run is the caller's to see. A foreign id is a 404: `subjects.visible` says so.
2. Everything done while a request is served is journalled in the caller's name, and created for
   the caller's tenant: `milepost.client.caller()` says so, and the calls of `app` read it. Inside a
   store operation it is too late to ask: that may run in a thread of its own.
3. A POST does its work as one store operation: `call.once(operation)` answers with the document
   that it returns, and with an Idempotency-Key stores that by the same transaction. `jobs.create`
   and `runs.create` answer 202 for a new job or run, or wait for its end if the caller prefers.
4. A listing takes `page: Paging` and answers with `page.listed` or `page.named`.
5. Errors are raised as the engine's own (`NotFound`, `Invalid`, ...) or as `HttpProblem`;
   `web.problems` turns each into an RFC 9457 document.
6. A `{name}` may have slashes (`web.paths`): declare `/v1/things/{name}/parts` before
   `/v1/things/{name}`.
7. Add the route's line to the matrix in tests/web/test_access.py (a route without one fails there),
   and write docs/reference/openapi.json anew: `make docs`.
"""
