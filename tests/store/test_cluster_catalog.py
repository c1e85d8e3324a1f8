"""The catalog of a cluster: what exists, which brokers there are, and which of them makes changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from bendybus.errors import SchemaTooNew, StoreError, StoreUnavailable
from bendybus.names import EntityPath, Instant
from bendybus.store.catalog import EntityRecord
from bendybus.store.postgres.address import parse_address
from bendybus.store.postgres.catalog import CATALOG_SCHEMA, QUERIES, PostgresCatalog
from bendybus.store.postgres.roster import PostgresRoster
from bendybus.store.postgres.store import PostgresStore
from bendybus.store.roster import BrokerRow, ClusterCertificate, ClusterSecrets, Lead
from fix_postgres import Postgres

ORDERS = EntityRecord(EntityPath("Orders"), "queue", {}, 1, ("s",), Instant(1), Instant(1), "g")
SECRETS = ClusterSecrets("c", b"\x00secret", ClusterCertificate("certificate", "key"), ("first", "second"))


def broker(name: str, instance: str, **properties: object) -> BrokerRow:
    return BrokerRow(name, instance, "127.0.0.1:1", "1", "serving", ("s",), **properties)  # type: ignore[arg-type]


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.url(postgres.new_database())


@pytest.fixture
def open_catalog(url: str) -> Iterator[Callable[..., PostgresCatalog]]:
    """Opens the same catalog again and again, as several brokers do."""
    opened: list[PostgresCatalog] = []

    def open_one(secrets: ClusterSecrets = SECRETS) -> PostgresCatalog:
        opened.append(PostgresCatalog(parse_address(url, CATALOG_SCHEMA), lambda: secrets))
        opened[-1].open()
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


@pytest.fixture
def roster(url: str, open_catalog: Callable[..., PostgresCatalog]) -> Iterator[PostgresRoster]:
    open_catalog()
    roster = PostgresRoster(parse_address(url, CATALOG_SCHEMA))
    yield roster
    roster.close()


def test_all_brokers_have_the_secrets_that_the_first_one_made(
    open_catalog: Callable[..., PostgresCatalog],
) -> None:
    open_catalog()
    other = ClusterSecrets("other", b"", ClusterCertificate("", ""), ("", ""))
    assert open_catalog(other).secrets == SECRETS
    assert "secret" not in repr(SECRETS) and "first" not in repr(SECRETS)


def test_a_broker_that_does_not_lead_changes_nothing(open_catalog: Callable[..., PostgresCatalog]) -> None:
    catalog = open_catalog()
    for change in (
        lambda: catalog.add(ORDERS),
        lambda: catalog.replace(ORDERS),
        lambda: catalog.remove(ORDERS.path),
        lambda: catalog.describe_namespace({"tier": "basic"}),
    ):
        with pytest.raises(StoreUnavailable, match="Another broker of the cluster leads"):
            change()
    assert catalog.read() == (0, [])
    catalog.describe_namespace({})


@pytest.mark.row("N-03")
def test_a_broker_that_was_replaced_changes_nothing(
    open_catalog: Callable[..., PostgresCatalog], roster: PostgresRoster
) -> None:
    former, catalog = open_catalog(), open_catalog()
    former.term = roster.lead("a", "a-1", after=0)
    former.add(ORDERS)
    catalog.term = roster.lead("b", "b-1", after=1)
    with pytest.raises(StoreUnavailable, match="leads now"):
        former.remove(ORDERS.path)
    catalog.describe_namespace({"tier": "basic"})
    assert former.read() == (2, [ORDERS])
    assert former.namespace() == {"tier": "basic"}


@pytest.mark.row("N-03")
def test_only_the_broker_that_leads_has_that_confirmed(
    open_catalog: Callable[..., PostgresCatalog], roster: PostgresRoster
) -> None:
    former, catalog = open_catalog(), open_catalog()
    with pytest.raises(StoreUnavailable, match="leads now"):
        former.confirm_lead()
    former.term = roster.lead("a", "a-1", after=0)
    former.confirm_lead()
    assert former.read()[0] == 0, "it is no change"
    catalog.term = roster.lead("b", "b-1", after=1)
    catalog.confirm_lead()
    with pytest.raises(StoreUnavailable, match="leads now"):
        former.confirm_lead()


def test_the_lead_is_confirmed_after_a_change_that_is_still_under_way(
    url: str, open_catalog: Callable[..., PostgresCatalog], roster: PostgresRoster
) -> None:
    catalog = open_catalog()
    catalog.term = roster.lead("a", "a-1", after=0)
    # A connection that the broker has lost, and whose last statement the database has not finished.
    with psycopg.connect(url) as lost, ThreadPoolExecutor(1) as pool:
        lost.execute("SET search_path TO bendybus_cluster")
        lost.execute(QUERIES["begin_change"], (catalog.term,))
        confirming = pool.submit(catalog.confirm_lead)
        with pytest.raises(TimeoutError):
            confirming.result(0.3)
        lost.commit()
        confirming.result(10)


def test_of_two_that_want_to_lead_one_does(roster: PostgresRoster) -> None:
    assert roster.lead("a", "a-1", after=0) == 1
    assert roster.lead("b", "b-1", after=0) is None
    assert roster.beat("x", "x", "serving").lead == Lead("a", "a-1", 1, 0)


def test_heartbeats_tell_who_is_there(roster: PostgresRoster) -> None:
    assert roster.join(broker("b", "b-1"), 3)
    assert roster.join(broker("a", "a-1"), 3)
    view = roster.beat("a", "a-1", "leaving")
    assert [(each.name, each.instance, each.state, each.stores) for each in view.brokers] == [
        ("a", "a-1", "leaving", ("s",)),
        ("b", "b-1", "serving", ("s",)),
    ]
    assert view.own_silence_s is not None
    assert all(each.silent_s >= 0 for each in view.brokers)


def test_a_broker_tells_which_stores_it_does_not_reach(roster: PostgresRoster) -> None:
    def unreached() -> list[tuple[str, ...]]:
        return [each.unreached for each in roster.beat("a", "a-1", "serving").brokers]

    roster.join(broker("a", "a-1"), 3)
    assert unreached() == [()]
    roster.reach("a", "a-1", ["s"])
    roster.reach("a", "another process", [])
    assert unreached() == [("s",)]
    roster.join(broker("a", "a-2"), 0)
    assert unreached() == [()]


def test_a_catalog_from_before_brokers_told_that_can_be_opened(
    url: str, open_catalog: Callable[..., PostgresCatalog], roster: PostgresRoster
) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(f"ALTER TABLE {CATALOG_SCHEMA}.broker DROP COLUMN unreached")
    open_catalog()
    roster.join(broker("a", "a-1"), 3)
    assert roster.beat("a", "a-1", "serving").brokers[0].unreached == ()


def test_a_name_is_taken_while_its_process_is_alive(roster: PostgresRoster) -> None:
    assert roster.join(broker("a", "a-1"), 3)
    assert not roster.join(broker("a", "a-2"), 3)
    assert roster.beat("a", "a-2", "serving").own_silence_s is None
    # Presumed dead at once.
    assert roster.join(broker("a", "a-2"), 0)
    assert roster.beat("a", "a-1", "serving").own_silence_s is None
    roster.beat("a", "a-2", "gone")
    assert roster.join(broker("a", "a-3"), 3)


def test_what_is_not_a_catalog_is_refused(
    postgres: Postgres, url: str, open_catalog: Callable[..., PostgresCatalog]
) -> None:
    store = PostgresStore(parse_address(f"{url}?schema={CATALOG_SCHEMA}"))
    store.open()
    store.close()
    with pytest.raises(StoreError, match="is not the catalog of a cluster"):
        open_catalog()


def test_a_store_is_not_put_where_a_catalog_is(
    url: str, open_catalog: Callable[..., PostgresCatalog]
) -> None:
    open_catalog()
    store = PostgresStore(parse_address(f"{url}?schema={CATALOG_SCHEMA}"))
    with pytest.raises(StoreError, match="is not a Bendybus messaging store"):
        store.open()


def test_a_newer_catalog_is_refused(
    postgres: Postgres, url: str, open_catalog: Callable[..., PostgresCatalog]
) -> None:
    open_catalog()
    with postgres.connect(url.rsplit("/", 1)[1]) as connection:
        connection.execute(f"UPDATE {CATALOG_SCHEMA}.about SET version = 77")
    with pytest.raises(SchemaTooNew, match="version 77"):
        open_catalog()


@pytest.mark.row("N-09")
def test_the_broker_that_leads_adds_certificates_and_all_read_them(
    open_catalog: Callable[..., PostgresCatalog], roster: PostgresRoster
) -> None:
    catalog, other = open_catalog(), open_catalog()
    assert other.certificates == [SECRETS.certificate]
    made = [ClusterCertificate(f"certificate-{number}", f"key-{number}", number + 0.5) for number in range(4)]
    with pytest.raises(StoreUnavailable, match="leads"):
        catalog.add_certificate(made[0])
    catalog.term = roster.lead("a", "a-1", after=0)
    for count, each in enumerate(made, 1):
        catalog.add_certificate(each)
        # The revision tells the others to read.
        assert other.read()[0] == count
        assert other.certificates == catalog.certificates == [SECRETS.certificate, *made[:count][-3:]]


def test_a_catalog_from_before_there_were_several_certificates_is_used(
    url: str, open_catalog: Callable[..., PostgresCatalog]
) -> None:
    open_catalog()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP TABLE {CATALOG_SCHEMA}.certificate")
    assert open_catalog().certificates == [SECRETS.certificate]
