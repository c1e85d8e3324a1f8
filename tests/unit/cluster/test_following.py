"""One broker has the catalog, and the others follow it."""

from __future__ import annotations

import logging

import pytest

from bendybus import audit
from bendybus.cluster.following import FollowedCatalog
from bendybus.domain.commands import Enqueue, Given, Peek
from bendybus.domain.entities import QueueDescription
from bendybus.domain.filters import RuleDescription, SqlFilter
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.topic_entities import SubscriptionDescription, TopicDescription, subscription_path
from bendybus.errors import (
    EntityExists,
    EntityNotFound,
    MessagesInTransit,
    NotSupported,
    StoreUnavailable,
)
from bendybus.names import EntityPath, Instant, SequenceNumber
from fix_async import until
from fix_cluster import Members, members


def queue(path: str, **properties: object) -> QueueDescription:
    return QueueDescription(EntityPath(path), enable_partitioning=True, **properties)


async def topic(cluster: Members) -> None:
    topics = cluster["a"].broker.topics
    await topics.create(TopicDescription(EntityPath("events"), enable_partitioning=True))
    await topics.create_subscription(SubscriptionDescription(subscription_path("events", "all")))


async def test_a_change_has_returned_when_every_broker_knows_it() -> None:
    async with members("abc") as cluster:
        queues = cluster["a"].broker.queues
        await queues.create(queue("orders"))
        assert all(member.broker.queues.find("orders") for member in cluster)

        await queues.update(queue("orders", max_delivery_count=3))
        found = [member.broker.queues.get("orders") for member in cluster]
        assert [each.description.max_delivery_count for each in found] == [3, 3, 3]
        assert len({each.updated_at for each in found}) == 1

        await queues.delete("orders")
        assert not any(member.broker.queues.find("orders") for member in cluster)
        assert all(each.deleted for each in found)


async def test_watchers_of_every_broker_are_told() -> None:
    async with members() as cluster:
        seen: list[tuple[str, bool]] = []
        cluster["b"].broker.entities.watch(lambda entity: seen.append((entity.path, entity.deleted)))
        queues = cluster["a"].broker.queues

        await queues.create(queue("orders"))
        await queues.update(queue("orders", max_delivery_count=3))
        await queues.delete("orders")

        assert seen == [("orders", False), ("orders", False), ("orders", True)]


async def test_the_partitions_of_a_deleted_entity_are_removed_from_every_store() -> None:
    async with members() as cluster:
        await cluster["a"].broker.queues.create(queue("orders"))
        assert all(member.store.partitions() for member in cluster)

        await cluster["a"].broker.queues.delete("orders")

        assert not any(member.store.partitions() for member in cluster)


async def test_rules_are_changed_where_the_catalog_is_and_hold_everywhere() -> None:
    async with members() as cluster:
        await topic(cluster)
        follower = cluster["b"].broker.topics
        rule = RuleDescription("large", SqlFilter("size > 5"))

        await follower.add_rule("events", "all", rule)
        for member in cluster:
            held = member.broker.topics.get_subscription("events", "all").description.rules
            assert "large" in {each.name for each in held}
        with pytest.raises(EntityExists):
            await follower.add_rule("events", "all", rule)

        await follower.remove_rule("events", "all", "large")
        assert len(follower.get_subscription("events", "all").description.rules) == 1
        with pytest.raises(EntityNotFound):
            await follower.remove_rule("events", "all", "large")


