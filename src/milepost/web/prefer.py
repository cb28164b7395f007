"""Prefer (RFC 7240): how long a caller would wait for the end before it gets an answer."""

from typing import Annotated

import msgspec
from fastapi import Depends, Header

WAIT_LONGEST = 60
"""How many seconds an answer is held back at most."""


class Preference(msgspec.Struct, frozen=True):
    """What a caller prefers."""

    wait: int | None = None
    respond_async: bool = False

    def heeded(self, *, readable: bool) -> "Preference":
        """Say what is heeded: waiting shows nothing that a look would not."""
        return self if readable else Preference(None, self.respond_async)

    @property
    def applied(self) -> dict[str, str]:
        """Say what was heeded."""
        words = ["respond-async"] * self.respond_async
        words += [] if self.wait is None else [f"wait={self.wait}"]
        return {"Preference-Applied": ", ".join(words)} if words else {}


async def preference(
    prefer: Annotated[
        str | None,
        Header(
            description="`wait=n` holds the answer back until the end, for up to n seconds "
            f"(at most {WAIT_LONGEST}); `respond-async` asks for the answer at once.",
            examples=["wait=10"],
        ),
    ] = None,
) -> Preference:
    """Read the header; what is not understood is not heeded, as the RFC has it."""
    wait, respond_async = None, False
    for word in (prefer or "").split(","):
        name, _, value = word.partition(";")[0].strip().partition("=")
        value = value.strip().strip('"')
        if name.strip().lower() == "respond-async":
            respond_async = True
        elif name.strip().lower() == "wait" and value.isascii() and value.isdecimal():
            wait = min(int(value[:9]), WAIT_LONGEST)
    return Preference(wait, respond_async)


Preferred = Annotated[Preference, Depends(preference)]
"""What a handler annotates a parameter with that is to be the caller's preference."""
