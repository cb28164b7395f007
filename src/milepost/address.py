"""Addresses of stores, and the capabilities of their databases."""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from milepost.errors import Invalid

DEFAULT_URL = "sqlite:///milepost.db"
DEFAULT_SCHEMA = "milepost"
_POSTGRES = ("postgresql", "postgres")
_DRIVERS = ("", "psycopg", "psycopg2", "psycopg_async", "asyncpg")
_SCHEMA = re.compile(r"(?!pg_|information_schema$)[A-Za-z_][A-Za-z0-9_]{0,47}")
_POOLER = "pooler=transaction"
_EXPECTED = "sqlite:///file.db or postgresql://user@host/database"

SQLITE_SHARED = (3, 51, 3)
"""From this version of SQLite on several processes share a file safely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The abilities in which the databases differ: code asks for one, never for a database."""

    file: bool
    """The store is a file: no server is waited for, no driver has to be installed."""
    many_writers: bool
    """Transactions of several callers write at the same time."""
    listen: bool
    """A commit wakes those that listen; elsewhere they look at the file."""
    roles: bool
    """Rights are granted to roles."""
    schemas: bool
    """Several stores, and tables of others, share a database without sharing names."""
    alter_types: bool
    """A column's type is changed in place."""
    exact_case: bool
    """Names that differ only in case are two columns."""


CAPABILITIES = {
    "postgres": Capabilities(
        file=False,
        many_writers=True,
        listen=True,
        roles=True,
        schemas=True,
        alter_types=True,
        exact_case=True,
    ),
    "sqlite": Capabilities(
        file=True,
        many_writers=False,
        listen=False,
        roles=False,
        schemas=False,
        alter_types=False,
        exact_case=False,
    ),
}
"""The capabilities of each dialect."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store's address; printing it never shows a password."""

    dialect: str
    target: str
    pooled: bool = False
    """Whether a transaction pooler stands there: no statement finds a session's settings."""
    schema: str = DEFAULT_SCHEMA
    """Where in a PostgreSQL database the store's tables are."""

    @property
    def can(self) -> Capabilities:
        """The abilities of the store's database."""
        return CAPABILITIES[self.dialect]

    @classmethod
    def parse(cls, url: str) -> "StoreUrl":
        """Parse an address, or raise with an example of one."""
        if not isinstance(url, str) or "\0" in url:
            raise Invalid(f"a store's address is a text; expected {_EXPECTED}")
        try:
            parts = urlsplit(url)
            _ = parts.port
        except ValueError as error:  # its own text may repeat a password
            raise Invalid(f"the store's address cannot be read; expected {_EXPECTED}") from error
        kind, _, driver = parts.scheme.partition("+")
        if kind in _POSTGRES and driver in _DRIVERS:
            if driver == "asyncpg":  # SQLAlchemy calls it so there
                parts = parts._replace(query=re.sub(r"(^|&)ssl=", r"\1sslmode=", parts.query))
            return _postgres(parts._replace(scheme=kind))
        if parts.scheme == "sqlite":
            return cls("sqlite", _sqlite_path(url, parts))
        if not parts.scheme and url.endswith((".db", ".sqlite", ".sqlite3")):
            raise Invalid(f"{url}: a file is given as sqlite:///{url}")
        raise Invalid(f"{parts.scheme or url!r}: no such kind of store; expected {_EXPECTED}")

    def __str__(self) -> str:
        if self.can.file:
            return f"sqlite:///{self.target}"
        parts = urlsplit(self.target)
        user = f"{parts.username}@" if parts.username else ""
        port = f":{parts.port}" if parts.port else ""
        return f"postgresql://{user}{parts.hostname or ''}{port}{parts.path}{self._named('?')}"

    __repr__ = __str__

    @property
    def address(self) -> str:
        """The whole address, with its password: for opening the store, never for showing."""
        if self.can.file:
            return str(self)
        parts = urlsplit(self.target)
        return _joined(parts._replace(query="&".join(filter(None, (parts.query, self._ours)))))

    @property
    def channel(self) -> str:
        """The channel of this store's notifications."""
        return channel_of(self.schema)

    def _named(self, before: str) -> str:
        return "" if self.schema == DEFAULT_SCHEMA else f"{before}schema={self.schema}"

    @property
    def _ours(self) -> str:
        """The options of an address that are not the drivers'."""
        return "&".join(filter(None, (_POOLER if self.pooled else "", self._named(""))))

    @property
    def typed(self) -> str:
        """The address as it is typed; PASSWORD stands where one is."""
        if self.can.file:
            return f"sqlite:///{quote(self.target)}"
        parts = urlsplit(self.target)
        server = parts.netloc
        if parts.password is not None:
            server = f"{parts.username or ''}:PASSWORD@{server.rpartition('@')[2]}"
        options = re.sub(r"(password=)[^&]*", r"\1PASSWORD", parts.query)
        options = "&".join(filter(None, (options, self._ours)))
        return _joined(SplitResult("postgresql", server, parts.path, options, ""))


def channel_of(schema: str) -> str:
    """Name the channel of a store's notifications: two in one database do not wake each other."""
    return schema if schema == DEFAULT_SCHEMA else f"{DEFAULT_SCHEMA}_{schema}"


def _postgres(parts: SplitResult) -> StoreUrl:
    """Take apart the options that are ours and those of the drivers."""
    options = [option for option in parts.query.split("&") if option]
    poolers = [option for option in options if option.startswith("pooler=")]
    if poolers not in ([], [_POOLER]):
        raise Invalid(f"{poolers[0]}: expected {_POOLER}, or nothing for any other kind of pooler")
    schemas = [option for option in options if option.startswith("schema=")]
    schema = unquote(schemas[-1].removeprefix("schema=")) if schemas else DEFAULT_SCHEMA
    if len(schemas) > 1 or not _SCHEMA.fullmatch(schema):
        raise Invalid(
            f"schema={schema}: expected one name of letters, digits and _, at most 48, that does "
            "not begin with pg_"
        )
    left = [option for option in options if option not in (*poolers, *schemas)]
    target = _joined(parts._replace(query="&".join(left)))
    return StoreUrl("postgres", target, pooled=bool(poolers), schema=schema)


def _joined(parts: SplitResult) -> str:
    """Spell an address; it has its slashes also where it names no server, as one of a socket."""
    return f"{parts.scheme}://{parts.netloc}{urlunsplit(('', '', *parts[2:]))}"


def _sqlite_path(url: str, parts: SplitResult) -> str:
    if parts.netloc or not parts.path.strip("/"):
        raise Invalid(f"{url}: three slashes and a file are expected, as in {DEFAULT_URL}")
    if parts.query or parts.fragment:
        raise Invalid(f"{url}: a SQLite address takes no options")
    return str(Path(unquote(parts.path[1:])).expanduser())