@pytest.mark.parametrize("broker", ["a", "b"])
async def test_the_audit_log_names_who_asked_for_a_change_whichever_broker_makes_it(
    broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with members() as cluster:
        await topic(cluster)
        topics = cluster[broker].broker.topics
        rule = RuleDescription("large", SqlFilter("size > 5"))

        with (
            caplog.at_level(logging.INFO, "bendybus.audit"),
            audit.acting(audit.Actor("manager", "10.0.0.1:5", "shop")),
        ):
            await topics.add_rule("events", "all", rule)
            await topics.change_rules("events", "all", ["large"])

    told = [record.message for record in caplog.records if record.name == "bendybus.audit"]
    by = "by=manager peer=10.0.0.1:5 namespace=shop entity=events/Subscriptions/all rule=large"
    assert told == [f"rule-created {by}", f"rule-deleted {by}"]


@pytest.mark.parametrize("broker", ["a", "b"])
async def test_the_rules_of_a_transaction_change_together_or_not_at_all(broker: str) -> None:
    async with members() as cluster:
        await topic(cluster)
        topics = cluster[broker].broker.topics
        large, small = (RuleDescription(name, SqlFilter("size > 5")) for name in ("large", "small"))

        await topics.change_rules("events", "all", [large, small, "$Default"])
        with pytest.raises(EntityNotFound):
            await topics.change_rules("events", "all", ["large", "gone"])
        with pytest.raises(EntityExists):
            await topics.change_rules("events", "all", ["large", small])
        await topics.change_rules("events", "all", ["small"])

        for member in cluster:
            (held,) = member.broker.topics.get_subscription("events", "all").description.rules
            assert held.name == "large" and held.created_at


async def test_a_broker_that_missed_changes_catches_up() -> None:
    async with members() as cluster:
        queues = cluster["a"].broker.queues
        for path in ("kept", "changed", "gone"):
            await queues.create(queue(path))
        follower = cluster["b"]
        kept = follower.broker.queues.get("kept")
        await kept.hosts[0].ask(Enqueue([Message(b"x", 1)]))
        # The catalog changes behind the back of the others, as if they could not be reached.
        leader = cluster["a"].cluster
        leader._tell, told = _tell_nobody, leader._tell
        await queues.update(queue("changed", max_delivery_count=3))
        await queues.delete("gone")
        await queues.create(queue("new"))
        leader._tell = told

        await follower.following.catch_up()
        await cluster.whole()

        assert follower.broker.queues.get("changed").description.max_delivery_count == 3
        assert follower.broker.queues.find("gone") is None
        assert follower.broker.queues.get("kept") is kept
        for host in follower.broker.queues.get("new").hosts:
            assert await host.ask(Peek(SequenceNumber(0), 1)) == Given([])


async def _tell_nobody(name: str, body: object) -> None:
    """Nobody can be reached."""


async def test_an_entity_is_not_created_while_the_owner_of_one_of_its_stores_is_away() -> None:
    async with members() as cluster:
        await cluster["b"].cluster.peers.stop()
        await until(lambda: cluster["a"].cluster.peers.by_name["b"].link is None)

        with pytest.raises(StoreUnavailable, match="was not created"):
            await cluster["a"].broker.queues.create(queue("orders"))

        assert cluster["a"].broker.queues.find("orders") is None
        assert not cluster["a"].store.partitions()


async def test_an_entity_is_not_deleted_while_messages_for_others_wait_at_another_broker() -> None:
    async with members() as cluster:
        queues = cluster["a"].broker.queues
        await queues.create(queue("orders"))
        await queues.create(queue("target"))
        await cluster.whole()
        through = cluster["b"].broker.queues.get("orders")
        (own, *_) = through.own.values()
        # The destination takes nothing, so the message waits in the outbox.
        cluster["b"].broker.entities.forwarder(through)._find = _away
        await own.ask(Enqueue([Message(b"x", 1)], destination=EntityPath("target")))

        with pytest.raises(MessagesInTransit):
            await queues.delete("orders")

        assert not cluster["b"].broker.queues.get("orders").leaving
        assert not cluster["a"].broker.queues.get("orders").leaving
        assert own.waiting(SequenceNumber(0), 1, 1, SubQueue.OUTBOX)


def _away(path: str) -> None:
    raise StoreUnavailable(f"'{path}' is away.")


async def test_an_entity_stays_if_the_broker_that_was_deleting_it_ends() -> None:
    async with members() as cluster:
        await cluster["a"].broker.queues.create(queue("orders"))
        await cluster["a"].cluster.send_off([EntityPath("orders")], force=False)
        here = cluster["b"].broker.queues.get("orders")
        assert here.leaving

        await cluster["b"].following.catch_up()

        assert not here.leaving


async def test_changes_that_cannot_be_passed_on_are_refused_by_name() -> None:
    async with members() as cluster:
        await cluster["a"].broker.queues.create(queue("orders"))

        with pytest.raises(NotSupported, match="several brokers"):
            await cluster["b"].broker.queues.create(queue("others"))
        with pytest.raises(NotSupported, match="several brokers"):
            await cluster["b"].broker.queues.delete("orders")
        with pytest.raises(NotSupported, match="does not have the catalog"):
            await cluster["b"].broker.queues.update(queue("orders", max_delivery_count=3))
        with pytest.raises(NotSupported, match="several brokers"):
            await cluster["a"].broker.empty()
        with pytest.raises(NotSupported, match="several brokers"):
            await cluster["a"].broker.drains.begin("store-a")


async def test_the_last_use_of_an_entity_counts_wherever_it_was() -> None:
    async with members() as cluster:
        await cluster["a"].broker.queues.create(queue("orders"))
        cluster["b"].broker.queues.get("orders").accessed_at = Instant(12345)
        leader = cluster["a"].cluster

        assert await leader.last_use(EntityPath("orders")) == 12345
        shown = cluster["a"].broker.queues.get("orders")
        await shown.refresh(access=True)
        assert shown.accessed_at == 12345
        await cluster["b"].cluster.peers.stop()
        await until(lambda: leader.peers.by_name["b"].link is None)
        assert await leader.last_use(EntityPath("orders")) is None


async def test_settings_of_the_namespace_are_followed() -> None:
    async with members() as cluster:
        cluster["a"].cluster.namespace = lambda: {"authorization_rules": [], "note": 1}
        changed: list[bool] = []
        cluster["b"].following.namespace_changed = lambda: changed.append(True)

        await cluster["a"].cluster.namespace_changed()

        assert changed == [True]
        assert cluster["b"].broker.catalog.namespace()["note"] == 1


def test_a_catalog_that_is_followed_cannot_be_changed() -> None:
    catalog = FollowedCatalog({"id": "x"}, [])

    catalog.describe_namespace({"id": "x"})
    with pytest.raises(NotSupported):
        catalog.describe_namespace({"id": "y"})
    with pytest.raises(NotSupported):
        catalog.remove(EntityPath("orders"))
    with pytest.raises((NotSupported, EntityNotFound)):
        catalog.replace()


async def test_a_store_that_comes_back_keeps_the_partitions_of_an_entity_that_is_being_created() -> None:
    async with members() as cluster:
        entities = cluster["a"].broker.entities
        record = entities.admit("queue", queue("orders"))
        await cluster["a"].cluster.make_partitions(record)
        made = cluster["b"].store.partitions()
        assert made
        (store,) = cluster["b"].broker.stores
        store.recovery.has_leftovers = True
        store.fail(StoreUnavailable("it does not answer"))
        await store.recovered()
        assert cluster["b"].store.partitions() == made

        # It was not created after all.
        await cluster["a"].cluster.drop_partitions(record)
        assert not store.recovery.given_up


async def test_an_entity_that_was_created_again_while_a_broker_was_cut_off_keeps_its_new_partitions() -> None:
    async with members() as cluster:
        at_a, at_b = cluster["a"].broker, cluster["b"].broker
        await at_a.queues.create(queue("orders"))
        former = at_b.queues.get("orders")
        cluster["a"].cut("b")
        await at_a.entities.remove(at_a.queues.get("orders"), force=True)
        assert not former.deleted
        await until(lambda: cluster["a"].cluster.peers.by_name["b"].link is not None)

        await at_a.queues.create(queue("orders"))

        assert former.deleted
        assert at_b.queues.get("orders").generation == at_a.queues.get("orders").generation
        await cluster.whole()
        for host in at_a.queues.get("orders").hosts:
            await host.ask(Enqueue([Message(b"x", 1)]))
