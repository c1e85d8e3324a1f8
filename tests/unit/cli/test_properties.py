"""Properties between options, elements and what is shown."""

from __future__ import annotations

import pytest

from bendybus.cli.entries import Entry, Feed, entry_body, error_detail, read_answer
from bendybus.cli.properties import (
    QUEUE,
    changed_elements,
    new_elements,
    read_duration,
    short_duration,
    shown_values,
)
from bendybus.domain.durations import UNLIMITED
from bendybus.errors import ArgumentError, Unavailable

BUS = 'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
ATOM = 'xmlns="http://www.w3.org/2005/Atom"'


def entry_of(elements: str) -> Entry:
    answer = read_answer(
        f'<entry {ATOM}><title type="text">orders</title><content><QueueDescription {BUS}>{elements}'
        "</QueueDescription></content></entry>".encode()
    )
    assert isinstance(answer, Entry)
    return answer


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("30s", "PT30S"),
        ("1h30m", "PT1H30M"),
        ("14d", "P14D"),
        ("1.5s", "PT1.5S"),
        ("250ms", "PT0.25S"),
        ("2W", "P14D"),
        ("PT30S", "PT30S"),
        ("pt1m", "PT1M"),
        ("unlimited", UNLIMITED),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, written: str) -> None:
    assert read_duration(text) == written


@pytest.mark.parametrize("text", ["", "30", "s", "PT", "-5s", "30 s", "5y", "1.2.3s"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a duration such as 30s"):
        read_duration(text)


@pytest.mark.parametrize(
    ("written", "shown"),
    [("PT1M30S", "1m30s"), ("P14D", "14d"), (UNLIMITED, "unlimited"), ("PT0S", "0s"), ("Paris", "Paris")],
)
def test_durations_are_shown_short(written: str, shown: str) -> None:
    assert short_duration(written) == shown


def test_new_elements_stand_in_the_order_of_the_api_and_are_escaped() -> None:
    given = {"UserMetadata": "a<b&c", "EnablePartitioning": True, "LockDuration": "PT30S", "ForwardTo": None}
    assert list(new_elements(QUEUE, given)) == [
        "<LockDuration>PT30S</LockDuration>",
        "<UserMetadata>a&lt;b&amp;c</UserMetadata>",
        "<EnablePartitioning>true</EnablePartitioning>",
    ]


def test_an_update_repeats_what_is_settable_and_not_changed() -> None:
    current = entry_of(
        "<LockDuration>PT1M</LockDuration><SizeInBytes>7</SizeInBytes><ForwardTo>next</ForwardTo>"
        "<UserMetadata>old</UserMetadata>"
    )
    changes = {"ForwardTo": "", "UserMetadata": "new", "LockDuration": None}
    assert list(changed_elements(QUEUE, current, changes)) == [
        "<LockDuration>PT1M</LockDuration>",
        "<UserMetadata>new</UserMetadata>",
    ]


def test_values_are_shown_under_azs_names_and_as_what_they_are() -> None:
    counts = '<CountDetails xmlns:c="x"><c:ActiveMessageCount>3</c:ActiveMessageCount></CountDetails>'
    shown = shown_values(
        entry_of(
            "<LockDuration>PT1M</LockDuration><MaxDeliveryCount>10</MaxDeliveryCount><RequiresSession>true"
            f"</RequiresSession><UserMetadata>12</UserMetadata>{counts}<ForwardTo/>"
        )
    )
    assert shown == {
        "name": "orders",
        "lockDuration": "PT1M",
        "maxDeliveryCount": 10,
        "requiresSession": True,
        "userMetadata": "12",
        "countDetails": {"activeMessageCount": 3},
        "forwardTo": None,
    }


def test_keys_of_an_entity_are_not_shown() -> None:
    rule = "<AuthorizationRule><PrimaryKey>k</PrimaryKey></AuthorizationRule>"
    assert shown_values(entry_of(f"<AuthorizationRules>{rule}</AuthorizationRules>")) == {"name": "orders"}


def test_what_is_put_can_be_read_back() -> None:
    answer = read_answer(entry_body("QueueDescription", ["<LockDuration>PT5S</LockDuration>"]))
    assert isinstance(answer, Entry)
    assert (answer.kind, answer.text("LockDuration"), answer.text("ForwardTo")) == (
        "QueueDescription",
        "PT5S",
        None,
    )


def test_a_feed_says_whether_there_is_another_page() -> None:
    links = '<link rel="self" href="x"/>{}'
    for following, more in (("", False), ('<link rel="next" href="y"/>', True)):
        page = read_answer(f"<feed {ATOM}>{links.format(following)}</feed>".encode())
        assert page == Feed([], more)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><body>Welcome</body></html>",
        b"not xml",
        b"<entry/>",
        b'<!DOCTYPE entry [<!ENTITY a "b">]><entry xmlns="http://www.w3.org/2005/Atom">&a;</entry>',
    ],
)
def test_an_answer_of_another_server_is_told_as_that(body: bytes) -> None:
    with pytest.raises(Unavailable, match="does the endpoint name another server"):
        read_answer(body)


def test_an_errors_detail_is_shown_without_what_only_support_reads() -> None:
    detail = "SubCode=40900. Queue 'a' exists. TrackingId:1-2, SystemTracker:a, Timestamp:2026"
    assert (
        error_detail(f"<Error><Code>409</Code><Detail>{detail}</Detail></Error>".encode())
        == "Queue 'a' exists"
    )
    assert error_detail(b"<html/>") == ""
