"""Entities as the emulator's Config.json: made of a namespace, and created from a file. Everything blocks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from bendybus.errors import ArgumentError, EntityExists
from bendybus.management.client import QUEUES, TOPICS, ManagementClient
from bendybus.management.entries import Entry
from bendybus.management.filter_rules import (
    RULE_DESCRIPTION,
    correlation_elements,
    rule_elements,
    shown_rule,
    sql_elements,
)
from bendybus.management.properties import QUEUE, SUBSCRIPTION, TOPIC, EntityKind, new_elements
from bendybus_portal.access import Access
from bendybus_portal.jobs import Job

__all__ = ["export_config", "import_work", "read_config"]

DEFAULT_RULE: Final = "$Default"

# Field of a correlation filter in the file -> in the management client.
_CORRELATION: Final = {
    "CorrelationId": "correlation_id",
    "MessageId": "message_id",
    "To": "to",
    "ReplyTo": "reply_to",
    "Label": "label",
    "SessionId": "session_id",
    "ReplyToSessionId": "reply_to_session_id",
    "ContentType": "content_type",
}


def export_config(access: Access, name: str) -> str:
    """All entities with their properties and rules, and no keys."""
    with access.management() as management:
        queues = [
            {"Name": entry.name, "Properties": _properties(QUEUE, entry)} for entry in management.list(QUEUES)
        ]
        topics = [_topic(management, entry) for entry in management.list(TOPICS)]
    namespace = {"Name": name, "Queues": queues, "Topics": topics}
    return json.dumps({"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}, indent=2)


def _topic(management: ManagementClient, entry: Entry) -> dict[str, object]:
    subscriptions = []
    for each in management.list(f"{entry.name}/Subscriptions"):
        path = f"{entry.name}/Subscriptions/{each.name}/Rules"
        rules = [_rule(shown_rule(rule)) for rule in management.list(path)]
        only_default = [rule["Name"] for rule in rules] == [DEFAULT_RULE]
        subscriptions.append(
            {
                "Name": each.name,
                "Properties": _properties(SUBSCRIPTION, each),
                "Rules": [] if only_default else rules,
            }
        )
    return {"Name": entry.name, "Properties": _properties(TOPIC, entry), "Subscriptions": subscriptions}


def _properties(kind: EntityKind, entry: Entry) -> dict[str, object]:
    found: dict[str, object] = {}
    for row in kind.properties:
        text = entry.text(row.name)
        if text is None or text == "" or row.name in ("Status", "MaxMessageSizeInKilobytes"):
            continue
        if text in ("true", "false"):
            found[row.name] = text == "true"
        else:
            found[row.name] = int(text) if text.isdigit() else text
    return found


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    if rule.get("filterType") == "CorrelationFilter":
        given = {
            name: rule[name[:1].lower() + name[1:]]
            for name in _CORRELATION
            if name[:1].lower() + name[1:] in rule
        }
        own = rule.get("properties")
        described: dict[str, Any] = {
            "FilterType": "Correlation",
            "CorrelationFilter": {**given, **({"Properties": own} if own else {})},
        }
    else:
        described = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": rule.get("sqlExpression") or "1=1"}}
    if rule.get("action"):
        described["Action"] = {"SqlExpression": rule["action"]}
    return {"Name": rule["name"], "Properties": described}


# -- from a file --------------------------------------------------------------------


def read_config(text: str) -> Mapping[str, Any]:
    """The first namespace of a file; `ArgumentError` if it is not such a file."""
    try:
        read = json.loads(text)
        namespace = read["UserConfig"]["Namespaces"][0]
        if not isinstance(namespace, dict):
            raise TypeError
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise ArgumentError("The file is not a Config.json: UserConfig.Namespaces is missing.") from None
    return namespace


def import_work(access: Access, namespace: Mapping[str, Any], job: Job) -> None:
    """Create what is not there; what is there stays as it is."""
    with access.management() as management:
        for path, kind, elements in _wanted(namespace):
            if job.stopping:
                return
            try:
                management.create(path, kind, elements)
            except EntityExists:
                continue
            job.done += 1


def _wanted(namespace: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str]]]:
    for queue in namespace.get("Queues") or ():
        yield queue["Name"], QUEUE.element, list(new_elements(QUEUE, _given(queue)))
    for topic in namespace.get("Topics") or ():
        yield topic["Name"], TOPIC.element, list(new_elements(TOPIC, _given(topic)))
        for subscription in topic.get("Subscriptions") or ():
            path = f"{topic['Name']}/Subscriptions/{subscription['Name']}"
            yield path, SUBSCRIPTION.element, list(new_elements(SUBSCRIPTION, _given(subscription)))
            for rule in subscription.get("Rules") or ():
                yield f"{path}/Rules/{rule['Name']}", RULE_DESCRIPTION, _rule_of(rule)


def _given(described: Mapping[str, Any]) -> dict[str, object]:
    properties = described.get("Properties") or {}
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in properties.items()
        if value not in (None, "")
    }


def _rule_of(rule: Mapping[str, Any]) -> list[str]:
    properties = rule.get("Properties") or {}
    correlation = properties.get("CorrelationFilter") or {}
    if correlation:
        fields = {
            _CORRELATION[name]: str(value) for name, value in correlation.items() if name in _CORRELATION
        }
        made = correlation_elements(fields, correlation.get("Properties") or {})
    else:
        made = sql_elements("SqlFilter", (properties.get("SqlFilter") or {}).get("SqlExpression", "1=1"))
    action = (properties.get("Action") or {}).get("SqlExpression")
    return list(rule_elements(rule["Name"], made, action))
