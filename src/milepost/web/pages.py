"""Pages for a browser: what answers here, and the description of the API to read.

They show nothing of the store, and so need no token; and they load nothing from elsewhere.
"""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from milepost.web.route import Route

router = APIRouter(route_class=Route, include_in_schema=False)

HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>
:root {{ color-scheme: light dark }} table {{ border-collapse: collapse }}
body {{ font: 1rem/1.5 system-ui; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
td {{ text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top }}
summary {{ cursor: pointer }} code {{ font-size: .95em }}
</style></head><body>{body}</body></html>"""


def _page(title: str, body: str) -> HTMLResponse:
    return HTMLResponse(PAGE.format(title=escape(title), body=body), headers=HEADERS)


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Show every operation of the API: its parameters, its body, its answers."""
    described = request.app.openapi()
    schemas = described["components"]["schemas"]
    parts = ["<h1>The HTTP API</h1>"]
    tag = None
    for path, method, operation in _operations(described["paths"]):
        if operation["tags"][0] != tag:
            tag = operation["tags"][0]
            parts.append(f"<h2>{escape(tag)}</h2>")
        parts.append(_operation(path, method, operation, schemas))
    return _page("The HTTP API", "".join(parts))


def _operations(paths: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield path, method.upper(), operation


def _operation(
    path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> str:
    takes = [
        (found["name"], found["in"], _type(found["schema"]), found.get("description", ""))
        for found in operation.get("parameters", ())
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    fields = schemas.get(_reference(body.get("schema", {})), {}).get("properties", {})
    takes += [
        (name, "body", _type(field), field.get("description", "")) for name, field in fields.items()
    ]
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in takes
    )
    answers = ", ".join(
        f"{status} {_type(_answer(told))}".strip()
        for status, told in operation["responses"].items()
    )
    return (
        f"<details><summary><code>{method} {escape(path)}</code> "
        f"{escape(operation['description'].partition(chr(10))[0])}</summary>"
        f"<p>{escape(operation['description'])}</p><table>{rows}</table>"
        f"<p>Answers: {escape(answers)}</p></details>"
    )


def _answer(told: Mapping[str, Any]) -> Mapping[str, Any]:
    content: Mapping[str, Mapping[str, Any]] = told.get("content", {})
    return next((form.get("schema", {}) for form in content.values()), {})


def _reference(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _type(schema: Mapping[str, Any]) -> str:
    """Say a schema's type in a word or two."""
    if named := _reference(schema):
        return named
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(filter(None, map(_type, several)))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {})) or 'anything'}"
    return str(schema.get("type", ""))
