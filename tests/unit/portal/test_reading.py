"""What pages read of a server that has only Service Bus's own API, as Azure has."""

from __future__ import annotations

from typing import Any

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import ArgumentError, EntityNotFound, Unauthorized
from bendybus.testing import Server
from bendybus_portal.access import Access, find_rights
from bendybus_portal.config_file import export_config, import_work, read_config
from bendybus_portal.jobs import Job
from bendybus_portal.reading import describe, overview, split_entity


class LikeAzure(Access):
    """Without the server's own API."""

    __slots__ = ()

    def ask(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        raise ArgumentError("127.0.0.1 answered 404, and not as a Bendybus server does.")


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def shop(server):
    queues = {"orders": {"enable_partitioning": True}, "plain": {}}
    with server.namespace(queues=queues) as made:
        yield made


def test_entities_are_listed_and_described_without_extensions(shop):
    access = LikeAzure(ConnectionString.parse(shop.connection_string))
    rights = find_rights(access)
    assert (rights.manage, rights.extensions, rights.tier.lower()) == (True, False, "standard")
    with BusClient(ClientSettings.from_connection_string(shop.connection_string)) as client:
        client.sender("plain").send([encode(b"one"), encode(b"two")])
    found = overview(access, rights, "", "active", True, 0)
    assert [each["name"] for each in found.entities] == ["plain", "orders"]
    assert (found.queues, found.topics, found.entities[0]["active"]) == (2, 0, 2)
    assert overview(access, rights, "ORD", "name", False, 0).matching == 1
    info = describe(access, rights, "plain")
    assert (info.kind, info.counts["activeMessageCount"], info.sessions) == ("queue", 2, False)
    with pytest.raises(EntityNotFound):
        describe(access, rights, "nothing")


def test_a_wrong_key_opens_nothing(shop):
    wrong = shop.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    for kind in (Access, LikeAzure):
        with pytest.raises(Unauthorized):
            find_rights(kind(ConnectionString.parse(wrong)))


def test_a_namespace_is_exported_and_imported(shop, server):
    access = Access(ConnectionString.parse(shop.connection_string))
    text = export_config(access, "shop")
    with server.namespace(queues=["plain"]) as other:
        target = Access(ConnectionString.parse(other.connection_string))
        job = Job(1, "Importing", None)
        import_work(target, read_config(text), job)
        assert job.done == 1
        assert describe(target, find_rights(target), "orders").values["enablePartitioning"] is True
        target.close()
    for wrong in ("", "[]", '{"UserConfig": {}}', '{"UserConfig": {"Namespaces": [1]}}'):
        with pytest.raises(ArgumentError):
            read_config(wrong)


def test_a_subscription_is_found_in_its_path():
    assert split_entity("events/Subscriptions/audit") == ("events", "audit")
    assert split_entity("a/b") == ("a/b", None)
