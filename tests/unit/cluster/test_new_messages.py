"""Which messages are new, and what their heads keep."""

from __future__ import annotations

import pytest

from bendybus.cluster.new_messages import enqueues_only, messages_of, taken_apart
from bendybus.domain.commands import Command, Complete, Enqueue, Transfer
from bendybus.domain.messages import Amendment, Message, MessageState, Origin, SubQueue
from fix_messages import message_fields


def fields(message: Message) -> list[object]:
    return [getattr(message, name) for name in sorted(message_fields())]


def test_new_messages_are_put_together_as_they_were() -> None:
    sent = [Message(b"one", 5), Message(b"", 2, 77), Message(b"three", 9, None, "session")]

    taken = taken_apart(sent)

    assert taken is not None
    heads, payloads = taken
    assert list(map(fields, messages_of(heads, b"".join(payloads)))) == list(map(fields, sent))


# Every field that a head does not have, with a value that a message has only once it is not new.
CHANGED: dict[str, object] = {
    "amendment": Amendment(dead_letter_reason="late"),
    "delivery_count": 1,
    "enqueued_at": 5,
    "lock_token": b"t" * 16,
    "locked_until": 5,
    "origin": Origin(3),
    "payload": None,
    "row_id": 4,
    "sequence_number": 6,
    "state": MessageState.SCHEDULED,
    "subqueue": SubQueue.DEAD_LETTER,
}


def test_heads_and_changes_cover_all_fields() -> None:
    assert {*CHANGED, "size", "expires_at", "session_id"} == message_fields()


@pytest.mark.parametrize("field", CHANGED)
def test_a_message_that_its_head_does_not_describe_is_not_new(field: str) -> None:
    message = Message(b"x", 1, 9, "session")
    setattr(message, field, CHANGED[field])

    assert taken_apart([Message(b"x", 1), message]) is None


@pytest.mark.parametrize(
    "command",
    [
        Enqueue([], identities=["a"]),
        Enqueue([], transfer=Transfer("g/3", [1])),
        Enqueue([], destination="other"),
        Enqueue([], numbered=True),
        Enqueue([], shelved=True),
        Complete([]),
    ],
)
def test_a_command_that_says_more_does_not_only_enqueue(command: Command) -> None:
    assert not enqueues_only(command)
    assert enqueues_only(Enqueue([Message(b"x", 1)]))
