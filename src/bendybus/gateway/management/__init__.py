"""`$management`: operations beyond links, as requests with a name and a map.

    node: finds the operation that a request names, and answers
    operation: what an operation is, and what it is done to     fields: what a body holds
    messages: peek, receive by sequence number, batch delete    locks: renew, settle
    scheduling: schedule, cancel      sessions: locks, states, the list of them
    filter_rules: add, remove, enumerate     extensions: those that Service Bus does not have
    filtering: messages that a filter matches

Each module has its operations in a table, `OPERATIONS`, by their names on the wire. Arrays are
AMQP arrays, and numbers have the width that the SDKs require.
"""

from __future__ import annotations

from bendybus.gateway.management.node import OPERATIONS, ManagementNode

__all__ = ["OPERATIONS", "ManagementNode"]
