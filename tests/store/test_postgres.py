"""What only a store behind a network connection can meet: loss, restarts, other brokers, wrong addresses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bendybus.domain.messages import Message
from bendybus.errors import (
    ConfigError,
    PartitionMoved,
    SchemaTooNew,
    StoreCorrupted,
    StoreError,
    StoreUnavailable,
)
from bendybus.names import EntityPath, Instant, PartitionNumber, SequenceNumber, SessionId
from bendybus.store import encoding
from bendybus.store.postgres import schema, store
from bendybus.store.postgres.address import parse_address
from bendybus.store.postgres.store import PostgresStore
from bendybus.store.protocol import PartitionChanges, PartitionKey, SessionState
from fix_postgres import ADMIN, PASSWORD, Postgres, cluster

MakeMessage = Callable[..., Message]


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture
def opened() -> Iterator[Callable[[str], PostgresStore]]:
    """Opens stores by URL, and closes them in the end."""
    stores: list[PostgresStore] = []

    def open_store(url: str) -> PostgresStore:
        stores.append(PostgresStore(parse_address(url)))
        stores[-1].open()
        return stores[-1]

    yield open_store
    for each in stores:
        each.close()


Opened = Callable[[str], PostgresStore]


def partition_of(opened_store: PostgresStore) -> PartitionKey:
    return opened_store.create_partitions(EntityPath("orders"), [PartitionNumber(0)])[0].key


def numbers(opened_store: PostgresStore, key: PartitionKey) -> list[int]:
    return [message.sequence_number for message in opened_store.load(key).messages]


def changes(key: PartitionKey, *stored: Message, **others: Any) -> list[PartitionChanges]:
    return [PartitionChanges(key, SequenceNumber(1000), list(stored), **others)]


# -- several brokers at one database ------------------------------------------------


@pytest.mark.row("P-02")
def test_a_displaced_broker_in_another_process_cannot_write(
    postgres: Postgres, database: str, opened: Opened, make_message: MakeMessage
) -> None:
    stalled, successor = opened(postgres.url(database)), opened(postgres.url(database))
    key = partition_of(stalled)
    (old,) = stalled.claim([key])
    stalled.commit(changes(key, make_message(1), epoch=old))
    (new,) = successor.claim([key])
    with pytest.raises(PartitionMoved):
        stalled.commit(changes(key, make_message(2), epoch=old))
    late = changes(key, make_message(3), epoch=old)
    late[0].session_states.append(SessionState(SessionId("s"), b"late", Instant(1)))
    with pytest.raises(PartitionMoved):
        stalled.commit(late)
    successor.commit(changes(key, make_message(4), epoch=new))
    assert numbers(successor, key) == [1, 4]
    assert successor.read_session_state(key, SessionId("s")) is None


@pytest.mark.row("P-02")
def test_a_claim_waits_for_the_commit_that_runs_and_shuts_out_the_next(
    postgres: Postgres, database: str, opened: Opened, make_message: MakeMessage
) -> None:
    owner, successor = opened(postgres.url(database)), opened(postgres.url(database))
    key = partition_of(owner)
    epochs: list[int] = []
    # As a commit holds the partition while it runs.
    with postgres.connect(database) as running, running.transaction():
        running.execute("SET LOCAL search_path = bendybus")
        running.execute("SELECT advance_partitions(ARRAY[%s]::bigint[], '{5}', '{0}')", (key,))
        claiming = threading.Thread(target=lambda: epochs.extend(successor.claim([key])))
        claiming.start()
        while not waiting_for_locks(postgres):
            assert claiming.is_alive()
        assert not epochs
    claiming.join()
    assert epochs == [1]
    with pytest.raises(PartitionMoved):
        owner.commit(changes(key, make_message(1)))


def waiting_for_locks(postgres: Postgres) -> int:
    with postgres.connect("postgres") as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        count: int = connection.execute(query).fetchone()[0]
        return count


def test_brokers_that_share_a_store_never_give_out_the_same_place(
    postgres: Postgres, database: str, opened: Opened, make_message: MakeMessage
) -> None:
    one, two = opened(postgres.url(database)), opened(postgres.url(database))
    entity, parts = EntityPath("orders"), [PartitionNumber(0), PartitionNumber(1)]
    mine, theirs = (record.key for record in one.create_partitions(entity, parts))
    for number in range(1, 4):
        one.commit(changes(mine, make_message(number)))
        two.commit(changes(theirs, make_message(number)))
    row_ids = [message.row_id for key in (mine, theirs) for message in one.load(key).messages]
    assert len(set(row_ids)) == 6


def test_a_block_of_ids_that_is_used_up_is_followed_by_another(
    postgres: Postgres, database: str, opened: Opened, make_message: MakeMessage
) -> None:
    opened_store = opened(postgres.url(database))
    key = partition_of(opened_store)
    opened_store._next_id = opened_store._last_id + 1
    opened_store.commit(changes(key))
    opened_store._next_id = opened_store._last_id - 1
    messages = [make_message(number, b"%d" % number) for number in range(1, 6)]
    opened_store.commit(changes(key, *messages))
    assert opened_store.read([message.row_id for message in messages]) == [b"1", b"2", b"3", b"4", b"5"]
    assert opened_store.load(key).messages[0].row_id == messages[0].row_id


def test_the_last_two_copies_of_a_body_removed_at_once_leave_nothing(
    postgres: Postgres, database: str, opened: Opened, make_message: MakeMessage
) -> None:
    from bendybus.domain.messages import Origin

    one, two = opened(postgres.url(database)), opened(postgres.url(database))
    entity, parts = EntityPath("news"), [PartitionNumber(0), PartitionNumber(1)]
    mine, theirs = (record.key for record in one.create_partitions(entity, parts))
    first, second = make_message(1, b"shared"), make_message(2, b"shared")
    first.origin = second.origin = Origin(SequenceNumber(7))
    one.commit([*changes(mine, first), *changes(theirs, second)])
    # Another's removal of the first copy, not yet committed, while ours of the second begins.
    with postgres.connect(database) as other, other.transaction():
        other.execute("SET LOCAL search_path = bendybus")
        other.execute("SELECT 1 FROM body WHERE id = %s FOR UPDATE", (first.body_row_id,))
        other.execute("DELETE FROM message WHERE id = %s", (first.row_id,))
        removing = threading.Thread(target=two.commit, args=(changes(theirs, removed=[second]),))
        removing.start()
        while not waiting_for_locks(postgres):
            assert removing.is_alive()
    removing.join()
    assert one.read([first.body_row_id]) == [None]


@pytest.mark.parametrize("code", ["40001", "40P01"])
@pytest.mark.parametrize("with_session", [False, True])
def test_a_commit_that_met_another_in_its_way_is_tried_again(
    postgres: Postgres,
    database: str,
    opened: Opened,
    make_message: MakeMessage,
    code: str,
    with_session: bool,
) -> None:
    opened_store = opened(postgres.url(database))
    key = partition_of(opened_store)
    refuse_commits(postgres, database, code, times=3)
    change = changes(key, make_message(1))
    if with_session:
        change[0].session_states.append(SessionState(SessionId("s"), b"state", Instant(1)))
    opened_store.commit(change)
    assert numbers(opened_store, key) == [1]
    assert opened_store.read_session_state(key, SessionId("s")) == (b"state" if with_session else None)


def test_a_commit_that_is_always_in_somebodys_way_gives_up(
    postgres: Postgres, database: str, opened: Opened, make_message: MakeMessage
) -> None:
    opened_store = opened(postgres.url(database))
    key = partition_of(opened_store)
    refuse_commits(postgres, database, "40P01", times=1000)
    with pytest.raises(StoreUnavailable):
        opened_store.commit(changes(key, make_message(1)))
    assert numbers(opened_store, key) == []


def refuse_commits(postgres: Postgres, database: str, code: str, times: int) -> None:
    """A trigger that stands for another transaction; a sequence counts, since it is not rolled back."""
    with postgres.connect(database) as connection:
        connection.execute(
            f"""SET search_path = bendybus;
            CREATE SEQUENCE refusals;
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                IF nextval('refusals') <= {times} THEN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END IF;
                RETURN NEW;
            END $$;
            CREATE TRIGGER refuse BEFORE INSERT ON message FOR EACH ROW EXECUTE FUNCTION refuse()"""
        )


# -- a server that comes and goes ---------------------------------------------------


@pytest.mark.row("B-08")
@pytest.mark.parametrize("end", ["fast", "immediate", "kill"])
def test_a_restart_between_two_commits_is_not_noticed(
    own_postgres: Postgres, opened: Opened, make_message: MakeMessage, end: str
) -> None:
    opened_store = opened(own_postgres.url(own_postgres.new_database()))
    key = partition_of(opened_store)
    opened_store.commit(changes(key, make_message(1)))
    if end == "kill":
        own_postgres.kill()
    else:
        own_postgres.stop(end)
    own_postgres.start()
    opened_store.commit(changes(key, make_message(2)))
    assert numbers(opened_store, key) == [1, 2]


@pytest.mark.row("P-04")
def test_a_server_that_is_away_is_unavailable_and_then_back(
    own_postgres: Postgres, opened: Opened, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bendybus.store.postgres.connections.RETRY_AFTER_S", 0.0)
    url = own_postgres.url(own_postgres.new_database())
    opened_store = opened(url)
    key = partition_of(opened_store)
    own_postgres.stop("immediate")
    for attempt in (
        lambda: opened_store.commit(changes(key, make_message(1))),
        lambda: opened_store.load(key),
        lambda: opened_store.claim([key]),
        lambda: PostgresStore(parse_address(url)).open(),
        lambda: PostgresStore(parse_address(url)).examine(),
    ):
        with pytest.raises(StoreUnavailable):
            attempt()
    own_postgres.start()
    opened_store._writer._retry_at = opened_store._reader._retry_at = 0.0
    opened_store.commit(changes(key, make_message(2)))
    assert numbers(opened_store, key) == [2]


def test_a_server_that_does_not_answer_is_not_asked_at_every_turn(
    own_postgres: Postgres, opened: Opened, make_message: MakeMessage, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_store = opened(own_postgres.url(own_postgres.new_database()))
    key = partition_of(opened_store)
    own_postgres.stop("immediate")
    monkeypatch.setattr("bendybus.store.postgres.connections.RETRY_AFTER_MAX_S", 1000.0)
    opened_store._writer._retry_after_s = 1000.0
    with pytest.raises(StoreUnavailable):
        opened_store.commit(changes(key, make_message(1)))
    own_postgres.start()
    with pytest.raises(StoreUnavailable, match="does not answer"):
        opened_store.commit(changes(key, make_message(1)))


@pytest.mark.row("B-08")
@pytest.mark.parametrize("with_session", [False, True])
def test_a_commit_cut_off_in_the_middle_is_unavailable_and_leaves_nothing(
    postgres: Postgres, database: str, opened: Opened, make_message: MakeMessage, with_session: bool
) -> None:
    opened_store = opened(postgres.url(database))
    key = partition_of(opened_store)
    failures: list[BaseException] = []

    def commit() -> None:
        change = changes(key, make_message(1))
        if with_session:
            change[0].session_states.append(SessionState(SessionId("s"), b"state", Instant(1)))
        try:
            opened_store.commit(change)
        except StoreUnavailable as failure:
            failures.append(failure)

    with postgres.connect(database) as other, other.transaction():
        other.execute("SELECT 1 FROM bendybus.partition FOR UPDATE")
        committing = threading.Thread(target=commit)
        committing.start()
        while not waiting_for_locks(postgres):
            assert committing.is_alive()
        with postgres.connect("postgres") as operator:
            operator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            )
        committing.join()
    assert len(failures) == 1
    assert numbers(opened_store, key) == []
    # The next one has a new connection, and ids that nobody has seen.
    opened_store.commit(changes(key, make_message(2)))
    assert numbers(opened_store, key) == [2]


@pytest.mark.row("B-08")
def test_a_commit_that_happened_unheard_does_not_stand_in_the_way_of_the_next(
    postgres: Postgres,
    database: str,
    opened: Opened,
    make_message: MakeMessage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened_store = opened(postgres.url(database))
    key = partition_of(opened_store)
    call = store._call

    def unheard(writer: psycopg.Connection[Any], request: list[object]) -> None:
        call(writer, request)
        writer.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(store, "_call", unheard)
    with pytest.raises(StoreUnavailable):
        opened_store.commit(changes(key, make_message(1)))
    monkeypatch.setattr(store, "_call", call)
    opened_store.commit(changes(key, make_message(2)))
    assert numbers(opened_store, key) == [1, 2]


@pytest.mark.row("P-33")
def test_an_idle_store_notices_that_its_database_is_gone(
    own_postgres: Postgres, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_store = opened(own_postgres.url(own_postgres.new_database()))
    partition_of(opened_store)
    assert not opened_store.tidy()
    own_postgres.stop("immediate")
    # Not at each idle moment, but soon.
    assert not opened_store.tidy()
    monkeypatch.setattr(opened_store, "_probe_due_at", 0.0)
    with pytest.raises(StoreUnavailable):
        opened_store.tidy()


def test_a_dropped_entity_is_swept_after_the_outage(
    own_postgres: Postgres, opened: Opened, make_message: MakeMessage
) -> None:
    database = own_postgres.new_database()
    opened_store = opened(own_postgres.url(database))
    key = partition_of(opened_store)
    opened_store.commit(changes(key, make_message(1)))
    opened_store.drop_partitions(EntityPath("orders"))
    own_postgres.stop("immediate")
    with pytest.raises(StoreUnavailable):
        opened_store.tidy()
    own_postgres.start()
    opened_store._writer._retry_at = 0.0
    while opened_store.tidy():
        pass
    with own_postgres.connect(database) as connection:
        for table in ("partition", "message", "body"):
            assert connection.execute(f"SELECT count(*) FROM bendybus.{table}").fetchone() == (0,)


def test_a_full_disk_is_unavailable_and_not_refused_for_good(
    postgres: Postgres, database: str, opened: Opened, make_message: MakeMessage
) -> None:
    opened_store = opened(postgres.url(database))
    key = partition_of(opened_store)
    refuse_commits(postgres, database, "53100", times=1)
    with pytest.raises(StoreUnavailable):
        opened_store.commit(changes(key, make_message(1)))
    opened_store.commit(changes(key, make_message(2)))
    assert numbers(opened_store, key) == [2]


def test_commits_are_durable_whatever_the_servers_default(
    postgres: Postgres, database: str, opened: Opened
) -> None:
    with postgres.connect(database) as connection:
        connection.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    with opened(postgres.url(database))._writer.use() as writer:
        assert writer.execute("SHOW synchronous_commit").fetchone() == ("on",)


@pytest.mark.row("P-18")
def test_a_commit_larger_than_a_request_is_one_transaction(
    postgres: Postgres,
    database: str,
    opened: Opened,
    make_message: MakeMessage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened_store = opened(postgres.url(database))
    key = partition_of(opened_store)
    monkeypatch.setattr(encoding, "REQUEST_BYTES_MAX", 1000)
    messages = [make_message(number, os.urandom(300)) for number in range(1, 21)]
    opened_store.commit(changes(key, *messages))
    assert opened_store.read([message.row_id for message in messages]) == [m.payload for m in messages]
    refuse_commits(postgres, database, "53100", times=1000)
    with pytest.raises(StoreUnavailable):
        opened_store.commit(
            changes(key, *[make_message(number, os.urandom(300)) for number in range(21, 41)])
        )
    assert numbers(opened_store, key) == list(range(1, 21))


# -- what is refused ------------------------------------------------------------------


def test_a_store_of_a_newer_version_is_refused(postgres: Postgres, database: str, opened: Opened) -> None:
    opened(postgres.url(database)).close()
    with postgres.connect(database) as connection:
        connection.execute("UPDATE bendybus.about SET version = 77")
    for refused in ("open", "examine"):
        with pytest.raises(SchemaTooNew, match=rf"version 77; .* up to {schema.VERSION}"):
            newer = PostgresStore(parse_address(postgres.url(database)))
            newer.namespace = "ours"
            getattr(newer, refused)()
    with postgres.connect(database) as connection:
        assert connection.execute("SELECT version, namespace FROM bendybus.about").fetchone() == (77, None)


def test_somebody_elses_tables_are_left_alone(postgres: Postgres, database: str) -> None:
    with postgres.connect(database) as connection:
        connection.execute("CREATE SCHEMA bendybus; CREATE TABLE bendybus.customers (id integer)")
    with pytest.raises(StoreError, match="not a Bendybus messaging store"):
        PostgresStore(parse_address(postgres.url(database))).open()
    with postgres.connect(database) as connection:
        connection.execute("CREATE TABLE bendybus.about (text text)")
    with pytest.raises(StoreError, match="not a Bendybus messaging store"):
        PostgresStore(parse_address(postgres.url(database))).open()
    with postgres.connect(database) as connection:
        query = "SELECT count(*) FROM pg_tables WHERE schemaname = 'bendybus'"
        assert connection.execute(query).fetchone() == (2,)


def test_a_missing_table_is_damage(postgres: Postgres, database: str, opened: Opened) -> None:
    opened(postgres.url(database)).close()
    with postgres.connect(database) as connection:
        connection.execute("DROP TABLE bendybus.session")
    with pytest.raises(StoreCorrupted, match="table session is missing"):
        PostgresStore(parse_address(postgres.url(database))).open()


def test_a_store_that_does_not_say_what_it_is_is_damaged(
    postgres: Postgres, database: str, opened: Opened
) -> None:
    opened(postgres.url(database)).close()
    with postgres.connect(database) as connection:
        connection.execute("DELETE FROM bendybus.about")
    with pytest.raises(StoreCorrupted, match="table about is empty"):
        PostgresStore(parse_address(postgres.url(database))).open()


def test_a_user_without_the_right_to_make_a_schema_is_refused(postgres: Postgres, database: str) -> None:
    with postgres.connect(database) as connection:
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    url = f"postgresql://guest:guest@127.0.0.1:{postgres.port}/{database}"
    with pytest.raises(StoreError, match="permission denied"):
        PostgresStore(parse_address(url)).open()


def test_a_database_in_another_encoding_is_refused(postgres: Postgres) -> None:
    with postgres.connect("postgres") as connection:
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    with pytest.raises(StoreError, match="LATIN1; UTF8 is needed"):
        PostgresStore(parse_address(postgres.url("latin"))).open()


def test_two_that_open_a_new_store_at_once_make_it_once(postgres: Postgres, database: str) -> None:
    stores = [PostgresStore(parse_address(postgres.url(database))) for _ in range(4)]
    threads = [threading.Thread(target=each.open) for each in stores]
    for each in stores:
        each.namespace = "ours"
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = {partition_of(each) for each in stores}
    for each in stores:
        each.close()
    assert len(keys) == 1


# -- addresses and passwords --------------------------------------------------------


def test_a_wrong_password_is_refused_and_not_shown(postgres: Postgres) -> None:
    url = f"postgresql://{ADMIN}:secret-of-mine@127.0.0.1:{postgres.port}/postgres"
    wrong = PostgresStore(parse_address(url))
    with pytest.raises(StoreError, match="password authentication failed") as refused:
        wrong.open()
    assert "secret-of-mine" not in f"{refused.value} {refused.value.__cause__!r} {wrong._address!r}"


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"database": "nowhere"}, "does not exist"),
        ({"user": "nobody-here"}, "password authentication failed"),
        ({"query": "?sslmode=require"}, "SSL"),
        ({"query": "?sslmode=maybe"}, "sslmode"),
    ],
)
def test_what_waiting_cannot_mend_is_refused(
    postgres: Postgres, parameters: dict[str, str], complaint: str
) -> None:
    given = {"user": ADMIN, "database": "postgres", "query": "", **parameters}
    url = f"postgresql://{given['user']}:x@127.0.0.1:{postgres.port}/{given['database']}{given['query']}"
    if "database" in parameters:
        url = postgres.url(parameters["database"])
    with pytest.raises(StoreError, match=complaint):
        PostgresStore(parse_address(url)).open()


@pytest.mark.parametrize("way", ["environment", "passfile", "password_file"])
def test_the_password_may_come_from_elsewhere_than_the_url(
    postgres: Postgres, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    url = f"postgresql://{ADMIN}@127.0.0.1:{postgres.port}/{database}"
    file = tmp_path / "password"
    file.touch(0o600)
    if way == "environment":
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
    elif way == "passfile":
        escaped = PASSWORD.replace("\\", "\\\\").replace(":", "\\:")
        file.write_text(f"127.0.0.1:*:*:{ADMIN}:{escaped}\n")
        monkeypatch.setenv("PGPASSFILE", str(file))
    else:
        file.write_text(f"{PASSWORD}\n")
        url += f"?password_file={file}"
    opened_store = PostgresStore(parse_address(url))
    opened_store.open()
    opened_store.close()


def test_a_connection_may_have_to_be_encrypted_and_the_server_known(tmp_path: Path) -> None:
    from bendybus.server.tls import self_made_certificate

    certificate, key = self_made_certificate(tmp_path, ("127.0.0.1",))
    with cluster(fsync=False, tls=(certificate.read_text(), key.read_text())) as server:
        url = server.url("postgres", sslmode="verify-full", sslrootcert=certificate)
        opened_store = PostgresStore(parse_address(url))
        opened_store.open()
        with opened_store._writer.use() as writer:
            assert writer.execute("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone() == (
                True,
            )
        opened_store.close()
        other, _ = self_made_certificate(tmp_path / "other", ("127.0.0.1",))
        url = server.url("postgres", sslmode="verify-full", sslrootcert=other)
        with pytest.raises(StoreError, match="certificate"):
            PostgresStore(parse_address(url)).open()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("postgresql://ann:hush@host", "names no database"),
        ("postgresql://ann:hu@sh@host/db", "%40"),
        ("postgresql://ann:hush@host:port/db", "port"),
        ("postgresql://ann:hush@host/db?sslmood=require", "no parameter 'sslmood'"),
        ("postgresql://ann:hush@host/db?schema=a-b", "'a-b' is no schema"),
        ("postgresql://ann:hush@host/db?schema=pg_mine", "no schema's name"),
        ("postgresql://ann:hush@host/db?name=a/b", "not a valid store name"),
        ("postgresql://ann:hush@host/db?password_file=/no/such", "given twice"),
        ("postgresql://ann@host/db?password_file=/no/such", "does not exist"),
        ("postgresql://ann:hush@[::1/db", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_without_its_password(url: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        parse_address(url)
    assert "hush" not in f"{refused.value} {refused.value.__cause__!r}"


def test_a_store_is_named_by_its_database_its_schema_or_as_one_likes() -> None:
    base = "postgresql://host/shop"
    names = [parse_address(base + query).name for query in ("", "?schema=west", "?schema=west&name=w")]
    assert names == ["shop", "shop.west", "w"]
