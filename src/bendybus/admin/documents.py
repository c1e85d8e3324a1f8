"""The server's ATOM documents: entries, feeds and errors to send, descriptions that clients send.

Reading uses expat, and refuses what no client sends: a document type (and so every XML
entity), too many bytes, elements that are nested too deeply.
The vocabulary that clients share: bendybus/atom.py. What a description means: queues.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from xml.parsers import expat

from starlette.responses import Response

from bendybus.atom import (
    ATOM,
    ERROR_TYPE,
    INSTANCE,
    SERVICE_BUS,
    attribute,
    element,
    format_time,
    text,
)
from bendybus.errors import ArgumentError, BrokerError
from bendybus.names import Instant

__all__ = [
    "BODY_BYTES_MAX",
    "EntryContent",
    "Element",
    "EntryAddress",
    "entry",
    "error",
    "error_document",
    "error_response",
    "feed",
    "format_timestamp",
    "no_services",
    "parse_entry",
]

# The longest description has 1,024 characters of metadata and some forty short elements.
BODY_BYTES_MAX: Final = 256 * 1024
# entry, content, description, AuthorizationRules, AuthorizationRule, Rights, AccessRights; and some more.
DEPTH_MAX: Final = 32

_TYPE: Final = f"{INSTANCE}}}type"


# -- writing ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EntryAddress:
    """Where an entry is found."""

    url: str
    link: str
    """To itself. In a list it is relative to `base`."""
    base: str = ""
    """The URL of the list that the entry is in."""

    @classmethod
    def alone(cls, url: str) -> EntryAddress:
        return cls(url, url)


def entry(
    address: EntryAddress,
    title: str,
    kind: str,
    content: str,
    published: Instant,
    updated: Instant,
    author: str,
) -> str:
    """An entry that holds a description; `content` is the description's children, as XML.

    Subscriptions and rules have no author.
    """
    name = f"<author>{element('name', author)}</author>" if author else ""
    # A feed declares the namespace for its entries.
    start = f"xml:base={attribute(address.base)}" if address.base else f'xmlns="{ATOM}"'
    return (
        f'<entry {start}>{element("id", address.url)}<title type="text">{text(title)}</title>'
        f"{element('published', _seconds(published))}{element('updated', _seconds(updated))}{name}"
        f'<link rel="self" href={attribute(address.link)}/>'
        f'<content type="application/xml"><{kind} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">'
        f"{content}</{kind}></content></entry>"
    )


def feed(url: str, title: str, updated: Instant, entries: Iterable[str], following: str | None) -> str:
    """A page of a list, and where the next one is.

    The Python client takes the second of exactly two links for the next page, so
    there are no others.
    """
    more = "" if following is None else f'<link rel="next" href={attribute(following)}/>'
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{text(title)}</title>{element("id", url)}'
        f"{element('updated', _seconds(updated))}"
        f'<link rel="self" href={attribute(url)}/>{more}{"".join(entries)}</feed>'
    )


def no_services(now: Instant) -> str:
    """Azure's answer for a missing entity: a feed without entries, which SDKs read as `not found`."""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">Publicly Listed Services</title>'
        '<subtitle type="text">This is the list of publicly-listed services currently available.</subtitle>'
        f"{element('id', f'uuid:{uuid.uuid4()};id=1')}{element('updated', _seconds(now))}"
        "<generator>Service Bus 1.1</generator></feed>"
    )


def _seconds(at: Instant) -> str:
    """A time in whole seconds."""
    return format_time(Instant(at - at % 1000))


def format_timestamp(at: Instant) -> str:
    """A time as in errors: whole seconds, and no zone."""
    return _seconds(at).removesuffix("Z")


def error(refusal: BrokerError, resource: str, now: Instant) -> str:
    """The Error document. Clients distinguish refusals by its text and sub-code."""
    detail = (
        f"SubCode={refusal.sub_code}. {refusal.description} TrackingId:{uuid.uuid4()}, "
        f"SystemTracker:{resource[:200]}, Timestamp:{format_timestamp(now)}"
    )
    return error_document(refusal.status, detail)


def error_document(status: int, detail: str) -> str:
    """The Error document of a refusal that is none of ours."""
    return f"<Error>{element('Code', status)}{element('Detail', detail)}</Error>"


def error_response(refusal: BrokerError, resource: str, now: Instant) -> Response:
    """The answer to a request that is refused."""
    return Response(error(refusal, resource, now), refusal.status, media_type=ERROR_TYPE)


# -- reading ------------------------------------------------------------------------


class Element:
    """An element without its namespace: prefixes and namespaces differ between clients."""

    __slots__ = ("children", "kind", "name", "text")

    def __init__(self, name: str, kind: str = "") -> None:
        self.name = name
        self.kind = kind
        """What xsi:type says, without a prefix."""
        self.text = ""
        self.children: list[Element] = []

    def find(self, name: str) -> Element | None:
        return next((child for child in self.children if child.name == name), None)


@dataclass(frozen=True, slots=True)
class EntryContent:
    """The description in an entry: its kind, such as `QueueDescription`, and its elements by name."""

    kind: str
    elements: dict[str, Element]


def parse_entry(body: bytes) -> EntryContent:
    """The description inside an entry; `ArgumentError` says what is wrong with the body."""
    root = _parse(body)
    content = root.find("content") if root.name == "entry" else None
    if content is None or len(content.children) != 1:
        raise ArgumentError("The body is not an ATOM entry whose content is one description.")
    (description,) = content.children
    elements: dict[str, Element] = {}
    for child in description.children:
        if child.name in elements:
            raise ArgumentError(f"The {description.name} has the element {child.name} twice.")
        elements[child.name] = child
    return EntryContent(description.name, elements)


def _parse(body: bytes) -> Element:
    if len(body) > BODY_BYTES_MAX:
        raise ArgumentError(f"The body has more than {BODY_BYTES_MAX} bytes.")
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    outermost = Element("")
    open_elements = [outermost]

    def start(name: str, attributes: dict[str, str]) -> None:
        if len(open_elements) > DEPTH_MAX:
            raise ArgumentError(f"The body has elements more than {DEPTH_MAX} deep.")
        child = Element(name.rpartition("}")[2], attributes.get(_TYPE, "").rpartition(":")[2])
        open_elements[-1].children.append(child)
        open_elements.append(child)

    def end(name: str) -> None:
        open_elements.pop()

    def characters(text: str) -> None:
        open_elements[-1].text += text

    def doctype(*declared: object) -> None:
        raise ArgumentError("The body has a DOCTYPE; a document type and entities are not read.")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(body, True)
    # For an unknown encoding expat raises these instead of its own error.
    except (expat.ExpatError, ValueError, LookupError) as malformed:
        raise ArgumentError(f"The body is not well-formed XML: {malformed}.") from malformed
    return outermost.children[0]
