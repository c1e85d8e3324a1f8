"""Scheduling by request: how much at once. Everything else: interop/test_scheduling.py."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bendybus.domain.messages import SubQueue
from bendybus.errors import ArgumentError
from bendybus.gateway.management.operation import Managed
from bendybus.gateway.management.scheduling import MESSAGES_MAX, OPERATIONS
from bendybus.gateway.transaction import Transaction
from fix_broker import gated_queue


async def test_countless_messages_in_one_request_are_refused() -> None:
    """An empty message takes a few bytes of a request, and all of them would be admitted in one go."""
    async with gated_queue() as gated:
        managed = Managed(gated.queue, SubQueue.MAIN, cast(Any, None), {})
        body = {"messages": [{"message": b""}] * (MESSAGES_MAX + 1)}
        operation = OPERATIONS["com.microsoft:schedule-message"]
        assert operation.enlist is not None
        with pytest.raises(ArgumentError, match="at most 10000"):
            await operation.run(managed, body)
        with pytest.raises(ArgumentError, match="at most 10000"):
            await operation.enlist(managed, body, Transaction(b"t"))
        assert gated.host.partition.counts().active == 0
