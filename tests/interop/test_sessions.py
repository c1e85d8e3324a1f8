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
    ServiceBusSender,
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
from interop.conftest import CloseLater
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


class SessionQueue:
    """A queue with sessions, and a client."""

    def __init__(self, client: ServiceBusClient, queue: str, pool: ThreadPoolExecutor) -> None:
        self.client = client
        self.queue = queue
        self._pool = pool
        self.sender = client.get_queue_sender(queue, keep_alive=0)
        self.handles: list[ServiceBusReceiver | ServiceBusSender] = [self.sender]

    def send(self, session_id: str | None, *texts: str, **properties: object) -> None:
        for text in texts:
            message = ServiceBusMessage(text, session_id=session_id, **properties)
            self.sender.send_messages(message)

    def accept(self, session_id: object = NEXT_AVAILABLE_SESSION, **options: object) -> ServiceBusReceiver:
        options = {"max_wait_time": 10, **options}
        receiver = self.client.get_queue_receiver(self.queue, session_id=session_id, **options)
        receiver.__enter__()
        self.handles.append(receiver)
        return receiver

    def close(self) -> None:
        """Each waits for a thread of the SDK: all at once."""
        list(self._pool.map(lambda handle: handle.close(), self.handles))


MakeSessionQueue: TypeAlias = Callable[..., SessionQueue]


@pytest.fixture
def make_session_queue(
    sdk: Sdk, server: ServerProcess, kind: Kind, pool: ThreadPoolExecutor, close_later: CloseLater
) -> Iterator[MakeSessionQueue]:
    session_queues: list[SessionQueue] = []

    def make(number: int) -> SessionQueue:
        session_queues.append(SessionQueue(sdk.client(server.connection_string), f"{kind}-{number}", pool))
        return session_queues[-1]

    yield make
    for session_queue in session_queues:
        for handle in session_queue.handles:
            close_later(handle.close)


@pytest.fixture
def session_queue(
    make_session_queue: MakeSessionQueue, kind: Kind, numbers: dict[Kind, Iterator[int]]
) -> SessionQueue:
    return make_session_queue(next(numbers[kind]))


def complete_all(receiver: ServiceBusReceiver, count: int) -> list[str]:
    messages = receive(receiver, count)
    for message in messages:
        receiver.complete_message(message)
    return bodies(messages)


# -- accepting --------------------------------------------------------------------


@pytest.mark.row("P-13")
def test_a_named_session_gives_its_messages_in_order_and_no_others(session_queue: SessionQueue) -> None:
    for number in range(4):
        session_queue.send("ada", f"ada {number}")
        session_queue.send("bob", f"bob {number}")
    receiver = session_queue.accept("ada")
    assert receiver.session.session_id == "ada"
    assert receiver.session.locked_until_utc > datetime.now(UTC)
    assert complete_all(receiver, 4) == [f"ada {number}" for number in range(4)]
    assert receiver.receive_messages(1, max_wait_time=1) == []
    session_queue.send("ada", "one more")
    assert complete_all(receiver, 1) == ["one more"]


def test_the_next_session_is_any_that_is_free(session_queue: SessionQueue) -> None:
    names = {"one", "two", "three"}
    for name in names:
        session_queue.send(name, name)
    receivers = [session_queue.accept() for _ in names]
    assert {receiver.session.session_id for receiver in receivers} == names
    assert {text for receiver in receivers for text in complete_all(receiver, 1)} == names


def test_who_asks_for_the_next_session_waits_for_one(session_queue: SessionQueue) -> None:
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(session_queue.accept)
        # The first attempt to find it waiting would be too early; whenever it comes, it is served.
        session_queue.send("late", "x")
        receiver = waiting.result()
    assert receiver.session.session_id == "late"
    assert complete_all(receiver, 1) == ["x"]


@CROSSWISE
def test_who_waits_gets_a_session_that_another_leaves(session_queue: SessionQueue) -> None:
    session_queue.send("only", "x")
    first = session_queue.accept()
    with ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(session_queue.accept)
        with pytest.raises(OperationTimeoutError):
            session_queue.accept(max_wait_time=1)
        first.close()
        assert waiting.result().session.session_id == "only"


def test_nothing_free_times_out(session_queue: SessionQueue) -> None:
    with pytest.raises(OperationTimeoutError):
        session_queue.accept(max_wait_time=1)


