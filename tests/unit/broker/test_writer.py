"""Group commit: what goes into one commit, and in which order it is answered."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bendybus.broker.lifecycle import Availability
from bendybus.domain.commands import Enqueue
from bendybus.domain.messages import SubQueue
from bendybus.errors import StoreUnavailable
from fix_broker import message, open_yard


async def test_what_arrives_during_a_commit_shares_the_next_one():
    async with open_yard(partitions=2) as yard:
        yard.store.shut()
        yard.host.submit(Enqueue([message()]), yard.replies.append)
        await yard.at_the_gate()
        for number in range(5):
            yard.queue.hosts[number % 2].submit(Enqueue([message()]), yard.replies.append)
        yard.store.open_gate()
        await yard.settled()
        sizes = [[len(change.stored) for change in group] for group in yard.store.groups]
        assert sizes == [[1], [3, 2]]
        assert len(yard.replies) == 6


async def test_answers_come_in_the_order_of_submission():
    async with open_yard() as yard:
        order: list[int] = []
        yard.store.shut()
        for number in range(10):
            yard.host.submit(Enqueue([message()]), lambda _, number=number: order.append(number))
        yard.store.open_gate()
        await yard.settled()
        assert order == list(range(10))


async def test_a_callback_that_fails_costs_no_other_its_answer(caplog):
    async with open_yard() as yard:

        def broken(_: object) -> None:
            raise ZeroDivisionError

        yard.store.shut()
        yard.host.submit(Enqueue([message()]), broken)
        yard.host.submit(Enqueue([message()]), yard.replies.append)
        yard.store.open_gate()
        await yard.settled()
        assert len(yard.replies) == 1

    assert "a callback failed" in caplog.text


async def test_draining_waits_for_the_commit_after_the_one_under_way():
    async with open_yard() as yard:
        yard.store.shut()
        yard.host.submit(Enqueue([message()]), yard.replies.append)
        await yard.at_the_gate()
        yard.host.submit(Enqueue([message()]), yard.replies.append)
        yard.store.let_one_through()
        await yard.at_the_gate()
        drained = asyncio.ensure_future(yard.attached.writer.drain())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not drained.done()
        yard.store.open_gate()
        await drained
        assert len(yard.replies) == 2


async def test_a_load_waits_for_what_was_submitted_before_it():
    async with open_yard() as yard:
        yard.store.shut()
        yard.host.submit(Enqueue([message()]), yard.replies.append)
        yard.host._fail(StoreUnavailable("read error"))
        yard.host.load()
        await yard.read_back()
        assert yard.host.availability is Availability.LOADING
        yard.store.open_gate()
        await yard.loaded()
        assert yard.host.available(SubQueue.MAIN) == 1


async def test_errands_run_in_the_writers_thread_and_tell_what_happened():
    async with open_yard() as yard:
        name = await yard.attached.writer.run(lambda: threading.current_thread().name)
        assert name == "writer-gated"
        with pytest.raises(ZeroDivisionError):
            await yard.attached.writer.run(lambda: 1 // 0)
