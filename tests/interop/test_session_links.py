"""Links to sessions, frame by frame: what other SDKs rely on and Python's does not show."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, Modified, Rejected, Source
from bendybus.amqp.types import Array, Described, Int, Symbol, Timestamp, UInt, ULong
from fix_client import Client, Endpoint, LinkRefused
from fix_server import ServerProcess, namespace

FILTER = Symbol("com.microsoft:session-filter")
TIMEOUT = Symbol("com.microsoft:timeout")
LOCKED_UNTIL = "com.microsoft:locked-until-utc"

# How go describes a session filter.
DESCRIPTOR = ULong(0x137000000C)

# .NET ticks at the start of 2020 and of 2100.
TICKS_2020, TICKS_2100 = 637_134_336_000_000_000, 662_380_416_000_000_000

KINDS = ("plain", "parts")


@pytest.fixture(scope="module")
def _namespace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    properties = {"RequiresSession": True, "LockDuration": "PT5S", "MaxDeliveryCount": 5}
    queues = {
        f"{kind}-{number}": {**properties, "EnablePartitioning": kind == "parts"}
        for kind in ("plain", "parts")
        for number in range(13)
    }
    server = ServerProcess(tmp_path_factory.mktemp("server"), namespace(queues))
    server.start()
    yield server
    server.stop()
    server.refuse_trouble()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def unused() -> dict[str, Iterator[int]]:
    """The numbers of the queues, by kind, that no test has had yet."""
    return {kind: iter(range(13)) for kind in KINDS}


@pytest.fixture
def queue(kind: str, unused: dict[str, Iterator[int]]) -> str:
    """A queue of each kind that no other test uses."""
    return f"{kind}-{next(unused[kind])}"


@pytest.fixture
def endpoint(server: ServerProcess) -> Endpoint:
    return Endpoint.parse(server.connection_string)


def message(session_id: str | None, text: str = "x") -> bytes:
    return encode_message(properties=Properties(group_id=session_id), data=text.encode())


async def send(client: Client, queue: str, *messages: bytes) -> None:
    sender = await client.sender(queue)
    assert await sender.send(*messages) == [Accepted()] * len(messages)


def text(payload: bytes) -> str:
    return b"".join(decode_message(payload).data or ()).decode()


@pytest.mark.parametrize("described", [False, True])
@pytest.mark.parametrize("named", [False, True])
async def test_the_answer_names_the_session_in_the_shape_of_the_question(
    endpoint: Endpoint, queue: str, described: bool, named: bool
) -> None:
    async with await Client.connect(endpoint) as client:
        await send(client, queue, message("ada"))
        asked: object = "ada" if named else None
        if described:
            asked = Described(DESCRIPTOR, asked)
        receiver = await client.receiver(queue, filter={FILTER: asked}, credit=1)
        remote = receiver.link.remote
        assert remote is not None and isinstance(remote.source, Source)
        expected: object = Described(DESCRIPTOR, "ada") if described else "ada"
        assert remote.source.filter == {FILTER: expected}
        assert remote.source.address == queue
        until = (remote.properties or {})[LOCKED_UNTIL]
        assert type(until) is int
        assert TICKS_2020 < until < TICKS_2100
        (delivery,) = await receiver.receive()
        assert decode_message(delivery.payload).properties.group_id == "ada"
        assert await receiver.settled_as([delivery]) == [Accepted()]


async def test_an_attach_is_answered_when_there_is_a_session(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as client:
        receiver = client.attach_receiver(queue, await client.begin(), filter={FILTER: None})
        await send(client, queue, message("s", "one"), message("s", "two"))
        await receiver.attached()
        receiver.grant(5)
        assert [text(each.payload) for each in await receiver.receive(2)] == ["one", "two"]


async def test_nothing_free_is_a_timeout_and_a_wrong_filter_an_argument_error(
    endpoint: Endpoint, queue: str
) -> None:
    async with await Client.connect(endpoint) as client:
        with pytest.raises(LinkRefused) as late:
            await client.receiver(queue, filter={FILTER: None}, properties={TIMEOUT: UInt(50)})
        assert late.value.condition == "com.microsoft:timeout"
        for wrong in (Int(7), "x" * 129):
            with pytest.raises(LinkRefused) as refused:
                await client.receiver(queue, filter={FILTER: wrong})
            assert refused.value.condition == "com.microsoft:argument-error"
        with pytest.raises(LinkRefused) as refused:
            await client.receiver(f"{queue}/$DeadLetterQueue", filter={FILTER: "s"})
        assert refused.value.condition == "amqp:not-allowed"


async def test_who_stops_waiting_takes_no_session_with_it(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as client:
        gone = client.attach_receiver(queue, await client.begin(), filter={FILTER: None})
        gone.detach()
        stranger = await Client.connect(endpoint)
        stranger.attach_receiver(queue, await stranger.begin(), filter={FILTER: None})
        stranger.cut()
        await send(client, queue, message("s"))
        receiver = await client.receiver(queue, filter={FILTER: None}, credit=1)
        assert len(await receiver.receive()) == 1


@pytest.mark.row("P-28")
async def test_a_connection_that_is_cut_frees_its_sessions_uncounted(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as client:
        await send(client, queue, message("s", "one"), message("s", "two"))
        stranger = await Client.connect(endpoint)
        lost = await stranger.receiver(queue, filter={FILTER: "s"}, credit=1)
        await lost.receive()
        stranger.cut()
        # Waits in line until the server has seen the other go.
        receiver = await client.receiver(queue, filter={FILTER: None}, credit=2)
        deliveries = await receiver.receive(2)
        assert [text(each.payload) for each in deliveries] == ["one", "two"]
        counts = [decode_message(each.payload).header.delivery_count for each in deliveries]
        assert counts == [0, 0]


@pytest.mark.row("P-13")
async def test_abandoned_messages_come_again_before_later_ones(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as client:
        await send(client, queue, *(message("s", str(number)) for number in range(4)))
        receiver = await client.receiver(queue, filter={FILTER: "s"}, credit=2)
        first, second = await receiver.receive(2)
        await receiver.settled_as([second], Modified(delivery_failed=True))
        await receiver.settled_as([first], Modified(delivery_failed=True))
        receiver.grant(4)
        assert [text(each.payload) for each in await receiver.receive(4)] == ["0", "1", "2", "3"]


async def test_a_lock_that_runs_out_closes_the_link_and_frees_the_session(
    endpoint: Endpoint, queue: str
) -> None:
    async with await Client.connect(endpoint) as client:
        await send(client, queue, message("s"))
        receiver = await client.receiver(queue, filter={FILTER: "s"}, credit=1)
        await receiver.receive()
        error = await receiver.detached()
        assert error is not None
        assert error.condition == "com.microsoft:session-lock-lost"
        requester = await client.requester(f"{queue}/$management")
        for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
            reply = await requester.ask(f"com.microsoft:{operation}", {"session-id": "s"})
            assert reply.application_properties["statusCode"] == 410
            assert reply.application_properties["errorCondition"] == "com.microsoft:session-lock-lost"
        again = await client.receiver(queue, filter={FILTER: "s"}, credit=1)
        (delivery,) = await again.receive()
        assert decode_message(delivery.payload).header.delivery_count == 1


async def test_only_the_connection_that_holds_a_session_manages_it(endpoint: Endpoint, queue: str) -> None:
    async with await Client.connect(endpoint) as holder, await Client.connect(endpoint) as other:
        await holder.receiver(queue, filter={FILTER: "s"})
        mine = await holder.requester(f"{queue}/$management")
        theirs = await other.requester(f"{queue}/$management")
        body = {"session-id": "s"}
        renewed = await mine.ask("com.microsoft:renew-session-lock", body)
        assert isinstance(renewed.value, dict)
        assert type(renewed.value["expiration"]) is Timestamp
        refused = await theirs.ask("com.microsoft:renew-session-lock", body)
        assert refused.application_properties["statusCode"] == 410
        await mine.ask("com.microsoft:set-session-state", {**body, "session-state": b"x"})
        state = await mine.ask("com.microsoft:get-session-state", body)
        assert state.value == {"session-state": b"x"}
        page = {"last-updated-time": Timestamp(253402300800000), "skip": Int(0), "top": Int(100)}
        listed = await theirs.ask("com.microsoft:get-message-sessions", page)
        assert listed.value == {"skip": Int(1), "sessions-ids": Array(str, ["s"])}


@pytest.mark.row("P-13", "P-35")
async def test_a_link_speaks_for_the_session_that_it_holds(endpoint: Endpoint, queue: str) -> None:
    # go names in its requests for deferred messages and in its peeks the link and not the session.
    async with await Client.connect(endpoint) as client:
        await send(client, queue, message("s", "mine"), message("t", "another's"))
        receiver = await client.receiver(queue, filter={FILTER: "s"}, credit=1)
        (delivery,) = await receiver.receive()
        await receiver.settled_as([delivery], Modified(undeliverable_here=True))
        requester = await client.requester(f"{queue}/$management")
        link = {"associated-link-name": receiver.link.name}
        body = {"from-sequence-number": 0, "message-count": Int(10)}
        peeked = await requester.ask("com.microsoft:peek-message", body, **link)
        assert isinstance(peeked.value, dict)
        (found,) = peeked.value["messages"]
        assert text(found["message"]) == "mine"
        annotations = decode_message(found["message"]).message_annotations
        numbers = Array(int, [annotations["x-opt-sequence-number"]])
        body = {"sequence-numbers": numbers, "receiver-settle-mode": UInt(1)}
        taken = await requester.ask("com.microsoft:receive-by-sequence-number", body, **link)
        assert taken.application_properties["statusCode"] == 200
        unknown = await requester.ask(
            "com.microsoft:receive-by-sequence-number", body, **{"associated-link-name": "x"}
        )
        assert unknown.application_properties["statusCode"] == 400


async def test_a_message_without_a_session_is_rejected_and_those_around_it_are_not(
    endpoint: Endpoint, queue: str
) -> None:
    async with await Client.connect(endpoint) as client:
        sender = await client.sender(queue)
        # One write, so that the server reads them together.
        outcomes = await sender.send(message("s", "1"), message(None), message("s", "2"))
        assert [type(outcome) for outcome in outcomes] == [Accepted, Rejected, Accepted]
        refused = outcomes[1]
        assert isinstance(refused, Rejected) and refused.error is not None
        assert refused.error.condition == "amqp:not-allowed"
        receiver = await client.receiver(queue, filter={FILTER: "s"}, credit=2)
        assert [text(each.payload) for each in await receiver.receive(2)] == ["1", "2"]
