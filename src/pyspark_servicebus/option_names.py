"""Names of options: how they arrive from Spark, and the error for an unknown name.

`CREATE TABLE ... USING servicebus OPTIONS (...)` passes each option with the prefix `option.`, beside
properties of the table itself. For a name of Kafka's source, or of another connector, the error says the name
that the option has here. The options themselves: options.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

__all__ = ["has_table_options", "own_options", "unknown_option"]

# Spark's prefix for the options of a table among its properties (TableCatalog.OPTION_PREFIX).
_PREFIX: Final = "option."

# Properties that a catalog keeps for every table (TableCatalog.TABLE_RESERVED_PROPERTIES), and what it adds.
_OF_TABLES: Final = frozenset(
    {
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "owner",
        "path",
        "provider",
        "serialization.format",
    }
)

# Options of Kafka's source and sink, and words of other connectors, in lower case: the answer to each.
_ELSEWHERE: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "'connectionString'",
    "subscribe": "'entity'",
    "subscribepattern": "'entity', which names one queue or subscription: use a stream for each",
    "topic": "'entity'",
    "assign": "'entity', and 'partitions' for some of its partitions",
    "startingoffsetsbytimestamp": "'startingTimestamp', one time for all partitions",
    "endingoffsetsbytimestamp": "'endingTimestamp', one time for all partitions",
    "maxoffsetspertrigger": "'maxMessagesPerTrigger'",
    "minoffsetspertrigger": "nothing: set the trigger's interval instead",
    "maxtriggerdelay": "nothing: set the trigger's interval instead",
    "maxrecordsperpartition": "'minPartitions', which splits large partitions into tasks",
    "includeheaders": "'includeProperties', which is on unless you switch it off",
    "kafka.group.id": "'consumer'",
    "groupidprefix": "'consumer'",
    "kafkaconsumer.polltimeoutms": "'operationTimeoutMs'",
    "kafka.request.timeout.ms": "'operationTimeoutMs'",
    "fetchoffset.numretries": "'retries'",
    "fetchoffset.retryintervalms": "'retries', whose pauses grow by themselves",
    "kafka.security.protocol": "nothing: the connection string decides",
    "kafka.sasl.mechanism": "nothing: the connection string decides",
    "kafka.sasl.jaas.config": "'connectionString'",
    "kafka.ssl.truststore.location": "'certificate', a file in PEM",
    "eventhubs.connectionstring": "'connectionString'",
    "eventhubs.consumergroup": "'entity': each subscription of a topic has its own messages",
    "queue": "'entity'",
    "queuename": "'entity'",
    "topicname": "'entity'",
    "subscription": "'entity': topic/subscriptions/name",
    "subscriptionname": "'entity': topic/subscriptions/name",
}


def has_table_options(options: Mapping[str, str]) -> bool:
    """Whether these options describe a table that is being created."""
    return any(name.lower().startswith(_PREFIX) for name in options)


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options that the user gave, without a table's prefix and a table's own properties."""
    given: dict[str, str] = {}
    table = has_table_options(options)
    for name, value in options.items():
        if name.lower().startswith(_PREFIX):
            given.setdefault(name[len(_PREFIX) :], value)
        elif not table or name.lower() not in _OF_TABLES:
            given[name] = value
    return given


def unknown_option(name: str, known: Iterable[str], elsewhere: Iterable[str], what: str) -> str:
    """What to say about an option that is none of `known`."""
    known = tuple(known)
    lower = name.lower()
    if lower in {each.lower() for each in elsewhere}:
        hint = "is not for this direction"
    elif lower in _ELSEWHERE:
        hint = f"is another connector's. Here it is {_ELSEWHERE[lower]}"
    elif lower.startswith("kafka."):
        hint = "is for Kafka's client, and has no counterpart here"
    else:
        names = {each.lower(): each for each in known}
        near = get_close_matches(lower, names, n=1, cutoff=0.75)
        hint = f"is unknown. Did you mean '{names[near[0]]}'?" if near else "is unknown"
    end = "" if hint.endswith("?") else "."
    return f"Option '{name}' {hint}{end} A servicebus entity is {what} with: {', '.join(known)}."
