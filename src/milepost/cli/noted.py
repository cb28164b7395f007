"""How `verify` and `doctor` ended, kept in the store for the pages."""

from contextlib import suppress
from pathlib import Path

from milepost.cli.command import Session, open_session
from milepost.errors import MilepostError
from milepost.store import dashboard


def is_in_use(at: Session) -> bool:
    """Tell whether somebody has a store open; ask before it is looked at, which opens it too.

    A SQLite file that nobody has open is left as it is: looking at it changes nothing.
    """
    return not at.store.can.file or Path(f"{at.store.target}-shm").exists()


def note_check(at: Session, name: str, *, clean: bool, summary: str) -> None:
    """Keep how a check ended, where the role may; nobody who only looks is bothered with it."""
    with suppress(MilepostError), open_session(at.store, access="write") as session:
        session.client.run(dashboard.note_check, name, clean=clean, summary=summary)
