"""A pipeline's watermark as a file: B's three fields as JSON, for programs that read no store."""

import importlib.util
import tempfile
from pathlib import Path

import msgspec

from milepost.errors import Invalid


def check_place(place: str) -> None:
    """Refuse an address that nothing here can write to."""
    if "://" in place and importlib.util.find_spec("fsspec") is None:
        raise Invalid(
            f"watermark_file={place!r} needs fsspec: install milepost[files], and what fsspec "
            "asks for (s3fs, gcsfs, adlfs), or give a path"
        )


def write_file(place: str, document: dict[str, object]) -> None:
    """Write a file so that a reader finds the old one or the new one, whole.

    At an address that is its file system's own promise: object stores keep it.
    """
    content = msgspec.json.encode(document)
    if "://" in place:
        import fsspec  # noqa: PLC0415 - an extra

        with fsspec.open(place, "wb") as remote:
            remote.write(content)
        return
    path = Path(place).absolute()
    with tempfile.NamedTemporaryFile("wb", dir=path.parent, delete=False) as made:
        made.write(content)
    Path(made.name).replace(path)
