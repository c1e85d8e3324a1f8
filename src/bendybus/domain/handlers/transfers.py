"""How messages leave for another entity: posted into the outbox, sent from it, then removed (outbox.py)."""

from __future__ import annotations

from bendybus.domain.changes import Changes
from bendybus.domain.commands import Done, Given, Post, Reassign, Transferred, Undeliverable
from bendybus.domain.parts import Parts
from bendybus.names import Instant

__all__ = ["post", "reassign", "transferred", "undeliverable"]


def post(parts: Parts, command: Post, at: Instant, changes: Changes) -> Given:
    return Given(parts.outbox.post(command.count, command.destination, command.subqueue, at, changes))


def reassign(parts: Parts, command: Reassign, at: Instant, changes: Changes) -> Done:
    parts.outbox.reassign(command.sequence_numbers, command.partition, changes)
    return Done()


def transferred(parts: Parts, command: Transferred, at: Instant, changes: Changes) -> Done:
    parts.outbox.remove(command.sequence_numbers, changes)
    return Done()


def undeliverable(parts: Parts, command: Undeliverable, at: Instant, changes: Changes) -> Done:
    parts.outbox.give_up(command.sequence_numbers, command.cause, changes)
    return Done()