@pytest.mark.row("P-28")
def test_a_session_has_one_holder_and_is_free_when_its_link_closes(session_queue: SessionQueue) -> None:
    session_queue.send("s", "a", "b")
    holder = session_queue.accept("s")
    assert bodies(receive(holder, 2)) == ["a", "b"]
    with pytest.raises(SessionCannotBeLockedError, match="'s' cannot be accepted"):
        session_queue.accept("s")
    holder.close()
    again = receive(session_queue.accept("s"), 2)
    assert [(str(message), message.delivery_count) for message in again] == [("a", 0), ("b", 0)]


# -- settling ---------------------------------------------------------------------


@CROSSWISE
def test_messages_are_settled_in_every_way(session_queue: SessionQueue) -> None:
    session_queue.send("s", "completed", "abandoned", "deferred", "dead")
    receiver = session_queue.accept("s")
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
    with session_queue.client.get_queue_receiver(session_queue.queue, **options) as graveyard:
        (buried,) = receive(graveyard, 1)
        assert (str(buried), buried.session_id, buried.dead_letter_reason) == ("dead", "s", "Bad")
        graveyard.complete_message(buried)


@CROSSWISE
def test_deferred_messages_of_another_session_are_not_found(session_queue: SessionQueue) -> None:
    session_queue.send("mine", "x")
    session_queue.send("theirs", "y")
    theirs = session_queue.accept("theirs")
    (deferred,) = receive(theirs, 1)
    theirs.defer_message(deferred)
    with pytest.raises(MessageNotFoundError):
        session_queue.accept("mine").receive_deferred_messages([deferred.sequence_number])


@CROSSWISE
def test_receive_and_delete_keeps_the_order(session_queue: SessionQueue) -> None:
    session_queue.send("s", *map(str, range(20)))
    receiver = session_queue.accept("s", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert bodies(receive(receiver, 20)) == list(map(str, range(20)))
    assert receiver.peek_messages(1, sequence_number=1) == []


@CROSSWISE
def test_a_browser_sees_the_session_it_holds(session_queue: SessionQueue) -> None:
    session_queue.send("a", "a1", "a2")
    session_queue.send("b", "b1")
    receiver = session_queue.accept("a")
    assert bodies(receiver.peek_messages(10, sequence_number=1)) == ["a1", "a2"]


@CROSSWISE
def test_scheduled_messages_arrive_in_their_session(session_queue: SessionQueue) -> None:
    due = datetime.now(UTC) + timedelta(seconds=1)
    session_queue.sender.schedule_messages(ServiceBusMessage("later", session_id="s"), due)
    assert complete_all(session_queue.accept("s"), 1) == ["later"]


# -- state ------------------------------------------------------------------------


@CROSSWISE
def test_a_state_is_kept_without_messages_and_cleared_with_none(session_queue: SessionQueue) -> None:
    first = session_queue.accept("s")
    assert first.session.get_state() is None
    first.session.set_state(b"half way")
    assert first.session.get_state() == b"half way"
    first.close()
    second = session_queue.accept("s")
    assert second.session.get_state() == b"half way"
    second.session.set_state(None)
    assert second.session.get_state() is None


@CROSSWISE
def test_a_state_may_be_as_large_as_a_message(session_queue: SessionQueue) -> None:
    session = session_queue.accept("s").session
    state = bytes(range(256)) * 1024
    session.set_state(state)
    assert session.get_state() == state
    with pytest.raises(ServiceBusError, match="262145 bytes"):
        session.set_state(state + b"x")
    assert session.get_state() == state


@pytest.mark.row("P-35")
@CROSSWISE
def test_sessions_are_listed_with_messages_or_with_a_state(session_queue: SessionQueue) -> None:
    assert list(session_queue.client.list_queue_sessions(session_queue.queue)) == []
    names = {f"session {number}" for number in range(130)}
    batch = [ServiceBusMessage("x", session_id=name) for name in names]
    for message in batch:
        session_queue.sender.send_messages(message)
    before = datetime.now(UTC) - timedelta(seconds=1)
    session_queue.accept("with state").session.set_state(b"x")
    listed = list(session_queue.client.list_queue_sessions(session_queue.queue))
    assert len(listed) == 131
    assert set(listed) == names | {"with state"}
    updated = session_queue.client.list_queue_sessions(session_queue.queue, state_updated_after=before)
    assert list(updated) == ["with state"]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert (
        list(session_queue.client.list_queue_sessions(session_queue.queue, state_updated_after=later)) == []
    )


# -- locks ------------------------------------------------------------------------


@CROSSWISE
def test_a_lock_is_renewed(session_queue: SessionQueue) -> None:
    session = session_queue.accept("s").session
    before = session.locked_until_utc
    assert session.renew_lock() >= before


@CROSSWISE
def test_a_session_is_lost_with_its_lock_unless_it_is_renewed(
    sdk: Sdk, make_session_queue: MakeSessionQueue
) -> None:
    session_queue = make_session_queue(1)
    session_queue.send("kept", "a", "b")
    session_queue.send("lost", "c", "d")
    kept, lost = session_queue.accept("kept"), session_queue.accept("lost")
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
    again = receive(session_queue.accept("lost"), 2)
    assert [(str(message), message.delivery_count) for message in again] == [("c", 1), ("d", 0)]


# -- refusals ---------------------------------------------------------------------


@CROSSWISE
def test_a_message_without_a_session_is_refused_and_its_neighbours_are_not(
    session_queue: SessionQueue,
) -> None:
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        session_queue.send(None, "x")
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        session_queue.send(None, "x", partition_key="k")
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        session_queue.sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC) + timedelta(hours=1))
    session_queue.send("s", "y")
    assert complete_all(session_queue.accept("s"), 1) == ["y"]


