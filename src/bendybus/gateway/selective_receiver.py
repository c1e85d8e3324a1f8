"""A receiving link with a selector: only messages that match are locked.

Messages that do not match stay available to others, unlocked and uncounted. The link has a
scan of each partition (broker/scans.py) and examines one page at a time. Between two pages
the event loop runs, so a long backlog delays no other work. A drain is answered when
everything has been examined. Partitions of another broker are examined there
(cluster/selecting.py). Delivering and settling: receiver.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bendybus.broker.partition_port import ReceivingPort
from bendybus.broker.queue import Queue
from bendybus.broker.scans import PartitionScan
from bendybus.broker.selection import Selection
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import BrokerError
from bendybus.gateway.link_ports import OutboundLink
from bendybus.gateway.receiver import Receiver

if TYPE_CHECKING:
    from bendybus.gateway.connection import AmqpConnection

__all__ = ["SelectiveReceiver"]


class SelectiveReceiver(Receiver):
    def __init__(
        self,
        connection: AmqpConnection,
        link: OutboundLink,
        queue: Queue,
        subqueue: SubQueue,
        selection: Selection,
    ) -> None:
        super().__init__(connection, link, queue, subqueue)
        self._selection = selection
        self._scans: dict[ReceivingPort, PartitionScan] = {}

    def _scan(self, host: ReceivingPort) -> PartitionScan:
        scan = self._scans.get(host)
        if scan is None:
            # The first scan, or the partition has another owner now. The scan starts again, as the partition
            # itself does.
            for former in self._scans.keys() - set(self._queue.hosts):
                self._scans.pop(former).close()
            scan = self._scans[host] = host.scan(self.subqueue, self._selection, self.wake)
        return scan

    def take(self) -> None:
        super().take()
        if self._wanted() <= 0:
            self._rest(soon=True)

    def _rest(self, *, soon: bool) -> None:
        for scan in self._scans.values():
            scan.rest(soon=soon)

    def _wait(self, wanted: int) -> None:
        if self._queue.suppliers:
            # Waiters on the ordinary wait list make other brokers send any messages, not only matching ones.
            self._queue.wait_to_borrow(self, self.subqueue)
        else:
            super()._wait(wanted)

    def _stop_waiting(self) -> None:
        self._queue.stop_borrowing(self, self.subqueue)
        super()._stop_waiting()
        self._rest(soon=False)

    def _loading(self) -> bool:
        return super()._loading() or any(scan.is_unknown for scan in self._scans.values())

    def _partitions(self) -> Iterable[ReceivingPort]:
        # Other brokers send nothing for a selector that they have not been asked for.
        return self._queue.in_turn() if self._queue.suppliers else super()._partitions()

    def _lock(self, host: ReceivingPort, count: int) -> list[Message]:
        scan = self._scan(host)
        messages = scan.lock(count)
        if not messages and scan.is_behind:
            self._examine(host)
            messages = scan.lock(count)
        if not messages:
            self._go_on_later(host)
        return messages

    def _has_more(self, host: ReceivingPort) -> bool:
        return self._scan(host).has_found

    def _may_ask_again(self, host: ReceivingPort) -> bool:
        may_ask = super()._may_ask_again(host)
        self._go_on_later(host)
        return may_ask

    # -- looking ------------------------------------------------------------------

    def _examine(self, host: ReceivingPort) -> None:
        """Examine the next page: at once if it is in memory, otherwise when the store has read it."""
        is_at_once = True

        def examined(failure: BrokerError | None) -> None:
            self._reading.discard(host)
            if is_at_once or self._closed:
                return
            if failure is not None:
                # Before the wake: this partition cannot answer now, and a drain must not wait for it.
                self._answer_drain()
            self.wake()

        self._reading.add(host)
        self._scan(host).examine(examined)
        is_at_once = False

    def _go_on_later(self, host: ReceivingPort) -> None:
        """There may be more: continue in another turn of the event loop."""
        scan = self._scan(host)
        if host not in self._reading and not scan.has_found and scan.is_behind:
            self._reading.add(host)
            asyncio.get_running_loop().call_soon(self._look_further, host)

    def _look_further(self, host: ReceivingPort) -> None:
        self._reading.discard(host)
        if not self._closed:
            self.wake()

    def close(self) -> None:
        super().close()
        for scan in self._scans.values():
            scan.close()
