"""The broker's own operations over the wire, against a real server process."""

from __future__ import annotations

import dataclasses

import pytest

from bendybus.amqp.types import Array, UInt
from bendybus.client import BusClient, ClientSettings, ReceivedMessage, encode
from bendybus.errors import (
    ArgumentError,
    ConsumerLeaseHeld,
    InvalidOperation,
    SessionCannotBeLocked,
    Unauthorized,
)
from bendybus.operations.peeking import session_filter
from fix_server import RULES, Kind, ServerProcess

SHIFT = 48


def client_of(server: ServerProcess, queue: str, **changes: object) -> BusClient:
    settings = ClientSettings.from_connection_string(server.connection_string, entity=queue)
    return BusClient(dataclasses.replace(settings, timeout_s=20.0, **changes))


def numbers_in(answer) -> list[int]:
    return [ReceivedMessage(message).sequence_number for message in answer["messages"]]


@pytest.mark.row("S-02")
def test_partitions_tell_how_far_they_go(server, new_queue):
    with client_of(server, new_queue(Kind.PARTITIONED)) as client:
        client.sender().send([encode(b"x", partition_key="k")] * 3, "k")
        info = client.management().request("bendybus:partition-info", {})
        assert info["partition-count"] == len(info["partitions"]) == 16
        assert len(info["generation"]) == 32
        (filled,) = [each for each in info["partitions"] if each["active"]]
        base = filled["partition"] << SHIFT
        assert filled["first-sequence-number"] == filled["vacant-from-sequence-number"] == base + 1
        assert filled["high-water-mark"] == base + 3
        assert filled["next-sequence-number"] == base + 4
        assert all(each["available"] for each in info["partitions"])
        empty = next(each for each in info["partitions"] if not each["active"])
        assert empty["high-water-mark"] == empty["partition"] << SHIFT


def test_a_range_of_one_partition_is_read_in_large_answers(server, new_queue):
    with client_of(server, new_queue(Kind.UNPARTITIONED)) as client:
        client.sender().send([encode(b"x" * 1000, subject=str(number)) for number in range(3000)])
        management = client.management()
        whole = management.request(
            "bendybus:peek-range", {"from-sequence-number": 2, "to-sequence-number": 2999}
        )
        assert numbers_in(whole) == [*range(2, 3000)]
        assert whole["next"] is None
        part = management.request(
            "bendybus:peek-range",
            {"from-sequence-number": 1, "to-sequence-number": 3000, "max-bytes": 10_000},
        )
        assert len(part["messages"]) == 9
        assert part["next"] == 10
        assert ReceivedMessage(part["messages"][0]).subject == "0"


@pytest.mark.row("S-03")
def test_completing_up_to_a_number_needs_the_lease(server, new_queue, kind):
    with client_of(server, new_queue(kind)) as client:
        client.sender().send([encode(b"x", partition_key="k")] * 5, "k")
        management = client.management()
        info = management.request("bendybus:partition-info", {})
        (filled,) = [each for each in info["partitions"] if each["active"]]
        third = filled["first-sequence-number"] + 2
        up_to = {"consumer": "one", "sequence-numbers": Array(int, [third])}
        with pytest.raises(ConsumerLeaseHeld, match="nobody"):
            management.request("bendybus:complete-up-to", up_to)
        management.request("bendybus:consumer-lease", {"consumer": "one", "duration-ms": 60_000})
        with pytest.raises(ConsumerLeaseHeld, match="'one' has the lease"):
            management.request("bendybus:consumer-lease", {"consumer": "two", "duration-ms": 60_000})
        assert management.request("bendybus:complete-up-to", up_to) == {"removed": 3}
        assert management.request("bendybus:complete-up-to", up_to) == {"removed": 0}
        numbers = Array(int, [third + 1, third])
        assert management.request("bendybus:complete-numbers", {"sequence-numbers": numbers}) == {
            "removed": 1
        }
        management.request("bendybus:consumer-lease", {"consumer": "one", "duration-ms": 0})
        management.request("bendybus:consumer-lease", {"consumer": "two", "duration-ms": 1000})
        info = management.request("bendybus:partition-info", {})
        assert sum(each["active"] for each in info["partitions"]) == 1