@CROSSWISE
def test_receivers_of_the_wrong_kind_are_refused(session_queue: SessionQueue, kind: Kind) -> None:
    with (
        pytest.raises(ServiceBusError, match="non-sessionful message receiver"),
        session_queue.client.get_queue_receiver(session_queue.queue),
    ):
        pass
    with (
        pytest.raises(ServiceBusError, match="does not require sessions"),
        session_queue.client.get_queue_receiver(f"{kind}-0", session_id="s"),
    ):
        pass


# -- many -------------------------------------------------------------------------


@pytest.mark.row("P-13")
@CROSSWISE
def test_many_workers_share_many_sessions_and_each_stays_in_order(session_queue: SessionQueue) -> None:
    sessions, each = 30, 5
    for number in range(each):
        for session in range(sessions):
            session_queue.send(str(session), f"{session}:{number}")
    done: dict[str, list[str]] = {}

    def work() -> None:
        while len(done) < sessions:
            try:
                receiver = session_queue.accept(max_wait_time=1)
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
    session_queue = SessionQueue(SyncSdk().client(server.connection_string), "q", pool)
    session_queue.send("s", "done", "locked", "waiting")
    session_queue.send("other", "x")
    holder = session_queue.accept("s")
    holder.complete_message(receive(holder, 2)[0])
    holder.session.set_state(b"one is done")
    server.kill()
    session_queue.close()
    server.start()
    session_queue = SessionQueue(SyncSdk().client(server.connection_string), "q", pool)
    holder = session_queue.accept("s")
    assert holder.session.get_state() == b"one is done"
    assert complete_all(holder, 2) == ["locked", "waiting"]
    assert set(session_queue.client.list_queue_sessions("q")) == {"s", "other"}
    session_queue.close()


@pytest.mark.row("P-09")
def test_premium_has_sessions_in_all_its_partitions_and_large_states(
    start_server: StartServer, pool: ThreadPoolExecutor, loop_thread: LoopThread
) -> None:
    properties = {"RequiresSession": True, "MaxMessageSizeInKilobytes": 10_240}
    server = start_server({"q": properties}, None, "--tier", "premium")
    session_queue = SessionQueue(AsyncSdk(loop_thread).client(server.connection_string), "q", pool)
    names = [f"session {number}" for number in range(8)]
    for name in names:
        session_queue.send(name, f"{name}: 1", f"{name}: 2")
    partitions = set()
    for _ in names:
        receiver = session_queue.accept()
        messages = receive(receiver, 2)
        name = receiver.session.session_id
        assert bodies(messages) == [f"{name}: 1", f"{name}: 2"]
        partitions |= {message.sequence_number >> 48 for message in messages}
        for message in messages:
            receiver.complete_message(message)
    assert partitions == {0, 1}
    receiver.session.set_state(bytes(5 * MEGABYTE))
    assert receiver.session.get_state() == bytes(5 * MEGABYTE)
    session_queue.close()
