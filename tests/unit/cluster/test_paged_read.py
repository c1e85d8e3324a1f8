"""Payloads are read in pages, and those that are in memory are not read."""

from __future__ import annotations

import pytest

from bendybus.broker.partition_port import OnPayloads
from bendybus.cluster import paged_read
from bendybus.cluster.paged_read import PagedRead
from bendybus.domain.messages import Message
from bendybus.errors import BrokerError, StoreUnavailable


class Rows:
    """Another broker that has a payload for each row, and fails at one of them."""

    def __init__(self, broken: int = 0) -> None:
        self.pages: list[list[int]] = []
        self._broken = broken

    def read(self, rows: list[int], done: OnPayloads) -> None:
        self.pages.append(rows)
        done(StoreUnavailable("gone") if self._broken in rows else [b"row %d" % row for row in rows])


def message(row_id: int, payload: bytes | None = None) -> Message:
    made = Message(payload, size=40)
    made.row_id = row_id
    return made


def read(messages: list[Message], rows: Rows) -> list[bytes | None] | BrokerError:
    answers: list[list[bytes | None] | BrokerError] = []
    PagedRead(messages, rows.read, answers.append).read_next()
    (answer,) = answers
    return answer


def test_what_is_in_memory_is_not_read_even_if_it_is_empty() -> None:
    rows = Rows()

    assert read([message(1, b""), message(2, b"here")], rows) == [b"", b"here"]
    assert rows.pages == []


def test_pages_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_read, "PAGE_BYTES_MAX", 100)
    rows = Rows()

    messages = [message(1), message(2, b"here"), message(3), message(4)]
    assert read(messages, rows) == [b"row 1", b"here", b"row 3", b"row 4"]
    assert rows.pages == [[1, 3], [4]]


def test_a_large_payload_is_a_page_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_read, "PAGE_BYTES_MAX", 10)
    rows = Rows()

    assert read([message(1), message(2)], rows) == [b"row 1", b"row 2"]
    assert rows.pages == [[1], [2]]


def test_a_page_that_fails_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_read, "PAGE_BYTES_MAX", 10)
    rows = Rows(broken=2)

    assert isinstance(read([message(1), message(2), message(3)], rows), StoreUnavailable)
    assert rows.pages == [[1], [2]]
