"""Messages of another broker for a receiver with a selector.

The owner looks for messages that match: it has the payloads. The receiver's broker sends it the selector and
the total number of messages that it may send, as for other receivers (supply.py). But there is one such
demand for each receiver, because receivers want different messages. The owner has a scan of each of its
partitions (broker/scans.py), so it examines each message once for each receiver. It locks what matches, and
sends it. The owner's side: `SelectiveBorrower` (lending.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from bendybus.broker.queue import Queue
from bendybus.broker.selection import Selection
from bendybus.cluster.arrivals import KEEP_S, Arrivals, demanded
from bendybus.cluster.items import Item, SelectiveDemand
from bendybus.domain.messages import Message, SubQueue
from bendybus.errors import BrokerError
from bendybus.names import PartitionNumber

if TYPE_CHECKING:
    from bendybus.cluster.link import PeerLink

__all__ = ["GiveBack", "RemoteScan", "Selections"]

# What is taken at once; the owner has chosen it by its size.
ANY_SIZE: Final = 1 << 62

GiveBack: TypeAlias = Callable[[PartitionNumber, Sequence[Message]], None]


class _Selected(Arrivals):
    """What one broker has sent for one receiver."""

    __slots__ = ("awaited", "id", "numbers", "selection", "subqueue", "wake", "waking")

    def __init__(
        self, number: int, subqueue: SubQueue, selection: Selection, wake: Callable[[], None]
    ) -> None:
        super().__init__()
        self.id = number
        self.subqueue = subqueue
        self.selection = selection
        self.wake = wake
        self.waking: asyncio.Handle | None = None
        self.numbers: set[PartitionNumber] = set()
        """The partitions that the receiver has a scan of."""
        self.awaited = False


class Selections:
    """The receivers here that want messages of one broker, and of one queue."""

    def __init__(self, queue: Queue, give_back: GiveBack) -> None:
        self._queue = queue
        self._give_back = give_back
        self._link: PeerLink | None = None
        self._by_selection: dict[Selection, _Selected] = {}
        self._by_id: dict[int, _Selected] = {}
        self._last_id = 0
        self._asking: asyncio.Handle | None = None

    def scan(
        self, number: PartitionNumber, subqueue: SubQueue, selection: Selection, wake: Callable[[], None]
    ) -> RemoteScan:
        """`selection`: of one receiver, and of no other."""
        selected = self._by_selection.get(selection)
        if selected is None:
            self._last_id += 1
            selected = _Selected(self._last_id, subqueue, selection, wake)
            self._by_selection[selection] = self._by_id[selected.id] = selected
        selected.numbers.add(number)
        return RemoteScan(self, selected, number)

    # -- the connection -----------------------------------------------------------

    def connected(self, link: PeerLink) -> None:
        self._link = link

    def disconnected(self) -> None:
        """Nothing that was asked for will come. Receivers ask again when there is a connection."""
        self._link = None
        for selected in self._by_id.values():
            self._return_all(selected)
            selected.forget()

    def leave_partition(self, number: PartitionNumber) -> list[Message]:
        """The owner has given up this partition. Returns what has arrived and nobody has taken."""
        return [
            message for selected in self._by_id.values() for message in selected.by_partition.pop(number, ())
        ]

    def rest(self) -> None:
        """The owner has no partition of the queue any more."""
        for selected in self._by_id.values():
            self.unwanted(selected)

    # -- what receivers ask for ---------------------------------------------------

    def take(self, selected: _Selected, number: PartitionNumber, count: int) -> list[Message]:
        selected.awaited = True
        taken = selected.take(number, count, ANY_SIZE)
        if len(taken) < count:
            selected.want(demanded(self._queue, count - len(taken)))
            if self._asking is None:
                self._asking = asyncio.get_running_loop().call_soon(self._ask)
        return taken

    def is_unknown(self, selected: _Selected) -> bool:
        return self._link is not None and selected.is_unknown

    def unawaited(self, selected: _Selected) -> None:
        """The receiver has no credit. If it has none for a while, what was asked for is not wanted."""
        selected.awaited, selected.wanted = False, 0
        if selected.leaving is None and (selected.limit > selected.arrived or not selected.is_empty):
            loop = asyncio.get_running_loop()
            selected.leaving = loop.call_later(KEEP_S, self._left, selected)

    def _left(self, selected: _Selected) -> None:
        selected.leaving = None
        if not selected.awaited:
            self.unwanted(selected)

    def unwanted(self, selected: _Selected) -> None:
        selected.awaited = False
        if selected.withdraw():
            self._demand(selected)
        self._return_all(selected)

    def close(self, selected: _Selected, number: PartitionNumber) -> None:
        """The receiver has no scan of this partition any more. Without any, it is forgotten."""
        selected.numbers.discard(number)
        if selected.numbers or self._by_id.pop(selected.id, None) is None:
            return
        del self._by_selection[selected.selection]
        if selected.leaving is not None:
            selected.leaving.cancel()
        if selected.waking is not None:
            selected.waking.cancel()
        self._return_all(selected)
        self._say(SelectiveDemand(*self._names(selected), "", None))

    def _ask(self) -> None:
        self._asking = None
        if self._link is None:
            return
        for selected in self._by_id.values():
            if selected.next_limit(selected.awaited) is not None:
                self._demand(selected)

    def _demand(self, selected: _Selected) -> None:
        self._say(SelectiveDemand(*self._names(selected), selected.selection.text, selected.limit))

    def _names(self, selected: _Selected) -> tuple[str, str, int, int]:
        return self._queue.path, self._queue.generation, selected.subqueue, selected.id

    def _say(self, item: Item) -> None:
        if self._link is not None:
            self._link.send(item)

    # -- what arrives -------------------------------------------------------------

    def supplied(self, number: int, limit: int, place: PartitionNumber, messages: list[Message]) -> None:
        """The owner has given messages that match, or has no more. The receiver is woken afterwards."""
        selected = self._by_id.get(number)
        if selected is None:
            # The receiver is gone.
            if messages:
                self._give_back(place, messages)
            return
        selected.arrive(limit, place, messages)
        if selected.unwanted:
            self._return_all(selected)
        elif selected.waking is None:
            selected.waking = asyncio.get_running_loop().call_soon(self._wake, selected)

    def _wake(self, selected: _Selected) -> None:
        selected.waking = None
        selected.wake()
        if not selected.is_empty and selected.keeping is None:
            loop = asyncio.get_running_loop()
            selected.keeping = loop.call_later(KEEP_S, self._kept_too_long, selected)

    def _kept_too_long(self, selected: _Selected) -> None:
        selected.keeping = None
        self._return_all(selected)

    def _return_all(self, selected: _Selected) -> None:
        for number, messages in selected.clear():
            self._give_back(number, messages)


class RemoteScan:
    """`PartitionScan` of a partition of another broker."""

    is_behind: Final = False

    def __init__(self, selections: Selections, selected: _Selected, number: PartitionNumber) -> None:
        self._selections = selections
        self._selected = selected
        self._number = number

    @property
    def has_found(self) -> bool:
        return bool(self._selected.by_partition.get(self._number))

    @property
    def is_unknown(self) -> bool:
        return self._selections.is_unknown(self._selected)

    def lock(self, count: int) -> list[Message]:
        """What the owner has sent. If that is not enough, it is asked for more."""
        return self._selections.take(self._selected, self._number, count)

    def examine(self, done: Callable[[BrokerError | None], None]) -> None:
        """The owner does that."""
        done(None)

    def rest(self, *, soon: bool) -> None:
        if soon:
            self._selections.unawaited(self._selected)
        else:
            self._selections.unwanted(self._selected)

    def close(self) -> None:
        self._selections.close(self._selected, self._number)
