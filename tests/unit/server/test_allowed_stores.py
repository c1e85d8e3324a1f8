"""Which stores a request may attach: those that the operator allowed when the server started (P-02)."""

from __future__ import annotations

import pytest

from bendybus.errors import ArgumentError, ConfigError, StoreNotAllowed
from bendybus.server.allowed_stores import AllowedStores
from bendybus.store.postgres.address import parse_address

DATABASE = "postgresql://db.example.com/bus"


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def allowed(data, *texts: str) -> AllowedStores:
    return AllowedStores.parse(texts, data)


# -- files ----------------------------------------------------------------------------


def test_nothing_is_allowed_by_default(data, tmp_path):
    for url in (f"sqlite://{tmp_path}/b.db", DATABASE):
        with pytest.raises(StoreNotAllowed, match="--allow-store"):
            allowed(data).admitted(url)


def test_a_file_in_an_allowed_folder_is_allowed(data, tmp_path):
    (tmp_path / "stores" / "below").mkdir(parents=True)
    stores = allowed(data, f"{tmp_path}/stores")
    for path in ("b.db", "below/b.db", "below/../b.db", "./c.db", "with blank.db", "100%25.db"):
        asked = f"sqlite://{tmp_path}/stores/{path}"
        assert stores.admitted(asked).startswith(f"sqlite://{tmp_path}/stores/")
    assert stores.admitted(f"sqlite://{tmp_path}/stores/below/../b.db") == f"sqlite://{tmp_path}/stores/b.db"
    assert stores.admitted(f"sqlite://{tmp_path}/stores/100%25.db").endswith("/100%25.db")


def test_no_path_leads_out_of_an_allowed_folder(data, tmp_path):
    (tmp_path / "stores" / "below").mkdir(parents=True)
    (tmp_path / "stores-not").mkdir()
    (tmp_path / "stores" / "away").symlink_to(tmp_path)
    (tmp_path / "stores" / "file.db").symlink_to(tmp_path / "elsewhere.db")
    (tmp_path / "stores" / "loop").symlink_to(tmp_path / "stores" / "loop")
    stores = allowed(data, f"{tmp_path}/stores")
    for path in (
        "elsewhere.db",
        "stores",
        "stores/",
        "stores/.",
        "stores-not/b.db",
        "stores.db",
        "stores/../b.db",
        "stores/%2e%2e/b.db",
        "stores/%2e%2e%2fb.db",
        "stores/below/../../b.db",
        "stores/away/b.db",
        "stores/file.db",
        "stores/loop",
        "stores/nul%00.db",
        "data/catalog.db",
    ):
        with pytest.raises((StoreNotAllowed, ArgumentError)):
            stores.admitted(f"sqlite://{tmp_path}/{path}")


def test_an_allowed_folder_may_be_a_link_itself(data, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "stores").symlink_to(tmp_path / "disk")
    stores = allowed(data, f"{tmp_path}/stores")
    assert stores.admitted(f"sqlite://{tmp_path}/stores/b.db") == f"sqlite://{tmp_path}/disk/b.db"


def test_a_folder_around_the_data_folder_does_not_open_the_data_folder(data, tmp_path):
    stores = allowed(data, str(tmp_path))
    assert stores.admitted(f"sqlite://{tmp_path}/b.db")
    for path in ("data/namespaces.json", "data/tls/x.db", "data"):
        with pytest.raises(StoreNotAllowed):
            stores.admitted(f"sqlite://{tmp_path}/{path}")


def test_one_file_can_be_allowed_and_then_no_other_is(data, tmp_path):
    stores = allowed(data, f"sqlite://{tmp_path}/b.db")
    assert stores.admitted(f"sqlite://{tmp_path}/b.db")
    for path in ("b.db2", "B.db", "c.db", "b.db/c.db"):
        with pytest.raises(StoreNotAllowed):
            stores.admitted(f"sqlite://{tmp_path}/{path}")


# -- databases ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        DATABASE,
        "postgres://db.example.com/bus",
        "postgresql://DB.example.com:5432/bus",
        "postgresql://ann:secret@db.example.com/bus",
        "postgresql://db.example.com/bus?schema=b&name=b&sslmode=verify-full",
    ],
)
def test_an_allowed_database_is_attached_with_what_the_request_may_say(data, asked):
    address = parse_address(allowed(data, DATABASE).admitted(asked))
    wanted = parse_address(asked)
    assert (address.name, address.schema) == (wanted.name, wanted.schema)
    for key in ("user", "password", "sslmode", "dbname"):
        assert address.parameters.get(key) == wanted.parameters.get(key)
    assert address.parameters["host"] == "db.example.com"


