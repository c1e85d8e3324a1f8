"""Requests to `$management`, by a raw client: what some SDKs ask and Python's does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from bendybus.amqp.message import DecodedMessage, Properties, decode_message, encode_message
from bendybus.amqp.types import Described, Int, Symbol, ULong
from fix_client import Client, Endpoint
from fix_server import ServerProcess, namespace

KINDS = ("plain", "parts")
SESSION_FILTER = Symbol("com.microsoft:session-filter")


@pytest.fixture(scope="module")
def _namespace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    queues: dict[str, dict[str, object]] = {}
    for kind in KINDS:
        queues[f"{kind}-queue"] = {"EnablePartitioning": kind == "parts"}
        queues[f"{kind}-sessions"] = {"EnablePartitioning": kind == "parts", "RequiresSession": True}
    topics = [
        {
            "Name": f"{kind}-topic",
            "Properties": {"EnablePartitioning": kind == "parts"},
            "Subscriptions": [{"Name": "s", "Properties": {}}],
        }
        for kind in KINDS
    ]
    server = ServerProcess(tmp_path_factory.mktemp("server"), namespace(queues, None, topics))
    server.start()
    yield server
    server.stop()
    server.refuse_trouble()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(server: ServerProcess, loop_runner: asyncio.Runner) -> Iterator[Client]:
    client = loop_runner.run(Client.connect(Endpoint.parse(server.connection_string)))
    yield client
    loop_runner.run(client.close())


def value_of(answer: DecodedMessage) -> Any:
    assert answer.application_properties.get("statusCode") in (200, 204), answer.application_properties
    return answer.value


async def test_a_peek_may_leave_out_the_bodies(client: Client, kind: str) -> None:
    queue = f"{kind}-queue"
    sent = encode_message(
        properties=Properties(message_id="m"),
        application_properties={"a": 1},
        data=b"x" * 1000,
        footer={"x-f": 1},
    )
    await (await client.sender(queue)).send(sent)
    requester = await client.requester(f"{queue}/$management")

    async def peek(**more: object) -> DecodedMessage:
        body = {"from-sequence-number": 0, "message-count": Int(5)}
        for name, value in more.items():
            body[name.replace("_", "-")] = value
        (entry,) = value_of(await requester.ask("com.microsoft:peek-message", body))["messages"]
        return decode_message(entry["message"])

    bodiless = await peek(omit_message_body=True)
    assert (bodiless.data, bodiless.value, bodiless.sequence) == ([], None, [])
    assert bodiless.delivery_annotations["omitted-message-body-size"] >= 1000
    assert (bodiless.application_properties, bodiless.footer) == ({"a": 1}, {"x-f": 1})
    for whole in (await peek(), await peek(omit_message_body=False)):
        assert whole.data == [b"x" * 1000]
        assert whole.delivery_annotations == {}
    wrong = {"from-sequence-number": 0, "message-count": Int(5), "omit-message-body": "yes"}
    refused = await requester.ask("com.microsoft:peek-message", wrong)
    assert refused.application_properties["statusCode"] == 400


@pytest.mark.parametrize("cleared", [None, b""], ids=["null", "empty"])
async def test_a_state_that_was_cleared_reads_as_null(
    client: Client, kind: str, cleared: bytes | None
) -> None:
    queue = f"{kind}-sessions"
    await client.receiver(queue, filter={SESSION_FILTER: f"s-{cleared!r}"})
    requester = await client.requester(f"{queue}/$management")
    session = {"session-id": f"s-{cleared!r}"}
    for state, seen in ((b"hello", b"hello"), (cleared, None)):
        await requester.ask("com.microsoft:set-session-state", {**session, "session-state": state})
        answer = value_of(await requester.ask("com.microsoft:get-session-state", session))
        assert answer == {"session-state": seen}


async def test_rules_are_enumerated_in_the_order_of_their_names(client: Client, kind: str) -> None:
    requester = await client.requester(f"{kind}-topic/subscriptions/s/$management")
    for name in ("zebra", "Ape", "mouse"):
        rule = {"sql-filter": {"expression": "a = 1"}}
        body = {"rule-name": name, "rule-description": rule}
        assert value_of(await requester.ask("com.microsoft:add-rule", body)) is not None

    async def names(skip: int, top: int) -> list[object]:
        body = {"skip": Int(skip), "top": Int(top)}
        answer = value_of(await requester.ask("com.microsoft:enumerate-rules", body))
        return [name_of(each) for each in (answer or {}).get("rules", [])]

    expected = ["$Default", "Ape", "mouse", "zebra"]
    assert await names(0, 2**31 - 1) == expected
    assert [name for skip in range(5) for name in await names(skip, 1)] == expected


def name_of(rule: dict[str, object]) -> object:
    described = rule["rule-description"]
    assert isinstance(described, Described) and described.descriptor == ULong(0x13700000004)
    assert isinstance(described.value, list)
    return described.value[2]
