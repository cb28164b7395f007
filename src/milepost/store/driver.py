"""The seam between operations and databases. Internal: it may change with any release.

An operation is a generator that yields calls of named queries and is sent back the rows. It knows
neither the driver nor its colour; a driver runs it inside one transaction.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

__all__ = ["Call", "Driver", "Reader", "Rows", "Steps"]

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Call:
    """Run the named query with these parameters."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


Steps = Generator[Call, Rows, T]
"""An operation: yields calls, is sent rows, returns its result."""


class Reader(Protocol):
    """Reads of one snapshot."""

    def rows(self, call: Call) -> Rows:
        """Read a small answer whole."""
        ...

    def stream(self, call: Call, *, size: int) -> Iterator[tuple[Any, ...]]:
        """Read a large answer row by row, fetched `size` at a time."""
        ...


class Driver(Protocol):
    """A synchronous connection to one database."""

    dialect: str

    def run(self, steps: Steps[T]) -> T:
        """Run an operation in one transaction."""
        ...

    def snapshot(self) -> AbstractContextManager[Reader]:
        """Read several answers that belong together."""
        ...

    def script(self, text: str) -> None:
        """Run many statements as they stand, inside the caller's transaction."""
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...
