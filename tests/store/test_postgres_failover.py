"""A messaging store on a primary with a synchronous standby: commits wait for both, and the old primary is
never used again once the standby was promoted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bendybus.domain.messages import Message
from bendybus.errors import ConfigError, DatabaseSuperseded, StoreUnavailable
from bendybus.names import EntityPath, PartitionNumber, SequenceNumber
from bendybus.store.postgres.address import parse_address
from bendybus.store.postgres.connections import connect
from bendybus.store.postgres.store import PostgresStore
from bendybus.store.postgres.timelines import refuse_superseded
from bendybus.store.protocol import PartitionChanges
from fix_postgres import Pair, pair

MakeMessage = Callable[..., Message]


@pytest.fixture
def servers() -> Iterator[Pair]:
    with pair() as made:
        yield made


def server_of(url: str, timelines: Path | None) -> tuple[int, int]:
    """The port and the timeline of the server that a connection is made to."""
    with closing(connect(parse_address(url, timelines=timelines))) as connection:
        row = connection.execute("SELECT pg_walfile_name(pg_current_wal_insert_lsn())").fetchone()
        assert row is not None
        return connection.info.port, int(row[0][:8], 16)


@pytest.mark.row("N-07")
def test_a_commit_that_the_standby_has_not_confirmed_is_not_acknowledged(
    servers: Pair, make_message: MakeMessage
) -> None:
    """PostgreSQL reports success when a commit is cancelled while it waits for the standby."""
    database = servers.new_database()
    with closing(PostgresStore(parse_address(servers.url(database)))) as store:
        store.open()
        (record,) = store.create_partitions(EntityPath("orders"), [PartitionNumber(0)])
        (epoch,) = store.claim([record.key])
        servers.standby.stop("immediate")
        refusals: list[StoreUnavailable] = []

        def commit() -> None:
            try:
                store.commit(
                    [PartitionChanges(record.key, SequenceNumber(2), [make_message(1)], epoch=epoch)]
                )
            except StoreUnavailable as refusal:
                refusals.append(refusal)

        thread = threading.Thread(target=commit)
        thread.start()
        with servers.connect(database) as connection:
            waits = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'bendybus'"
            while connection.execute(f"SELECT pg_cancel_backend(pid) {waits}").fetchone() is None:
                pass
        thread.join()
        assert len(refusals) == 1 and "standby has not confirmed" in str(refusals[0])
        # It is used again as soon as there is a standby.
        servers.standby.start()
        assert store.claim([record.key]) == [epoch + 1]


@pytest.mark.row("N-07")
def test_an_old_primary_that_comes_back_is_not_used(servers: Pair, tmp_path: Path) -> None:
    timelines = tmp_path / "timelines.json"
    url = servers.url("postgres")
    old, new = servers.primary, servers.standby
    assert server_of(url, timelines) == (old.port, 1)
    servers.fail_over()
    old.start()
    # It is the first in the URL, and takes writes.
    assert server_of(url, None) == (new.port, 2)
    assert server_of(url, timelines) == (new.port, 2)

    new.stop("immediate")
    with pytest.raises(DatabaseSuperseded, match="timeline 1, and 2 has been used"):
        server_of(url, timelines)
    new.start()
    assert server_of(url, timelines) == (new.port, 2)
    new.stop("immediate")
    timelines.unlink()
    assert server_of(url, timelines) == (old.port, 1)


def test_what_was_seen_of_a_server_says_nothing_of_others(tmp_path: Path) -> None:
    path = tmp_path / "timelines.json"
    refuse_superseded(path, "store", "system-1", 3)
    refuse_superseded(path, "store", "system-2", 1)
    refuse_superseded(path, "store", "system-1", 4)
    with pytest.raises(DatabaseSuperseded):
        refuse_superseded(path, "store", "system-1", 3)
    refuse_superseded(path, "store", "system-2", 1)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"system-1": "x"}'])
def test_a_file_that_is_not_readable_does_not_keep_a_store_away(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "timelines.json"
    path.write_bytes(content)
    refuse_superseded(path, "store", "system-1", 3)
    with pytest.raises(DatabaseSuperseded):
        refuse_superseded(path, "store", "system-1", 2)


def test_each_host_of_a_url_has_its_port() -> None:
    def places(url: str) -> list[tuple[str, str | None]]:
        return [(each["host"], each.get("port")) for each in parse_address(url).hosts()]

    assert places("postgresql://x@a:1,b:2/d") == [("a", "1"), ("b", "2")]
    assert places("postgresql://x@a,b/d?port=7") == [("a", "7"), ("b", "7")]
    assert places("postgresql://x@a/d") == [("a", None)]
    with pytest.raises(ConfigError, match="several ports"):
        parse_address("postgresql://x@a,b,c/d?port=7,8")
