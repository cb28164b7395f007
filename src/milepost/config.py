"""Where the store is, read once from arguments and the environment, then only passed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from milepost.errors import Invalid

__all__ = ["DEFAULT_URL", "StoreUrl", "store_url"]

DEFAULT_URL = "sqlite:///milepost.db"
_POSTGRES = ("postgresql", "postgres")
_EXPECTED = "sqlite:///file.db or postgresql://user@host/database"


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's address; printing it never shows a password."""

    dialect: str
    target: str

    @classmethod
    def parse(cls, url: str) -> "StoreUrl":
        """Read an address, or say what one looks like."""
        parts = urlsplit(url)
        if parts.scheme in _POSTGRES:
            return cls("postgres", url)
        if parts.scheme == "sqlite":
            return cls("sqlite", _sqlite_path(url, parts))
        raise Invalid(f"{parts.scheme or 'this'}: no such kind of store; expected {_EXPECTED}")

    def __str__(self) -> str:
        if self.dialect == "sqlite":
            return f"sqlite:///{self.target}"
        parts = urlsplit(self.target)
        user = f"{parts.username}@" if parts.username else ""
        port = f":{parts.port}" if parts.port else ""
        return f"postgresql://{user}{parts.hostname or ''}{port}{parts.path}"

    __repr__ = __str__


def _sqlite_path(url: str, parts: SplitResult) -> str:
    if parts.netloc or not parts.path.strip("/"):
        raise Invalid(f"{url}: three slashes and a file are expected, as in {DEFAULT_URL}")
    if parts.query or parts.fragment:
        raise Invalid(f"{url}: a SQLite address takes no options")
    return str(Path(unquote(parts.path[1:])).expanduser())


def store_url(url: str | None, environment: Mapping[str, str]) -> StoreUrl:
    """Choose the store: the argument, MILEPOST_DATABASE_URL, DATABASE_URL, then ./milepost.db."""
    named = url or environment.get("MILEPOST_DATABASE_URL") or environment.get("DATABASE_URL")
    return StoreUrl.parse(named or DEFAULT_URL)
