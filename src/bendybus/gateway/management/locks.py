"""Message locks by request: `renew-lock` and `update-disposition`, by lock tokens.

A token identifies its partition. An unavailable partition answers as on links: settlement.py. Locks of
sessions: sessions.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bendybus.amqp.types import Array, Timestamp
from bendybus.auth.rights import Right
from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.domain.commands import Command, Renew, Renewed, Reply, Settled
from bendybus.errors import BrokerError
from bendybus.gateway.management.fields import Body, lock_tokens
from bendybus.gateway.management.operation import Answer, Managed, Operation
from bendybus.gateway.settlement import command_for_status, lock_lost, refused
from bendybus.gateway.transaction import Transaction
from bendybus.names import LockToken

__all__ = ["OPERATIONS"]


async def _renew_lock(managed: Managed, body: Body) -> Answer:
    tokens = lock_tokens(body)
    ends: dict[LockToken, int | None] = {}
    for host, share in _by_token(managed.queue, tokens).items():
        renewed = await _ask_holder(host, Renew(share))
        assert isinstance(renewed, Renewed)
        ends.update(zip(share, renewed.locked_until, strict=True))
    found = [end for token in tokens if (end := ends.get(token)) is not None]
    if len(found) < len(tokens):
        raise lock_lost(managed.queue.path)
    return {"expirations": Array(Timestamp, [Timestamp(end) for end in found])}


async def _update_disposition(managed: Managed, body: Body) -> Answer:
    tokens = lock_tokens(body)
    managed.refuse_session_of_others(body)
    shares = _by_token(managed.queue, tokens)
    lost = len(tokens) - sum(map(len, shares.values()))
    for host, share in shares.items():
        settled = await _ask_holder(host, command_for_status(share, body))
        assert isinstance(settled, Settled)
        lost += len(settled.lost)
    if lost:
        # The session may have been lost meanwhile; else it is this message's lock alone.
        managed.refuse_session_of_others(body)
        raise lock_lost(managed.queue.path)
    return {}


async def _update_disposition_in_transaction(
    managed: Managed, body: Body, transaction: Transaction
) -> Answer:
    tokens = lock_tokens(body)
    managed.refuse_session_of_others(body)
    shares = _by_token(managed.queue, tokens)
    if sum(map(len, shares.values())) < len(tokens):
        raise lock_lost(managed.queue.path)
    for host, share in shares.items():
        transaction.settle(managed.queue, host, share, command_for_status(share, body))
    return {}


def _by_token(queue: Queue, tokens: Sequence[LockToken]) -> dict[ReceivingPort, list[LockToken]]:
    """Each partition's share; a token that none of them has given is in no share."""
    shares: dict[ReceivingPort, list[LockToken]] = {}
    for token in tokens:
        host = queue.host_of_token(token)
        if host is not None:
            shares.setdefault(host, []).append(token)
    return shares


async def _ask_holder(host: ReceivingPort, command: Command) -> Reply:
    """Submit a command that only the holder of a lock may submit."""
    try:
        return await host.ask(command)
    except BrokerError as error:
        raise refused(error) from error


OPERATIONS: Final[Mapping[str, Operation]] = {
    "com.microsoft:renew-lock": Operation(Right.LISTEN, _renew_lock),
    "com.microsoft:update-disposition": Operation(
        Right.LISTEN, _update_disposition, _update_disposition_in_transaction
    ),
}
