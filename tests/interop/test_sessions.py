"""Sessions through the official SDK, on both kinds of queue: a receiver cannot tell the difference (P-05)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypeAlias

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageNotFoundError,
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from fix_server import Kind, Properties, ServerProcess, StartServer, namespace
from interop.sdk import BREAKS_CONNECTIONS, CROSSWISE, AsyncSdk, LoopThread, Sdk, SyncSdk, bodies, receive

MEGABYTE = 1 << 20

# So many of each kind: a namespace of Standard has no more than 100 partitioned queues.
QUEUES = 30
PLAIN: Properties = {}
SESSIONS: Properties = {"RequiresSession": True, "LockDuration": "PT1M", "MaxDeliveryCount": 3}
BRIEF: Properties = {**SESSIONS, "LockDuration": "PT5S"}


@pytest.fixture(scope="module")
def _namespace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """In the place of the session's server, whose queues are plain."""
    queues = {
        f"{kind}-{number}": {**properties, "EnablePartitioning": kind is Kind.PARTITIONED}
        for kind in Kind
        for number, properties in enumerate([PLAIN, BRIEF, *[SESSIONS] * QUEUES])
    }
    server = ServerProcess(tmp_path_factory.mktemp("server"), namespace(queues))
    server.start()
    yield server
    assert server.stop() == os.EX_OK
    server.refuse_trouble()


@pytest.fixture(scope="module")
def numbers() -> dict[Kind, Iterator[int]]:
    """Of the queues that no test has used yet."""
    return {kind: count(2) for kind in Kind}


class Room:
    """A queue with sessions, and a client."""

    def __init__(self, client: ServiceBusClient, queue: str, pool: ThreadPoolExecutor) -> None:
        self.client = client
        self.queue = queue
        self._pool = pool
        self._open: list[ServiceBusReceiver] = []
        self._sender = client.get_queue_sender(queue, keep_alive=0)

    def send(self, session_id: str | None, *texts: str, **properties: object) -> None:
        for text in texts:
            message = ServiceBusMessage(text, session_id=session_id, **properties)
            self._sender.send_messages(message)

    def accept(self, session_id: object = NEXT_AVAILABLE_SESSION, **options: object) -> ServiceBusReceiver:
        options = {"max_wait_time": 10, **options}
        receiver = self.client.get_queue_receiver(self.queue, session_id=session_id, **options)
        receiver.__enter__()
        self._open.append(receiver)
        return receiver

    def close(self) -> None:
        """Each waits for a thread of the SDK: all at once."""
        list(self._pool.map(lambda handle: handle.close(), [*self._open, self._sender]))


MakeRoom: TypeAlias = Callable[..., Room]


@pytest.fixture
def make_room(sdk: Sdk, server: ServerProcess, kind: Kind, pool: ThreadPoolExecutor) -> Iterator[MakeRoom]:
    rooms: list[Room] = []

    def make(number: int) -> Room:
        rooms.append(Room(sdk.client(server.connection_string), f"{kind}-{number}", pool))
        return rooms[-1]

    yield make
    for room in rooms:
        room.close()


@pytest.fixture
def room(make_room: MakeRoom, kind: Kind, numbers: dict[Kind, Iterator[int]]) -> Room:
    return make_room(next(numbers[kind]))


def complete_all(receiver: ServiceBusReceiver, count: int) -> list[str]:
    messages = receive(receiver, count)
    for message in messages:
        receiver.complete_message(message)
    return bodies(messages)


# -- accepting --------------------------------------------------------------------


@pytest.mark.row("P-13")
def test_a_named_session_gives_its_messages_in_order_and_no_others(room: Room) -> None:
    for number in range(4):
        room.send("ada", f"ada {number}")
        room.send("bob", f"bob {number}")
    receiver = room.accept("ada")
    assert receiver.session.session_id == "ada"
    assert receiver.session.locked_until_utc > datetime.now(UTC)
    assert complete_all(receiver, 4) == [f"ada {number}" for number in range(4)]
    assert receiver.receive_messages(1, max_wait_time=1) == []
    room.send("ada", "one more")
    assert complete_all(receiver, 1) == ["one more"]


def test_the_next_session_is_any_that_is_free(room: Room) -> None:
    names = {"one", "two", "three"}
    for name in names:
        room.send(name, name)
    receivers = [room.accept() for _ in names]
    assert {receiver.session.session_id for receiver in receivers} == names
    assert {text for receiver in receivers for text in complete_all(receiver, 1)} == names


def test_who_asks_for_the_next_session_waits_for_one(room: Room) -> None:
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(room.accept)
        # The first attempt to find it waiting would be too early; whenever it comes, it is served.
        room.send("late", "x")
        receiver = waiting.result()
    assert receiver.session.session_id == "late"
    assert complete_all(receiver, 1) == ["x"]


@CROSSWISE
def test_who_waits_gets_a_session_that_another_leaves(room: Room) -> None:
    room.send("only", "x")
    first = room.accept()
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(room.accept)
        with pytest.raises(OperationTimeoutError):
            room.accept(max_wait_time=1)
        first.close()
        assert waiting.result().session.session_id == "only"


