"""What a stopped stream finds when it goes on: numbers without messages are not always lost messages (S-03).

The stream's reader is called as Spark calls it, against a real server, but without a Spark: a case takes
milliseconds. The same through Spark: test_streaming.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bendybus.amqp.types import Array, Int
from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import InvalidOperation
from bendybus.management.client import ManagementClient
from bendybus.management.properties import QUEUE, SUBSCRIPTION, TOPIC, new_elements
from bendybus.operations.replaying import Replaying
from fix_server import ServerProcess, StartServer
from pyspark_servicebus.entity import RangedEntity
from pyspark_servicebus.options import ReadOptions
from pyspark_servicebus.stream import StreamReader

COLUMNS = ("body",)


class Stream:
    """A stream that consumes an entity, and its checkpoint. Each run is one batch."""

    def __init__(self, server: ServerProcess, entity: str, **options: str) -> None:
        self._options = {"connectionString": server.connection_string, "entity": entity, "mode": "consume"}
        self._options |= options
        self._checkpoint: dict[str, Any] | None = None

    def run(self, **options: str) -> list[str]:
        """The messages of the next batch. They are removed, as when Spark plans another one."""
        reader = StreamReader(ReadOptions.parse(self._options | options), COLUMNS)
        try:
            start = self._checkpoint or reader.initialOffset()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            bodies = [
                body.decode()
                for partition in reader.partitions(start, end)
                for batch in reader.read(partition)
                for body in batch.column("body").to_pylist()
            ]
            reader.commit(end)
            self._checkpoint = end
            return bodies
        finally:
            reader.stop()


class Bus:
    """One queue or subscription, and what its users do while the stream is stopped."""

    def __init__(self, server: ServerProcess, **properties: object) -> None:
        self.name = self.target = f"queue-{uuid.uuid4().hex[:8]}"
        self.client = BusClient(ClientSettings.from_connection_string(server.connection_string))
        self._management = ManagementClient(ConnectionString.parse(server.connection_string))
        self._properties = properties

    def make_queue(self) -> None:
        with self._management as management:
            management.create(self.name, QUEUE.element, new_elements(QUEUE, self._properties))

    def make_subscription(self) -> None:
        with self._management as management:
            management.create(self.target, TOPIC.element, new_elements(TOPIC, {}))
            self.name = f"{self.target}/Subscriptions/all"
            elements = new_elements(SUBSCRIPTION, self._properties)
            management.create(self.name, SUBSCRIPTION.element, elements)

    def send(self, *bodies: str, **properties: Any) -> None:
        self.client.sender(self.target).send([encode(body.encode(), **properties) for body in bodies])

    def schedule(self, *bodies: str, due_s: float = 3600) -> list[int]:
        due = int(time.time() * 1000 + due_s * 1000)
        messages = [encode(body.encode(), scheduled_enqueue_time_ms=due) for body in bodies]
        answer = self.client.management(self.target).request(
            "com.microsoft:schedule-message", {"messages": [{"message": message} for message in messages]}
        )
        assert answer is not None
        return [int(number) for number in answer["sequence-numbers"].values]

    def schedule_and_await(self, *bodies: str) -> None:
        self.schedule(*bodies, due_s=0.2)
        self.await_messages(len(bodies))

    def await_messages(self, count: int) -> None:
        await_messages(self.client, self.name, count)

    def cancel(self, numbers: list[int]) -> None:
        body = {"sequence-numbers": Array(int, numbers)}
        self.client.management(self.target).request("com.microsoft:cancel-scheduled-message", body)

    def settle(self, count: int, settlement: str) -> list[Any]:
        receiver = self.client.receiver(self.name)
        found: list[Any] = []
        while len(found) < count:
            found += receiver.receive(count - len(found))
        getattr(receiver, settlement)(found)
        receiver.close()
        return found

    def close(self) -> None:
        self.client.close()


def await_messages(client: BusClient, entity: str, count: int) -> None:
    """Return when there are so many messages, and none that is scheduled. Nobody locks them."""
    while counted(client, entity, "scheduled") or counted(client, entity, "active") < count:
        time.sleep(0.02)


def counted(client: BusClient, entity: str, what: str) -> int:
    info = client.management(entity).request("bendybus:partition-info", {})
    assert info is not None
    return sum(each[what] for each in info["partitions"])


@pytest.fixture
def bus(server: ServerProcess) -> Iterator[Bus]:
    bus = Bus(server)
    bus.make_queue()
    yield bus
    bus.close()


@pytest.fixture
def keeping(server: ServerProcess) -> Iterator[Bus]:
    """A queue that keeps completed messages."""
    bus = Bus(server, KeepCompleted="PT1H")
    bus.make_queue()
    yield bus
    bus.close()


def stream_after(bus: Bus, server: ServerProcess, **options: str) -> Stream:
    """A stream that has read and removed a first message, and is stopped."""
    stream = Stream(server, bus.name, **options)
    bus.send("first")
    assert stream.run() == ["first"]
    return stream


# -- nothing is lost --------------------------------------------------------------------------


@pytest.mark.row("S-03")
def test_a_stream_goes_on_if_a_scheduled_message_became_due(server, bus):
    stream = stream_after(bus, server)
    bus.schedule_and_await("due")
    assert stream.run() == ["due"]
    bus.schedule_and_await("one", "two", "three")
    bus.send("plain")
    assert sorted(stream.run()) == ["one", "plain", "three", "two"]
    assert stream.run() == []


def test_a_stream_goes_on_if_scheduled_messages_became_due_among_others(server, bus):
    stream = stream_after(bus, server, maxMessagesPerTrigger="1")
    for number in range(3):
        bus.schedule(f"due {number}", due_s=0.2)
        bus.send(f"plain {number}")
    bus.await_messages(6)
    found: list[str] = []
    while len(found) < 6:
        found += stream.run()
    assert sorted(found) == [*(f"due {number}" for number in range(3)), *(f"plain {n}" for n in range(3))]


@pytest.mark.row("S-03")
def test_a_stream_goes_on_if_a_scheduled_message_was_cancelled(server, bus):
    stream = stream_after(bus, server)
    bus.cancel(bus.schedule("never", "never"))
    assert stream.run() == []
    bus.cancel(bus.schedule("never"))
    bus.send("second")
    assert stream.run() == ["second"]


def test_a_stream_goes_on_if_scheduled_messages_were_purged(server, bus):
    stream = stream_after(bus, server)
    bus.schedule("never")
    bus.client.management(bus.name).request("bendybus:purge", {"states": Array(Int, [Int(2)])})
    bus.send("second")
    assert stream.run() == ["second"]


def test_a_stream_goes_on_if_a_message_was_dead_lettered_on_its_arrival(server):
    """It was never in the subscription's main queue: it has no session id."""
    bus = Bus(server, RequiresSession=True)
    bus.make_subscription()
    stream = Stream(server, bus.name)
    bus.send("first", session_id="s")
    assert stream.run() == ["first"]
    bus.send("no session")
    assert stream.run() == []
    bus.send("no session")
    bus.send("second", session_id="s")
    assert stream.run() == ["second"]
    bus.close()


