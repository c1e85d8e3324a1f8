"""Repartition: all messages in the new queue, once and in order, wherever the move was cut off."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bendybus.amqp.types import Array
from bendybus.client import BusClient, ReceivedMessage, encode
from bendybus.errors import (
    ArgumentError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidOperation,
    Unauthorized,
)
from bendybus.operations.deferred import DeferredMessages
from bendybus.operations.sessions import held_session, session_state, set_session_state
from fix_server import ServerProcess
from pyspark_servicebus.pipelines import Bus, Progress, Repartition, Run
from pyspark_servicebus.pipelines.entities import Entities
from pyspark_servicebus.pipelines.repartition import PHASES
from spark.pipelines.conftest import (
    Contents,
    MakeQueue,
    MakeTopic,
    SendKeyed,
    by_key,
    expected,
    finish,
    interrupted,
)

# Spark's share alone is seconds; a machine with other work makes it minutes.
pytestmark = pytest.mark.timeout(400)


def move_of(bus: Bus, source: str, tmp_path: Path, ending: str = "delete") -> Repartition:
    checkpoint = str(tmp_path / "checkpoint")
    return Repartition(bus=bus, source=source, target=f"{source}-new", ending=ending, checkpoint=checkpoint)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few messages there are, Spark compares and copies them."""
    monkeypatch.setattr("pyspark_servicebus.pipelines.repartition.FEW_MAX", -1)


def interrupt_after(move: Repartition, spark: SparkSession, phase: str) -> None:
    assert move.checkpoint is not None
    state: dict[str, object] = {}
    while state.get("phase") != phase:
        assert interrupted(move, spark, at=2)
        state = json.loads((Path(move.checkpoint) / "repartition.json").read_text())


def interrupted_while_copying(move: Repartition, spark: SparkSession) -> bool:
    """Run the next phase. True once everything is copied and not compared yet."""
    assert interrupted(move, spark, at=2)
    assert move.checkpoint is not None
    state = json.loads((Path(move.checkpoint) / "repartition.json").read_text())
    return state["phase"] == "frozen" and interrupted(move, spark, at=2)


def await_count(contents: Callable[[], list[ReceivedMessage]], count: int) -> None:
    deadline = time.monotonic() + 60
    while len(contents()) < count and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(contents()) == count


def test_the_bus_certificate_is_trusted_for_management_too(server: ServerProcess) -> None:
    over_tls = server.connection_string.replace("UseDevelopmentEmulator=true", "")
    assert Entities(over_tls, str(server.certificate)).find("not-there") is None
    with pytest.raises(Unauthorized, match="not trusted"):
        Entities(over_tls).find("not-there")


