"""Messages that are too large, malformed or strange: each is answered for itself, and its link lives on."""

from __future__ import annotations

from uuid import UUID

import pytest

from bendybus.amqp.codec import encode
from bendybus.amqp.message import BATCH_FORMAT, Header, Properties, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, DeliveryState, Error, Modified, Rejected
from bendybus.amqp.types import Array, Described, Symbol, ULong
from fix_client import Client, Endpoint, Receiver, Sender
from hostile.conftest import LARGEST_MESSAGE, UnderAttack

QUEUES = ("plain", "parts")
SECTION = b"\x00\x53"

BAD_ARGUMENT, TOO_LARGE = "com.microsoft:argument-error", "amqp:link:message-size-exceeded"

GOOD = encode_message(properties=Properties(message_id="good"), data=b"good")


def condition_of(outcome: DeliveryState | None) -> str | None:
    assert isinstance(outcome, Rejected) and outcome.error is not None, outcome
    assert len(outcome.error.description or "") < 2000
    return outcome.error.condition


def nested(depth: int) -> object:
    value: object = "bottom"
    for level in range(depth):
        value = [value] if level % 2 else {"deeper": value}
    return value


async def both_ends(client: Client, queue: str) -> tuple[Sender, Receiver]:
    """A sender and a receiver at the queue, which is empty."""
    for address in (queue, f"{queue}/$DeadLetterQueue"):
        leftover = await client.receiver(address, deletes=True)
        await leftover.drain(1000)
    return await client.sender(queue), await client.receiver(queue, credit=100)


async def link_lives_on(sender: Sender, receiver: Receiver) -> None:
    """What follows a refused message on the same link is served."""
    assert await sender.send(GOOD) == [Accepted()]
    deliveries = await receiver.receive()
    assert decode_message(deliveries[0].payload).data == [b"good"]
    assert await receiver.settled_as(deliveries) == [Accepted()]


# -- too large ---------------------------------------------------------------------------


@pytest.mark.parametrize("size", [LARGEST_MESSAGE + 1, 257 * 1024, 1024 * 1024, 10 * 1024 * 1024])
@pytest.mark.parametrize("queue", QUEUES)
async def test_a_message_beyond_the_limit_is_rejected_and_the_link_lives_on(
    under_attack: UnderAttack, endpoint: Endpoint, queue: str, size: int
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, queue)
        assert sender.link.remote is not None
        assert sender.link.remote.max_message_size == LARGEST_MESSAGE
        overhead = len(encode_message(data=b"x" * 300)) - 300
        message = encode_message(data=b"x" * (size - overhead))
        assert len(message) == size
        (outcome,) = await sender.send(message)
        assert condition_of(outcome) == "amqp:link:message-size-exceeded"
        await link_lives_on(sender, receiver)


