"""Sessions and links out of all measure, credit without end, peers that do not take what they ask for."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from bendybus.amqp.message import encode_message
from bendybus.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Rejected,
    Source,
    Transfer,
)
from bendybus.engine.config import ConnectionConfig
from fix_client import Client, Endpoint, LinkRefused
from hostile.conftest import LARGEST_MESSAGE, Target, UnderAttack
from hostile.stranger import BEGIN, Stranger, from_node, to_node

CONFIG = ConnectionConfig(container_id="")
CREDIT_MAX = 2**31

# What is left of the largest message for its body.
LARGE_BODY = b"x" * (LARGEST_MESSAGE - 200)
# More than the server keeps of payloads in memory, and far more than it may hold for one peer.
BACKLOG = 400


async def fill(endpoint: Endpoint, queue: str, count: int = BACKLOG) -> None:
    """About 100 MiB of messages."""
    async with await Client.connect(endpoint) as client:
        sender = await client.sender(queue)
        message = encode_message(data=LARGE_BODY)
        for _ in range(0, count, 50):
            assert await sender.send(*[message] * 50) == [Accepted()] * 50


# -- sessions ----------------------------------------------------------------------------


async def test_a_session_beyond_channel_max_closes_the_connection(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Stranger.open(endpoint) as stranger:
        for channel in range(CONFIG.channel_max + 2):
            stranger.send(channel, BEGIN)
        error = await stranger.farewell()
        assert error is not None and error.condition == "amqp:connection:framing-error"


async def test_a_second_begin_on_a_channel_closes_the_connection(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Stranger.begin(endpoint) as stranger:
        stranger.send(0, BEGIN)
        error = await stranger.farewell()
        assert error is not None and error.condition == "amqp:illegal-state"


async def test_a_frame_on_a_channel_without_a_session_closes_the_connection(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Stranger.begin(endpoint) as stranger:
        stranger.send(7, to_node("target"))
        error = await stranger.farewell()
        assert error is not None and error.condition == "amqp:not-allowed"


# -- links -------------------------------------------------------------------------------


async def test_a_link_beyond_handle_max_closes_the_connection(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Stranger.begin(endpoint) as stranger:
        # The 257th is one too many; those behind it are not read, and the farewell comes all the same.
        for handle in range(600):
            stranger.send(0, to_node("target", handle))
        error = await stranger.farewell()
        # "MUST close the connection with a framing-error error-code" [AMQP 2.7.2]
        assert error is not None and error.condition == "amqp:connection:framing-error"


async def test_links_beyond_a_connections_share_end_their_session(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Stranger.open(endpoint) as stranger:
        for channel in range(CONFIG.links_max // 256 + 1):
            stranger.send(channel, BEGIN)
            for handle in range(256):
                stranger.send(channel, to_node("target", handle))
            await stranger.drain()
        end = await stranger.expect(End)
        assert end.error is not None and end.error.condition == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize(
    ("second", "condition"),
    [
        (to_node("target", 0, "another"), "amqp:session:handle-in-use"),
        (to_node("target", 1, "to-target-0"), "amqp:not-allowed"),
    ],
    ids=["its handle", "its name"],
)
async def test_a_link_that_takes_anothers_place_ends_the_session(
    under_attack: UnderAttack, endpoint: Endpoint, second: Attach, condition: str
) -> None:
    async with under_attack(), await Stranger.attach(endpoint, to_node("target")) as stranger:
        stranger.send(0, second)
        end = await stranger.expect(End)
        assert end.error is not None and end.error.condition == condition


@pytest.mark.parametrize(
    "frame",
    [
        Transfer(handle=9, delivery_id=0, delivery_tag=b"t"),
        Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=9, link_credit=1),
        Detach(handle=9),
    ],
)
async def test_a_handle_without_a_link_ends_the_session(
    under_attack: UnderAttack, endpoint: Endpoint, frame: Transfer | Flow | Detach
) -> None:
    async with under_attack(), await Stranger.attach(endpoint, to_node("target")) as stranger:
        stranger.send(0, frame)
        end = await stranger.expect(End)
        assert end.error is not None and end.error.condition == "amqp:session:unattached-handle"
        # The connection goes on.
        stranger.send(5, BEGIN)
        await stranger.expect(Begin)


UNKNOWN = "The messaging entity 'sb://127.0.0.1/nowhere' could not be found."


@pytest.mark.parametrize(
    ("attach", "condition"),
    [
        (to_node("nowhere"), "amqp:not-found"),
        (from_node("nowhere"), "amqp:not-found"),
        (to_node("nowhere/$management"), "amqp:not-found"),
        (from_node("n" * 100_000), "amqp:unauthorized-access"),
        (to_node("target/$DeadLetterQueue"), "amqp:not-allowed"),
        (to_node("%00%ff/../..//"), "amqp:unauthorized-access"),
        (to_node(""), "com.microsoft:argument-error"),
        (
            Attach(name="no target", handle=0, role=SENDER, initial_delivery_count=0),
            "com.microsoft:argument-error",
        ),
        # Both mean entities of JMS clients, which only the premium tier has.
        (Attach(name="no source", handle=0, role=RECEIVER), "amqp:not-implemented"),
        (
            Attach(name="dynamic", handle=0, role=RECEIVER, source=Source(dynamic=True)),
            "amqp:not-implemented",
        ),
        (
            Attach(name="named", handle=0, role=RECEIVER, source=Source(address="target", dynamic=True)),
            "amqp:invalid-field",
        ),
    ],
    ids=lambda value: value.name[:30] if isinstance(value, Attach) else value,
)
async def test_an_attach_to_what_is_not_there_is_refused_and_the_session_goes_on(
    under_attack: UnderAttack, endpoint: Endpoint, attach: Attach, condition: str
) -> None:
    async with under_attack(), await Stranger.begin(endpoint) as stranger:
        stranger.send(0, attach)
        answer = await stranger.expect(Attach)
        assert answer.source is None and answer.target is None
        detach = await stranger.expect(Detach)
        assert detach.closed and detach.error is not None and detach.error.condition == condition
        assert len(detach.error.description or "") < 2000
        stranger.send(0, Detach(handle=attach.handle, closed=True))
        stranger.send(0, to_node("target", 1))
        assert (await stranger.expect(Attach)).target is not None


async def test_a_missing_entity_is_named_in_the_sentence_that_clients_look_for(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        with pytest.raises(LinkRefused) as refused:
            await client.sender("nowhere")
        assert refused.value.error is not None and refused.value.error.description == UNKNOWN


# -- sending without end -----------------------------------------------------------------


async def test_a_never_ending_delivery_is_counted_and_not_kept(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack(), await Stranger.attach(endpoint, to_node("target")) as stranger:
        before = target.peak_mib
        piece = b"x" * 200_000
        stranger.send(0, Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=True))
        for _ in range(1000):  # 200 MB
            stranger.send(0, Transfer(handle=0, more=True), piece)
            await stranger.drain()
        stranger.send(0, Transfer(handle=0, more=False), piece)
        answer = await stranger.expect(Disposition)
        assert isinstance(answer.state, Rejected) and answer.state.error is not None
        assert answer.state.error.condition == "amqp:link:message-size-exceeded"

        assert target.peak_mib - before < 20


async def test_deliveries_far_beyond_the_credit_detach_the_link(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Stranger.attach(endpoint, to_node("guarded")) as stranger:
        frames = (
            Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number, more=True, aborted=True)
            for number in range(30_000)
        )
        for frame in frames:
            # With some bytes in each, no single read holds more frames than the session's window.
            stranger.send(0, frame, bytes(150))
            if not frame.delivery_id or frame.delivery_id % 1000 == 0:
                await stranger.drain()
        detach = await stranger.expect(Detach)
        assert detach.error is not None
        assert detach.error.condition == "amqp:link:transfer-limit-exceeded"


async def test_a_transfer_on_a_receivers_link_detaches_it(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Stranger.attach(endpoint, from_node("target")) as stranger:
        stranger.send(0, Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), encode_message(data=b"x"))
        detach = await stranger.expect(Detach)
        assert detach.error is not None and detach.error.condition == "amqp:not-allowed"


# -- receiving without taking ------------------------------------------------------------


async def test_dispositions_for_deliveries_nobody_sent_are_passed_over(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Stranger.attach(endpoint, from_node("target")) as stranger:
        outcomes = (Accepted(), Rejected(), Modified(undeliverable_here=True), None)
        for role, settled, state in itertools.product((SENDER, RECEIVER), (True, False), outcomes):
            for first, last in ((0, None), (5, 5), (0, 2**32 - 1), (2**32 - 1, 3), (9, 2)):
                stranger.send(0, Disposition(role=role, first=first, last=last, settled=settled, state=state))
        stranger.send(1, BEGIN)
        answer = await stranger.next()
        assert isinstance(answer, Begin)


async def test_credit_of_two_thousand_million_is_served_as_far_as_there_is_something(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender = await client.sender("parts")
        messages = [encode_message(data=b"%d" % number) for number in range(3000)]
        receiver = await client.receiver("parts", credit=CREDIT_MAX)
        await sender.send(*messages)
        # Thousands are open at once; then they are settled in one go.
        deliveries = await receiver.receive(3000)
        assert set(await receiver.settled_as(deliveries)) == {Accepted()}


async def test_thousands_of_unsettled_deliveries_come_again_after_their_connection(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender = await client.sender("parts")
        await sender.send(*[encode_message(data=b"x")] * 2000)
        receiver = await client.receiver("parts", credit=CREDIT_MAX)
        deliveries = await receiver.receive(2000)
        # Outcomes one by one, last first, each in a disposition of its own.
        released = [receiver.settle([each], Modified(delivery_failed=True))[0] for each in deliveries[::-1]]
        await asyncio.wait(released)
        again = await receiver.receive(2000)
        assert set(await receiver.settled_as(again)) == {Accepted()}


async def test_a_receiver_that_never_reads_its_socket_holds_up_its_own_messages_only(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack():
        await fill(endpoint, "deaf")
        target.forget_peak()
        before = target.peak_mib
        async with await Client.connect(endpoint) as client:
            await client.receiver("deaf", credit=CREDIT_MAX)
            client.transport.pause_reading()
            await target.busy_for(rounds=50)
            # Two pages, and what the socket has taken.
            assert target.peak_mib - before < 40
            client.cut()


async def test_a_session_with_its_window_shut_holds_up_its_own_messages_only(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack():
        await fill(endpoint, "shut")
        target.forget_peak()
        before = target.peak_mib
        async with await Stranger.open(endpoint) as stranger:
            stranger.send(0, Begin(next_outgoing_id=0, incoming_window=0, outgoing_window=10))
            stranger.send(0, from_node("shut"))
            await stranger.expect(Attach)
            stranger.send(
                0,
                Flow(
                    next_incoming_id=0,
                    incoming_window=0,
                    next_outgoing_id=0,
                    outgoing_window=10,
                    handle=0,
                    delivery_count=0,
                    link_credit=CREDIT_MAX,
                ),
            )
            await target.busy_for(rounds=50)
            assert target.peak_mib - before < 40
            # The window opens, without a word about the link: everything comes.
            for seen in range(0, BACKLOG * 3, 100):
                stranger.send(
                    0,
                    Flow(next_incoming_id=seen, incoming_window=100, next_outgoing_id=0, outgoing_window=10),
                )
            received = 0
            while received < BACKLOG:
                received += not (await stranger.expect(Transfer)).more


async def test_a_sender_that_never_reads_its_outcomes_is_not_read_for_ever(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack(), await Stranger.attach(endpoint, to_node("target")) as stranger:
        stranger.writer.transport.pause_reading()
        before = target.peak_mib
        message = encode_message(data=b"x")
        # Every second number, so that no two outcomes are told in one range.
        for number in range(20_000):
            stranger.send(0, Transfer(handle=0, delivery_id=2 * number, delivery_tag=b"t"), message)
            if number % 500 == 0:
                await asyncio.sleep(0)
        await target.busy_for(rounds=50)
        assert target.peak_mib - before < 40
