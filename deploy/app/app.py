"""The app that the files of this folder run: put your own in its place."""

import milepost as mp

app = mp.App()


@app.job
def convert(document: str, *, format: str = "pdf") -> str:  # noqa: A002 - the word of its callers
    """Say how the document is called once it is converted."""
    return f"{document}.{format}"
