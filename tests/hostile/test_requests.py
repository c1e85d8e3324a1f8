"""Requests to `$management` and `$cbs`: malformed, too many, and never minded again."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, Modified, Rejected
from bendybus.amqp.types import Array, Int
from bendybus.gateway.attaching import TOKEN_SIZE_MAX
from fix_client import Client, Endpoint, Requester
from hostile.conftest import LARGEST_MESSAGE, Target, UnderAttack

PEEK = "com.microsoft:peek-message"
RECEIVE_DEFERRED = "com.microsoft:receive-by-sequence-number"
RENEW_LOCK = "com.microsoft:renew-lock"
UPDATE_DISPOSITION = "com.microsoft:update-disposition"
SCHEDULE = "com.microsoft:schedule-message"
CANCEL = "com.microsoft:cancel-scheduled-message"

LARGE = encode_message(data=b"x" * (LARGEST_MESSAGE - 200))


async def ask_without_end(requester: Requester, count: int, operation: str, body: object) -> None:
    """Requests one after the other, whatever the credit says and whatever was answered."""
    client, link = requester.sender.client, requester.sender.link
    for number in range(count):
        link._credit = 10  # the server's word on it is of no interest here
        requester.sender.post(requester.encode(body, {"operation": operation}), settled=True)
        if number % 50 == 0:
            client.flush()
            await asyncio.sleep(0)
    client.flush()


@pytest.mark.parametrize("reads", [True, False], ids=["gives no credit", "never reads"])
async def test_a_thousand_requests_whose_answers_nobody_takes_cost_little(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target, reads: bool
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender = await client.sender("peeked")
        assert await sender.send(*[LARGE] * 4) == [Accepted()] * 4
        requester = await client.requester("peeked/$management")
        if reads:
            requester.replies.grant(0)
        else:
            requester.replies.grant(2**31)
            client.transport.pause_reading()
        target.forget_peak()
        before = target.peak_mib
        # Each answer has 256 KB; all of them together, 250 MB.
        await ask_without_end(requester, 1000, PEEK, {"from-sequence-number": 0, "message-count": Int(5000)})
        await target.busy_for(rounds=50)
        assert target.peak_mib - before < 60
        if reads:
            # Who asks again and takes the answer gets it.
            requester.replies.waiting.clear()
            requester.replies.grant(2000)
            await requester.ask(PEEK, {"from-sequence-number": 0, "message-count": Int(1)})
        client.cut()


async def test_a_peek_reads_no_more_than_it_answers(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender = await client.sender("peeked")
        for _ in range(4):
            assert await sender.send(*[LARGE] * 60) == [Accepted()] * 60
        target.forget_peak()
        before = target.peak_mib
        requester = await client.requester("peeked/$management")
        answer = await requester.ask(PEEK, {"from-sequence-number": 0, "message-count": Int(5000)})
        assert isinstance(answer.value, dict) and len(answer.value["messages"]) == 1
        assert target.peak_mib - before < 20


async def test_one_deferred_message_asked_for_a_thousand_times_is_answered_once(
    under_attack: UnderAttack, endpoint: Endpoint, target: Target
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender = await client.sender("target")
        receiver = await client.receiver("target", credit=1)
        assert await sender.send(LARGE) == [Accepted()]
        deliveries = await receiver.receive()
        number = decode_message(deliveries[0].payload).message_annotations["x-opt-sequence-number"]
        await receiver.settled_as(deliveries, Modified(undeliverable_here=True))
        requester = await client.requester("target/$management")
        target.forget_peak()
        before = target.peak_mib
        asked = {"sequence-numbers": Array(int, [number] * 1000), "receiver-settle-mode": 0}
        answer = await requester.ask(RECEIVE_DEFERRED, asked)
        assert isinstance(answer.value, dict) and len(answer.value["messages"]) == 1
        assert target.peak_mib - before < 20


@pytest.mark.parametrize(
    ("operation", "body", "status", "condition"),
    [
        ("com.microsoft:make-coffee", {}, 501, "amqp:not-implemented"),
        ("", {}, 501, "amqp:not-implemented"),
        (PEEK, {}, 400, "com.microsoft:argument-error"),
        (PEEK, [1, 2, 3], 400, "com.microsoft:argument-error"),
        (PEEK, "text" * 1000, 400, "com.microsoft:argument-error"),
        (PEEK, {"from-sequence-number": True, "message-count": 1}, 400, "com.microsoft:argument-error"),
        (PEEK, {"from-sequence-number": "0" * 9999, "message-count": 1}, 400, "com.microsoft:argument-error"),
        (PEEK, {"from-sequence-number": 2**63 - 1, "message-count": 2**63 - 1}, 204, None),
        (PEEK, {"from-sequence-number": -(2**63), "message-count": -(2**63)}, 204, None),
        (RECEIVE_DEFERRED, {"sequence-numbers": []}, 400, "com.microsoft:argument-error"),
        (RECEIVE_DEFERRED, {"sequence-numbers": [None, {}]}, 400, "com.microsoft:argument-error"),
        (RECEIVE_DEFERRED, {"sequence-numbers": [-1, 2**63 - 1]}, 404, "com.microsoft:message-not-found"),
        (RENEW_LOCK, {"lock-tokens": [b"x" * 16]}, 400, "com.microsoft:argument-error"),
        (RENEW_LOCK, {"lock-tokens": [uuid4()] * 500}, 410, "com.microsoft:message-lock-lost"),
        (
            UPDATE_DISPOSITION,
            {"lock-tokens": [uuid4()], "disposition-status": "completed"},
            410,
            "com.microsoft:message-lock-lost",
        ),
        (
            UPDATE_DISPOSITION,
            {"lock-tokens": [uuid4()], "disposition-status": {"a": ["map"]}},
            410,
            "com.microsoft:message-lock-lost",
        ),
        (SCHEDULE, {"messages": []}, 400, "com.microsoft:argument-error"),
        (SCHEDULE, {"messages": ["no map"]}, 400, "com.microsoft:argument-error"),
        (SCHEDULE, {"messages": [{"message": "text"}]}, 400, "com.microsoft:argument-error"),
        (SCHEDULE, {"messages": [{"message": b"\x00\x53"}]}, 400, "com.microsoft:argument-error"),
        (CANCEL, {"sequence-numbers": [-1]}, 404, "com.microsoft:message-not-found"),
        (CANCEL, {"sequence-numbers": ["1"]}, 400, "com.microsoft:argument-error"),
    ],
)
async def test_a_request_that_makes_no_sense_is_answered_with_its_error(
    under_attack: UnderAttack,
    endpoint: Endpoint,
    operation: str,
    body: object,
    status: int,
    condition: str | None,
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        requester = await client.requester("other/$management")
        answer = await requester.ask(operation, body)
        assert answer.application_properties["statusCode"] == status
        assert answer.application_properties.get("errorCondition") == condition
        assert len(str(answer.application_properties["statusDescription"])) < 2000


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\x00\x53\x77",
        b"\x00\x53\x74\xc1\x04\x02\x40\x40",
        b"\x00\x53\x74\xc1\x03\x02\x41\x41",
        encode_message(value={"operation": "in the wrong place"}),
        encode_message(data=b"no value at all"),
        encode_message(
            properties=Properties(reply_to="replies"), application_properties={"operation": Int(1)}
        ),
        b"x" * 900_000,
    ],
    ids=lambda value: f"{len(value)} bytes",
)
async def test_a_malformed_request_is_rejected_or_answered_and_the_next_one_served(
    under_attack: UnderAttack, endpoint: Endpoint, request_: bytes
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        for node, operation in (("other/$management", PEEK), ("$cbs", "put-token")):
            requester = await client.requester(node)
            (outcome,) = await requester.sender.send(request_)
            if isinstance(outcome, Rejected):
                assert outcome.error is not None
                # No token is that long.
                too_large = node == "$cbs" and len(request_) > TOKEN_SIZE_MAX
                name = "amqp:link:message-size-exceeded" if too_large else "com.microsoft:argument-error"
                assert outcome.error.condition == name
            else:
                assert isinstance(outcome, Accepted)
                (reply,) = await requester.replies.receive()
                properties = decode_message(reply.payload).application_properties
                assert 400 in (properties.get("statusCode"), properties.get("status-code"))
            answer = await requester.ask(operation, {"from-sequence-number": 0, "message-count": Int(1)})
            assert answer.application_properties


async def test_a_client_that_asks_and_vanishes_leaves_nothing_behind(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack():
        for _ in range(20):
            client = await Client.connect(endpoint)
            requester = await client.requester("peeked/$management")
            await ask_without_end(requester, 30, PEEK, {"from-sequence-number": 0, "message-count": Int(10)})
            client.cut()


async def test_a_request_without_a_link_for_its_answer_is_dropped(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender = await client.sender("other/$management")
        body = {"from-sequence-number": 0, "message-count": Int(1)}
        message = encode_message(application_properties={"operation": PEEK}, value=body)
        assert await sender.send(*[message] * 10) == [Accepted()] * 10
