"""What one commit contains: the shares of many commands, one set of changes for each partition."""

from __future__ import annotations

import pytest

from bendybus.broker.commit_group import LARGE_COMMAND, CommitGroup, Share, is_large
from bendybus.domain.effects import RemoveMessages, StoreMessages, UpdateMessages
from bendybus.domain.messages import Message
from bendybus.names import Epoch, SequenceNumber
from bendybus.store.protocol import PartitionKey


def share(
    key: int, next_sequence_number: int, *effects: StoreMessages | RemoveMessages | UpdateMessages
) -> Share:
    return Share(PartitionKey(key), Epoch(1), SequenceNumber(next_sequence_number), effects)


def messages(count: int) -> list[Message]:
    return [Message(b"x", 1) for _ in range(count)]


def test_commands_of_one_partition_are_one_set_of_changes() -> None:
    group, first, second, third = CommitGroup(), *(messages(1) for _ in range(3))

    group.add([share(1, 2, StoreMessages(first))], lambda _: None)
    group.add([share(1, 3, StoreMessages(second)), share(2, 9, RemoveMessages(third))], lambda _: None)

    assert list(group.changes) == [1, 2]
    assert group.changes[PartitionKey(1)].stored == [*first, *second]
    assert group.changes[PartitionKey(1)].next_sequence_number == 3
    assert group.changes[PartitionKey(2)].removed == third
    assert len(group.callbacks) == 2


def test_an_update_keeps_the_values_of_its_time() -> None:
    group, (message,) = CommitGroup(), messages(1)
    message.delivery_count = 1

    group.add([share(1, 2, UpdateMessages([message]))], lambda _: None)
    message.delivery_count = 2

    assert [each.delivery_count for each in group.changes[PartitionKey(1)].updated] == [1]


@pytest.mark.parametrize("kind", [StoreMessages, RemoveMessages])
def test_a_command_is_large_if_it_stores_or_removes_many_messages(
    kind: type[StoreMessages] | type[RemoveMessages],
) -> None:
    assert is_large([share(1, 2), share(2, 2, kind(messages(LARGE_COMMAND)))])
    assert not is_large([share(1, 2, kind(messages(LARGE_COMMAND - 1)))])