async def test_a_message_of_the_largest_size_goes_through_in_many_frames(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    # Frames as small as AMQP allows: over 500 of them each way.
    async with under_attack(), await Client.connect(endpoint, max_frame_size=512) as client:
        sender, receiver = await both_ends(client, "plain")
        body = bytes(range(256)) * (LARGEST_MESSAGE // 256 - 1)
        assert await sender.send(encode_message(data=body)) == [Accepted()]
        deliveries = await receiver.receive()
        assert decode_message(deliveries[0].payload).data == [body]
        assert await receiver.settled_as(deliveries) == [Accepted()]


@pytest.mark.parametrize(
    ("properties", "annotations", "condition"),
    [
        (Properties(message_id="i" * 129), None, BAD_ARGUMENT),
        (Properties(group_id="s" * 129), None, BAD_ARGUMENT),
        (None, {"x-opt-partition-key": "k" * 129}, BAD_ARGUMENT),
        # Beyond what all properties of a message may have, whatever they are.
        (None, {"x-opt-partition-key": "k" * 200_000}, TOO_LARGE),
        (None, {"x-opt-partition-key": ["no", "text"]}, BAD_ARGUMENT),
        (None, {"x-opt-partition-key": {"k" * 1000: "v" * 100_000}}, TOO_LARGE),
    ],
    ids=[
        "message id",
        "session id",
        "key",
        "endless key",
        "key of another type",
        "large key of another type",
    ],
)
async def test_a_key_that_cannot_be_one_is_rejected(
    under_attack: UnderAttack,
    endpoint: Endpoint,
    properties: Properties | None,
    annotations: dict[str, object] | None,
    condition: str,
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, "parts")
        (outcome,) = await sender.send(
            encode_message(properties=properties, message_annotations=annotations, data=b"x")
        )
        assert condition_of(outcome) == condition
        await link_lives_on(sender, receiver)


@pytest.mark.row("P-14")
async def test_two_keys_that_differ_are_an_invalid_operation(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, "parts")
        (outcome,) = await sender.send(
            encode_message(
                properties=Properties(group_id="one"),
                message_annotations={"x-opt-partition-key": "another"},
                data=b"x",
            )
        )
        assert condition_of(outcome) == "amqp:not-allowed"
        await link_lives_on(sender, receiver)


# -- malformed ---------------------------------------------------------------------------

MALFORMED = {
    "no section": b"\x40",
    "noise": bytes(range(1, 200)),
    "an unknown section": SECTION + b"\x99\x45",
    "a header that is no list": SECTION + b"\x70\xa1\x01x",
    "a header of the wrong types": SECTION + b"\x70\xc0\x05\x02\xa1\x01x\x41",
    "a header with too many fields": SECTION + b"\x70\xc0\x0a\x09" + b"\x40" * 9,
    "properties twice, around the body": encode_message(properties=Properties(message_id="m"), data=b"x")
    + encode_message(properties=Properties(message_id="m")),
    "two bodies": encode_message(data=b"x") + encode_message(value="x"),
    "a section that ends behind the message": SECTION + b"\x75\xb0\x7f\xff\xff\xff",
    "annotations with an odd count": SECTION + b"\x72\xc1\x04\x03\xa3\x01k" + SECTION + b"\x75\xa0\x01x",
    "annotations that end too soon": SECTION + b"\x72\xc1\x03\x02\xa3\x7f" + SECTION + b"\x75\xa0\x01x",
    "properties that end too soon": SECTION + b"\x73\xc0\x04\x0b\xa1\x7fx" + SECTION + b"\x75\xa0\x01x",
    "a value that ends too soon": SECTION + b"\x77\xd0\x00\x00\xff\xff\x00\x00\x00\x01",
    "a value nested too deep": SECTION + b"\x77" + b"\xd0\x00\x00\x03\x00\x00\x00\x00\x01" * 100,
    "annotations nested too deep": SECTION
    + b"\x72\xd1\x00\x00\x07\x10\x00\x00\x00\x02\xa3\x01k"
    + b"\xd0\x00\x00\x03\x00\x00\x00\x00\x01" * 200,
}


@pytest.mark.parametrize("message_format", [0, BATCH_FORMAT], ids=["alone", "in a batch"])
@pytest.mark.parametrize("message", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_message_is_rejected_and_stores_nothing(
    under_attack: UnderAttack, endpoint: Endpoint, message: bytes, message_format: int
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, "plain")
        payload = encode_message(data=[GOOD, message, GOOD]) if message_format else message
        (outcome,) = await sender.send(payload, message_format=message_format)
        assert condition_of(outcome) == "com.microsoft:argument-error"
        await link_lives_on(sender, receiver)


@pytest.mark.row("P-18")
@pytest.mark.parametrize(
    "batch",
    [
        b"",
        encode_message(properties=Properties(message_id="envelope")),
        encode_message(data=[]),
        encode_message(value="no data"),
        encode_message(data=[GOOD])[:-1],
    ],
    ids=["nothing", "an envelope", "no data", "a value", "cut off"],
)
@pytest.mark.parametrize("queue", QUEUES)
async def test_a_batch_without_whole_messages_is_rejected_as_a_whole(
    under_attack: UnderAttack, endpoint: Endpoint, queue: str, batch: bytes
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, queue)
        (outcome,) = await sender.send(batch, message_format=BATCH_FORMAT)
        assert condition_of(outcome) == "com.microsoft:argument-error"
        await link_lives_on(sender, receiver)


@pytest.mark.row("P-18")
async def test_a_batch_with_two_keys_is_an_invalid_operation_where_keys_matter(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, "parts")
        keyed = [encode_message(message_annotations={"x-opt-partition-key": key}, data=b"x") for key in "ab"]
        (outcome,) = await sender.send(encode_message(data=keyed), message_format=BATCH_FORMAT)
        assert condition_of(outcome) == "amqp:not-allowed"
        await link_lives_on(sender, receiver)


async def test_the_outcomes_of_good_and_bad_messages_sent_together_are_their_own(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, "parts")
        outcomes = await sender.send(*[GOOD, b"\x40"] * 20)
        assert [type(outcome) for outcome in outcomes] == [Accepted, Rejected] * 20
        assert await receiver.settled_as(await receiver.receive(20)) == [Accepted()] * 20


# -- strange, and to be passed on ----------------------------------------------------------

DEAD_LETTER = Rejected(Error("com.microsoft:dead-letter", None, {"DeadLetterReason": "strange"}))

STRANGE = {
    "nothing in it": encode_message(data=b""),
    "nothing at all": b"",
    "a value with more items than bytes": SECTION + b"\x77\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
    "an array of arrays of nothing": SECTION + b"\x77\xf0\x00\x00\x00\x05\xff\xff\xff\xff\xf0",
    "many annotations": encode_message(
        message_annotations={f"a{number}": number for number in range(5000)}, data=b"x"
    ),
    # Four bytes each: more than sixteen bits can count.
    "very many annotations": SECTION
    + b"\x72\xd1\x00\x03\xa9\x84\x00\x01\xd4\xc0"
    + b"\xa3\x01a\x40" * 60_000
    + SECTION
    + b"\x75\xa0\x01x",
    "large application properties": encode_message(
        application_properties={f"name {number}": "v" * 1000 for number in range(60)}, data=b"x"
    ),
    "nested application properties": encode_message(application_properties={"deep": nested(25)}, data=b"x"),
    "nested annotations": encode_message(message_annotations={"deep": nested(25)}, data=b"x"),
    "a nested value": encode_message(value=nested(25)),
    "every type of value": encode_message(
        value=[None, 1, 1.5, "text", b"octets", Symbol("s"), Array(int, [1]), Described(ULong(5), "x")]
    ),
    "a header of its own": encode_message(
        header=Header(durable=True, priority=255, ttl=2**32 - 1, delivery_count=99), data=b"x"
    ),
    "the broker's own annotations": encode_message(
        message_annotations={
            "x-opt-sequence-number": -1,
            "x-opt-lock-token": "mine",
            "x-opt-locked-until": "never",
            "x-opt-enqueued-time": [],
            "x-opt-message-state": 7,
        },
        data=b"x",
    ),
    "application properties that end too soon": SECTION
    + b"\x74\xc1\x03\x02\xa1\x7f"
    + SECTION
    + b"\x75\xa0\x01x",
    "application properties without text": SECTION + b"\x74\xc1\x03\x02\x41\x41" + SECTION + b"\x75\xa0\x01x",
    "application properties nested too deep": SECTION
    + b"\x74"
    + encode({"deep": None})[:-1].replace(b"\xc1\x08", b"\xc1\x97")
    + b"\xc0\x8f\x01" * 48
    + SECTION
    + b"\x75\xa0\x01x",
}


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("message", STRANGE.values(), ids=STRANGE.keys())
async def test_a_strange_message_harms_nobody_on_its_way_to_the_dead_letters(
    under_attack: UnderAttack, endpoint: Endpoint, queue: str, message: bytes
) -> None:
    """Taken or refused; taken, it can be received, abandoned, dead-lettered, received again and completed."""

    async def work() -> None:
        async with await Client.connect(endpoint) as client:
            sender, receiver = await both_ends(client, queue)
            (outcome,) = await sender.send(message)
            if outcome != Accepted():
                assert condition_of(outcome) in (BAD_ARGUMENT, TOO_LARGE)
                return
            deliveries = await receiver.receive()
            added = Modified(delivery_failed=True, message_annotations={"added": "by abandoning"})
            assert type((await receiver.settled_as(deliveries, added))[0]) is Modified
            again = await receiver.receive()
            assert await receiver.settled_as(again, DEAD_LETTER) == [Rejected()]
            dead = await client.receiver(f"{queue}/$DeadLetterQueue", credit=1)
            assert await dead.settled_as(await dead.receive()) == [Accepted()]
            await link_lives_on(sender, receiver)

    async with under_attack():
        await work()


TOO_LONG = "r" * 5000


@pytest.mark.parametrize(
    "outcome",
    [
        Rejected(Error("x", None, {"DeadLetterReason": TOO_LONG})),
        Rejected(Error("x", None, {"DeadLetterErrorDescription": TOO_LONG})),
        Rejected(Error("x", None, {"DeadLetterReason": "r", "mine": "v" * 100_000})),
        Modified(message_annotations={"mine": "v" * 100_000}),
        Modified(undeliverable_here=True, message_annotations={"mine": "v" * 100_000}),
    ],
    ids=["reason", "description", "with the reason", "with abandon", "with defer"],
)
async def test_a_settlement_with_more_to_say_than_is_kept_is_refused_and_the_lock_stays(
    under_attack: UnderAttack, endpoint: Endpoint, outcome: DeliveryState
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, "plain")
        await sender.send(encode_message(data=b"x"))
        deliveries = await receiver.receive()
        (answer,) = await receiver.settled_as(deliveries, outcome)
        assert condition_of(answer) == "com.microsoft:argument-error"
        # The delivery is settled on the link; the lock still serves the management node.
        token = UUID(bytes_le=deliveries[0].tag)
        requester = await client.requester("plain/$management")
        completed = await requester.ask(
            "com.microsoft:update-disposition",
            {"disposition-status": "completed", "lock-tokens": Array(UUID, [token])},
        )
        assert completed.application_properties["statusCode"] == 200
        await link_lives_on(sender, receiver)


async def test_what_is_said_in_many_settlements_of_one_message_is_bounded(
    under_attack: UnderAttack, endpoint: Endpoint
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, "plain")
        await sender.send(encode_message(data=b"x"))
        for number in range(4):
            said = Modified(message_annotations={f"{number}": "v" * 20_000})
            deliveries = await receiver.receive()
            (answer,) = await receiver.settled_as(deliveries, said)
            assert (type(answer) is Modified) == (number < 3)


@pytest.mark.parametrize(
    "outcome",
    [
        Rejected(Error("x" * 1000, "d" * 10_000, {"DeadLetterReason": ["no", "text"]})),
        Rejected(None),
        Modified(undeliverable_here=False, message_annotations={"deep": nested(25)}),
        Modified(undeliverable_here=False, message_annotations={"": None, "a" * 200: b"\x00" * 10_000}),
    ],
    ids=["a reason that is no text", "no reason", "nested properties", "strange properties"],
)
async def test_a_strange_settlement_harms_nobody(
    under_attack: UnderAttack, endpoint: Endpoint, outcome: DeliveryState
) -> None:
    async with under_attack(), await Client.connect(endpoint) as client:
        sender, receiver = await both_ends(client, "plain")
        await sender.send(encode_message(application_properties={"mine": 1}, data=b"x"))
        (answer,) = await receiver.settled_as(await receiver.receive(), outcome)
        assert type(answer) is type(outcome) and getattr(answer, "error", None) is None
        again = receiver
        if isinstance(outcome, Rejected):
            again = await client.receiver("plain/$DeadLetterQueue", credit=1)
        deliveries = await again.receive()
        assert decode_message(deliveries[0].payload).application_properties["mine"] == 1
        assert await again.settled_as(deliveries) == [Accepted()]
        await link_lives_on(sender, receiver)
