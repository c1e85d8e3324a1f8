"""A load on topics: each subscription gets what its rules choose, all of them or none (P-01, P-34)."""

from __future__ import annotations

import random
import time
from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Final

from faults.history import Settlement
from faults.load import LOCK, Choices, Load, Outlet, encode, numbered
from fix_client import Sender
from fix_server import Properties

__all__ = ["TopicLoad"]

# Subscription -> its rule; what it chooses is computed once more in `_copies`.
RULES: Final[dict[str, Properties | None]] = {
    "all": None,
    "even": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "parity = 0"}},
    "high": {"FilterType": "Correlation", "CorrelationFilter": {"Label": "high"}},
    "onward": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "parity = 1"}},
}
CHOICES: Final[Choices] = {Settlement.COMPLETE: 92, Settlement.ABANDON: 4, None: 4}


def _topic(name: str, partitioned: bool, collected: str) -> Properties:
    subscriptions = []
    for subscription, rule in RULES.items():
        forwards = {"ForwardTo": collected} if subscription == "onward" else {}
        rules = [] if rule is None else [{"Name": "chosen", "Properties": rule}]
        subscriptions.append(
            {"Name": subscription, "Properties": {**LOCK, **forwards}, "Rules": rules},
        )
    return {
        "Name": name,
        "Properties": {"EnablePartitioning": partitioned},
        "Subscriptions": subscriptions,
    }


class TopicLoad(Load):
    name = "topics"
    # What is forwarded goes from partitioned to unpartitioned, and the other way round.
    queues: Final = {
        "collected-plain": {**LOCK, "EnablePartitioning": False},
        "collected-parts": {**LOCK, "EnablePartitioning": True},
    }
    topics: Final = [
        _topic("topic-parts", True, "collected-plain"),
        _topic("topic-plain", False, "collected-parts"),
    ]
    outlets: Final = [
        *(
            Outlet(f"{topic}/Subscriptions/{subscription}", copy=f"@{subscription}")
            for topic in ("topic-parts", "topic-plain")
            for subscription in ("all", "even", "high")
        ),
        Outlet("collected-plain", copy="@onward"),
        Outlet("collected-parts", copy="@onward"),
    ]
    scheduled: Final = 0.1

    def clients(self) -> list[Coroutine[None, None, None]]:
        clients = []
        for number, topic in enumerate(("topic-parts", "topic-plain")):
            ids = numbered(topic)
            clients.append(self.keep_sending(number, topic, partial(self._send, topic, ids)))
        for number, outlet in enumerate(self.outlets, 10):
            clients.append(self.keep_receiving(number, outlet, CHOICES))
        return clients

    def _send(self, topic: str, ids: Iterator[str], sender: Sender, choice: random.Random) -> None:
        message_id, parity = next(ids), choice.randrange(2)
        key = f"{topic}-{choice.randrange(6)}" if choice.random() < 0.7 else None
        subject = choice.choice(["high", "low"])
        due = None
        if choice.random() < self.scheduled:
            due = int((time.time() + choice.uniform(0.05, 1.0)) * 1000) / 1000
        copies = ["@all", "@even" if parity == 0 else "@onward", *(["@high"] if subject == "high" else [])]
        expected = [f"{message_id}{copy}" for copy in copies]
        # A message that is scheduled comes out of its turn.
        stream = f"alone, {message_id}" if key is None or due is not None else f"key {key}"
        body = message_id.encode()
        self.history.attempt(
            expected,
            [f"{stream}{copy}" for copy in copies],
            [body] * len(copies),
            due=due or 0.0,
            group=message_id,
        )
        payload = encode(message_id, body, key=key, due=due, subject=subject, user={"parity": parity})
        self.post(sender, expected, payload)
