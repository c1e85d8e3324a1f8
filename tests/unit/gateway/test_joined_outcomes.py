"""Outcomes of several links that follow one another: one command, and each link's own answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from bendybus.amqp.performatives import ACCEPTED
from bendybus.domain.commands import Command, Complete, Reply, Settled
from bendybus.engine.deliveries import SentDelivery
from bendybus.engine.events import OutcomesReceived
from bendybus.gateway.joined_outcomes import JoinedOutcomes
from bendybus.names import LockToken


@dataclass(eq=False)
class FakeHost:
    commands: list[Command] = field(default_factory=list)
    done: list[object] = field(default_factory=list)

    def submit(self, command: Command, done: object) -> None:
        self.commands.append(command)
        self.done.append(done)


@dataclass
class FakeLink:
    answers: list[tuple[list[bytes], Reply]] = field(default_factory=list)

    def settled(self, event: OutcomesReceived, deliveries: list[SentDelivery], reply: Reply) -> None:
        self.answers.append(([delivery.tag for delivery in deliveries], reply))


def complete(joined: JoinedOutcomes, link: FakeLink, host: FakeHost, *tags: bytes, settled: bool) -> None:
    deliveries = [SentDelivery(number, tag, link) for number, tag in enumerate(tags)]
    event = OutcomesReceived(link, deliveries, ACCEPTED, settled)
    joined.complete(link, event, host, deliveries)


def test_the_completions_of_several_links_are_one_command_for_each_partition():
    joined, one, another = JoinedOutcomes(), FakeHost(), FakeHost()
    complete(joined, FakeLink(), one, b"a", settled=True)
    complete(joined, FakeLink(), another, b"b", settled=True)
    complete(joined, FakeLink(), one, b"c", b"d", settled=True)
    joined.submit()
    joined.submit()
    assert one.commands == [Complete([b"a", b"c", b"d"])]
    assert another.commands == [Complete([b"b"])]


def test_each_link_that_waits_for_an_answer_gets_it():
    joined, host = JoinedOutcomes(), FakeHost()
    waits, has_settled, waits_too = FakeLink(), FakeLink(), FakeLink()
    complete(joined, waits, host, b"a", settled=False)
    complete(joined, has_settled, host, b"b", settled=True)
    complete(joined, waits_too, host, b"c", settled=False)
    joined.submit()
    assert waits.answers == []
    reply = Settled([LockToken(b"c")])
    host.done[0](reply)
    assert waits.answers == [([b"a"], reply)]
    assert has_settled.answers == []
    assert waits_too.answers == [([b"c"], reply)]
