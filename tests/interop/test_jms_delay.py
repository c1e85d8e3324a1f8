"""The delivery delay of JMS: annotations that schedule a message, as JMS clients write them."""

from __future__ import annotations

import time

import pytest

from bendybus.amqp.message import Header, decode_message, encode_message
from bendybus.amqp.performatives import Accepted, Rejected
from bendybus.amqp.types import Symbol, Timestamp
from fix_client import Client, Endpoint
from fix_jms import text_of
from fix_kinds import SdkBus, on_each_kind


def delayed(text: str, header: Header | None = None, **annotations: object) -> bytes:
    named = {Symbol(name.replace("_", "-")): value for name, value in annotations.items()}
    return encode_message(header=header, message_annotations=named, data=text.encode())


def soon(milliseconds: int) -> int:
    return int(time.time() * 1000) + milliseconds


@on_each_kind
async def test_a_message_comes_when_its_delivery_time_has_come(bus: SdkBus) -> None:
    queue = bus.queue()
    async with await Client.connect(Endpoint.parse(bus.server.connection_string)) as client:
        sender, receiver = await client.sender(queue), await client.receiver(queue, credit=10)
        due = soon(1_000)
        assert await sender.send(delayed("later", x_opt_delivery_time=due)) == [Accepted()]
        assert await sender.send(delayed("now")) == [Accepted()]
        (first,) = await receiver.receive()
        assert text_of(first) == "now"
        (second,) = await receiver.receive()
        assert text_of(second) == "later"
        assert time.time() * 1000 >= due
        annotations = decode_message(second.payload).message_annotations
        assert annotations["x-opt-delivery-time"] == due, "JMSDeliveryTime"
        assert annotations["x-opt-message-state"] == 2, "it was scheduled"


@on_each_kind
async def test_a_delivery_delay_becomes_a_delivery_time(bus: SdkBus) -> None:
    queue = bus.queue()
    async with await Client.connect(Endpoint.parse(bus.server.connection_string)) as client:
        sender, receiver = await client.sender(queue), await client.receiver(queue, credit=10)
        before = soon(0)
        assert await sender.send(delayed("m", x_opt_delivery_delay=500)) == [Accepted()]
        (delivery,) = await receiver.receive()
        annotations = decode_message(delivery.payload).message_annotations
        assert "x-opt-delivery-delay" not in annotations
        assert before + 500 <= annotations["x-opt-delivery-time"] <= soon(0)


@on_each_kind
async def test_the_later_of_two_times_counts(bus: SdkBus) -> None:
    queue = bus.queue()
    async with await Client.connect(Endpoint.parse(bus.server.connection_string)) as client:
        sender, receiver = await client.sender(queue), await client.receiver(queue, credit=10)
        early, late = soon(-1_000), soon(700)
        for times in ((early, late), (late, early)):
            both = {"x_opt_delivery_time": times[0], "x_opt_scheduled_enqueue_time": Timestamp(times[1])}
            assert await sender.send(delayed("m", **both)) == [Accepted()]
        assert len(await receiver.receive(2)) == 2
        assert time.time() * 1000 >= late


@on_each_kind
async def test_the_time_to_live_begins_with_the_delivery_time(bus: SdkBus) -> None:
    queue = bus.queue()
    async with await Client.connect(Endpoint.parse(bus.server.connection_string)) as client:
        sender, receiver = await client.sender(queue), await client.receiver(queue, credit=10)
        lasting = delayed("m", Header(ttl=600), x_opt_delivery_delay=1_000)
        assert await sender.send(lasting) == [Accepted()]
        (delivery,) = await receiver.receive()
        assert text_of(delivery) == "m"


@pytest.mark.parametrize("value", ["soon", -1, 1.5, True, 10**18, Timestamp(10**18)])
@pytest.mark.parametrize("name", ["x_opt_delivery_time", "x_opt_delivery_delay"])
async def test_other_values_are_refused(buses: list[SdkBus], name: str, value: object) -> None:
    bus = buses[2]
    queue = bus.queue()
    async with await Client.connect(Endpoint.parse(bus.server.connection_string)) as client:
        sender = await client.sender(queue)
        (outcome,) = await sender.send(delayed("m", **{name: value}))
        assert isinstance(outcome, Rejected) and outcome.error is not None
        assert outcome.error.condition == "com.microsoft:argument-error"
        assert "milliseconds" in (outcome.error.description or "")


@on_each_kind
async def test_the_connection_offers_delayed_delivery(bus: SdkBus) -> None:
    """Without it, JMS clients refuse to send with a delay."""
    async with await Client.connect(Endpoint.parse(bus.server.connection_string)) as client:
        remote = client.connection.remote
        assert remote is not None
        assert remote.offered_capabilities == ["DELAYED_DELIVERY"]
