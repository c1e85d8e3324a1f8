"""Our blocking client against a real server process: send, receive, settle, ask, and survive."""

from __future__ import annotations

import dataclasses
import select
import threading
import time

import pytest

from bendybus.amqp.performatives import Error
from bendybus.client import BusClient, ClientSettings, ReceivedMessage, encode
from bendybus.client.receiver import Receiver
from bendybus.engine.events import LinkDetached
from bendybus.errors import (
    ArgumentError,
    ConnectionLost,
    EntityNotFound,
    InvalidOperation,
    MessageLockLost,
    MessageSizeExceeded,
    NotSupported,
    Unauthorized,
)
from fix_server import Kind, ServerProcess, Shape, StartServer

IDLE = Error("amqp:link:detach-forced", "idle for ten minutes")


def settings_for(server: ServerProcess, entity: str | None = None, **changes: object) -> ClientSettings:
    settings = ClientSettings.from_connection_string(server.connection_string, entity=entity)
    return dataclasses.replace(settings, timeout_s=20.0, **changes)


def receive_all(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    while len(messages) < count:
        some = receiver.receive(count - len(messages), timeout_s=10)
        assert some, f"only {len(messages)} of {count} came"
        messages += some
    return messages


def peeked(client: BusClient, count: int = 100) -> list[ReceivedMessage]:
    answer = client.management().request(
        "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": count}
    )
    return [] if answer is None else [ReceivedMessage(each["message"]) for each in answer["messages"]]


def wait_until_told(client: BusClient) -> None:
    """Until the server has something to say to a client that is not looking."""
    assert client._channel is not None
    assert select.select([client._channel._socket], [], [], 20)[0]


@pytest.mark.row("S-02")
def test_batches_are_packed_to_the_links_size_and_all_arrive(server, new_queue, kind):
    bodies = [b"%06d" % number + b"x" * 1000 for number in range(2000)]
    with BusClient(settings_for(server, new_queue(kind))) as client:
        sender = client.sender()
        sender.send([encode(body) for body in bodies])
        assert sender.sent == 2000
        receiver = client.receiver()
        messages = receive_all(receiver, 2000)
        assert sorted(message.body for message in messages) == bodies
        receiver.complete(messages)
        assert receiver.receive(1, timeout_s=0.2) == []
        assert peeked(client) == []


@pytest.mark.row("P-12")
def test_equal_keys_keep_their_order(server, new_queue):
    with BusClient(settings_for(server, new_queue(Kind.PARTITIONED))) as client:
        sender = client.sender()
        for number in range(50):
            for key in ("ada", "bob"):
                sender.post([encode(b"%d" % number, partition_key=key)], key)
        sender.flush()
        messages = receive_all(client.receiver(deletes=True), 100)
        for key in ("ada", "bob"):
            assert [int(message.body) for message in messages if message.partition_key == key] == [*range(50)]


def test_a_message_keeps_its_properties(server, new_queue, kind):
    sent = {
        "message_id": "m1",
        "subject": "greeting",
        "correlation_id": "c1",
        "content_type": "text/plain",
        "application_properties": {"number": 7, "text": "t"},
    }
    with BusClient(settings_for(server, new_queue(kind))) as client:
        client.sender().send([encode(b"hello", time_to_live_ms=600_000, **sent)])
        (message,) = client.receiver(deletes=True).receive(timeout_s=10)
    assert message.body == b"hello"
    assert {name: getattr(message, name) for name in sent} == sent
    assert message.parts.header.ttl == 600_000
    assert message.sequence_number & (1 << 48) - 1 == 1
    assert message.delivery_count == 0


