"""Import a folder of FHIR patients: `python app.py` makes the folder, imports it and reports."""

from pathlib import Path

import milepost as mp
from fhir_import import Import, importer, make_patients

app = mp.App()
patients = importer(app)

if __name__ == "__main__":
    folder = Path("patients").absolute()
    make_patients(folder, 300)
    run = patients.start(Import(folder=str(folder)))
    app.drain(timeout=60)  # or leave it to workers
    print(run.refresh().state)
    for step in run.steps:
        print(f"{step.name:8} {step.counts}")
    for error in run.errors[:3]:
        print(f"{error.step:8} {error.message}")
    print(run.report)
