"""A folder of FHIR patients is imported: find, parse, index behind a gate, poll, report.

The batch is at the top; below it are the stand-ins that make it run anywhere: a folder of small
files, some of them broken, and a search index that takes its time.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec

import milepost as mp

__all__ = ["Import", "Patient", "Report", "SearchIndex", "importer", "is_sound", "make_patients"]

RETRY_SECONDS = 0.2
POLL_SECONDS = 0.5


class Import(msgspec.Struct, frozen=True):
    """What a run is asked to import."""

    folder: str


class Patient(msgspec.Struct, frozen=True):
    """What is kept of a patient's file, and the folder it came from."""

    id: str
    family: str
    gender: str
    born: int
    folder: str


class Report(msgspec.Struct, frozen=True):
    """What the import came to."""

    patients: int
    genders: dict[str, int]
    oldest: int | None


def importer(app: mp.App) -> mp.Batch:
    """Declare the import on an app. A tenth of the files may be broken before a run fails."""
    batch = app.batch("import-patients", params=Import, policy=mp.Tolerate(0.1))

    @batch.step
    def find(params: Import) -> Iterator[str]:
        """Every file is a job of the next step."""
        yield from sorted(map(str, Path(params.folder).glob("*.json")))

    @batch.step(retries=3, retry_delay=RETRY_SECONDS)
    def parse(ctx: mp.Context, path: str) -> Patient:
        """Raise what may pass, to be tried again; `Fail` for what never will."""
        if is_hung_up(path, ctx.attempt):
            raise ConnectionError("the file share hung up")
        return parsed(Path(path))

    @batch.step(gated=True)
    def index(patient: Patient) -> Patient:
        """Begin when every file has been parsed. An attempt that is repeated does no harm."""
        SearchIndex(patient.folder).put(patient)
        return patient

    @batch.step(poll=POLL_SECONDS, poll_limit=100)
    def indexed(patient: Patient) -> Patient:
        """Ask until the patient can be found; that spends no retry."""
        if not SearchIndex(patient.folder).can_find(patient.id):
            raise mp.Later(POLL_SECONDS)
        return patient

    @batch.reduce
    def report(patients: Iterable[Patient]) -> Report:
        """Read what succeeded, once, however many there are."""
        genders: Counter[str] = Counter()
        oldest: int | None = None
        for patient in patients:
            genders[patient.gender] += 1
            oldest = patient.born if oldest is None else min(oldest, patient.born)
        return Report(genders.total(), dict(sorted(genders.items())), oldest)

    return batch


def parsed(path: Path) -> Patient:
    """Read one file, or refuse it for good."""
    try:
        resource = json.loads(path.read_text())
        if resource["resourceType"] != "Patient":
            raise mp.Fail(f"{path.name} holds no Patient: {resource['resourceType']}")
        return Patient(
            id=resource["id"],
            family=resource["name"][0]["family"],
            gender=resource["gender"],
            born=int(resource["birthDate"][:4]),
            folder=str(path.parent),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise mp.Fail(f"{path.name} is broken: {type(error).__name__}: {error}") from error


# The stand-ins

FAMILIES = ("Chalmers", "Levin", "Duck", "Everywoman", "Nuclear", "Mum", "Windsor", "van de Heuvel")
GENDERS = ("female", "male", "other", "unknown")
BROKEN, FOREIGN, HUNG_UP = 29, 41, 13
"""Every so many files one is cut off, is no patient, or cannot be read at the first attempt."""


def make_patients(folder: Path, count: int) -> None:
    """Fill a folder with patients' files, numbered from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        text = json.dumps(_resource(number), indent=2)
        whole = number % BROKEN != 0
        (folder / f"patient-{number:04}.json").write_text(text if whole else text[: len(text) // 2])


def is_sound(number: int) -> bool:
    """Tell whether a file can be imported at all."""
    return number % BROKEN != 0 and number % FOREIGN != 0


def is_hung_up(path: str, attempt: int) -> bool:
    """Tell whether this attempt to read a file meets a share that is gone for a moment."""
    return attempt == 1 and int(Path(path).stem[-4:]) % HUNG_UP == 0


def _resource(number: int) -> dict[str, object]:
    name = f"patient-{number:04}"
    if number % FOREIGN == 0:
        return {"resourceType": "Observation", "id": name, "status": "final"}
    return {
        "resourceType": "Patient",
        "id": name,
        "name": [{"use": "official", "family": FAMILIES[number % 8], "given": [f"P{number}"]}],
        "gender": GENDERS[number % 2 if number % 50 else 3],
        "birthDate": f"{1930 + number % 80}-{1 + number % 12:02}-{1 + number % 28:02}",
    }


class SearchIndex:
    """Stands for a search engine: what was put can be found after it was asked for a few times."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "index.db"

    def put(self, patient: Patient) -> None:
        """Take a patient; putting the same one again changes nothing."""
        slowness = int(patient.id[-4:]) % 3
        with closing(self._open()) as index:
            index.execute(
                "INSERT INTO document VALUES (?, ?, ?) ON CONFLICT (id) DO NOTHING",
                (patient.id, patient.family, slowness),
            )

    def can_find(self, name: str) -> bool:
        """Answer whether a patient can be found by now."""
        with closing(self._open()) as index:
            index.execute("UPDATE document SET slowness = slowness - 1 WHERE id = ?", (name,))
            [slowness] = index.execute(
                "SELECT slowness FROM document WHERE id = ?", (name,)
            ).fetchone()
        return bool(slowness < 0)

    def names(self) -> list[str]:
        """Name everything in it, in order."""
        with closing(self._open()) as index:
            return [name for [name] in index.execute("SELECT id FROM document ORDER BY id")]

    def _open(self) -> sqlite3.Connection:
        index = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        index.execute(
            "CREATE TABLE IF NOT EXISTS document"
            " (id TEXT PRIMARY KEY, family TEXT NOT NULL, slowness INTEGER NOT NULL)"
        )
        return index
