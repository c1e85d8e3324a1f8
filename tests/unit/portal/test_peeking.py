"""A page of messages: which match, in which order, and where the next page begins."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, ReceivedMessage, encode
from bendybus.errors import ArgumentError, MessageNotFound
from bendybus.names import PARTITION_SHIFT
from bendybus.operations.drafts import Draft
from bendybus.operations.peeking import State
from bendybus.testing import Server
from bendybus_portal.access import Access
from bendybus_portal.jobs import Job
from bendybus_portal.messages import purge_work, send_work
from bendybus_portal.peeking import PAGE, Filters, find_message, peek_page


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def shop(server):
    with server.namespace(queues={"orders": {"enable_partitioning": True}}) as made:
        yield made


@pytest.fixture
def access(shop):
    opened = Access(ConnectionString.parse(shop.connection_string))
    yield opened
    opened.close()


def send_in_time(shop, access: Access, count: int) -> None:
    """Each a second after the one before, and to another partition."""
    with BusClient(ClientSettings.of(access.namespace)) as client:
        sender = client.sender("orders")
        for number in range(count):
            key = f"key-{number * 7 % 23}"
            sender.send([encode(b"x", message_id=str(number), partition_key=key)], key)
            shop.clock.advance(timedelta(seconds=1))


def all_pages(access: Access, filters: Filters) -> list[list[ReceivedMessage]]:
    pages, following = [], ""
    while following is not None:
        page = peek_page(access, "orders", filters, following)
        pages.append(page.messages)
        following = page.following
    return pages


def test_filters_look_at_the_body_and_the_properties():
    message = ReceivedMessage(
        encode("Zoë".encode(), subject="Order", application_properties={"region": "EU"})
    )
    assert Filters().matches(message)
    for text in ("zoë", "order", "region=eu"):
        assert Filters(text=text).matches(message)
    assert not Filters(text="us").matches(message)
    assert not Filters(state="deferred").matches(message)
    assert not Filters(since_ms=1).matches(message)


def test_a_page_ends_where_the_next_begins(access):
    job = Job(1, "", 60)
    send_work(access, "orders", Draft(b"x"), 60, job)
    assert job.done == 60
    first = peek_page(access, "orders", Filters())
    assert len(first.messages) == 50 and first.following is not None
    rest = peek_page(access, "orders", Filters(), first.following)
    numbers = [each.sequence_number for each in (*first.messages, *rest.messages)]
    assert len(set(numbers)) == 60 and rest.following is None
    assert find_message(access, "orders", numbers[7]).sequence_number == numbers[7]
    purge_work(access, "orders", [State.ACTIVE], job)
    with pytest.raises(MessageNotFound):
        find_message(access, "orders", numbers[7])


def test_pages_are_in_the_order_of_enqueueing_over_all_partitions(shop, access):
    send_in_time(shop, access, 3 * PAGE // 2)
    pages = all_pages(access, Filters())
    assert [len(page) for page in pages] == [PAGE, PAGE // 2]
    messages = [each for page in pages for each in page]
    assert [str(each.message_id) for each in messages] == [str(number) for number in range(3 * PAGE // 2)]
    partitions = {each.sequence_number >> PARTITION_SHIFT for each in messages}
    assert len(partitions) > 8


def test_a_partition_is_looked_at_alone(shop, access):
    send_in_time(shop, access, 46)
    every = [each for page in all_pages(access, Filters()) for each in page]
    chosen = every[0].sequence_number >> PARTITION_SHIFT
    wanted = [each.message_id for each in every if each.sequence_number >> PARTITION_SHIFT == chosen]
    (page,) = all_pages(access, Filters(partition=chosen))
    assert [each.message_id for each in page] == wanted


def test_filters_page_through_everything(shop, access, monkeypatch):
    monkeypatch.setattr("bendybus_portal.peeking.SCANNED_MAX", 7)
    send_in_time(shop, access, 30)
    pages = all_pages(access, Filters(text="2"))
    found = [str(each.message_id) for page in pages for each in page]
    assert found == [str(number) for number in range(30) if "2" in str(number)]
    assert len(pages) == 5


@pytest.mark.parametrize("place", ["x", "0-1.0-2", "1", "-1-5", "0-1-2", "ffffff-1"])
def test_an_address_that_makes_no_sense_is_refused(access, place):
    with pytest.raises(ArgumentError):
        peek_page(access, "orders", Filters(), place)
