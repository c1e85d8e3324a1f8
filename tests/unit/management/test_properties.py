"""Properties between options, elements and what is shown."""

from __future__ import annotations

from bendybus.management.entries import Entry, read_answer
from bendybus.management.properties import (
    QUEUE,
    changed_elements,
    new_elements,
    shown_values,
)

BUS = 'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
ATOM = 'xmlns="http://www.w3.org/2005/Atom"'


def entry_of(elements: str) -> Entry:
    answer = read_answer(
        f'<entry {ATOM}><title type="text">orders</title><content><QueueDescription {BUS}>{elements}'
        "</QueueDescription></content></entry>".encode()
    )
    assert isinstance(answer, Entry)
    return answer


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
