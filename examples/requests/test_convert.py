"""The example runs, and tells what its page says."""

from pathlib import Path

import convert


def test_a_document_is_converted(tmp_path):
    told = convert.main(f"sqlite:///{tmp_path}/convert.db")
    assert told == [
        "12 pages",
        "heard: working, working, done",
        "the token is on the record: False",
    ]
    page = (Path(convert.__file__).parent / "README.md").read_text()
    assert "\n".join(told) in page
