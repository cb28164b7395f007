"""A pipeline's watermark as a file: B's three fields as JSON, for programs that read no store."""

import tempfile
from pathlib import Path

import msgspec

from milepost.errors import Invalid


def check_path(name: str) -> None:
    """Refuse a name that is no path; a folder may be made later, and a job tries again."""
    if "://" in name:
        raise Invalid(f"watermark_file={name!r} takes a path; addresses are not written to")


def write_file(path: Path, document: dict[str, object]) -> None:
    """Write a file so that a reader finds the old one or the new one, whole."""
    with tempfile.NamedTemporaryFile("wb", dir=path.absolute().parent, delete=False) as made:
        made.write(msgspec.json.encode(document))
    Path(made.name).replace(path)
