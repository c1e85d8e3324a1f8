"""What a client without a key may have: little of everything, and half a minute to bring a token."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress

import pytest

from bendybus.amqp.frames import AMQP_HEADER, SASL, SASL_HEADER, encode_frame
from bendybus.amqp.message import encode_message
from bendybus.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    Rejected,
    SaslInit,
    Transfer,
)
from bendybus.auth.sas import make_token
from fix_client import Client, Endpoint, LinkRefused, Requester
from hostile.conftest import Target, UnderAttack
from hostile.stranger import BEGIN, Stranger, from_node, to_node

RESOURCE_LIMIT = "amqp:resource-limit-exceeded"

# What a connection may have before a token is accepted: docs/guides/security.md.
SESSIONS_MAX = 256
LINKS_MAX = 16
TOKEN_SIZE_MAX = 64 * 1024


async def unproved(endpoint: Endpoint) -> Stranger:
    """Opened without a login, with a session on channel 0."""
    stranger = await Stranger.call(endpoint)
    init = SaslInit("ANONYMOUS", b"", endpoint.host)
    stranger.write(SASL_HEADER + encode_frame(0, init, frame_type=SASL) + AMQP_HEADER)
    stranger.send(0, Open(container_id="stranger", hostname=endpoint.host, max_frame_size=1 << 20))
    stranger.send(0, BEGIN)
    await stranger.expect(Begin)
    return stranger


async def put(requester: Requester, endpoint: Endpoint, entity: str, *, key: str | None = None) -> int:
    """Put a token; the status."""
    audience = f"sb://{endpoint.host}/{entity}"
    token = make_token(audience, endpoint.key_name, key or endpoint.key, int(time.time()) + 600)
    answer = await requester.ask("put-token", token, name=audience, type="servicebus.windows.net:sastoken")
    status = answer.application_properties["status-code"]
    assert isinstance(status, int)
    return status


async def test_a_connection_has_one_link_each_way_to_cbs(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        requester = await client.requester("$cbs")

        async def refuses_more() -> None:
            for another in (client.sender, client.receiver):
                with pytest.raises(LinkRefused) as refused:
                    await another("$cbs")
                # By this condition Go's SDK knows that it must connect again.
                assert refused.value.condition == "amqp:not-allowed"
                assert "$cbs node has already been opened" in str(refused.value)

        await refuses_more()
        # The pair that there is goes on.
        assert await put(requester, endpoint, "other", key="wrong") == 401
        assert await put(requester, endpoint, "other") == 202
        await refuses_more()


async def test_a_closed_link_to_cbs_makes_room_for_the_next(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    # Go's SDK opens a session with both links for every token, and closes it again.
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        for _ in range(5):
            requester = await client.requester("$cbs")
            assert await put(requester, endpoint, "other", key="wrong") == 401
            session = requester.sender.link.session
            session.end()
            client.flush()
            await client.session_ended(session)


async def test_an_entity_is_refused_as_unauthorized_before_a_token_and_open_after_it(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        requester = await client.requester("$cbs")
        for _ in range(LINKS_MAX + 1):
            with pytest.raises(LinkRefused) as refused:
                await client.sender("other")
            assert refused.value.condition == "amqp:unauthorized-access"
        assert await put(requester, endpoint, "other") == 202
        sender = await client.sender("other")
        assert await sender.send(encode_message(data=b"x")) == [Accepted()]


async def test_a_token_lifts_the_limits_of_sessions_and_links(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        # As Java's SDK does: the sessions of its entities first, then the one for tokens.
        sessions = [await client.begin() for _ in range(100)]
        assert await put(await client.requester("$cbs"), endpoint, "other") == 202
        sessions += [await client.begin() for _ in range(SESSIONS_MAX)]
        for session in sessions[: 3 * LINKS_MAX]:
            await client.sender("other", session)


async def test_sessions_beyond_those_of_any_client_cost_a_stranger_its_connection(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await unproved(endpoint) as stranger:
        for channel in range(1, SESSIONS_MAX + 1):
            stranger.send(channel, BEGIN)
        error = await stranger.farewell()
        assert error is not None and error.condition == RESOURCE_LIMIT


async def test_refused_links_that_are_never_detached_cost_a_stranger_its_session(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await unproved(endpoint) as stranger:
        for handle in range(LINKS_MAX + 1):
            stranger.send(0, to_node("other", handle))
        end = await stranger.expect(End)
        assert end.error is not None and end.error.condition == RESOURCE_LIMIT


async def test_half_deliveries_to_cbs_take_no_memory(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack():
        target.forget_peak()
        before = target.peak_mib
        async with await unproved(endpoint) as stranger:
            piece = b"x" * 200_000
            for channel in range(1, 20):
                stranger.send(channel, BEGIN)
                for handle in range(4):
                    stranger.send(channel, to_node("$cbs", handle))
                    for number in range(4):
                        first = number == 0
                        part = Transfer(
                            handle=handle,
                            delivery_id=handle if first else None,
                            delivery_tag=b"t" if first else None,
                            more=True,
                        )
                        stranger.send(channel, part, piece)
                await stranger.drain()
            await target.busy_for(rounds=20)
        assert target.peak_mib - before < 20


async def test_a_token_beyond_64_kb_is_refused_by_name(under_attack: UnderAttack, endpoint: Endpoint) -> None:
    async with under_attack(), await Client.connect(endpoint, login=False) as client:
        requester = await client.requester("$cbs")
        message = encode_message(
            application_properties={"operation": "put-token"}, value="x" * TOKEN_SIZE_MAX
        )
        (outcome,) = await requester.sender.send(message)
        assert isinstance(outcome, Rejected) and outcome.error is not None
        assert outcome.error.condition == "amqp:link:message-size-exceeded"
        assert await put(requester, endpoint, "other") == 202


async def test_the_size_of_a_link_to_cbs_is_told(under_attack: UnderAttack, endpoint: Endpoint) -> None:
    async with under_attack(), await unproved(endpoint) as stranger:
        stranger.send(0, to_node("$cbs"))
        answer = await stranger.expect(Attach)
        assert answer.max_message_size == TOKEN_SIZE_MAX


# -- floods ----------------------------------------------------------------------------------

FLOW = Flow(next_incoming_id=0, incoming_window=5000, next_outgoing_id=0, outgoing_window=5000, echo=True)
BAD_TOKEN = encode_message(
    application_properties={"operation": "put-token", "name": "sb://host/other"},
    value="SharedAccessSignature sr=sb%3A%2F%2Fhost%2Fother&sig=AAAA&se=9999999999&skn=Nobody",
)
FLOODS = {
    "flows": encode_frame(0, FLOW),
    "refused attaches": encode_frame(0, to_node("other", 5)) + encode_frame(0, Detach(handle=5, closed=True)),
    "begin and end": encode_frame(7, BEGIN) + encode_frame(7, End()),
    "bad tokens": encode_frame(
        0, Transfer(handle=0, delivery_id=0, delivery_tag=b"t", settled=True), BAD_TOKEN
    ),
}


async def flood(stranger: Stranger, piece: bytes) -> None:
    """Send the same again and again, as fast as the server takes it.

    Past the stranger's transport, which would forget the server's last word when it can send no more.
    """
    pieces = piece * (1 + 65_536 // len(piece))
    with socket.socket(fileno=os.dup(stranger.writer.get_extra_info("socket").fileno())) as sending:
        sending.setblocking(False)
        with suppress(OSError):
            while True:
                await asyncio.get_running_loop().sock_sendall(sending, pieces)


async def last_word(stranger: Stranger) -> Close | None:
    """The server's close, once it has come."""
    while (performative := await stranger.next()) is not None:
        if isinstance(performative, Close):
            return performative
    return None


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_stranger_that_floods_is_dropped_by_name_and_the_others_are_served_meanwhile(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target, kind: str
) -> None:
    async with under_attack(), await unproved(endpoint) as stranger:
        stranger.send(0, from_node("$cbs", 1))
        stranger.send(0, to_node("$cbs", 0))
        await stranger.expect(Attach)
        closing = asyncio.ensure_future(last_word(stranger))
        flooding = asyncio.ensure_future(flood(stranger, FLOODS[kind]))
        try:
            await target.busy_for(rounds=1)
            assert not closing.done(), "the bystander was served only after the flood"
            close = await closing
            assert close is not None and close.error is not None
            assert close.error.condition == RESOURCE_LIMIT
        finally:
            flooding.cancel()


