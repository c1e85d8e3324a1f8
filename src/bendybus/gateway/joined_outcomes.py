"""Messages that several links of one connection complete one after another, settled together.

A disposition may cover deliveries of many links: a client that holds a thousand sessions settles a message or
two of each. Consecutive outcomes become one `Complete` for each partition, and one commit answers them all.
If another event comes between two outcomes, the first one is submitted before it (`AmqpConnection`). What a
link does with the answer: dispositions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast

from bendybus.broker.host import ignore
from bendybus.broker.partition_port import ReceivingPort
from bendybus.domain.commands import Complete, Reply
from bendybus.engine.deliveries import SentDelivery
from bendybus.engine.events import OutcomesReceived
from bendybus.errors import BrokerError
from bendybus.gateway.joined_answers import JoinedAnswers
from bendybus.names import LockToken

__all__ = ["JoinedOutcomes", "OutcomeSource"]


class OutcomeSource(Protocol):
    """A link whose messages are settled."""

    def settled(
        self, event: OutcomesReceived, deliveries: Sequence[SentDelivery], reply: Reply | BrokerError
    ) -> None:
        """The outcome of these deliveries is durable, or has failed."""


class _Completion:
    """What one partition is asked to complete."""

    __slots__ = ("joined", "tokens", "unanswered")

    def __init__(self) -> None:
        self.tokens: list[LockToken] = []
        self.unanswered: list[tuple[OutcomeSource, OutcomesReceived, Sequence[SentDelivery]]] = []
        """The deliveries whose receivers wait for an answer."""
        self.joined: JoinedAnswers | None = None
        """With the answers of other partitions, if there are any."""

    def answer(self, reply: Reply | BrokerError) -> None:
        if self.joined is None:
            self._tell(reply)
        else:
            self.joined.ready(partial(self._tell, reply))

    def _tell(self, reply: Reply | BrokerError) -> None:
        for source, event, deliveries in self.unanswered:
            source.settled(event, deliveries, reply)


class JoinedOutcomes:
    __slots__ = ("_completions",)

    def __init__(self) -> None:
        self._completions: dict[ReceivingPort, _Completion] = {}

    def complete(
        self,
        source: OutcomeSource,
        event: OutcomesReceived,
        host: ReceivingPort,
        deliveries: Sequence[SentDelivery],
    ) -> None:
        """Complete these deliveries of one partition with the next `submit`."""
        completion = self._completions.get(host)
        if completion is None:
            completion = self._completions[host] = _Completion()
        # The tag of a delivery is the lock token of its message.
        completion.tokens += cast(list[LockToken], [delivery.tag for delivery in deliveries])
        if not event.settled:
            completion.unanswered.append((source, event, deliveries))

    def submit(self) -> None:
        """Pass everything on to the partitions."""
        if self._completions:
            completions, self._completions = self._completions, {}
            answered = [each for each in completions.values() if each.unanswered]
            if len(answered) > 1:
                joined = JoinedAnswers(len(answered))
                for completion in answered:
                    completion.joined = joined
            for host, completion in completions.items():
                if completion.unanswered:
                    # A client that waits for an answer may name a delivery again. It is completed once.
                    host.submit(Complete([*dict.fromkeys(completion.tokens)]), completion.answer)
                else:
                    host.submit(Complete(completion.tokens), ignore)
