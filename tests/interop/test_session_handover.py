"""Sessions that are handed over, frame by frame: .NET's SDK asks for them since 7.21, and no other yet.

Premium alone has them, as on Azure.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from bendybus.amqp.message import DecodedMessage, Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, Source
from bendybus.amqp.types import Array, Described, Int, Symbol, ULong
from bendybus.engine.deliveries import Delivery
from fix_client import Client, Endpoint, LinkRefused, Receiver, Requester
from fix_server import ServerProcess, namespace
from set_ups import several_brokers

EXCLUSIVE = Symbol("com.microsoft:session-filter")
FILTER = Symbol("com.microsoft:non-exclusive-session-filter:list")
DESCRIPTOR = ULong(0x137000000E)
LOST = "com.microsoft:session-lock-lost"


@pytest.fixture(scope="module")
def premium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    queues = {f"queue-{number}": {"RequiresSession": True} for number in range(9)}
    server = ServerProcess(tmp_path_factory.mktemp("premium"), namespace(queues), ("--tier", "premium"))
    server.start()
    yield server
    server.stop()
    server.refuse_trouble()


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(9))


@pytest.fixture
def endpoint(premium: ServerProcess) -> Endpoint:
    return Endpoint.parse(premium.connection_string)


@pytest.fixture
def queue(numbers: Iterator[int]) -> str:
    """A queue that no other test uses."""
    return f"queue-{next(numbers)}"


def asking(session_id: str | None, token: uuid.UUID | None = None) -> dict[str, object]:
    return {FILTER: Described(DESCRIPTOR, [session_id, token])}


def given(receiver: Receiver) -> tuple[str, uuid.UUID]:
    """The session and the token in the answer to an attach, in the shape of the question."""
    remote = receiver.link.remote
    assert remote is not None and isinstance(remote.source, Source)
    assert remote.source.filter is not None
    ((name, described),) = remote.source.filter.items()
    assert name == FILTER
    assert isinstance(described, Described) and described.descriptor == DESCRIPTOR
    session_id, token = described.value
    assert isinstance(session_id, str) and isinstance(token, uuid.UUID)
    return session_id, token


async def send(client: Client, queue: str, *texts: str) -> None:
    sender = await client.sender(queue)
    messages = [encode_message(properties=Properties(group_id="s"), data=text.encode()) for text in texts]
    assert await sender.send(*messages) == [Accepted()] * len(messages)


def text(delivery: Delivery) -> str:
    return b"".join(decode_message(delivery.payload).data or ()).decode()


async def settle(
    requester: Requester, deliveries: list[Delivery], status: str = "completed", **properties: object
) -> DecodedMessage:
    """As the SDK does it for these sessions: by request, never on the link."""
    tokens = Array(uuid.UUID, [uuid.UUID(bytes_le=delivery.tag) for delivery in deliveries])
    body = {"lock-tokens": tokens, "disposition-status": status, "session-id": "s"}
    return await requester.ask("com.microsoft:update-disposition", body, **properties)


def refusal(reply: DecodedMessage) -> object:
    return reply.application_properties.get("errorCondition")


@pytest.mark.parametrize("same_connection", [False, True])
async def test_who_presents_the_token_takes_the_session_over(
    endpoint: Endpoint, queue: str, same_connection: bool
) -> None:
    async with await Client.connect(endpoint) as client, await Client.connect(endpoint) as other:
        second_client = client if same_connection else other
        await send(client, queue, "one", "two", "three")
        first = await client.receiver(queue, filter=asking("s"), credit=2)
        session_id, token = given(first)
        assert session_id == "s"
        handed_over = await first.receive(2)
        second = await second_client.receiver(queue, filter=asking("s", token), credit=5)
        assert given(second) == ("s", token)
        error = await first.detached()
        assert error is not None and error.condition == LOST
        # What the first has received is locked still; the second receives what comes after.
        (delivery,) = await second.receive()
        assert text(delivery) == "three"
        requester = await second_client.requester(f"{queue}/$management")
        link = {"associated-link-name": second.link.name}
        assert refusal(await settle(requester, [*handed_over, delivery], **link)) is None
        state = await requester.ask("com.microsoft:get-session-state", {"session-id": "s"}, **link)
        assert state.value == {"session-state": None}
        peeked = await requester.ask(
            "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": Int(9)}
        )
        assert peeked.application_properties["statusCode"] == 204


@pytest.mark.parametrize("same_connection", [False, True])
async def test_what_the_first_holder_does_afterwards_fails_with_a_lost_lock(
    endpoint: Endpoint, queue: str, same_connection: bool
) -> None:
    async with await Client.connect(endpoint) as client, await Client.connect(endpoint) as other:
        await send(client, queue, "one")
        first = await client.receiver(queue, filter=asking("s"), credit=1)
        deliveries = await first.receive()
        second_client = client if same_connection else other
        second = await second_client.receiver(queue, filter=asking("s", given(first)[1]), credit=5)
        if several_brokers():
            # The broker of the first holder is told a moment later.
            await first.detached()
        requester = await client.requester(f"{queue}/$management")
        link = {"associated-link-name": first.link.name}
        for status in ("completed", "abandoned", "defered", "suspended"):
            assert refusal(await settle(requester, deliveries, status, **link)) == LOST
        for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
            reply = await requester.ask(f"com.microsoft:{operation}", {"session-id": "s"}, **link)
            assert refusal(reply) == LOST
        assert not second.waiting
        mine = await second_client.requester(f"{queue}/$management")
        assert refusal(await settle(mine, deliveries, "abandoned")) is None
        (again,) = await second.receive()
        assert text(again) == "one"


async def test_a_token_that_is_wrong_or_old_is_refused(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as client:
        first = await client.receiver(queue, filter=asking("s"))
        _, token = given(first)
        for wanted in (asking("s", uuid.uuid4()), asking("s"), {EXCLUSIVE: "s"}, asking("t", token)):
            with pytest.raises(LinkRefused) as refused:
                await client.receiver(queue, filter=wanted)
            assert refused.value.condition == "com.microsoft:session-cannot-be-locked"
            assert str(token) not in str(refused.value)
        assert not first.is_gone
        first.detach()
        # A session that nobody holds has no token.
        with pytest.raises(LinkRefused) as refused:
            await client.receiver(queue, filter=asking("s", token))
        assert refused.value.condition == "com.microsoft:session-cannot-be-locked"
        fresh = await client.receiver(queue, filter=asking("s"))
        assert given(fresh)[1] != token


async def test_an_exclusive_session_is_not_handed_over(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as client:
        await client.receiver(queue, filter={EXCLUSIVE: "s"})
        for token in (None, uuid.uuid4(), uuid.UUID(int=0)):
            with pytest.raises(LinkRefused) as refused:
                await client.receiver(queue, filter=asking("s", token))
            assert refused.value.condition == "com.microsoft:session-cannot-be-locked"


async def test_the_next_session_can_be_asked_for_and_handed_over_again_and_again(
    endpoint: Endpoint, queue: str
) -> None:
    async with await Client.connect(endpoint) as client:
        waiting = client.attach_receiver(queue, await client.begin(), filter=asking(None))
        await send(client, queue, "one")
        await waiting.attached()
        holder = waiting
        session_id, token = given(holder)
        assert session_id == "s"
        for _ in range(3):
            following = await client.receiver(queue, filter=asking("S", token))
            error = await holder.detached()
            assert error is not None and error.condition == LOST
            holder = following
        holder.grant(1)
        assert text((await holder.receive())[0]) == "one"


async def test_messages_of_a_holder_that_leaves_come_again(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as client:
        await send(client, queue, "one", "two")
        first = await client.receiver(queue, filter=asking("s"), credit=2)
        await first.receive(2)
        second = await client.receiver(queue, filter=asking("s", given(first)[1]))
        second.detach()
        third = await client.receiver(queue, filter={EXCLUSIVE: None}, credit=2)
        assert [text(delivery) for delivery in await third.receive(2)] == ["one", "two"]


async def test_a_filter_that_makes_no_sense_is_refused(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as client:
        token = uuid.uuid4()
        both = {**asking("s"), EXCLUSIVE: "s"}
        wrong: list[object] = [None, "s", [None, token], [Int(1), None], ["s", "token"], ["s", token, 1]]
        for wanted in (both, *({FILTER: Described(DESCRIPTOR, value)} for value in wrong)):
            with pytest.raises(LinkRefused) as refused:
                await client.receiver(queue, filter=wanted)
            assert refused.value.condition == "com.microsoft:argument-error"
            assert str(token) not in str(refused.value)


async def test_other_tiers_do_not_have_them(server: ServerProcess) -> None:
    async with await Client.connect(Endpoint.parse(server.connection_string)) as client:
        with pytest.raises(LinkRefused) as refused:
            await client.receiver("usual-unpartitioned-0", filter=asking("s"))
        assert refused.value.condition == "amqp:not-implemented"
        assert "premium" in str(refused.value).lower()
