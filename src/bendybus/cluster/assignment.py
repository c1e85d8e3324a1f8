"""Which broker owns which group of partitions: a pure function of their names.

Partitions that share commits need one owner, so they form a group: partition i of a topic and those of its
subscriptions, or everything in one messaging store. Every broker computes the same answer, so there is no
election.

Rendezvous hashing gives each pair of group and broker a score. Pairs are taken by descending score, until
every group has an owner. A broker that has its share takes no more; the shares are equal, rounded up. When a
broker joins or leaves, only the groups that prefer it, or that it displaced, move. A group that only some
brokers can own, and for which none of them has room, goes to the one with the highest score.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from hashlib import blake2b

__all__ = ["assign", "share_max"]


def share_max(groups: int, brokers: int) -> int:
    """The most groups that one broker owns if there are this many brokers."""
    return -(-groups // brokers)


def assign(
    groups: Collection[str], brokers: Collection[str], cannot: Container[tuple[str, str]] = ()
) -> dict[str, str]:
    """The owner of each group. There must be a broker.

    `cannot`: the pairs of a group and a broker that cannot own it. A group that nobody can own is left out.
    """
    assert brokers, "without a broker there is no owner"
    groups, brokers = set(groups), set(brokers)
    room = dict.fromkeys(brokers, share_max(len(groups), len(brokers)))
    owners: dict[str, str] = {}
    # The names break ties, so that the order of the arguments never matters.
    pairs = sorted(
        (
            (_score(group, broker), group, broker)
            for group in groups
            for broker in brokers
            if (group, broker) not in cannot
        ),
        reverse=True,
    )
    for _, group, broker in pairs:
        if group not in owners and room[broker]:
            owners[group] = broker
            room[broker] -= 1
    for _, group, broker in pairs:
        owners.setdefault(group, broker)
    return owners


def _score(group: str, broker: str) -> bytes:
    # The hash is part of the protocol between brokers: brokers of different versions must agree.
    return blake2b(f"{broker}\0{group}".encode(), digest_size=8).digest()
