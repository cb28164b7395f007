"""Files that others wrote: each is the one that its hash says, and its licence is with it."""

import hashlib

import msgspec

from milepost.web.dashboard import static

VENDOR = static.FOLDER / "vendor"


def test_vendored_files_are_listed_with_their_hashes_and_licences():
    listed = msgspec.json.decode((VENDOR / "versions.json").read_bytes())
    lying = {entry.name for entry in VENDOR.iterdir() if entry.is_file()} - {"versions.json"}
    assert lying == listed.keys()
    licences = {entry.name.partition(".")[0] for entry in (VENDOR / "licences").iterdir()}
    for name, said in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == said["sha256"], name
        assert said["version"], name
        assert said["licence"], name
        assert name.replace("-", ".").partition(".")[0] in licences, name
