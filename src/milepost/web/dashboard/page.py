"""Pages: how one is made from a template, read again while it is looked at, and acted on.

A page is a route that gives `show` a function which reads the store and returns a `View`. The same
function serves the page, and its stream: a part of a view is a template whose outermost element has
the part's name as its id, and is sent again when it has changed. See `web/dashboard/__init__.py`.
"""

import gzip
import hashlib
import re
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.datastructures import URL
from starlette.responses import HTMLResponse, RedirectResponse, Response

from milepost import filters
from milepost.errors import MilepostError
from milepost.telemetry import Log
from milepost.web.call import Call, OperateCall
from milepost.web.dashboard import charts, static, words
from milepost.web.paths import NamedRoute, encoded_path
from milepost.web.problems import HttpProblem, problem_of
from milepost.web.route import JsonRequest

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
    "Vary": "Accept, Cookie, Accept-Encoding",
}
log = Log("milepost.web")
FORM_MOST = 64 * 1024
FORM_TYPE = "application/x-www-form-urlencoded"
STREAM = "text/event-stream"
API = ("/v1/", "/openapi")
"""Paths whose errors are problems, whoever asks."""
PACKED_LEAST = 500
_PASSING = re.compile(r'(<time[^>]*>)[^<]*|(name="form_token" value=)"[^"]*"')
"""What differs each time that a part is rendered, and means no change."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """What a page shows: a template, its values, and its parts that change while it is shown."""

    template: str
    title: str
    section: str
    """The page of the rail that it belongs to."""
    cli: str
    """The command that shows the same."""
    values: Mapping[str, Any]
    parts: Mapping[str, str] = {}
    """Templates of the parts, by their ids."""
    pieces: Mapping[str, tuple[str, Mapping[str, Any]]] = {}
    """Parts with values of their own, such as the rows of a list: id, template and values."""
    follow: Mapping[str, str] = {}
    """What the stream of its changes is asked for in addition: the rows that are shown, say."""


Load = Callable[[], Awaitable[View]]


@cache
def environment() -> Environment:
    """Make the environment of the templates: everything is escaped, a missing value is an error."""
    made = Environment(
        loader=PackageLoader("milepost.web.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_inert,
    )
    for function in (
        *(words.count, words.capped, words.short_count, words.percent, words.rate, words.duration),
        *(words.clock, words.absolute, words.iso, words.size, words.cut, words.ago, words.short_id),
        *(words.seconds, words.short_place),
    ):
        made.filters[function.__name__] = function
    made.globals |= {
        "plural": words.plural,
        "parts_of_duration": words.parts_of_duration,
        "charts": charts,
        "quoted": lambda text: quote(str(text), safe=""),
        "filter": lambda **words: str(filters.where(**words)),
    }
    return made


def _inert(value: object) -> object:
    """Show what would act on the text around it, in every value that is written."""
    return words.visible(value) if type(value) is str else value


def address(root: str, path: str, /, **query: object) -> str:
    """Write the address of a page, with what is asked of it."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{root}{path}" + (f"?{urlencode(given)}" if given else "")


class Renderer:
    """Renders one caller's view of one page."""

    def __init__(self, call: Call, view: View, shared: Mapping[str, Any]) -> None:
        self._view = view
        self._made: dict[str, Markup] = {}
        root = call.request.scope.get("root_path", "").rstrip("/")
        self._values = {
            **shared,
            **view.values,
            "view": view,
            "root": root,
            "principal": call.principal,
            "may": call.principal.may,
            "static": lambda name: root + static.address(name),
            "url": lambda path, **query: address(root, path, **query),
            "here": _here(call.request),
            "stream": _here(call.request, **view.follow),
            "part": self.part,
            "styles": static.STYLES.get(view.template.partition("/")[0], ()),
        }

    def part(self, name: str) -> Markup:
        """Render a part, once; its id is its name."""
        if name not in self._made:
            self._made[name] = self._render(name)
        return self._made[name]

    def _render(self, name: str) -> Markup:
        template, more = self._view.pieces.get(name) or (self._view.parts[name], {})
        return Markup(  # noqa: S704 - a template that escapes
            environment().get_template(template).render({**self._values, **more})
        )

    def parts(self) -> dict[str, str]:
        """Render every part that changes while the page is shown."""
        return {name: str(self.part(name)) for name in (*self._view.parts, *self._view.pieces)}

    def whole(self) -> str:
        """Render the page."""
        marks = {name: mark(html) for name, html in self.parts().items()}
        template = environment().get_template(self._view.template)
        return template.render({**self._values, "marks": msgspec.json.encode(marks).decode()})


def _here(request: Request, **more: object) -> str:
    """Write the address that was asked for, with more; a name in it may hold anything."""
    query = URL(query=request.scope["query_string"].decode("latin-1"))
    asked = (query.include_query_params(**more) if more else query).query
    return encoded_path(request.scope) + (f"?{asked}" if asked else "")


def mark(html: str) -> str:
    """Mark a part by its content; how long ago something was is not content."""
    return hashlib.sha256(_PASSING.sub(r"\1\2", html).encode()).hexdigest()[:12]


