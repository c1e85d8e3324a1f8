"""What is written is XML whatever it says; what is read is refused unless a client could mean it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bendybus import atom
from bendybus.admin import documents
from bendybus.errors import ArgumentError, EntityNotFound, Unauthorized
from bendybus.names import Instant

ATOM = "{http://www.w3.org/2005/Atom}"
AT = Instant(1_767_225_600_123)


def put(description: str) -> bytes:
    return (
        f'<a:entry xmlns:a="http://www.w3.org/2005/Atom"><a:content type="application/xml">{description}'
        "</a:content></a:entry>"
    ).encode()


def test_an_entry_reads_as_it_was_written() -> None:
    address = documents.EntryAddress.alone("https://h/a&b?x=1")
    text = documents.entry(address, "a<b", "QueueDescription", atom.element("Status", "Active"), AT, AT, "me")
    entry = ElementTree.fromstring(text)
    assert entry.findtext(f"{ATOM}title") == "a<b"
    assert entry.findtext(f"{ATOM}id") == "https://h/a&b?x=1"
    assert entry.findtext(f"{ATOM}published") == "2026-01-01T00:00:00Z"
    status = entry.find(f"{ATOM}content/{{{atom.SERVICE_BUS}}}QueueDescription/{{{atom.SERVICE_BUS}}}Status")
    assert status is not None and status.text == "Active"


@pytest.mark.parametrize(
    ("following", "links"), [(None, ["self"]), ("https://h/?%24skip=2", ["self", "next"])]
)
def test_a_feed_has_a_second_link_only_when_there_is_more(following: str | None, links: list[str]) -> None:
    page = [
        documents.entry(
            documents.EntryAddress("u", "t", "https://h/"), "t", "QueueDescription", "", AT, AT, "me"
        )
    ]
    feed = ElementTree.fromstring(documents.feed("https://h/", "queues", AT, page, following))
    assert [link.get("rel") for link in feed.findall(f"{ATOM}link")] == links
    assert len(feed.findall(f"{ATOM}entry")) == 1


def test_an_error_names_status_and_sub_code_and_survives_any_name() -> None:
    error = ElementTree.fromstring(documents.error(EntityNotFound("a\x00<\ud800>"), "\x01", AT))
    assert error.findtext("Code") == "404"
    detail = error.findtext("Detail") or ""
    assert detail.startswith("SubCode=40400. The messaging entity 'a\ufffd<\ufffd>' could not be found.")
    expired = documents.error(Unauthorized("over", sub_code=40106), "q", AT)
    assert "<Code>401</Code><Detail>SubCode=40106. over" in expired


def test_prefixes_and_order_do_not_count() -> None:
    described = documents.parse_entry(
        put('<x:QueueDescription xmlns:x="sb"><x:B> 1 </x:B><x:A/></x:QueueDescription>')
    )
    assert described.kind == "QueueDescription"
    assert {name: one.text for name, one in described.elements.items()} == {"B": " 1 ", "A": ""}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not well-formed"),
        (b"\x00\xff\xfe", "not well-formed"),
        (b"{}", "not well-formed"),
        (b"<entry>", "not well-formed"),
        (b'<?xml version="1.0" encoding="no-such"?><entry/>', "not well-formed"),
        (b'<?xml version="1.0" encoding="shift_jis"?><entry/>', "not well-formed"),
        (b"<entry/>", "one description"),
        (b"<feed><content><Q/></content></feed>", "one description"),
        (put(""), "one description"),
        (put("<Q/><Q/>"), "one description"),
        (put("<Q><A/><A/></Q>"), "the element A twice"),
        (put("<Q>" + "<A>" * 40 + "</A>" * 40 + "</Q>"), "more than 32 deep"),
        (b"<entry>" + b" " * documents.BODY_BYTES_MAX + b"</entry>", "more than 262144 bytes"),
        (b"<!DOCTYPE entry><entry/>", "DOCTYPE"),
        (b'<!DOCTYPE e [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><entry>&b;</entry>', "DOCTYPE"),
        (b'<!DOCTYPE e [<!ENTITY a SYSTEM "file:///etc/passwd">]><entry>&a;</entry>', "DOCTYPE"),
        (b"<entry>&undeclared;</entry>", "not well-formed"),
    ],
)
def test_what_no_client_sends_is_refused_with_the_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        documents.parse_entry(body)
