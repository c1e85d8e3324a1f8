"""The catalog keeps what exists, through restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bendybus.errors import EntityExists, EntityNotFound
from bendybus.names import EntityPath, Instant
from bendybus.store.catalog import Catalog, EntityRecord
from bendybus.store.memory_catalog import MemoryCatalog
from bendybus.store.postgres.address import parse_address
from bendybus.store.postgres.catalog import CATALOG_SCHEMA, PostgresCatalog
from bendybus.store.roster import ClusterCertificate, ClusterSecrets
from bendybus.store.sqlite.catalog import SqliteCatalog
from fix_postgres import Postgres

ORDERS = EntityRecord(
    path=EntityPath("Orders"),
    kind="queue",
    description={"lock_duration_s": 60, "forward_to": None, "tags": ["\u00e9", "b"]},
    partition_count=2,
    placement=("store-0", "store-1"),
    created_at=Instant(1),
    updated_at=Instant(2),
    generation="g-1",
)


def postgres_catalog(postgres: Postgres) -> Catalog:
    """Of a broker that leads from the start: its term is that of a new catalog."""
    address = parse_address(postgres.url(postgres.new_database()), CATALOG_SCHEMA)
    catalog = PostgresCatalog(address, lambda: ClusterSecrets("c", b"", ClusterCertificate("", ""), ("", "")))
    catalog.term = 0
    return catalog


# Another kind of catalog joins by one more line here.
KINDS: dict[str, Callable[[Path, pytest.FixtureRequest], Catalog]] = {
    "memory": lambda path, request: MemoryCatalog(),
    "sqlite": lambda path, request: SqliteCatalog(path),
    "postgresql": lambda path, request: postgres_catalog(request.getfixturevalue("postgres")),
}


@pytest.fixture(params=KINDS)
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    catalog = KINDS[request.param](tmp_path / "catalog.db", request)
    catalog.open()
    yield catalog
    catalog.close()


def reopen(catalog: Catalog) -> None:
    catalog.close()
    catalog.open()


@pytest.mark.row("B-08")
def test_an_entity_comes_back_as_it_was_added(catalog: Catalog) -> None:
    catalog.add(ORDERS)
    reopen(catalog)
    assert catalog.entities() == [ORDERS]


def test_entities_are_listed_by_path(catalog: Catalog) -> None:
    for path in ("b", "C", "a"):
        catalog.add(replace(ORDERS, path=EntityPath(path)))
    assert [record.path for record in catalog.entities()] == ["a", "b", "C"]


def test_a_path_is_taken_in_any_spelling(catalog: Catalog) -> None:
    catalog.add(ORDERS)
    with pytest.raises(EntityExists, match="oRDERS"):
        catalog.add(replace(ORDERS, path=EntityPath("oRDERS"), generation="g-2"))
    assert catalog.entities() == [ORDERS]


def test_a_replaced_entity_keeps_its_first_spelling(catalog: Catalog) -> None:
    catalog.add(ORDERS)
    changed = replace(ORDERS, path=EntityPath("orders"), description={}, updated_at=Instant(9))
    catalog.replace(changed)
    reopen(catalog)
    assert catalog.entities() == [replace(changed, path=ORDERS.path)]


def test_what_is_not_there_cannot_be_replaced_or_removed(catalog: Catalog) -> None:
    with pytest.raises(EntityNotFound, match="Orders"):
        catalog.replace(ORDERS)
    with pytest.raises(EntityNotFound, match="Orders"):
        catalog.remove(ORDERS.path)


def test_a_removed_entity_stays_away(catalog: Catalog) -> None:
    catalog.add(ORDERS)
    catalog.remove(EntityPath("ORDERS"))
    reopen(catalog)
    assert catalog.entities() == []


def test_several_are_removed_together_or_not_at_all(catalog: Catalog) -> None:
    other = replace(ORDERS, path=EntityPath("Orders/Subscriptions/all"), kind="subscription")
    catalog.add(ORDERS)
    catalog.add(other)
    with pytest.raises(EntityNotFound, match="missing"):
        catalog.remove(ORDERS.path, EntityPath("missing"), other.path)
    assert catalog.entities() == [ORDERS, other]
    catalog.remove(ORDERS.path, other.path)
    reopen(catalog)
    assert catalog.entities() == []


def test_the_namespace_is_described_once_and_again(catalog: Catalog) -> None:
    assert catalog.namespace() == {}
    catalog.describe_namespace({"tier": "standard"})
    catalog.describe_namespace({"tier": "premium", "partitions": 2})
    reopen(catalog)
    assert catalog.namespace() == {"tier": "premium", "partitions": 2}


def test_several_entities_are_replaced_together_or_not_at_all(catalog: Catalog) -> None:
    other = replace(ORDERS, path=EntityPath("Others"))
    catalog.add(ORDERS)
    with pytest.raises(EntityNotFound):
        catalog.replace(replace(ORDERS, placement=("elsewhere", "store-1")), other)
    assert catalog.entities() == [ORDERS]
    catalog.add(other)
    moved = [replace(each, placement=("elsewhere", "store-1")) for each in (ORDERS, other)]
    catalog.replace(*moved)
    reopen(catalog)
    assert catalog.entities() == moved
