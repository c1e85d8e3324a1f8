"""What pages do with messages: filters, properties, and work with progress."""

from __future__ import annotations

import pytest

from bendybus.auth.connection_strings import ConnectionString
from bendybus.client import BusClient, ClientSettings, encode
from bendybus.errors import ArgumentError
from bendybus.operations.drafts import Draft
from bendybus.operations.peeking import session_filter
from bendybus.testing import Server
from bendybus_portal.access import Access
from bendybus_portal.holding import Holding
from bendybus_portal.jobs import Job
from bendybus_portal.messages import (
    DEAD_LETTERS,
    move_work,
    origin_of,
    parse_properties,
    resubmit_numbers,
    resubmit_work,
    scan_reasons,
    send_work,
)
from bendybus_portal.peeking import Filters, peek_page


@pytest.fixture(scope="module")
def server():
    with Server() as running:
        yield running


@pytest.fixture
def shop(server):
    queues = {"orders": {"enable_partitioning": True}, "workflows": {"requires_session": True}, "other": {}}
    with server.namespace(queues=queues) as made:
        yield made


@pytest.fixture
def access(shop):
    opened = Access(ConnectionString.parse(shop.connection_string))
    yield opened
    opened.close()


def dead_letter(access: Access, reasons: list[str]) -> None:
    with BusClient(ClientSettings.of(access.namespace)) as client:
        sender = client.sender("orders")
        for number, _ in enumerate(reasons):
            sender.send([encode(b"x", message_id=str(number))])
        receiver = client.receiver("orders")
        for reason in reasons:
            receiver.dead_letter(receiver.receive(1, timeout_s=5), reason)


def test_properties_are_read_a_line_at_a_time():
    assert parse_properties("a=x=y\n\n b = c \nn:=1.5\nt:=true") == {
        "a": "x=y",
        "b": "c",
        "n": 1.5,
        "t": True,
    }
    for wrong in ("novalue", "=x", "a:=[1]", "a:=nope"):
        with pytest.raises(ArgumentError):
            parse_properties(wrong)


def test_dead_letters_go_back_by_reason_by_number_and_all(access):
    dead_letter(access, ["it's gone"] * 3 + ["declined"] * 3)
    assert scan_reasons(access, "orders").counts == {"it's gone": 3, "declined": 3}
    resubmit_work(access, "orders", "orders", "it's gone", False, job := Job(1, "", 3))
    assert job.done == 3
    letters = peek_page(access, f"orders/{DEAD_LETTERS}", Filters(reason="declined")).messages
    resubmit_numbers(
        access, "orders", [letters[0].sequence_number, 999], "orders", True, job := Job(1, "", 2)
    )
    assert job.done == 1
    resubmit_work(access, "orders", "orders", "", False, job := Job(1, "", None))
    assert job.done == 2
    assert scan_reasons(access, "orders").scanned == 0
    back = peek_page(access, "orders", Filters()).messages
    assert len(back) == 6
    assert all("DeadLetterReason" not in each.application_properties for each in back)


def test_received_and_deferred_messages_are_settled(access):
    send_work(access, "orders", Draft(b"x"), 3, Job(1, "", 3))
    holding = Holding(access, "orders")
    assert holding.receive(3) == 3
    first, second, third = holding.messages
    assert holding.settle("defer", [first]) == 1
    assert holding.settle("complete", [second]) == 1
    assert holding.settle("complete", [second]) == 0
    assert holding.fetch_deferred([first]) == 1
    assert holding.settle("dead-letter", [first], "Why", "because") == 1
    holding.release()
    assert holding.messages == {}
    assert [each.sequence_number for each in peek_page(access, "orders", Filters()).messages] == [third]
    (letter,) = peek_page(access, f"orders/{DEAD_LETTERS}", Filters()).messages
    assert letter.application_properties["DeadLetterReason"] == "Why"


def test_dead_letters_of_a_subscription_go_back_to_its_topic():
    assert origin_of("events/Subscriptions/audit") == "events"
    assert origin_of("orders") == "orders"


def test_messages_of_sessions_are_moved_one_session_or_all(access):
    with BusClient(ClientSettings.of(access.namespace)) as client:
        sender = client.sender("workflows")
        for number in range(12):
            session = f"s-{number % 3}"
            sender.send([encode(b"x", message_id=str(number), session_id=session)], session)
    move_work(access, "workflows", "other", job := Job(1, "", None), sessions=True, session_id="s-1")
    assert job.done == 4
    assert [each.message_id for each in peek_page(access, "other", Filters()).messages] == [
        "1",
        "4",
        "7",
        "10",
    ]
    with BusClient(ClientSettings.of(access.namespace)) as client:
        held = client.receiver("workflows", filters=session_filter("s-0"))
        held.check()
        move_work(access, "workflows", "other", job := Job(1, "", 8), sessions=True)
        assert job.done == 4
    move_work(access, "workflows", "other", job := Job(1, "", 8), sessions=True)
    assert job.done == 4
    moved = peek_page(access, "other", Filters()).messages
    assert sorted(each.session_id for each in moved) == ["s-0"] * 4 + ["s-1"] * 4 + ["s-2"] * 4
