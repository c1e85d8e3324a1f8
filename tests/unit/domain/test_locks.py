from __future__ import annotations

from itertools import count

from bendybus.domain.commands import ENTROPY_PER_LOCK
from bendybus.domain.expiry import NEVER
from bendybus.domain.locks import LockTable
from bendybus.domain.messages import Message
from bendybus.names import Instant, LockToken, PartitionNumber

_serial = count(1)


def grant(table: LockTable, amount: int, until: int) -> list[Message]:
    messages = [Message(None, size=1) for _ in range(amount)]
    entropy = b"".join(next(_serial).to_bytes(ENTROPY_PER_LOCK, "big") for _ in messages)
    table.grant(messages, entropy, Instant(until))
    return messages


def token(message: Message) -> LockToken:
    assert message.lock_token is not None
    return message.lock_token


def test_a_token_is_the_partitions_number_and_the_commands_entropy() -> None:
    table = LockTable(PartitionNumber(0x0102))
    messages = [Message(None, size=1), Message(None, size=1)]
    table.grant(messages, b"a" * 14 + b"b" * 14, Instant(50))
    assert [each.lock_token for each in messages] == [b"\1\2" + b"a" * 14, b"\1\2" + b"b" * 14]
    assert [each.locked_until for each in messages] == [50, 50]


def test_locks_end_at_their_instant_and_not_before() -> None:
    table = LockTable(PartitionNumber(0))
    early = grant(table, 2, until=10)
    late = grant(table, 1, until=20)
    assert table.expire(Instant(9)) == []
    assert table.expire(Instant(10)) == early
    assert table.earliest_end == 20
    assert table.expire(Instant(20)) == late
    assert table.earliest_end == NEVER
    assert len(table) == 0


def test_a_renewed_lock_ends_later_than_those_granted_after_it() -> None:
    table = LockTable(PartitionNumber(0))
    (renewed,) = grant(table, 1, until=10)
    (other,) = grant(table, 1, until=20)
    assert table.renew([token(renewed), LockToken(b"unknown")], Instant(30)) == [30, None]
    assert renewed.locked_until == 30
    assert table.expire(Instant(29)) == [other]
    assert table.expire(Instant(30)) == [renewed]


def test_a_shortened_lock_duration_ends_new_locks_before_old_ones() -> None:
    table = LockTable(PartitionNumber(0))
    (long,) = grant(table, 1, until=300)
    short = [grant(table, 1, until=each)[0] for each in (5, 6)]
    assert table.earliest_end == 5
    assert table.expire(Instant(6)) == short
    assert table.earliest_end == 300
    assert table.find(token(long)) is long
    assert table.release([token(long)]) == ([long], [])


def test_a_lock_of_any_generation_is_released_and_renewed() -> None:
    table = LockTable(PartitionNumber(0))
    messages = [grant(table, 1, until=each)[0] for each in (300, 200, 100)]
    assert set(table) == set(messages)
    assert table.renew([token(messages[1])], Instant(150)) == [150]
    assert table.release([token(each) for each in messages]) == (messages, [])
    assert len(table) == 0


def test_a_token_settles_once() -> None:
    table = LockTable(PartitionNumber(0))
    (message,) = grant(table, 1, until=10)
    same = token(message)
    assert table.release([same, same]) == ([message], [same])
    assert table.find(same) is None
