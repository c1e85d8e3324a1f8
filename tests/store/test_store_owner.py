"""The broker that owns a store: a broker that was displaced cannot write, however late it wakes up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bendybus.domain.messages import Message
from bendybus.errors import PartitionMoved
from bendybus.names import EntityPath, PartitionNumber, SequenceNumber
from bendybus.store.postgres.address import parse_address
from bendybus.store.postgres.store import PostgresStore
from bendybus.store.protocol import PartitionChanges, StoreOwner
from fix_postgres import Postgres

MakeMessage = Callable[..., Message]
ORDERS = EntityPath("orders")


@pytest.fixture
def open_store(postgres: Postgres) -> Iterator[Callable[[], PostgresStore]]:
    """Opens the same store again and again, as several brokers do."""
    url = postgres.url(postgres.new_database())
    stores: list[PostgresStore] = []

    def opened() -> PostgresStore:
        stores.append(PostgresStore(parse_address(url)))
        stores[-1].open()
        return stores[-1]

    yield opened
    for each in stores:
        each.close()


def test_a_new_store_has_no_owner(open_store: Callable[[], PostgresStore]) -> None:
    assert open_store().owner() == StoreOwner("", "", 0)


def test_of_two_that_want_a_store_one_gets_it(open_store: Callable[[], PostgresStore]) -> None:
    one, another = open_store(), open_store()
    seen = another.owner().term

    assert one.take("a", "a-1", after=one.owner().term) == 1
    assert another.take("b", "b-1", after=seen) is None
    assert another.owner() == StoreOwner("a", "a-1", 1)


def test_a_store_that_is_released_has_no_owner(open_store: Callable[[], PostgresStore]) -> None:
    store = open_store()
    store.take("a", "a-1", after=0)
    store.release()
    assert store.owner() == StoreOwner("", "", 1)


def test_a_displaced_owner_does_not_release_what_another_has(open_store: Callable[[], PostgresStore]) -> None:
    former, store = open_store(), open_store()
    former.take("a", "a-1", after=0)
    store.take("b", "b-1", after=1)
    former.release()
    assert store.owner() == StoreOwner("b", "b-1", 2)


@pytest.mark.row("N-03")
def test_a_displaced_owner_cannot_write_anything(
    open_store: Callable[[], PostgresStore], make_message: MakeMessage
) -> None:
    former, store = open_store(), open_store()
    former.take("a", "a-1", after=0)
    (made,) = former.create_partitions(ORDERS, [PartitionNumber(0)])
    (epoch,) = former.claim([made.key])

    store.take("b", "b-1", after=1)
    store.claim([made.key])

    changes = PartitionChanges(made.key, SequenceNumber(2), [make_message(1)], epoch=epoch)
    for write in (
        lambda: former.commit([changes]),
        lambda: former.claim([made.key]),
        lambda: former.discard([made.key]),
        lambda: former.drop_partitions(ORDERS),
        lambda: former.create_partitions(ORDERS, [PartitionNumber(1)]),
    ):
        with pytest.raises(PartitionMoved):
            write()
    assert store.partitions() == [made]
    assert not store.load(made.key).messages


def test_the_owner_writes_as_a_server_does_that_is_alone(
    open_store: Callable[[], PostgresStore], make_message: MakeMessage
) -> None:
    store = open_store()
    store.take("a", "a-1", after=0)
    one, another = store.create_partitions(ORDERS, [PartitionNumber(0), PartitionNumber(1)])
    epochs = store.claim([one.key, another.key])
    store.commit([PartitionChanges(one.key, SequenceNumber(2), [make_message(1)], epoch=epochs[0])])
    store.discard([another.key])
    assert store.partitions() == [one]
    assert len(store.load(one.key).messages) == 1
    store.drop_partitions(ORDERS)
    assert store.partitions() == []
