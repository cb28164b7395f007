"""Where the store is: arguments win over the environment, and no password is ever printed."""

from dataclasses import fields

import pytest

import milepost as mp
from milepost import config
from milepost.address import StoreUrl
from milepost.config import Settings, origins, store_url
from milepost.errors import Invalid, SchemaMismatch, Unavailable
from milepost.store.connect import open_driver
from milepost.store.migrate import migrate
from tests.support.databases import backend_names
from tools.options_reference import meanings


def test_the_argument_wins_then_our_variable_then_the_common_one_then_a_file_here():
    environment = {"MILEPOST_DATABASE_URL": "sqlite:///ours.db", "DATABASE_URL": "sqlite:///any.db"}
    assert store_url("sqlite:///given.db", environment).target == "given.db"
    assert store_url(None, environment).target == "ours.db"
    assert store_url(None, {"DATABASE_URL": "sqlite:///any.db"}).target == "any.db"
    assert store_url(None, {}).target == "milepost.db"


OPENING = (
    *("request_allow", "request_ports", "request_redact", "request_secrets"),
    *("host", "hosts", "metrics", "secret_key"),
    *("oidc_issuer", "oidc_client_id", "oidc_client_secret", "oidc_groups"),
    *("oidc_claim", "oidc_scope", "oidc_redirect"),
    "broker_url",
)


