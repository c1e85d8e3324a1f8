"""Group commit: what goes into one commit, and in which order it is answered."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bendybus.broker.commit_group import LARGE_COMMAND
from bendybus.broker.lifecycle import Availability
from bendybus.broker.writer import FEW_COMMANDS, GATHERING_TURNS
from bendybus.domain.commands import Enqueue
from bendybus.domain.messages import SubQueue
from bendybus.errors import StoreUnavailable
from fix_broker import gated_queue, message


async def test_what_arrives_during_a_commit_shares_the_next_one():
    async with gated_queue(partitions=2) as gated:
        gated.store.shut()
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        await gated.at_the_gate()
        for number in range(5):
            gated.queue.hosts[number % 2].submit(Enqueue([message()]), gated.replies.append)
        gated.store.open_gate()
        await gated.settled()
        sizes = [[len(change.stored) for change in group] for group in gated.store.groups]
        assert sizes == [[1], [3, 2]]
        assert len(gated.replies) == 6


async def test_what_is_submitted_in_one_turn_of_the_loop_shares_a_commit():
    async with gated_queue(partitions=4) as gated:
        for host in gated.queue.hosts:
            host.submit(Enqueue([message()]), gated.replies.append)
            # Time enough for the thread to begin a commit with a part of it.
            threading.Event().wait(0.02)
        await gated.settled()
        assert [len(group) for group in gated.store.groups] == [4]


async def test_several_small_commands_wait_for_those_of_the_next_turns():
    async with gated_queue(partitions=16) as gated:
        for turn in range(GATHERING_TURNS):
            for host in gated.queue.hosts[turn * FEW_COMMANDS : (turn + 1) * FEW_COMMANDS]:
                host.submit(Enqueue([message()]), gated.replies.append)
            # Time enough for the thread to begin a commit.
            threading.Event().wait(0.02)
            await asyncio.sleep(0)
        await gated.settled()
        assert [len(group) for group in gated.store.groups] == [GATHERING_TURNS * FEW_COMMANDS]


async def test_a_few_commands_do_not_wait_for_the_next_turn():
    async with gated_queue(partitions=16) as gated:
        for turn in range(2):
            for host in gated.queue.hosts[turn * 8 : turn * 8 + FEW_COMMANDS - 1]:
                host.submit(Enqueue([message()]), gated.replies.append)
            await asyncio.sleep(0)
            assert gated.store.reached.wait(10)
            threading.Event().wait(0.02)
        await gated.settled()
        assert [len(group) for group in gated.store.groups] == [FEW_COMMANDS - 1] * 2


async def test_small_commands_that_come_during_a_commit_wait_for_one_turn_only():
    async with gated_queue(partitions=16) as gated:
        gated.store.shut()
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        await gated.at_the_gate()
        for host in gated.queue.hosts[: 2 * FEW_COMMANDS]:
            host.submit(Enqueue([message()]), gated.replies.append)
        await asyncio.sleep(0)
        gated.store.let_one_through()
        # The loop has no turn meanwhile.
        assert gated.store.reached.wait(10)
        gated.store.open_gate()
        await gated.settled()
        assert [len(group) for group in gated.store.groups] == [1, 2 * FEW_COMMANDS]


async def test_a_large_command_does_not_wait_for_the_end_of_the_turn():
    async with gated_queue() as gated:
        gated.store.shut()
        gated.host.submit(Enqueue([message() for _ in range(LARGE_COMMAND)]), gated.replies.append)
        # The loop has no turn meanwhile.
        assert gated.store.reached.wait(10)
        gated.store.open_gate()
        await gated.settled()


async def test_a_loop_that_never_rests_does_not_hold_up_a_commit():
    async with gated_queue() as gated:
        gated.store.shut()
        while not gated.store.reached.is_set():
            gated.host.submit(Enqueue([message()]), gated.replies.append)
            await asyncio.sleep(0)
        gated.store.open_gate()
        await gated.settled()


async def test_a_store_that_is_given_up_before_a_commit_begins_stores_nothing():
    async with gated_queue() as gated:
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        gated.attached.writer.abandon(StoreUnavailable("given up"))
        await gated.attached.writer.run(lambda: None)
        assert gated.store.groups == []
        assert [type(reply) for reply in gated.replies] == [StoreUnavailable]


async def test_answers_come_in_the_order_of_submission():
    async with gated_queue() as gated:
        order: list[int] = []
        gated.store.shut()
        for number in range(10):
            gated.host.submit(Enqueue([message()]), lambda _, number=number: order.append(number))
        gated.store.open_gate()
        await gated.settled()
        assert order == list(range(10))


async def test_receivers_are_woken_once_for_all_partitions_of_a_commit():
    async with gated_queue(partitions=4) as gated:
        woken: list[list[int]] = []

        class Receiver:
            def wake(self) -> None:
                woken.append([host.available(SubQueue.MAIN) for host in gated.queue.hosts])
                gated.queue.wait(self, SubQueue.MAIN)

        gated.queue.wait(Receiver(), SubQueue.MAIN)
        gated.store.shut()
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        await gated.at_the_gate()
        for host in gated.queue.hosts:
            host.submit(Enqueue([message()]), gated.replies.append)
        gated.store.open_gate()
        await gated.settled()
        assert woken == [[1, 0, 0, 0], [2, 1, 1, 1]]


async def test_what_is_due_after_the_answers_is_done_at_once_if_nothing_is_answered():
    async with gated_queue() as gated:
        gated.attached.writer.after_answers(gated.replies.append)
        assert gated.replies == [None]


async def test_a_callback_that_fails_costs_no_other_its_answer(caplog):
    async with gated_queue() as gated:

        def broken(_: object) -> None:
            raise ZeroDivisionError

        gated.store.shut()
        gated.host.submit(Enqueue([message()]), broken)
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        gated.store.open_gate()
        await gated.settled()
        assert len(gated.replies) == 1

    assert "a callback failed" in caplog.text


async def test_draining_waits_for_the_commit_after_the_one_under_way():
    async with gated_queue() as gated:
        gated.store.shut()
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        await gated.at_the_gate()
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        gated.store.let_one_through()
        await gated.at_the_gate()
        drained = asyncio.ensure_future(gated.attached.writer.drain())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not drained.done()
        gated.store.open_gate()
        await drained
        assert len(gated.replies) == 2


async def test_a_load_waits_for_what_was_submitted_before_it():
    async with gated_queue() as gated:
        gated.store.shut()
        gated.host.submit(Enqueue([message()]), gated.replies.append)
        gated.host.fail(StoreUnavailable("read error"))
        gated.host.load()
        await gated.read_back()
        assert gated.host.availability is Availability.LOADING
        gated.store.open_gate()
        await gated.loaded()
        assert gated.host.available(SubQueue.MAIN) == 1


async def test_errands_run_in_the_writers_thread_and_tell_what_happened():
    async with gated_queue() as gated:
        name = await gated.attached.writer.run(lambda: threading.current_thread().name)
        assert name == "writer-gated"
        with pytest.raises(ZeroDivisionError):
            await gated.attached.writer.run(lambda: 1 // 0)