def test_what_was_completed_stays_so_after_a_crash(start_server):
    server = start_server({"q": {}})
    with client_of(server, "q", retries=30) as client:
        client.sender().send([encode(b"x")] * 5)
        management = client.management()
        before = management.request("bendybus:partition-info", {})
        management.request("bendybus:consumer-lease", {"consumer": "c", "duration-ms": 60_000})
        management.request("bendybus:complete-up-to", {"consumer": "c", "sequence-numbers": Array(int, [5])})
        server.kill()
        server.start()
        after = management.request("bendybus:partition-info", {})
        assert after["generation"] == before["generation"]
        assert after["partitions"][0]["active"] == 0
        assert after["partitions"][0]["high-water-mark"] == 5


def test_dead_letters_have_no_order_and_say_so(server, new_queue, kind):
    queue = new_queue(kind)
    with client_of(server, queue) as client:
        client.sender().send([encode(b"x")])
        receiver = client.receiver()
        (message,) = receiver.receive(timeout_s=10)
        receiver.dead_letter([message], "bad")
        management = client.management(f"{queue}/$deadletterqueue")
        info = management.request("bendybus:partition-info", {})
        assert not info["ordered"]
        number = message.sequence_number
        answer = management.request(
            "bendybus:peek-range", {"from-sequence-number": number, "to-sequence-number": number}
        )
        assert numbers_in(answer) == [number]
        with pytest.raises(InvalidOperation, match="no order"):
            management.request(
                "bendybus:complete-up-to", {"consumer": "c", "sequence-numbers": Array(int, [number])}
            )
        gone = {"sequence-numbers": Array(int, [number])}
        assert management.request("bendybus:complete-numbers", gone) == {"removed": 1}


@pytest.mark.parametrize(
    ("operation", "body", "named"),
    [
        ("peek-range", {}, "from-sequence-number"),
        ("peek-range", {"from-sequence-number": 1, "to-sequence-number": 1 << SHIFT}, "partition"),
        ("peek-range", {"from-sequence-number": 99 << SHIFT, "to-sequence-number": 99 << SHIFT}, "partition"),
        ("peek-range", {"from-sequence-number": -1, "to-sequence-number": 5}, "partition"),
        ("peek-range", {"from-sequence-number": 1, "to-sequence-number": 5, "states": [7]}, "states"),
        ("peek-range", {"from-sequence-number": 1, "to-sequence-number": 5, "session-id": 7}, "session-id"),
        ("peek-range", {"from-sequence-number": 1, "to-sequence-number": 5, "max-bytes": "x"}, "max-bytes"),
        ("complete-up-to", {"consumer": "c"}, "sequence-numbers"),
        ("complete-up-to", {"sequence-numbers": [1]}, "consumer"),
        ("complete-up-to", {"consumer": "c", "sequence-numbers": [1], "states": [2]}, "cheduled"),
        ("complete-numbers", {"sequence-numbers": ["a"]}, "sequence-numbers"),
        ("consumer-lease", {"consumer": "c" * 201, "duration-ms": 1}, "consumer"),
        ("consumer-lease", {"consumer": "c", "duration-ms": 1 << 40}, "lasts up to"),
        ("consumer-lease", {"consumer": "c", "duration-ms": -1}, "lasts up to"),
    ],
)
def test_what_cannot_be_meant_is_refused(server, operation, body, named):
    with client_of(server, "usual-unpartitioned-0") as client, pytest.raises(ArgumentError, match=named):
        client.management().request(f"bendybus:{operation}", body)


