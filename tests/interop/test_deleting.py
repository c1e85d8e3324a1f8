"""Batch delete through `$management`, by a raw client: the Python SDK has no call for it (B-01)."""

from __future__ import annotations

import pytest

from bendybus.amqp.message import DecodedMessage, Properties, encode_message
from bendybus.amqp.types import Int, Timestamp
from bendybus.broker.clock import now
from fix_client import Client, Endpoint, Requester
from fix_rows import on_kind, use_entity
from fix_server import StartServer

OPERATION = "com.microsoft:batch-delete-messages"


async def send(client: Client, queue: str, number: int) -> None:
    sender = await client.sender(queue)
    await sender.send(
        *(encode_message(properties=Properties(message_id=str(each)), data=b"x") for each in range(number))
    )


async def delete(requester: Requester, number: int, before: int | None = None) -> DecodedMessage:
    cutoff = Timestamp(now() + 1000 if before is None else before)
    return await requester.ask(OPERATION, {"message-count": Int(number), "enqueued-time-utc": cutoff})


@pytest.mark.row("B-01")
@pytest.mark.parametrize(
    ("partitioned", "options"),
    [
        on_kind(1, False, (), id="1"),
        on_kind(16, True, (), id="16"),
        on_kind(2, True, ("--tier", "premium"), id="2"),
    ],
)
async def test_messages_are_deleted_over_all_partitions(
    start_server: StartServer, partitioned: bool, options: tuple[str, ...]
) -> None:
    server = start_server({"q": {"EnablePartitioning": partitioned}}, None, *options)
    use_entity(server, "q")

    async with await Client.connect(Endpoint.parse(server.connection_string)) as client:
        await send(client, "q", 50)
        requester = await client.requester("q/$management")
        assert (await delete(requester, 20)).value == {"message-count": 20}
        assert (await delete(requester, 100, before=1)).application_properties["statusCode"] == 204
        assert (await delete(requester, 100)).value == {"message-count": 30}
        assert (await delete(requester, 100)).application_properties["statusCode"] == 204


async def test_a_nonsensical_count_is_refused_by_name(start_server: StartServer) -> None:
    async with await Client.connect(Endpoint.parse(start_server({"q": {}}).connection_string)) as client:
        requester = await client.requester("q/$management")
        for number in (0, -1):
            reply = await delete(requester, number)
            assert reply.application_properties["errorCondition"] == "com.microsoft:argument-error"


async def test_one_session_s_messages_are_deleted_and_no_other_s(start_server: StartServer) -> None:
    server = start_server({"q": {"EnablePartitioning": True, "RequiresSession": True}})

    async with await Client.connect(Endpoint.parse(server.connection_string)) as client:
        sender = await client.sender("q")
        await sender.send(
            *(encode_message(properties=Properties(group_id=f"s{each % 2}"), data=b"x") for each in range(10))
        )
        requester = await client.requester("q/$management")
        body = {"message-count": Int(100), "enqueued-time-utc": Timestamp(now() + 1000), "session-id": "s1"}
        assert (await requester.ask(OPERATION, body)).value == {"message-count": 5}
        assert (await requester.ask(OPERATION, body)).application_properties["statusCode"] == 204
        assert (await delete(requester, 100)).value == {"message-count": 5}