def test_settlements_are_durable_when_they_return(server, new_queue, kind):
    queue = new_queue(kind)
    with BusClient(settings_for(server, queue)) as client:
        client.sender().send([encode(body, partition_key="k") for body in (b"a", b"b", b"c", b"d")], "k")
        receiver = client.receiver()
        a, b, c, d = receive_all(receiver, 4)
        receiver.complete([a])
        receiver.abandon([b], {"tried": True})
        receiver.defer([c])
        receiver.dead_letter([d], "bad", "because")
        left = {message.body: message for message in peeked(client)}
        assert left.keys() == {b"b", b"c"}
        assert left[b"b"].delivery_count == 1
        assert left[b"b"].application_properties == {"tried": True}
        assert left[b"c"].state == 1
        (dead,) = client.receiver(f"{queue}/$deadletterqueue").receive(timeout_s=10)
        assert dead.application_properties["DeadLetterReason"] == "bad"


def test_credit_is_taken_back_so_nothing_is_locked_for_nobody(server, new_queue, kind):
    with BusClient(settings_for(server, new_queue(kind))) as client:
        receiver = client.receiver()
        assert receiver.receive(10, timeout_s=0.05) == []
        client.sender().send([encode(b"later")])
        (message,) = client.receiver(deletes=True).receive(timeout_s=10)
        assert message.body == b"later"


def test_a_lock_that_ran_out_is_named(server, new_queue):
    with BusClient(settings_for(server, new_queue(Kind.PARTITIONED, Shape.BRIEF_LOCK))) as client:
        client.sender().send([encode(b"x")])
        receiver = client.receiver()
        (message,) = receiver.receive(timeout_s=10)
        (again,) = client.receiver().receive(timeout_s=20)  # when the lock has ended, and not before
        with pytest.raises(MessageLockLost):
            receiver.complete([message])
        assert again.delivery_count == 1


def test_tokens_are_renewed_while_a_connection_lives(server, new_queue):
    """Without that the server would close the link when the first token ends."""
    with BusClient(settings_for(server, new_queue(Kind.PARTITIONED), token_lifetime_s=6)) as client:
        sender = client.sender()
        sender.send([encode(b"x")])
        link, count = sender._link, 1
        ends_at = time.monotonic() + 8
        while time.monotonic() < ends_at:
            sender.send([encode(b"x")])
            count += 1
            time.sleep(0.1)
        assert sender.sent == count
        assert sender._link is link


def test_a_token_is_renewed_after_the_server_has_ended_the_links_for_tokens(server, new_queue):
    """Azure detaches links that were idle for ten minutes."""
    with BusClient(settings_for(server, new_queue(Kind.PARTITIONED), retries=1)) as client:
        sender = client.sender()
        sender.send([encode(b"x")])
        tokens, channel = client._claims, client._channel
        tokens._requests.heard(LinkDetached(tokens._requests._sending, IDLE, closed=True))
        tokens._renew_at = dict.fromkeys(tokens._renew_at, 0.0)
        sender.send([encode(b"x")])
        assert client._channel is channel
        assert min(tokens._renew_at.values()) > time.monotonic()


def test_tls_is_the_default(server, new_queue, kind):
    text = server.connection_string.replace(";UseDevelopmentEmulator=true", "")
    settings = ClientSettings.from_connection_string(text, entity=new_queue(kind))
    trusting = dataclasses.replace(settings, certificate=str(server.certificate), timeout_s=20.0)
    with BusClient(trusting) as client:
        client.sender().send([encode(b"s" * 100_000)])
        (message,) = client.receiver(deletes=True).receive(timeout_s=10)
        assert len(message.body) == 100_000
    with pytest.raises(Unauthorized, match="certificate"), BusClient(settings) as client:
        client.sender().send([encode(b"x")])


def test_a_connection_that_was_left_alone_for_long_is_found_usable(server, new_queue):
    """Nobody renewed the token meanwhile, and the server has ended the link."""
    with BusClient(settings_for(server, new_queue(Kind.PARTITIONED), token_lifetime_s=1)) as client:
        sender, receiver = client.sender(), client.receiver()
        sender.send([encode(b"a")])
        (first,) = receiver.receive(timeout_s=10)
        receiver.complete([first])
        wait_until_told(client)
        sender.send([encode(b"b")])
        (second,) = receiver.receive(timeout_s=10)
        assert second.body == b"b"


