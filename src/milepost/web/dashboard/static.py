"""Files of the pages: a fixed list, read once, named by their content and kept by browsers.

Own styles and scripts of all pages lie in `static/app` and are served as one; those of some pages
alone lie in `static/pages`: `STYLES` names those of a page, templates load scripts themselves.
Vendored files are listed in `static/vendor/versions.json` with version, licence and hash.
"""

import gzip
import hashlib
import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from milepost.web.problems import HttpProblem

router = APIRouter(include_in_schema=False)
FOLDER = files("milepost.web.dashboard") / "static"
FOREVER = "public, max-age=31536000, immutable"
TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}


STYLES = {
    **dict.fromkeys(("schedules", "channels", "limits", "tokens"), ("lists.css",)),
    "overview": ("overview.css",),
    "jobs": ("jobs.css",),
    "job": ("job.css",),
    "errors": ("lists.css", "job.css"),
    "runs": ("runs.css",),
    "pipelines": ("runs.css", "pipelines.css"),
}
"""Styles of some pages alone, by the folder of their templates; all others are in `app.css`."""


class File(msgspec.Struct, frozen=True):
    """A file as it is sent."""

    name: str
    content: bytes
    packed: bytes
    digest: str

    @property
    def media_type(self) -> str:
        """Its type, by its ending."""
        return TYPES[self.name.rpartition(".")[2]]


@cache
def manifest() -> dict[str, File]:
    """Read every file that is served, by its name."""
    found = [
        _file(entry.name, entry.read_bytes())
        for folder in (FOLDER, FOLDER / "vendor")
        for entry in folder.iterdir()
        if entry.name.rpartition(".")[2] in TYPES
    ]
    found += [
        _file(entry.name, _squeezed(entry.name, entry.read_bytes()))
        for entry in (FOLDER / "pages").iterdir()
    ]
    styles = _squeezed("app.css", _joined("css"))
    for file in found:
        # The address that a page loads it from in advance.
        styles = styles.replace(b'url("%s")' % file.name.encode(), b'url("%s")' % _named(file))
    found += [_file("app.css", styles), _file("app.js", _squeezed("app.js", _joined("js")))]
    return {file.name: file for file in found}


def _squeezed(name: str, content: bytes) -> bytes:
    """Leave out comments and space of own styles and scripts: it is a twentieth of what is sent."""
    if name.endswith(".js"):
        return re.sub(rb"(?m)^\s*(/\*.*?\*/$)?\s*", b"", content)
    bare = re.sub(rb"/\*.*?\*/", b"", content, flags=re.DOTALL)
    return re.sub(rb"\s*([{};,>])\s*", rb"\1", bare)


def _named(file: File) -> bytes:
    return f"{file.name}?v={file.digest}".encode()


def _joined(ending: str) -> bytes:
    """Join own files in the order of their names, `base` first."""
    parts: list[Traversable] = [
        entry for entry in (FOLDER / "app").iterdir() if entry.name.endswith(f".{ending}")
    ]
    parts.sort(key=lambda entry: (not entry.name.startswith("base"), entry.name))
    return b"\n".join(part.read_bytes() for part in parts)


def _file(name: str, content: bytes) -> File:
    packed = content if name.endswith(".woff2") else gzip.compress(content, mtime=0)
    return File(name, content, packed, hashlib.sha256(content).hexdigest()[:16])


def address(name: str) -> str:
    """Tell where a file is, below the place where the pages are mounted."""
    return f"/static/{name}?v={manifest()[name].digest}"


@router.get("/static/{name}")
async def served(name: str, request: Request) -> Response:
    """Send a file of the list."""
    file = manifest().get(name)
    if file is None:
        raise HttpProblem(404, "there is no such file")
    headers = {"Cache-Control": FOREVER, "ETag": f'"{file.digest}"', "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    content = file.content
    if file.packed is not file.content and "gzip" in request.headers.get("accept-encoding", ""):
        content, headers["Content-Encoding"] = file.packed, "gzip"
    return Response(content, headers=headers, media_type=file.media_type)
