"""ATOM as a client writes and reads it."""

from __future__ import annotations

import pytest

from bendybus.errors import Unavailable
from bendybus.management.entries import Entry, Feed, entry_body, error_detail, read_answer

ATOM = 'xmlns="http://www.w3.org/2005/Atom"'


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
