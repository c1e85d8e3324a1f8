"""Links that browse or select, over stores that are slow or away."""

from __future__ import annotations

import asyncio

import pytest

from bendybus.amqp.message import Properties, decode_message, encode_message
from bendybus.broker.partition_host import PartitionHost
from bendybus.domain.commands import Enqueue
from bendybus.domain.filters import Selector
from bendybus.domain.messages import SubQueue
from bendybus.envelope import admit
from bendybus.gateway.browser import Browser
from bendybus.gateway.selective_receiver import SelectiveReceiver
from bendybus.gateway.source_filters import Selection
from bendybus.names import Instant
from fix_async import until
from fix_broker import GatedQueue, gated_queue
from unit.gateway.test_receiver import FakeConnection, FakeLink, put, slow_and_quick, waiting

MAIN = SubQueue.MAIN


class BrowsingLink(FakeLink):
    def send(self, outgoing, *, settled: bool = True, overrun: bool = False) -> int:
        self.sent += [decode_message(head + body).properties.message_id for _, head, body in outgoing]
        self.credit -= len(outgoing)
        return len(outgoing)


def browser_on(gated: GatedQueue, credit: int, *, drain: bool = False) -> tuple[Browser, BrowsingLink]:
    link = BrowsingLink(credit=credit, drain=drain)
    return Browser(FakeConnection(), link, gated.queue, MAIN), link


def selective_on(
    gated: GatedQueue, text: str, credit: int, *, drain: bool = False
) -> tuple[SelectiveReceiver, FakeLink]:
    link = FakeLink(credit=credit, drain=drain)
    selection = Selection([Selector(text)])
    return SelectiveReceiver(FakeConnection(), link, gated.queue, MAIN, selection), link


async def put_numbered(host: PartitionHost, numbers: range) -> None:
    description = host.queue.description
    messages = [
        admit(
            encode_message(
                properties=Properties(message_id=str(number)),
                application_properties={"n": number},
                data=b"x",
            ),
            Instant(0),
            description,
        )[0]
        for number in numbers
    ]
    await host.ask(Enqueue(messages))


@pytest.mark.row("P-27")
async def test_a_browser_passes_over_a_partition_that_is_away_and_shows_it_when_it_is_back():
    async with gated_queue(partitions=2, stores=2) as gated:
        gate = await slow_and_quick(gated)
        browser, link = browser_on(gated, 5, drain=True)
        browser.flow()
        await until(lambda: gated.attached.reader.step is not None)
        gated.pass_time(3)
        await until(lambda: link.drains_answered == 1)
        assert link.sent == ["quick"]
        gate.set()
        await gated.recovered()
        link.credit = 5
        browser.wake()
        await until(lambda: link.sent == ["quick", "slow"])


async def test_a_browser_goes_page_by_page_and_takes_nothing():
    async with gated_queue() as gated:
        await put(gated, 0, *map(str, range(250)))
        browser, link = browser_on(gated, 1000, drain=True)
        browser.flow()
        assert len(link.sent) == 100
        await until(lambda: link.drains_answered == 1)
        assert link.sent == [str(number) for number in range(250)]
        assert waiting(gated) == 250


async def test_a_browser_begins_again_when_its_queue_was_emptied():
    async with gated_queue() as gated:
        await put(gated, 0, "a")
        browser, link = browser_on(gated, 1000)
        browser.flow()
        await until(lambda: link.sent == ["a"])
        gated.queue.generation = "another"
        browser.wake()
        await until(lambda: link.sent == ["a", "a"])


@pytest.mark.row("P-27")
async def test_a_selective_receiver_does_not_wait_for_a_stalled_store():
    async with gated_queue(partitions=2, stores=2) as gated:
        gate = await slow_and_quick(gated)
        receiver, link = selective_on(gated, "JMSMessageID LIKE '%k'", 5, drain=True)
        receiver.flow()
        assert (link.sent, link.drains_answered) == (["quick"], 0)
        await until(lambda: gated.attached.reader.step is not None)
        gated.pass_time(3)
        await until(lambda: link.drains_answered == 1)
        gate.set()
        await gated.recovered()


async def test_a_selective_receiver_looks_at_a_page_of_each_partition_in_a_turn():
    async with gated_queue(partitions=2) as gated:
        for number, host in enumerate(gated.queue.hosts):
            await put_numbered(host, range(1000 * number, 1000 * number + 350))
        receiver, link = selective_on(gated, "n = 349 OR n = 1349", 5, drain=True)
        receiver.flow()
        assert (link.sent, link.drains_answered) == ([], 0)
        await until(lambda: link.drains_answered == 1)
        assert sorted(link.sent) == ["1349", "349"]
        assert waiting(gated) == 698


async def test_a_selective_receiver_without_credit_does_not_look():
    async with gated_queue() as gated:
        await put_numbered(gated.host, range(500))
        receiver, link = selective_on(gated, "n >= 0", 10)
        receiver.flow()
        assert link.sent == [str(number) for number in range(10)]
        receiver.wake()
        await asyncio.sleep(0)
        assert len(link.sent) == 10
        link.credit = 200
        receiver.flow()
        await until(lambda: len(link.sent) == 210)
        assert link.sent == [str(number) for number in range(210)]
        receiver.close()
        assert not gated.host.scans
