"""The dashboard: pages over an engine, for people. `milepost server` and `dev` serve it at `/`.

A page is a module here, with a router that is an entry in `ROUTERS`, and templates in a folder of
its name::

    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    @router.get("/things")
    async def things(*, call: ReadCall, q: str = "") -> Response:
        async def load() -> View:
            found = await call.run(store.things.listing)
            return View(
                template="things/page.html",          # {% extends "base.html" %}
                title="Things", section="things", cli="milepost things ls",
                values={"things": found},
                parts={"things-list": "things/list.html"},   # {{ part("things-list") }}
            )
        return await show(call, load)

    @router.post("/things/{name}/paint")
    async def paint(*, name: str, request: FormRequest, call: OperateCall) -> Response:
        fields = await form_of(call)
        ...
        return go_to(call.request, f"/things/{name}")

1. `show` serves the page and, to a page that is shown already, the stream of its changes: the
   outermost element of a part's template has the part's name as its id. `load` is called again
   while somebody looks; one reader serves all viewers with the same rights.
2. Everything is escaped by the templates; nothing is marked safe but what `charts` draws. No
   `style=`, no inline script: the policy refuses them. Bars are attributes of SVG.
3. A form is a POST with `{{ form_token_field() }}` in it, and works without JavaScript; its handler
   calls the engine as the API does, in the caller's name, and answers with `go_to`.
4. The scopes of the API decide: `ReadCall`, `OperateCall`, `AdminCall`, `principal.sees`.
5. Styles and scripts of a page lie in `static/app/NAME.css` and `NAME.js`, which every page
   loads, or in `static/pages` (see `static.STYLES`), which few do.
"""
