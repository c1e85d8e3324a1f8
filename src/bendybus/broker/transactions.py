"""Several commands as one commit: all of them take effect or none (P-23).

They may be for several partitions, as long as these are in one messaging store.
That is why a transaction has one top-level entity and one partition
(domain/transactions.py). Nothing is written before the commit, so a crash before
it, a rollback, and a client that disconnects leave no trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from bendybus.broker.lifecycle import Availability, PartitionState
from bendybus.broker.partition_port import PartitionPort
from bendybus.domain.commands import Command
from bendybus.errors import PartitionMoved, StoreUnavailable

if TYPE_CHECKING:
    from bendybus.broker.host import Host

__all__ = ["commit", "commit_here"]


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
    # One store has all of the partitions, so one broker owns them.
    work = cast("Sequence[tuple[Host[Any], Command]]", ports)
    by_host: dict[Host[Any], list[Command]] = {}
    for host, command in work:
        by_host.setdefault(host, []).append(command)
    await _loaded(by_host)
    for host, command in work:
        await host.look_ahead(command)
    await _loaded(by_host)
    # Nothing else runs from here to the submission, so the result of the checks stays valid.
    for host in by_host:
        if host.state is PartitionState.OWNED_ELSEWHERE:
            raise PartitionMoved(f"Partition {host.number} of '{host.path}' is not owned by this broker.")
    at = work[0][0].now()
    for host, commands in by_host.items():
        host.check(commands, at)
    prepared = [each for host, command in work for each in host.prepare(command, at)]
    (store,) = {host.store for host in by_host}
    answer: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def committed(failure: Exception | None) -> None:
        for _, each in prepared:
            each(failure)
        if not answer.done():
            answer.set_result(failure)

    store.writer.submit([share for share, _ in prepared], committed)
    failure = await answer
    if failure is not None:
        raise StoreUnavailable(f"The transaction may not have been committed: {failure}") from failure


async def _loaded(hosts: Iterable[Host[Any]]) -> None:
    while loading := [host for host in hosts if host.availability is Availability.LOADING]:
        await loading[0].loaded()