@pytest.mark.parametrize(
    "asked",
    [
        "postgresql://db.example.com.evil.org/bus",
        "postgresql://db.example.com@evil.org/bus",
        "postgresql://evil.org/bus?x=db.example.com/bus",
        "postgresql://db.example.com:5433/bus",
        "postgresql://db.example.com/bus2",
        "postgresql://db.example.com/",
        "postgresql://db.example.com,evil.org/bus",
        "postgresql://evil.org,db.example.com/bus",
        "postgresql://db.example.com/bus?host=evil.org",
        "postgresql://db.example.com/bus?hostaddr=10.0.0.1",
        "postgresql://db.example.com/bus?port=1",
        "postgresql://db.example.com/bus?dbname=other",
        "postgresql://%2Fvar%2Frun%2Fpostgresql/bus",
        "postgresql:///bus?host=/tmp",
        "postgresql://db.example.com/bus?sslmode=disable",
        "mysql://db.example.com/bus",
        "postgresql://[db.example.com/bus",
        "host=db.example.com dbname=bus",
    ],
)
def test_no_other_database_is_taken_for_an_allowed_one(data, asked):
    with pytest.raises((StoreNotAllowed, ArgumentError)):
        allowed(data, DATABASE).admitted(asked)


@pytest.mark.parametrize(
    "parameter",
    [
        *("password_file", "passfile", "service", "servicefile", "options", "sslkey", "sslcert"),
        *("sslrootcert", "sslcrl", "sslcrldir", "sslpassword", "krbsrvname", "gsslib", "require_auth"),
        *("application_name", "connect_timeout", "target_session_attrs", "load_balance_hosts"),
    ],
)
def test_a_request_says_nothing_about_files_of_the_server_or_the_session(data, parameter):
    with pytest.raises((StoreNotAllowed, ArgumentError)):
        allowed(data, DATABASE).admitted(f"{DATABASE}?{parameter}=/etc/passwd")


def test_what_the_operator_wrote_beside_the_database_is_used_and_cannot_be_changed(data, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    written = f"postgresql://bus@db.example.com/bus?password_file={secret}&sslmode=verify-full"
    stores = allowed(data, written)
    address = parse_address(stores.admitted(f"{DATABASE}?schema=b"))
    assert (address.schema, address.password_file) == ("b", secret)
    assert (address.parameters["user"], address.parameters["sslmode"]) == ("bus", "verify-full")
    for asked in (
        f"{DATABASE}?sslmode=require",
        f"{DATABASE}?password_file=/etc/passwd",
        "postgresql://ann@db.example.com/bus",
        "postgresql://bus:guess@db.example.com/bus",
    ):
        with pytest.raises(StoreNotAllowed):
            stores.admitted(asked)


def test_a_socket_of_the_machine_is_reached_only_if_the_operator_named_it(data):
    asked = "postgresql:///bus?host=/run/postgresql"
    with pytest.raises(StoreNotAllowed):
        allowed(data, DATABASE, "postgresql://localhost/bus").admitted(asked)
    address = parse_address(allowed(data, asked).admitted(asked))
    assert address.parameters["host"] == "/run/postgresql"


def test_the_first_permission_that_fits_counts(data):
    stores = allowed(data, "postgresql://ann@db.example.com/bus", "postgresql://bob@db.example.com/bus")
    asked = "postgresql://bob@db.example.com/bus"
    assert parse_address(stores.admitted(asked)).parameters["user"] == "bob"


def test_a_refusal_shows_no_password(data):
    with pytest.raises(StoreNotAllowed) as refused:
        allowed(data).admitted("postgresql://ann:hush@db.example.com/bus")
    assert "hush" not in str(refused.value)


# -- what the operator writes -----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("relative/folder", "absolute"),
        ("", "absolute"),
        ("/no/such/folder", "does not exist"),
        ("sqlite://relative.db", "absolute path"),
        ("redis://host/0", "'redis' is not a kind of store"),
        ("postgresql://db.example.com/", "names no database"),
    ],
)
def test_a_permission_that_cannot_be_meant_is_named(data, text, complaint):
    with pytest.raises(ConfigError, match=f"--allow-store .*{complaint}"):
        allowed(data, text)