@pytest.mark.parametrize(
    ("operation", "body", "named"),
    [
        ("insert-messages", {}, "messages"),
        ("insert-messages", {"messages": [{"message": "text"}]}, "encoded"),
        ("insert-messages", {"messages": [{"message": encode(b"x"), "state": 2}]}, "state"),
        (
            "insert-messages",
            {"messages": [{"message": encode(b"x", scheduled_enqueue_time_ms=1 << 42)}]},
            "due",
        ),
        ("get-session-states", {"session-ids": [7]}, "named by a string"),
        ("set-session-states", {"states": [7]}, "maps"),
        ("set-session-states", {"states": [{"session-id": "s", "session-state": 7}]}, "binary"),
    ],
)
def test_what_cannot_be_inserted_is_refused(server, operation, body, named):
    with client_of(server, "usual-unpartitioned-0") as client, pytest.raises(ArgumentError, match=named):
        client.management().request(f"bendybus:{operation}", body)


def test_messages_are_inserted_in_their_states_and_stay_so_after_a_crash(start_server):
    server = start_server({"q": {"EnablePartitioning": True}})
    with client_of(server, "q", retries=30) as client:
        keyed = [{"message": encode(b"%d" % number, partition_key="k")} for number in range(3)]
        deferred = [{"message": encode(b"later", partition_key="k"), "state": 1}]
        management = client.management()
        assert management.request("bendybus:insert-messages", {"messages": keyed + deferred}) == {
            "inserted": 4
        }
        letter = {"message": encode(b"dead", application_properties={"DeadLetterReason": "Bad"})}
        letters = client.management("q/$deadletterqueue")
        assert letters.request("bendybus:insert-messages", {"messages": [letter]}) == {"inserted": 1}
        server.kill()
        server.start()
        info = management.request("bendybus:partition-info", {})
        assert [sum(each[state] for each in info["partitions"]) for state in ("active", "deferred")] == [3, 1]
        received = client.receiver().receive(10, timeout_s=10)
        assert [message.body for message in received] == [b"0", b"1", b"2"]
        (dead,) = client.receiver("q/$deadletterqueue").receive(10, timeout_s=10)
        assert (dead.body, dead.application_properties["DeadLetterReason"]) == (b"dead", "Bad")
        found = management.request("bendybus:peek", {"states": Array(int, [1])})
        (number,) = numbers_in(found)
        by_number = {"sequence-numbers": Array(int, [number]), "receiver-settle-mode": UInt(0)}
        given = management.request("com.microsoft:receive-by-sequence-number", by_number)
        assert ReceivedMessage(bytes(given["messages"][0]["message"])).body == b"later"


def test_a_subscription_that_nobody_can_send_to_takes_inserted_messages(start_server):
    server = start_server({}, topics=[{"Name": "news", "Subscriptions": [{"Name": "all"}]}])
    with client_of(server, "news/Subscriptions/all") as client:
        sent = [{"message": encode(b"one")}]
        client.management().request("bendybus:insert-messages", {"messages": sent})
        (received,) = client.receiver().receive(10, timeout_s=10)
        assert received.body == b"one"


def test_states_of_sessions_are_read_and_written_without_a_receiver(start_server):
    server = start_server({"s": {"RequiresSession": True}})
    with client_of(server, "s") as client:
        management = client.management()
        states = [{"session-id": "a", "session-state": b"A"}, {"session-id": "b", "session-state": None}]
        management.request("bendybus:set-session-states", {"states": states})
        asked = {"session-ids": ["a", "b"]}
        assert management.request("bendybus:get-session-states", asked)["states"] == states
        client.sender().send([encode(b"x", session_id="a")], "a")
        client.receiver(filters=session_filter("a")).receive(1, timeout_s=10)
        with pytest.raises(SessionCannotBeLocked, match="'a'"):
            management.request("bendybus:get-session-states", asked)


def test_inserting_needs_the_right_to_manage(server, new_queue, kind):
    with (
        client_of(server, new_queue(kind), key_name="Listens", key=RULES["Listens"][0]) as client,
        pytest.raises(Unauthorized, match="Manage"),
    ):
        client.management().request("bendybus:insert-messages", {"messages": [{"message": encode(b"x")}]})


def test_they_need_the_right_to_listen(server, new_queue, kind):
    with (
        client_of(server, new_queue(kind), key_name="Sends", key=RULES["Sends"][0]) as client,
        pytest.raises(Unauthorized, match="Listen"),
    ):
        client.management().request("bendybus:partition-info", {})
