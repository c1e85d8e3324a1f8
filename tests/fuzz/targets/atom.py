"""ATOM entries: descriptions of entities and rules that clients put, and answers that ours read."""

from __future__ import annotations

from xml.parsers import expat

from bendybus.admin.authorization_rules_xml import read_rules, rules_element
from bendybus.admin.documents import EntryAddress, EntryContent, entry, error, parse_entry
from bendybus.admin.fields import read_update
from bendybus.admin.filter_rules import read_rule, rule_elements
from bendybus.admin.queues import read_queue
from bendybus.admin.topics import read_subscription, read_topic
from bendybus.atom import RULE_DESCRIPTION
from bendybus.domain.entities import Tier
from bendybus.errors import ArgumentError, RequestError, Unavailable
from bendybus.management.entries import error_detail, read_answer
from bendybus.names import Instant
from fuzz.target import Target, refusals

AT = Instant(1_800_000_000_000)


def check(data: bytes) -> None:
    error_detail(data)
    with refusals(Unavailable):
        read_answer(data)
    try:
        described = parse_entry(data)
    except ArgumentError as refusal:
        # It quotes the body, and is itself a document.
        _check_document(error(refusal, "x", AT))
        return
    for read in (_queue, _topic, _subscription, _rules, _rule):
        try:
            read(described)
        except RequestError as refusal:
            _check_document(error(refusal, "x", AT))


def _check_document(written: str) -> None:
    expat.ParserCreate().Parse(written.encode(), True)


def _queue(described: EntryContent) -> None:
    for tier in Tier:
        queue = read_queue("q", described.elements, tier)
        tier.check(queue)
        read_update(queue, described.elements, partitions=16)


def _topic(described: EntryContent) -> None:
    topic = read_topic("t", described.elements, Tier.STANDARD)
    read_update(topic, described.elements, partitions=16)


def _subscription(described: EntryContent) -> None:
    subscription = read_subscription("t", "s", described.elements)
    read_subscription("t", "s", described.elements, subscription)


def _rules(described: EntryContent) -> None:
    given = described.elements.get("AuthorizationRules")
    if given is not None:
        rules_element(read_rules(given, ()))


def _rule(described: EntryContent) -> None:
    """What is written of a rule is read as the same rule."""
    rule = read_rule(described.elements)
    written = entry(EntryAddress.alone("u"), rule.name, RULE_DESCRIPTION, rule_elements(rule), AT, AT, "")
    again = parse_entry(written.encode())
    assert rule_elements(read_rule(again.elements)) == rule_elements(rule)


TARGET = Target(
    name="atom",
    parses="ATOM entries, descriptions of entities, rules as XML",
    check=check,
    may_raise=(RequestError, Unavailable),
    share=30,
    words=tuple(
        word.encode()
        for word in (
            *("<entry ", "</entry>", "<content>", "</content>", "<QueueDescription>", "</QueueDescription>"),
            *("<Filter i:type=", '"SqlFilter"', '"CorrelationFilter"', "<SqlExpression>", "<Parameters>"),
            *("<KeyValueOfstringanyType><Key>", "</Key><Value i:type=", '"d6p1:dateTime"', '"d6p1:duration"'),
            *("PT5M", "P10675199DT2H48M5.4775807S", "true", "&#0;", "&amp;", "<!DOCTYPE", "<![CDATA[", "]]>"),
            *("<?xml version='1.0' encoding='", "utf-16", "utf-7", "' ?>", "xmlns:i=", "<LockDuration>"),
            *("<MaxSizeInMegabytes>", "<AuthorizationRules>", "<AuthorizationRule i:type=", "<Rights>"),
            *("<AccessRights>Send</AccessRights>", "<KeyName>", "<PrimaryKey>", "<DefaultRuleDescription>"),
        )
    ),
    length_max=4096,
)
