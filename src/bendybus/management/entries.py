"""ATOM from the client's side: entries to put, and entries and feeds that came back.

An answer is untrusted input: a document type, and with it entities, is refused.
What an element means to a user: properties.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from bendybus.atom import ATOM, INSTANCE, SERVICE_BUS
from bendybus.errors import Unavailable

__all__ = ["Entry", "Feed", "bare_name", "entry_body", "error_detail", "read_answer"]

_ENTRY: Final = f"{{{ATOM}}}entry"
_FEED: Final = f"{{{ATOM}}}feed"

# "SubCode=40400. The messaging entity ... TrackingId:..., SystemTracker:..., Timestamp:..."
_SUB_CODE: Final = re.compile(r"^SubCode=[0-9]+\.\s*")
_TRACKING: Final = re.compile(r"\.?\s*TrackingId:.*$", re.DOTALL)
_HELP_LINK: Final = re.compile(r"\s*To know more visit \S+(\s+\.(?=\s|$))?")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entity as the server shows it."""

    name: str
    description: Element

    @property
    def kind(self) -> str:
        """`QueueDescription`, say."""
        return bare_name(self.description)

    def text(self, name: str) -> str | None:
        """The text of this element of the description; None if there is none."""
        found = self.description.find(f"{{{SERVICE_BUS}}}{name}")
        return None if found is None else found.text


@dataclass(frozen=True, slots=True)
class Feed:
    """A page of a list, and whether there is another."""

    entries: list[Entry]
    more: bool


def bare_name(element: Element) -> str:
    """Without its namespace."""
    return element.tag.rpartition("}")[2]


def entry_body(kind: str, children: Iterable[str]) -> bytes:
    """An entry to put; `children` are the description's elements, as XML."""
    entry = (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{"".join(children)}</{kind}>'
        "</content></entry>"
    )
    return entry.encode()


def read_answer(body: bytes) -> Entry | Feed:
    """An entry or a feed; `Unavailable` when it is neither, so no Service Bus has written it."""
    root = _parse(body)
    if root is not None and root.tag == _FEED:
        links = root.findall(f"{{{ATOM}}}link")
        entries = [entry for element in root.findall(_ENTRY) if (entry := _entry(element)) is not None]
        return Feed(entries, any(link.get("rel") == "next" for link in links))
    entry = None if root is None or root.tag != _ENTRY else _entry(root)
    if entry is None:
        raise Unavailable("the answer is not one of Service Bus: does the endpoint name another server?")
    return entry


def error_detail(body: bytes) -> str:
    """The message of an Error document; empty if the text is not one."""
    root = _parse(body)
    detail = "" if root is None else (root.findtext("Detail") or "")
    return _HELP_LINK.sub("", _TRACKING.sub("", _SUB_CODE.sub("", detail))).strip()


def _entry(element: Element) -> Entry | None:
    content = element.find(f"{{{ATOM}}}content")
    if content is None or len(content) != 1:
        return None
    return Entry(element.findtext(f"{{{ATOM}}}title") or "", content[0])


class _NoDocumentType(ElementTree.TreeBuilder):
    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise ElementTree.ParseError("a document type is not read")


def _parse(body: bytes) -> Element | None:
    try:
        return ElementTree.fromstring(body, ElementTree.XMLParser(target=_NoDocumentType()))
    except (ElementTree.ParseError, ValueError, LookupError):
        return None