async def test_a_client_with_a_key_that_floods_does_not_hold_up_the_others(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack(), await Stranger.begin(endpoint) as client:
        flooding = asyncio.ensure_future(flood(client, FLOODS["flows"]))
        listening = asyncio.ensure_future(client.hung_up())
        await target.busy_for(rounds=10)
        assert not flooding.done() and not listening.done()
        flooding.cancel()
        listening.cancel()


async def test_a_newcomer_is_let_in_while_strangers_flood(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack():
        strangers = [await unproved(endpoint) for _ in range(10)]
        closings = [asyncio.ensure_future(last_word(stranger)) for stranger in strangers]
        floods = [asyncio.ensure_future(flood(stranger, FLOODS["flows"])) for stranger in strangers]
        async with await Client.connect(endpoint, login=False) as newcomer:
            assert await put(await newcomer.requester("$cbs"), endpoint, "other") == 202
            assert not all(closing.done() for closing in closings)
        for task in (*floods, *closings):
            task.cancel()
        for stranger in strangers:
            await stranger.__aexit__()


# -- over WebSocket --------------------------------------------------------------------------

UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
NO_MASK = b"\0\0\0\0"
POLICY_VIOLATION = 1008


@pytest.mark.parametrize(
    "frame",
    [b"\x82\x80" + NO_MASK, b"\x89\x80" + NO_MASK, b"\x8a\x80" + NO_MASK],
    ids=["empty messages", "pings", "pongs"],
)
async def test_a_flood_of_frames_without_content_is_closed_by_name(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target, frame: bytes
) -> None:
    async with under_attack(), await Stranger.call(endpoint) as stranger:
        stranger.write(UPGRADE)
        await stranger.reader.readuntil(b"\r\n\r\n")
        flooding = asyncio.ensure_future(flood(stranger, frame))
        said = asyncio.ensure_future(stranger.hung_up())
        await target.busy_for(rounds=3)
        answer = await said
        flooding.cancel()
        # A close frame: its code, then the reason. Pongs may stand before it.
        position = answer.index(POLICY_VIOLATION.to_bytes(2))
        assert b"pings and empty messages" in answer[position:]


async def test_a_stranger_that_sends_amqp_in_tiny_messages_is_dropped_by_name(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack(), await Stranger.call(endpoint) as stranger:
        stranger.write(UPGRADE)
        await stranger.reader.readuntil(b"\r\n\r\n")
        init = SaslInit("ANONYMOUS", b"", endpoint.host)
        opened = Open(container_id="stranger".ljust(200), hostname=endpoint.host)
        hello = SASL_HEADER + encode_frame(0, init, frame_type=SASL) + AMQP_HEADER + encode_frame(0, opened)
        stranger.write(b"\x82\xfe" + len(hello).to_bytes(2) + NO_MASK + hello)
        # Half of a heartbeat in each message.
        flooding = asyncio.ensure_future(
            flood(stranger, b"\x82\x84" + NO_MASK + b"\0\0\0\x08" + b"\x82\x84" + NO_MASK + b"\x02\0\0\0")
        )
        answer = await stranger.hung_up()
        flooding.cancel()
        assert RESOURCE_LIMIT.encode() in answer


# -- over HTTP -------------------------------------------------------------------------------

# What leaves a stranger that reads no answers: the requests whose answers fit into the server's socket, and
# what the server's socket holds unread. Both together were 1.5 MB of the 8.2 MB here; Linux decides how large
# a socket's buffers grow.
SENT_AHEAD_MAX = 4 * 1024 * 1024


async def test_requests_that_are_sent_ahead_are_not_read_before_the_first_is_answered(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack():
        target.forget_peak()
        before = target.peak_mib
        async with await Stranger.call_with_small_buffers(endpoint, 16 * 1024) as stranger:
            # Nothing is read of the answers, so after a while nothing of the requests is read either.
            stranger.writer.transport.pause_reading()
            requests = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200_000
            stranger.write(requests)
            left, before_that = len(requests), -1
            while left != before_that:
                await target.busy_for(rounds=20)
                left, before_that = stranger.writer.transport.get_write_buffer_size(), left
            taken = len(requests) - left
            assert taken < SENT_AHEAD_MAX, "more was read than could be answered"
            assert target.peak_mib - before < 20


# -- the log ---------------------------------------------------------------------------------


async def test_nothing_that_a_stranger_names_forges_a_line_of_the_log(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    forged = "2026-01-01 00:00:00,000 INFO bendybus.auth: everybody is let in"
    name = f"x'\r\n{forged}\n\x1b]0;title\x07\x1b[2J\u2028\u202e"

    async def name_everything() -> str:
        async with await unproved(endpoint) as stranger:
            stranger.send(0, to_node("other", 0, name=name))
            stranger.send(0, to_node(f"other{name}", 1))
            await stranger.expect(Detach)
            await stranger.expect(Detach)
        async with await Client.connect(endpoint, login=False) as client:
            requester = await client.requester("$cbs")
            token = f"SharedAccessSignature sr=sb%3A%2F%2Fhost&sig=AAAA&se=9999999999&skn=Root{name}"
            await requester.ask("put-token", token, name=f"sb://{name}/other", type=name)
            await requester.ask(f"other{name}", token)
        return target.process.log.read_bytes().decode()

    async with under_attack():
        # A test before this one may have written as many lines of a kind as are written in ten seconds.
        while "everybody is let in" not in (log := await name_everything()):
            await asyncio.sleep(1)
    assert not any(line.startswith(forged) for line in log.splitlines())
    assert not set(log) & set("\r\x07\x1b\u2028\u202e")


async def test_a_flood_of_refusals_is_counted_in_the_log_and_not_written(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    length = len(target.process.log.read_bytes())
    async with under_attack(), await unproved(endpoint) as stranger:
        closing = asyncio.ensure_future(last_word(stranger))
        flooding = asyncio.ensure_future(flood(stranger, FLOODS["refused attaches"]))
        await closing
        flooding.cancel()

    assert len(target.process.log.read_bytes()) - length < 20_000
