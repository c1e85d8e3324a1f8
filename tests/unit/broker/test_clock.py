"""A machine whose clock is set back while messages and sessions are locked."""

from __future__ import annotations

import time

import pytest

from bendybus.broker.broker import Broker
from bendybus.broker.clock import Clock
from bendybus.domain.commands import Enqueue
from bendybus.domain.entities import QueueDescription
from bendybus.domain.messages import Message, SubQueue
from bendybus.domain.session_commands import AcceptSession
from bendybus.names import EntityPath, SessionId
from bendybus.store.memory import MemoryStore
from bendybus.store.memory_catalog import MemoryCatalog

HOUR_S = 3600
LOCK_S = 30


class Wall:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1_800_000_000.0
        monkeypatch.setattr(time, "time_ns", lambda: int(self.seconds * 1e9))


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


@pytest.mark.row("P-26")
@pytest.mark.parametrize("partitions", [16, 1])
@pytest.mark.parametrize("sessions", [False, True])
async def test_a_clock_set_back_does_not_hold_locks_for_an_hour(
    wall: Wall, partitions: int, sessions: bool
) -> None:
    broker = Broker(MemoryCatalog(), [MemoryStore("a")])
    broker.start()
    described = QueueDescription(
        EntityPath("q"),
        lock_duration_s=LOCK_S,
        enable_partitioning=partitions > 1,
        requires_session=sessions,
    )
    queue = await broker.queues.create(described)
    host = queue.hosts[-1]
    await host.ask(Enqueue([Message(b"held", size=4, session_id=SessionId("s") if sessions else None)]))
    if sessions:
        await host.ask(AcceptSession(SessionId("s"), b"e" * 14))
    else:
        assert len(host.lock(1, 1 << 20, SubQueue.MAIN)) == 1

    def held() -> bool:
        broker.ticker.tick()
        if sessions:
            return host.partition.available() == 0
        return host.partition.counts().locked == 1

    wall.seconds += LOCK_S / 2
    assert held()
    wall.seconds -= HOUR_S
    assert held()
    wall.seconds += LOCK_S / 2 - 1
    assert held()
    wall.seconds += 2
    assert not held()
    await broker.stop()


def test_a_small_correction_of_the_clock_is_no_event(wall: Wall) -> None:
    told: list[int] = []
    clock = Clock()
    clock.on_set_back = told.append
    clock.now()
    wall.seconds -= 4
    clock.now()
    wall.seconds += 1
    clock.now()
    assert told == []
    wall.seconds -= 10
    clock.now()
    clock.now()
    assert told == [13_000]
