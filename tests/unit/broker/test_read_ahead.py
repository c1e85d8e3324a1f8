"""Payloads of the next messages are read together with those that are needed now."""

from __future__ import annotations

import pytest

from bendybus.broker import read_ahead
from bendybus.build import is_compiled
from bendybus.domain.commands import Complete, Enqueue
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import StoreCorrupted
from fix_broker import GatedQueue, gated_queue

changes_a_constant = pytest.mark.skipif(is_compiled(), reason="compiled code contains its constants")


class Reads:
    """Notes how many payloads each call reads. `damaged`: a call that wants one of these rows fails."""

    def __init__(self, gated: GatedQueue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[int] = []
        self.damaged: set[int] = set()
        self._read = gated.store.read
        monkeypatch.setattr(gated.store, "read", self)

    def __call__(self, row_ids):
        if row_ids:
            self.counts.append(len(row_ids))
        if self.damaged.intersection(row_ids):
            raise StoreCorrupted("a page is damaged")
        return self._read(row_ids)


async def waiting(gated: GatedQueue, count: int, session_of=lambda number: None) -> None:
    """So many messages wait, and only the store has their payloads."""
    gated.cache.limit_bytes = 0
    for number in range(count):
        text = f"{number}"
        await gated.host.ask(Enqueue([Message(text.encode(), size=len(text), session_id=session_of(number))]))


def lock(gated: GatedQueue, count: int) -> list[Message]:
    return gated.host.lock(count, 1 << 20, SubQueue.MAIN)


def payloads_of(messages: list[Message]) -> list[bytes | None]:
    return [each.payload for each in messages]


async def test_the_next_messages_are_in_memory_after_a_read(monkeypatch):
    async with gated_queue() as gated:
        await waiting(gated, 5)
        reads = Reads(gated, monkeypatch)
        assert await gated.host.payloads(lock(gated, 2)) == [b"0", b"1"]
        assert payloads_of(lock(gated, 3)) == [b"2", b"3", b"4"]
        assert reads.counts == [5]


async def test_those_of_the_next_sessions_too(monkeypatch):
    async with gated_queue(requires_session=True) as gated:
        await waiting(gated, 6, lambda number: f"s{number % 3}")
        reads = Reads(gated, monkeypatch)
        for number in range(3):
            accepted = gated.host.accept_next_session()
            held = gated.host.lock_in_session(accepted.lock, 10, 1 << 20)
            assert await gated.host.payloads(held) == [b"%d" % number, b"%d" % (number + 3)]
        assert reads.counts == [6]


async def test_browsing_reads_nothing_ahead(monkeypatch):
    async with gated_queue() as gated:
        await waiting(gated, 5)
        reads = Reads(gated, monkeypatch)
        browsed = list(gated.host.waiting(1, 2, 1 << 20, SubQueue.MAIN))
        assert await gated.host.payloads(browsed) == [b"0", b"1"]
        assert reads.counts == [2]


@changes_a_constant
async def test_no_more_is_kept_than_there_is_room_for(monkeypatch):
    async with gated_queue() as gated:
        await waiting(gated, 5)
        size = lock(gated, 1)[0].size
        monkeypatch.setattr("bendybus.broker.payload_cache.READ_AHEAD_BYTES", 2 * size)
        await gated.host.payloads(lock(gated, 1))
        assert payloads_of(lock(gated, 3)) == [b"2", b"3", None]
        assert gated.cache.used_bytes == 2 * size


@changes_a_constant
async def test_one_read_does_not_bring_everything(monkeypatch):
    monkeypatch.setattr(read_ahead, "AHEAD_MAX", 1)
    async with gated_queue() as gated:
        await waiting(gated, 3)
        await gated.host.payloads(lock(gated, 1))
        assert payloads_of(lock(gated, 2)) == [b"1", None]


async def test_what_is_removed_while_it_is_read_takes_no_room():
    async with gated_queue() as gated:
        await waiting(gated, 2)
        reply: list[object] = []
        gated.host.read(lock(gated, 1), reply.append)
        (second,) = lock(gated, 1)
        gated.host.submit(Complete([second.lock_token]), gated.replies.append)
        await gated.settled()
        await gated.read_back()
        assert (reply, second.payload, gated.cache.used_bytes) == ([[b"0"]], None, 0)


async def test_the_room_is_free_again_when_the_messages_are_gone():
    async with gated_queue() as gated:
        await waiting(gated, 3)
        held = lock(gated, 1)
        await gated.host.payloads(held)
        held += lock(gated, 2)
        assert gated.cache.used_bytes > 0
        await gated.host.ask(Complete([each.lock_token for each in held]))
        assert gated.cache.used_bytes == 0


async def test_damage_of_a_later_message_does_not_keep_the_first_from_its_receiver(monkeypatch):
    async with gated_queue() as gated:
        await waiting(gated, 2)
        reads = Reads(gated, monkeypatch)
        (first,) = lock(gated, 1)
        reads.damaged = {first.row_id + 1}
        assert await gated.host.payloads([first]) == [b"0"]
        assert reads.counts == [2, 1]
