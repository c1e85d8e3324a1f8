"""Uncertain sends: reported as failed, although a store that stalled may still store them.

Their senders have sent them again, or they went to another partition (P-16). So when the partition is
loaded under the next claim, any that are found are removed. After that claim none of them can be
written any more (writer.py), and the sequence numbers that were not found are given to other messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from bendybus.domain.commands import Command, Enqueue, Enqueued, Reply
from bendybus.domain.effects import DurableEffect, StoreMessages
from bendybus.domain.messages import Message
from bendybus.names import Epoch
from bendybus.store.protocol import NEVER_CLAIMED

__all__ = ["UncertainSends"]


class UncertainSends:
    """The uncertain sends of one partition. `split` may run in another thread if nothing else does."""

    __slots__ = ("_numbers", "epoch")

    def __init__(self) -> None:
        self._numbers: list[range] = []
        self.epoch = NEVER_CLAIMED
        """Our last claim: the one under which they were submitted, or that of a load that failed."""

    def note(self, command: Command, reply: Reply, durable: Sequence[DurableEffect]) -> None:
        """This command was submitted and is reported as failed."""
        # If the commit contained more than messages, removing only the messages would leave the rest of it.
        plain = isinstance(command, Enqueue) and all(isinstance(effect, StoreMessages) for effect in durable)
        if plain and isinstance(reply, Enqueued):
            self._numbers.append(range(reply.first, reply.first + reply.count))

    def split(self, messages: list[Message], epoch: Epoch) -> tuple[list[Message], list[Message]]:
        """Split the messages found by a load under this claim: those that stay, those to be removed."""
        # If another broker had owned the partition in between, these could be the numbers of its messages.
        # The claim is already ours if the load under it was late: the load was forgotten but not given up.
        if not self._numbers or epoch not in (self.epoch, self.epoch + 1):
            return messages, []
        uncertain = {number for numbers in self._numbers for number in numbers}
        stay = [message for message in messages if message.sequence_number not in uncertain]
        return stay, [message for message in messages if message.sequence_number in uncertain]

    def keep_only(self, messages: Sequence[Message]) -> None:
        """Only these are left, until their removal is durable."""
        self._numbers = [range(message.sequence_number, message.sequence_number + 1) for message in messages]
