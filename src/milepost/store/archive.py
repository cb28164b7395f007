"""Files of entries that have left the journal: one folder for each week, JSON lines with checksums.

    journal_20261116/1f3a…c2.jsonl   entries of jobs and runs that were created in that week
    journal_20261116/SHA256SUMS      the checksum of each file, as `sha256sum -c` reads it

A file is named by its own checksum and never changes. It is on the disk, under its name and in the
list, before the entries leave the database. So a crash at any point loses nothing: what was written
and has not left is written again, perhaps in another file, and a reader takes each entry once.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path

import msgspec

from milepost.errors import Invalid
from milepost.store import failpoint
from milepost.store.driver import Call, Steps
from milepost.store.instants import EPOCH, instant

SUMS = "SHA256SUMS"
DEFAULT = "journal_default"
WHOLE = 2**40
"""As many entries of a history as there are."""
DIGEST = 64


class ArchivedEntry(msgspec.Struct, frozen=True):
    """One entry of the journal, as a line of the archive has it."""

    machine: str
    subject: str
    seq: int
    move: str
    from_state: str | None
    to_state: str
    at: datetime
    actor: str | None
    fence: int
    detail: str | None
    db_user: str | None = None


def leaving(ids: Sequence[str], *, most: int = WHOLE) -> Steps[list[ArchivedEntry]]:
    """Read the entries of these jobs and runs, or the oldest of each."""
    rows = yield Call("archive_entries", {"id": list(ids), "most": most})
    return [
        ArchivedEntry(machine, subject, seq, move, source, target, instant(at), *rest)
        for machine, subject, seq, move, source, target, at, *rest in rows
    ]


def week(subject_id: str) -> str:
    """Name the week in which a job or run was created, as PostgreSQL's partitions are named."""
    try:
        created = EPOCH + timedelta(milliseconds=int(subject_id.replace("-", "")[:12], 16))
        monday = created - timedelta(days=created.weekday())
    except OverflowError:  # not an id of the engine's making
        return DEFAULT
    return f"journal_{monday:%Y%m%d}"


def write(folder: Path, entries: Sequence[ArchivedEntry]) -> Mapping[str, int]:
    """Put entries on the disk for good; answer with the last of each job or run."""
    ordered = sorted(entries, key=lambda e: (week(e.subject), e.subject, e.machine, e.seq))
    try:
        for name, group in groupby(ordered, key=lambda entry: week(entry.subject)):
            _write_week(folder / name, list(group))
    except OSError as error:
        raise Invalid(
            f"archive={folder}: cannot be written ({error.strerror}); entries stay in the journal "
            "until it can"
        ) from error
    return {entry.subject: entry.seq for entry in ordered}


def _write_week(folder: Path, entries: Sequence[ArchivedEntry]) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)
    digest = hashlib.sha256(data).hexdigest()
    target = folder / f"{digest}.jsonl"
    if not target.exists():
        _write_file(target, data)
    for place in (folder, folder.parent):
        _sync(place)
    failpoint.reach("archive:written")
    _list(folder / SUMS, f"{digest}  {target.name}\n")
    failpoint.reach("archive:listed")


def _write_file(target: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _list(sums: Path, line: str) -> None:
    """Add a line in one write, after one that a crash may have torn."""
    known = sums.read_text(encoding="utf-8", errors="replace") if sums.exists() else ""
    if line in known:
        return
    begins = "" if known.endswith("\n") or not known else "\n"
    with sums.open("ab") as file:
        file.write(f"{begins}{line}".encode())
        file.flush()
        os.fsync(file.fileno())
    _sync(sums.parent)


def _sync(folder: Path) -> None:
    """Make the names in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def weeks(folder: Path) -> list[Path]:
    """List the weeks of an archive, or raise `Invalid` if it is none."""
    if not folder.is_dir():
        raise Invalid(f"{folder} is not a folder: name the one that archive= says")
    found = sorted(path for path in folder.glob("journal_*") if path.is_dir())
    if not found:
        raise Invalid(
            f"{folder} holds no weeks (journal_…): nothing has left the journal yet, or archive= "
            "says another folder"
        )
    return found


def listed(folder: Path) -> set[str]:
    """Name the files that a week is said to have; a line that a crash has torn says nothing."""
    sums = folder / SUMS
    if not sums.exists():
        return set()
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = [line.split("  ", 1) for line in lines if "  " in line]
    return {name for digest, name in pairs if len(digest) == DIGEST and name == f"{digest}.jsonl"}


def is_whole(path: Path) -> bool:
    """Tell whether a file has the checksum that it is named by."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == path.stem


def read(path: Path) -> Iterator[ArchivedEntry | str]:
    """Read the entries of a file; of a line that is none, say where it stands."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield msgspec.json.decode(line, type=ArchivedEntry)
            except msgspec.MsgspecError:
                yield f"line {number} cannot be read"