@pytest.mark.parametrize("name", OPENING)
def test_a_file_in_the_working_folder_opens_no_doors_and_one_that_is_named_does(
    tmp_path, monkeypatch, name
):
    """Whoever may write into a folder does not decide who is let in when something runs there."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "milepost.toml"
    value = "80" if name in ("request_ports", "metrics") else "example"
    file.write_text(f'{name} = "{value}"\n')
    with pytest.raises(Invalid, match=f"sets {name}: .*in the environment.*MILEPOST_CONFIG="):
        Settings.load({})
    with pytest.raises(Invalid, match=f"sets {name}"):
        mp.App(f"sqlite:///{tmp_path}/a.db")
    named = {"MILEPOST_CONFIG": str(file)}
    assert getattr(Settings.load(named), name) == value
    assert origins(named)[name] == str(file)

    file.write_text('lease = "60s"\ndatabase_url = "sqlite:///filed.db"\n')
    assert Settings.load({}).lease == 60
    assert store_url(None, {}).target == "filed.db"


def test_the_named_file_takes_the_place_of_the_one_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "milepost.toml").write_text('lease = "60s"\nhosts = "example"\n')
    (tmp_path / "named.toml").write_text('grace = "9s"\n')
    settings = Settings.load({"MILEPOST_CONFIG": "named.toml"})
    assert (settings.lease, settings.grace, settings.hosts) == (30, 9, "")
    with pytest.raises(Invalid, match=r"missing\.toml cannot be read: No such file"):
        Settings.load({"MILEPOST_CONFIG": "missing.toml"})


def test_absolute_sqlite_paths_take_four_slashes():
    assert StoreUrl.parse("sqlite:////var/lib/jobs.db").target == "/var/lib/jobs.db"
    assert StoreUrl.parse("sqlite:///data/a%20b.db").target == "data/a b.db"


@pytest.mark.parametrize(
    "url",
    ["", "jobs.db", "mysql://host/db", "sqlite://jobs.db", "sqlite:///", "sqlite:///a?mode=ro"],
)
def test_a_wrong_address_says_what_a_right_one_looks_like(url):
    with pytest.raises(Invalid, match=r"sqlite:///|no options"):
        StoreUrl.parse(url)


def test_a_path_is_told_how_to_be_an_address():
    with pytest.raises(Invalid, match=r"a file is given as sqlite:////srv/jobs\.db"):
        StoreUrl.parse("/srv/jobs.db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:hunter2@host:5433/db",
        "postgresql://host/db?password=hunter2&user=u",
        "postgres://:hunter2@/db?host=/tmp",
    ],
)
def test_printing_an_address_never_shows_its_password(url):
    address = StoreUrl.parse(url)
    assert "hunter2" not in f"{address} {address!r}"
    assert address.target == url


def test_an_unreachable_server_is_named_without_its_password():
    url = StoreUrl.parse("postgresql://user:hunter2@127.0.0.1:9/db")
    with pytest.raises(Unavailable) as caught:
        open_driver(url)
    assert "user@127.0.0.1:9/db" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_missing_folder_and_a_file_that_is_no_store_are_told_apart(tmp_path):
    with pytest.raises(Unavailable, match="does not exist"):
        open_driver(StoreUrl.parse(f"sqlite:///{tmp_path}/no/such.db"))
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at as one\n" * 20)
    with pytest.raises(Unavailable, match="not a usable SQLite store"):
        open_driver(StoreUrl.parse(f"sqlite:///{text}"))
    with pytest.raises(Unavailable, match="no such file"):
        open_driver(StoreUrl.parse(f"sqlite:///{tmp_path}/typo.db"), create=False)
    assert not (tmp_path / "typo.db").exists()


def test_what_the_server_answers_is_passed_on(backends):
    database = backends.fresh(next(n for n in backend_names() if n.startswith("postgres")))
    elsewhere = database.url.replace(database.url.split("/")[3].split("?")[0], "no_such_database")
    with pytest.raises(Unavailable, match='database "no_such_database" does not exist'):
        open_driver(StoreUrl.parse(elsewhere))


def test_a_role_without_rights_and_a_taken_name_are_told_in_a_sentence(backends):
    database = backends.fresh(
        next(n for n in backend_names() if n.startswith("postgres")), empty=True
    )
    with database.raw() as raw:
        raw.execute("CREATE TABLE job (id integer)")
        raw.execute("CREATE ROLE stranger LOGIN")
        try:
            taken = open_driver(StoreUrl.parse(f"{database.url}&schema=public"))
            with pytest.raises(SchemaMismatch, match=r"name another in the address, \?schema=NAME"):
                migrate(taken)
            taken.close()
            stranger = open_driver(StoreUrl.parse(database.url.replace("postgres@", "stranger@")))
            with pytest.raises(Unavailable, match="lacks a right: permission denied"):
                migrate(stranger)
            stranger.close()
        finally:
            raw.execute("DROP ROLE stranger")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///x",
        "postgresql:///x?host=/run/postgresql",
        "postgresql://?host=/run/postgresql&dbname=x",
        "postgresql://ann:pw@[::1]:5432/x?sslmode=require",
    ],
)
def test_an_address_reaches_the_driver_as_it_was_given(url):
    read = StoreUrl.parse(url)
    assert read.target == read.address == url
    assert read.typed == url.replace("pw", "PASSWORD")
    more = StoreUrl.parse(url + ("&" if "?" in url else "?") + "schema=jobs")
    assert (more.target, more.schema) == (url, "jobs")


@pytest.mark.parametrize("driver", ["", "+psycopg", "+psycopg2", "+asyncpg"])
def test_an_address_as_sqlalchemy_writes_it_is_understood(driver):
    url = StoreUrl.parse(f"postgresql{driver}://me:pw@h:5433/db?sslmode=require&schema=jobs")
    assert (url.dialect, url.schema) == ("postgres", "jobs")
    assert url.target == "postgresql://me:pw@h:5433/db?sslmode=require"
    assert str(url) == "postgresql://me@h:5433/db?schema=jobs"
    assert StoreUrl.parse(url.address) == url
    assert url.typed == "postgresql://me:PASSWORD@h:5433/db?sslmode=require&schema=jobs"


def test_ssl_of_an_asyncpg_address_is_sslmode():
    url = StoreUrl.parse("postgresql+asyncpg://h/db?ssl=require")
    assert url.target == "postgresql://h/db?sslmode=require"


def test_the_schema_is_milepost_unless_the_address_names_another():
    assert StoreUrl.parse("postgresql://h/db").schema == "milepost"
    assert StoreUrl.parse("postgresql://h/db?schema=milepost").address == "postgresql://h/db"
    for name in ("", "pg_mine", "information_schema", 'a"b', "a;b", "a.b", "x" * 49):
        with pytest.raises(Invalid, match="expected one name"):
            StoreUrl.parse(f"postgresql://h/db?schema={name}")


def test_a_store_is_opened_by_an_address_as_sqlalchemy_writes_it(backends):
    backend = next(n for n in backend_names() if n.startswith("postgres1"))
    database = backends.fresh(backend, empty=True)
    app = mp.App(database.url.replace("postgresql://", "postgresql+asyncpg://"))
    assert app.counts() == {}
    app.close()
    backends.drop(database)


def test_every_setting_is_declared_with_its_meaning():
    told = meanings(config)
    assert {field.name for field in fields(Settings) if not told.get(field.name)} == set()
    assert sorted(config.RULED[config.OPENS]) == sorted(OPENING)
    assert {"lease", "api_connections", "threads"} < set(config.RULED[config.POSITIVE])


def test_a_setting_that_must_be_more_than_zero_is_refused_otherwise():
    for name in config.RULED[config.POSITIVE]:
        with pytest.raises(Invalid, match=f"^{name} must be more than zero|^heartbeat=10 s"):
            Settings.load({}, **{name: "0"})
