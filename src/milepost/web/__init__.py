"""The HTTP API: an ASGI app over an engine. `app.asgi()` and `milepost server` give it.

How a route is added, one file per resource:

1. `router = APIRouter(route_class=Route)` in `web/<resource>.py`, with `Route` from `web.body` (it
   limits what is read and refuses what is not JSON), and an entry in `ROUTERS` of `web.api`.
2. Each handler names the scope it needs, and so gets the caller, who is already authenticated::

       @router.post("/v1/things", status_code=202, responses=problems(404))
       async def create(
           *, new: NewThing, app: Held, who: Annotated[Who, require("submit")], once: Kept
       ) -> Response: ...

   `who.check_queue(queue)` refuses a queue that the token is not bound to; `who.sees(record)` says
   whether a job or run is the caller's to see (raise `NotFound` if not: a foreign id is a 404).
3. Whatever is done while a request is served is journalled in the caller's name, and what is
   created is the caller's tenant's: `milepost.client.caller()` says so, and `app`'s own calls read
   it. Inside a store operation it is too late to ask: that may run in a thread of its own.
4. A POST that creates something takes `once: Kept` and does its work as one store operation:
   `return await once(operation)`, where the operation (`Steps[Answer]`) writes and then returns an
   `Answer`. With an Idempotency-Key the answer is stored by that same transaction. `accepted()` in
   `web.documents` makes the 202 with Location and Retry-After.
5. Errors are raised as the engine's own (`NotFound`, `Invalid`, ...) or as `Problem`;
   `web.problems` turns each into an RFC 9457 document.
6. Add the route's line to the matrix in tests/web/test_access.py (a route without one fails there),
   and write docs/reference/openapi.json anew: `python -m tools.reference`.
"""
