"""Images of stores: what was there at one moment, whatever was committed since."""

from __future__ import annotations

from pathlib import Path

import pytest

from bendybus.domain.messages import Message
from bendybus.errors import StoreError
from bendybus.names import EntityPath, PartitionNumber, SequenceNumber
from bendybus.store.faults import FaultyStore
from bendybus.store.memory import MemoryStore
from bendybus.store.postgres.address import parse_address
from bendybus.store.postgres.image import refuse_unfit, restore_image
from bendybus.store.postgres.store import PostgresStore
from bendybus.store.protocol import MessagingStore, PartitionChanges
from bendybus.store.sqlite.store import SqliteStore, hand_over
from fix_postgres import Postgres
from store.conftest import new_message

NAMESPACE, ANOTHER = "a" * 32, "b" * 32


def fill(store: MessagingStore, numbers: range) -> None:
    (record,) = store.create_partitions(EntityPath("q"), [PartitionNumber(0)])
    messages: list[Message] = [new_message(number) for number in numbers]
    store.commit([PartitionChanges(record.key, SequenceNumber(numbers.stop), messages)])


def kept(store: MessagingStore) -> list[int]:
    (record,) = store.partitions()
    return [each.sequence_number for each in store.load(record.key).messages]


def image_of(store: MessagingStore, folder: Path) -> Path:
    """Of the first ten of its messages."""
    store.namespace = NAMESPACE
    store.open()
    fill(store, range(1, 11))
    image = store.image()
    file = folder / f"image{image.suffix}"
    image.fix()
    fill(store, range(11, 21))
    image.write(file, lambda copied: None)
    image.close()
    assert kept(store) == list(range(1, 21))
    store.close()
    return file


def test_an_image_of_sqlite_is_of_the_moment_at_which_it_was_fixed(tmp_path: Path) -> None:
    file = image_of(SqliteStore(tmp_path / "live.db"), tmp_path)
    hand_over(file, ANOTHER)
    copy = SqliteStore(file)
    copy.namespace = NAMESPACE
    with pytest.raises(StoreError, match="belongs to another namespace"):
        copy.examine()
    copy.namespace = ANOTHER
    copy.open()
    assert kept(copy) == list(range(1, 11))
    copy.close()


def test_copying_ends_when_it_is_to_stop(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "live.db")
    store.open()
    image = store.image()
    image.fix()

    def stop(copied: int) -> None:
        raise StoreError("enough")

    with pytest.raises(StoreError, match="enough"):
        image.write(tmp_path / "copy.db", stop)
    image.close()
    store.close()


def test_there_is_no_image_of_what_is_in_memory() -> None:
    with pytest.raises(StoreError, match="in memory"):
        FaultyStore(MemoryStore("quick")).image()


@pytest.mark.usefixtures("postgres_tools")
def test_an_image_of_postgresql_is_of_the_moment_at_which_it_was_fixed(
    postgres: Postgres, tmp_path: Path
) -> None:
    live = parse_address(postgres.url(postgres.new_database(), schema="Mixed"))
    file = image_of(PostgresStore(live), tmp_path)
    with pytest.raises(StoreError, match="has a schema Mixed already"):
        refuse_unfit(file, live)
    other = postgres.new_database()
    with pytest.raises(StoreError, match="is no dump of a schema bendybus"):
        refuse_unfit(file, parse_address(postgres.url(other)))
    address = parse_address(postgres.url(other, schema="Mixed"))
    refuse_unfit(file, address)
    restore_image(file, address, ANOTHER)
    copy = PostgresStore(address)
    copy.namespace = ANOTHER
    copy.open()
    assert kept(copy) == list(range(1, 11))
    fill(copy, range(11, 13))
    assert kept(copy) == list(range(1, 13))
    copy.close()


def test_without_its_tools_no_image_of_postgresql_is_promised(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(parse_address(postgres.url(postgres.new_database())))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError, match="pg_dump is not installed on this machine"):
        store.image()


@pytest.mark.usefixtures("postgres_tools")
def test_what_pg_dump_complains_of_is_told_without_the_password(postgres: Postgres, tmp_path: Path) -> None:
    store = PostgresStore(parse_address(postgres.url(postgres.new_database())))
    store.open()
    image = store.image()
    image.fix()
    with pytest.raises(StoreError, match="pg_dump failed") as told:
        image.write(tmp_path / "missing" / "image.pgdump", lambda copied: None)
    assert "p@ss" not in str(told.value) and "p%40" not in str(told.value)
    image.close()
    store.close()
