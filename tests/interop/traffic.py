"""Senders and receivers that go on while brokers die, and what was acknowledged to them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

__all__ = ["RETRIES", "SESSIONS", "Traffic", "all_go_on"]

RETRIES: Final[dict[str, Any]] = {"retry_total": 20, "retry_backoff_factor": 0.1, "retry_backoff_max": 0.2}
SESSIONS: Final = 7
# Senders wait while so many messages have not been received: they are faster than receivers, and at the end
# everything has to be received.
BACKLOG_MAX: Final = 400


class Traffic:
    """Sends and receives until it is told to stop, and counts what was acknowledged."""

    def __init__(self, connection_strings: Sequence[str], name: str, label: str = "") -> None:
        """`connection_strings`: of the brokers that clients use in turn. `label`: begins each message."""
        self._label = label
        self._brokers = cycle(connection_strings)
        self._name = name
        self.acknowledged: set[str] = set()
        self.received: set[str] = set()
        """If a broker dies while one of them is completed, its receiver cannot know whether it was."""
        self.completed: set[str] = set()
        self.refused: list[ServiceBusError] = []
        """Sends that failed, after all retries."""
        self.sending = threading.Event()
        self.sending.set()
        self._threads = [
            threading.Thread(target=self._send, args=(number,), daemon=True) for number in range(3)
        ]
        self._threads += [threading.Thread(target=self._receive, daemon=True) for _ in range(2)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(next(self._brokers), **RETRIES)

    def _send(self, place: int) -> None:
        number = 0
        with self._client() as client, client.get_queue_sender(self._name) as sender:
            while self.sending.is_set():
                if len(self.acknowledged) - len(self.received) > BACKLOG_MAX:
                    time.sleep(0.01)
                    continue
                texts = [f"{self._label}{place}/{number + each}" for each in range(5)]
                number += 5
                keys = {"session_id": f"s{number % SESSIONS}"} if self._name == "steps" else {}
                try:
                    sender.send_messages([ServiceBusMessage(text, **keys) for text in texts])
                except ServiceBusError as refusal:
                    self.refused.append(refusal)
                    continue
                self.acknowledged.update(texts)

    @property
    def _done(self) -> bool:
        return not self.sending.is_set() and self.acknowledged <= self.received

    def _receive(self) -> None:
        sessions = cycle(range(SESSIONS))
        with self._client() as client:
            while not self._done:
                # By name: a receiver that asks for the next free session waits a minute when all are empty.
                session = {"session_id": f"s{next(sessions)}"} if self._name == "steps" else {}
                with suppress(ServiceBusError), client.get_queue_receiver(self._name, **session) as receiver:
                    self._take(receiver)

    def _take(self, receiver: ServiceBusReceiver) -> None:
        while not self._done:
            messages = receiver.receive_messages(20, max_wait_time=1)
            if not messages and self._name == "steps":
                return
            for message in messages:
                self.received.add(str(message))
                receiver.complete_message(message)
                self.completed.add(str(message))

    def goes_on(self, count: int = 50) -> None:
        """Wait until so many more messages have been completed."""
        all_go_on([self], count)

    def finish(self) -> None:
        self.sending.clear()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"missing: {sorted(self.acknowledged - self.received)[:10]}"


def all_go_on(traffics: Sequence[Traffic], count: int = 50) -> None:
    """Wait until each of them has completed so many more messages."""
    goals = [len(each.completed) + count for each in traffics]
    while any(len(each.completed) < goal for each, goal in zip(traffics, goals, strict=True)):
        time.sleep(0.01)