@pytest.mark.row("S-05")
@pytest.mark.usefixtures("large")
def test_a_move_that_is_cut_off_in_every_phase_loses_and_doubles_nothing(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source = make_queue(partitioned=False, LockDuration="PT30S")
    send_keyed(source, 24)
    due = round((time.time() + 3600) * 1000)
    client.sender(source).send([encode(b"24", partition_key="k0", scheduled_enqueue_time_ms=due)])
    move = move_of(bus, source, tmp_path)
    # Told before each phase, and between two rounds of copying.
    cuts = 0
    while interrupted(move, spark, at=2):
        cuts += 1
        if (tmp_path / "checkpoint" / "repartition.json").read_text().count('"frozen"'):
            break
    # While it is frozen nobody can use either queue.
    with pytest.raises(EntityDisabled):
        client.sender(source).send([encode(b"late")])
    with pytest.raises(EntityDisabled):
        client.receiver(move.target).receive(1, timeout_s=0.1)
    # Copied, and cut off before it was compared: then a copy is lost and another doubled.
    assert interrupted(move, spark, at=2)
    copies = contents(move.target)
    assert len(copies) == 25
    number = {"sequence-numbers": Array(int, [copies[-2].sequence_number])}
    client.management(move.target).request("bendybus:complete-numbers", number)
    client.sender(move.target).send([copies[0].payload], copies[0].partition_key)
    while interrupted(move, spark, at=2):
        cuts += 1
    assert cuts >= len(PHASES) - 2
    assert finish(move, spark).details["phase"] == "done"
    moved = contents(move.target)
    assert by_key([message for message in moved if message.state == 0]) == expected(24)
    assert [message.body for message in moved if message.state == 2] == [b"24"]
    assert moved[0].application_properties["number"] == int(moved[0].body)
    entities = Entities(bus.connection_string)
    assert entities.find(source) is None
    new = entities.get(move.target)
    assert (new.text("EnablePartitioning"), new.text("LockDuration"), new.text("Status")) == (
        "true",
        "PT30S",
        "Active",
    )


@pytest.mark.row("S-05")
def test_sessions_keep_their_order_and_senders_their_name(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source = make_queue(RequiresSession=True)
    send_keyed(source, 16, session=True)
    summary = finish(move_of(bus, source, tmp_path, ending="forward"), spark)
    assert (summary.messages, summary.details["partitioned"]) == (16, False)
    # The old name goes on taking messages, and passes them to the new queue.
    client.sender(source).send([encode(b"16", session_id="k0")], "k0")
    deadline = time.monotonic() + 30
    while len(contents(f"{source}-new")) < 17 and time.monotonic() < deadline:
        time.sleep(0.05)
    found = by_key(contents(f"{source}-new"))
    assert found == {**expected(16), "k0": [0, 4, 8, 12, 16]}


def test_what_cannot_be_moved_is_refused_and_nothing_is_changed(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source, other = make_queue(), make_queue()
    send_keyed(source, 4)
    taken = Repartition(bus=bus, source=source, target=other, checkpoint=str(tmp_path / "taken"))
    with pytest.raises(EntityExists, match=other):
        finish(taken, spark)
    with pytest.raises(EntityNotFound, match="nowhere"):
        Repartition(bus=bus, source="nowhere", target="new").check()
    with pytest.raises(ArgumentError, match="to itself"):
        Repartition(bus=bus, source=source, target=source.upper()).check()
    with pytest.raises(ArgumentError, match="name the queue or the topic"):
        Repartition(bus=bus, source=f"{source}/$deadletterqueue", target="new").check()
    entities = Entities(bus.connection_string)
    assert entities.find(f"{source}-new") is None
    assert entities.get(source).text("Status") == "Active"
    assert not (tmp_path / "taken").exists()


@pytest.mark.row("S-05")
@pytest.mark.parametrize("few_max", [2000, -1], ids=["few", "many"])
def test_deferred_messages_dead_letters_and_states_of_sessions_are_moved(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    few_max: int,
) -> None:
    monkeypatch.setattr("pyspark_servicebus.pipelines.repartition.FEW_MAX", few_max)
    source = make_queue(RequiresSession=True)
    send_keyed(source, 16, session=True)
    # Without a message, and with messages.
    set_session_state(client, source, "idle", b"waits")
    set_session_state(client, source, "k1", b"busy")
    receiver = held_session(client, source, "k1")
    first, second, *_ = receiver.receive(2, timeout_s=30)
    receiver.defer([first])
    receiver.dead_letter([second], "Bad", "It is bad.")
    receiver.close()
    move = move_of(bus, source, tmp_path)
    # Copied, and cut off before it was compared: then a dead letter and a deferred message are doubled.
    while not interrupted_while_copying(move, spark):
        pass
    (deferred,) = [message for message in contents(move.target) if message.state == 1]
    again = {"messages": [{"message": deferred.payload, "state": 1}]}
    client.management(move.target).request("bendybus:insert-messages", again)
    (letter,) = contents(f"{move.target}/$deadletterqueue")
    again = {"messages": [{"message": letter.payload}]}
    client.management(f"{move.target}/$deadletterqueue").request("bendybus:insert-messages", again)
    summary = finish(move, spark)
    told = {name: summary.details[name] for name in ("deadLetters", "deferred", "sessionStates")}
    assert told == {"deadLetters": 1, "deferred": 1, "sessionStates": 2}
    assert summary.messages == 16
    moved = contents(move.target)
    assert by_key([message for message in moved if message.state == 0]) == {**expected(16), "k1": [9, 13]}
    (deferred,) = [message for message in moved if message.state == 1]
    assert deferred.body == b"1"
    numbers = json.loads((tmp_path / "checkpoint" / "deferred.json").read_text())
    assert numbers == {move.target: {str(first.sequence_number): deferred.sequence_number}}
    (letter,) = contents(f"{move.target}/$deadletterqueue")
    properties = letter.application_properties
    assert (letter.body, properties["DeadLetterReason"]) == (b"5", "Bad")
    assert properties["DeadLetterErrorDescription"] == "It is bad."
    assert session_state(client, move.target, "idle") == b"waits"
    assert session_state(client, move.target, "K1") == b"busy"
    # Under its new number it is received like any other.
    receiver = held_session(client, move.target, "k1")
    (received,) = DeferredMessages(client, move.target, "k1").receive([deferred.sequence_number])
    assert received.body == b"1"
    receiver.close()


@pytest.mark.row("S-05")
def test_a_topic_is_moved_with_its_subscriptions_rules_and_messages(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_topic: MakeTopic,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source = make_topic(
        {
            "all": {},
            "large": {"Rules": [("big", "number >= 12", "SET size = 'large'")], "LockDuration": "PT30S"},
            "sessions": {"RequiresSession": True},
        }
    )
    send_keyed(source, 16, session=True)
    receiver = client.receiver(f"{source}/Subscriptions/large")
    first, *_ = receiver.receive(1, timeout_s=30)
    receiver.dead_letter([first], "Bad")
    receiver.defer(receiver.receive(1, timeout_s=30))
    receiver.close()
    set_session_state(client, f"{source}/Subscriptions/sessions", "k2", b"two")
    move = move_of(bus, source, tmp_path, ending="forward")
    while not interrupted_while_copying(move, spark):
        pass
    with pytest.raises(EntityDisabled):
        client.sender(source).send([encode(b"late")])
    # A copy is lost and another doubled.
    copies = contents(f"{move.target}/Subscriptions/all")
    assert len(copies) == 16
    management = client.management(f"{move.target}/Subscriptions/all")
    number = {"sequence-numbers": Array(int, [copies[-2].sequence_number])}
    management.request("bendybus:complete-numbers", number)
    management.request("bendybus:insert-messages", {"messages": [{"message": copies[0].payload}]})
    summary = finish(move, spark)
    assert (summary.messages, summary.details["partitioned"]) == (36, False)
    for name in ("all", "sessions"):
        assert by_key(contents(f"{move.target}/Subscriptions/{name}")) == expected(16)
    large = contents(f"{move.target}/Subscriptions/large")
    assert [message.state for message in large].count(1) == 1
    assert {message.application_properties["size"] for message in large} == {"large"}
    (letter,) = contents(f"{move.target}/Subscriptions/large/$deadletterqueue")
    assert letter.body == first.body
    assert session_state(client, f"{move.target}/Subscriptions/sessions", "k2") == b"two"
    entities = Entities(bus.connection_string)
    assert entities.get(f"{move.target}/Subscriptions/large").text("LockDuration") == "PT30S"
    assert {each.text("Status") for each in entities.subscriptions(move.target)} == {"Active"}
    # The old name goes on taking messages. The rules of the new topic decide.
    for number in (16, 3):
        properties = {"number": number}
        message = encode(b"%d" % number, session_id="k9", application_properties=properties)
        client.sender(source).send([message], "k9")
    await_count(lambda: contents(f"{move.target}/Subscriptions/all"), 18)
    assert len(contents(f"{move.target}/Subscriptions/large")) == len(large) + 1


def test_a_topic_with_scheduled_messages_is_refused_and_nothing_is_changed(
    spark: SparkSession, bus: Bus, client: BusClient, make_topic: MakeTopic, tmp_path: Path
) -> None:
    source = make_topic({"all": {}})
    due = round((time.time() + 3600) * 1000)
    client.sender(source).send([encode(b"later", scheduled_enqueue_time_ms=due)])
    with pytest.raises(InvalidOperation, match="1 scheduled messages"):
        finish(move_of(bus, source, tmp_path), spark)
    entities = Entities(bus.connection_string)
    assert entities.find(f"{source}-new") is None
    assert entities.get(source).text("Status") == "Active"


def test_a_move_waits_for_messages_that_are_locked(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source = make_queue()
    send_keyed(source, 4)
    (locked,) = client.receiver(source).receive(1, timeout_s=30)
    phases: list[str] = []

    def tell(progress: Progress) -> None:
        phases.append(progress.phase)
        if "waiting for 1 locked messages" in progress.phase and len(phases) < 6:
            # Its link is gone with the freeze, and still it can be completed.
            token = uuid.UUID(bytes_le=locked.delivery.tag)
            settled = {"lock-tokens": Array(uuid.UUID, [token]), "disposition-status": "completed"}
            client.management(source).request("com.microsoft:update-disposition", settled)

    summary = move_of(bus, source, tmp_path).run(spark, Run(tell=tell))
    assert any("waiting" in phase for phase in phases)
    assert summary.messages == 3
    assert locked.body not in [message.body for message in contents(f"{source}-new")]


@pytest.mark.usefixtures("large")
def test_messages_without_a_key_are_moved_to_many_partitions(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    contents: Contents,
    tmp_path: Path,
) -> None:
    source = make_queue(partitioned=False)
    bodies = [b"%d" % number for number in range(600)]
    client.sender(source).send([encode(body * 200) for body in bodies])
    finish(move_of(bus, source, tmp_path), spark)
    moved = contents(f"{source}-new")
    assert sorted(message.body for message in moved) == sorted(body * 200 for body in bodies)


def test_a_stranger_in_the_new_queue_keeps_the_old_one(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    tmp_path: Path,
) -> None:
    source = make_queue()
    send_keyed(source, 4)
    move = move_of(bus, source, tmp_path)
    entities = Entities(bus.connection_string)
    while entities.find(move.target) is None:
        assert interrupted(move, spark, at=2)
    client.sender(move.target).send([encode(b"mine")])
    with pytest.raises(InvalidOperation, match="Somebody else has sent 1 messages"):
        finish(move, spark)
    assert entities.find(source) is not None


@pytest.mark.parametrize("phase", ["frozen", "equal"])
def test_messages_for_a_queue_that_was_enabled_again_are_copied_too(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    contents: Contents,
    tmp_path: Path,
    phase: str,
) -> None:
    """A restart with a Config.json that has the queue enables it."""
    source = make_queue()
    send_keyed(source, 4)
    move = move_of(bus, source, tmp_path)
    interrupt_after(move, spark, phase)
    entities = Entities(bus.connection_string)
    entities.update(source, Status="Active")
    client.sender(source).send([encode(b"late")])

    finish(move, spark)
    assert len(contents(move.target)) == 5
    assert entities.find(source) is None


def test_a_queue_that_was_enabled_again_after_its_copy_was_opened_is_kept(
    spark: SparkSession,
    bus: Bus,
    client: BusClient,
    make_queue: MakeQueue,
    send_keyed: SendKeyed,
    tmp_path: Path,
) -> None:
    source = make_queue()
    send_keyed(source, 4)
    move = move_of(bus, source, tmp_path)
    interrupt_after(move, spark, "opened")
    entities = Entities(bus.connection_string)
    entities.update(source, Status="Active")
    client.sender(source).send([encode(b"late")])
    entities.update(source, Status="Disabled")

    with pytest.raises(InvalidOperation, match="it has 5 messages, and 4 were copied"):
        finish(move, spark)
    assert entities.find(source) is not None
