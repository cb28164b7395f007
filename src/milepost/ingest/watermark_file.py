"""A pipeline's watermark as a file: B's three fields as JSON, for programs that read no store."""

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from milepost.errors import Invalid


def check_place(place: str) -> None:
    """Refuse an address that nothing here can write to."""
    if "://" not in place:
        return
    if importlib.util.find_spec("fsspec") is None:
        raise Invalid(
            f"watermark_file={place!r} needs fsspec: install milepost[files], and what fsspec "
            "asks for (s3fs, gcsfs, adlfs), or give a path"
        )
    from fsspec import available_protocols  # noqa: PLC0415 - an extra

    scheme = place.partition("://")[0].rpartition("::")[2]
    if scheme not in available_protocols():
        raise Invalid(f"watermark_file={place!r}: fsspec knows no {scheme!r}, as it does s3 and gs")


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
    # One name, so that a process that was killed here leaves nothing that stays.
    made = path.with_name(f".{path.name}.new")
    with made.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    made.replace(path)


@contextmanager
def holding(place: str) -> Iterator[bool]:
    """Keep other processes from writing to a path, where its file system can; False if one does.

    The system lets go of the folder when a process dies. An address cannot be held.
    """
    if "://" in place:
        yield True
        return
    folder = os.open(Path(place).absolute().parent, os.O_RDONLY)
    try:
        yield _locked(folder)
    finally:
        os.close(folder)


def _locked(folder: int) -> bool:
    try:
        import fcntl  # noqa: PLC0415 - not everywhere

        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True
