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
from fix_broker import GatedQueue, gated_queue, message

MAIN = SubQueue.MAIN


class Watched:
    """A scan for messages that begin with `y`, and what it has looked at."""

    def __init__(self, gated: GatedQueue) -> None:
        self.seen: list[str] = []
        self.scan = Scan(gated.host, MAIN, self._matches)

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


async def put(gated: GatedQueue, *texts: str) -> None:
    await gated.host.ask(Enqueue(list(map(message, texts))))
    await gated.settled()


def tokens(*messages: Message) -> list[bytes]:
    return [each.lock_token for each in messages if each.lock_token is not None]


def numbers(messages: list[Message]) -> list[int]:
    return [each.sequence_number for each in messages]


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["in the store", "in memory"])
async def test_what_matches_is_locked_and_the_rest_is_not_touched(limit):
    async with gated_queue() as gated:
        gated.cache.limit_bytes = limit
        await put(gated, "y1", "n1", "y2", "n2")
        watched = Watched(gated)
        assert numbers(await watched.lock()) == [1, 3]
        assert watched.seen == ["y1", "n1", "y2", "n2"]
        rest = gated.host.lock(10, 1000, MAIN)
        assert [(each.sequence_number, each.delivery_count) for each in rest] == [(2, 0), (4, 0)]


async def test_each_message_is_looked_at_once():
    async with gated_queue() as gated:
        watched = Watched(gated)
        await put(gated, "n1", "n2")
        assert await watched.lock() == []
        await put(gated, "n3", "y4")
        assert numbers(await watched.lock()) == [4]
        assert watched.seen == ["n1", "n2", "n3", "y4"]


async def test_only_what_came_back_is_looked_at_again():
    async with gated_queue() as gated:
        await put(gated, *(f"n{each}" for each in range(50)), "y1", "y2")
        watched = Watched(gated)
        first, second = await watched.lock()
        watched.seen.clear()
        await gated.host.ask(Release(tokens(first)))
        await gated.host.ask(Abandon(tokens(second)))
        await gated.settled()
        again = await watched.lock()
        assert [each.delivery_count for each in again] == [0, 1]
        assert watched.seen == ["y1", "y2"]


async def test_a_page_at_a_time_is_looked_at():
    async with gated_queue() as gated:
        await put(gated, *["n"] * (2 * PAGE_MAX + 1))
        watched = Watched(gated)
        for looked_at in (PAGE_MAX, 2 * PAGE_MAX, 2 * PAGE_MAX + 1):
            assert watched.scan.is_behind
            await watched.examine()
            assert len(watched.seen) == looked_at
        assert not watched.scan.is_behind


async def test_large_messages_are_looked_at_one_by_one_again_too(monkeypatch):
    monkeypatch.setattr(scans, "PAGE_BYTES_MAX", 100)
    async with gated_queue() as gated:
        await put(gated, "y" * 60, "y" * 60)
        watched = Watched(gated)
        held = await watched.lock()
        watched.seen.clear()
        await gated.host.ask(Release(tokens(*held)))
        await watched.examine()
        assert (len(watched.seen), watched.scan.is_behind) == (1, True)
        assert len(await watched.lock()) == 2


async def test_what_was_found_waits_for_credit_and_may_be_taken_by_others():
    async with gated_queue() as gated:
        await put(gated, "y1", "y2", "y3")
        watched = Watched(gated)
        assert numbers(await watched.lock(1)) == [1]
        assert numbers(gated.host.lock(1, 1000, MAIN)) == [2]
        assert numbers(await watched.lock(5)) == [3]
        assert watched.seen == ["y1", "y2", "y3"]


async def test_when_too_much_comes_back_the_scan_goes_back(monkeypatch):
    monkeypatch.setattr(scans, "AGAIN_MAX", 1)
    async with gated_queue() as gated:
        await put(gated, "n", "y1", "n", "y2", "n")
        watched = Watched(gated)
        held = await watched.lock()
        await gated.host.ask(Release(tokens(*held)))
        assert numbers(await watched.lock()) == numbers(held)
        assert watched.seen[5:] == ["y1", "n", "y2", "n"]


async def test_after_a_failed_commit_everything_is_looked_at_again():
    async with gated_queue() as gated:
        await put(gated, "n", "y")
        watched = Watched(gated)
        await watched.lock()
        gated.store.fails_once = StoreUnavailable("away")
        with pytest.raises(BrokerError):
            await put(gated, "lost")
        assert not watched.scan.is_behind
        await gated.recovered()
        assert numbers(await watched.lock()) == [2]


async def test_what_cannot_be_read_now_is_looked_at_later():
    def failing() -> list[bytes | None]:
        raise StoreUnavailable("away")

    async with gated_queue() as gated:
        gated.cache.limit_bytes = 0
        await put(gated, "y")
        watched = Watched(gated)
        read, gated.store.read = gated.store.read, lambda places: failing()
        await watched.examine()
        assert not watched.seen
        gated.store.read = read
        await gated.recovered()
        assert numbers(await watched.lock()) == [1]


async def test_what_has_expired_is_not_locked():
    async with gated_queue() as gated:
        late = message("y1")
        late.expires_at = Instant(gated.queue.now() + 20)
        await gated.host.ask(Enqueue([late, message("y2")]))
        await gated.settled()
        watched = Watched(gated)
        await watched.examine()
        while gated.queue.now() < late.expires_at:
            await asyncio.sleep(0.001)
        assert numbers(await watched.lock()) == [2]


async def test_a_closed_scan_is_told_no_more():
    async with gated_queue() as gated:
        watched = Watched(gated)
        assert gated.host.scans
        watched.scan.close()
        assert not gated.host.scans
