"""The session links of a connection are served together: what each gets, and how much at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bendybus.amqp.message import Properties, encode_message
from bendybus.amqp.performatives import Source
from bendybus.domain.commands import Enqueue
from bendybus.domain.messages import Message
from bendybus.domain.session_commands import SessionLock
from bendybus.envelope import admit
from bendybus.gateway.ready_sessions import ReadySessions
from bendybus.gateway.session_filters import SESSION_FILTER, wanted_session
from bendybus.gateway.session_receiver import SessionReceiver
from bendybus.names import Instant
from fix_broker import GatedQueue, gated_queue
from unit.gateway.test_session_receiver import FakeConnection, FakeLink, hold_reads


def links_on(
    gated: GatedQueue, connection: FakeConnection, *sessions: str
) -> tuple[list[SessionReceiver], list[FakeLink]]:
    """A link for each of these sessions, without credit."""
    links = [FakeLink(Source(filter={SESSION_FILTER: each}), name=each) for each in sessions]
    receivers = []
    for link in links:
        wanted = wanted_session(link.source)
        assert wanted is not None
        receivers.append(SessionReceiver(connection, link, gated.queue, wanted))
        receivers[-1].accept()
    return receivers, links


async def put(gated: GatedQueue, *ids: str) -> None:
    """Messages whose first letter is their session."""
    messages = []
    for each in ids:
        payload = encode_message(properties=Properties(message_id=each, group_id=each[0]), data=b"x")
        messages.append(admit(payload, Instant(0), gated.queue.description)[0])
    await gated.host.ask(Enqueue(messages))
    await gated.settled()


def note_locking(gated: GatedQueue) -> list[list[str]]:
    """From now on: the sessions of each question to the partition."""
    asked: list[list[str]] = []
    lock = gated.host.lock_in_sessions

    def noted(
        wanted: Sequence[tuple[SessionLock, int]], size_max: int
    ) -> tuple[list[tuple[SessionLock, list[Message], bool]], int]:
        asked.append([lock.session_id for lock, _ in wanted])
        return lock(wanted, size_max)

    gated.host.lock_in_sessions = noted
    return asked


@pytest.mark.row("P-13")
async def test_links_of_one_connection_are_served_by_one_command():
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "a1", "b1", "a2", "c1", "c2")
        connection = FakeConnection()
        receivers, links = links_on(gated, connection, "a", "b", "c")
        asked = note_locking(gated)
        for receiver, link in zip(receivers, links, strict=True):
            link.credit = 2
            receiver.flow()
        connection.flush_soon()
        assert [link.sent for link in links] == [["a1", "a2"], ["b1"], ["c1", "c2"]]
        assert asked == [["a", "b", "c"]]


async def test_more_than_a_page_is_sent_page_by_page():
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "a1", "b1", "a2", "b2")
        connection = FakeConnection()
        connection.ready_sessions = ReadySessions(connection, page_bytes=1)
        receivers, links = links_on(gated, connection, "a", "b")
        asked = note_locking(gated)
        for receiver, link in zip(receivers, links, strict=True):
            link.credit = 2
            receiver.flow()
        connection.flush_soon()
        assert [link.sent for link in links] == [["a1", "a2"], ["b1", "b2"]]
        assert len(asked) == 4


async def test_nothing_is_locked_for_a_client_that_does_not_read():
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "a1", "b1")
        connection = FakeConnection()
        connection.ready_sessions = ReadySessions(connection, page_bytes=1)
        receivers, links = links_on(gated, connection, "a", "b")

        def sent(size: int) -> None:
            connection.writable = False

        connection.sent = sent
        for receiver, link in zip(receivers, links, strict=True):
            link.credit = 2
            receiver.flow()
        connection.flush_soon()
        assert [link.sent for link in links] == [["a1"], []]
        assert gated.host.partition.counts().locked == 1


async def test_a_link_that_must_read_delays_no_other():
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "a1")
        for message in gated.host.partition.confirmed():
            message.payload = None
        await put(gated, "b1")
        gate = hold_reads(gated.store)
        connection = FakeConnection()
        receivers, links = links_on(gated, connection, "a", "b")
        for receiver, link in zip(receivers, links, strict=True):
            link.credit = 1
            receiver.flow()
        connection.flush_soon()
        assert [link.sent for link in links] == [[], ["b1"]]
        gate.set()
        await gated.read_back()
        assert [link.sent for link in links] == [["a1"], ["b1"]]


async def test_what_the_store_has_at_hand_is_sent_at_once():
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "a1", "b1")
        payloads: dict[int, bytes] = {}
        for message in gated.host.partition.confirmed():
            payloads[message.body_row_id], message.payload = message.payload, None
        gated.store.at_hand = lambda row_ids: [payloads[row_id] for row_id in row_ids]
        connection = FakeConnection()
        receivers, links = links_on(gated, connection, "a", "b")
        for receiver, link in zip(receivers, links, strict=True):
            link.credit = 1
            receiver.flow()
        connection.flush_soon()
        assert [link.sent for link in links] == [["a1"], ["b1"]]


async def test_a_link_that_was_closed_in_the_meantime_is_given_nothing():
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "a1", "b1")
        connection = FakeConnection()
        receivers, links = links_on(gated, connection, "a", "b")
        for receiver, link in zip(receivers, links, strict=True):
            link.credit = 1
            receiver.flow()
        receivers[0].close()
        connection.flush_soon()
        assert [link.sent for link in links] == [[], ["b1"]]
        assert gated.host.partition.counts().locked == 1


@pytest.mark.row("P-13")
async def test_what_an_amqp_session_has_no_room_for_stays_in_its_message_session():
    """All links of an AMQP session share its window. What one sends may leave no room for the next."""
    async with gated_queue(requires_session=True) as gated:
        await put(gated, "a1", "b1", "b2")
        connection = FakeConnection()
        receivers, links = links_on(gated, connection, "a", "b")
        send = links[0].send

        def fill(outgoing: Sequence[tuple[bytes, bytes, bytes]], *, settled: bool, overrun: bool) -> int:
            links[1].credit, links[1].crowded = 1, True
            return send(outgoing, settled=settled, overrun=overrun)

        links[0].send = fill
        for receiver, link in zip(receivers, links, strict=True):
            link.credit = 2
            receiver.flow()
        connection.flush_soon()
        assert [link.sent for link in links] == [["a1"], ["b1"]]
        assert gated.host.partition.counts().locked == 2
        await put(gated, "b3")
        links[1].credit, links[1].crowded = 3, False
        receivers[1].flow()
        connection.flush_soon()
        assert links[1].sent == ["b1", "b2", "b3"]
