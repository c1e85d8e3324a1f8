"""Turns: what one connection may do before the next is looked at, whoever its client is."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.gateway.turns import (
    SLICE_WORK,
    STRANGER_SLICE_WORK,
    STRANGERS_TURN_WORK,
    TURN_WORK,
    Turns,
)


class Peer:
    """As much of a connection as turns use: so much work to do, and a list of who did some."""

    def __init__(self, name: str, diary: list[str], work: int, *, authenticated: bool) -> None:
        self.name = name
        self.left = work
        self.authenticated = authenticated
        self.slowed = False
        self.waits = False
        self._diary = diary

    @property
    def busy(self) -> bool:
        return self.left > 0

    def work(self, work_max: int) -> int:
        done = min(self.left, work_max)
        self.left -= done
        self._diary.append(self.name)
        return done

    def wait_for_turn(self, waits: bool) -> None:
        self.waits = waits


async def until_done(*peers: Peer) -> None:
    while any(peer.busy for peer in peers):
        await asyncio.sleep(0)


async def test_a_read_within_a_turn_is_handled_at_once() -> None:
    peer = Peer("a", [], SLICE_WORK, authenticated=True)
    Turns().take(peer)
    assert not peer.busy and not peer.waits


async def test_connections_take_turns_and_are_not_read_while_they_wait() -> None:
    diary: list[str] = []
    turns = Turns()
    peers = [Peer(name, diary, 3 * TURN_WORK, authenticated=True) for name in "ab"]
    for peer in peers:
        turns.take(peer)
    assert all(peer.waits for peer in peers)
    await until_done(*peers)
    slices = -(-TURN_WORK // SLICE_WORK)
    assert "".join(diary).startswith("a" * slices + "b" * slices + "a" * slices)
    assert not any(peer.waits for peer in peers)


async def test_all_strangers_together_have_one_turn() -> None:
    diary: list[str] = []
    turns = Turns()
    strangers = [Peer(str(number), diary, STRANGERS_TURN_WORK, authenticated=False) for number in range(50)]
    for stranger in strangers:
        turns.take(stranger)
    # As much as the turn has room for; the others wait, and are served in their order.
    assert len(diary) == STRANGERS_TURN_WORK // STRANGER_SLICE_WORK
    assert strangers[-1].waits
    known = Peer("known", diary, 1, authenticated=True)
    turns.take(known)
    assert diary[-1] == "known"
    await until_done(*strangers)
    assert not any(stranger.waits for stranger in strangers)
    assert [name for name in dict.fromkeys(diary) if name != "known"] == [str(n) for n in range(50)]


async def test_a_stranger_that_proves_itself_goes_on_as_a_client() -> None:
    stranger = Peer("s", [], STRANGER_SLICE_WORK + TURN_WORK, authenticated=False)
    turns = Turns()
    slice_of = stranger.work

    def prove(work_max: int) -> int:
        stranger.authenticated = True
        return slice_of(work_max)

    stranger.work = prove  # type: ignore[method-assign]
    turns.take(stranger)
    assert not stranger.busy


async def test_a_slowed_stranger_waits_while_others_are_served() -> None:
    diary: list[str] = []
    turns = Turns()
    slow = Peer("slow", diary, 3 * STRANGER_SLICE_WORK, authenticated=False)
    slow.slowed = True
    turns.take(slow)
    assert slow.busy and slow.waits
    other = Peer("other", diary, 3 * STRANGER_SLICE_WORK, authenticated=False)
    turns.take(other)
    await until_done(other)
    assert diary.count("slow") == 1
    await until_done(slow)
    assert not slow.waits


@pytest.mark.parametrize("authenticated", [True, False])
async def test_work_is_left_alone_when_it_vanishes(authenticated: bool) -> None:
    """A connection that goes has nothing to do any more, and its turn passes over it."""

    diary: list[str] = []
    peer = Peer("a", diary, 10 * TURN_WORK, authenticated=authenticated)
    Turns().take(peer)
    peer.left = 0
    done = len(diary)
    await asyncio.sleep(0.05)
    assert len(diary) <= done + 1
