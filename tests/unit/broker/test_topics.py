"""Topics at work: fan-out in one commit, subscriptions that come and go, stores that fail."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.broker import topic as topic_module
from bendybus.broker import transactions, turns
from bendybus.broker.clock import now
from bendybus.broker.lifecycle import Availability
from bendybus.domain.commands import Complete, Enqueue, Given, Lock, Reserve
from bendybus.domain.entities import EntityStatus, QueueDescription, Tier
from bendybus.domain.fanout import FanOut
from bendybus.domain.filters import DEFAULT_RULE_NAME, FalseFilter
from bendybus.domain.messages import SubQueue
from bendybus.domain.schedule import postpone
from bendybus.domain.topic_entities import SUBSCRIPTIONS_MAX, TopicDescription
from bendybus.envelope import admit
from bendybus.errors import (
    ArgumentError,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    QuotaExceeded,
    StoreUnavailable,
)
from bendybus.names import EntityPath, Instant, SequenceNumber
from fix_async import until
from fix_topics import NEWS, PLAIN, bodies, encoded, held, plain, publish, rule, subscription

# -- fan-out ------------------------------------------------------------------------


@pytest.mark.row("P-01", "P-05", "P-12")
@pytest.mark.parametrize("description", [NEWS, PLAIN], ids=lambda description: description.path)
async def test_every_subscription_gets_a_copy_in_order(open_broker, description):
    async with open_broker() as broker:
        topic = await broker.topics.create(description)
        made = [
            await broker.topics.create_subscription(subscription(name, topic.path)) for name in ("x", "y")
        ]
        for text in "abcde":
            await publish(topic, text, key="ada")
        assert [await bodies(each) for each in made] == [list("abcde")] * 2
        numbers = {host.number for each in made for host in each.hosts if host.available(SubQueue.MAIN)}
        assert len(numbers) == 1


async def test_a_message_and_its_copies_are_one_commit_with_one_body(open_broker, stores):
    async with open_broker() as broker:
        topic, _ = await plain(broker, *"abcdefghij")
        (store,) = [store for store in stores if store.name == topic.hosts[0].store.name]
        before = len(store.groups)
        await publish(topic, "once")
        assert len(store.groups) == before + 1
        assert sum(len(changes.stored) for changes in store.groups[-1]) == 10
        assert store.body_count == 1


async def test_a_send_that_nobody_wants_succeeds(open_broker):
    async with open_broker() as broker:
        topic, _ = await plain(broker)
        await publish(topic, "unheard")
        await broker.topics.create_subscription(subscription(rules=(rule("never", FalseFilter()),)))
        assert (await publish(topic, "unheard")).count == 1
        assert await bodies(broker.find("plain/subscriptions/all")) == []


async def test_copies_of_rules_with_actions_have_their_own_payload(open_broker):
    async with open_broker() as broker:
        rules = (rule("plain", "1 = 1"), rule("marked", "n > 1", "SET seen = n + 1; SET sys.Label = 'L'"))
        topic, (both,) = await plain(broker, "both", rules=rules)
        await publish(topic, "one", n=1)
        await publish(topic, "two", n=2)
        got = [decode_message(payload) for _, payload in await held(both)]
        assert [(each.data, each.application_properties, each.properties.subject) for each in got] == [
            ([b"one"], {"n": 1}, None),
            ([b"two"], {"n": 2}, None),
            ([b"two"], {"n": 2, "seen": 3, "RuleName": "marked"}, "L"),
        ]


async def test_the_number_at_the_topic_stays_with_the_copies(open_broker):
    async with open_broker() as broker:
        topic, (first,) = await plain(broker, "first")
        await publish(topic, "a", "b")
        later = await broker.topics.create_subscription(subscription("later"))
        await publish(topic, "c")
        shown = [decode_message(payload).message_annotations for _, payload in await held(later)]
        assert [(each["x-opt-sequence-number"], each["x-opt-enqueue-sequence-number"]) for each in shown] == [
            (1, 3)
        ]
        assert len(await held(first)) == 3


async def test_a_rule_that_fails_dead_letters_a_copy_if_asked_for(open_broker):
    async with open_broker() as broker:
        failing = (rule("bad", "n > 5"), rule("fine", "n = 'text'"))
        topic, (asked,) = await plain(broker, "asked", rules=failing)
        silent = await broker.topics.create_subscription(
            subscription("silent", rules=failing, dead_letter_on_filter_errors=False)
        )
        await publish(topic, "x", n="text")
        assert [await bodies(each) for each in (asked, silent)] == [["x"], ["x"]]
        ((_, dead),) = await held(asked, SubQueue.DEAD_LETTER)
        told = decode_message(dead).application_properties
        assert told["DeadLetterReason"] == "FilterException"
        assert "Rule 'bad'" in told["DeadLetterErrorDescription"]
        assert await held(silent, SubQueue.DEAD_LETTER) == []
        partition = asked.hosts[0].partition
        assert partition.counts(SubQueue.DEAD_LETTER).size_bytes == partition.counts().size_bytes


@pytest.mark.row("P-13")
async def test_a_session_aware_subscription_dead_letters_what_has_no_session(open_broker):
    async with open_broker() as broker:
        topic, (ordinary,) = await plain(broker, "ordinary")
        sessions = await broker.topics.create_subscription(subscription("sessions", requires_session=True))
        await publish(topic, "lost")
        message, _ = admit(
            encode_message(properties=Properties(message_id="kept", group_id="s"), data=b"kept"),
            now(),
            topic.description,
        )
        await topic.hosts[0].ask(Enqueue([message]))
        assert await bodies(sessions) == ["kept"]
        assert await bodies(ordinary) == ["lost", "kept"]
        ((_, dead),) = await held(sessions, SubQueue.DEAD_LETTER)
        assert decode_message(dead).application_properties["DeadLetterReason"] == "Session ID is null."


async def test_what_cannot_be_read_is_a_filter_error_and_no_fault(open_broker):
    async with open_broker() as broker:
        topic, (curious, indifferent) = await plain(broker, "curious", "indifferent")
        await broker.topics.add_rule("plain", "curious", rule("asks", "n = 1"))
        await broker.topics.remove_rule("plain", "curious", DEFAULT_RULE_NAME)
        # The map says that it has three entries, and has one.
        broken = encoded("b", n=1).replace(b"\x00\x53\x74\xc1\x06\x02", b"\x00\x53\x74\xc1\x06\x06")
        message, _ = admit(broken, now(), topic.description)
        await topic.hosts[0].ask(Enqueue([message]))
        assert len(await held(indifferent)) == 1
        assert len(await held(curious)) == 0
        assert curious.hosts[0].partition.counts(SubQueue.DEAD_LETTER).active == 1


async def test_the_least_of_the_three_lifetimes_counts(open_broker):
    async with open_broker() as broker:
        topic = await broker.topics.create(replace(PLAIN, default_message_ttl_s=100))
        brief = await broker.topics.create_subscription(subscription("brief", default_message_ttl_s=10))
        lasting = await broker.topics.create_subscription(subscription("lasting", default_message_ttl_s=1000))
        await publish(topic, "x")
        lives = [
            message.expires_at - message.enqueued_at
            for each in (brief, lasting)
            for message, _ in await held(each)
        ]
        assert lives == [10_000, 100_000]


async def test_the_quota_counts_all_copies(open_broker):
    async with open_broker() as broker:
        topic, (first, second) = await plain(broker, "first", "second")
        # Not by sending a gigabyte: as if there were one.
        for each in (first, second):
            await each.loaded()
            each.hosts[0].partition._parts.stock.shelves[SubQueue.MAIN].size_bytes += 512 << 20
        with pytest.raises(QuotaExceeded):
            await publish(topic, "one more")
        for each in (first, second):
            each.hosts[0].partition._parts.stock.shelves[SubQueue.MAIN].size_bytes -= 512 << 20
        await publish(topic, "one more")


async def test_a_message_that_fits_once_is_copied_to_all_even_beyond_the_quota(open_broker):
    async with open_broker() as broker:
        topic, (first, _) = await plain(broker, "first", "second")
        await publish(topic, "x")
        ((message, _),) = await held(first)
        # As if there were a gigabyte, but for one message.
        shelf = first.hosts[0].partition._parts.stock.shelves[SubQueue.MAIN]
        shelf.size_bytes += (1 << 30) - 3 * message.size
        await publish(topic, "x")
        with pytest.raises(QuotaExceeded):
            await publish(topic, "x")


@pytest.mark.row("P-23")
async def test_a_transaction_that_fits_once_is_copied_to_all_even_beyond_the_quota(open_broker):
    # The copies of its first message counted when the second was accepted: the commit failed half-way, and
    # receivers got the first message, which no store had.
    async with open_broker() as broker:
        topic, (first, second) = await plain(broker, "first", "second")
        host = topic.hosts[0]
        sent, _ = admit(encoded("now"), now(), topic.description)
        reserved = await host.ask(Reserve(1))
        later, _ = admit(encoded("later"), now(), topic.description)
        later.sequence_number = reserved.first
        postpone(later, now(), Instant(now() + 60_000))
        shelf = first.hosts[0].partition._parts.stock.shelves[SubQueue.MAIN]
        shelf.size_bytes += (1 << 30) - sent.size - later.size
        await transactions.commit([(host, Enqueue([sent])), (host, Enqueue([later], numbered=True))])
        assert await bodies(first) == await bodies(second) == ["now"]
        assert host.partition.scheduled_count == 1


# -- subscriptions come and go --------------------------------------------------------


async def test_a_subscription_gets_everything_accepted_after_its_creation_returned(open_broker):
    async with open_broker() as broker:
        topic, (first,) = await plain(broker, "first")
        done = asyncio.Event()
        sent = 0

        async def send():
            nonlocal sent
            while not done.is_set():
                await publish(topic, str(sent))
                sent += 1

        sending = asyncio.create_task(send())
        await until(lambda: sent >= 5)
        late = await broker.topics.create_subscription(subscription("late"))
        from_here = sent + 1  # one may be under way
        await until(lambda: sent >= from_here + 20)
        done.set()
        await sending
        got = [int(text) for text in await bodies(late)]
        assert got == list(range(got[0], sent))
        assert got[0] <= from_here
        assert len(await bodies(first)) == sent


async def test_rules_hold_from_the_next_message(open_broker):
    async with open_broker() as broker:
        topic, (some,) = await plain(broker, "some")
        await publish(topic, "before")
        await broker.topics.remove_rule("plain", "some", DEFAULT_RULE_NAME)
        await publish(topic, "between")
        await broker.topics.add_rule("plain", "some", rule("R", "n = 1"))
        await publish(topic, "other", n=2)
        await publish(topic, "wanted", n=1)
        await broker.topics.update_rule("PLAIN", "SOME", rule("r", "n = 2"))
        await publish(topic, "changed", n=2)
        assert await bodies(some) == ["before", "wanted", "changed"]
        assert [each.name for each in some.description.rules] == ["R"]


async def test_topics_survive_a_restart(open_broker):
    async with open_broker() as broker:
        topic = await broker.topics.create(NEWS)
        await broker.topics.create_subscription(subscription("red", "news", rules=(rule("r", "n = 1"),)))
        await publish(topic, "a", "b", n=1)
        generation = broker.entities.record("news").generation

    async with open_broker() as broker:
        found = broker.find("NEWS/subscriptions/Red")
        assert found.path == "News/Subscriptions/red"
        assert await bodies(found) == ["a", "b"]
        topic = broker.topics.get("news")
        await publish(topic, "c", n=1)
        await publish(topic, "d", n=2)
        assert sorted(await bodies(found)) == ["a", "b", "c"]
        assert broker.entities.record("news").generation == generation


@pytest.mark.row("P-32")
async def test_deleting_a_topic_takes_everything_with_it(open_broker, stores, catalog):
    async with open_broker() as broker:
        topic = await broker.topics.create(NEWS)
        one = await broker.topics.create_subscription(subscription("one", "News"))
        await publish(topic, "x")
        told = []
        broker.entities.watch(told.append)
        await broker.topics.delete("nEWS")
        assert topic.deleted and one.deleted and set(told) == {topic, one}
        assert catalog.entities() == []
        assert not any(store.partitions() for store in stores)
        with pytest.raises(EntityNotFound):
            broker.find("News/Subscriptions/one")
        with pytest.raises(EntityNotFound):
            await publish(topic, "y")
        await broker.topics.create(NEWS)


async def test_deleting_a_subscription_leaves_the_others_their_bodies(open_broker, stores):
    async with open_broker() as broker:
        topic, (_, stays) = await plain(broker, "goes", "stays")
        await publish(topic, "x")
        await broker.topics.delete_subscription("plain", "GOES")
        await publish(topic, "y")
        assert await bodies(stays) == ["x", "y"]


async def test_the_last_copy_takes_the_body_with_it(open_broker, stores):
    async with open_broker() as broker:
        topic, made = await plain(broker, "first", "second")
        await publish(topic, "x")
        (store,) = [store for store in stores if store.name == topic.hosts[0].store.name]
        for expected, each in zip((1, 0), made, strict=True):
            given = await each.hosts[0].ask(Lock(1, bytes(14)))
            assert isinstance(given, Given)
            await each.hosts[0].ask(Complete([given.messages[0].lock_token]))
            assert store.body_count == expected


# -- what is refused ------------------------------------------------------------------


@pytest.mark.row("P-01")
async def test_queues_and_topics_share_one_name_space(open_broker):
    async with open_broker() as broker:
        await broker.queues.create(QueueDescription(EntityPath("Taken")))
        with pytest.raises(EntityExists):
            await broker.topics.create(TopicDescription(EntityPath("taken")))
        await broker.topics.create(PLAIN)
        with pytest.raises(EntityExists):
            await broker.queues.create(QueueDescription(EntityPath("PLAIN")))
        await broker.topics.create_subscription(subscription())
        with pytest.raises(EntityExists):
            await broker.topics.create_subscription(subscription("ALL", "PLAIN"))


async def test_each_kind_of_entity_is_told_apart(open_broker):
    async with open_broker() as broker:
        topic, (one,) = await plain(broker, "one")
        with pytest.raises(InvalidOperation, match="is a topic"):
            broker.find("plain")
        assert broker.find_target("plain") is topic
        with pytest.raises(InvalidOperation, match="nobody can send"):
            broker.find_target("plain/SUBSCRIPTIONS/one").refuse_sending()
        assert broker.find("plain/subscriptions/ONE") is one
        for missing in ("plain/subscriptions/two", "other/subscriptions/one", "plain/subscriptions"):
            with pytest.raises(EntityNotFound):
                broker.find(missing)
        for wrong in (
            broker.queues.update(QueueDescription(EntityPath("plain"))),
            broker.queues.delete("plain"),
        ):
            with pytest.raises(EntityNotFound):
                await wrong
        with pytest.raises(EntityNotFound):
            await broker.topics.create_subscription(subscription("x", "nowhere"))


async def test_basic_has_no_topics(open_broker):
    async with open_broker(tier=Tier.BASIC) as broker:
        with pytest.raises(InvalidOperation, match="does not offer topics"):
            await broker.topics.create(PLAIN)


@pytest.mark.row("P-09")
async def test_premium_partitions_topics_and_their_subscriptions(open_broker):
    async with open_broker(tier=Tier.PREMIUM) as broker:
        topic, (one,) = await plain(broker, "one")
        assert len(topic.hosts) == len(one.hosts) == 2
        assert [host.store for host in topic.hosts] == [host.store for host in one.hosts]


async def test_a_topic_has_a_limit_of_subscriptions_and_of_filters(open_broker, monkeypatch):
    monkeypatch.setattr("bendybus.broker.topics.SUBSCRIPTIONS_MAX", 2)
    monkeypatch.setattr("bendybus.domain.topic_entities.SQL_FILTERS_MAX", 3)

    assert SUBSCRIPTIONS_MAX == 2000
    async with open_broker() as broker:
        await plain(broker, "one", "two", rules=(rule("r", "n = 1"),))
        with pytest.raises(QuotaExceeded, match="as many as are allowed"):
            await broker.topics.create_subscription(subscription("three"))
        await broker.topics.add_rule("plain", "one", rule("s", "n = 2"))
        with pytest.raises(QuotaExceeded, match="4 SQL filters"):
            await broker.topics.add_rule("plain", "two", rule("s", "n = 2"))


@pytest.mark.row("P-07")
async def test_what_was_fixed_at_creation_stays(open_broker):
    async with open_broker() as broker:
        _, (one,) = await plain(broker, "one")
        with pytest.raises(
            InvalidOperation, match=r"Topic 'plain': EnablePartitioning is False since the topic"
        ):
            await broker.topics.update(replace(PLAIN, enable_partitioning=True))
        with pytest.raises(InvalidOperation, match="RequiresSession is False since the subscription"):
            await broker.topics.update_subscription(replace(one.description, requires_session=True))
        with pytest.raises(ArgumentError, match="nobody sends to a subscription"):
            replace(one.description, status=EntityStatus.SEND_DISABLED)


# -- stores that are away -------------------------------------------------------------


async def test_a_failed_commit_stores_no_copy_anywhere_and_the_topic_comes_back(open_broker, stores):
    async with open_broker() as broker:
        topic, made = await plain(broker, "one", "two")
        (store,) = [store for store in stores if store.name == topic.hosts[0].store.name]
        await publish(topic, "before")
        store.fails_once = StoreUnavailable("for a moment")
        with pytest.raises(StoreUnavailable):
            await publish(topic, "lost")
        assert topic.hosts[0].availability is Availability.UNAVAILABLE
        await broker.recovered()
        await topic.loaded()
        await publish(topic, "after")
        assert [await bodies(each) for each in made] == [["before", "after"]] * 2


@pytest.mark.row("P-16", "P-17")
async def test_messages_without_a_key_go_round_a_partition_that_is_away(open_broker, stores):
    async with open_broker() as broker:
        topic = await broker.topics.create(NEWS)
        one = await broker.topics.create_subscription(subscription("one", "News"))
        await one.loaded()
        away = one.hosts[3]
        away.fail(StoreUnavailable("test"))
        assert topic.hosts[3].availability is Availability.UNAVAILABLE
        for number in range(32):
            await publish(topic, str(number))
        keys = [key for key in map(str, range(100)) if topic.host_for(key) is topic.hosts[3]]
        with pytest.raises(StoreUnavailable):
            await publish(topic, "keyed", key=keys[0])
        away.load()
        await one.loaded()
        assert topic.hosts[3].availability is Availability.AVAILABLE
        assert len(await bodies(one)) == 32


async def test_publishing_waits_for_a_subscription_that_is_being_loaded(open_broker):
    async with open_broker() as broker:
        topic, (one,) = await plain(broker, "one")
        await one.loaded()
        one.hosts[0].fail(StoreUnavailable("test"))
        one.hosts[0].load()
        one.availability_changed(one.hosts[0])
        sending = asyncio.create_task(publish(topic, "patient"))
        await sending
        assert await bodies(one) == ["patient"]


# -- together with the rest ---------------------------------------------------------------


@pytest.mark.row("P-34")
async def test_a_queue_forwards_to_a_topic_and_a_subscription_to_a_queue(open_broker):
    async with open_broker() as broker:
        await plain(broker)
        goal = await broker.queues.create(QueueDescription(EntityPath("goal")))
        await broker.topics.create_subscription(subscription("via", forward_to=EntityPath("goal")))
        stays = await broker.topics.create_subscription(subscription("stays", rules=(rule("r", "n = 1"),)))
        source = await broker.queues.create(
            QueueDescription(EntityPath("source"), forward_to=EntityPath("plain"))
        )
        message, _ = admit(encoded("x", n=1), now(), source.description)
        await source.hosts[0].ask(Enqueue([message]))
        # What one forwarder moves is the next one's work.
        while not await bodies(goal):
            for forwarder in broker.entities.forwarders():
                await forwarder.settled()
        assert await bodies(goal) == await bodies(stays) == ["x"]
        ((kept, _),) = await held(stays)
        assert kept.origin.hops == 1
        with pytest.raises(ArgumentError, match="no such queue or topic"):
            await broker.topics.create_subscription(subscription("bad", forward_to=EntityPath("nowhere")))


@pytest.mark.row("P-23")
async def test_a_transaction_settles_at_a_subscription_and_sends_to_its_topic(open_broker):
    async with open_broker() as broker:
        topic, (one,) = await plain(broker, "one")
        await publish(topic, "first")
        given = await one.hosts[0].ask(Lock(1, bytes(14)))
        assert isinstance(given, Given)
        message, _ = admit(encoded("second"), now(), topic.description)
        await transactions.commit(
            [
                (one.hosts[0], Complete([given.messages[0].lock_token])),
                (topic.hosts[0], Enqueue([message])),
            ]
        )
        assert await bodies(one) == ["second"]
        assert one.top_level == topic.top_level


async def test_a_peek_at_a_topic_is_refused(open_broker):
    async with open_broker() as broker:
        topic, _ = await plain(broker)
        with pytest.raises(InvalidOperation, match="its subscriptions have its messages"):
            await topic.hosts[0].ask(Lock(1, bytes(14)))
        assert SequenceNumber(1) == topic.hosts[0].partition.next_sequence_number


# -- emptying, and time that is moved ----------------------------------------------------


@pytest.mark.row("B-08")
async def test_emptying_takes_copies_schedules_and_states_and_leaves_the_rules(open_broker):
    async with open_broker() as broker:
        topic = await broker.topics.create(replace(NEWS, requires_duplicate_detection=True))
        one = await broker.topics.create_subscription(subscription("one", "News"))
        await broker.topics.add_rule("News", "one", rule("more", "n = 1"))
        await publish(topic, "again", key="k")
        await publish(topic, "later", key="k", due=Instant(now() + 3_600_000))
        generation = one.generation
        await broker.empty()
        assert await bodies(one) == []
        assert sum(host.partition.scheduled_count for host in topic.hosts) == 0
        assert one.generation != generation
        assert [each.name for each in one.description.rules] == [DEFAULT_RULE_NAME, "more"]
        # Nobody remembers its identity either.
        await publish(topic, "again", key="k")
        assert await bodies(one) == ["again"]

    async with open_broker() as broker:
        assert await bodies(broker.topics.get_subscription("News", "one")) == ["again"]


async def test_a_topic_whose_catalog_fails_in_emptying_is_gone_with_its_subscriptions(
    open_broker, catalog, monkeypatch
):
    async with open_broker() as broker:
        await plain(broker, "one")
        monkeypatch.setattr(catalog, "add", lambda record: 1 / 0)
        with pytest.raises(StoreUnavailable, match="Not everything was emptied"):
            await broker.empty()
        assert broker.topics.find("plain") is None
        assert not broker.entities.records()


async def test_a_topic_with_many_subscriptions_goes_in_turns_and_orders_nothing_anew(
    open_broker, monkeypatch
):
    made: list[int] = []

    class Counted(FanOut):
        def __init__(self, subscriptions, *others):
            made.append(len(subscriptions))
            super().__init__(subscriptions, *others)

    monkeypatch.setattr(topic_module, "FanOut", Counted)
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    async with open_broker() as broker:
        await broker.topics.create(PLAIN)
        for number in range(20):
            await broker.topics.create_subscription(subscription(f"s{number}"))
        assert made == []
        await publish(broker.topics.get("plain"), "x")
        assert made == [20]
        deleted = []
        broker.entities.watch(deleted.append)
        going = asyncio.ensure_future(broker.topics.delete("plain"))
        seen = set()
        while not going.done():
            seen.add(len(deleted))
            await asyncio.sleep(0)
        # Others had their turn between any two.
        assert seen >= set(range(1, 21))
        assert made == [20]
        assert list(broker.entities) == []