async def show(call: Call, load: Load) -> Response:
    """Answer with a page, or, to a page that is shown already, with the stream of its changes."""
    state = call.request.app.state
    if STREAM in call.request.headers.get("accept", ""):
        return await state.live.stream(call, load)  # type: ignore[no-any-return]
    view = await load()
    renderer = Renderer(call, view, await state.rail.shared(call))
    return html_response(call.request, renderer.whole())


def html_response(request: Request, text: str, status: int = 200) -> Response:
    """Send a page, packed if the browser takes that."""
    content, headers = text.encode(), dict(HEADERS)
    packs = "gzip" in request.headers.get("accept-encoding", "")
    if packs and len(content) > PACKED_LEAST:
        content, headers["Content-Encoding"] = gzip.compress(content, 5, mtime=0), "gzip"
    return HTMLResponse(content, status, headers)


def go_to(request: Request, path: str, **query: object) -> Response:
    """Send the browser to another page, after something was done."""
    root = request.scope.get("root_path", "").rstrip("/")
    return RedirectResponse(address(root, path, **query), 303, {"Cache-Control": "no-store"})


class FormRequest(JsonRequest):
    """A request whose body is a form that was made here."""

    async def fields(self) -> dict[str, list[str]]:
        """Read the form's fields, or refuse one that another page made."""
        found = await self.unbound_fields()
        await self._check_origin(found.pop("form_token", [""])[-1])
        return found

    async def unbound_fields(self) -> dict[str, list[str]]:
        """Read the fields of a form that no session made: the one that begins a session."""
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != FORM_TYPE:
            raise HttpProblem(415, "this takes a form of these pages")
        try:
            text = (await self._arrived(FORM_MOST)).decode()
            pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=2_000)
        except ValueError as error:
            raise HttpProblem(400, "the form cannot be read; load the page again") from error
        found: dict[str, list[str]] = {}
        for name, value in pairs:
            found.setdefault(name, []).append(value)
        return found

    async def _check_origin(self, token: str) -> None:
        signer = await self.app.state.keys.signer()
        if not signer.is_form_token(self.scope["milepost.principal"].id, token):
            detail = "this form is of another session; load the page again and repeat"
            raise HttpProblem(403, detail, name="stale-form")


Fields = Mapping[str, Sequence[str]]


def command(*given: str) -> str:
    """Write a command of `milepost` as a shell reads it, whatever names it has."""
    return shlex.join(("milepost", *given))


async def confirmation(
    call: Call,
    template: str,
    *,
    title: str,
    section: str,
    values: Mapping[str, Any],
    cli: str,
    status: int = 200,
) -> Response:
    """Ask before something is done: as a dialog of the page behind it, or as a page.

    The template begins with `{% extends confirm_base %}`, and fills the block `question`.
    """
    is_dialog = "x-dialog" in call.request.headers
    base = "confirm-dialog.html" if is_dialog else "confirm-page.html"
    view = View(
        template=template,
        title=title,
        section=section,
        cli=cli,
        values={**values, "confirm_base": base},
    )
    shared = await call.request.app.state.rail.shared(call)
    return html_response(call.request, Renderer(call, view, shared).whole(), status)


def audit(call: Call, action: str, subject: str, **more: object) -> None:
    """Log what a person did, by name; moves are in the journal, too."""
    actor = call.principal.actor
    log.info("dashboard action", actor=actor, action=action, subject=subject, **more)


def acted(call: Call, action: str, subject: str, path: str, /, **query: object) -> Response:
    """Log what a person did, and show what became of it."""
    audit(call, action, subject)
    return go_to(call.request, path, **query)


def ask_first(
    router: APIRouter,
    path: str,
    actions: Iterable[str],
    question: Callable[[Call, str, str], Awaitable[Response]],
) -> None:
    """Add the page that asks before each of these actions on something with a name."""

    def asked(action: str) -> Callable[..., Awaitable[Response]]:
        async def ask(*, name: str, call: OperateCall) -> Response:
            return await question(call, name, action)

        return ask

    for action in actions:
        router.add_api_route(f"{path}/{{name}}/{action}", asked(action), methods=["GET"])


async def form_of(call: Call) -> Fields:
    """Read the form that was sent with a call."""
    assert isinstance(call.request, FormRequest)  # noqa: S101 - every page's route makes it
    return await call.request.fields()


def one(fields: Fields, name: str) -> str:
    """Return a field's value, empty if it was not sent."""
    values = fields.get(name) or [""]
    return values[-1].strip()


class PageRoute(NamedRoute):
    """A route whose errors are pages too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler."""
        handler = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handler(FormRequest(request.scope, request.receive))
            except (MilepostError, HttpProblem, RequestValidationError) as error:
                return await failure(request, problem_of(error))

        return shown


def wants_page(request: Request) -> bool:
    """Tell whether somebody looks who expects a page: a browser, and not below the API."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    return "text/html" in request.headers.get("accept", "") and not path.startswith(API)


async def failure(request: Request, problem: HttpProblem) -> Response:
    """Show what went wrong and what to do."""
    root = request.scope.get("root_path", "").rstrip("/")
    text = (
        environment()
        .get_template("problem.html")
        .render(
            problem=problem,
            root=root,
            static=lambda name: root + static.address(name),
            back=root + "/",
        )
    )
    response = html_response(request, text, problem.status_code)
    response.headers.update(problem.headers or {})
    return response
