"""Answers to one socket read are sent together, but not after more than `TURNS` turns of the loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from bendybus.domain.routing import partition_of
from bendybus.gateway.joined_answers import TURN_S, TURNS, JoinedAnswers
from fix_async import until
from fix_broker import gated_queue
from unit.gateway.test_sender import delivery, sender_on


async def test_answers_wait_for_each_other():
    sent: list[str] = []
    joined = JoinedAnswers(3)
    joined.ready(lambda: sent.append("a"))
    joined.ready(lambda: sent.append("b"))
    assert sent == []
    joined.ready(lambda: sent.append("c"))
    assert sent == ["a", "b", "c"]


async def test_answers_do_not_wait_long():
    sent = asyncio.Event()
    JoinedAnswers(2).ready(sent.set)
    await sent.wait()


async def test_a_busy_broker_waits_for_turns_and_not_for_a_time():
    sent: list[str] = []
    joined = JoinedAnswers(2)
    joined.ready(lambda: sent.append("first"))
    for _ in range(TURNS - 1):
        # The turn takes longer than the whole wait of an idle broker.
        time.sleep(TURN_S * TURNS)
        await asyncio.sleep(0)
    assert sent == []
    joined.ready(lambda: sent.append("second"))
    assert sent == ["first", "second"]


async def test_what_is_ready_late_waits_for_the_rest_again():
    sent: list[str] = []
    joined = JoinedAnswers(3)
    joined.ready(lambda: sent.append("early"))
    await until(lambda: sent == ["early"])
    joined.ready(lambda: sent.append("late"))
    assert sent == ["early"]
    joined.ready(lambda: sent.append("last"))
    assert sent == ["early", "late", "last"]


def keys_of(partition: int) -> list[str]:
    return [key for key in map(str, range(20)) if partition_of(key, 2) == partition]


async def test_a_read_over_two_stores_is_answered_at_once():
    async with gated_queue(partitions=2, stores=2) as gated:
        sender, link, _ = sender_on(gated)
        gated.store.shut()
        sender.deliveries([delivery(1, keys_of(0)[0]), delivery(2, keys_of(1)[0])])
        await gated.others[0].writer.drain()
        assert link.outcomes == {}
        gated.store.open_gate()
        await gated.settled()
        assert link.outcomes == {1: "accepted", 2: "accepted"}


@pytest.mark.row("P-27")
async def test_a_stalled_store_does_not_delay_the_answers_of_another():
    async with gated_queue(partitions=2, stores=2) as gated:
        sender, link, _ = sender_on(gated)
        gated.store.shut()
        sender.deliveries([delivery(1, keys_of(0)[0]), delivery(2, keys_of(1)[0])])
        await until(lambda: link.outcomes == {2: "accepted"})
        gated.store.open_gate()
        await gated.settled()
        assert link.outcomes == {1: "accepted", 2: "accepted"}