def test_nothing_free_times_out(room: Room) -> None:
    with pytest.raises(OperationTimeoutError):
        room.accept(max_wait_time=1)


@pytest.mark.row("P-28")
def test_a_session_has_one_holder_and_is_free_when_its_link_closes(room: Room) -> None:
    room.send("s", "a", "b")
    holder = room.accept("s")
    assert bodies(receive(holder, 2)) == ["a", "b"]
    with pytest.raises(SessionCannotBeLockedError, match="'s' cannot be accepted"):
        room.accept("s")
    holder.close()
    again = receive(room.accept("s"), 2)
    assert [(str(message), message.delivery_count) for message in again] == [("a", 0), ("b", 0)]


# -- settling ---------------------------------------------------------------------


@CROSSWISE
def test_messages_are_settled_in_every_way(room: Room) -> None:
    room.send("s", "completed", "abandoned", "deferred", "dead")
    receiver = room.accept("s")
    completed, abandoned, deferred, dead = receive(receiver, 4)
    receiver.complete_message(completed)
    receiver.abandon_message(abandoned)
    receiver.defer_message(deferred)
    receiver.dead_letter_message(dead, reason="Bad")
    (again,) = receive(receiver, 1)
    assert (str(again), again.delivery_count) == ("abandoned", 1)
    (late,) = receiver.receive_deferred_messages([deferred.sequence_number])
    assert str(late) == "deferred"
    receiver.complete_message(late)
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages([deferred.sequence_number])
    # Dead letters are received without a session.
    options = {"sub_queue": ServiceBusSubQueue.DEAD_LETTER, "max_wait_time": 10}
    with room.client.get_queue_receiver(room.queue, **options) as graveyard:
        (buried,) = receive(graveyard, 1)
        assert (str(buried), buried.session_id, buried.dead_letter_reason) == ("dead", "s", "Bad")
        graveyard.complete_message(buried)


@CROSSWISE
def test_deferred_messages_of_another_session_are_not_found(room: Room) -> None:
    room.send("mine", "x")
    room.send("theirs", "y")
    theirs = room.accept("theirs")
    (deferred,) = receive(theirs, 1)
    theirs.defer_message(deferred)
    with pytest.raises(MessageNotFoundError):
        room.accept("mine").receive_deferred_messages([deferred.sequence_number])


@CROSSWISE
def test_receive_and_delete_keeps_the_order(room: Room) -> None:
    room.send("s", *map(str, range(20)))
    receiver = room.accept("s", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert bodies(receive(receiver, 20)) == list(map(str, range(20)))
    assert receiver.peek_messages(1, sequence_number=1) == []


@CROSSWISE
def test_a_browser_sees_the_session_it_holds(room: Room) -> None:
    room.send("a", "a1", "a2")
    room.send("b", "b1")
    receiver = room.accept("a")
    assert bodies(receiver.peek_messages(10, sequence_number=1)) == ["a1", "a2"]


@CROSSWISE
def test_scheduled_messages_arrive_in_their_session(room: Room) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1)
    room._sender.schedule_messages(ServiceBusMessage("later", session_id="s"), due)
    assert complete_all(room.accept("s"), 1) == ["later"]


# -- state ------------------------------------------------------------------------


@CROSSWISE
def test_a_state_is_kept_without_messages_and_cleared_with_none(room: Room) -> None:
    first = room.accept("s")
    assert first.session.get_state() is None
    first.session.set_state(b"half way")
    assert first.session.get_state() == b"half way"
    first.close()
    second = room.accept("s")
    assert second.session.get_state() == b"half way"
    second.session.set_state(None)
    assert second.session.get_state() is None


@CROSSWISE
def test_a_state_may_be_as_large_as_a_message(room: Room) -> None:
    session = room.accept("s").session
    state = bytes(range(256)) * 1024
    session.set_state(state)
    assert session.get_state() == state
    with pytest.raises(ServiceBusError, match="262145 bytes"):
        session.set_state(state + b"x")
    assert session.get_state() == state


@pytest.mark.row("P-35")
@CROSSWISE
def test_sessions_are_listed_with_messages_or_with_a_state(room: Room) -> None:
    assert list(room.client.list_queue_sessions(room.queue)) == []
    names = {f"session {number}" for number in range(130)}
    batch = [ServiceBusMessage("x", session_id=name) for name in names]
    for message in batch:
        room._sender.send_messages(message)
    before = datetime.now(UTC) - timedelta(seconds=1)
    room.accept("with state").session.set_state(b"x")
    listed = list(room.client.list_queue_sessions(room.queue))
    assert len(listed) == 131
    assert set(listed) == names | {"with state"}
    updated = room.client.list_queue_sessions(room.queue, state_updated_after=before)
    assert list(updated) == ["with state"]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert list(room.client.list_queue_sessions(room.queue, state_updated_after=later)) == []


# -- locks ------------------------------------------------------------------------


@CROSSWISE
def test_a_lock_is_renewed(room: Room) -> None:
    session = room.accept("s").session
    before = session.locked_until_utc
    assert session.renew_lock() >= before