# -- refusals -------------------------------------------------------------------------


def test_a_wrong_key_is_refused(server, new_queue, kind):
    with BusClient(settings_for(server, new_queue(kind), key="wrong")) as client, pytest.raises(Unauthorized):
        client.sender().send([encode(b"x")])


def test_an_unknown_entity_is_refused(server):
    with BusClient(settings_for(server, "nowhere")) as client:
        with pytest.raises(EntityNotFound, match="nowhere"):
            client.sender().send([encode(b"x")])
        with pytest.raises(EntityNotFound, match="nowhere"):
            client.receiver().receive()
        with pytest.raises(EntityNotFound, match="nowhere"):
            client.management().request("com.microsoft:peek-message", {})


def test_no_entity_at_all_is_refused(server):
    with BusClient(settings_for(server)) as client, pytest.raises(ArgumentError, match="EntityPath"):
        client.sender()


def test_a_message_beyond_the_links_size_is_refused_before_it_is_sent(server, new_queue, kind):
    with BusClient(settings_for(server, new_queue(kind))) as client:
        sender = client.sender()
        with pytest.raises(MessageSizeExceeded):
            sender.send([encode(b"x" * 300_000)])
        sender.send([encode(b"x")])
        assert sender.sent == 1


def test_a_refused_batch_leaves_the_sender_usable(server, new_queue):
    with BusClient(settings_for(server, new_queue(Kind.PARTITIONED))) as client:
        sender = client.sender()
        with pytest.raises(InvalidOperation, match="PartitionKey"):
            sender.send([encode(b"a", partition_key="a"), encode(b"b", partition_key="b")])
        sender.send([encode(b"c")])
        assert [message.body for message in peeked(client)] == [b"c"]


def test_an_unknown_operation_is_refused(server, new_queue, kind):
    with (
        BusClient(settings_for(server, new_queue(kind))) as client,
        pytest.raises(NotSupported, match="dance"),
    ):
        client.management().request("bendybus:dance", {})


def test_nobody_there_is_a_lost_connection(server):
    settings = dataclasses.replace(
        settings_for(server, "q"), port=1, retries=1, retry_delay_s=0.01
    )  # port 1 is nobody's
    with BusClient(settings) as client, pytest.raises(ConnectionLost, match="cannot be reached"):
        client.sender().send([encode(b"x")])


# -- a server that goes and comes back ---------------------------------------------------


def test_a_sender_survives_the_servers_death(start_server: StartServer):
    server = start_server({"q": {"EnablePartitioning": True}})
    bodies = [b"%05d" % number + b"x" * 500 for number in range(20_000)]
    with BusClient(settings_for(server, "q", retries=30)) as client:
        sender = client.sender()
        sender.send([encode(bodies[0])])
        restarted = threading.Thread(target=lambda: (server.kill(), server.start()))
        for number in range(1, len(bodies), 500):
            if number == 5001:
                restarted.start()
            sender.post([encode(body) for body in bodies[number : number + 500]])
        sender.flush()
        restarted.join()
        receiver = client.receiver(deletes=True)
        found: set[bytes] = set()
        while some := receiver.receive(5000, timeout_s=1):
            found |= {message.body for message in some}
    assert found == set(bodies)


def test_requests_and_receivers_find_the_server_again(start_server: StartServer):
    server = start_server({"q": {}})
    with BusClient(settings_for(server, "q", retries=30)) as client:
        client.sender().send([encode(b"kept")])
        receiver = client.receiver()
        (message,) = receiver.receive(timeout_s=10)
        server.kill()
        server.start()
        assert [each.body for each in peeked(client)] == [b"kept"]
        with pytest.raises(MessageLockLost):
            receiver.complete([message])
        (again,) = receiver.receive(timeout_s=10)
        receiver.complete([again])
        assert peeked(client) == []
