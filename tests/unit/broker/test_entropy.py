"""Random bytes for lock tokens: as many as asked for, and none of them twice."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from bendybus.broker import entropy
from bendybus.broker.entropy import EntropyPool

BLOCK_BYTES = 2048


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Makes the machine give 1, 2, 3 and so on as two bytes each. Returns how many blocks it has given."""
    numbers, blocks = count(1), []

    def draw(count_bytes: int) -> bytes:
        blocks.append(count_bytes)
        return b"".join(next(numbers).to_bytes(2, "big") for _ in range(count_bytes // 2))

    monkeypatch.setattr(entropy, "urandom", draw)
    monkeypatch.setattr(entropy, "BLOCK_BYTES", BLOCK_BYTES)
    return lambda: len(blocks)


@pytest.mark.parametrize("size", [2, 14, 14 * 20, BLOCK_BYTES, BLOCK_BYTES + 2])
def test_no_byte_is_given_twice(drawn: Callable[[], int], size: int) -> None:
    pool = EntropyPool()
    taken = [pool.take(each) for each in (14, size, 14, size, size, 2) * 10]
    assert [len(each) for each in taken] == [14, size, 14, size, size, 2] * 10
    numbers = [each[at : at + 2] for each in taken for at in range(0, len(each), 2)]
    assert len(set(numbers)) == len(numbers)


def test_small_amounts_come_from_one_block(drawn: Callable[[], int]) -> None:
    pool = EntropyPool()
    for _ in range(BLOCK_BYTES // 14):
        pool.take(14)
    assert drawn() == 1
