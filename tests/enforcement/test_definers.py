"""Functions with their owner's rights serve the store's own tables, and nobody may borrow them."""

import re
from collections.abc import Iterator

import pytest
from hands import refusal

from tests.support.databases import Backends, Database, Raw, backend_names

pytestmark = pytest.mark.every_version

POSTGRES = [name for name in backend_names() if name.startswith("postgres1")]
DEFINERS = """
    SELECT oid::regprocedure::text, prosrc, proconfig, proacl::text, prorettype::regtype::text
      FROM pg_proc WHERE prosecdef AND pronamespace = 'milepost'::regnamespace ORDER BY 1
"""
PUBLIC = """
    SELECT oid::regprocedure::text FROM pg_proc
     WHERE prosecdef AND has_function_privilege('visitor', oid, 'EXECUTE')
"""


@pytest.fixture(params=POSTGRES)
def home(request: pytest.FixtureRequest, backends: Backends) -> Iterator[Database]:
    database = backends.fresh(request.param)
    yield database
    backends.drop(database)


@pytest.fixture
def owner(home: Database) -> Iterator[Raw]:
    with home.raw() as raw:
        yield raw


@pytest.fixture
def stranger(home: Database, owner: Raw) -> Iterator[Raw]:
    """A role with no grant on any table, that has a schema of its own and may look into ours."""
    name = f"stranger_{owner.value('SELECT current_database()')}"
    owner.execute(f"CREATE ROLE {name} LOGIN")
    owner.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    owner.execute(f"GRANT USAGE ON SCHEMA milepost TO {name}")
    with home.raw(role=name) as raw:
        raw.execute(f"SET search_path = {name}")
        yield raw
    owner.execute(f"DROP OWNED BY {name} CASCADE")
    owner.execute(f"DROP ROLE {name}")


def lay(stranger: Raw) -> str:
    """Make a table of a type that acts when it is compared with a number or an id: a trap.

    That its code ran as somebody else is counted by a sequence, which no rollback takes back.
    """
    schema = stranger.value("SELECT current_schema()")
    acts = f"IF current_user <> '{schema}' THEN PERFORM nextval('{schema}.sprung'); END IF"
    for statement in (
        "CREATE SEQUENCE sprung",
        "CREATE TYPE trap AS (n integer)",
        (
            f"CREATE FUNCTION as_number(trap) RETURNS integer LANGUAGE plpgsql AS"
            f" $$ BEGIN {acts}; RETURN 1; END $$"
        ),
        (
            f"CREATE FUNCTION as_id(trap) RETURNS uuid LANGUAGE plpgsql AS"
            f" $$ BEGIN {acts}; RETURN gen_random_uuid(); END $$"
        ),
        "CREATE CAST (trap AS integer) WITH FUNCTION as_number(trap) AS IMPLICIT",
        "CREATE CAST (trap AS uuid) WITH FUNCTION as_id(trap) AS IMPLICIT",
        (
            "CREATE TABLE bait (id trap, version trap, fence trap, state text, move text,"
            " worker_id text, ordinal integer, errors trap, losses trap, polls trap,"
            " releases trap, run_id trap, step trap, name trap, mark trap, machine text,"
            " subject_id trap, seq trap, channel text, attempts trap, place text,"
            " delivered_at text, dead_at text, actor text, reason text, last_run_id trap,"
            " tenant text, task text, before trap, most trap)"
        ),
    ):
        stranger.execute(statement)
    return str(schema)


def sprung(owner: Raw, schema: str) -> bool:
    return bool(owner.value(f"SELECT is_called FROM {schema}.sprung"))


FILLED = (
    "INSERT INTO bait (id, version, fence, state, move, errors, run_id, step, attempts, before)"
    " SELECT t, t, t, 'SUCCEEDED', 'create', t, t, t, t, t"
)
ROW = " FROM (SELECT ROW(1)::trap AS t) AS one"


@pytest.mark.parametrize("table", ["job", "run"])
def test_a_role_with_no_grants_does_not_become_the_tables_owner(stranger, owner, table):
    """Its own table with our trigger on it: the casts of its types ran with the owner's rights."""
    name = lay(stranger)
    said = refusal(
        stranger,
        "CREATE TRIGGER sprung AFTER INSERT ON bait FOR EACH ROW"
        f" EXECUTE FUNCTION milepost.milepost_refuse_{table}()",
    )
    refusal(stranger, FILLED + ROW)
    assert not sprung(owner, name)
    assert "permission denied for function" in (said or "")


def test_a_borrowed_function_looks_at_the_table_before_anything_of_it(stranger, owner):
    """Whoever attaches it: not one expression over a foreign table's row is evaluated."""
    name = lay(stranger)
    definers = [text for (text, *_) in owner.execute(DEFINERS)]
    assert len(definers) > 8
    refused = {}
    for function in definers:
        owner.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {name}")
        called = f"EXECUTE FUNCTION milepost.{function.split('.')[-1]}"
        made = 0
        for how in (
            "AFTER INSERT OR UPDATE OR DELETE ON bait FOR EACH ROW",
            "AFTER INSERT ON bait REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT",
            (
                "AFTER UPDATE ON bait REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows"
                " FOR EACH STATEMENT"
            ),
            "AFTER DELETE ON bait REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT",
        ):
            stranger.execute("TRUNCATE bait")
            stranger.execute(FILLED + ROW)
            stranger.execute(f"CREATE TRIGGER sprung {how} {called}")
            for statement in (FILLED + ROW, "UPDATE bait SET move = 'x'", "DELETE FROM bait"):
                said = refusal(stranger, statement)
                made += "is not a table that this function serves" in (said or "")
            stranger.execute("DROP TRIGGER sprung ON bait")
        assert not sprung(owner, name), function
        refused[function] = made
    assert {function for function, made in refused.items() if made < 6} == set()


def test_no_definer_function_may_be_called_by_public(owner):
    """Whatever is added later: by the catalogue, and in every schema that a store leaves behind."""
    owner.execute("DROP ROLE IF EXISTS visitor")
    owner.execute("CREATE ROLE visitor")
    try:
        assert owner.execute(PUBLIC) == []
    finally:
        owner.execute("DROP ROLE visitor")
    for name, source, settings, acl, returns in owner.execute(DEFINERS):
        assert returns == "trigger", name
        assert "=X/" not in re.sub(r"\w+=X/", "", acl), name
        assert any(one.startswith("search_path=milepost, pg_temp") for one in settings), name
        declared, _, body = source.partition("BEGIN\n")
        first = next(line for line in body.splitlines() if not line.strip().startswith("--"))
        assert "TG_RELID" in first, name
        assert not re.search(r"\b(NEW|OLD|new_rows|old_rows)\b", declared), name


def test_every_function_looks_into_its_own_schema_or_needs_none(owner):
    loose = owner.execute(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'milepost'::regnamespace"
        " AND NOT coalesce(array_to_string(proconfig, ' '), '') LIKE '%search_path=%'"
    )
    assert sorted(name for (name,) in loose) == ["milepost_json", "milepost_now"]