@CROSSWISE
def test_a_session_is_lost_with_its_lock_unless_it_is_renewed(sdk: Sdk, make_room: MakeRoom) -> None:
    room = make_room(1)
    room.send("kept", "a", "b")
    room.send("lost", "c", "d")
    kept, lost = room.accept("kept"), room.accept("lost")
    with sdk.renewer() as renewer:
        renewer.register(kept, kept.session, max_lock_renewal_duration=60)
        message = receive(kept, 1)[0]
        late = receive(lost, 1)[0]
        # The lock's time has to pass: it is counted by the server's clock.
        while lost.session.locked_until_utc + timedelta(seconds=1) > datetime.now(UTC):
            time.sleep(0.2)
        with pytest.raises(SessionLockLostError):
            lost.complete_message(late)
        with pytest.raises(SessionLockLostError):
            lost.session.get_state()
        kept.complete_message(message)
        assert complete_all(kept, 1) == ["b"]
    again = receive(room.accept("lost"), 2)
    assert [(str(message), message.delivery_count) for message in again] == [("c", 1), ("d", 0)]


# -- refusals ---------------------------------------------------------------------


@CROSSWISE
def test_a_message_without_a_session_is_refused_and_its_neighbours_are_not(room: Room) -> None:
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        room.send(None, "x")
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        room.send(None, "x", partition_key="k")
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        room._sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC) + timedelta(hours=1))
    room.send("s", "y")
    assert complete_all(room.accept("s"), 1) == ["y"]


@CROSSWISE
def test_receivers_of_the_wrong_kind_are_refused(room: Room, kind: Kind) -> None:
    with (
        pytest.raises(ServiceBusError, match="non-sessionful message receiver"),
        room.client.get_queue_receiver(room.queue),
    ):
        pass
    with (
        pytest.raises(ServiceBusError, match="does not require sessions"),
        room.client.get_queue_receiver(f"{kind}-0", session_id="s"),
    ):
        pass


# -- many -------------------------------------------------------------------------


@pytest.mark.row("P-13")
@CROSSWISE
def test_many_workers_share_many_sessions_and_each_stays_in_order(room: Room) -> None:
    sessions, each = 30, 5
    for number in range(each):
        for session in range(sessions):
            room.send(str(session), f"{session}:{number}")
    done: dict[str, list[str]] = {}

    def work() -> None:
        while len(done) < sessions:
            try:
                receiver = room.accept(max_wait_time=1)
            except OperationTimeoutError:
                continue
            texts = complete_all(receiver, each)
            assert receiver.session.session_id not in done
            done[receiver.session.session_id] = texts
            receiver.close()

    with ThreadPoolExecutor(6) as workers:
        for worker in [workers.submit(work) for _ in range(6)]:
            worker.result()
    assert done == {str(session): [f"{session}:{n}" for n in range(each)] for session in range(sessions)}


# -- servers of their own ---------------------------------------------------------


@BREAKS_CONNECTIONS
@pytest.mark.parametrize("partitioned", [False, True])
def test_states_and_order_survive_a_crash(
    start_server: StartServer, pool: ThreadPoolExecutor, partitioned: bool
) -> None:
    server = start_server({"q": {"RequiresSession": True, "EnablePartitioning": partitioned}})
    room = Room(SyncSdk().client(server.connection_string), "q", pool)
    room.send("s", "done", "locked", "waiting")
    room.send("other", "x")
    holder = room.accept("s")
    holder.complete_message(receive(holder, 2)[0])
    holder.session.set_state(b"one is done")
    server.kill()
    room.close()
    server.start()
    room = Room(SyncSdk().client(server.connection_string), "q", pool)
    holder = room.accept("s")
    assert holder.session.get_state() == b"one is done"
    assert complete_all(holder, 2) == ["locked", "waiting"]
    assert set(room.client.list_queue_sessions("q")) == {"s", "other"}
    room.close()


@pytest.mark.row("P-09")
def test_premium_has_sessions_in_all_its_partitions_and_large_states(
    start_server: StartServer, pool: ThreadPoolExecutor, loop_thread: LoopThread
) -> None:
    properties = {"RequiresSession": True, "MaxMessageSizeInKilobytes": 10_240}
    server = start_server({"q": properties}, None, "--tier", "premium")
    room = Room(AsyncSdk(loop_thread).client(server.connection_string), "q", pool)
    names = [f"session {number}" for number in range(8)]
    for name in names:
        room.send(name, f"{name}: 1", f"{name}: 2")
    partitions = set()
    for _ in names:
        receiver = room.accept()
        messages = receive(receiver, 2)
        name = receiver.session.session_id
        assert bodies(messages) == [f"{name}: 1", f"{name}: 2"]
        partitions |= {message.sequence_number >> 48 for message in messages}
        for message in messages:
            receiver.complete_message(message)
    assert partitions == {0, 1}
    receiver.session.set_state(bytes(5 * MEGABYTE))
    assert receiver.session.get_state() == bytes(5 * MEGABYTE)
    room.close()
