"""Scans: each message is looked at once, whatever happens to it meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.broker import scans
from bendybus.broker.scans import PAGE_MAX, Scan
from bendybus.domain.commands import Abandon, Enqueue, Release
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import BrokerError, StoreUnavailable
from bendybus.names import Instant
from fix_broker import Yard, message, open_yard

MAIN = SubQueue.MAIN


class Watched:
    """A scan for messages that begin with `y`, and what it has looked at."""

    def __init__(self, yard: Yard) -> None:
        self.seen: list[str] = []
        self.scan = Scan(yard.host, MAIN, self._matches)

    def _matches(self, _: Message, payload: bytes) -> bool:
        self.seen.append(payload.decode())
        return payload.startswith(b"y")

    async def examine(self) -> BrokerError | None:
        done: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        self.scan.examine(done.set_result)
        return await done

    async def lock(self, count: int = 100) -> list[Message]:
        while self.scan.is_behind:
            assert await self.examine() is None
        return self.scan.lock(count)


async def put(yard: Yard, *texts: str) -> None:
    await yard.host.ask(Enqueue(list(map(message, texts))))
    await yard.settled()


def tokens(*messages: Message) -> list[bytes]:
    return [each.lock_token for each in messages if each.lock_token is not None]


def numbers(messages: list[Message]) -> list[int]:
    return [each.sequence_number for each in messages]


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["in the store", "in memory"])
async def test_what_matches_is_locked_and_the_rest_is_not_touched(limit):
    async with open_yard() as yard:
        yard.cache._limit = limit
        await put(yard, "y1", "n1", "y2", "n2")
        watched = Watched(yard)
        assert numbers(await watched.lock()) == [1, 3]
        assert watched.seen == ["y1", "n1", "y2", "n2"]
        rest = yard.host.lock(10, 1000, MAIN)
        assert [(each.sequence_number, each.delivery_count) for each in rest] == [(2, 0), (4, 0)]


async def test_each_message_is_looked_at_once():
    async with open_yard() as yard:
        watched = Watched(yard)
        await put(yard, "n1", "n2")
        assert await watched.lock() == []
        await put(yard, "n3", "y4")
        assert numbers(await watched.lock()) == [4]
        assert watched.seen == ["n1", "n2", "n3", "y4"]


async def test_only_what_came_back_is_looked_at_again():
    async with open_yard() as yard:
        await put(yard, *(f"n{each}" for each in range(50)), "y1", "y2")
        watched = Watched(yard)
        first, second = await watched.lock()
        watched.seen.clear()
        await yard.host.ask(Release(tokens(first)))
        await yard.host.ask(Abandon(tokens(second)))
        await yard.settled()
        again = await watched.lock()
        assert [each.delivery_count for each in again] == [0, 1]
        assert watched.seen == ["y1", "y2"]


async def test_a_page_at_a_time_is_looked_at():
    async with open_yard() as yard:
        await put(yard, *["n"] * (2 * PAGE_MAX + 1))
        watched = Watched(yard)
        for looked_at in (PAGE_MAX, 2 * PAGE_MAX, 2 * PAGE_MAX + 1):
            assert watched.scan.is_behind
            await watched.examine()
            assert len(watched.seen) == looked_at
        assert not watched.scan.is_behind


async def test_large_messages_are_looked_at_one_by_one_again_too(monkeypatch):
    monkeypatch.setattr(scans, "PAGE_BYTES_MAX", 100)
    async with open_yard() as yard:
        await put(yard, "y" * 60, "y" * 60)
        watched = Watched(yard)
        held = await watched.lock()
        watched.seen.clear()
        await yard.host.ask(Release(tokens(*held)))
        await watched.examine()
        assert (len(watched.seen), watched.scan.is_behind) == (1, True)
        assert len(await watched.lock()) == 2


async def test_what_was_found_waits_for_credit_and_may_be_taken_by_others():
    async with open_yard() as yard:
        await put(yard, "y1", "y2", "y3")
        watched = Watched(yard)
        assert numbers(await watched.lock(1)) == [1]
        assert numbers(yard.host.lock(1, 1000, MAIN)) == [2]
        assert numbers(await watched.lock(5)) == [3]
        assert watched.seen == ["y1", "y2", "y3"]


async def test_when_too_much_comes_back_the_scan_goes_back(monkeypatch):
    monkeypatch.setattr(scans, "AGAIN_MAX", 1)
    async with open_yard() as yard:
        await put(yard, "n", "y1", "n", "y2", "n")
        watched = Watched(yard)
        held = await watched.lock()
        await yard.host.ask(Release(tokens(*held)))
        assert numbers(await watched.lock()) == numbers(held)
        assert watched.seen[5:] == ["y1", "n", "y2", "n"]


async def test_after_a_failed_commit_everything_is_looked_at_again():
    async with open_yard() as yard:
        await put(yard, "n", "y")
        watched = Watched(yard)
        await watched.lock()
        yard.store.fails_once = StoreUnavailable("away")
        with pytest.raises(BrokerError):
            await put(yard, "lost")
        assert not watched.scan.is_behind
        await yard.recovered()
        assert numbers(await watched.lock()) == [2]


async def test_what_cannot_be_read_now_is_looked_at_later():
    def failing() -> list[bytes | None]:
        raise StoreUnavailable("away")

    async with open_yard() as yard:
        yard.cache._limit = 0
        await put(yard, "y")
        watched = Watched(yard)
        read, yard.store.read = yard.store.read, lambda places: failing()
        await watched.examine()
        assert not watched.seen
        yard.store.read = read
        await yard.recovered()
        assert numbers(await watched.lock()) == [1]


async def test_what_has_expired_is_not_locked():
    async with open_yard() as yard:
        late = message("y1")
        late.expires_at = Instant(yard.queue.now() + 20)
        await yard.host.ask(Enqueue([late, message("y2")]))
        await yard.settled()
        watched = Watched(yard)
        await watched.examine()
        while yard.queue.now() < late.expires_at:
            await asyncio.sleep(0.001)
        assert numbers(await watched.lock()) == [2]


async def test_a_closed_scan_is_told_no_more():
    async with open_yard() as yard:
        watched = Watched(yard)
        assert yard.host.scans
        watched.scan.close()
        assert not yard.host.scans
