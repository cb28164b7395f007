"""A store on PostgreSQL with its four roles, as `milepost grants` prints them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import psycopg

from milepost.store.roles import ROLES, script
from tests.support.databases import Database, Raw

STORE = (
    "SELECT relnamespace::regnamespace::text FROM pg_class WHERE relname = 'job' AND relkind = 'r'"
)


@dataclass(frozen=True)
class Company:
    """The owner's hand, and where each role logs in."""

    home: Database
    owner: Raw
    schema: str
    names: dict[str, str]

    def url(self, role: str) -> str:
        return self.home.url.replace("postgres@", f"{quote(self.names[role])}@")

    @contextmanager
    def hand(self, role: str) -> Iterator[Raw]:
        """Open a prompt as a role, that looks for tables in the store's schema."""
        url = self.url(role).replace("&schema=", "&x=").split("&x=")[0]
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"SET search_path = {self.schema}, pg_temp".encode())
            yield Raw("postgres", connection)


@contextmanager
def company(home: Database) -> Iterator[Company]:
    """Make the four roles and give them what the command prints."""
    with home.raw() as owner:
        schema = owner.value(STORE)
        number = owner.value("SELECT current_database()")
        names = {role: f"{role} of {number}"[:60] for role in ROLES}
        for role, name in names.items():
            owner.execute(f'CREATE ROLE "{name}" LOGIN')
            # What people granted before is taken back.
            owner.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO "{name}"')
            owner.execute(script([role], schema=schema, to=name))
        try:
            yield Company(home, owner, schema, names)
        finally:
            for name in names.values():
                owner.execute(f'DROP OWNED BY "{name}"')
                owner.execute(f'DROP ROLE "{name}"')