def test_a_stream_goes_on_if_a_dead_letter_was_inserted(server, bus):
    stream = stream_after(bus, server)
    bus.client.management(f"{bus.name}/$deadletterqueue").request(
        "bendybus:insert-messages", {"messages": [{"message": encode(b"dead")}]}
    )
    bus.send("second")
    assert stream.run() == ["second"]


def test_a_stream_goes_on_if_a_message_was_completed_and_put_back(server, keeping):
    stream = stream_after(keeping, server)
    keeping.send("second")
    keeping.settle(1, "complete")
    with pytest.raises(InvalidOperation, match="it would go on with 2, and the oldest is 3"):
        stream.run()
    assert sum(Replaying(keeping.client, keeping.name).run()) == 2
    assert stream.run() == ["first", "second"]


def test_a_stream_goes_on_while_messages_are_locked_or_deferred(server, bus):
    stream = stream_after(bus, server)
    bus.send("second")
    bus.settle(1, "defer")
    bus.send("third")
    assert stream.run() == ["third"]


# -- after a restart --------------------------------------------------------------------------


@pytest.mark.row("S-03")
@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_stream_goes_on_if_a_scheduled_message_became_due_before_the_broker_was_restarted(
    start_server: StartServer, ending: str
):
    server = start_server({})
    bus = Bus(server)
    bus.make_queue()
    stream = stream_after(bus, server, maxMessagesPerTrigger="1")
    for number in range(2):
        bus.schedule(f"due {number}", due_s=0.2)
        bus.send(f"plain {number}")
    bus.await_messages(4)
    bus.close()
    getattr(server, ending)()
    server.start()
    found: list[str] = []
    while len(found) < 4:
        found += stream.run()
    assert sorted(found) == ["due 0", "due 1", "plain 0", "plain 1"]


