"""Several commands as one commit: all of them take effect or none (P-23).

They may be for several partitions, as long as these are in one messaging store.
That is why a transaction has one top-level entity and one partition
(domain/transactions.py). Nothing is written before the commit, so a crash before
it, a rollback, and a client that disconnects leave no trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from bendybus.broker.lifecycle import Availability, PartitionState
from bendybus.broker.partition_port import OnEnded, PartitionPort
from bendybus.domain.commands import CancelScheduled, Command, Enqueue
from bendybus.errors import BrokerError, PartitionMoved, StoreUnavailable, TransactionRolledBack

if TYPE_CHECKING:
    from bendybus.broker.entity import Entity
    from bendybus.broker.host import Host

__all__ = ["commit", "commit_here", "commit_here_at_once", "refuse_former_numbers"]

_Work: TypeAlias = "Sequence[tuple[Host[Any], Command]]"


async def commit(work: Sequence[tuple[PartitionPort, Command]]) -> None:
    """Return once everything is durable. Raises if nothing has happened."""
    while work:
        try:
            await work[0][0].commit(work)
        except PartitionMoved:
            # The owner has given them up before anything was applied. All of them have the same next one.
            moved = [(port.current, command) for port, command in work]
            if moved[0][0] is work[0][0]:
                raise
            work = moved
        else:
            return


async def commit_here(ports: Sequence[tuple[PartitionPort, Command]]) -> None:
    """`commit` by the owner of the partitions."""
    work, by_host = _hosts_of(ports)
    await _loaded(by_host)
    for host, command in work:
        await host.look_ahead(command)
    await _loaded(by_host)
    # Nothing else runs from here to the submission, so the result of the checks stays valid.
    for host in by_host:
        if host.state is PartitionState.OWNED_ELSEWHERE:
            raise PartitionMoved(f"Partition {host.number} of '{host.path}' is not owned by this broker.")
    answer: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    _submit(work, by_host, lambda failure: None if answer.done() else answer.set_result(failure))
    failure = await answer
    if failure is not None:
        raise failure


def commit_here_at_once(ports: Sequence[tuple[PartitionPort, Command]], ended: OnEnded) -> bool:
    """`commit_here` without a task. False: something has to be waited for, and nothing has happened."""
    work, by_host = _hosts_of(ports)
    for host in by_host:
        if host.state is PartitionState.OWNED_ELSEWHERE or host.availability is Availability.LOADING:
            return False
    if any(host.must_look_ahead(command) for host, command in work):
        return False
    _submit(work, by_host, ended)
    return True


def _hosts_of(ports: Sequence[tuple[PartitionPort, Command]]) -> tuple[_Work, dict[Host[Any], list[Command]]]:
    """The partitions of this broker, and the commands for each of them."""
    # One store has all of the partitions, so one broker owns them.
    work = cast("_Work", ports)
    by_host: dict[Host[Any], list[Command]] = {}
    for host, command in work:
        by_host.setdefault(host, []).append(command)
    return work, by_host


def _submit(work: _Work, by_host: Mapping[Host[Any], Sequence[Command]], ended: OnEnded) -> None:
    """Check everything, apply it, and submit it to the store. Raises if nothing has happened."""
    at = work[0][0].now()
    for host, commands in by_host.items():
        host.check(commands, at)
    prepared = [each for host, command in work for each in host.prepare(command, at)]
    (store,) = {host.store for host in by_host}

    def committed(failure: Exception | None) -> None:
        for _, each in prepared:
            each(failure)
        error: StoreUnavailable | None = None
        if failure is not None:
            error = StoreUnavailable(f"The transaction may not have been committed: {failure}")
            error.__cause__ = failure
        ended(error)

    store.writer.submit([share for share, _ in prepared], committed)


def refuse_former_numbers(entity: Entity[Any, Any, Any], commands: Sequence[Command]) -> None:
    """Raise if commands of a transaction name messages by numbers from before their entity was emptied.

    The numbers have started again: other messages may have them now.
    """
    for command in commands:
        if not isinstance(command, Enqueue | CancelScheduled) or not command.generation:
            continue
        if command.generation != entity.generation:
            raise TransactionRolledBack(
                f"'{entity.path}' was emptied while the transaction was open: the sequence numbers of "
                "messages that it schedules or cancels are not valid any more. Repeat the transaction."
            )


async def _loaded(hosts: Iterable[Host[Any]]) -> None:
    while loading := [host for host in hosts if host.availability is Availability.LOADING]:
        await loading[0].loaded()
