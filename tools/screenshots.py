"""Photograph the dashboard for the documents: `python -m tools.screenshots [NAME ...]`.

Serves the invented evening of `milepost demo --dashboard`, looks at its pages with the browser of
the tests, and writes docs/pictures/dashboard-*.png, each with a palette so that it stays small.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from playwright.sync_api import Browser, sync_playwright

from tests.support.browser import CHROMIUM, FLAGS, SCREENS

PICTURES = Path(__file__).parent.parent / "docs/pictures"
STARTED_SECONDS = 600
SETTLED_MS = 1_500
"""How long a page is looked at before it is photographed: its stream has come, and its charts."""
COLOURS = 256
PIXELS = {(8, 2): 3, (8, 6): 4}
"""Bytes a pixel, by a PNG's depth and kind."""
SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Picture:
    """A page, how it is looked at, and how long the evening has gone on by then."""

    name: str
    path: str
    theme: str = "light"
    after_seconds: float = 0.0


SHOWN = (
    Picture("run", "/runs/{run}", after_seconds=12),
    Picture("job", "/jobs/{job}"),
    Picture("errors", "/errors"),
    Picture("pipeline", "/pipelines/stones"),
    Picture("jobs", "/jobs?q=state:failed,retrying"),
    Picture("overview-light", "/", after_seconds=60),
    Picture("overview-dark", "/", "dark", after_seconds=60),
)


@contextmanager
def evening() -> Iterator[str]:
    """Serve the evening, and give the address of its pages."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told"
        with told.open("w") as printed:
            process = subprocess.Popen(
                [sys.executable, "-m", "milepost.cli", "demo", "--dashboard", "--port", "0"],
                stdout=printed,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={**os.environ, "BROWSER": "true"},
            )
        try:
            yield _address(process, told)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def _address(process: subprocess.Popen[bytes], told: Path) -> str:
    until = time.monotonic() + STARTED_SECONDS
    while time.monotonic() < until and process.poll() is None:
        lines = told.read_text().splitlines()
        if any("the evening's pages" in line for line in lines):
            return next(line.split()[1] for line in lines if line.startswith("pages "))
        time.sleep(0.2)
    raise SystemExit(f"the evening did not come: {told.read_text()}")


def subjects(address: str) -> dict[str, str]:
    """Choose a job that was tried most often and will be again, and the newest run."""

    def listed(path: str) -> list[dict[str, object]]:
        with urlopen(address + path) as answer:
            found: list[dict[str, object]] = json.load(answer)["items"]
            return found

    retrying = listed("/v1/jobs?state=RETRYING&kind=charge_card&limit=1000")
    job = max(retrying, key=lambda one: (int(str(one["attempt"])), str(one["id"])))
    runs = [run for run in listed("/v1/runs?limit=20") if run["run_state"] == "RUNNING"]
    return {"job": str(job["id"]), "run": str(runs[0]["id"]) if runs else ""}


def photograph(browser: Browser, address: str, path: str, theme: str) -> bytes:
    """Look at a page as a desktop shows it."""
    width, height = SCREENS["desktop"]
    context = browser.new_context(
        base_url=address,
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
    )
    page = context.new_page()
    answer = page.goto(path, wait_until="load")
    if answer is None or not answer.ok:
        raise SystemExit(f"{path}: {answer and answer.status}")
    page.wait_for_timeout(SETTLED_MS)
    taken = page.screenshot()
    context.close()
    return taken


# Small PNGs: with a palette


def packed(png: bytes) -> bytes:
    """Write a picture anew with a palette."""
    width, height, size, data = _read(png)
    rows = list(_unfiltered(zlib.decompress(data), width * size, height, size))
    pixels = [row[at : at + 3] for row in rows for at in range(0, width * size, size)]
    palette, numbers = _palette(Counter(pixels))
    lines = (
        b"\0" + bytes(numbers[pixel] for pixel in pixels[at : at + width])
        for at in range(0, width * height, width)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    content = zlib.compress(b"".join(lines), 9)
    chunks = ((b"IHDR", header), (b"PLTE", b"".join(palette)), (b"IDAT", content), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, body) for name, body in chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _read(png: bytes) -> tuple[int, int, int, bytes]:
    """Return width, height, bytes a pixel and the packed rows."""
    at, data, head = len(SIGNATURE), b"", b""
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + length]
        head = body if name == b"IHDR" else head
        data += body if name == b"IDAT" else b""
        at += length + 12
    width, height, depth, kind = struct.unpack(">IIBB", head[:10])
    if (depth, kind) not in PIXELS:
        raise SystemExit("a browser's picture has three or four bytes a pixel")
    return width, height, PIXELS[depth, kind], data


def _unfiltered(raw: bytes, stride: int, height: int, size: int) -> Iterator[bytes]:
    """Undo the filters of rows, which say how each byte differs from those around it."""
    above = bytearray(stride)
    for number in range(height):
        begin = number * (stride + 1)
        kind, line = raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride])
        for at in range(stride) if kind else ():
            left = line[at - size] if at >= size else 0
            match kind:
                case 1:
                    added = left
                case 2:
                    added = above[at]
                case 3:
                    added = (left + above[at]) // 2
                case _:
                    added = _paeth(left, above[at], above[at - size] if at >= size else 0)
            line[at] = (line[at] + added) & 255
        above = line
        yield bytes(line)


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda one: abs(guess - one))


def _palette(counts: Counter[bytes]) -> tuple[list[bytes], dict[bytes, int]]:
    """Choose colours, each time the one that the picture would miss most; number them all."""
    palette: list[bytes] = []
    numbers = dict.fromkeys(counts, 0)
    far = dict.fromkeys(counts, 3 * 255**2)
    while len(palette) < min(COLOURS, len(counts)):
        chosen = max(counts, key=lambda one: far[one] * counts[one] ** 0.5)
        for colour in counts:
            distance = sum((a - b) ** 2 for a, b in zip(colour, chosen, strict=True))
            if distance < far[colour]:
                far[colour], numbers[colour] = distance, len(palette)
        palette.append(chosen)
    return palette, numbers


def main(names: Sequence[str]) -> None:
    """Photograph all pages, or those that are named."""
    shown = [picture for picture in SHOWN if not names or picture.name in names]
    taken = {}
    with evening() as address, sync_playwright() as playwright:
        began = time.monotonic()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        for picture in shown:
            time.sleep(max(0.0, picture.after_seconds - (time.monotonic() - began)))
            path = picture.path.format(**subjects(address))
            taken[picture.name] = photograph(browser, address, path, picture.theme)
        browser.close()
    for name, png in taken.items():
        small = packed(png)
        (PICTURES / f"dashboard-{name}.png").write_bytes(small)
        print(f"dashboard-{name}.png {len(small):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