def test_a_stream_refuses_what_nobody_can_explain_after_a_restart(start_server: StartServer):
    """Cancelled messages leave nothing in the store. The numbers could be those of lost messages."""
    server = start_server({})
    bus = Bus(server)
    bus.make_queue()
    stream = stream_after(bus, server)
    bus.cancel(bus.schedule("never"))
    bus.send("second")
    bus.close()
    server.stop()
    server.start()
    with pytest.raises(InvalidOperation, match="it would go on with 2, and the oldest is 3"):
        stream.run()
    assert stream.run(failOnDataLoss="false") == ["second"]


# -- something is lost ------------------------------------------------------------------------


def completed(bus: Bus) -> None:
    bus.send("lost")
    bus.settle(1, "complete")


def dead_lettered(bus: Bus) -> None:
    bus.send("lost")
    bus.settle(1, "dead_letter")


def purged(bus: Bus) -> None:
    bus.send("lost")
    bus.client.management(bus.name).request("bendybus:purge", {"states": Array(Int, [Int(0)])})


def expired(bus: Bus) -> None:
    bus.send("lost", time_to_live_ms=1)
    while counted(bus.client, bus.name, "active"):
        time.sleep(0.02)


def deferred_and_completed(bus: Bus) -> None:
    bus.send("lost")
    (message,) = bus.settle(1, "defer")
    numbers = Array(int, [message.sequence_number])
    bus.client.management(bus.name).request("bendybus:complete-numbers", {"sequence-numbers": numbers})


def due_and_completed(bus: Bus) -> None:
    bus.schedule("lost", due_s=0.2)
    bus.settle(1, "complete")


def due_and_the_next_completed(bus: Bus) -> None:
    bus.schedule_and_await("kept")
    bus.cancel(bus.schedule("never"))
    bus.settle(1, "complete")


@pytest.mark.row("S-03")
@pytest.mark.parametrize(
    "lose",
    [
        completed,
        dead_lettered,
        purged,
        expired,
        deferred_and_completed,
        due_and_completed,
        due_and_the_next_completed,
    ],
)
def test_a_stream_refuses_to_go_on_if_a_message_is_gone(server, bus, lose: Callable[[Bus], None]):
    stream = stream_after(bus, server)
    lose(bus)
    with pytest.raises(InvalidOperation, match="it would go on with 2"):
        stream.run()
    # What is no loss does not hide a loss below it.
    bus.schedule_and_await("due")
    bus.cancel(bus.schedule("never"))
    with pytest.raises(InvalidOperation, match="it would go on with 2"):
        stream.run()
    assert stream.run(failOnDataLoss="false") == ["due"]


def test_a_stream_of_scheduled_messages_refuses_if_one_was_cancelled(server, bus):
    """Its reader would have had to see the message while it was scheduled."""
    stream = Stream(server, bus.name, mode="browse", states="scheduled")
    bus.schedule("first")
    assert stream.run() == ["first"]
    bus.cancel([1])
    assert stream.run() == []
    bus.cancel(bus.schedule("second"))
    with pytest.raises(InvalidOperation, match="it would go on with 2, and the oldest is 3"):
        stream.run()


# -- brokers that cannot explain --------------------------------------------------------------


def test_a_broker_that_does_not_explain_gaps_is_believed_as_before(server, bus, monkeypatch):
    stream = stream_after(bus, server)
    bus.schedule_and_await("due")
    asked = RangedEntity.info

    def of_an_older_broker(self: RangedEntity):
        request = self._management.request

        def older(operation: str, body: dict[str, object]) -> dict[str, Any] | None:
            answer = request(operation, body)
            assert answer is not None
            for partition in answer["partitions"]:
                del partition["vacant-from-sequence-number"]
            return answer

        with monkeypatch.context() as patched:
            patched.setattr(self._management, "request", older)
            return asked(self)

    with monkeypatch.context() as patched:
        patched.setattr(RangedEntity, "info", of_an_older_broker)
        with pytest.raises(InvalidOperation, match="it would go on with 2, and the oldest is 3"):
            stream.run()
    assert stream.run() == ["due"]
