"""SQL as it is typed, and which messages it would match."""

from __future__ import annotations

from bendybus.client import ReceivedMessage, encode
from bendybus_portal.filter_check import check_action, check_filter


def message(number: int) -> ReceivedMessage:
    properties = {"amount": number * 10, "region": "eu"}
    return ReceivedMessage(
        encode(b"x", message_id=f"m-{number}", subject="order", application_properties=properties)
    )


def test_sql_is_checked_and_tells_what_it_matches():
    recent = [message(number) for number in range(5)]
    checked = check_filter("amount >= 30 AND sys.Label = 'order'", recent)
    assert [str(each.message_id) for each in checked.matching] == ["m-3", "m-4"]
    assert (checked.problem, checked.looked_at) == ("", 5)
    assert check_filter("sys.MessageId = 'm-1'", recent).matching == (recent[1],)
    assert check_filter("amount >", recent).problem
    assert check_filter("region > 3", recent).matching == ()


def test_an_action_is_checked():
    assert check_action("SET priority = 1") == ""
    assert check_action("SET priority =")
