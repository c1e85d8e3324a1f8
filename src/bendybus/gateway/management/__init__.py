"""`$management`: what a link cannot say, as requests with an operation and a map.

    node: finds the operation that a request names, and answers
    operation: what an operation is, and what it is done to     fields: what a body holds
    messages: peek, receive by sequence number, batch delete    locks: renew, settle
    scheduling: schedule, cancel      sessions: locks, states, the list of them
    rules: add, remove, enumerate     extensions: those that Service Bus does not have

Each family has its names on the wire in a table, `OPERATIONS`. Arrays are AMQP
arrays and numbers have the width that the SDKs insist on.
"""

from __future__ import annotations

from bendybus.gateway.management.node import OPERATIONS, ManagementNode

__all__ = ["OPERATIONS", "ManagementNode"]
